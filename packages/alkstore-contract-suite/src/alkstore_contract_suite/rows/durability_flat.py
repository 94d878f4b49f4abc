"""DUR-08 and DUR-13: cancelling leaks nothing, and steady traffic leaves nothing behind."""

import asyncio
import gc
import threading
import warnings
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias, cast

from alkstore import AlkstoreError, JobState, LockTimeout, Store
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._queue import drain

CANCELLATIONS: Final = 1_000
SLACK: Final = 150
"""Objects by which a count may differ though nothing leaks: caches of the interpreter and of the test's own."""


TOGETHER: Final = 10
"""Rounds of steady traffic that go on at the same time."""


class Counting(Protocol):
    """A factory that can count: what a column with storage may add to `StoreFactory`."""

    async def footprint(self) -> int:
        """Count the rows of the storage, notification rows apart."""


def _left() -> tuple[int, int]:
    return len(asyncio.all_tasks()), threading.active_count()


def _objects() -> int:
    gc.collect()
    # What is gone is gone, even if a weak reference to it is still in a list: `sqlite3` sweeps that of its cursors only
    # once it has made 200 more.
    return sum(not (type(each) is weakref.ReferenceType and each() is None) for each in gc.get_objects())


async def _enqueue_all(ctx: Context, store: Store) -> object:
    await store.notify("c")
    return [await store.queue("q").enqueue(1), await store.stream("s").publish(1)]


async def _work_once(ctx: Context, store: Store) -> None:
    handle = await store.queue("q").claim_one()
    if handle is not None:
        async with handle:
            await ctx.hold(0)
            await store.stream("s").save_offset("c", handle.job.id)


async def _wait_and_release(ctx: Context, store: Store) -> None:
    handle = await store.queue("q").claim()
    if handle is not None:
        async with handle:
            await ctx.hold(0)
            await handle.release()


async def _whole_transaction(ctx: Context, store: Store) -> None:
    async with store.begin_tx() as tx:
        await tx.read_from_consumer("s", "tx")
        await ctx.hold(0)
        await tx.enqueue("q", 1)
        await tx.save_offset("s", "tx", 1 + await tx.get_offset("s", "tx"))
        await tx.notify("c")


async def _hold_lock(ctx: Context, store: Store) -> None:
    async with store.lock("l", 3_600):
        await ctx.hold(0)
        await store.queue("q").stats()


async def _subscribe(ctx: Context, store: Store) -> None:
    async with store.stream("s").subscribe(after=0) as events:
        await events.recv()
        await events.recv()


async def _receive(ctx: Context, store: Store) -> None:
    async with store.listen("c") as wakes, store.stream("s").subscribe("c", after=0) as events:
        await events.recv()
        await wakes.recv()


Work: TypeAlias = Callable[[Context, Store], Awaitable[object]]

WORK: Final[Sequence[Work]] = (
    _enqueue_all,
    _work_once,
    _wait_and_release,
    _whole_transaction,
    _hold_lock,
)


@row(
    "DUR-08",
    text="Cancelling any operation at any point leaks nothing: 1,000 random cancellations.",
    oracle="no lock, position, claim or job is stuck afterwards, and no task or thread is left",
    modes=("concurrent", "second"),
    needs=("listen",),
    kills=(
        "cancelled-block-keeps-its-claim",
        "cancelled-lock-wait-keeps-the-lock",
        "cancelled-tx-keeps-the-position",
    ),
    hints="an engine that awaits within a claim says Traits(batches=True), and core gives back what a cancelled one took",
)
async def cancelling_at_any_point_leaks_nothing(ctx: Context) -> None:
    await _storm(ctx, _receive, CANCELLATIONS)


