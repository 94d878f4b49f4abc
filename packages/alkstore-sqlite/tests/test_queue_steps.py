"""Jobs but for their claims: inserts, settles, sweeps, purges, and what is read of them."""

import sqlite3
from collections.abc import Callable
from contextlib import closing

import pytest
from jobs import ALL, claim, enqueue, held, job_of, killed, new_job, payloads, place_of, settle
from tables import with_tables

from alkstore.engine import (
    Ack,
    Cancel,
    Fail,
    Heartbeat,
    JobCounts,
    JobFilter,
    JobRecord,
    JobState,
    NewJob,
    Redrive,
    Release,
    Retry,
    Settle,
    Topic,
    TopicKind,
)
from alkstore.numbers import MAX_INSTANT
from alkstore_sqlite import queue
from alkstore_sqlite.connection import Change, Woken, perform

IN_LINE, HELD, HELD_LAST, ASIDE, DEAD = range(5)


def retry(name: str, id: int, token: int) -> Retry:
    return Retry(name, id, token, 5, "again")


def fail(name: str, id: int, token: int) -> Fail:
    return Fail(name, id, token, "never")


def heartbeat(name: str, id: int, token: int) -> Heartbeat:
    return Heartbeat(name, id, token, 5)


OF_A_CLAIM: list[Callable[[str, int, int], Settle]] = [Ack, retry, fail, Release, heartbeat]
OF_A_ROW: list[Callable[[str, int], Settle]] = [Cancel, Redrive]


def wake_of(*names: str) -> list[Woken]:
    return [Woken(Topic(TopicKind.QUEUE, name)) for name in names]


def token_of(job: JobRecord) -> int:
    assert job.token is not None
    return job.token


def everything(connection: sqlite3.Connection) -> list[tuple[object, ...]]:
    return connection.execute("SELECT * FROM alkstore_job ORDER BY id").fetchall()


# ---------------------------------------------------------------- insert


def test_ids_go_on_above_gaps_and_are_never_given_again(connection: sqlite3.Connection) -> None:
    assert enqueue(connection, new_job(), new_job(), new_job()) == [1, 2, 3]
    connection.execute("DELETE FROM alkstore_job")
    assert enqueue(connection, new_job()) == [4]
    connection.execute("DELETE FROM alkstore_job")
    connection.execute("UPDATE sqlite_sequence SET seq = 100 WHERE name = 'alkstore_job'")

    assert enqueue(connection, new_job(), new_job()) == [101, 102]
    assert enqueue(connection, new_job()) == [103]


