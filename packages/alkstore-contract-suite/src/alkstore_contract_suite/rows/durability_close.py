"""DUR-06: what a close ends, what it leaves, and that nothing works afterwards."""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from alkstore import (
    Closed,
    EventReceiver,
    InvalidArgument,
    InvalidName,
    JobHandle,
    JobState,
    Lock,
    StopToken,
    Store,
    StreamEvent,
    Tx,
    WakeReceiver,
)
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._accepting import accepts
from alkstore_contract_suite.rows._entry_points import SPEC
from alkstore_contract_suite.rows._queue import read, take
from alkstore_contract_suite.rows._transaction import NOTHING, TX_OPERATIONS, look, write_everything


class Bench(NamedTuple):
    """One of everything that comes from a store."""

    store: Store
    handle: JobHandle
    lock: Lock
    tx: Tx
    wakes: WakeReceiver
    events: EventReceiver
    event: StreamEvent


async def _bench(ctx: Context) -> Bench:
    store = ctx.store
    await store.queue("q", visibility_timeout=3_600).enqueue("held")
    handle = await take(ctx, store.queue("q"))
    lock = await store.try_lock("held", 3_600)
    assert lock is not None
    wakes, events = await store.listen("c"), await store.stream("s").subscribe("c", after=0)
    await store.stream("s").publish_batch([1, 2])
    await store.notify("c")
    (event,) = await store.stream("s").read_since(0, 1)
    return Bench(store, handle, lock, await store.begin_tx(), wakes, events, event)


async def _deliver(_: object) -> None:
    """Deliver an entry that is never there."""


async def _entered(b: Bench) -> None:
    async with b.store.lock("free", 5):
        return


async def _begin(b: Bench) -> None:
    async with b.store.begin_tx():
        return


async def _listen(b: Bench) -> None:
    async with b.store.listen("c"):
        return


async def _subscribe(b: Bench) -> None:
    async with b.store.stream("s").subscribe():
        return


async def _hold(b: Bench) -> None:
    async with b.handle.hold():
        return


async def _handle_block(b: Bench) -> None:
    async with b.handle:
        return


async def _lock_block(b: Bench) -> None:
    async with b.lock:
        return


async def _join(b: Bench) -> None:
    async with b.store.join(object()):
        return


