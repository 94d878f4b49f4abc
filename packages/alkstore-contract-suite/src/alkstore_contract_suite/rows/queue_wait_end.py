"""Row Q-21, the ends of a wait: cancelled, timed out, closed, stopped."""

import asyncio
from collections.abc import Sequence

from alkstore import Closed, JobHandle, JobState, StopToken
from alkstore_contract_suite.context import MICRO, Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._queue import (
    read,
    states,
    take,
    take_nothing,
)


@row(
    "Q-21",
    text="Cancelling a wait loses no job and uses no attempt.",
    oracle="after every storm each job is one live waiter's, or pending and untried",
    modes=("plain", "concurrent", "second"),
    depends=("Q-27",),  # core releases what a cancelled wait was given
    kills=("cancelled-wait-strands-its-job",),
)
async def a_cancelled_wait_loses_no_job(ctx: Context) -> None:
    name = ctx.name("mail")
    mine, other = ctx.store.queue(name), (await ctx.turn()).queue(name)
    for _ in range(25):
        waiters = [ctx.start(mine.claim()) for _ in range(6)]
        if ctx.random.random() < 0.7:
            await ctx.settle()
        ids = await other.enqueue_batch(range(4))
        if ctx.random.random() < 0.3:
            await ctx.hold(0)
        # Who has his job already cannot be cancelled any more, and keeps it.
        victims = [victim for victim in ctx.random.sample(waiters, 4) if victim.cancel()]
        await ctx.settle()
        survivors = [waiter for waiter in waiters if waiter not in victims]
        owed = min(len(survivors), len(ids))
        await ctx.soon(_answered(survivors, owed), "a job that a cancelled waiter gave up goes to the next")
        for survivor in survivors:
            survivor.cancel()  # those for whom there is no job
        await ctx.settle()
        held = {waiter.result() for waiter in waiters if waiter.done() and not waiter.cancelled()}
        taken = {handle.job.id for handle in held if handle is not None}
        found = {job.id: (job.state, job.attempts) for job in await other.list()}
        expected = dict.fromkeys(ids, (JobState.PENDING, 0))
        expected |= dict.fromkeys(taken, (JobState.PROCESSING, 1))
        ctx.expect(found, expected, "cancelling a wait loses no job and uses no attempt")
        for handle in held:
            ctx.expect(handle is not None and await handle.ack(), True, "the claim of a live waiter is live")
        for job_id in await states(other):
            await other.cancel(job_id)


async def _answered(waiters: Sequence["asyncio.Task[JobHandle | None]"], count: int) -> None:
    """Wait until so many of these have their answer."""
    waiting = {waiter for waiter in waiters if not waiter.done()}
    while waiting and len(waiters) - len(waiting) < count:
        _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)


@row(
    "Q-21",
    text="A wait that times out while jobs come loses no job and uses no attempt.",
    oracle="after every storm of short waits each job is held by who got it, or pending and untried",
    modes=("plain", "second"),
)
async def a_wait_that_times_out_loses_no_job(ctx: Context) -> None:
    name = ctx.name("mail")
    mine, other = ctx.store.queue(name), (await ctx.turn()).queue(name)
    for _ in range(10):
        waiters = [ctx.start(mine.claim(timeout=ctx.random.choice((MICRO, 0.001, 0.002)))) for _ in range(5)]
        await ctx.hold(ctx.random.choice((0, 0.001)))
        ids = await other.enqueue_batch(range(3))
        given = [await ctx.soon(waiter, "a timeout ends a wait") for waiter in waiters]
        await ctx.settle()
        taken = [handle for handle in given if handle is not None]
        found = {job.id: (job.state, job.attempts) for job in await other.list()}
        expected = dict.fromkeys(ids, (JobState.PENDING, 0))
        expected |= {handle.job.id: (JobState.PROCESSING, 1) for handle in taken}
        ctx.expect(found, expected, "a wait that times out loses no job and uses no attempt")
        for handle in taken:
            ctx.expect(await handle.ack(), True, "the claim of who got a job is live")
        for job_id in await states(other):
            await other.cancel(job_id)


