"""Row Q-14: a claim that is made longer."""

import asyncio

from alkstore import ClaimLost, InvalidArgument, JobState
from alkstore_contract_suite.context import MICRO, Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._queue import later, read, seconds, take, take_nothing


@row(
    "Q-14",
    text="heartbeat moves the deadline to now + the stamp, or to now + window, which may shorten it.",
    oracle="get_job's deadline after each; handle.job stays; everything else is as it was",
    modes=("plain", "second"),
)
async def a_heartbeat_moves_the_deadline(ctx: Context) -> None:
    name = ctx.name("mail")
    mine, other = ctx.store, (await ctx.turn()).queue(name)
    job_id = await mine.queue(name).enqueue(1, visibility_timeout=10)
    handle = await take(ctx, mine.queue(name, visibility_timeout=77))
    first = handle.job
    for window, expected in ((None, 10.0), (600, 600.0), (seconds(0.5), 0.5), (None, 10.0), (MICRO, MICRO)):
        await ctx.advance(0.25)
        ctx.expect(await handle.heartbeat(window), True, "a heartbeat of a live claim lands")
        job = await read(ctx, other, job_id)
        ctx.expect(
            job.deadline, later(await ctx.now(), expected), "a heartbeat gives a whole window from now"
        )
        ctx.expect(handle.job, first, "the handle's job stays the value at the claim")
        found = (job.state, job.attempts, job.worker_id, job.run_at, job.visibility_timeout)
        kept = (JobState.PROCESSING, 1, first.worker_id, first.run_at, seconds(10))
        ctx.expect(found, kept, "a heartbeat changes the deadline only")
    for window in (0, -1, seconds(-3)):
        async with ctx.refuses(InvalidArgument, "a window is positive"):
            await handle.heartbeat(window)
    ctx.expect(await handle.ack(), True, "a refused window leaves the handle as it was")


@row(
    "Q-14",
    text="The new deadline counts, to the microsecond, and a lapsed claim is not revived.",
    oracle="claims around the old and the new deadline; a heartbeat at the deadline is False",
    modes=("boundary",),
    kills=("heartbeat-revives",),
)
async def a_heartbeat_does_not_revive(ctx: Context) -> None:
    queue = ctx.store.queue(ctx.name("mail"), visibility_timeout=10)
    job_id = await queue.enqueue("work")
    handle = await take(ctx, queue)
    await ctx.advance(10 - MICRO)
    ctx.expect(await handle.heartbeat(), True, "one microsecond before its deadline a claim may be renewed")
    await ctx.advance(10 - MICRO)
    await take_nothing(ctx, queue, "a renewed claim is held past its old deadline")
    await ctx.advance(MICRO)
    before = await read(ctx, queue, job_id)
    ctx.expect(await handle.heartbeat(), False, "at its deadline a claim is not revived")
    ctx.expect(await handle.heartbeat(9_000), False, "at its deadline a claim is not revived, by no window")
    ctx.expect(await read(ctx, queue, job_id), before, "a late heartbeat changes nothing")

    again = await take(ctx, queue, "at the new deadline the row is claimable")
    ctx.expect((again.job.id, again.job.attempts), (job_id, 2), "at the new deadline the row is claimable")
    ctx.expect(await again.heartbeat(2), True, "a window may shorten the claim")
    await ctx.advance(2)
    ctx.expect((await take(ctx, queue, "a shortened claim ends early")).job.attempts, 3, "it ends early")


@row(
    "Q-14",
    text="hold renews at a third of the window, so a long body keeps its claim.",
    oracle="the claim is live long past its first deadline, and nobody else gets the row",
    modes=("plain", "second"),
)
async def a_held_claim_is_renewed(ctx: Context) -> None:
    name = ctx.name("mail")
    mine, other = ctx.store, (await ctx.turn()).queue(name)
    job_id = await mine.queue(name).enqueue("long", visibility_timeout=9)
    handle = await take(ctx, mine.queue(name))
    async with handle.hold():
        for _ in range(12):
            await ctx.advance(3)
            await ctx.settle()
            await take_nothing(ctx, other, "a held claim is not given to anybody else")
        job = await read(ctx, other, job_id)
        ctx.expect(job.deadline, later(await ctx.now(), 9), "hold renews at a third of the window")

    ctx.expect(await handle.ack(), True, "a held claim is live at the end of a long body")


@row(
    "Q-14",
    text="hold with a lost claim cancels the body, and leaving the block raises ClaimLost.",
    oracle="the body ends without its own doing; the claim is the other's",
    modes=("plain", "second"),
)
async def a_lost_claim_ends_the_body_that_holds_it(ctx: Context) -> None:
    name = ctx.name("mail")
    mine, other = ctx.store, (await ctx.turn()).queue(name)
    await mine.queue(name).enqueue("long", visibility_timeout=9)
    handle = await take(ctx, mine.queue(name))
    reached: list[str] = []

    async def body() -> None:
        async with handle.hold():
            reached.append("held")
            await asyncio.Event().wait()
            reached.append("went on")

    task = ctx.start(body())
    await ctx.settle()
    await ctx.advance(9)  # one jump over every renewal and the deadline
    live = await take(ctx, other, "a lapsed claim is claimable though its holder lives")

    await ctx.advance(3)
    async with ctx.refuses(ClaimLost, "a lost claim ends the body with ClaimLost"):
        await ctx.soon(task, "a lost claim ends the body that holds it")
    ctx.expect(reached, ["held"], "a lost claim cancels the body")
    ctx.expect(await live.ack(), True, "the live claim is untouched")