OPERATIONS: Final[Mapping[str, Callable[[Bench], Awaitable[object]]]] = {
    "queues": lambda b: b.store.queues(),
    "streams": lambda b: b.store.streams(),
    "outboxes": lambda b: b.store.outboxes(),
    "schedules": lambda b: b.store.schedules(),
    "locks": lambda b: b.store.locks(),
    "notify": lambda b: b.store.notify("c"),
    "listen": _listen,
    "try_lock": lambda b: b.store.try_lock("free", 5),
    "lock": _entered,
    "begin_tx": _begin,
    "schedule": lambda b: b.store.schedule("s", SPEC, "q", 1),
    "unschedule": lambda b: b.store.unschedule("s"),
    "tick_schedules": lambda b: b.store.tick_schedules(),
    "enqueue": lambda b: b.store.queue("q").enqueue(1),
    "enqueue_batch": lambda b: b.store.queue("q").enqueue_batch([1]),
    "claim_one": lambda b: b.store.queue("q").claim_one(),
    "claim_batch": lambda b: b.store.queue("q").claim_batch(2),
    "claim": lambda b: b.store.queue("q").claim(timeout=0),
    "claim for ever": lambda b: b.store.queue("q").claim(),
    "run_once": lambda b: b.store.queue("q").run_once(_deliver),
    "get_job": lambda b: b.store.queue("q").get_job(1),
    "list": lambda b: b.store.queue("q").list(),
    "stats": lambda b: b.store.queue("q").stats(),
    "sweep_expired": lambda b: b.store.queue("q").sweep_expired(),
    "cancel": lambda b: b.store.queue("q").cancel(1),
    "redrive": lambda b: b.store.queue("q").redrive(1),
    "purge_dead": lambda b: b.store.queue("q").purge_dead(older_than=0),
    "publish": lambda b: b.store.stream("s").publish(1),
    "publish_batch": lambda b: b.store.stream("s").publish_batch([1]),
    "read_since": lambda b: b.store.stream("s").read_since(0),
    "read_from_consumer": lambda b: b.store.stream("s").read_from_consumer("c"),
    "save_offset": lambda b: b.store.stream("s").save_offset("c", 1),
    "reset_offset": lambda b: b.store.stream("s").reset_offset("c", 1),
    "get_offset": lambda b: b.store.stream("s").get_offset("c"),
    "subscribe": _subscribe,
    "trim_to": lambda b: b.store.stream("s").trim_to(1),
    "head": lambda b: b.store.stream("s").head(),
    "consumers": lambda b: b.store.stream("s").consumers(),
    "Outbox.enqueue": lambda b: b.store.outbox("o").enqueue(1),
    "Outbox.run_once": lambda b: b.store.outbox("o").run_once(_deliver),
    "Outbox.run": lambda b: b.store.outbox("o").run(_deliver, stop=StopToken()),
    "Outbox.jobs.list": lambda b: b.store.outbox("o").jobs.list(),
    "ack": lambda b: b.handle.ack(),
    "retry": lambda b: b.handle.retry(),
    "fail": lambda b: b.handle.fail(),
    "release": lambda b: b.handle.release(),
    "heartbeat": lambda b: b.handle.heartbeat(),
    "Lock.renew": lambda b: b.lock.renew(5),
    "Lock.release": lambda b: b.lock.release(),
    "hold": _hold,
    "a handle's block": _handle_block,
    "a lock's block": _lock_block,
    "join": _join,
    "run_schedules": lambda b: b.store.run_schedules(StopToken()),
    "supervise_schedules": lambda b: b.store.supervise_schedules(StopToken()),
    "Tx.ack": lambda b: b.tx.ack(b.handle),
    "WakeReceiver.try_recv": lambda b: b.wakes.try_recv(),
    "WakeReceiver.recv_timeout": lambda b: b.wakes.recv_timeout(1),
    "EventReceiver.try_recv": lambda b: b.events.try_recv(),
    "EventReceiver.save": lambda b: b.events.save(b.event),
}
"""Every operation on the store and on all that came from it, those of a transaction apart."""


@row(
    "DUR-06",
    text="From the close on every operation on the store and on all that came from it is Closed.",
    oracle="Closed from every one of them; receivers give None or nothing, again and again; arguments come first",
    needs=("listen",),
    kills=("closed-store-still-writes", "ended-tx-still-writes", "closed-store-still-runs"),
)
async def everything_of_a_closed_store_is_closed(ctx: Context) -> None:
    b = await _bench(ctx)
    await b.store.aclose()
    for label, call in OPERATIONS.items():
        async with ctx.refuses(Closed, f"{label} on a closed store is Closed"):
            await ctx.soon(call(b), f"{label} on a closed store ends at once")
    for label, call_in in TX_OPERATIONS.items():
        async with ctx.refuses(Closed, f"Tx.{label} on a closed store is Closed"):
            await call_in(b.tx)
    for _ in range(3):
        got = (await b.wakes.recv(), await b.events.recv(), await b.events.recv_page())
        ctx.expect(got, (None, None, []), "a receiver of a closed store gives nothing, again and again")
    ctx.expect([event async for event in b.events], [], "async for over it ends")
    ctx.expect([handle async for handle in b.store.queue("q").claims()], [], "claims() ends")
    async with ctx.refuses(InvalidName, "names are checked before the close is"):
        await b.store.notify(" ")
    async with ctx.refuses(InvalidArgument, "arguments are checked before the close is"):
        await b.store.try_lock("l", 0)
    async with ctx.refuses(InvalidArgument, "arguments are checked before the close is"):
        await b.store.queue("q").enqueue(1, max_attempts=0)


