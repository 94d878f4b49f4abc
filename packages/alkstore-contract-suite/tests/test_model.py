"""The model allows what the contract allows, and where that is several things, each of them and no other."""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import alkstore_contract_suite.model
from alkstore_contract_suite.model.allowed import Allowed, Raised, just, one_of, raising, such
from alkstore_contract_suite.model.lock import Holder, Locks
from alkstore_contract_suite.model.queue import Jobs
from alkstore_contract_suite.model.row import DEAD, PROCESSING, Claim, NewJob, Row, Seen
from alkstore_contract_suite.model.schedule import Schedules
from alkstore_contract_suite.model.stream import Event, Stream, Streams
from alkstore_contract_suite.model.wake import Ears
from alkstore_contract_suite.model.world import View, World

SECOND = 1_000_000
JOB = NewJob("q", "x", visibility=10 * SECOND, max_attempts=2, base_delay=4 * SECOND)


def does(allowed: Allowed, answer: object) -> None:
    """Go on as an engine that answers so."""
    assert allowed.admits(answer), (allowed.expected, answer)
    allowed.then(answer)


def claimed(jobs: Jobs, now: int, queue: str = "q") -> Claim:
    first = jobs.ready(now, queue)[0]
    expected = (first.id, first.attempts + 1, now + first.new.visibility, "w")
    does(jobs.claim(now, queue, 1, "w"), [expected])
    return Claim(first.id, queue, jobs.rows[first.id].claim)


def with_one(**changed: Any) -> Jobs:
    jobs = Jobs()
    does(jobs.enqueue(0, [JOB._replace(**changed)]), [7])
    return jobs


def shown(row: Row, **changed: object) -> Seen:
    """Show a row as a store would."""
    new = row.new
    seen = Seen(
        row.id, new.queue, new.payload, row.state, new.priority, row.due, row.expires_at, row.attempts, new.max_attempts,
        new.visibility, new.base_delay, row.worker, row.deadline, row.created_at, row.scheduled_for, None,
        str(row.last_error) if row.last_error else None, row.died_at,
    )  # fmt: skip
    return seen._replace(**changed)  # type: ignore[arg-type]  # names of fields


@pytest.mark.parametrize(
    ("allowed", "good", "bad"),
    [
        (just(1), [1], [2, True, Raised("Closed")]),
        (just(None), [None], [False, 0]),
        (one_of(1, 2), [1, 2], [3]),
        (
            raising("Closed", "ClaimLost"),
            [Raised("Closed"), Raised("ClaimLost")],
            [Raised("DatabaseError"), None],
        ),
        (such("even", lambda got: got % 2 == 0, print), [2], [3, Raised("Closed")]),
    ],
)
def test_an_answer_is_allowed_or_it_is_not(allowed: Allowed, good: list[object], bad: list[object]) -> None:
    assert [allowed.admits(answer) for answer in good] == [True] * len(good)
    assert [allowed.admits(answer) for answer in bad] == [False] * len(bad)


def test_the_model_imports_nothing_that_could_be_wrong_with_it() -> None:
    # Core above all: a model that computes with it is wrong where it is wrong.
    path = Path(alkstore_contract_suite.model.__file__).parent
    imported = {
        node.module
        for file in path.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module
    }

    ours = {name for name in imported if name.startswith("alkstore_contract_suite.model.")}
    assert imported - ours <= {"collections", "collections.abc", "dataclasses", "typing"}


# ---------------------------------------------------------------- jobs


@pytest.mark.parametrize("ids", [[0, 1], [2, 1], [1], [7, 8]])
def test_ids_rise_and_are_never_given_again(ids: list[int]) -> None:
    jobs = with_one()

    assert jobs.enqueue(0, [JOB, JOB]).admits([8, 9])
    assert not jobs.enqueue(0, [JOB, JOB]).admits(ids)


def test_a_claim_may_be_settled_until_its_deadline_and_once() -> None:
    jobs = with_one()
    claim = claimed(jobs, 0)

    assert jobs.ack(10 * SECOND - 1, claim).admits(True)
    assert jobs.ack(10 * SECOND, claim).admits(False)
    does(jobs.ack(0, claim), True)
    assert jobs.rows == {}
    assert jobs.ack(0, claim).admits(Raised("HandleConsumed"))


