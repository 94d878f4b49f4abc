"""Every operation of a store, on things of its own, and what those may be like once it has ended or failed."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import asyncpg

from alkstore import Closed, EventReceiver, JobHandle, Lock, Queue, StopToken, Store, Stream, StreamEvent, Tx
from alkstore_pg.errors import DRIVER, translate

__all__ = [
    "LEASE",
    "OPERATIONS",
    "READS",
    "RUNNERS",
    "Contents",
    "Operation",
    "Outside",
    "Things",
    "contents",
]

LONG: Final = 3_600
"""Seconds of a claim or a lock that is not to end within a test."""

LEASE: Final = "__alkstore_scheduler"

Contents: TypeAlias = tuple[tuple[object, ...], ...]
Outside: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


@dataclass
class Things:
    """What an operation works on. Another store makes it, whose connections nothing happens to.

    Attributes:
        dsn: Where the application's own connection goes.
        midway: Is called between two commits of one operation.
        stop: Ends what runs for ever.
    """

    store: Store
    name: str
    dsn: str
    ready: int
    dead: int
    held: JobHandle
    lock: Lock
    midway: Callable[[], Awaitable[object]] = field(default=lambda: asyncio.sleep(0))
    stop: StopToken = field(default_factory=StopToken)

    @classmethod
    async def made(cls, maker: Store, store: Store, name: str, dsn: str) -> "Things":
        (ready, dead, held), lock, *_ = await asyncio.gather(
            _three_jobs(maker.queue(name, visibility_timeout=LONG)),
            maker.try_lock(f"{name} held", LONG),
            maker.outbox(name).enqueue("entry"),
            _two_events(maker.stream(name)),
            maker.schedule(name, "@every 1h", name, "tick"),
        )
        assert lock is not None
        handle = JobHandle(store, held._record)
        return cls(
            store, name, dsn, ready, dead, handle, Lock(store, lock.name, lock.fence, lock._expires_at)
        )

    async def once_due(self, outsider: Outside) -> None:
        """Let the schedule be due, and nobody lead."""
        await outsider.execute(
            "UPDATE alkstore.schedule SET next_fire_at = alkstore.now() WHERE name = $1", self.name
        )
        await outsider.execute("DELETE FROM alkstore.lock WHERE name = $1", LEASE)


async def _three_jobs(queue: Queue) -> tuple[int, int, JobHandle]:
    dead = await queue.enqueue("dead", expires=LONG)
    await (await _claimed(queue)).fail("boom")
    await queue.enqueue("held")
    held = await _claimed(queue)
    return await queue.enqueue("ready"), dead, held


async def _claimed(queue: Queue) -> JobHandle:
    handle = await queue.claim_one()
    assert handle is not None
    return handle


async def _two_events(stream: Stream) -> None:
    first, _ = await stream.publish_batch(["one", "two"])
    await stream.save_offset("reader", first)


async def contents(outsider: Outside, name: str) -> Contents:
    """Give all there is of somebody's things, less what differs each time."""
    rows = await outsider.fetch(_CONTENTS, name)
    return tuple(tuple(row) for row in rows)


_CONTENTS: Final = """
WITH t AS (SELECT alkstore.now() + 4000000000 AS later), q AS (
    SELECT unnest(ARRAY[$1::text, '__alkstore_outbox:' || $1::text, $1 || ' other']) AS name
)
SELECT 'job', j.queue = $1, encode(j.payload, 'escape'), j.attempts::text, (j.deadline > t.later)::text, j.place
FROM alkstore.job AS j, t WHERE j.queue IN (SELECT name FROM q)
UNION ALL
SELECT 'dead', d.queue = $1, encode(d.payload, 'escape'), d.attempts::text, d.last_error, 0
FROM alkstore.dead AS d WHERE d.queue IN (SELECT name FROM q)
UNION ALL
SELECT 'event', s.name = $1, encode(e.payload, 'escape'), '', '', 0
FROM alkstore.event AS e JOIN alkstore.stream AS s ON s.id = e.stream WHERE s.name IN (SELECT name FROM q)
UNION ALL
SELECT 'position', s.name = $1, p.consumer, '', '', (
    SELECT count(*) FROM alkstore.event AS e WHERE e.stream = s.id AND e."offset" <= p."offset"
) FROM alkstore.position AS p JOIN alkstore.stream AS s ON s.id = p.stream
WHERE s.name = $1 AND p."offset" IS NOT NULL
UNION ALL
SELECT 'lock', l.name = $1, '', (l.expires_at > t.later)::text, '', 0
FROM alkstore.lock AS l, t WHERE l.name LIKE $1 || '%' AND l.expires_at > alkstore.now()
UNION ALL
SELECT 'schedule', true, s.spec, (s.next_fire_at > alkstore.now())::text, '', 0
FROM alkstore.schedule AS s WHERE s.name = $1
ORDER BY 1, 2, 3, 4, 5, 6
"""


