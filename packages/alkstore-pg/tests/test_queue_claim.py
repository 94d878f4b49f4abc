"""Claims: their order, what they put in its place on the way, and when it is worth asking again."""

from collections.abc import AsyncIterator, Iterator

import pytest
from queues import Jobs, jobs, new_job

from alkstore.engine import Ack, Claimed, Heartbeat, JobCounts, JobState
from alkstore.numbers import MAX_INSTANT
from alkstore_pg.contract_server import Server

IN_LINE, HELD, HELD_LAST, ASIDE = range(4)

MANY = """
INSERT INTO {schema}.job (
    queue, payload, headers, place, priority, run_at, expires_at, attempts, max_attempts, visibility_timeout, base_delay,
    worker_id, deadline, token, created_at
)
SELECT
    'q', '', '', $2::smallint, 5, 0, $3::bigint, 1, $4::bigint, 100, 1, CASE WHEN $5::bigint IS NOT NULL THEN 'w' END,
    $5::bigint, CASE WHEN $5::bigint IS NOT NULL THEN n END, 0
FROM generate_series(1, $1::bigint) AS n
"""


@pytest.fixture(scope="module")
def database(server: Server) -> Iterator[str]:
    yield server.create_database("test_queue_claim")
    server.drop_database("test_queue_claim")


@pytest.fixture
async def q(database: str) -> AsyncIterator[Jobs]:
    async with jobs(database) as world:
        yield world


# ---------------------------------------------------------------- order


@pytest.mark.parametrize("wanted", [1, 2, 3, 4, 9])
async def test_jobs_come_by_priority_then_by_when_they_were_ready_then_by_id(q: Jobs, wanted: int) -> None:
    await q.enqueue(
        new_job(b"low", priority=-1, run_at=1),
        new_job(b"high, last", priority=9, run_at=7),
        new_job(b"middle, first", run_at=3),
        new_job(b"high, first", priority=9, run_at=2),
        new_job(b"middle, second", run_at=3),
        new_job(b"another queue's", name="other", priority=99),
    )

    assert await q.in_order(wanted, 10) == [
        b"high, first", b"high, last", b"middle, first", b"middle, second", b"low",
    ][:wanted]  # fmt: skip


@pytest.mark.parametrize("wanted", [1, 2, 3, 9])
async def test_delayed_jobs_in_front_of_any_priority_hold_nobody_back(q: Jobs, wanted: int) -> None:
    for priority in (3, 2, 1, 0):
        await q.enqueue(*[new_job(b"later", priority=priority, run_at=50 + n) for n in range(3)])
    await q.enqueue(new_job(b"second", priority=0, run_at=5), new_job(b"first", priority=2, run_at=9))
    await q.enqueue(new_job(b"third", priority=-7))

    assert await q.in_order(wanted, 10) == [b"first", b"second", b"third"][:wanted]


