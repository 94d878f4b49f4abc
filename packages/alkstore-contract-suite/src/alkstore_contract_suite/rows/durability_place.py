"""DUR-07, DUR-11 and DUR-12: where a store may be used, unknown outcomes, and waiting for storage."""

import asyncio
import os
import threading
import warnings
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from alkstore import DatabaseError, Store, Tx
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.factory import Fault
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._entry_points import SPEC
from alkstore_contract_suite.rows._queue import take
from alkstore_contract_suite.rows._receiving import broken
from alkstore_contract_suite.rows._transaction import look, write_everything

REFUSED: Final = 3
"""The exit code of a forked child in which every call was refused."""


async def _begin(store: Store) -> None:
    async with store.begin_tx():
        return


async def _listen(store: Store) -> None:
    async with store.listen("c"):
        return


CALLS: Final[Mapping[str, Callable[[Store], Awaitable[object]]]] = {
    "enqueue": lambda store: store.queue("q").enqueue(2),
    "claim_one": lambda store: store.queue("q").claim_one(),
    "claim": lambda store: store.queue("q").claim(timeout=0),
    "stats": lambda store: store.queue("q").stats(),
    "publish": lambda store: store.stream("s").publish(2),
    "read_since": lambda store: store.stream("s").read_since(0),
    "notify": lambda store: store.notify("c"),
    "listen": _listen,
    "try_lock": lambda store: store.try_lock("l", 5),
    "schedule": lambda store: store.schedule("s", SPEC, "q", 1),
    "queues": lambda store: store.queues(),
    "begin_tx": _begin,
    "aclose": lambda store: store.aclose(),
}


async def _answers(store: Store, more: Mapping[str, Callable[[], Awaitable[object]]]) -> dict[str, str]:
    answers = {}
    for label, call in {**{key: _on(call, store) for key, call in CALLS.items()}, **more}.items():
        try:
            async with asyncio.timeout(1):
                await call()
        except Exception as error:  # whatever comes is the answer that the row judges
            answers[label] = type(error).__name__
        else:
            answers[label] = "done"
    return answers


def _on(call: Callable[[Store], Awaitable[object]], store: Store) -> Callable[[], Awaitable[object]]:
    return lambda: call(store)


async def _things(ctx: Context, store: Store) -> dict[str, Callable[[], Awaitable[object]]]:
    """Calls on what came from the store: a claim, a lock, receivers."""
    await store.queue("q").enqueue(1)
    handle = await take(ctx, store.queue("q"))
    lock = await store.try_lock("held", 3_600)
    assert lock is not None
    return {"ack": handle.ack, "heartbeat": handle.heartbeat, "renew": lambda: lock.renew(5)}


@row(
    "DUR-07",
    text="A store used from a second event loop or another thread is InvalidArgument, and nothing happens.",
    oracle="every call from a loop of another thread is refused; the store's own loop goes on as before",
    kills=("any-loop-will-do",),
    platform=("threads",),
)
async def another_loop_and_another_thread_are_refused(ctx: Context) -> None:
    store = ctx.store
    things = await _things(ctx, store)
    before = (await store.queue("q").list(), await store.locks(), await store.streams())
    answers: list[dict[str, str]] = []
    thread = threading.Thread(target=lambda: answers.append(asyncio.run(_answers(store, things))))
    thread.start()
    thread.join()
    wanted = dict.fromkeys([*CALLS, *things], "InvalidArgument")
    ctx.expect(answers, [wanted], "every call from another loop is refused")
    after = (await store.queue("q").list(), await store.locks(), await store.streams())
    ctx.expect(after, before, "what was refused did nothing")
    kept = {label: await things[label]() for label in ("heartbeat", "ack", "renew")}
    ctx.expect(kept, dict.fromkeys(kept, True), "claims and locks are as before in the store's own loop")
    ctx.that(await store.queue("q").enqueue(1), "the store works as before in its own loop")


@row(
    "DUR-07",
    text="In a forked child a store is InvalidArgument, and the child does not touch the storage.",
    oracle="every call in the child is refused; after its end the parent's store works as before",
    kills=("any-loop-will-do",),
    platform=("fork",),
)
async def a_forked_child_is_refused(ctx: Context) -> None:
    store = ctx.store
    things = await _things(ctx, store)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads is what is tested here
        child = os.fork()
    if child == 0:
        code = 1
        try:
            answers = asyncio.run(_answers(store, things))
            code = REFUSED if set(answers.values()) == {"InvalidArgument"} else 2
        finally:
            os._exit(code)
    status = await ctx.soon(_ended(ctx, child), "a forked child hangs in no call")
    ctx.expect(os.waitstatus_to_exitcode(status), REFUSED, "every call in a forked child is refused")
    ctx.expect(await things["ack"](), True, "the parent's claim is as before")
    ctx.expect(await store.queue("q").list(), [], "the child's calls did nothing")
    ctx.that(await store.queue("q").enqueue(1), "the parent's store works as before")


async def _ended(ctx: Context, child: int) -> int:
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):  # noqa: ASYNC222  # WNOHANG waits for nothing
        await ctx.hold(0.001)
    return ended[1]


async def _cut(ctx: Context, work: "asyncio.Task[Any]", turns: int) -> bool:
    """Cancel a task after so many turns of the loop; gives whether it ended well all the same."""
    for _ in range(turns):
        await ctx.hold(0)
    work.cancel()
    await asyncio.wait([work])
    return not work.cancelled() and work.exception() is None


