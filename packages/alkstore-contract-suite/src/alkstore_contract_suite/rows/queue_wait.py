"""Row Q-21: waiting for a job."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from alkstore import JobHandle, JobState, Queue, Store
from alkstore_contract_suite.context import MICRO, Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._queue import given, read, take

Prepare = Callable[[Context, Queue], Awaitable[Any]]
Commit = Callable[[Store, Queue, Any], Awaitable[object]]


async def _nothing(ctx: Context, queue: Queue) -> None:
    """Some commits need nothing to be there."""


async def _held(ctx: Context, queue: Queue) -> JobHandle:
    await queue.enqueue("held")
    return await take(ctx, queue)


async def _dead(ctx: Context, queue: Queue) -> int:
    handle = await _held(ctx, queue)
    await handle.fail("dead")
    return handle.job.id


async def _in_tx(store: Store, queue: Queue, _: object) -> None:
    async with store.begin_tx() as tx:
        await tx.enqueue(queue, "work")


COMMITS: Final[dict[str, tuple[Prepare, Commit]]] = {
    "an enqueue": (_nothing, lambda _store, queue, _: queue.enqueue("work")),
    "a batch": (_nothing, lambda _store, queue, _: queue.enqueue_batch(["work"])),
    "a transaction": (_nothing, _in_tx),
    "a retry": (_held, lambda _store, _queue, handle: handle.retry(delay=0)),
    "a release": (_held, lambda _store, _queue, handle: handle.release()),
    "a redrive": (_dead, lambda _store, queue, job_id: queue.redrive(job_id)),
}


@row(
    "Q-21",
    text="A waiting claim returns on the commit of whatever makes a job claimable.",
    oracle="the waiter idles before the commit and has the job after it, for each kind of commit",
    modes=("plain", "second"),
    kills=("enqueue-wakes-nobody",),
)
async def a_waiting_claim_returns_on_a_commit(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    for kind, (prepare, commit) in COMMITS.items():
        name = ctx.name("mail")
        prepared = await prepare(ctx, other.queue(name))
        waiter = ctx.start(mine.queue(name).claim(worker_id="waiter"))
        await ctx.idle(waiter, "with nothing claimable a claim waits")
        await other.queue(ctx.name("post")).enqueue("elsewhere")
        await ctx.idle(waiter, "a commit to another queue serves nobody here")
        await commit(other, other.queue(name), prepared)

        handle = await given(ctx, waiter, f"a waiting claim returns on the commit of {kind}")

        job = await read(ctx, other.queue(name), handle.job.id)
        ctx.expect((job.state, job.worker_id), (JobState.PROCESSING, "waiter"), "the job is the waiter's")
        ctx.expect(await handle.ack(), True, "the claim is live")


@row(
    "Q-21",
    text="A waiting claim returns when a schedule fires into its queue.",
    oracle="the waiter idles until the boundary's tick and has the job after it",
    modes=("plain", "second"),
)
async def a_waiting_claim_returns_on_a_fire(ctx: Context) -> None:
    name = ctx.name("mail")
    mine, other = ctx.store, await ctx.turn()
    await other.schedule(ctx.name("often"), "@every 5s", name, {"n": 1})
    waiter = ctx.start(mine.queue(name).claim())
    await ctx.advance(5)
    await ctx.idle(waiter, "a boundary fires nothing by itself")
    ctx.expect(await other.tick_schedules(), 1, "a tick fires the boundary")

    handle = await given(ctx, waiter, "a waiting claim returns on the commit of a schedule's fire")
    ctx.expect(handle.job.payload, {"n": 1}, "the job is the schedule's")


@row(
    "Q-21",
    text="A waiting claim returns when a run_at falls due, and not one microsecond before.",
    oracle="the waiter around the instant; a nearer job that comes meanwhile is not slept through",
    modes=("boundary", "second"),
)
async def a_waiting_claim_returns_when_a_job_falls_due(ctx: Context) -> None:
    name = ctx.name("mail")
    mine, other = ctx.store, (await ctx.turn()).queue(name)
    far = await other.enqueue("far", delay=60)
    waiter = ctx.start(mine.queue(name).claim())
    await ctx.idle(waiter, "with nothing claimable a claim waits")
    near = await other.enqueue("near", delay=5)
    await ctx.advance(5 - MICRO)
    await ctx.idle(waiter, "one microsecond before its run_at a job is not claimable")
    await ctx.advance(MICRO)
    handle = await given(ctx, waiter, "a waiting claim returns when a run_at falls due")
    ctx.expect(handle.job.id, near, "the nearer job is not slept through")
    ctx.expect(await handle.ack(), True, "the claim is live")

    waiter = ctx.start(mine.queue(name).claim())
    await ctx.idle(waiter, "with nothing claimable a claim waits")
    await ctx.advance(1_000)
    handle = await given(ctx, waiter, "one jump over a run_at wakes who waits for it")
    ctx.expect(handle.job.id, far, "the job that fell due is given")


@row(
    "Q-21",
    text="A waiting claim returns when a claim lapses; a heartbeat puts that off.",
    oracle="the waiter around the old and the new deadline",
    modes=("boundary", "second"),
    kills=("lapsed-claim-never-returns",),
)
async def a_waiting_claim_returns_when_a_claim_lapses(ctx: Context) -> None:
    name = ctx.name("mail")
    mine, other = ctx.store, (await ctx.turn()).queue(name)
    job_id = await other.enqueue("work", visibility_timeout=10)
    holder = await take(ctx, other)
    waiter = ctx.start(mine.queue(name).claim())
    await ctx.advance(6)
    ctx.expect(await holder.heartbeat(), True, "a live claim is renewed")
    await ctx.advance(10 - MICRO)
    await ctx.idle(waiter, "a renewed claim is held past its old deadline")
    await ctx.advance(MICRO)

    handle = await given(ctx, waiter, "a waiting claim returns when a claim lapses")

    ctx.expect((handle.job.id, handle.job.attempts), (job_id, 2), "the lapsed row is given")
    waiter = ctx.start(mine.queue(name).claim())
    await ctx.idle(waiter, "a row that is held is not given")
    ctx.expect(await handle.heartbeat(1), True, "a window may shorten the claim")
    await ctx.advance(1)
    again = await given(ctx, waiter, "a shortened claim lapses at its new deadline for waiters too")
    ctx.expect(again.job.attempts, 3, "the lapsed row is given")


@row(
    "Q-21",
    text="Timeout gives None; 0 or less is one immediate try; a ready job is given at once.",
    oracle="the answers, and that a timed-out wait used no attempt",
    modes=("plain", "second"),
)
async def a_wait_that_times_out_gives_nothing(ctx: Context) -> None:
    name = ctx.name("mail")
    mine, other = ctx.store.queue(name), (await ctx.turn()).queue(name)
    for short in (0, -1, 0.0, 0.002, MICRO):
        nothing = await ctx.soon(
            mine.claim(timeout=short), "a timeout ends a wait, though the clock stands still"
        )
        ctx.expect(nothing, None, "a wait that times out gives None")
    for timeout in (0, -1, None, 60):
        job_id = await other.enqueue("ready")
        waiter = ctx.start(mine.claim(timeout=timeout, worker_id="w"))
        handle = await given(ctx, waiter, "a ready job is given at once, in one immediate try too")
        found = (handle.job.id, handle.job.attempts, handle.job.worker_id)
        ctx.expect(found, (job_id, 1, "w"), "a wait that timed out before used no attempt")
        await handle.ack()
    waiter = ctx.start(mine.claim(timeout=0.05))
    ctx.expect(await ctx.soon(waiter, "a timeout ends a wait"), None, "a wait that times out gives None")
    job_id = await other.enqueue("late")
    await ctx.settle()
    ctx.expect((await read(ctx, other, job_id)).attempts, 0, "an ended wait takes nothing")


@row(
    "Q-21",
    text="Waiters of one store are served in the order in which they began.",
    oracle="single commits and a batch, against the order of the waiters; the first gets the first job",
    modes=("plain", "second"),
    kills=("last-waiter-served-first",),
)
async def waiters_are_served_in_the_order_in_which_they_began(ctx: Context) -> None:
    name = ctx.name("mail")
    mine, other = ctx.store.queue(name), (await ctx.turn()).queue(name)
    waiters = []
    for at in range(6):
        waiters.append(ctx.start(mine.claim(worker_id=f"w{at}")))
        await ctx.settle()
    gone = waiters.pop(2)
    gone.cancel()
    for at in range(2):
        job_id = await other.enqueue("single")
        handle = await given(ctx, waiters[at], "the waiter that began first is served first")
        ctx.expect(handle.job.id, job_id, "the waiter that began first is served first")
        await ctx.idle(waiters[at + 1], "one job serves one waiter")
    ids = await other.enqueue_batch([1, 2, 3])
    served = [
        await given(ctx, waiter, "a batch serves as many waiters as it has jobs") for waiter in waiters[2:]
    ]
    ctx.expect([handle.job.id for handle in served], ids, "in the order in which they began, in claim order")
    ctx.expect(
        [handle.job.worker_id for handle in served], ["w3", "w4", "w5"], "each waiter has its own worker id"
    )


@row(
    "Q-21",
    text="One job serves one waiter, however many wait in however many stores; the others wait on.",
    oracle="twelve waiters, jobs one by one: every job has one holder, every waiter one job",
    modes=("plain", "second"),
)
async def one_job_serves_one_waiter(ctx: Context) -> None:
    name = ctx.name("mail")
    queues = [ctx.store.queue(name), (await ctx.turn()).queue(name)]
    waiters = [ctx.start(queues[at % 2].claim()) for at in range(12)]
    await ctx.settle()
    ids = []
    for served in range(1, 13):
        ids.append(await queues[served % 2].enqueue(served))
        await ctx.settle()
        done = sum(waiter.done() for waiter in waiters)
        ctx.expect(done, served, "one job serves one waiter")
    handles = [await given(ctx, waiter, "every waiter is served") for waiter in waiters]
    ctx.expect(sorted(handle.job.id for handle in handles), ids, "every job has one holder")
    ctx.expect({handle.job.attempts for handle in handles}, {1}, "a wait uses one attempt for a job")


@row(
    "Q-21",
    text="Between stores none starves.",
    oracle="two stores that work on one backlog of 300 jobs both get some of it",
    modes=("second",),
)
async def no_store_starves(ctx: Context) -> None:
    name = ctx.name("mail")
    stores = [ctx.store, await ctx.turn()]
    shares, is_done = [0, 0], asyncio.Event()

    async def consume(at: int) -> None:
        async for handle in stores[at].queue(name).claims():
            shares[at] += 1
            await handle.ack()
            await ctx.hold(0)
            if sum(shares) == 300:
                is_done.set()

    consumers = [ctx.start(consume(at)) for at in range(2)]
    await ctx.settle()
    await stores[0].queue(name).enqueue_batch(range(300))
    await ctx.soon(is_done.wait(), "waiting stores work off a backlog")

    ctx.that(min(shares) > 0, "no waiting store starves", observed=shares)
    for consumer in consumers:
        await ctx.idle(consumer, "claims() goes on waiting")
