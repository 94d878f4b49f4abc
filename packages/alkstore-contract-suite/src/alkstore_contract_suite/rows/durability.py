"""DUR-01 to DUR-05, DUR-09 and DUR-10: what outlives a store, and what storage may do to it."""

import asyncio
from typing import Any, Final

from alkstore import DatabaseError, InvalidArgument, SchemaMismatch, Store
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.factory import Fault
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._entry_points import SPEC
from alkstore_contract_suite.rows._queue import bury, read, seconds, take
from alkstore_contract_suite.rows._receiving import broken

OUTLIVES: Final = ("reopen", "crash-drop", "crash-kill")


async def _fill(ctx: Context, store: Store) -> None:
    """Leave something of every kind, in every state."""
    queue = store.queue("q", visibility_timeout=3_600)
    await bury(ctx, queue, {"dead": 1})
    await queue.enqueue("held", headers={"h": "1"})
    await take(ctx, queue)
    await queue.enqueue("retried")
    await (await take(ctx, queue)).retry(error="again", delay=60)
    await queue.enqueue_batch(["ready", None], priority=7)
    await queue.enqueue("delayed", delay=1e6, expires=2e6)
    await store.outbox("o").enqueue(1)
    stream = store.stream("s")
    await stream.publish_batch([1, 2, 3], keys=["a", None, "b"])
    await stream.trim_to(1)
    await stream.save_offset("c", 2)
    await store.schedule("sched", SPEC, "q", {"p": 1}, priority=3)
    for _ in range(2):
        lock = await store.try_lock("freed", 60)
        assert lock is not None
        await lock.release()
    await store.try_lock("held", 3_600)


async def _contents(store: Store) -> dict[str, Any]:
    lists = {
        "names": (await store.queues(), await store.streams(), await store.outboxes()),
        "locks": await store.locks(),
        "schedules": await store.schedules(),
    }
    stream = store.stream("s")
    rest = {
        "jobs": await store.queue("q").list(),
        "entries": await store.outbox("o").jobs.list(),
        "events": await stream.read_since(0),
        "positions": await stream.consumers(),
        "head": await stream.head(),
    }
    return {**lists, **rest}


@row(
    "DUR-01",
    text="What was acknowledged survives a close and a kill of the process.",
    oracle="every row of every kind reads back equal; ids, offsets and fences go on",
    modes=OUTLIVES,
)
async def what_was_acknowledged_survives(ctx: Context) -> None:
    await _fill(ctx, ctx.store)
    before = await _contents(ctx.store)
    greatest = max(job.id for job in before["jobs"])
    store = await ctx.turn()
    after = await _contents(store)
    for kind, rows in before.items():
        ctx.expect(after[kind], rows, f"{kind}: what was acknowledged survives")
    ctx.that(await store.queue("q").enqueue(1) > greatest, "ids go on")
    ctx.that(await store.stream("s").publish(4) > before["head"], "offsets go on")
    lock = await store.try_lock("freed", 60)
    ctx.that(lock and lock.fence > 2, "fences go on", observed=lock)


@row(
    "DUR-01",
    text="Two stores on one storage share it; where the engine keeps nothing a new store is empty.",
    oracle="what the second store shows",
    kills=("two-stores-share-their-memory",),
)
async def a_new_store_is_empty_unless_storage_is_shared(ctx: Context) -> None:
    await _fill(ctx, ctx.store)
    other = await ctx.open("b")
    seen = await _contents(other)
    if ctx.factory.remote() is None:
        empty = dict.fromkeys(seen, []) | {"names": ([], [], []), "positions": {}, "head": 0}  # noqa: RUF024  # compared
        ctx.expect(seen, empty, "a new store is empty")
        await other.queue("q").enqueue("other")
        ctx.expect(len(await ctx.store.queue("q").list()), 6, "and what it stores stays its own")
    else:
        ctx.expect(seen, await _contents(ctx.store), "two stores on one storage show the same")


