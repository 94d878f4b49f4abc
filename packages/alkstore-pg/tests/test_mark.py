"""Marks: when a queue has some, what they say, and that no job is ever missed for longer than a pause."""

import random
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest
from queues import Jobs, jobs, new_job

from alkstore.engine import Claimed, JobRecord, JobState
from alkstore_pg.contract_server import Server
from alkstore_pg.mark import FULL, LEAST_PAUSE, QUEUES, SLOW_IN_A_ROW, Answer, Marks, Plan

NOW = 1_000


def record(run_at: int, priority: int = 0, id: int = 1) -> JobRecord:
    return JobRecord(
        id, "q", b"1", b"{}", JobState.PROCESSING, priority, run_at, None, 1, 3, 100, 7, "w", 2_000, 0, None, None, None,
        None, 5,
    )  # fmt: skip


def answer(
    *found: JobRecord | None,
    slow: bool = True,
    now: int = NOW,
    at: float = 10.0,
    took: int = 2_000,
    cleared: Sequence[int] = (),
) -> Answer:
    """What a claim found; None: it is to be made again."""
    claimed = None if None in found else Claimed([job for job in found if job is not None], None)
    return Answer(claimed, now, at - 0.5, at, took, slow, cleared)


@pytest.fixture
def marks() -> Marks:
    """The marks of a store to which queue q is slow: 700 at level 5, 900 at level 0, a full claim at time 10."""
    made = Marks()
    for _ in range(SLOW_IN_A_ROW):
        made.learn("q", FULL, answer(record(700, 5), record(800, 5), record(900)))
    return made


# ---------------------------------------------------------------- when there are marks


def test_a_queue_has_no_marks_before_its_full_claims_were_slow_several_times_in_a_row() -> None:
    marks = Marks()

    for slow in [*[True] * (SLOW_IN_A_ROW - 1), False, *[True] * (SLOW_IN_A_ROW - 1)]:
        marks.learn("q", FULL, answer(record(5), slow=slow))
        assert marks.plan("q", 10.0) == FULL
    marks.learn("q", FULL, answer(record(5)))

    assert not marks.plan("q", 10.0).is_full
    assert marks.plan("another", 10.0) == FULL


def test_a_plan_has_each_level_from_high_to_low_with_where_its_last_batch_began(marks: Marks) -> None:
    assert marks.plan("q", 10.0) == Plan([5, 0], [700, 900], NOW, 100_000)


def test_marks_move_with_every_claim_and_levels_that_it_did_not_touch_keep_theirs(marks: Marks) -> None:
    marks.learn("q", marks.plan("q", 10.0), answer(record(950, -3), record(951, -3), now=NOW + 9))

    assert marks.plan("q", 10.0) == Plan([5, 0, -3], [700, 900, 950], NOW + 9, 100_000)


def test_a_full_claim_that_is_fast_ends_them(marks: Marks) -> None:
    marks.learn("q", FULL, answer(record(5), slow=False))

    assert marks.plan("q", 10.0) == FULL


def test_the_queues_that_were_not_claimed_from_for_the_longest_time_are_forgotten(marks: Marks) -> None:
    for number in range(QUEUES):
        marks.plan("q", 10.0)
        for _ in range(SLOW_IN_A_ROW):
            marks.learn(f"q{number}", FULL, answer(record(5)))

    assert not marks.plan("q", 10.0).is_full
    assert marks.plan("q0", 10.0) == FULL
    assert not marks.plan("q1", 10.0).is_full


# ---------------------------------------------------------------- when a claim is full all the same


@pytest.mark.parametrize(("took", "pause"), [(2_000, LEAST_PAUSE), (50_000, 0.6), (2_000_000, 24.0)])
def test_the_next_full_claim_comes_after_a_pause_of_twelve_times_the_last_one(
    took: int, pause: float
) -> None:
    marks = Marks()
    for _ in range(SLOW_IN_A_ROW):
        marks.learn("q", FULL, answer(record(5), took=took))

    assert marks.plan("q", 10.0 + pause - 0.001).pause == pytest.approx(1_000, abs=1)
    assert marks.plan("q", 10.0 + pause) == FULL


def test_a_marked_claim_that_found_nothing_is_followed_by_a_full_one(marks: Marks) -> None:
    marks.learn("q", marks.plan("q", 10.0), answer(None))

    assert marks.plan("q", 10.0) == FULL
    marks.learn("q", FULL, answer())
    assert marks.plan("q", 10.0) == Plan([5, 0], [700, 900], NOW, 100_000)


def test_what_was_stirred_is_looked_for_by_a_full_claim_that_was_sent_later(marks: Marks) -> None:
    marks.stir(["another", "q"], 10.02)
    assert marks.plan("q", 10.03) == FULL

    marks.learn("q", FULL, answer(record(5), at=10.05))
    assert marks.plan("q", 10.06) == FULL, "that one was sent before"

    marks.learn("q", FULL, answer(record(5), at=10.6))
    assert not marks.plan("q", 10.61).is_full


def test_a_clock_that_was_stepped_back_brings_a_full_claim(marks: Marks) -> None:
    marks.learn("q", marks.plan("q", 10.0), answer(record(5), now=NOW - 1))

    assert marks.plan("q", 10.0) == FULL


def test_levels_that_expired_jobs_were_taken_from_are_begun_where_a_claim_that_passed_them_was() -> None:
    marks = Marks()
    marks.learn("q", FULL, answer(None, cleared=[9, 1]))
    marks.learn("q", FULL, answer(None, cleared=[-9]))
    for _ in range(SLOW_IN_A_ROW):
        marks.learn("q", FULL, answer(record(600, 3), record(700, 1)))

    assert marks.plan("q", 10.0) == Plan([9, 3, 1], [NOW, 600, 700], NOW, 100_000)
    marks.learn("q", FULL, answer())
    assert marks.plan("q", 10.0) == Plan([9, 3, 1, -9], [NOW, 600, NOW, NOW], NOW, 100_000)


