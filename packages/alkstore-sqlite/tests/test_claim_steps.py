"""Claims: their order, what they put in its place on the way, and when it is worth asking again."""

import sqlite3

import pytest
from jobs import claim, enqueue, held, job_of, killed, new_job, place_of, settle

from alkstore.engine import Ack, Claimed, Heartbeat, JobCounts, JobState
from alkstore.numbers import MAX_INSTANT
from alkstore_sqlite import queue
from alkstore_sqlite.connection import Change, bind, perform

IN_LINE, HELD, HELD_LAST, ASIDE, DEAD = range(5)

MANY = """WITH RECURSIVE i (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM i WHERE n < ?1)
INSERT INTO alkstore_job (queue, payload, headers, place, priority, run_at, expires_at, attempts, max_attempts,
visibility_timeout, base_delay, worker_id, deadline, token, created_at)
SELECT 'q', x'', x'', ?2, 5, 0, ?3, 1, ?4, 100, 1, IIF(?5 IS NULL, NULL, 'w'), ?5, IIF(?5 IS NULL, NULL, n), 0 FROM i"""


def many(
    connection: sqlite3.Connection,
    count: int,
    place: int,
    expires_at: int | None,
    most: int,
    deadline: int | None,
) -> None:
    connection.execute(MANY, bind((count, place, expires_at, most, deadline)))


def in_order(connection: sqlite3.Connection, wanted: int, now: int) -> list[bytes]:
    return [job.payload for job in claim(connection, wanted, now=now).jobs]


# ---------------------------------------------------------------- order


@pytest.mark.parametrize("wanted", [1, 2, 3, 4, 9])
def test_jobs_come_by_priority_then_by_when_they_were_ready_then_by_id(
    connection: sqlite3.Connection, wanted: int
) -> None:
    enqueue(
        connection,
        new_job(b"low", priority=-1, run_at=1),
        new_job(b"high, last", priority=9, run_at=7),
        new_job(b"middle, first", run_at=3),
        new_job(b"high, first", priority=9, run_at=2),
        new_job(b"middle, second", run_at=3),
        new_job(b"another queue's", name="other", priority=99),
    )

    assert in_order(connection, wanted, 10) == [
        b"high, first", b"high, last", b"middle, first", b"middle, second", b"low",
    ][:wanted]  # fmt: skip


@pytest.mark.parametrize("wanted", [1, 2, 3, 9])
def test_delayed_jobs_in_front_of_any_priority_hold_nobody_back(
    connection: sqlite3.Connection, wanted: int
) -> None:
    for priority in (3, 2, 1, 0):
        enqueue(connection, *[new_job(b"later", priority=priority, run_at=50 + n) for n in range(3)])
    enqueue(connection, new_job(b"second", priority=0, run_at=5), new_job(b"first", priority=2, run_at=9))
    enqueue(connection, new_job(b"third", priority=-7))

    assert in_order(connection, wanted, 10) == [b"first", b"second", b"third"][:wanted]