@row(
    "Q-21",
    text="When the store closes, a waiting claim raises Closed and claims() ends.",
    oracle="both waits, and what they do afterwards",
    modes=("plain",),
)
async def a_close_ends_every_wait(ctx: Context) -> None:
    queue = ctx.store.queue(ctx.name("mail"))

    async def consume() -> str:
        async for handle in queue.claims():
            return f"got {handle.job.id}"
        return "ended"

    waiting, consuming = ctx.start(queue.claim()), ctx.start(consume())
    await ctx.idle(waiting, "with nothing claimable a claim waits")
    await ctx.idle(consuming, "with nothing claimable claims() waits")
    await ctx.store.aclose()

    async with ctx.refuses(Closed, "a waiting claim raises Closed when its store closes"):
        await ctx.soon(waiting, "a close ends every wait")
    ctx.expect(
        await ctx.soon(consuming, "a close ends every wait"), "ended", "claims() ends when its store closes"
    )
    async with ctx.refuses(Closed, "a claim on a closed store is refused"):
        await queue.claim(timeout=0)


@row(
    "Q-21",
    text="claims() holds none in advance and settles none.",
    oracle="stats while the body holds a job, and after it went on without settling",
    modes=("plain", "second"),
)
async def claims_holds_none_in_advance(ctx: Context) -> None:
    name = ctx.name("mail")
    mine, other = ctx.store.queue(name), (await ctx.turn()).queue(name)
    ids = await other.enqueue_batch(range(3), visibility_timeout=30)
    seen: list[JobHandle] = []
    go_on, stop = asyncio.Event(), StopToken()

    async def consume() -> None:
        async for handle in mine.claims(stop=stop, worker_id="w"):
            seen.append(handle)
            await go_on.wait()
            go_on.clear()

    consumer = ctx.start(consume())
    for held in (1, 2):
        await ctx.settle()
        found = await other.stats()
        counts = (found.processing, found.ready)
        ctx.expect(counts, (held, 3 - held), "claims() holds none in advance, settles none")
        ctx.expect([handle.job.id for handle in seen], ids[:held], "claims() gives jobs in claim order")
        if held == 1:
            go_on.set()
    stop.cancel()
    await ctx.idle(consumer, "a stop lets the body end")
    go_on.set()
    await ctx.soon(consumer, "claims() ends on stop")
    last = await read(ctx, other, ids[2])
    ctx.expect((last.state, last.attempts), (JobState.PENDING, 0), "a stop takes nothing more")
    acked = [(await handle.ack(), handle.job.worker_id) for handle in seen]
    ctx.expect(acked, [(True, "w")] * 2, "what claims() gave is the body's to settle")


@row(
    "Q-21",
    text="claims() ends on its stop token at once: set before, or while it waits.",
    oracle="a token set before takes nothing; one set while waiting ends the wait",
    modes=("plain",),
)
async def claims_ends_on_its_stop(ctx: Context) -> None:
    queue = ctx.store.queue(ctx.name("mail"))
    stop = StopToken()

    async def consume() -> int:
        count = 0
        async for handle in queue.claims(stop=stop):
            count += 1
            await handle.ack()
        return count

    consumer = ctx.start(consume())
    await ctx.idle(consumer, "with nothing claimable claims() waits")
    await queue.enqueue("work")
    await ctx.idle(consumer, "after a job claims() waits for the next")
    stop.cancel()
    ctx.expect(await ctx.soon(consumer, "a stop ends the wait at once"), 1, "the job before was given")
    job_id = await queue.enqueue("untouched")
    ctx.expect(await ctx.soon(consume(), "a token set before ends claims() at once"), 0, "and takes nothing")
    ctx.expect((await read(ctx, queue, job_id)).attempts, 0, "a token set before takes nothing")
    ctx.expect((await take(ctx, queue)).job.id, job_id, "what was left is claimable")
    await take_nothing(ctx, queue, "nothing else is")
