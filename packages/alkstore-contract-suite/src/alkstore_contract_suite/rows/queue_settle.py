"""Rows Q-09, Q-10 and Q-15: whose outcome lands, and how often."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from alkstore import DatabaseError, HandleConsumed, InvalidArgument, JobHandle
from alkstore_contract_suite.context import MICRO, Context
from alkstore_contract_suite.factory import Fault, Unsupported
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._queue import STORED, read, states, take, take_nothing

Operation = Callable[[JobHandle], Awaitable[bool]]

SETTLES: Final[dict[str, Operation]] = {
    "ack": lambda handle: handle.ack(),
    "retry": lambda handle: handle.retry(error="again", delay=1),
    "fail": lambda handle: handle.fail("never"),
    "release": lambda handle: handle.release(),
}
OPERATIONS: Final[dict[str, Operation]] = {**SETTLES, "heartbeat": lambda handle: handle.heartbeat()}


@row(
    "Q-09",
    text="A settle lands only while this very claim is live, though the worker_id be the same.",
    oracle="the stale handle's answer is False, the row unchanged, and the new claim's ack lands",
    modes=("plain", "second"),
    kills=("ack-ignores-token",),
)
async def a_stale_handle_of_the_same_worker_is_refused(ctx: Context) -> None:
    name = ctx.name("mail")
    mine, other = ctx.store, (await ctx.turn()).queue(name)
    queue = mine.queue(name, visibility_timeout=5)
    for operation, call in OPERATIONS.items():
        await queue.enqueue(operation)
        stale = await take(ctx, queue, worker_id="same")
        await ctx.advance(5)
        live = await take(ctx, other, worker_id="same")
        before = await read(ctx, other, live.job.id)

        ctx.expect(await call(stale), False, f"a stale {operation} is refused")

        ctx.expect(await read(ctx, other, live.job.id), before, f"a stale {operation} changes nothing")
        ctx.expect(before, live.job, "the row is still held by the new claim")
        ctx.expect(await live.ack(), True, "the new claim's ack lands")
    ctx.expect(await states(queue), {}, "acked is gone")


@row(
    "Q-09",
    text="Each claim has its own token: not the attempt, not the worker, not the instant tells claims apart.",
    oracle="handles of attempt 1 before and after a redrive and a release, in one instant",
    modes=("plain", "second"),
    kills=("ack-ignores-token",),
)
async def a_handle_of_an_earlier_life_is_refused(ctx: Context) -> None:
    name = ctx.name("mail")
    mine, other = ctx.store, (await ctx.turn()).queue(name)
    queue = mine.queue(name, visibility_timeout=5, max_attempts=2)
    for operation, call in OPERATIONS.items():
        job_id = await queue.enqueue(operation)
        stale = await take(ctx, queue, worker_id="same")
        await ctx.advance(5)
        await (await take(ctx, other, worker_id="same")).fail()
        ctx.expect(await other.redrive(job_id), 1, "a dead row is redriven")
        await (await take(ctx, other, worker_id="same")).release()
        live = await take(ctx, other, worker_id="same")
        ctx.expect(live.job.attempts, stale.job.attempts, "both are a first attempt")

        ctx.expect(await call(stale), False, f"a stale {operation} is refused, whatever the attempt")

        ctx.expect(await read(ctx, other, job_id), live.job, f"a stale {operation} changes nothing")
        ctx.expect(await live.ack(), True, "the live claim's ack lands")


@row(
    "Q-09",
    text="One microsecond before the deadline each operation lands, at it none does, taken by another or not.",
    oracle="the answers at both instants; at the deadline the row is unchanged and claimable",
    modes=("boundary",),
    kills=("ack-after-deadline",),
)
async def a_settle_lands_until_the_deadline(ctx: Context) -> None:
    queue = ctx.store.queue(ctx.name("mail"), visibility_timeout=7, max_attempts=5)
    for operation, call in OPERATIONS.items():
        job_id = await queue.enqueue(operation)
        handle = await take(ctx, queue)
        await ctx.advance(7 - MICRO)
        ctx.expect(await call(handle), True, f"{operation} lands one microsecond before the deadline")
        if operation not in ("ack", "fail"):
            await ctx.advance(7)
            await (await take(ctx, queue)).fail()

        job_id = await queue.enqueue(operation)
        handle = await take(ctx, queue)
        await ctx.advance(7)
        ctx.expect(await call(handle), False, f"{operation} at the deadline is too late")
        ctx.expect(await read(ctx, queue, job_id), handle.job, f"a late {operation} changes nothing")
        again = await take(ctx, queue, f"after a late {operation} the row is claimable")
        ctx.expect(
            (again.job.id, again.job.attempts), (job_id, 2), f"after a late {operation} the row comes again"
        )
        ctx.expect(await again.ack(), True, "the new claim's ack lands")


@row(
    "Q-09",
    text="After the row went on without it, a claim's outcome is refused: acked, dead, pending again.",
    oracle="False and an unchanged row in each state",
    modes=("plain", "second"),
)
async def a_handle_whose_row_went_on_is_refused(ctx: Context) -> None:
    name = ctx.name("mail")
    mine, other = ctx.store, (await ctx.turn()).queue(name)
    queue = mine.queue(name, visibility_timeout=5)
    for ending in ("ack", "fail", "retry", "release"):
        for operation, call in OPERATIONS.items():
            job_id = await queue.enqueue(operation)
            stale = await take(ctx, queue)
            await ctx.advance(5)
            ctx.expect(await SETTLES[ending](await take(ctx, other)), True, "the live claim's outcome lands")
            before = await other.get_job(job_id)

            ctx.expect(await call(stale), False, f"{operation} after another's {ending} is refused")

            ctx.expect(
                await other.get_job(job_id), before, f"{operation} after another's {ending} changes nothing"
            )
            await other.cancel(job_id)


@row(
    "Q-10",
    text="ack deletes the row.",
    oracle="get_job, list, stats and claims after the deadline know nothing of it",
    modes=STORED,
    kills=("ack-keeps-the-row",),
)
async def an_acked_job_is_gone(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = ctx.store.queue(name)
    job_id = await queue.enqueue("done", expires=10)
    control = await queue.enqueue("control", delay=9_000)
    handle = await take(ctx, queue)
    ctx.expect(await handle.ack(), True, "an ack of a live claim lands")

    queue = (await ctx.turn()).queue(name)
    ctx.expect(await queue.get_job(job_id), None, "an acked job has no row")
    ctx.expect(list(await states(queue)), [control], "an acked job is not listed")
    await ctx.advance(400)
    await take_nothing(ctx, queue, "an acked job never comes again")
    ctx.expect(await queue.sweep_expired(), 0, "an acked job is not swept")
    ctx.expect(await queue.redrive(job_id), 0, "an acked job cannot be redriven")


async def _consumed(ctx: Context, handle: JobHandle, promise: str) -> None:
    for call in OPERATIONS.values():
        async with ctx.refuses(HandleConsumed, promise):
            await call(handle)


@row(
    "Q-15",
    text="A settle is one-shot: every later operation raises HandleConsumed, whether it landed or not.",
    oracle="each operation after each settle; the row is as the first one left it",
    modes=("plain", "second"),
    kills=("a-handle-settles-twice",),
)
async def a_settled_handle_is_consumed(ctx: Context) -> None:
    name = ctx.name("mail")
    mine, other = ctx.store, (await ctx.turn()).queue(name)
    queue = mine.queue(name, visibility_timeout=5)
    for settle, call in SETTLES.items():
        for landed in (True, False):
            job_id = await queue.enqueue(settle)
            handle = await take(ctx, queue)
            if not landed:
                await ctx.advance(5)
            ctx.expect(await call(handle), landed, f"{settle} answers once")
            left = await other.get_job(job_id)

            await _consumed(ctx, handle, f"after {settle} the handle is consumed")

            ctx.expect(await other.get_job(job_id), left, "an operation on a consumed handle changes nothing")
            if not landed:
                handle = await take(ctx, queue)
                await handle.ack()
            await other.cancel(job_id)


@row(
    "Q-15",
    text="Of twenty racing settles of one handle one gets its answer, nineteen the error.",
    oracle="the answers and errors of the race, and one outcome on the row",
    modes=("concurrent",),
    kills=("a-handle-settles-twice",),
)
async def one_of_twenty_racing_settles_answers(ctx: Context) -> None:
    queue = ctx.store.queue(ctx.name("mail"))
    calls = list(SETTLES.values()) * 5
    for _ in range(4):
        ctx.random.shuffle(calls)
        await queue.enqueue("raced")
        handle = await take(ctx, queue)

        async def attempt(call: Operation, handle: JobHandle = handle) -> bool | str:
            try:
                return await call(handle)
            except HandleConsumed:
                return "consumed"

        answers = await ctx.race(*(attempt(call) for call in calls))

        expected = ["consumed"] * 19 + [True]
        ctx.expect(
            sorted(answers, key=str, reverse=True), expected, "one settle answers, nineteen are refused"
        )
        await queue.cancel(handle.job.id)
        ctx.that((await queue.stats()).processing == 0, "the one settle landed", observed=await states(queue))


@row(
    "Q-15",
    text="A settle that raised leaves the handle open: a bad argument, a cancellation; calling again is safe.",
    oracle="the row after the error, and the answer of the next call",
    modes=("plain", "second"),
)
async def a_settle_that_raised_leaves_the_handle_open(ctx: Context) -> None:
    name = ctx.name("mail")
    mine, other = ctx.store, (await ctx.turn()).queue(name)
    queue = mine.queue(name)
    job_id = await queue.enqueue(1)
    handle = await take(ctx, queue)
    for delay in (float("nan"), True, "5"):
        async with ctx.refuses(InvalidArgument, "a delay is a finite duration"):
            await handle.retry(delay=delay)  # type: ignore[arg-type]  # what a caller without types may pass
    for error in (5, b"text"):
        async with ctx.refuses(InvalidArgument, "an error is text or an exception"):
            await handle.fail(error)  # type: ignore[arg-type]  # as above
    ctx.expect(await read(ctx, other, job_id), handle.job, "a refused settle changes nothing")
    ctx.expect(await handle.heartbeat(), True, "a refused settle leaves the handle open")
    ctx.expect(await handle.ack(), True, "a refused settle leaves the handle open")
    ctx.expect(await other.get_job(job_id), None, "the next call lands")


@row(
    "Q-15",
    text="A cancelled settle landed whole or not at all, and may be called again.",
    oracle="the row before and after the second call",
    modes=("plain", "second"),
)
async def a_cancelled_settle_may_be_called_again(ctx: Context) -> None:
    name = ctx.name("mail")
    mine, other = ctx.store, (await ctx.turn()).queue(name)
    queue = mine.queue(name)
    for _ in range(10):
        job_id = await queue.enqueue(1)
        handle = await take(ctx, queue)
        try:
            async with asyncio.timeout(0):
                first = await handle.ack()
        except TimeoutError:
            await ctx.settle()
            landed = await other.get_job(job_id) is None
            allowed = (False, True) if landed else (True,)
            ctx.among(await handle.ack(), allowed, "a cancelled settle may be called again")
        else:
            ctx.expect(first, True, "a settle that answered has landed")
        ctx.expect(await other.get_job(job_id), None, "once the settle answered the row is gone")


@row(
    "Q-15",
    text="A settle that met a storage error leaves the handle open, and calling it again is safe.",
    oracle="the typed error, then an answer, and one outcome on the row",
    modes=("plain", "second"),
    needs=("durable",),
)
async def a_settle_that_met_a_storage_error_may_be_called_again(ctx: Context) -> None:
    name = ctx.name("mail")
    mine, other = ctx.store, (await ctx.turn()).queue(name)
    job_id = await mine.queue(name).enqueue(1)
    handle = await take(ctx, mine.queue(name))
    fault = ctx.factory.fault(Fault.COMMIT_FAILS, mine)
    if isinstance(fault, Unsupported):
        ctx.skip_inconclusive(fault.reason)
    async with fault, ctx.refuses(DatabaseError, "a storage error is a DatabaseError"):
        await handle.ack()
    landed = await other.get_job(job_id) is None

    allowed = (False, True) if landed else (True,)
    ctx.among(await handle.ack(), allowed, "a settle that met a storage error may be called again")
    ctx.expect(await other.get_job(job_id), None, "once the settle answered the row is gone")
