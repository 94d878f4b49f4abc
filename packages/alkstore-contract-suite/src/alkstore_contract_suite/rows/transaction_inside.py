"""TX-07: what a task may do beside its own open transaction."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Final, NamedTuple

from alkstore import (
    DatabaseError,
    InsideTransaction,
    InvalidArgument,
    JobHandle,
    Lock,
    StopToken,
    Store,
    outside_tx,
)
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._accepting import accepts
from alkstore_contract_suite.rows._entry_points import SPEC
from alkstore_contract_suite.rows._queue import bury, take
from alkstore_contract_suite.rows._transaction import begun


class Bench(NamedTuple):
    """A claim and a lock from before the transaction, and a dead job."""

    store: Store
    handle: JobHandle
    lock: Lock
    dead: int


async def _bench(ctx: Context) -> Bench:
    store = ctx.store
    dead = await bury(ctx, store.queue("q"))
    await store.queue("q", visibility_timeout=3_600).enqueue("held")
    handle = await take(ctx, store.queue("q"))
    await store.queue("q").enqueue("ready")
    await store.stream("s").publish(1)
    lock = await store.try_lock("held", 3_600)
    assert lock is not None
    return Bench(store, handle, lock, dead)


async def _deliver(_: object) -> None:
    """Deliver an entry that is never there."""


async def _block_lock(b: Bench) -> None:
    async with b.store.lock("free", 5, timeout=0):
        return


async def _begin(b: Bench) -> None:
    async with b.store.begin_tx():
        return


async def _claims(b: Bench) -> None:
    async for _ in b.store.queue("q").claims():
        return


async def _run(b: Bench) -> None:
    await b.store.outbox("o").run(_deliver, stop=StopToken())


async def _save(b: Bench) -> None:
    (event,) = await b.store.stream("s").read_since(0)
    async with b.store.stream("s").subscribe("c") as events:
        await events.save(event)


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


WRITES: Final[Mapping[str, Callable[[Bench], Awaitable[object]]]] = {
    "Queue.enqueue": lambda b: b.store.queue("q").enqueue(1),
    "Queue.enqueue_batch": lambda b: b.store.queue("q").enqueue_batch([1]),
    "Outbox.enqueue": lambda b: b.store.outbox("o").enqueue(1),
    "Stream.publish": lambda b: b.store.stream("s").publish(1),
    "Stream.publish_batch": lambda b: b.store.stream("s").publish_batch([1]),
    "Stream.save_offset": lambda b: b.store.stream("s").save_offset("c", 1),
    "Stream.reset_offset": lambda b: b.store.stream("s").reset_offset("c", 1),
    "Stream.trim_to": lambda b: b.store.stream("s").trim_to(1),
    "Store.notify": lambda b: b.store.notify("c"),
    "Store.schedule": lambda b: b.store.schedule("new", SPEC, "q", 1),
    "Store.unschedule": lambda b: b.store.unschedule("new"),
    "Store.tick_schedules": lambda b: b.store.tick_schedules(),
    "Queue.claim_one": lambda b: b.store.queue("q").claim_one(),
    "Queue.claim_batch": lambda b: b.store.queue("q").claim_batch(1),
    "Queue.claim": lambda b: b.store.queue("q").claim(timeout=0),
    "Queue.claims": _claims,
    "Queue.run_once": lambda b: b.store.queue("q").run_once(_deliver),
    "Outbox.run_once": lambda b: b.store.outbox("o").run_once(_deliver),
    "Outbox.run": _run,
    "Outbox.jobs.redrive": lambda b: b.store.outbox("o").jobs.redrive(1),
    "Store.run_schedules": lambda b: b.store.run_schedules(StopToken()),
    "Store.supervise_schedules": lambda b: b.store.supervise_schedules(StopToken()),
    "EventReceiver.save": _save,
    "JobHandle.hold": _hold,
    "a handle's block": _handle_block,
    "a lock's block": _lock_block,
    "JobHandle.ack": lambda b: b.handle.ack(),
    "JobHandle.retry": lambda b: b.handle.retry(),
    "JobHandle.fail": lambda b: b.handle.fail(),
    "JobHandle.release": lambda b: b.handle.release(),
    "JobHandle.heartbeat": lambda b: b.handle.heartbeat(),
    "Queue.cancel": lambda b: b.store.queue("q").cancel(b.dead + 1_000),
    "Queue.redrive": lambda b: b.store.queue("q").redrive(b.dead),
    "Queue.purge_dead": lambda b: b.store.queue("q").purge_dead(older_than=0),
    "Queue.sweep_expired": lambda b: b.store.queue("q").sweep_expired(),
    "Store.try_lock": lambda b: b.store.try_lock("free", 5),
    "Store.lock": _block_lock,
    "Lock.renew": lambda b: b.lock.renew(5),
    "Lock.release": lambda b: b.lock.release(),
    "Store.begin_tx": _begin,
    "Store.join": _join,
}
"""Everything that commits by itself, and a second transaction."""

TWINS: Final = {
    "Queue.enqueue": "enqueue",
    "Queue.enqueue_batch": "enqueue_batch",
    "Outbox.enqueue": "outbox_enqueue",
    "Stream.publish": "publish",
    "Stream.publish_batch": "publish_batch",
    "Stream.save_offset": "save_offset",
    "Store.notify": "notify",
    "JobHandle.ack": "ack",
    "EventReceiver.save": "save",
}
"""What has a twin in a transaction, and its name."""

READS: Final[Mapping[str, Callable[[Bench], Awaitable[object]]]] = {
    "Queue.get_job": lambda b: b.store.queue("q").get_job(b.dead),
    "Queue.list": lambda b: b.store.queue("q").list(),
    "Queue.stats": lambda b: b.store.queue("q").stats(),
    "Stream.read_since": lambda b: b.store.stream("s").read_since(0),
    "Stream.read_from_consumer": lambda b: b.store.stream("s").read_from_consumer("c"),
    "Stream.get_offset": lambda b: b.store.stream("s").get_offset("c"),
    "Stream.head": lambda b: b.store.stream("s").head(),
    "Stream.consumers": lambda b: b.store.stream("s").consumers(),
    "Store.queues": lambda b: b.store.queues(),
    "Store.streams": lambda b: b.store.streams(),
    "Store.outboxes": lambda b: b.store.outboxes(),
    "Store.schedules": lambda b: b.store.schedules(),
    "Store.locks": lambda b: b.store.locks(),
}


async def _looks(b: Bench) -> list[object]:
    return [await read(b) for read in READS.values()]


@row(
    "TX-07",
    text="In the task that last used an open tx whatever commits by itself is InsideTransaction, at once.",
    oracle="the error from every such operation, naming the twin; nothing done; the transaction lands",
    needs=("listen",),
    kills=("writes-beside-the-tx-are-let-through", "runners-pass-beside-the-tx"),
)
async def a_write_beside_the_own_transaction_is_refused(ctx: Context) -> None:
    b = await _bench(ctx)
    async with b.store.listen("c") as wakes:
        before = await _looks(b)
        async with b.store.begin_tx() as tx:
            for label, call in WRITES.items():
                async with ctx.refuses(
                    InsideTransaction, f"{label} beside the own transaction is refused"
                ) as caught:
                    await ctx.soon(call(b), f"{label} is refused at once")
                twin = caught.error.twin
                if label in TWINS:
                    ctx.that(
                        twin and TWINS[label] in twin, f"the error of {label} names its twin", observed=twin
                    )
            ctx.expect(await _looks(b), before, "what was refused did nothing")
            await tx.enqueue("control", 1)
        ctx.expect(await wakes.try_recv(), None, "what was refused wakes nobody")
    ctx.expect(len(await b.store.queue("control").list()), 1, "the transaction stays usable and lands")
    ctx.expect(await b.handle.ack(), True, "the handle is open, and after the transaction it acks")
    ctx.expect(await b.lock.release(), True, "the lock is held, and after the transaction it is released")


@row(
    "TX-07",
    text="Reads, listen and subscribe work there and see committed state.",
    oracle="every read gives the same as before the transaction's writes",
    needs=("listen",),
)
async def reads_beside_the_own_transaction_see_what_is_committed(ctx: Context) -> None:
    b = await _bench(ctx)
    before = await _looks(b)
    async with b.store.begin_tx() as tx:
        await tx.enqueue("q", "mine")
        await tx.publish("s", "mine")
        await tx.save_offset("s", "c", 1)
        ctx.expect(await _looks(b), before, "reads see committed state")
        async with b.store.listen("channel") as wakes, b.store.stream("s").subscribe(after=0) as events:
            event = await ctx.soon(events.recv(), "a subscription reads what is committed")
            ctx.expect(event and event.payload, 1, "a subscription reads what is committed")
            ctx.expect((await events.try_recv(), await wakes.try_recv()), (None, None), "and nothing else")
            await tx.notify("channel")
            await tx.commit()
            event = await ctx.soon(events.recv(), "the commit reaches the subscription")
            ctx.expect(event and event.payload, "mine", "the commit reaches the subscription")
            ctx.that(await ctx.soon(wakes.recv(), "the commit reaches the receiver"), "it wakes")


@row(
    "TX-07",
    text="The task that last used the tx is judged, wherever it began; once it ended nobody is.",
    oracle="the user is refused, whoever began it; after the end every write passes",
)
async def the_task_that_used_it_last_is_judged(ctx: Context) -> None:
    store = ctx.store
    tx = await begun(store)

    async def use() -> None:
        await tx.enqueue("q", "mine")
        async with ctx.refuses(InsideTransaction, "who used the transaction last is refused"):
            await store.queue("q").enqueue("refused")
        await tx.commit()
        await store.queue("q").enqueue("after")

    await ctx.soon(ctx.start(use()), "nobody waits")
    await store.notify("c")
    payloads = [job.payload for job in await store.queue("q").list()]
    ctx.expect(payloads, ["mine", "after"], "after the end of the transaction writes pass")


@row(
    "TX-07",
    text="Sibling tasks are never blamed: they go on, or wait for the end.",
    oracle="writes of tasks begun before and inside the transaction land, none with InsideTransaction",
    modes=("concurrent", "second"),
    kills=("siblings-are-blamed",),
)
async def a_sibling_is_never_blamed(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    handle_id = await mine.queue("held").enqueue("held")
    handle = await take(ctx, mine.queue("held"))

    async def sibling() -> list[object]:
        return [
            await mine.queue("q").enqueue("sibling"),
            await mine.stream("s").publish("sibling"),
            await mine.stream("s").save_offset(ctx.name("consumer"), 1),
            await handle.heartbeat(),
            await mine.try_lock(ctx.name("lock"), 5) is not None,
        ]

    before = ctx.start(sibling())
    async with mine.begin_tx() as tx:
        await tx.enqueue("q", "mine")
        inside = ctx.start(sibling())
        await ctx.settle()
        await tx.enqueue("q", "mine")
    for each in (before, inside):
        with accepts(ctx, "a sibling is never blamed"):
            done = await ctx.soon(each, "a sibling's writes land")
        ctx.expect(done[2:], [True, True, True], "a sibling's saves, settles and locks land")
    payloads = sorted(str(job.payload) for job in await other.queue("q").list())
    ctx.expect(payloads, ["mine", "mine", "sibling", "sibling"], "everybody's writes land")
    ctx.that(await other.queue("held").get_job(handle_id), "the held job is still there")


@row(
    "TX-07",
    text="outside_tx allows such a write where the engine can.",
    oracle="the write lands and stays though the transaction rolls back, or InvalidArgument says that it cannot",
    kills=("outside-tx-does-nothing",),
    hints="an engine on which a write waits for any open transaction says Traits(outside_tx=False)",
)
async def outside_tx_allows_a_write_beside_it(ctx: Context) -> None:
    store = ctx.store
    async with store.begin_tx() as tx:
        await tx.enqueue("q", "inside")
        try:
            with outside_tx():
                await ctx.soon(
                    store.queue("q").enqueue("outside"), "a write outside the transaction ends at once"
                )
        except InvalidArgument as error:
            ctx.that(not isinstance(error, InsideTransaction), "the refusal is not InsideTransaction")
            landed = False
        except InsideTransaction:
            ctx.fail("outside_tx lifts the check", "a write or InvalidArgument", "InsideTransaction")
        else:
            landed = True
        async with ctx.refuses(InsideTransaction, "after the block it is refused again"):
            await store.queue("q").enqueue("refused")
        await tx.rollback()
    payloads = [job.payload for job in await store.queue("q").list()]
    allowed = {"can write beside it": (True, ["outside"]), "cannot": (False, [])}
    ctx.among((landed, payloads), allowed, "a write outside the transaction is its own")


@row(
    "TX-07",
    text="A write awaited through a child task is taken for a sibling's: it lands, or waits at most wait_timeout.",
    oracle="the write is there, or DatabaseError and it is not; never InsideTransaction; the transaction lands",
    modes=("concurrent",),
    kills=("siblings-are-blamed",),
)
async def a_write_through_a_child_task_lands_or_gives_up(ctx: Context) -> None:
    async with aclosing(await ctx.factory.open_with(wait_timeout=0.003)) as store:
        async with store.begin_tx() as tx:
            await tx.enqueue("q", "mine")
            writing = asyncio.gather(store.queue("q").enqueue("child"), return_exceptions=True)
            (outcome,) = await ctx.soon(writing, "a child task's write ends in time")
            blamed = isinstance(outcome, BaseException) and not isinstance(outcome, DatabaseError)
            ctx.that(not blamed, "a child task's write is not blamed", observed=outcome)
        payloads = sorted(str(job.payload) for job in await store.queue("q").list())
        allowed = {"it lands": (True, ["child", "mine"]), "it gives up": (False, ["mine"])}
        ctx.among(
            (isinstance(outcome, int), payloads),
            allowed,
            "a child task's write lands, or gives up and leaves nothing",
        )