# ---------------------------------------------------------------- what a marked claim finds


@pytest.fixture(scope="module")
def database(server: Server) -> Iterator[str]:
    yield server.create_database("test_mark")
    server.drop_database("test_mark")


@pytest.fixture
async def q(database: str) -> AsyncIterator[Jobs]:
    async with jobs(database) as world:
        yield world


def marked(*levels: tuple[int, int], looked: int = -1, pause: int = 40) -> Plan:
    return Plan([level for level, _ in levels], [mark for _, mark in levels], looked, pause)


async def found(q: Jobs, wanted: int, now: int, plan: Plan) -> list[bytes]:
    claimed = (await q.ask(wanted, now=now, plan=plan)).claimed
    return [] if claimed is None else [job.payload for job in claimed.jobs]


@pytest.mark.parametrize("wanted", [1, 2, 3, 9])
async def test_a_marked_claim_passes_what_is_below_its_marks_and_nothing_else(q: Jobs, wanted: int) -> None:
    for priority in (9, 5, 3, 0, -5):
        await q.enqueue(
            *[new_job(b"%d at %d" % (priority, at), priority=priority, run_at=at) for at in (10, 20, 99)]
        )

    assert await found(q, wanted, 50, marked((5, 20), (0, 11))) == [
        b"9 at 10", b"9 at 20", b"5 at 20", b"3 at 10", b"3 at 20", b"0 at 20", b"-5 at 10", b"-5 at 20",
    ][:wanted]  # fmt: skip
    assert {b"5 at 10", b"0 at 10"} <= set(await found(q, 9, 50, FULL))


@pytest.mark.parametrize("level", [2**63 - 1, -(2**63), 0])
async def test_marks_at_the_ends_of_the_numbers_are_marks_like_others(q: Jobs, level: int) -> None:
    await q.enqueue(*[new_job(b"%d" % p, priority=p, run_at=5) for p in (2**63 - 1, 1, 0, -1, -(2**63))])

    payloads = await found(q, 9, 50, marked((level, 6)))

    assert payloads == [b"%d" % p for p in (2**63 - 1, 1, 0, -1, -(2**63)) if p != level]


async def test_a_marked_claim_that_finds_nothing_asks_for_another_one(q: Jobs) -> None:
    await q.enqueue(new_job(run_at=5))

    assert (await q.ask(now=50, plan=marked((0, 6)))).claimed is None
    assert len((await q.claim(now=50)).jobs) == 1


async def test_a_short_marked_claim_is_worth_asking_again_when_a_full_one_is_due(q: Jobs) -> None:
    await q.enqueue(new_job(run_at=10), new_job(run_at=95), new_job(run_at=99, priority=3))

    soon = (await q.ask(2, now=50, plan=marked((0, 6), pause=40))).claimed
    await q.enqueue(new_job(run_at=10))
    late = (await q.ask(2, now=50, plan=marked((0, 6), pause=80))).claimed

    assert soon is not None
    assert late is not None
    assert (soon.next_at, late.next_at) == (90, 95)


async def test_a_marked_claim_sees_what_has_lapsed_or_expired_since_the_last_look_alone(q: Jobs) -> None:
    await q.enqueue(*[new_job(b"%d" % window, window=window) for window in (20, 30)])
    await q.claim(2)
    await q.enqueue(*[new_job(b"%d" % at, priority=-1, expires=at) for at in (20, 30, 99)])

    assert await found(q, 9, 30, marked((-1, 0), looked=20)) == [b"30", b"99"]
    assert await found(q, 9, 31, FULL) == [b"20"]
    assert (await q.count(now=31)).stale == 2


async def test_what_lapsed_is_found_whatever_the_mark_of_its_level(q: Jobs) -> None:
    await q.held(new_job(b"old", run_at=5), now=5)
    await q.enqueue(new_job(b"new"), now=100)

    assert await found(q, 2, 105, marked((0, 100), looked=104)) == [b"old", b"new"]


@pytest.mark.parametrize("is_marked", [False, True])
async def test_a_claim_that_lines_up_more_than_it_takes_calls_others(q: Jobs, is_marked: bool) -> None:
    plan = marked((0, 0)) if is_marked else FULL
    await q.enqueue(*[new_job() for _ in range(3)])
    await q.claim(3)

    async with q.listening() as heard:
        assert len(await found(q, 2, 100, plan)) == 2
        assert await heard() == ["q1:q"]
        assert len(await found(q, 2, 100, plan)) == 1
        assert await heard() == []


async def test_a_random_history_of_claims_with_and_without_marks_loses_no_job(q: Jobs) -> None:
    chance = random.Random(5)
    marks, now = Marks(), 0
    taken: list[JobRecord] = []
    for step in range(200):
        now += chance.randrange(3)
        new = [
            new_job(
                priority=chance.randrange(3),
                run_at=chance.choice([None, now, now - 20, now + 20]),
                window=10**6,
            )
            for _ in range(chance.randrange(3))
        ]
        await q.enqueue(*new, now=now)
        plan, at = marks.plan("q", step * 0.01), step * 0.01
        answer = await q.ask(chance.randrange(1, 4), now=now, plan=plan)
        marks.learn("q", plan, answer._replace(is_slow=True, sent=at, received=at))
        taken += answer.claimed.jobs if answer.claimed else []

    taken += (await q.claim(1_000, now=now + 20)).jobs
    counts = await q.count(now=now + 20)
    assert (counts.ready, counts.delayed, counts.processing) == (0, 0, len({job.id for job in taken}))
    assert len({job.id for job in taken}) == len(taken)