@row(
    "DUR-01",
    text="What was acknowledged survives an immediate restart of the server.",
    oracle="every row of every kind reads back equal",
    needs=("server",),
    kills=("jobs-are-not-logged",),
)
async def what_was_acknowledged_survives_a_restart(ctx: Context) -> None:
    await _fill(ctx, ctx.store)
    before = await _contents(ctx.store)
    async with broken(ctx, Fault.SERVER_RESTART, ctx.store):
        ctx.note("the server restarts")
    ctx.expect(
        await ctx.soon(_recovered(ctx, ctx.store), "the store recovers"), before, "everything survives"
    )


async def _recovered(ctx: Context, store: Store) -> dict[str, Any]:
    while True:
        try:
            return await _contents(store)
        except DatabaseError:
            await ctx.hold(0.003)


@row(
    "DUR-02",
    text="Two stores on one storage see each other's commits.",
    oracle="writes go back and forth, and each store sees the other's at once",
    modes=("second",),
    kills=("reads-an-old-state",),
)
async def two_stores_see_each_others_commits(ctx: Context) -> None:
    for number in range(1, 7):
        await ctx.store.queue("q").enqueue(number)
        await ctx.store.stream("s").publish(number)
        await ctx.store.stream("s").save_offset("c", number)
        store = await ctx.turn()
        handle = await take(ctx, store.queue("q"), "the other store's job is seen at once")
        ctx.expect(handle.job.payload, number, "the other store's job is seen at once")
        events = [event.payload for event in await store.stream("s").read_since(0)]
        ctx.expect(events, list(range(1, number + 1)), "the other store's events are seen at once")
        ctx.expect(
            await store.stream("s").get_offset("c"), number, "the other store's position is seen at once"
        )
        ctx.expect(await handle.ack(), True, "a claim on the other store's job acks")


@row(
    "DUR-03",
    text="Opening several stores at once is no error, and the schema is made once.",
    oracle="eight stores opened together see one another's jobs",
    modes=("concurrent",),
    needs=("migrations", "multi_process"),
)
async def many_may_open_at_once(ctx: Context) -> None:
    names = [f"store {number}" for number in range(8)]
    stores = await ctx.race(*map(ctx.open, names))
    for number, store in enumerate(stores):
        await store.queue("q").enqueue(number)
    for store in stores:
        payloads = [job.payload for job in await store.queue("q").list()]
        ctx.expect(payloads, list(range(8)), "all of them work on one storage")


@row(
    "DUR-04",
    text="Storage written by a newer schema is SchemaMismatch and stays untouched.",
    oracle="the error with both versions; what is there reads back equal",
    needs=("migrations",),
    kills=("newer-schema-is-accepted", "newer-schema-is-refused-too-late"),
)
async def a_newer_schema_is_refused(ctx: Context) -> None:
    await _fill(ctx, ctx.store)
    before = await _contents(ctx.store)
    await ctx.factory.foreign_schema(newer=True)
    async with ctx.refuses(SchemaMismatch, "storage of a newer schema is refused") as caught:
        _ = await ctx.open("newer")
    ctx.that(caught.error.found > caught.error.known, "the error tells both versions")
    ctx.expect(await _contents(ctx.store), before, "storage of a newer schema stays untouched")


@row(
    "DUR-04",
    text="Storage written by an older schema is migrated, data kept.",
    oracle="what was there reads back equal, and new work lands",
    needs=("migrations",),
)
async def an_older_schema_is_migrated(ctx: Context) -> None:
    await ctx.store.queue("q").enqueue("old")
    await ctx.store.stream("s").publish("old")
    await ctx.factory.foreign_schema(newer=False)
    store = await ctx.open("migrated")
    ctx.expect((await take(ctx, store.queue("q"))).job.payload, "old", "a migration keeps jobs")
    events = [event.payload for event in await store.stream("s").read_since(0)]
    ctx.expect(events, ["old"], "a migration keeps events")
    await _fill(ctx, store)