@row(
    "DUR-06",
    text="A close ends every wait.",
    oracle="waiting claims and locks are Closed, receivers None, claims() and runners end, all at once",
    needs=("listen",),
    kills=("close-leaves-claims-waiting", "close-leaves-receivers-waiting"),
)
async def a_close_ends_every_wait(ctx: Context) -> None:
    store = ctx.store
    await store.try_lock("l", 3_600)
    holding = await store.begin_tx()
    await holding.read_from_consumer("s", "held")
    stop = StopToken()
    waits: dict[str, tuple[asyncio.Task[object], object]] = {
        "claim": (ctx.start(store.queue("q").claim()), Closed),
        "claims()": (ctx.start(_collect(store)), []),
        "lock": (ctx.start(_lock(store)), Closed),
        "recv": (ctx.start(_receive(store)), (None, None)),
        "outbox runner": (ctx.start(store.outbox("o").run(_deliver, stop=stop)), None),
        "scheduler": (ctx.start(store.run_schedules(stop)), None),
        "standby": (ctx.start(store.supervise_schedules(stop)), None),
        "transaction": (ctx.start(_wait_for_position(store)), Closed),
    }
    await ctx.settle()
    for label, (task, _) in waits.items():
        ctx.still_waiting(task, f"{label} waits until the close")
    await ctx.soon(store.aclose(), "a close ends")
    for label, (task, wanted) in waits.items():
        await ctx.soon(asyncio.wait([task]), f"the close ends the wait of {label}")
        error = None if task.cancelled() else task.exception()
        ended = type(error) if error is not None else task.result()
        ctx.expect(ended, wanted, f"the close ends the wait of {label} as promised")


async def _collect(store: Store) -> list[JobHandle]:
    return [handle async for handle in store.queue("q").claims()]


async def _lock(store: Store) -> None:
    async with store.lock("l", 5):
        return


async def _receive(store: Store) -> tuple[object, object]:
    async with store.listen("c") as wakes, store.stream("s").subscribe() as events:
        got = asyncio.gather(wakes.recv(), events.recv())
        first, second = await got
        return first, second


async def _wait_for_position(store: Store) -> None:
    async with store.begin_tx() as tx:
        await tx.read_from_consumer("s", "held")


@row(
    "DUR-06",
    text="A close rolls open transactions back, and leaves held claims and locks to lapse.",
    oracle="another store sees nothing of the transaction, the claim and the lock until their ends",
    modes=("second", "reopen"),
)
async def a_close_leaves_claims_and_locks_to_lapse(ctx: Context) -> None:
    first = ctx.store
    await first.queue("q", visibility_timeout=60).enqueue("held")
    held = await take(ctx, first.queue("q"))
    await first.try_lock("l", 60)
    tx = await first.begin_tx()
    await write_everything(tx)
    other = await ctx.turn()
    await first.aclose()
    seen = await ctx.soon(look(other), "nothing is held back any more")
    ctx.expect(seen._replace(acked=False), NOTHING, "an open transaction is rolled back")
    ctx.expect((await read(ctx, other.queue("q"), held.job.id)).state, JobState.PROCESSING, "a claim stays")
    ctx.expect(await other.try_lock("l", 1), None, "a lock stays")
    await ctx.advance(60)
    ctx.expect((await take(ctx, other.queue("q"))).job.attempts, 2, "the claim lapses")
    ctx.that(await other.try_lock("l", 1), "the lock lapses")