def test_a_claim_of_several_goes_on_from_level_to_level_and_takes_no_job_twice(
    connection: sqlite3.Connection,
) -> None:
    enqueue(connection, *[new_job(b"%d" % n, priority=-(n // 2)) for n in range(7)])

    assert in_order(connection, 3, 0) == [b"0", b"1", b"2"]
    assert in_order(connection, 3, 0) == [b"3", b"4", b"5"]
    assert in_order(connection, 3, 0) == [b"6"]


def test_a_job_that_is_ready_in_this_very_microsecond_is_claimed(connection: sqlite3.Connection) -> None:
    enqueue(connection, new_job(b"now", run_at=10))

    assert in_order(connection, 1, 9) == []
    assert in_order(connection, 1, 10) == [b"now"]


# ---------------------------------------------------------------- what a claim is


def test_a_claim_reads_back_as_it_was_given(connection: sqlite3.Connection) -> None:
    ids = enqueue(connection, new_job(), new_job(attempts=1), now=5)

    jobs = claim(connection, 2, now=7).jobs

    assert [job_of(connection, id) for id in ids] == list(jobs)
    assert [(job.state, job.attempts, job.worker_id, job.deadline) for job in jobs] == [
        (JobState.PROCESSING, 1, "worker 0", 107),
        (JobState.PROCESSING, 1, "worker 1", 107),
    ]
    assert jobs[0].token != jobs[1].token
    assert [place_of(connection, id) for id in ids] == [HELD, HELD_LAST]


def test_a_deadline_stays_within_the_calendar(connection: sqlite3.Connection) -> None:
    enqueue(connection, new_job(window=2**63 - 1))

    assert [job.deadline for job in claim(connection).jobs] == [MAX_INSTANT]


def test_nobody_takes_nothing(connection: sqlite3.Connection) -> None:
    enqueue(connection, new_job())

    assert perform(connection, queue.claim("q", [], 0)) == Change(Claimed((), None))


def test_a_lapsed_job_keeps_its_place_and_is_claimed_anew(connection: sqlite3.Connection) -> None:
    first = held(connection, new_job(b"old", run_at=1), now=5)
    enqueue(connection, new_job(b"young", run_at=2), now=6)
    assert first.token is not None

    assert in_order(connection, 2, 104) == [b"young"]
    (again,) = claim(connection, 2, now=105).jobs

    assert again == first._replace(attempts=2, deadline=205, token=again.token)
    assert again.token != first.token
    assert settle(connection, Ack("q", first.id, first.token), now=106) == [None]


def test_a_last_attempt_that_lapsed_is_buried_and_not_claimed(connection: sqlite3.Connection) -> None:
    job = held(connection, new_job(attempts=1))

    assert claim(connection, now=99) == Claimed([], None)
    assert claim(connection, now=100) == Claimed([], None)
    dead = job_of(connection, job.id)
    assert (dead.state, dead.last_error, dead.died_at, dead.worker_id, dead.deadline, dead.token) == (
        JobState.DEAD, "visibility timeout lapsed on the last attempt", 100, None, None, None,
    )  # fmt: skip


def test_what_has_expired_is_passed_over_and_set_aside_whether_it_was_claimed_before_or_not(
    connection: sqlite3.Connection,
) -> None:
    lapsed = held(connection, new_job(expires=100))
    ids = [lapsed.id, *enqueue(connection, new_job(expires=100), new_job(b"good", expires=101))]

    assert in_order(connection, 3, 100) == [b"good"]
    assert [place_of(connection, id) for id in ids] == [ASIDE, ASIDE, HELD]
    assert [job_of(connection, id).state.name for id in ids] == ["PROCESSING", "PENDING", "PROCESSING"]
    assert perform(connection, queue.count("q", 100)) == JobCounts(0, 0, 1, 2, 0, None)


def test_a_live_claim_outlives_the_expiry_of_its_job(connection: sqlite3.Connection) -> None:
    job = held(connection, new_job(expires=50))
    assert job.token is not None

    assert claim(connection, now=60) == Claimed([], 100)
    assert settle(connection, Ack("q", job.id, job.token), now=60) == [60]


# ---------------------------------------------------------------- clocks that step back


def test_a_claim_that_lapsed_is_live_again_when_the_clock_steps_back(connection: sqlite3.Connection) -> None:
    job = held(connection)
    assert job.token is not None
    enqueue(connection, new_job(b"higher", priority=2), now=100)
    assert in_order(connection, 1, 100) == [b"higher"]
    assert place_of(connection, job.id) == IN_LINE

    assert claim(connection, now=50) == Claimed([], 100)

    assert place_of(connection, job.id) == HELD
    assert settle(connection, Ack("q", job.id, job.token), now=60) == [60]


def test_a_job_that_expired_is_claimed_when_the_clock_steps_back(connection: sqlite3.Connection) -> None:
    (id,) = enqueue(connection, new_job(b"1", expires=100))
    assert in_order(connection, 1, 100) == []
    assert place_of(connection, id) == ASIDE

    assert in_order(connection, 1, 99) == [b"1"]


def test_a_claim_that_lapsed_and_expired_is_live_again_when_the_clock_steps_back_before_both(
    connection: sqlite3.Connection,
) -> None:
    job = held(connection, new_job(expires=100))
    assert job.token is not None
    assert claim(connection, now=100) == Claimed([], None)
    assert place_of(connection, job.id) == ASIDE

    assert claim(connection, now=99) == Claimed([], 100)
    assert settle(connection, Heartbeat("q", job.id, job.token, 20), now=99) == [119]


# ---------------------------------------------------------------- portions

A_PORTION = queue.TIDIED_BY_A_CLAIM


@pytest.mark.parametrize(
    ("place", "expires_at", "deadline", "after"),
    [
        (HELD, None, 10, IN_LINE),
        (IN_LINE, 10, None, ASIDE),
        (ASIDE, 60, None, IN_LINE),
        (IN_LINE, None, 60, HELD),
    ],
    ids=["lapsed", "expired", "not expired after all", "not lapsed after all"],
)
def test_what_time_has_moved_is_put_in_its_place_in_portions_and_then_there_is_an_answer(
    connection: sqlite3.Connection, place: int, expires_at: int | None, deadline: int | None, after: int
) -> None:
    many(connection, 2 * A_PORTION + 1, place, expires_at, 3, deadline)
    enqueue(connection, new_job(b"good"))

    def moved() -> int:
        sql = "SELECT count(*) FROM alkstore_job WHERE payload = x'' AND place = ?"
        return int(connection.execute(sql, (after,)).fetchone()[0])

    for portions in (1, 2):
        assert perform(connection, queue.claim("q", ["w"], 50)) == Change(None)
        assert moved() == portions * A_PORTION
    answer = perform(connection, queue.claim("q", ["w"], 50)).result

    assert answer is not None
    (job,) = answer.jobs
    assert job.payload == (b"" if after == IN_LINE else b"good")
    assert moved() == 2 * A_PORTION + (0 if after == IN_LINE else 1)


def test_a_claim_buries_a_thousand_at_most_and_answers_all_the_same(connection: sqlite3.Connection) -> None:
    many(connection, 2_500, HELD_LAST, None, 1, 10)
    enqueue(connection, *[new_job(b"%d" % n) for n in range(4)])

    dead = []
    for n in range(4):
        assert in_order(connection, 1, 50) == [b"%d" % n]
        dead.append(perform(connection, queue.count("q", 50)).dead)

    assert dead == [1_000, 2_000, 2_500, 2_500]


# ---------------------------------------------------------------- when to ask again


def test_an_empty_queue_is_worth_no_other_look(connection: sqlite3.Connection) -> None:
    enqueue(connection, new_job(name="other", run_at=5))

    assert claim(connection) == Claimed([], None)


def test_the_first_delayed_job_of_any_priority_is_told(connection: sqlite3.Connection) -> None:
    enqueue(connection, *[new_job(priority=p, run_at=at) for p, at in ((2, 90), (1, 40), (0, 60), (1, 50))])

    assert claim(connection, 5, now=10) == Claimed([], 40)


def test_a_delayed_job_behind_ready_ones_of_its_priority_is_told(connection: sqlite3.Connection) -> None:
    enqueue(connection, new_job(run_at=1), new_job(run_at=30), new_job(priority=-1, run_at=40))

    answer = claim(connection, 2, now=10)

    assert (len(answer.jobs), answer.next_at) == (1, 30)


def test_what_a_claim_itself_took_is_told_as_the_next_to_lapse(connection: sqlite3.Connection) -> None:
    enqueue(connection, new_job(window=100), new_job(window=70))

    answer = claim(connection, 3, now=10)

    assert (len(answer.jobs), answer.next_at) == (2, 80)


def test_last_attempts_dead_and_expired_jobs_are_not_waited_for(connection: sqlite3.Connection) -> None:
    killed(connection)
    held(connection, new_job(attempts=1))
    enqueue(connection, new_job(run_at=40, expires=20))

    assert claim(connection, now=10) == Claimed([], 40)  # it has not expired yet
    assert claim(connection, now=20) == Claimed([], None)


def test_the_sooner_of_a_delayed_job_and_a_lapse_is_told(connection: sqlite3.Connection) -> None:
    held(connection)
    (later,) = enqueue(connection, new_job(run_at=150))

    assert claim(connection).next_at == 100
    connection.execute("UPDATE alkstore_job SET run_at = 60 WHERE id = ?", (later,))
    assert claim(connection).next_at == 60


def test_who_got_all_that_was_asked_for_is_told_nothing(connection: sqlite3.Connection) -> None:
    enqueue(connection, new_job(), new_job(), new_job(run_at=50))

    answer = claim(connection, 2)

    assert (len(answer.jobs), answer.next_at) == (2, None)