@row(
    "DUR-05",
    text="Driver failures are DatabaseError with the cause, and the store recovers by itself, waits included.",
    oracle="the error and its cause for every kind of failure; afterwards writes land and a waiting claim comes",
    needs=("durable",),
    kills=("driver-error-comes-bare", "driver-error-loses-its-cause", "failed-store-stays-failed"),
)
async def failures_are_told_and_survived(ctx: Context) -> None:
    store = ctx.store
    landed = 0
    for fault in (Fault.STORAGE_FULL, Fault.READ_ONLY, Fault.STORAGE_AWAY):
        waiting = ctx.start(store.queue("waited for").claim())
        await ctx.settle()
        async with broken(ctx, fault, store):
            async with ctx.refuses(DatabaseError, f"{fault.value}: a failed write is told") as caught:
                await store.queue("q").enqueue("x" * 100_000)
            ctx.that(caught.error.__cause__, f"{fault.value}: with the driver's error as its cause")
        landed += 1
        await ctx.soon(_enqueued(ctx, store, "waited for"), f"{fault.value}: the store recovers by itself")
        if waiting.done() and waiting.exception() is not None:
            ctx.expect(type(waiting.exception()), DatabaseError, "a wait may end with the failure it met")
            waiting = ctx.start(store.queue("waited for").claim())
        handle = await ctx.soon(waiting, f"{fault.value}: a waiting claim comes afterwards")
        ctx.expect(await handle.ack() if handle else None, True, "and its claim is live")
    ctx.expect(landed, 3, "every failure was tried")


async def _enqueued(ctx: Context, store: Store, name: str) -> None:
    while True:
        try:
            await store.queue(name).enqueue(1)
        except DatabaseError:
            await ctx.hold(0.003)
        else:
            return


@row(
    "DUR-09",
    text="Every instant is taken from statement time, not from the transaction's start.",
    oracle="two jobs of one transaction, written five seconds apart, are five seconds apart",
    needs=("server",),
    kills=("instants-from-the-transactions-begin",),
)
async def instants_are_those_of_the_statement(ctx: Context) -> None:
    async with ctx.store.begin_tx() as tx:
        first = await tx.enqueue("q", 1)
        await tx.publish("s", 1)
        await ctx.advance(5)
        second = await tx.enqueue("q", 2)
        await tx.publish("s", 2)
    queue = ctx.store.queue("q")
    made = [(await read(ctx, queue, id)).created_at for id in (first, second)]
    ctx.expect(made[1] - made[0], seconds(5), "a job is created when its statement ran")
    events = await ctx.store.stream("s").read_since(0)
    ctx.expect(events[1].created_at - events[0].created_at, seconds(5), "so is an event")
    ctx.expect(made[1], await ctx.now(), "by the one clock")


@row(
    "DUR-10",
    text="Mixed-case schema names work; two stores in two schemas of one database share nothing.",
    oracle="everything works in an odd schema and is not seen in another; a name over 40 bytes is refused",
    needs=("schema", "listen"),
    kills=("schemas-share-a-channel",),
)
async def two_schemas_share_nothing(ctx: Context) -> None:
    stores = [await ctx.factory.open_with(schema=name) for name in ("Mixed-Case schema", "mixed-case schema")]
    try:
        await _fill(ctx, stores[0])
        ctx.expect(await stores[1].queues(), [], "another schema shows nothing of it")
        waiting = ctx.start(stores[1].queue("q").claim())
        async with stores[1].listen("c") as wakes:
            await stores[0].notify("c")
            await stores[0].queue("q").enqueue(1)
            await ctx.idle(waiting, "another schema is not woken")
            ctx.expect(await wakes.try_recv(), None, "another schema's channels are others")
        await stores[1].queue("q").enqueue(2)
        handle = await ctx.soon(waiting, "a schema's own commits wake")
        ctx.expect(handle and handle.job.payload, 2, "a schema's own job is given")
    finally:
        await asyncio.gather(*(store.aclose() for store in stores))
    async with ctx.refuses(InvalidArgument, "a schema name over 40 bytes is refused"):
        _ = await ctx.factory.open_with(schema="s" * 41)
