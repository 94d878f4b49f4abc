"""Jobs that several connections want at the same time, and batches as large as they come."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial

import asyncpg
import pytest
from hanging import HUNG
from queues import PATIENCE, Jobs, jobs, new_job, token_of

from alkstore.engine import (
    Ack,
    Cancel,
    Fail,
    Heartbeat,
    JobFilter,
    JobRecord,
    JobState,
    Redrive,
    Release,
    Retry,
    Settle,
)
from alkstore.numbers import MAX_INSTANT
from alkstore_pg import queue
from alkstore_pg.contract_server import Server
from alkstore_pg.link import Operation
from alkstore_pg.mark import FULL
from alkstore_pg.session import Row, Session

LATE = 2**40
"""A window that does not end in a test."""


@pytest.fixture(scope="module")
def database(server: Server) -> Iterator[str]:
    yield server.create_database("test_queue_races")
    server.drop_database("test_queue_races")


@pytest.fixture
async def q(database: str) -> AsyncIterator[Jobs]:
    async with jobs(database) as world:
        yield world


def ack_of(job: JobRecord) -> Ack:
    return Ack(job.queue, job.id, token_of(job))


async def run_on(on: Session, operation: Operation[Sequence[Row]]) -> Sequence[Row]:
    return await operation(on)


# ---------------------------------------------------------------- claims


async def test_claimers_at_the_same_time_never_hold_one_job_together_and_leave_none(q: Jobs) -> None:
    await q.enqueue(*[new_job(priority=n % 3, window=LATE) for n in range(600)])

    async def work(seed: int) -> list[int]:
        on, chance, taken = await q.session(), random.Random(seed), list[int]()
        while True:
            answer = await queue.claim(on, "q", ["w"] * chance.randrange(1, 9), FULL)
            assert answer.claimed is not None
            if not answer.claimed.jobs:
                return taken
            taken += [job.id for job in answer.claimed.jobs]

    shares = await asyncio.gather(*map(work, range(6)))

    taken = [id for share in shares for id in share]
    assert sorted(taken) == sorted(job.id for job in await q.find(JobFilter(limit=1_000)))
    assert len(set(taken)) == 600


async def test_a_claim_that_is_not_committed_yet_is_passed_over(q: Jobs) -> None:
    await q.enqueue(*[new_job(b"%d" % n) for n in range(3)])
    other = await q.session()

    async with other.connection.transaction():
        assert [job.payload for job in (await q.claim(2, on=other)).jobs] == [b"0", b"1"]
        assert [job.payload for job in (await q.claim(2)).jobs] == [b"2"]
        await q.sql("ROLLBACK", on=other)
        await q.sql("BEGIN", on=other)

    assert [job.payload for job in (await q.claim(3)).jobs] == [b"0", b"1"]


async def test_what_an_open_transaction_acked_is_passed_over_and_comes_again_if_that_is_rolled_back(
    q: Jobs,
) -> None:
    first, last = await q.held(new_job(b"first")), await q.held(new_job(b"last", attempts=1))
    other = await q.session()

    transaction = other.connection.transaction()
    await transaction.start()
    assert await q.settle(ack_of(first), ack_of(last), now=50, on=other) == [50, 50]
    await q.enqueue(new_job(b"other"), now=50)
    assert [job.payload for job in (await q.claim(3, now=100)).jobs] == [b"other"]
    assert await q.sweep(now=100) == 0
    assert (await q.job_of(last.id)).state is JobState.PROCESSING
    await transaction.rollback()

    assert [job.payload for job in (await q.claim(3, now=100)).jobs] == [b"first"]
    assert (await q.job_of(last.id)).state is JobState.DEAD


# ---------------------------------------------------------------- settles


@pytest.mark.parametrize("count", [1, 2])
async def test_an_ack_waits_for_a_heartbeat_that_is_not_committed_yet_and_lands(q: Jobs, count: int) -> None:
    await q.enqueue(*[new_job()] * count)
    held = (await q.claim(count)).jobs
    other = await q.session()

    async with other.connection.transaction():
        await q.settle(*[Heartbeat("q", job.id, token_of(job), 500) for job in held], on=other)
        acks = asyncio.create_task(queue.settle(q.on, [ack_of(job) for job in held], (), PATIENCE))
        await q.blocked(q.on, by=other)

    assert await acks == [0] * count
    assert await q.everything() == []


@pytest.mark.parametrize("is_mixed", [False, True])
async def test_who_waits_for_longer_than_he_may_has_done_nothing(q: Jobs, is_mixed: bool) -> None:
    await q.enqueue(*[new_job()] * 3)
    held = (await q.claim(3)).jobs
    acks = [ack_of(job) for job in held]
    other = await q.session()

    async with other.connection.transaction():
        await q.settle(acks[1], on=other)
        with pytest.raises(asyncpg.LockNotAvailableError):
            await queue.settle(q.on, [*acks, Cancel("q", 99)] if is_mixed else acks, (), 20)

    assert [job.id for job in await q.find(JobFilter())] == [held[0].id, held[2].id]


@pytest.mark.parametrize("is_mixed", [False, True])
async def test_a_caller_s_own_limit_of_waiting_is_left_as_it_was(q: Jobs, is_mixed: bool) -> None:
    held = await q.held()

    async with q.on.connection.transaction():
        await q.sql("SET LOCAL lock_timeout = 1234")
        settles: list[Settle] = [ack_of(held), Cancel("q", 99)]
        await q.settle(*settles[: 1 + is_mixed])
        assert await q.sql("SHOW lock_timeout") == [("1234ms",)]
    assert await q.sql("SHOW lock_timeout") == [("0",)]


async def test_settles_claims_and_sweeps_in_any_order_never_break_each_other(q: Jobs) -> None:
    await q.enqueue(
        *[new_job(priority=n % 3, window=LATE, attempts=9, expires=(n % 5) * 7 - 1) for n in range(300)]
    )
    held = list((await q.claim(150)).jobs)
    await q.at(20)

    async def settle(seed: int) -> int:
        on, chance, landed = await q.session(), random.Random(seed), 0
        for _ in range(15):
            settles: list[Settle] = []
            for job in chance.sample(held, 60):
                claim = (job.queue, job.id, token_of(job))
                choices: list[Settle] = [Ack(*claim), Release(*claim), Heartbeat(*claim, LATE)]
                settles.append(chance.choice(choices))
            if chance.randrange(2):
                settles = [ack_of(job) for job in chance.sample(held, 60)]
            answers = await queue.settle(on, settles, (), PATIENCE)
            landed += sum(
                isinstance(each, Ack) and at is not None for each, at in zip(settles, answers, strict=True)
            )
        return landed

    async def sweep() -> int:
        on = await q.session()
        return sum([await queue.sweep(partial(run_on, on), "q") for _ in range(5)])

    async def claim() -> int:
        on = await q.session()
        return sum([len((await q.claim(3, now=20, on=on)).jobs) for _ in range(15)])

    async with asyncio.timeout(HUNG):
        results = await asyncio.gather(*map(settle, range(4)), sweep(), sweep(), claim())

    acked, swept = sum(results[:4]), sum(results[4:6])
    counts = await q.count(now=20)
    assert counts.dead == swept
    assert sum(counts[:5]) == 300 - acked


# ---------------------------------------------------------------- sweeps


async def test_a_sweep_waits_for_rows_that_a_claim_has_for_a_moment(q: Jobs) -> None:
    await q.enqueue(*[new_job(expires=10) for _ in range(3)])
    other = await q.session()

    async with other.connection.transaction():
        await q.claim(now=10, on=other)  # takes them aside
        sweep = asyncio.create_task(q.sweep(now=10))
        await asyncio.sleep(0.01)

    assert await sweep == 3


async def test_two_sweeps_count_each_row_once_and_what_came_later_is_left(q: Jobs) -> None:
    await q.enqueue(*[new_job(expires=10) for _ in range(12_000)])
    await q.at(10)
    others = [await q.session() for _ in range(2)]

    moved = await asyncio.gather(*[queue.sweep(partial(run_on, on), "q") for on in others])

    assert sum(moved) == 12_000
    assert (await q.count(now=10)).dead == 12_000


async def test_a_sweep_moves_only_what_qualified_when_it_began(q: Jobs) -> None:
    await q.enqueue(*[new_job(expires=10 + n // 10_000) for n in range(10_001)])
    await q.at(10)
    calls = 0

    async def run(operation: Operation[Sequence[Row]]) -> Sequence[Row]:
        nonlocal calls
        calls += 1
        try:
            return await operation(q.on)
        finally:
            await q.at(11)

    assert await queue.sweep(run, "q") == 10_000
    assert calls == 2


# ---------------------------------------------------------------- large batches


async def test_batches_of_forty_thousand_are_batches_like_others(q: Jobs) -> None:
    many, some = 40_000, 4_000
    alike = await q.enqueue(*[new_job(window=LATE)] * many)
    mixed = await q.enqueue(*[new_job(window=LATE, priority=n % 2) for n in range(some)])
    assert [*alike, *mixed] == sorted({*alike, *mixed})

    held = (await q.claim(many + some)).jobs
    assert len(held) == many + some

    assert await q.settle(*map(ack_of, held[:many]), now=5) == [5] * many
    changes = [
        (Retry("q", job.id, token_of(job), 5, None), Fail("q", job.id, token_of(job), "boom"))[n % 2]
        for n, job in enumerate(held[many:])
    ]
    assert (
        await q.settle(*changes, *[Cancel("q", job.id) for job in held[:many]], now=5)
        == [5] * some + [None] * many
    )
    dead = [job.id for job in await q.find(JobFilter(state=JobState.DEAD, limit=many))]
    assert len(dead) == some // 2
    assert await q.settle(*[Redrive("q", id) for id in dead], now=5) == [5] * len(dead)
    assert len(await q.find(JobFilter(ids=tuple(dead), state=JobState.PENDING, limit=many))) == len(dead)


async def test_every_number_of_a_job_may_be_as_large_as_64_bits_allow(q: Jobs) -> None:
    largest = 2**63 - 1
    await q.sql("SELECT setval(pg_get_serial_sequence('alkstore.job', 'id'), $1::bigint)", largest - 10)
    job = new_job(priority=-(2**63), window=largest, attempts=largest, expires=largest)._replace(
        base_delay=largest
    )
    ids = await q.enqueue(job, job._replace(priority=largest), now=MAX_INSTANT - 1)
    try:
        jobs = (await q.claim(2, now=MAX_INSTANT - 1)).jobs

        assert [(job.id, job.priority, job.max_attempts, job.base_delay) for job in jobs] == [
            (ids[1], largest, largest, largest),
            (ids[0], -(2**63), largest, largest),
        ]
        assert [job.deadline for job in jobs] == [MAX_INSTANT] * 2
        assert await q.settle(*[Retry("q", job.id, token_of(job), largest, "e") for job in jobs]) == [0, 0]
        assert await q.settle(*[Cancel("q", id) for id in ids]) == [0, 0]
    finally:
        await q.sql("SELECT setval(pg_get_serial_sequence('alkstore.job', 'id'), 1)")
