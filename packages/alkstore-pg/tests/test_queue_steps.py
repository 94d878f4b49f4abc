"""Jobs but for their claims: inserts, settles, sweeps and purges."""

from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from queues import Jobs, jobs, new_job, token_of

from alkstore.engine import (
    Ack,
    Cancel,
    Fail,
    Heartbeat,
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
from alkstore_pg import queue
from alkstore_pg.contract_server import Server
from alkstore_pg.wake import Woken

IN_LINE, HELD, HELD_LAST, ASIDE = range(4)


@pytest.fixture(scope="module")
def database(server: Server) -> Iterator[str]:
    yield server.create_database("test_queue_steps")
    server.drop_database("test_queue_steps")


@pytest.fixture
async def q(database: str) -> AsyncIterator[Jobs]:
    async with jobs(database) as world:
        yield world


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


# ---------------------------------------------------------------- insert


async def test_ids_go_on_above_gaps_and_are_never_given_again(q: Jobs) -> None:
    assert await q.enqueue(new_job(), new_job(), new_job()) == [1, 2, 3]
    await q.sql("DELETE FROM {schema}.job")
    assert await q.enqueue(new_job()) == [4]
    await q.sql("DELETE FROM {schema}.job")
    await q.sql("SELECT setval(pg_get_serial_sequence('alkstore.job', 'id'), 2147483653)")

    assert await q.enqueue(new_job(), new_job()) == [2_147_483_654, 2_147_483_655]
    assert await q.enqueue(new_job()) == [2_147_483_656]


async def test_ids_that_were_rolled_back_leave_the_order_as_it_is(q: Jobs) -> None:
    await q.sql("BEGIN")
    await q.enqueue(new_job(b"lost"), new_job(b"lost"))
    await q.sql("ROLLBACK")

    (first, second) = await q.enqueue(new_job(b"1"), new_job(b"2"))

    assert first < second
    assert await q.payloads() == [b"1", b"2"]


async def test_jobs_of_several_queues_wake_each_once(q: Jobs) -> None:
    jobs = [new_job(name=name) for name in ("b", "a", "b")]

    assert list(queue.woken_by_jobs(jobs, lambda: 0)) == wake_of("b", "a")
    assert list(queue.woken_by_jobs(jobs[:1], lambda: 0)) == wake_of("b")
    assert list(queue.woken_by_jobs([], lambda: 0)) == []


async def test_of_the_jobs_of_a_queue_the_first_one_to_be_ready_says_when_it_is_woken(q: Jobs) -> None:
    def woken_at(*jobs: NewJob) -> list[int | None]:
        return [woken.at for woken in queue.woken_by_jobs(jobs, lambda: 50)]

    delayed, literal, ready = new_job()._replace(delay=30), new_job(run_at=70), new_job()

    assert woken_at(delayed) == [80]
    assert woken_at(delayed, literal) == woken_at(literal, delayed) == [70]
    assert woken_at(delayed, ready, literal) == woken_at(ready, delayed) == [None]
    assert woken_at(new_job(run_at=50)) == woken_at(new_job()._replace(delay=-1)) == [None]
    assert woken_at(new_job()._replace(delay=2**63 - 1)) == [MAX_INSTANT]


@pytest.mark.parametrize("count", [1, 2])
async def test_an_insert_of_any_kind_tells_others_in_its_own_commit(q: Jobs, count: int) -> None:
    alike = [new_job()] * count
    mixed = [new_job(priority=n) for n in range(count)]
    async with q.listening() as heard:
        await q.sql("BEGIN")
        for n, kind in enumerate((alike, mixed)):
            await queue.insert(q.on, kind, [f"q1:{n}", "q1:both"])
        await queue.insert(q.on, alike, ())
        assert await heard() == []
        await q.sql("COMMIT")

        assert await heard() == ["q1:0", "q1:both", "q1:1"]


async def test_ids_come_in_the_order_of_the_jobs_whatever_their_kind(q: Jobs) -> None:
    alike = await q.enqueue(*[new_job(b"%d" % n) for n in range(1_000)])
    mixed = await q.enqueue(*[new_job(b"%d" % n, priority=n % 7, name="qr"[n % 2]) for n in range(1_000)])

    assert [*alike, *mixed] == sorted({*alike, *mixed})
    assert await q.payloads() == [b"%d" % n for n in [*range(1_000), *range(0, 1_000, 2)]]
    assert [(await q.job_of(id, "r")).payload for id in mixed[1::100]] == [
        b"%d" % n for n in range(1, 1_000, 100)
    ]


async def test_a_job_reads_back_whole(q: Jobs) -> None:
    job = NewJob("q", b"\x00\xff", b'{"a":"b"}', -3, None, 50, 100, 4, 7, 60)
    (id,) = await q.enqueue(job, now=10)

    assert await q.job_of(id) == JobRecord(
        id, "q", b"\x00\xff", b'{"a":"b"}', JobState.PENDING, -3, 50, 70, 0, 4, 100, 7, None, None, 10, None, None, None,
        None, None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("delay", "run_at", "found"),
    [(None, None, 10), (5, 99, 15), (None, 99, 99), (2**63 - 1, None, MAX_INSTANT)],
)
async def test_a_delay_beats_an_instant_and_both_stay_within_the_calendar(
    q: Jobs, delay: int | None, run_at: int | None, found: int
) -> None:
    job = new_job(expires=2**63 - 1)._replace(delay=delay, run_at=run_at)
    ids = await q.enqueue(job, job, now=10)

    assert [(await q.job_of(id))[6:8] for id in ids] == [(found, MAX_INSTANT)] * 2


async def test_the_jobs_of_a_schedule_hold_their_boundaries(q: Jobs) -> None:
    ids = await queue.insert(q.on, [new_job()] * 3, (), [5, None, 7])

    assert [(await q.job_of(id)).scheduled_for for id in ids] == [5, None, 7]
    (alone,) = await queue.insert(q.on, [new_job()], ("q1:q",), [8])
    assert (await q.job_of(alone)).scheduled_for == 8


# ---------------------------------------------------------------- settles: which of them land


@pytest.mark.parametrize("make", OF_A_CLAIM)
async def test_a_settle_lands_until_the_deadline_for_its_own_claim_in_its_own_queue(
    q: Jobs, make: Callable[[str, int, int], Settle]
) -> None:
    job = await q.held()
    before = await q.everything()

    assert await q.settle(make("q", job.id, token_of(job)), now=100) == [None]
    assert await q.settle(make("q", job.id, token_of(job) ^ 1), now=99) == [None]
    assert await q.settle(make("other", job.id, token_of(job)), now=99) == [None]
    assert await q.everything() == before
    assert await q.settle(make("q", job.id, token_of(job)), now=99) != [None]
    assert await q.everything() != before


@pytest.mark.parametrize("id", [2**63, -(2**63) - 1, 10**30, 0, 2**63 - 1])
async def test_an_id_that_no_row_can_have_lands_nowhere(q: Jobs, id: int) -> None:
    settles = [make("q", id, 1) for make in OF_A_CLAIM] + [make("q", id) for make in OF_A_ROW]

    assert [await q.settle(each) for each in settles] == [[None]] * len(settles)
    assert await q.settle(*settles) == [None] * len(settles)


@pytest.mark.parametrize("count", [1, 2, 3, 20])
async def test_acks_that_are_all_live_land_together(q: Jobs, count: int) -> None:
    jobs = [await q.held(new_job(b"%d" % n)) for n in range(count)]
    await q.enqueue(new_job(b"another"))

    acks = [Ack("q", job.id, token_of(job)) for job in jobs]

    async with q.listening() as heard:
        assert await q.settle(*acks, now=50, texts=["what others are owed"]) == [50] * count
        assert await heard() == ["what others are owed"]
    assert list(queue.woken_by_settles(acks, lambda: 50)) == []
    assert await q.payloads() == [b"another"]


@pytest.mark.parametrize("at", [0, 2, 4])
async def test_one_ack_of_several_that_is_not_live_is_told_and_the_others_land(q: Jobs, at: int) -> None:
    jobs = [await q.held(new_job(b"%d" % n)) for n in range(5)]
    acks = [Ack("q", job.id, token_of(job) ^ (n == at)) for n, job in enumerate(jobs)]

    assert await q.settle(*acks, now=50) == [None if n == at else 50 for n in range(5)]
    assert await q.payloads() == [b"%d" % at]


async def test_an_ack_that_comes_twice_in_one_batch_lands_once(q: Jobs) -> None:
    jobs = [await q.held() for _ in range(3)]
    acks = [Ack("q", job.id, token_of(job)) for job in jobs]

    assert await q.settle(acks[0], acks[1], acks[0], acks[2]) == [0, 0, None, 0]


async def test_acks_of_several_queues_land_together_and_only_in_their_own(q: Jobs) -> None:
    jobs = [await q.held(new_job(name=name)) for name in ("a", "b", "c")]

    assert await q.settle(*[Ack("a", job.id, token_of(job)) for job in jobs]) == [0, None, None]
    assert await q.settle(*[Ack(job.queue, job.id, token_of(job)) for job in jobs]) == [None, 0, 0]


async def test_settles_of_one_claim_land_in_their_order(q: Jobs) -> None:
    job = await q.held()
    claim_ = ("q", job.id, token_of(job))

    answers = await q.settle(Heartbeat(*claim_, 500), Release(*claim_), Ack(*claim_), Cancel("q", job.id))

    assert answers == [500, 0, None, 0]
    assert await q.everything() == []


# ---------------------------------------------------------------- settles: what they do


async def test_a_retry_puts_a_job_back_for_later_with_its_error(q: Jobs) -> None:
    job = await q.held()

    assert await q.settle(Retry("q", job.id, token_of(job), 30, "busy"), now=20) == [20]

    assert await q.job_of(job.id) == job._replace(
        state=JobState.PENDING, run_at=50, worker_id=None, deadline=None, token=None, retry_error="busy"
    )
    assert await q.place_of(job.id) == IN_LINE


async def test_a_failure_buries_a_job_and_its_last_error_is_the_only_one(q: Jobs) -> None:
    job = await q.held()
    await q.settle(Retry("q", job.id, token_of(job), 0, "busy"))
    (job,) = (await q.claim()).jobs

    assert await q.settle(Fail("q", job.id, token_of(job), "boom"), now=20) == [20]

    assert await q.job_of(job.id) == job._replace(
        state=JobState.DEAD, worker_id=None, deadline=None, token=None, retry_error=None, last_error="boom", died_at=20
    )  # fmt: skip


@pytest.mark.parametrize("attempts", [1, 3])
async def test_a_release_leaves_a_job_as_it_was_before_its_claim(q: Jobs, attempts: int) -> None:
    (id,) = await q.enqueue(new_job(attempts=attempts, run_at=-5))
    before = await q.everything()
    (job,) = (await q.claim()).jobs

    assert await q.settle(Release("q", id, token_of(job)), now=20) == [20]

    assert await q.everything() == before


@pytest.mark.parametrize(("window", "end"), [(200, 220), (1, 21), (2**63 - 1, MAX_INSTANT)])
async def test_a_heartbeat_gives_a_whole_new_window_and_its_end(q: Jobs, window: int, end: int) -> None:
    job = await q.held()

    assert await q.settle(Heartbeat("q", job.id, token_of(job), window), now=20) == [end]

    assert await q.job_of(job.id) == job._replace(deadline=end)


async def test_a_last_attempt_stays_the_last_over_a_heartbeat(q: Jobs) -> None:
    job = await q.held(new_job(attempts=1))
    await q.settle(Heartbeat("q", job.id, token_of(job), 20), now=20)

    await q.claim(now=40)

    assert (await q.job_of(job.id)).state is JobState.DEAD


async def test_a_cancel_removes_what_nobody_has_claimed(q: Jobs) -> None:
    dead, lapsed, live = await q.killed(), await q.held(), await q.held(now=50)
    (aside,) = await q.enqueue(new_job(expires=10))
    (delayed,) = await q.enqueue(new_job(run_at=999))
    await q.enqueue(new_job(priority=5), now=100)
    await q.claim(now=100)
    (ready,) = await q.enqueue(new_job())
    assert (await q.place_of(aside), await q.place_of(lapsed.id)) == (ASIDE, IN_LINE)

    ids = [dead.id, lapsed.id, live.id, aside, delayed, ready]
    assert await q.settle(*[Cancel("other", id) for id in ids], now=100) == [None] * 6
    assert await q.settle(*[Cancel("q", id) for id in ids], now=100) == [None] * 3 + [100] * 3
    assert await q.settle(*[Cancel("q", id) for id in ids], now=100) == [None] * 6


async def test_a_redrive_makes_a_dead_job_as_new_but_for_its_stamps(q: Jobs) -> None:
    before = await q.killed(new_job(priority=3, expires=10))

    assert await q.settle(Redrive("other", before.id), now=500) == [None]
    assert await q.settle(Redrive("q", before.id), now=500) == [500]

    assert await q.job_of(before.id) == before._replace(
        state=JobState.PENDING, run_at=500, expires_at=None, attempts=0, last_error=None, died_at=None
    )
    assert [job.id for job in (await q.claim(now=500)).jobs] == [before.id]


async def test_only_the_dead_are_redriven(q: Jobs) -> None:
    live = await q.held()
    (pending,) = await q.enqueue(new_job())
    before = await q.everything()

    assert await q.settle(Redrive("q", live.id), Redrive("q", pending)) == [None, None]
    assert await q.everything() == before


async def test_a_batch_wakes_each_queue_in_which_a_job_can_be_claimed_again_once(
    q: Jobs,
) -> None:
    jobs = {
        name: await q.held(new_job(name=name)) for name in ("retry", "release", "heartbeat", "ack", "fail")
    }
    dead = await q.killed(new_job(name="redrive"))
    (gone,) = await q.enqueue(new_job(name="cancel"))
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

    woken = queue.woken_by_settles(settles, lambda: 10)

    assert [(each.topic.name, each.at) for each in woken] == [
        ("retry", 15), ("lost", 15), ("heartbeat", 15), ("release", None), ("redrive", None),
    ]  # fmt: skip
    async with q.listening() as heard:
        await q.settle(*settles, texts=["q5:retry", "q7:release"])
        assert await heard() == ["q5:retry", "q7:release"]


# ---------------------------------------------------------------- sweep and purge


async def test_a_sweep_buries_what_is_over_each_with_its_reason(q: Jobs) -> None:
    lapsed_and_expired = await q.held(new_job(expires=50))
    lapsed_last = await q.held(new_job(attempts=1))
    both = await q.held(new_job(attempts=1, expires=50))
    live_but_expired = await q.held(new_job(window=500, expires=50))
    lapsed = await q.held()
    (expired, fresh) = await q.enqueue(new_job(expires=100), new_job(expires=101))
    ids = [lapsed_and_expired.id, lapsed_last.id, both.id, expired, live_but_expired.id, lapsed.id, fresh]

    swept = [await q.sweep("q", now=100) for _ in range(2)]

    assert swept == [4, 0]
    lapse = "visibility timeout lapsed on the last attempt"
    assert [(await q.job_of(id)).last_error for id in ids[:4]] in (
        ["expired", lapse, "expired", "expired"],
        ["expired", lapse, lapse, "expired"],
    )
    assert [(await q.job_of(id))[4] for id in ids[4:]] == [
        JobState.PROCESSING, JobState.PROCESSING, JobState.PENDING,
    ]  # fmt: skip
    for id in ids[:4]:
        dead = await q.job_of(id)
        assert (dead.died_at, dead.worker_id, dead.deadline, dead.token) == (100, None, None, None)


async def test_a_sweep_finds_what_a_claim_set_aside_and_stays_in_its_queue(q: Jobs) -> None:
    ids = await q.enqueue(new_job(expires=5), new_job(name="other", expires=5))
    await q.claim(now=5)
    assert await q.place_of(ids[0]) == ASIDE

    assert await q.sweep("q", now=5) == 1
    assert (await q.job_of(ids[0])).state is JobState.DEAD
    assert await q.place_of(ids[1]) == IN_LINE


async def test_a_sweep_knows_no_limit(q: Jobs) -> None:
    await q.enqueue(*[new_job(attempts=1)] * 1_500)
    await q.claim(1_500)

    assert await q.sweep("q", now=100) == 1_500


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
async def test_a_purge_deletes_the_dead_that_are_older_and_not_those_of_just_that_age(
    q: Jobs, older_than: int, left: list[int]
) -> None:
    for at in (50, 100, 150, 200):
        await q.killed(now=at)
    for name in ("q", "other"):
        await q.enqueue(new_job(name=name))
    await q.killed(new_job(name="third"))

    await q.at(200)

    assert await queue.purge(q.on, "q", older_than) == 4 - len(left)

    dead = await q.find(JobFilter(state=JobState.DEAD))
    assert [job.died_at for job in dead] == left
    assert len(await q.everything()) == len(left) + 3