def test_a_stale_claim_of_a_job_that_somebody_else_has_settles_nothing() -> None:
    jobs = with_one()
    stale = claimed(jobs, 0)
    claimed(jobs, 10 * SECOND)

    does(jobs.retry(10 * SECOND, stale, "boom", None), False)

    assert jobs.rows[7].state == PROCESSING


@pytest.mark.parametrize(("run_at", "is_allowed"), [(2, True), (3, True), (4, True), (1, False), (5, False)])
def test_a_retry_waits_within_the_half_of_its_curve(run_at: int, is_allowed: bool) -> None:
    jobs = with_one()
    does(jobs.retry(0, claimed(jobs, 0), "boom", None), True)

    seen = shown(jobs.rows[7], run_at=run_at * SECOND, retry_error="boom")

    assert jobs.look("q").admits([seen]) is is_allowed


def test_the_wait_that_an_engine_chose_is_the_one_that_counts() -> None:
    jobs = with_one()
    does(jobs.retry(0, claimed(jobs, 0), "boom", None), True)
    does(jobs.look("q"), [shown(jobs.rows[7], run_at=3 * SECOND, retry_error="boom")])

    assert jobs.ready(3 * SECOND - 1, "q") == []
    assert [row.id for row in jobs.ready(3 * SECOND, "q")] == [7]


@pytest.mark.parametrize("is_moved", [True, False])
@pytest.mark.parametrize("error", ["expired", "visibility timeout lapsed on the last attempt"])
def test_a_row_that_is_expired_and_used_up_is_moved_by_a_claim_or_not(is_moved: bool, error: str) -> None:
    jobs = with_one(max_attempts=1, expires=SECOND)
    claimed(jobs, 0)
    before = jobs.rows[7]

    does(jobs.claim(20 * SECOND, "q", 1, "w"), [])
    moved = shown(jobs.rows[7], last_error=error)

    assert jobs.rows[7].state == DEAD
    is_lapse = error != "expired"
    assert jobs.look("q").admits([moved if is_moved else shown(before)]) is (is_lapse or not is_moved)
    assert jobs.sweep(20 * SECOND, "q").admits(0)


@pytest.mark.parametrize(
    ("changed", "now", "counts"),
    [
        ({}, 0, (1, 0, 0, 0, 0, 0)),
        ({"delay": SECOND}, 0, (0, 1, 0, 0, 0, None)),
        ({"delay": SECOND}, 3 * SECOND, (1, 0, 0, 0, 0, 2 * SECOND)),
        ({"expires": SECOND}, SECOND, (0, 0, 0, 1, 0, None)),
    ],
)
def test_every_row_is_counted_as_what_a_claim_would_make_of_it(
    changed: dict[str, Any], now: int, counts: tuple[int | None, ...]
) -> None:
    assert with_one(**changed).stats(now, "q").admits(counts)


@pytest.mark.parametrize(
    "change",
    [
        {"attempts": 1},
        {"state": "dead"},
        {"priority": 1},
        {"run_at": 1},
        {"last_error": "boom"},
        {"payload": None},
    ],
)
def test_a_job_that_is_shown_otherwise_is_not_allowed(change: dict[str, object]) -> None:
    jobs = with_one()

    assert jobs.look("q").admits([shown(jobs.rows[7])])
    assert not jobs.look("q").admits([shown(jobs.rows[7], **change)])


# ---------------------------------------------------------------- streams


def stream(*offsets: int) -> Stream:
    made = Stream()
    does(made.publish(0, ["x"] * len(offsets), None), [*offsets])
    return made


@pytest.mark.parametrize(
    ("offsets", "is_allowed"),
    [([5, 9], True), ([4, 5], True), ([3, 4], False), ([5, 5], False), ([5], False)],
)
def test_offsets_rise_past_all_earlier_ones(offsets: list[int], is_allowed: bool) -> None:
    assert stream(1, 3).publish(0, ["x", "y"], None).admits(offsets) is is_allowed


def test_a_receiver_may_give_what_was_on_its_page_after_a_trim_or_what_is_left() -> None:
    made = stream(1, 2, 3)
    does(made.trim(2), 2)

    allowed = made.next_after(0)

    assert [allowed.admits(Event(offset, None, "x", 0)) for offset in (1, 2, 3)] == [True, False, True]
    assert not allowed.admits(None)
    assert made.next_after(3).admits(None)


