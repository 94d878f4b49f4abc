"""Row Q-28: a handle as a context manager, and run_once."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Final

from alkstore import ClaimLost, InvalidArgument, JobHandle, JobState
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._accepting import accepts
from alkstore_contract_suite.rows._queue import later, read, take

Operation = Callable[[JobHandle], Awaitable[bool]]


class Refused(Exception):
    """What a handler of ours raises."""


SETTLED: Final[dict[str, tuple[Operation, JobState | None]]] = {
    "ack": (lambda handle: handle.ack(), None),
    "retry": (lambda handle: handle.retry(delay=60), JobState.PENDING),
    "fail": (lambda handle: handle.fail("no"), JobState.DEAD),
    "release": (lambda handle: handle.release(), JobState.PENDING),
}


@row(
    "Q-28",
    text="A clean exit acks; a body that settled the handle itself leaves it at that.",
    oracle="the row after each block",
    modes=("plain", "second"),
)
async def a_clean_exit_acks_unless_the_body_settled(ctx: Context) -> None:
    name = ctx.name("mail")
    queue, other = ctx.store.queue(name), (await ctx.turn()).queue(name)
    job_id = await queue.enqueue("clean")
    async with await take(ctx, queue) as handle:
        ctx.expect(handle.job.id, job_id, "the block is given the handle")
        ctx.expect(await handle.heartbeat(), True, "a heartbeat does not settle")
    ctx.expect(await other.get_job(job_id), None, "a clean exit acks")

    for settle, (call, state) in SETTLED.items():
        for error in (None, Refused("afterwards")):
            job_id = await queue.enqueue(settle)
            try:
                async with await take(ctx, queue) as handle:
                    await call(handle)
                    if error is not None:
                        raise error
            except Refused as caught:
                ctx.expect(caught, error, "the body's own error comes through")
            job = await other.get_job(job_id)
            found = (job and job.state, job and job.last_error)
            expected = (state, "no" if state is JobState.DEAD else None)
            ctx.expect(found, expected, f"a body that settled by {settle} is left at that")
            await other.cancel(job_id)


@row(
    "Q-28",
    text="A clean exit whose ack did not land raises ClaimLost.",
    oracle="the typed error after a lapse, taken by another or not; the row is unchanged",
    modes=("plain", "second"),
    kills=("lost-ack-is-silent",),
)
async def a_clean_exit_without_a_claim_raises(ctx: Context) -> None:
    name = ctx.name("mail")
    queue, other = ctx.store.queue(name, visibility_timeout=5), (await ctx.turn()).queue(name)
    for taken in (False, True):
        job_id = await queue.enqueue("long")
        before = None
        async with (
            ctx.refuses(ClaimLost, "a clean exit whose ack did not land raises ClaimLost"),
            await take(ctx, queue),
        ):
            await ctx.advance(5)
            if taken:
                await take(ctx, other)
            before = await other.get_job(job_id)
        ctx.expect(await other.get_job(job_id), before, "an ack that did not land changes nothing")
        await ctx.advance(5)
        ctx.expect(await (await take(ctx, other)).ack(), True, "the row comes again")


@row(
    "Q-28",
    text="An Exception retries with it, on the row's curve, and propagates.",
    oracle="the row's state, attempts, run_at and error; the very exception",
    modes=("plain", "second"),
    kills=("exception-acks",),
)
async def an_exception_retries_and_propagates(ctx: Context) -> None:
    name = ctx.name("mail")
    queue, other = ctx.store.queue(name, visibility_timeout=5), (await ctx.turn()).queue(name)
    job_id = await queue.enqueue("work", base_delay=8, max_attempts=2)
    for attempt in (1, 2):
        error = Refused(f"try {attempt}")
        async with (
            ctx.refuses(Refused, "the handler's exception propagates") as caught,
            await take(ctx, queue),
        ):
            raise error
        ctx.expect(caught.error, error, "the handler's exception propagates")
        job = await read(ctx, other, job_id, "an exception keeps the row")
        text = (job.retry_error if attempt == 1 else job.last_error) or ""
        ctx.that(f"{__name__}.Refused: try {attempt}" in text, "the row keeps the exception", observed=text)
        expected = JobState.PENDING if attempt == 1 else JobState.DEAD
        ctx.expect(job.state, expected, "an exception retries; on the last attempt it is death")
        if attempt == 1:
            now = await ctx.now()
            bounds = later(now, 4) <= job.run_at <= later(now, 8)
            ctx.that(bounds, "an exception retries on the row's curve", observed=job.run_at - now)
            await ctx.advance(8)


@row(
    "Q-28",
    text="An Exception propagates though the claim was lost, and then changes nothing.",
    oracle="the very exception, and the row that another may claim",
    modes=("plain", "second"),
)
async def an_exception_with_a_lost_claim_propagates(ctx: Context) -> None:
    name = ctx.name("mail")
    queue, other = ctx.store.queue(name, visibility_timeout=5), (await ctx.turn()).queue(name)
    await queue.enqueue("lost")
    async with (
        ctx.refuses(Refused, "with a lost claim the handler's exception still propagates"),
        await take(ctx, queue),
    ):
        await ctx.advance(5)
        raise Refused("too late")
    ctx.expect((await take(ctx, other)).job.attempts, 2, "a retry that did not land changes nothing")


@row(
    "Q-28",
    text="A cancellation releases and propagates; a timeout inside the block is an exception and counts.",
    oracle="the row after a cancelled body, after a timeout around and after one within the block",
    modes=("plain", "second"),
)
async def a_cancellation_releases_and_propagates(ctx: Context) -> None:
    name = ctx.name("mail")
    queue, other = ctx.store.queue(name), (await ctx.turn()).queue(name)
    job_id = await queue.enqueue("work", max_attempts=1)

    async def body() -> None:
        async with await take(ctx, queue):
            await asyncio.Event().wait()

    task = ctx.start(body())
    await ctx.idle(task, "the body is at work")
    task.cancel()
    await ctx.soon(asyncio.wait([task]), "a cancelled body ends")
    ctx.that(task.cancelled(), "a cancellation propagates", observed=task)
    job = await read(ctx, other, job_id)
    ctx.expect((job.state, job.attempts), (JobState.PENDING, 0), "a cancellation releases")

    async with (
        ctx.refuses(TimeoutError, "a timeout around the block propagates"),
        asyncio.timeout(None) as limit,
        await take(ctx, queue),
    ):
        # Not before: on a busy machine it would end the claim, and there would be no block yet.
        limit.reschedule(asyncio.get_running_loop().time())
        await asyncio.Event().wait()
    job = await read(ctx, other, job_id)
    ctx.expect((job.state, job.attempts), (JobState.PENDING, 0), "a timeout around the block releases")
    async with (
        ctx.refuses(TimeoutError, "a timeout inside the block propagates"),
        await take(ctx, queue),
        asyncio.timeout(0.001),
    ):
        await asyncio.Event().wait()
    job = await read(ctx, other, job_id)
    ctx.expect((job.state, job.attempts), (JobState.DEAD, 1), "a timeout inside the block counts")


async def _handle(seen: list[tuple[object, str | None]], handle: JobHandle) -> object:
    seen.append((handle.job.payload, handle.job.worker_id))
    if handle.job.payload == "refused":
        raise Refused("no")
    if str(handle.job.payload).startswith("settled"):
        await handle.fail("by itself")
    if handle.job.payload == "settled, then refused":
        raise Refused("afterwards")
    return "ignored"


@row(
    "Q-28",
    text="run_once handles one job as the block would, and keeps the handler's Exception to the row.",
    oracle="the answers, the calls, the rows",
    modes=("plain", "second"),
    kills=("run-once-settles-what-its-handler-settled",),
)
async def run_once_handles_one_job(ctx: Context) -> None:
    name = ctx.name("mail")
    queue, other = ctx.store.queue(name), (await ctx.turn()).queue(name)
    seen: list[tuple[object, str | None]] = []
    handler = functools.partial(_handle, seen)

    ctx.expect(await queue.run_once(handler), False, "with nothing claimable run_once is False")
    ctx.expect(seen, [], "with nothing claimable the handler is not called")
    payloads = ("done", "refused", "settled", "settled, then refused")
    ids = [await other.enqueue(payload) for payload in payloads]
    for _ in ids:
        with accepts(ctx, "run_once keeps the handler's Exception to the row"):
            handled = await queue.run_once(handler, worker_id="w")
        ctx.expect(handled, True, "a job handled one way or the other is True")
    ctx.expect(seen, [(payload, "w") for payload in payloads], "the handler is given the handle")
    ctx.expect(await other.get_job(ids[0]), None, "a handler that returns is an ack")
    job = await read(ctx, other, ids[1])
    ctx.expect((job.state, job.attempts), (JobState.PENDING, 1), "a handler that raises is a retry")
    ctx.that("Refused: no" in (job.retry_error or ""), "the row keeps it", observed=job.retry_error)
    for job_id in ids[2:]:
        job = await read(ctx, other, job_id)
        found = (job.state, job.last_error)
        ctx.expect(found, (JobState.DEAD, "by itself"), "a handler that settled is left at that")


@row(
    "Q-28",
    text="A handler that is no async callable is refused before the claim; objects and partials are fine.",
    oracle="the typed error and an untouched row; then three kinds of callables handle a job each",
    modes=("plain",),
)
async def a_handler_that_cannot_be_awaited_is_refused(ctx: Context) -> None:
    queue = ctx.store.queue(ctx.name("mail"))
    job_id = await queue.enqueue("work")
    seen: list[str] = []

    def plain(handle: JobHandle) -> None:
        seen.append("plain")

    for handler in (plain, lambda handle: None, None, "handler", 5):
        async with ctx.refuses(InvalidArgument, "a handler must be an async callable"):
            await queue.run_once(handler)  # type: ignore[arg-type]  # what a caller without types may pass
    job = await read(ctx, queue, job_id)
    ctx.expect((job.state, job.attempts, seen), (JobState.PENDING, 0, []), "it is refused before the claim")

    async def named(name: str, handle: JobHandle) -> None:
        seen.append(name)

    class Handler:
        async def __call__(self, handle: JobHandle) -> None:
            await named("object", handle)

        async def method(self, handle: JobHandle) -> None:
            await named("method", handle)

    await queue.enqueue_batch([1, 2])
    for good in (functools.partial(named, "partial"), Handler(), Handler().method):
        ctx.expect(await queue.run_once(good), True, "an async callable of any kind is a handler")
    ctx.expect(seen, ["partial", "object", "method"], "each was called once")


@row(
    "Q-28",
    text="run_once: a cancellation releases and propagates; a handler that outlived its claim changes nothing.",
    oracle="the row after a cancelled handler, and the answer after a lapse",
    modes=("plain", "second"),
)
async def run_once_lets_a_cancellation_through(ctx: Context) -> None:
    name = ctx.name("mail")
    queue, other = ctx.store.queue(name, visibility_timeout=5), (await ctx.turn()).queue(name)
    job_id = await queue.enqueue("work")

    async def endless(handle: JobHandle) -> None:
        await asyncio.Event().wait()

    task = ctx.start(queue.run_once(endless))
    await ctx.idle(task, "the handler is at work")
    task.cancel()
    await ctx.soon(asyncio.wait([task]), "a cancelled run_once ends")
    ctx.that(task.cancelled(), "a cancellation propagates", observed=task)
    job = await read(ctx, other, job_id)
    ctx.expect((job.state, job.attempts), (JobState.PENDING, 0), "a cancellation releases")

    async def slow(handle: JobHandle) -> None:
        await ctx.advance(5)

    try:
        outcome: object = await queue.run_once(slow)
    except ClaimLost:
        outcome = "ClaimLost"
    ctx.among(
        outcome, {"True": True, "ClaimLost": "ClaimLost"}, "run_once when the claim lapsed under its handler"
    )
    again = await take(ctx, other, "a handler that outlived its claim leaves the row claimable")
    ctx.expect((again.job.id, again.job.attempts), (job_id, 2), "the row comes again")