@row(
    "DUR-06",
    text="A job claimed but not yet handed over is released; runners give up their lease.",
    oracle="a job that came with the close is with its waiter or as if never claimed; another runner leads at once",
    modes=("second", "reopen"),
)
async def a_close_gives_back_what_nobody_got(ctx: Context) -> None:
    first = ctx.store
    waiting = ctx.start(first.queue("q").claim())
    stop = StopToken()
    runner = ctx.start(first.run_schedules(stop))
    await ctx.settle()
    job_id = await first.queue("q").enqueue(1)
    await first.aclose()
    await ctx.soon(asyncio.wait([waiting, runner]), "the waits end")
    other = await ctx.turn()
    job = await read(ctx, other.queue("q"), job_id)
    got = waiting.exception() is None
    seen = (got, job.state, job.attempts)
    allowed = {"handed over": (True, JobState.PROCESSING, 1), "given back": (False, JobState.PENDING, 0)}
    ctx.among(seen, allowed, "a job is with its waiter, or as if never claimed")
    leading = ctx.start(other.run_schedules(stop))
    await ctx.idle(leading, "the lease is free for the next runner at once")
    stop.cancel()
    await ctx.soon(leading, "the next runner stops")


@row(
    "DUR-06",
    text="Operations already handed to the storage finish.",
    oracle="each enqueue that was under way gave an id or Closed, and exactly those with an id are stored",
    modes=("second", "reopen"),
)
async def what_was_handed_over_finishes(ctx: Context) -> None:
    first = ctx.store
    tasks = [ctx.start(first.queue("q").enqueue(number)) for number in range(40)]
    await ctx.hold(0)
    await ctx.soon(first.aclose(), "a close ends")
    await ctx.soon(asyncio.wait(tasks), "what was under way ends")
    errors = {type(task.exception()) for task in tasks} - {type(None), Closed}
    ctx.expect(errors, set(), "what was under way finishes or is Closed")
    ids = sorted(task.result() for task in tasks if task.exception() is None)
    stored = [job.id for job in await (await ctx.turn()).queue("q").list()]
    ctx.expect(stored, ids, "what answered is stored, and nothing else")


@row(
    "DUR-06",
    text="Closing twice, or from two tasks, is fine; a store that was never used closes too.",
    oracle="no error, and every close returns",
    modes=("concurrent",),
    needs=("listen",),
    kills=("second-close-fails",),
)
async def closing_twice_is_fine(ctx: Context) -> None:
    b = await _bench(ctx)
    with accepts(ctx, "closing twice is fine"):
        await ctx.soon(ctx.race(*(b.store.aclose() for _ in range(5))), "closing from several tasks ends")
        await ctx.soon(b.store.aclose(), "closing again ends")
    for receiver in (b.wakes, b.events):
        await ctx.soon(receiver.aclose(), "closing what came from a closed store is fine")
    unused = await ctx.factory.open_with()
    await ctx.soon(unused.aclose(), "an unused store closes")


@row(
    "DUR-06",
    text="After a close no task, thread, connection or file handle is left.",
    oracle="counts before the first store and after the last close",
    needs=("listen",),
    kills=("close-leaves-a-task",),
)
async def a_close_leaves_nothing_behind(ctx: Context) -> None:
    await _busy_store(ctx)
    before = _left(ctx)
    for _ in range(5):
        await _busy_store(ctx)
    ctx.expect(_left(ctx), before, "a close leaves no task, thread or file handle")


async def _busy_store(ctx: Context) -> None:
    store = await ctx.factory.open_with()
    stop = StopToken()
    async with store.listen("c"), store.stream("s").subscribe():
        await store.queue("q").enqueue(1, delay=60)
        waits = [
            asyncio.create_task(store.queue("q").claim()),
            asyncio.create_task(store.supervise_schedules(stop)),
            asyncio.create_task(store.outbox("o").run(_deliver, stop=stop)),
        ]
        tx = await store.begin_tx()
        await tx.notify("c")
        await ctx.settle()
        await store.aclose()
        await ctx.soon(asyncio.wait(waits), "the close ends what waits")
        ctx.that(isinstance(waits[0].exception(), Closed), "a waiting claim is Closed")


def _left(ctx: Context) -> tuple[int, int, int]:
    files = "/proc/self/fd"
    handles = len(os.listdir(files)) if os.path.isdir(files) else 0
    return len(asyncio.all_tasks()), threading.active_count(), handles