def test_a_stream_without_events_may_be_listed_or_not() -> None:
    streams = Streams()
    does(streams["s"].publish(0, ["x"], None), [1])
    does(streams["t"].reset("c", 5), None)

    assert [streams.listed().admits(names) for names in (["s"], ["s", "t"], ["t"], ["t", "s"])] == [
        True,
        True,
        False,
        False,
    ]


def test_a_transaction_compares_where_a_consumer_is() -> None:
    made = stream(1, 2)
    does(made.save_after("c", 2, None), None)

    assert made.save_after("c", 1, None).admits(Raised("OffsetConflict"))
    assert made.save_after("c", 1, 2).admits(None)
    assert made.save_after("c", 3, 1).admits(Raised("OffsetConflict"))


def test_what_a_transaction_did_is_seen_after_it_has_landed() -> None:
    world = World()
    view = View(world)
    does(view.jobs.enqueue(0, [JOB]), [1])
    does(view.streams["s"].publish(0, ["x"], None), [1])

    assert (world.jobs.rows, world.streams["s"].events) == ({}, [])
    view.land(world)
    assert ([*world.jobs.rows], len(world.streams["s"].events)) == ([1], 1)


# ---------------------------------------------------------------- locks, schedules, wakes


def test_a_lapsed_lock_is_neither_renewed_nor_freed() -> None:
    locks = Locks()
    does(locks.take(0, "l", SECOND), 4)
    holder = Holder("l", 4)

    assert locks.renew(SECOND - 1, holder, SECOND).admits(True)
    assert locks.renew(SECOND, holder, SECOND).admits(False)
    assert not locks.take(SECOND, "l", SECOND).admits(4)
    does(locks.take(SECOND, "l", SECOND), 5)
    does(locks.release(SECOND, holder), False)
    assert locks.release(SECOND, holder).admits(Raised("HandleConsumed"))
    assert locks.look(SECOND) == [("l", 5, 2 * SECOND)]


@pytest.mark.parametrize(("anchor", "next_at"), [(None, 10), (12, 12), (5, 10), (-1, 9), (0, 10), (9, 9)])
def test_the_first_boundary_lies_on_the_grid_after_now(anchor: int | None, next_at: int) -> None:
    schedules = Schedules()
    # Of an interval of 5 at 5, or of 1 before it.
    assert schedules.put(5, "x", 5, JOB, anchor).admits(next_at)


@pytest.mark.parametrize(
    ("now", "fires", "next_at"), [(9, 0, 10), (10, 1, 20), (649, 64, 650), (650, 64, 660), (659, 64, 660)]
)
def test_a_pass_catches_up_on_64_boundaries_and_keeps_the_grid(now: int, fires: int, next_at: int) -> None:
    schedules = Schedules()
    does(schedules.put(0, "x", 10, JOB, None), 10)

    due = [fire.boundary for each in schedules.due(now) for fire in each]
    schedules.passed(now)

    assert due == [10 * number for number in range(1, fires + 1)]
    assert schedules.look()[0][-1] == next_at


def test_fired_jobs_are_those_that_were_due_in_the_order_of_their_boundaries() -> None:
    world = World()
    does(world.schedules.put(0, "x", 10, JOB, None), 10)
    due = [[*fires] for fires in world.schedules.due(20)]

    def job(id: int, boundary: int) -> Seen:
        return shown(Row(id, JOB, 20, None, 20, boundary))

    fired: Callable[[list[Seen]], bool] = lambda found: World().fired(20, due, found)  # noqa: E731
    assert fired([job(1, 10), job(2, 20)])
    assert not fired([job(2, 10), job(1, 20)])
    assert not fired([job(1, 10)])
    assert not fired([job(1, 10), job(2, 20), job(3, 20)])


@pytest.mark.parametrize(("told", "is_allowed"), [(0, False), (1, True), (2, True), (3, True), (4, False)])
def test_a_receiver_is_told_once_at_least_and_as_often_as_it_was_notified_at_most(
    told: int, is_allowed: bool
) -> None:
    ears = Ears()
    ears.open("e", "n")
    ears.notify(["n", "m", "n"])
    ears.notify(["n"])

    assert ears.hear("e").admits(told) is is_allowed
    ears.hear("e").then(told)
    assert ears.hear("e").admits(0)