# ---------------------------------------------------------------- the operations


async def _run_once(things: Things) -> None:
    async def handle_it(handle: JobHandle) -> None:
        await things.midway()

    await things.store.queue(things.name).run_once(handle_it)


async def _handle_in_a_block(things: Things) -> None:
    async for handle in things.store.queue(things.name).claims():
        async with handle:
            await things.midway()
        return


async def _deliver(things: Things) -> None:
    async def deliver(handle: JobHandle) -> None:
        await things.midway()

    await things.store.outbox(things.name).run_once(deliver)


async def _run_outbox(things: Things) -> None:
    async def deliver(handle: JobHandle) -> None:
        await things.midway()
        things.stop.cancel()

    await things.store.outbox(things.name).run(deliver, stop=things.stop)


async def _receive(things: Things) -> None:
    async with things.store.stream(things.name).subscribe(after=0) as events:
        await _next(events)


async def _next(events: EventReceiver) -> StreamEvent:
    """Receive an event; a receiver that is closed meanwhile gives None, which is no event."""
    event = await events.recv()
    if event is None:
        raise Closed("store")
    return event


async def _save(things: Things) -> None:
    async with things.store.stream(things.name).subscribe("reader") as events:
        await events.save(await _next(events))


async def _listen(things: Things) -> None:
    async with things.store.listen(things.name) as wakes:
        assert await wakes.try_recv() is None


async def _lock(things: Things) -> None:
    async with things.store.lock(things.name, LONG):
        await things.midway()


async def _take(things: Things) -> None:
    assert await things.store.try_lock(things.name, LONG)


async def _write(tx: Tx, things: Things) -> None:
    name = things.name
    await tx.enqueue(f"{name} other", "within")
    await tx.publish(f"{name} other", "within")
    await tx.outbox_enqueue(name, "within")
    await tx.notify(name)


async def _write_in_a_transaction(things: Things) -> None:
    async with things.store.begin_tx() as tx:
        await _write(tx, things)


async def _all_in_a_transaction(things: Things) -> None:
    name = things.name
    async with things.store.begin_tx() as tx:
        await tx.read_since(name, 0)
        await tx.get_offset(name, "reader")
        (event,) = await tx.read_from_consumer(name, "reader")
        await tx.save_offset(name, "reader", event.offset)
        await tx.get_job(name, things.ready)
        await tx.ack(things.held)
        await tx.enqueue_batch(name, ["more", "and more"])
        await tx.publish_batch(name, ["more", "and more"])


async def _roll_back(things: Things) -> None:
    tx = await things.store.begin_tx()
    try:
        await tx.publish(things.name, "never")
    finally:
        with suppress(Closed):  # an error has ended it
            await tx.rollback()


async def _join(things: Things) -> None:
    try:
        connection = await asyncpg.connect(
            things.dsn, timeout=1, server_settings={"application_name": "alkstore"}
        )
        try:
            async with connection.transaction(), things.store.join(connection) as tx:
                await _write(tx, things)
        finally:
            connection.terminate()
    except DRIVER as error:
        # The application's own connection fails by its library's errors, which are not ours to make better.
        raise translate(error, writes=True) from error


Operation: TypeAlias = Callable[[Things], Awaitable[object]]