def test_ids_that_were_rolled_back_leave_the_order_as_it_is(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN")
    enqueue(connection, new_job(b"lost"), new_job(b"lost"))
    connection.execute("ROLLBACK")

    (first, second) = enqueue(connection, new_job(b"1"), new_job(b"2"))

    assert first < second
    assert payloads(connection) == [b"1", b"2"]


def test_jobs_of_several_queues_wake_each_once(connection: sqlite3.Connection) -> None:
    jobs = [new_job(name=name) for name in ("b", "a", "b")]

    assert list(perform(connection, queue.insert(jobs, 0)).woken) == wake_of("b", "a")
    assert list(perform(connection, queue.insert(jobs[:1], 0)).woken) == wake_of("b")
    assert perform(connection, queue.insert([], 0)) == Change(())


def test_a_job_reads_back_whole(connection: sqlite3.Connection) -> None:
    job = NewJob("q", b"\x00\xff", b'{"a":"b"}', -3, None, 50, 100, 4, 7, 60)
    (id,) = enqueue(connection, job, now=10)

    assert job_of(connection, id) == JobRecord(
        id, "q", b"\x00\xff", b'{"a":"b"}', JobState.PENDING, -3, 50, 70, 0, 4, 100, 7, None, None, 10, None, None, None,
        None, None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("delay", "run_at", "found"),
    [(None, None, 10), (5, 99, 15), (None, 99, 99), (2**63 - 1, None, MAX_INSTANT)],
)
def test_a_delay_beats_an_instant_and_both_stay_within_the_calendar(
    connection: sqlite3.Connection, delay: int | None, run_at: int | None, found: int
) -> None:
    job = new_job(expires=2**63 - 1)._replace(delay=delay, run_at=run_at)
    ids = enqueue(connection, job, job, now=10)

    assert [job_of(connection, id)[6:8] for id in ids] == [(found, MAX_INSTANT)] * 2


def test_the_jobs_of_a_schedule_hold_their_boundaries(connection: sqlite3.Connection) -> None:
    ids = perform(connection, queue.insert([new_job()] * 3, 9, [5, None, 7])).result

    assert [job_of(connection, id).scheduled_for for id in ids] == [5, None, 7]
    (alone,) = perform(connection, queue.insert([new_job()], 9, [8])).result
    assert job_of(connection, alone).scheduled_for == 8


# ---------------------------------------------------------------- settles: which of them land


@pytest.mark.parametrize("make", OF_A_CLAIM)
def test_a_settle_lands_until_the_deadline_for_its_own_claim_in_its_own_queue(
    connection: sqlite3.Connection, make: Callable[[str, int, int], Settle]
) -> None:
    job = held(connection)
    before = everything(connection)

    assert settle(connection, make("q", job.id, token_of(job)), now=100) == [None]
    assert settle(connection, make("q", job.id, token_of(job) ^ 1), now=99) == [None]
    assert settle(connection, make("other", job.id, token_of(job)), now=99) == [None]
    assert everything(connection) == before
    assert settle(connection, make("q", job.id, token_of(job)), now=99) != [None]
    assert everything(connection) != before


@pytest.mark.parametrize("id", [2**63, -(2**63) - 1, 10**30, 0, 2**63 - 1])
def test_an_id_that_no_row_can_have_lands_nowhere(connection: sqlite3.Connection, id: int) -> None:
    settles = [make("q", id, 1) for make in OF_A_CLAIM] + [make("q", id) for make in OF_A_ROW]

    assert [settle(connection, each) for each in settles] == [[None]] * len(settles)
    assert settle(connection, *settles) == [None] * len(settles)


@pytest.mark.parametrize("count", [1, 2, 3, 20])
def test_acks_that_are_all_live_land_together(connection: sqlite3.Connection, count: int) -> None:
    jobs = [held(connection, new_job(b"%d" % n)) for n in range(count)]
    enqueue(connection, new_job(b"another"))

    change = perform(connection, queue.settle([Ack("q", job.id, token_of(job)) for job in jobs], 50))

    assert (change.result, list(change.woken)) == ([50] * count, [])
    assert payloads(connection) == [b"another"]


@pytest.mark.parametrize("at", [0, 2, 4])
def test_one_ack_of_several_that_is_not_live_is_told_and_the_others_land(
    connection: sqlite3.Connection, at: int
) -> None:
    jobs = [held(connection, new_job(b"%d" % n)) for n in range(5)]
    acks = [Ack("q", job.id, token_of(job) ^ (n == at)) for n, job in enumerate(jobs)]

    assert settle(connection, *acks, now=50) == [None if n == at else 50 for n in range(5)]
    assert payloads(connection) == [b"%d" % at]


def test_an_ack_that_comes_twice_in_one_batch_lands_once(connection: sqlite3.Connection) -> None:
    jobs = [held(connection) for _ in range(3)]
    acks = [Ack("q", job.id, token_of(job)) for job in jobs]

    assert settle(connection, acks[0], acks[1], acks[0], acks[2]) == [0, 0, None, 0]


def test_acks_of_several_queues_land_together_and_only_in_their_own(connection: sqlite3.Connection) -> None:
    jobs = [held(connection, new_job(name=name)) for name in ("a", "b", "c")]

    assert settle(connection, *[Ack("a", job.id, token_of(job)) for job in jobs]) == [0, None, None]
    assert settle(connection, *[Ack(job.queue, job.id, token_of(job)) for job in jobs]) == [None, 0, 0]


def test_settles_of_one_claim_land_in_their_order(connection: sqlite3.Connection) -> None:
    job = held(connection)
    claim_ = ("q", job.id, token_of(job))

    answers = settle(connection, Heartbeat(*claim_, 500), Release(*claim_), Ack(*claim_), Cancel("q", job.id))

    assert answers == [500, 0, None, 0]
    assert everything(connection) == []


# ---------------------------------------------------------------- settles: what they do


def test_a_retry_puts_a_job_back_for_later_with_its_error(connection: sqlite3.Connection) -> None:
    job = held(connection)

    assert settle(connection, Retry("q", job.id, token_of(job), 30, "busy"), now=20) == [20]

    assert job_of(connection, job.id) == job._replace(
        state=JobState.PENDING, run_at=50, worker_id=None, deadline=None, token=None, retry_error="busy"
    )
    assert place_of(connection, job.id) == IN_LINE


def test_a_failure_buries_a_job_and_its_last_error_is_the_only_one(connection: sqlite3.Connection) -> None:
    job = held(connection)
    settle(connection, Retry("q", job.id, token_of(job), 0, "busy"))
    (job,) = claim(connection).jobs

    assert settle(connection, Fail("q", job.id, token_of(job), "boom"), now=20) == [20]

    assert job_of(connection, job.id) == job._replace(
        state=JobState.DEAD, worker_id=None, deadline=None, token=None, retry_error=None, last_error="boom", died_at=20
    )  # fmt: skip


@pytest.mark.parametrize("attempts", [1, 3])
def test_a_release_leaves_a_job_as_it_was_before_its_claim(
    connection: sqlite3.Connection, attempts: int
) -> None:
    (id,) = enqueue(connection, new_job(attempts=attempts, run_at=-5))
    before = everything(connection)
    (job,) = claim(connection).jobs

    assert settle(connection, Release("q", id, token_of(job)), now=20) == [20]

    assert everything(connection) == before


@pytest.mark.parametrize(("window", "end"), [(200, 220), (1, 21), (2**63 - 1, MAX_INSTANT)])
def test_a_heartbeat_gives_a_whole_new_window_and_its_end(
    connection: sqlite3.Connection, window: int, end: int
) -> None:
    job = held(connection)

    assert settle(connection, Heartbeat("q", job.id, token_of(job), window), now=20) == [end]

    assert job_of(connection, job.id) == job._replace(deadline=end)


def test_a_last_attempt_stays_the_last_over_a_heartbeat(connection: sqlite3.Connection) -> None:
    job = held(connection, new_job(attempts=1))
    settle(connection, Heartbeat("q", job.id, token_of(job), 20), now=20)

    claim(connection, now=40)

    assert job_of(connection, job.id).state is JobState.DEAD


def test_a_cancel_removes_what_nobody_has_claimed(connection: sqlite3.Connection) -> None:
    dead, lapsed, live = killed(connection), held(connection), held(connection, now=50)
    (aside,) = enqueue(connection, new_job(expires=10))
    (delayed,) = enqueue(connection, new_job(run_at=999))
    enqueue(connection, new_job(priority=5), now=100)
    claim(connection, now=100)
    (ready,) = enqueue(connection, new_job())
    assert (place_of(connection, aside), place_of(connection, lapsed.id)) == (ASIDE, IN_LINE)

    ids = [dead.id, lapsed.id, live.id, aside, delayed, ready]
    assert settle(connection, *[Cancel("other", id) for id in ids], now=100) == [None] * 6
    assert settle(connection, *[Cancel("q", id) for id in ids], now=100) == [None] * 3 + [100] * 3
    assert settle(connection, *[Cancel("q", id) for id in ids], now=100) == [None] * 6


def test_a_redrive_makes_a_dead_job_as_new_but_for_its_stamps(connection: sqlite3.Connection) -> None:
    before = killed(connection, new_job(priority=3, expires=10))

    assert settle(connection, Redrive("other", before.id), now=500) == [None]
    assert settle(connection, Redrive("q", before.id), now=500) == [500]

    assert job_of(connection, before.id) == before._replace(
        state=JobState.PENDING, run_at=500, expires_at=None, attempts=0, last_error=None, died_at=None
    )
    assert [job.id for job in claim(connection, now=500).jobs] == [before.id]


def test_only_the_dead_are_redriven(connection: sqlite3.Connection) -> None:
    live = held(connection)
    (pending,) = enqueue(connection, new_job())
    before = everything(connection)

    assert settle(connection, Redrive("q", live.id), Redrive("q", pending)) == [None, None]
    assert everything(connection) == before


def test_a_batch_wakes_each_queue_in_which_a_job_can_be_claimed_again_once(
    connection: sqlite3.Connection,
) -> None:
    jobs = {
        name: held(connection, new_job(name=name))
        for name in ("retry", "release", "heartbeat", "ack", "fail")
    }
    dead = killed(connection, new_job(name="redrive"))
    (gone,) = enqueue(connection, new_job(name="cancel"))
    settles: list[Settle] = [
        Ack("ack", jobs["ack"].id, token_of(jobs["ack"])),
        Fail("fail", jobs["fail"].id, token_of(jobs["fail"]), "boom"),
        Cancel("cancel", gone),
        Retry("retry", jobs["retry"].id, token_of(jobs["retry"]), 5, None),
        Retry("lost", 1, 1, 5, None),
        Heartbeat("heartbeat", jobs["heartbeat"].id, token_of(jobs["heartbeat"]), 5),
        Heartbeat("heartbeat", jobs["heartbeat"].id, token_of(jobs["heartbeat"]), 5),
        Release("release", jobs["release"].id, token_of(jobs["release"])),
        Redrive("redrive", dead.id),
    ]

    woken = perform(connection, queue.settle(settles, 0)).woken

    assert list(woken) == wake_of("retry", "heartbeat", "release", "redrive")


# ---------------------------------------------------------------- sweep and purge


def test_a_sweep_buries_what_is_over_each_with_its_reason(connection: sqlite3.Connection) -> None:
    lapsed_and_expired = held(connection, new_job(expires=50))
    lapsed_last = held(connection, new_job(attempts=1))
    both = held(connection, new_job(attempts=1, expires=50))
    live_but_expired = held(connection, new_job(window=500, expires=50))
    lapsed = held(connection)
    (expired, fresh) = enqueue(connection, new_job(expires=100), new_job(expires=101))
    ids = [lapsed_and_expired.id, lapsed_last.id, both.id, expired, live_but_expired.id, lapsed.id, fresh]

    swept = [perform(connection, queue.sweep("q", 100)) for _ in range(2)]

    assert swept == [Change(4), Change(0)]
    lapse = "visibility timeout lapsed on the last attempt"
    assert [job_of(connection, id).last_error for id in ids[:4]] in (
        ["expired", lapse, "expired", "expired"],
        ["expired", lapse, lapse, "expired"],
    )
    assert [job_of(connection, id)[4] for id in ids[4:]] == [
        JobState.PROCESSING, JobState.PROCESSING, JobState.PENDING,
    ]  # fmt: skip
    for id in ids[:4]:
        dead = job_of(connection, id)
        assert (dead.died_at, dead.worker_id, dead.deadline, dead.token) == (100, None, None, None)


def test_a_sweep_finds_what_a_claim_set_aside_and_stays_in_its_queue(connection: sqlite3.Connection) -> None:
    ids = enqueue(connection, new_job(expires=5), new_job(name="other", expires=5))
    claim(connection, now=5)
    assert place_of(connection, ids[0]) == ASIDE

    assert perform(connection, queue.sweep("q", 5)).result == 1
    assert [place_of(connection, id) for id in ids] == [DEAD, IN_LINE]


def test_a_sweep_knows_no_limit(connection: sqlite3.Connection) -> None:
    enqueue(connection, *[new_job(attempts=1)] * 1_500)
    claim(connection, 1_500)

    assert perform(connection, queue.sweep("q", 100)).result == 1_500


@pytest.mark.parametrize(
    ("older_than", "left"),
    [
        (0, []),
        (-5, []),
        (1, [200]),
        (99, [150, 200]),
        (100, [100, 150, 200]),
        (2**63 - 1, [50, 100, 150, 200]),
    ],
)
def test_a_purge_deletes_the_dead_that_are_older_and_not_those_of_just_that_age(
    connection: sqlite3.Connection, older_than: int, left: list[int]
) -> None:
    for at in (50, 100, 150, 200):
        killed(connection, now=at)
    for name in ("q", "other"):
        enqueue(connection, new_job(name=name))
    killed(connection, new_job(name="third"))

    assert perform(connection, queue.purge("q", older_than, 200)) == Change(4 - len(left))

    dead = perform(connection, queue.find("q", JobFilter(state=JobState.DEAD)))
    assert [job.died_at for job in dead] == left
    assert connection.execute("SELECT count(*) FROM alkstore_job").fetchone() == (len(left) + 3,)


# ---------------------------------------------------------------- what is read


@pytest.fixture
def mixed(connection: sqlite3.Connection) -> sqlite3.Connection:
    """One job of each kind, with ids from 1: dead, lapsed, live, tried before, delayed, and one of another queue."""
    killed(connection)
    held(connection)
    held(connection, now=60)
    job = held(connection, now=70)
    settle(connection, Retry("q", job.id, token_of(job), 0, "Boom, again"), now=70)
    enqueue(connection, new_job(run_at=999))
    enqueue(connection, new_job(name="other"))
    return connection


PENDING, PROCESSING = JobState.PENDING, JobState.PROCESSING


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        (JobFilter(), [1, 2, 3, 4, 5]),
        (JobFilter(state=PENDING), [4, 5]),
        (JobFilter(state=PROCESSING), [2, 3]),
        (JobFilter(state=JobState.DEAD), [1]),
        (JobFilter(after=2), [3, 4, 5]),
        (JobFilter(after=2, limit=2), [3, 4]),
        (JobFilter(after=-(2**63)), [1, 2, 3, 4, 5]),
        (JobFilter(after=ALL), []),
        (JobFilter(limit=ALL), [1, 2, 3, 4, 5]),
        (JobFilter(limit=0), []),
        (JobFilter(limit=-1), []),
        (JobFilter(state=PROCESSING, after=2), [3]),
        (JobFilter(state=PROCESSING, limit=1), [2]),
        (JobFilter(state=PENDING, after=4), [5]),
        (JobFilter(state=JobState.DEAD, after=1), []),
        (JobFilter(error="oom"), [1, 4]),
        (JobFilter(error="boom"), [1]),
        (JobFilter(error="boom", state=PENDING), []),
        (JobFilter(error="again", state=PENDING), [4]),
        (JobFilter(error="%"), []),
        (JobFilter(ids=()), []),
        (JobFilter(ids=(5, 1, 5, 6, 99)), [1, 5]),
        (JobFilter(ids=(2**63, 3, -(2**63) - 1)), [3]),
        (JobFilter(ids=(5, 4, 3, 2), limit=2), [2, 3]),
        (JobFilter(ids=(1, 2, 3, 4), state=PROCESSING), [2, 3]),
        (JobFilter(ids=(1, 2, 3, 4), error="oom"), [1, 4]),
        (JobFilter(ids=(1, 4), error="oom", state=JobState.DEAD, limit=1), [1]),
        (JobFilter(ids=(1, 4), limit=0), []),
        (JobFilter(ids=(1, 4), after=3), [1, 4]),
    ],
)
def test_jobs_are_found_in_the_order_of_their_ids(
    mixed: sqlite3.Connection, where: JobFilter, ids: list[int]
) -> None:
    assert [job.id for job in perform(mixed, queue.find("q", where))] == ids