@row(
    "DUR-08",
    text="The same where nobody listens: 200 random cancellations.",
    oracle="no lock, position, claim or job is stuck afterwards, and no task or thread is left",
    modes=("concurrent",),
    hints="an engine that awaits within a claim says Traits(batches=True), and core gives back what a cancelled one took",
)
async def cancelling_leaks_nothing_where_nobody_listens(ctx: Context) -> None:
    await _storm(ctx, _subscribe, CANCELLATIONS // 5)


async def _storm(ctx: Context, receive: Work, cancellations: int) -> None:
    mine, other = ctx.store, await ctx.turn()
    await mine.stream("s").publish(0)
    await _warm_up(ctx, mine, receive)
    await _warm_up(ctx, other, receive)
    before = _left()
    for _ in range(cancellations // 20):
        works = [ctx.random.choice((*WORK, receive)) for _ in range(20)]
        tasks = [asyncio.create_task(_done(ctx, work, (mine, other)[n % 2])) for n, work in enumerate(works)]
        for task in ctx.random.sample(tasks, len(tasks)):
            for _ in range(ctx.random.randrange(4)):
                await ctx.hold(0)
            task.cancel()
        await ctx.soon(asyncio.wait(tasks), "a cancelled operation ends")
        errors = {type(_raised(task)) for task in tasks if not task.cancelled()} - {type(None)}
        ctx.expect(errors, set(), "cancelling one operation breaks no other")
    await ctx.settle()
    ctx.expect(_left(), before, "no task and no thread is left")
    await _nothing_is_stuck(ctx, mine, other)


def _raised(task: "asyncio.Task[object]") -> BaseException | None:
    error = task.exception()
    if isinstance(error, NotImplementedError):
        raise error
    return error


async def _warm_up(ctx: Context, store: Store, receive: Work) -> None:
    """Have a store open what it opens at its first use only, a few threads that read say: that is no leak."""
    receiving = ctx.start(_done(ctx, receive, store))
    await ctx.race(*(store.queue("q").stats() for _ in range(20)))
    await ctx.settle()
    receiving.cancel()
    await asyncio.wait((receiving,))
    await ctx.settle()


async def _done(ctx: Context, work: Work, store: Store) -> object:
    return await work(ctx, store)


async def _any(work: Awaitable[object]) -> object:
    return await work


async def _nothing_is_stuck(ctx: Context, mine: Store, other: Store) -> None:
    # No time has passed, so a claim that nobody gave back would still be live.
    states = {job.state for job in await other.queue("q").list(limit=5_000)}
    ctx.that(states <= {JobState.PENDING}, "no claim is stuck", observed=states)
    lock = await other.try_lock("l", 5)
    ctx.that(lock and await lock.release(), "no lock is stuck")
    position = await mine.stream("s").get_offset("tx")
    await ctx.soon(_whole_transaction(ctx, mine), "no position is stuck")
    ctx.expect(await other.stream("s").get_offset("tx"), position + 1, "a transaction lands as before")
    waiting = len(await other.queue("q").list(limit=5_000))
    found = await ctx.soon(drain(mine.queue("q")), "the queue is drained")
    ctx.expect(len(found), waiting, "every job can be claimed")
    waiter = ctx.start(other.queue("q").claim())
    await ctx.settle()
    id = await mine.queue("q").enqueue("last")
    handle = await ctx.soon(waiter, "no waiter is lost")
    ctx.expect(handle and handle.job.id, id, "no waiter is lost")


async def _close_receivers(ctx: Context, store: Store) -> None:
    async with store.listen("idle") as wakes, store.stream("idle").subscribe("c") as events:
        ctx.that(await wakes.try_recv() is None and await events.try_recv() is None, "nothing is there")


async def _time_out(ctx: Context, store: Store) -> None:
    async with store.listen("idle") as wakes:
        await wakes.recv_timeout(0)
    await store.queue("idle").claim(timeout=0)
    try:
        await store.lock("held", 5, timeout=0)
    except LockTimeout:
        return


async def _cancel(ctx: Context, store: Store) -> None:
    wakes, events = await store.listen("idle"), await store.stream("idle").subscribe()
    works: list[Awaitable[Any]] = [wakes.recv(), events.recv(), store.queue("idle").claim()]
    tasks = [asyncio.create_task(_any(work)) for work in (*works, store.lock("held", 5))]
    await ctx.hold(0)
    await ctx.hold(0)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await wakes.aclose()
    await events.aclose()


async def _drop(ctx: Context, store: Store) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        _ = [await store.listen("idle"), await store.stream("idle").subscribe("c")]
        del _


@row(
    "DUR-08",
    text="1,000 receivers, subscriptions, waiting claims and lock waits, however they end, leave all counts flat.",
    oracle="tasks, threads and objects after the thousandth as after the hundredth",
    needs=("listen",),
    kills=("receivers-are-never-forgotten", "waiting-claims-are-never-forgotten"),
)
async def waits_that_ended_leave_nothing(ctx: Context) -> None:
    store = ctx.store
    held = await store.try_lock("held", 3_600)
    counts = []
    for rounds in (25, 225):
        for _ in range(rounds):
            for end in (_close_receivers, _time_out, _cancel, _drop):
                await end(ctx, store)
        await ctx.settle()
        ctx.timeline.clear()
        counts.append((_left(), _objects()))
    (left, objects), (left_later, objects_later) = counts
    ctx.expect(left_later, left, "no task and no thread is left by what waited")
    grown = objects_later - objects
    ctx.that(grown <= SLACK, "memory is flat, however many waited", observed=f"{grown} objects more")
    ctx.expect(await held.release() if held else None, True, "the store works as before")


@row(
    "DUR-13",
    text="Steady traffic on the same names leaves no more rows after the thousandth round than after the hundredth.",
    oracle="rows in storage, or objects in memory, after 100 and after 1,000 rounds",
    modes=("plain", "second"),
    kills=("freed-locks-are-kept", "acked-jobs-are-kept"),
    hints="`footprint` of the factory counts rows but for those that carry wakes; storage that ends with the process has objects",
)
async def steady_traffic_leaves_nothing_behind(ctx: Context) -> None:
    if ctx.claims.has("durable") and not hasattr(ctx.factory, "footprint"):
        # The objects of this process would be flat whatever the storage keeps.
        ctx.skip_inconclusive("the factory of an engine with 'durable' must have footprint()")
    store, other = ctx.store, await ctx.turn()
    await store.schedule("s", "@every 1s", "fired", None)
    counts = []
    done = 0
    for rounds in (100, 1_000):
        while done < rounds:
            # At once, each with a lock and a consumer of its own: one after the other a thousand take seconds.
            await asyncio.gather(*(_one_round(store, other, number) for number in range(TOGETHER)))
            await _among_rounds(ctx, store, other)
            done += TOGETHER
        ctx.timeline.clear()
        counts.append(await _footprint(ctx))
    slack, what = (
        (0, "rows in storage") if hasattr(ctx.factory, "footprint") else (SLACK, "objects in memory")
    )
    grown = f"{counts[0]} {what} after 100 rounds, {counts[1]} after 1,000"
    ctx.that(counts[1] <= counts[0] + slack, "steady traffic leaves nothing behind", observed=grown)
    stats = await other.queue("q").stats()
    ctx.expect((stats.ready, stats.processing, stats.dead), (0, 0, 0), "all the work was done")


async def _one_round(store: Store, other: Store, number: int) -> None:
    await store.notify("c", number)
    await store.queue("q").enqueue(number)
    handle = await other.queue("q").claim_one()
    if handle is None or not await handle.ack():
        raise AlkstoreError("there are as many jobs as rounds that claim one, and the claim is live")
    offset = await store.stream("s").publish(number)
    await other.stream("s").save_offset(f"c{number}", offset)
    await store.stream("s").trim_to(offset)
    lock = await store.try_lock(f"l{number}", 5)
    if lock is None or not await lock.release():
        raise AlkstoreError("a lock that was released is free")


async def _among_rounds(ctx: Context, store: Store, other: Store) -> None:
    async with store.begin_tx() as tx:
        await tx.notify("c")
        await tx.publish("s", 0)
    await ctx.advance(1)
    await other.tick_schedules()
    for fired in await store.queue("fired").claim_batch(5):
        await fired.ack()
    await store.stream("s").trim_to(2**63 - 1)


async def _footprint(ctx: Context) -> int:
    if hasattr(ctx.factory, "footprint"):
        return await cast(Counting, ctx.factory).footprint()
    return _objects()