READS: Final[Mapping[str, Operation]] = {
    "Queue.get_job": lambda it: it.store.queue(it.name).get_job(it.ready),
    "Queue.list": lambda it: it.store.queue(it.name).list(),
    "Queue.stats": lambda it: it.store.queue(it.name).stats(),
    "Stream.read_since": lambda it: it.store.stream(it.name).read_since(0),
    "Stream.read_from_consumer": lambda it: it.store.stream(it.name).read_from_consumer("reader"),
    "Stream.head": lambda it: it.store.stream(it.name).head(),
    "Stream.get_offset": lambda it: it.store.stream(it.name).get_offset("reader"),
    "Stream.consumers": lambda it: it.store.stream(it.name).consumers(),
    "Stream.subscribe": _receive,
    "Store.listen": _listen,
    "Store.locks": lambda it: it.store.locks(),
    "Store.queues": lambda it: it.store.queues(),
    "Store.streams": lambda it: it.store.streams(),
    "Store.outboxes": lambda it: it.store.outboxes(),
    "Store.schedules": lambda it: it.store.schedules(),
}
"""What changes nothing."""

OPERATIONS: Final[Mapping[str, Operation]] = {
    **READS,
    "Queue.enqueue": lambda it: it.store.queue(it.name).enqueue("new"),
    "Queue.enqueue_batch": lambda it: it.store.queue(it.name).enqueue_batch(["new", "newer"]),
    "Queue.claim_one": lambda it: it.store.queue(it.name).claim_one(),
    "Queue.claim_batch": lambda it: it.store.queue(it.name).claim_batch(5),
    "Queue.claim": lambda it: it.store.queue(it.name).claim(),
    "Queue.claims": _handle_in_a_block,
    "Queue.run_once": _run_once,
    "Queue.sweep_expired": lambda it: it.store.queue(it.name).sweep_expired(),
    "Queue.cancel": lambda it: it.store.queue(it.name).cancel(it.ready),
    "Queue.redrive": lambda it: it.store.queue(it.name).redrive(it.dead),
    "Queue.purge_dead": lambda it: it.store.queue(it.name).purge_dead(older_than=0),
    "JobHandle.ack": lambda it: it.held.ack(),
    "JobHandle.retry": lambda it: it.held.retry(error="again", delay=0),
    "JobHandle.fail": lambda it: it.held.fail("over"),
    "JobHandle.release": lambda it: it.held.release(),
    "JobHandle.heartbeat": lambda it: it.held.heartbeat(3 * LONG),
    "Outbox.enqueue": lambda it: it.store.outbox(it.name).enqueue("new"),
    "Outbox.run_once": _deliver,
    "Outbox.run": _run_outbox,
    "Stream.publish": lambda it: it.store.stream(it.name).publish("three"),
    "Stream.publish_batch": lambda it: it.store.stream(it.name).publish_batch(["three", "four"]),
    "Stream.publish to a new one": lambda it: it.store.stream(f"{it.name} other").publish("one"),
    "Stream.save_offset": lambda it: it.store.stream(it.name).save_offset("other reader", 2**40),
    "Stream.reset_offset": lambda it: it.store.stream(it.name).reset_offset("reader", 0),
    "Stream.trim_to": lambda it: it.store.stream(it.name).trim_to(2**40),
    "EventReceiver.save": _save,
    "Store.notify": lambda it: it.store.notify(it.name, "payload"),
    "Store.try_lock": _take,
    "Store.lock": _lock,
    "Lock.renew": lambda it: it.lock.renew(3 * LONG),
    "Lock.release": lambda it: it.lock.release(),
    "Store.schedule": lambda it: it.store.schedule(it.name, "@every 2h", it.name, "tick"),
    "Store.unschedule": lambda it: it.store.unschedule(it.name),
    "Store.tick_schedules": lambda it: it.store.tick_schedules(),
    "Store.run_schedules": lambda it: it.store.run_schedules(it.stop),
    "Store.supervise_schedules": lambda it: it.store.supervise_schedules(it.stop),
    "Store.begin_tx": _write_in_a_transaction,
    "Tx": _all_in_a_transaction,
    "Tx.rollback": _roll_back,
    "Store.join": _join,
}

RUNNERS: Final = ("Outbox.run", "Store.run_schedules", "Store.supervise_schedules")
"""What runs until it is told to stop."""