@pytest.mark.parametrize("state", [None, *JobState])
def test_a_job_reads_the_same_however_it_is_found(mixed: sqlite3.Connection, state: JobState | None) -> None:
    found = perform(mixed, queue.find("q", JobFilter(state=state)))

    assert found == [job_of(mixed, job.id) for job in found]
    assert state is None or {job.state for job in found} == {state}


def test_jobs_are_counted_by_what_a_claim_would_make_of_them(mixed: sqlite3.Connection) -> None:
    held(mixed, new_job(attempts=1, priority=9))
    enqueue(mixed, new_job(expires=1))

    assert perform(mixed, queue.count("q", 100)) == JobCounts(2, 1, 1, 2, 1, 100)
    assert perform(mixed, queue.count("none", 100)) == JobCounts(0, 0, 0, 0, 0, None)


def test_the_age_of_the_oldest_ready_job_is_of_when_it_was_ready(connection: sqlite3.Connection) -> None:
    enqueue(connection, new_job(run_at=30), new_job(run_at=70), now=10)

    assert perform(connection, queue.count("q", 29)).oldest_ready_age is None
    assert perform(connection, queue.count("q", 50)).oldest_ready_age == 20


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16le", "UTF-16be"])
def test_queues_are_named_by_code_point_as_long_as_they_have_rows(encoding: str) -> None:
    names = ["B", "a", "b", "\u0101", "\uffee", "\U0001f600"]
    with closing(with_tables(encoding=encoding)) as connection:
        enqueue(connection, *[new_job(name=name) for name in (*names[::-1], "b")])
        job = held(connection, new_job(name="acked"))
        settle(connection, Ack("acked", job.id, token_of(job)))

        assert perform(connection, queue.names()) == names