@row(
    "DUR-11",
    text="A write or commit that was cancelled landed as a whole or not at all, and never twice.",
    oracle="each batch has all its jobs or none; what answered is there",
    modes=("concurrent", "second"),
    kills=("commit-in-two-steps",),
)
async def a_cancelled_write_landed_whole_or_not_at_all(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()

    async def commit(name: str) -> None:
        async with mine.begin_tx() as tx:
            await tx.enqueue_batch(name, [1, 2, 3])
            await tx.publish_batch(name, [1, 2, 3])

    for number in range(60):
        plain, in_tx = f"plain {number}", f"tx {number}"
        turns = ctx.random.randrange(8)
        work = asyncio.create_task(mine.queue(plain).enqueue_batch([1, 2, 3]))
        answered = await _cut(ctx, work, turns)
        count = len(await other.queue(plain).list())
        ctx.that(count in ((3,) if answered else (0, 3)), "a batch lands whole or not at all", observed=count)
        answered = await _cut(ctx, asyncio.create_task(commit(in_tx)), turns)
        await ctx.settle()
        seen = (len(await other.queue(in_tx).list()), len(await other.stream(in_tx).read_since(0)))
        allowed = ((3, 3),) if answered else ((0, 0), (3, 3))
        ctx.that(seen in allowed, "a commit lands whole or not at all", observed=seen)


@row(
    "DUR-11",
    text="A write that raised DatabaseError may have landed, as a whole; it is never there twice.",
    oracle="after failures each batch has all its jobs or none",
    needs=("durable",),
)
async def a_failed_write_landed_whole_or_not_at_all(ctx: Context) -> None:
    store = ctx.store
    for fault in (Fault.COMMIT_FAILS, Fault.STORAGE_AWAY):
        name = fault.value
        async with broken(ctx, fault, store), ctx.refuses(DatabaseError, "a failed write is told"):
            await store.queue(name).enqueue_batch([1, 2, 3])
        seen = await ctx.soon(_counted(ctx, store, name), "the store recovers")
        ctx.among(seen, {"landed": 3, "did not land": 0}, "a failed write landed whole or not at all")


async def _counted(ctx: Context, store: Store, name: str) -> int:
    while True:
        try:
            return len(await store.queue(name).list())
        except DatabaseError:
            await ctx.hold(0.003)


@row(
    "DUR-11",
    text="True is returned only for a committed change.",
    oracle="after True another store sees the change; after False nothing changed",
    modes=("plain", "second", "reopen", "crash-kill"),
    kills=("heartbeat-answers-true-always",),
)
async def true_means_committed(ctx: Context) -> None:
    store = ctx.store
    await store.queue("q", visibility_timeout=10).enqueue(1)
    lapsed = await take(ctx, store.queue("q"))
    await ctx.advance(10)
    ctx.expect(await lapsed.heartbeat(), False, "a lapsed claim is not renewed")
    ctx.expect(await lapsed.ack(), False, "a lapsed claim does not ack")
    handle = await take(ctx, store.queue("q"))
    ctx.expect(await handle.heartbeat(60), True, "a live claim is renewed")
    ctx.expect(await store.stream("s").save_offset("c", 5), True, "a position moves forward")
    ctx.expect(await store.stream("s").save_offset("c", 4), False, "a position does not move back")
    other = await ctx.turn()
    job = await other.queue("q").get_job(handle.job.id)
    ctx.that(job and job.deadline and handle.job.deadline, "the job is there")
    assert job is not None
    assert job.deadline is not None
    ctx.expect((job.deadline - await ctx.now()).total_seconds(), 60.0, "what answered True is committed")
    ctx.expect(await other.stream("s").get_offset("c"), 5, "what answered True is committed")


@row(
    "DUR-12",
    text="While an operation waits for the storage other tasks of the loop run.",
    oracle="a task that takes a thousand turns of the loop at once while a transaction waits for another",
    modes=("concurrent", "second"),
    kills=("waiting-blocks-the-loop",),
)
async def other_tasks_run_while_one_waits(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    holder: Tx = await mine.begin_tx()
    await holder.read_from_consumer("events", "consumer")
    waiting = ctx.start(_write_after_it(other))
    for _ in range(3):
        await ctx.soon(_turn(ctx, 300), "other tasks run while one waits")
        ctx.still_waiting(waiting, "the other transaction waits")
    await holder.commit()
    await ctx.soon(waiting, "it goes on when the first one ends")
    ctx.expect((await look(mine)).jobs, 3, "and lands")


async def _turn(ctx: Context, times: int) -> None:
    for _ in range(times):
        await ctx.hold(0)


async def _write_after_it(store: Store) -> None:
    async with store.begin_tx() as tx:
        await tx.read_from_consumer("events", "consumer")
        await write_everything(tx)


@row(
    "DUR-12",
    text="A storage that is away holds up its own operations only.",
    oracle="a counter that rises while a write meets a storage that is away",
    needs=("durable",),
)
async def other_tasks_run_while_the_storage_is_away(ctx: Context) -> None:
    store = ctx.store
    async with broken(ctx, Fault.STORAGE_AWAY, store):
        writing = ctx.start(store.queue("q").enqueue(1))
        await ctx.soon(_turn(ctx, 300), "other tasks run while a storage is away")
    await asyncio.wait([writing])
    ctx.that(writing.exception() is None or isinstance(writing.exception(), DatabaseError), "it ends")