async def test_a_claim_of_several_goes_on_from_level_to_level_and_takes_no_job_twice(
    q: Jobs,
) -> None:
    await q.enqueue(*[new_job(b"%d" % n, priority=-(n // 2)) for n in range(7)])

    assert await q.in_order(3, 0) == [b"0", b"1", b"2"]
    assert await q.in_order(3, 0) == [b"3", b"4", b"5"]
    assert await q.in_order(3, 0) == [b"6"]


async def test_a_job_that_is_ready_in_this_very_microsecond_is_claimed(q: Jobs) -> None:
    await q.enqueue(new_job(b"now", run_at=10))

    assert await q.in_order(1, 9) == []
    assert await q.in_order(1, 10) == [b"now"]


# ---------------------------------------------------------------- what a claim is


async def test_a_claim_reads_back_as_it_was_given(q: Jobs) -> None:
    ids = await q.enqueue(new_job(), new_job(attempts=1), now=5)

    jobs = (await q.claim(2, now=7)).jobs

    assert [await q.job_of(id) for id in ids] == list(jobs)
    assert [(job.state, job.attempts, job.worker_id, job.deadline) for job in jobs] == [
        (JobState.PROCESSING, 1, "worker 0", 107),
        (JobState.PROCESSING, 1, "worker 1", 107),
    ]
    assert jobs[0].token != jobs[1].token
    assert [await q.place_of(id) for id in ids] == [HELD, HELD_LAST]


async def test_a_deadline_stays_within_the_calendar(q: Jobs) -> None:
    await q.enqueue(new_job(window=2**63 - 1))

    assert [job.deadline for job in (await q.claim()).jobs] == [MAX_INSTANT]


async def test_nobody_takes_nothing(q: Jobs) -> None:
    await q.enqueue(new_job())

    assert (await q.ask(0)).claimed == Claimed([], None)


async def test_a_lapsed_job_keeps_its_place_and_is_claimed_anew(q: Jobs) -> None:
    first = await q.held(new_job(b"old", run_at=1), now=5)
    await q.enqueue(new_job(b"young", run_at=2), now=6)
    assert first.token is not None

    assert await q.in_order(2, 104) == [b"young"]
    (again,) = (await q.claim(2, now=105)).jobs

    assert again == first._replace(attempts=2, deadline=205, token=again.token)
    assert again.token != first.token
    assert await q.settle(Ack("q", first.id, first.token), now=106) == [None]


async def test_a_last_attempt_that_lapsed_is_buried_and_not_claimed(q: Jobs) -> None:
    job = await q.held(new_job(attempts=1))

    assert await q.claim(now=99) == Claimed([], None)
    assert await q.claim(now=100) == Claimed([], None)
    dead = await q.job_of(job.id)
    assert (dead.state, dead.last_error, dead.died_at, dead.worker_id, dead.deadline, dead.token) == (
        JobState.DEAD, "visibility timeout lapsed on the last attempt", 100, None, None, None,
    )  # fmt: skip


async def test_what_has_expired_is_passed_over_and_set_aside_whether_it_was_claimed_before_or_not(
    q: Jobs,
) -> None:
    lapsed = await q.held(new_job(expires=100))
    ids = [lapsed.id, *await q.enqueue(new_job(expires=100), new_job(b"good", expires=101))]

    assert await q.in_order(3, 100) == [b"good"]
    assert [await q.place_of(id) for id in ids] == [ASIDE, ASIDE, HELD]
    assert [(await q.job_of(id)).state.name for id in ids] == ["PROCESSING", "PENDING", "PROCESSING"]
    assert await q.count("q", now=100) == JobCounts(0, 0, 1, 2, 0, None)


async def test_a_live_claim_outlives_the_expiry_of_its_job(q: Jobs) -> None:
    job = await q.held(new_job(expires=50))
    assert job.token is not None

    assert await q.claim(now=60) == Claimed([], 100)
    assert await q.settle(Ack("q", job.id, job.token), now=60) == [60]


# ---------------------------------------------------------------- clocks that step back


async def test_a_claim_that_lapsed_is_live_again_when_the_clock_steps_back(q: Jobs) -> None:
    job = await q.held()
    assert job.token is not None
    await q.enqueue(new_job(b"higher", priority=2), now=100)
    assert await q.in_order(1, 100) == [b"higher"]
    assert await q.place_of(job.id) == IN_LINE

    assert await q.claim(now=50) == Claimed([], 100)

    assert await q.place_of(job.id) == HELD
    assert await q.settle(Ack("q", job.id, job.token), now=60) == [60]


async def test_a_job_that_expired_is_claimed_when_the_clock_steps_back(q: Jobs) -> None:
    (id,) = await q.enqueue(new_job(b"1", expires=100))
    assert await q.in_order(1, 100) == []
    assert await q.place_of(id) == ASIDE

    assert await q.in_order(1, 99) == [b"1"]


async def test_a_claim_that_lapsed_and_expired_is_live_again_when_the_clock_steps_back_before_both(
    q: Jobs,
) -> None:
    job = await q.held(new_job(expires=100))
    assert job.token is not None
    assert await q.claim(now=100) == Claimed([], None)
    assert await q.place_of(job.id) == ASIDE

    assert await q.claim(now=99) == Claimed([], 100)
    assert await q.settle(Heartbeat("q", job.id, job.token, 20), now=99) == [119]


# ---------------------------------------------------------------- portions

A_PORTION = 10_000


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
async def test_what_time_has_moved_is_put_in_its_place_in_portions_and_then_there_is_an_answer(
    q: Jobs, place: int, expires_at: int | None, deadline: int | None, after: int
) -> None:
    await q.sql(MANY, 2 * A_PORTION + 1, place, expires_at, 3, deadline)
    await q.enqueue(new_job(b"good"))

    async def moved() -> int:
        sql = "SELECT count(*) FROM {schema}.job WHERE payload = '' AND place = $1::smallint"
        ((count,),) = await q.sql(sql, after)
        return int(count)

    for portions in (1, 2):
        assert (await q.ask(now=50)).claimed is None
        assert await moved() == portions * A_PORTION
    answer = (await q.ask(now=50)).claimed

    assert answer is not None
    (job,) = answer.jobs
    assert job.payload == (b"" if after == IN_LINE else b"good")
    assert await moved() == 2 * A_PORTION + (0 if after == IN_LINE else 1)


async def test_a_claim_buries_a_thousand_at_most_and_answers_all_the_same(q: Jobs) -> None:
    await q.sql(MANY, 2_500, HELD_LAST, None, 1, 10)
    await q.enqueue(*[new_job(b"%d" % n) for n in range(4)])

    dead = []
    for n in range(4):
        assert await q.in_order(1, 50) == [b"%d" % n]
        dead.append((await q.count("q", now=50)).dead)

    assert dead == [1_000, 2_000, 2_500, 2_500]


# ---------------------------------------------------------------- when to ask again


async def test_an_empty_queue_is_worth_no_other_look(q: Jobs) -> None:
    await q.enqueue(new_job(name="other", run_at=5))

    assert await q.claim() == Claimed([], None)


async def test_the_first_delayed_job_of_any_priority_is_told(q: Jobs) -> None:
    await q.enqueue(*[new_job(priority=p, run_at=at) for p, at in ((2, 90), (1, 40), (0, 60), (1, 50))])

    assert await q.claim(5, now=10) == Claimed([], 40)


async def test_a_delayed_job_behind_ready_ones_of_its_priority_is_told(q: Jobs) -> None:
    await q.enqueue(new_job(run_at=1), new_job(run_at=30), new_job(priority=-1, run_at=40))

    answer = await q.claim(2, now=10)

    assert (len(answer.jobs), answer.next_at) == (1, 30)


async def test_what_a_claim_itself_took_is_told_as_the_next_to_lapse(q: Jobs) -> None:
    await q.enqueue(new_job(window=100), new_job(window=70))

    answer = await q.claim(3, now=10)

    assert (len(answer.jobs), answer.next_at) == (2, 80)


async def test_last_attempts_dead_and_expired_jobs_are_not_waited_for(q: Jobs) -> None:
    await q.killed()
    await q.held(new_job(attempts=1))
    await q.enqueue(new_job(run_at=40, expires=20))

    assert await q.claim(now=10) == Claimed([], 40)  # it has not expired yet
    assert await q.claim(now=20) == Claimed([], None)


async def test_the_sooner_of_a_delayed_job_and_a_lapse_is_told(q: Jobs) -> None:
    await q.held()
    (later,) = await q.enqueue(new_job(run_at=150))

    assert (await q.claim()).next_at == 100
    await q.sql("UPDATE {schema}.job SET run_at = 60 WHERE id = $1::bigint", later)
    assert (await q.claim()).next_at == 60


async def test_who_got_all_that_was_asked_for_is_told_nothing(q: Jobs) -> None:
    await q.enqueue(new_job(), new_job(), new_job(run_at=50))

    answer = await q.claim(2)

    assert (len(answer.jobs), answer.next_at) == (2, None)
