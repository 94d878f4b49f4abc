"""Public calls with drawn arguments, and answers in a form that can be compared between engines.

A call draws as often on every engine: whatever it then makes of what it drew.
"""

import random
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from alkstore import (
    AlkstoreError,
    ClaimLost,
    EnqueueOpts,
    EventReceiver,
    Job,
    JobHandle,
    JobState,
    Lock,
    Store,
    StreamEvent,
    Tx,
)
from alkstore.testing import ManualClock

QUEUES: Final = ("q", "q\x7f", "Q", "é", "e\u0301", "🙂" * 63 + "abc", "🙂" * 63 + "abd")
STREAMS: Final = ("s", "S", "s ")
LOCKS: Final = ("l", "L", "ﬀ")
CONSUMERS: Final = ("c", "C", "__alkstore_c")
SCHEDULES: Final = ("tick", "Tick", "%';--")
WORKERS: Final = (None, "w1", "🙂")
PRIORITIES: Final = (0, 0, 0, 1, -1, 2**63 - 1, -(2**63))
DELAYS: Final = (None, None, 0, -1, 0.5, 1, 2, 5, 2**63 - 1, -(2**63), timedelta.max)
EXPIRIES: Final = (None, None, None, 0, 1, 2, 4, 2**63 - 1, -(2**63))
SPANS: Final = (0.000001, 0.5, 1, 2, 3, 2**63 - 1)
STEPS: Final = (0, 0.000001, -0.000001, 0.5, 1, 1, 2, 3, -1, -2, -3, 10, 60, -60, 3600)
OFFSETS: Final = (0, 1, 2, 3, 5, 8, -1, 2**63 - 1, -(2**63))
EXTENTS: Final = (1, 2, 3, 100, 0, -1, 2**63 - 1)
INSTANTS: Final = (None, None, None, "now", "soon", "first", "last")
PAYLOADS: Final = (None, 1, "x", "a\0b", [1.5, None], {"k": -0.0}, 2**200)
ERRORS: Final = (None, "boom", "", "a\0b\ud800", "é" * 9000)
SPECS: Final = ("@every 1s", "@every 3s", "@every 36500d")

JOB_FIELDS: Final = (
    "queue", "payload_bytes", "headers", "state", "priority", "run_at", "expires_at", "attempts", "max_attempts",
    "visibility_timeout", "base_delay", "worker_id", "deadline", "created_at", "scheduled_for", "retry_error",
    "last_error", "died_at",
)  # fmt: skip


class Side:
    """One engine, and what it gave so far. Ids are told by when they were first seen: only their order is promised."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self.ids: list[int] = []
        self.handles: list[JobHandle] = []
        self.locks: list[Lock] = []
        self.receivers: list[EventReceiver] = []

    def job(self, job: Job | None) -> object:
        if job is None:
            return None
        return (self.number(job.id), *(getattr(job, name) for name in JOB_FIELDS))

    def number(self, id: int) -> int:
        if id not in self.ids:
            self.ids.append(id)
        return self.ids.index(id)

    def id_of(self, rng: random.Random) -> int:
        odd = rng.randrange(20)
        drawn = rng.random()
        if not self.ids or odd == 0:
            return (0, -1, 2**63 - 1, 2**70)[int(drawn * 4)]
        return self.ids[int(drawn * len(self.ids))]

    def took(self, handles: list[JobHandle]) -> object:
        self.handles += handles
        return [self.job(handle.job) for handle in handles]


def event(found: StreamEvent | None) -> object:
    if found is None:
        return None
    return found.offset, found.stream, found.key, found.payload_bytes, dict(found.headers), found.created_at


def at(side: Side, which: str | None) -> datetime | None:
    now = side.clock.datetime
    if which == "soon":
        return now + timedelta(seconds=1.5) if now.year < 9999 else now
    if which == "first":
        return datetime.min.replace(tzinfo=now.tzinfo)
    if which == "last":
        return datetime.max.replace(tzinfo=now.tzinfo)
    return None if which is None else now


def some_options(rng: random.Random) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if rng.random() < 0.5:
        options["visibility_timeout"] = rng.choice(SPANS)
    if rng.random() < 0.7:
        options["max_attempts"] = rng.choice((1, 1, 2, 3, 2**63 - 1))
    if rng.random() < 0.5:
        options["base_delay"] = rng.choice((0, 0.5, 1, 2**63 - 1))
    if rng.random() < 0.5:
        options["expires"] = rng.choice(EXPIRIES)
    return options


def job_options(side: Side, rng: random.Random) -> dict[str, Any]:
    options = some_options(rng)
    options["priority"] = rng.choice(PRIORITIES)
    options["delay"] = rng.choice(DELAYS)
    options["run_at"] = at(side, rng.choice(INSTANTS))
    options["headers"] = rng.choice((None, {"trace": "é"}))
    return options


# ---------------------------------------------------------------- calls: each draws the same from a source of its own


async def enqueue(side: Side, rng: random.Random) -> object:
    queue = side.store.queue(rng.choice(QUEUES), **some_options(rng))
    payload = rng.choice(PAYLOADS)
    return side.number(await queue.enqueue(payload, **job_options(side, rng)))


async def enqueue_batch(side: Side, rng: random.Random) -> object:
    queue = side.store.queue(rng.choice(QUEUES))
    payloads = rng.choices(PAYLOADS, k=rng.randrange(4))
    each = [EnqueueOpts(priority=rng.choice(PRIORITIES), delay=rng.choice(DELAYS)) for _ in payloads]
    return [side.number(id) for id in await queue.enqueue_batch(payloads, each=each, **some_options(rng))]


async def claim_one(side: Side, rng: random.Random) -> object:
    handle = await side.store.queue(rng.choice(QUEUES)).claim_one(worker_id=rng.choice(WORKERS))
    return None if handle is None else side.took([handle])


async def claim_batch(side: Side, rng: random.Random) -> object:
    queue = side.store.queue(rng.choice(QUEUES))
    return side.took(await queue.claim_batch(rng.choice(EXTENTS), worker_id=rng.choice(WORKERS)))


async def claim_waiting(side: Side, rng: random.Random) -> object:
    handle = await side.store.queue(rng.choice(QUEUES)).claim(timeout=rng.choice((0, -1)))
    return None if handle is None else side.took([handle])


async def settle(side: Side, rng: random.Random) -> object:
    which, verb, drawn = rng.random(), rng.randrange(8), rng.random()
    error, delay, window = rng.choice(ERRORS), rng.choice(DELAYS), rng.choice((None, *SPANS))
    if not side.handles:
        return None
    # The last ones most: they are the ones whose claims are live.
    handle = side.handles[-1 - int(which**2 * len(side.handles))]
    if verb == 0:
        return await handle.ack()
    if verb in (1, 2):
        return await handle.retry(error=error, delay=delay)
    if verb == 3:
        return await handle.retry(error=error)
    if verb == 4:
        return await handle.fail(error)
    if verb == 5:
        return await handle.release()
    return await handle.heartbeat(window) if drawn < 0.7 else await handle.heartbeat()


async def look_at_jobs(side: Side, rng: random.Random) -> object:
    queue = side.store.queue(rng.choice(QUEUES))
    state = rng.choice((None, None, *JobState))
    error = rng.choice((None, None, "boom", "", "expired", "�"))
    after = rng.choice((0, 0, -1, 2**63 - 1, side.id_of(rng)))
    after = after if after < 2**63 else 0
    jobs = await queue.list(state=state, error=error, after=after, limit=rng.choice(EXTENTS))
    return [side.job(job) for job in jobs]


async def get_job(side: Side, rng: random.Random) -> object:
    return side.job(await side.store.queue(rng.choice(QUEUES)).get_job(side.id_of(rng)))


async def stats(side: Side, rng: random.Random) -> object:
    return await side.store.queue(rng.choice(QUEUES)).stats()


async def sweep(side: Side, rng: random.Random) -> object:
    return await side.store.queue(rng.choice(QUEUES)).sweep_expired()


async def cancel(side: Side, rng: random.Random) -> object:
    return await side.store.queue(rng.choice(QUEUES)).cancel(side.id_of(rng))


async def redrive(side: Side, rng: random.Random) -> object:
    queue = side.store.queue(rng.choice(QUEUES))
    return await queue.redrive(*(side.id_of(rng) for _ in range(rng.randrange(8))))


async def purge(side: Side, rng: random.Random) -> object:
    queue = side.store.queue(rng.choice(QUEUES))
    return await queue.purge_dead(older_than=rng.choice((0, -1, 0.5, 1, 2, 2**63 - 1)))


async def names(side: Side, rng: random.Random) -> object:
    store = side.store
    schedules = [
        (each.name, each.spec, each.queue, each.payload_bytes, each.opts, each.anchor, each.next_fire_at)
        for each in await store.schedules()
    ]
    return await store.queues(), await store.streams(), await store.outboxes(), await store.locks(), schedules


async def publish(side: Side, rng: random.Random) -> object:
    stream, key = side.store.stream(rng.choice(STREAMS)), rng.choice((None, "k", "🙂"))
    if rng.random() < 0.5:
        return await stream.publish(rng.choice(PAYLOADS), key=key, headers=rng.choice((None, {"a": "b"})))
    return await stream.publish_batch(rng.choices(PAYLOADS, k=rng.randrange(4)), key=key)


async def read(side: Side, rng: random.Random) -> object:
    stream, offset, limit = side.store.stream(rng.choice(STREAMS)), rng.choice(OFFSETS), rng.choice(EXTENTS)
    if rng.random() < 0.5:
        events = await stream.read_since(offset, limit)
    else:
        events = await stream.read_from_consumer(rng.choice(CONSUMERS), limit)
    return [event(each) for each in events], await stream.head(), await stream.consumers()


async def move_offset(side: Side, rng: random.Random) -> object:
    stream, consumer, offset = (
        side.store.stream(rng.choice(STREAMS)),
        rng.choice(CONSUMERS),
        rng.choice(OFFSETS),
    )
    verb = rng.randrange(4)
    if verb == 0:
        await stream.reset_offset(consumer, offset)
    if verb <= 1:
        return await stream.get_offset(consumer)
    return await stream.save_offset(consumer, offset)


async def trim(side: Side, rng: random.Random) -> object:
    return await side.store.stream(rng.choice(STREAMS)).trim_to(rng.choice(OFFSETS))


async def subscribe(side: Side, rng: random.Random) -> object:
    stream = side.store.stream(rng.choice(STREAMS))
    consumer, after = rng.choice((None, *CONSUMERS)), rng.choice((None, None, *OFFSETS))
    if len(side.receivers) < 4:
        side.receivers.append(await stream.subscribe(consumer, after=after))
    return len(side.receivers)


async def receive(side: Side, rng: random.Random) -> object:
    which, ends = rng.random(), rng.random() < 0.1
    if not side.receivers:
        return None
    receiver = side.receivers[int(which * len(side.receivers))]
    if ends:
        side.receivers.remove(receiver)
        await receiver.aclose()
    return event(await receiver.try_recv())


async def take_lock(side: Side, rng: random.Random) -> object:
    lock = await side.store.try_lock(rng.choice(LOCKS), rng.choice(SPANS))
    if lock is not None:
        side.locks.append(lock)
    return None if lock is None else (lock.name, lock.fence)


async def use_lock(side: Side, rng: random.Random) -> object:
    which, ttl, releases = rng.random(), rng.choice(SPANS), rng.random() < 0.5
    if not side.locks:
        return None
    lock = side.locks[-1 - int(which**2 * len(side.locks))]
    return await lock.release() if releases else await lock.renew(ttl)


async def schedule(side: Side, rng: random.Random) -> object:
    name, queue, spec = rng.choice(SCHEDULES), rng.choice(QUEUES), rng.choice(SPECS)
    if rng.random() < 0.3:
        return await side.store.unschedule(name)
    anchor = at(side, rng.choice(INSTANTS))
    made = await side.store.schedule(
        name,
        spec,
        queue,
        rng.choice(PAYLOADS),
        anchor=anchor,
        priority=rng.choice(PRIORITIES),
        **some_options(rng),
    )
    return made.name, made.spec, made.opts, made.anchor, made.next_fire_at


async def tick(side: Side, rng: random.Random) -> object:
    return await side.store.tick_schedules()


async def use_outbox(side: Side, rng: random.Random) -> object:
    outbox, fails, verb = side.store.outbox(rng.choice(("o", "O"))), rng.random() < 0.5, rng.randrange(3)
    if verb == 0:
        return side.number(await outbox.enqueue(rng.choice(PAYLOADS), **job_options(side, rng)))
    if verb == 1:
        return await outbox.jobs.stats(), [side.job(job) for job in await outbox.jobs.list()]

    async def deliver(handle: JobHandle) -> None:
        if fails:
            await handle.fail("refused")

    return await outbox.run_once(deliver)


async def transact(side: Side, rng: random.Random) -> object:
    answers: list[object] = []
    lands = rng.random() < 0.6
    tx = await side.store.begin_tx()
    for _ in range(rng.randrange(6)):
        call = rng.choice(TX_CALLS if lands else TX_CALLS[1:])
        answers.append(await answered(partial(call, side, tx, random.Random(rng.random()))))
        if rng.random() < 0.2:
            await side.clock.advance(rng.choice(STEPS))
    await (tx.commit() if lands else tx.rollback())
    return answers


async def tx_enqueue(side: Side, tx: Tx, rng: random.Random) -> object:
    queue, payload = rng.choice(QUEUES), rng.choice(PAYLOADS)
    return len(str(await tx.enqueue(queue, payload, **job_options(side, rng)))) > 0


async def tx_get_job(side: Side, tx: Tx, rng: random.Random) -> object:
    return side.job(await tx.get_job(rng.choice(QUEUES), side.id_of(rng)))


async def tx_publish(side: Side, tx: Tx, rng: random.Random) -> object:
    return await tx.publish_batch(rng.choice(STREAMS), rng.choices(PAYLOADS, k=rng.randrange(4)))


async def tx_read(side: Side, tx: Tx, rng: random.Random) -> object:
    stream, consumer, offset = rng.choice(STREAMS), rng.choice(CONSUMERS), rng.choice(OFFSETS)
    if rng.random() < 0.5:
        return [event(each) for each in await tx.read_since(stream, offset, rng.choice(EXTENTS))]
    return [event(each) for each in await tx.read_from_consumer(stream, consumer, rng.choice(EXTENTS))]


async def tx_offset(side: Side, tx: Tx, rng: random.Random) -> object:
    stream, consumer, offset = rng.choice(STREAMS), rng.choice(CONSUMERS), rng.choice(OFFSETS)
    if rng.random() < 0.4:
        return await tx.get_offset(stream, consumer)
    await tx.save_offset(stream, consumer, offset, after=rng.choice((None, None, *OFFSETS)))
    return None


async def tx_ack(side: Side, tx: Tx, rng: random.Random) -> object:
    which = rng.random()
    if side.handles:
        await tx.ack(side.handles[-1 - int(which**2 * len(side.handles))])
    return None


# The first one only where it lands: an offset that was rolled back may be given again, or not.
TX_CALLS: Final = (tx_publish, tx_enqueue, tx_get_job, tx_read, tx_offset, tx_ack)

Call = Callable[[Side, random.Random], Awaitable[object]]

OTHERS: Final[tuple[Call, ...]] = (
    publish, read, move_offset, trim, subscribe, receive, take_lock, use_lock, schedule, tick, use_outbox, transact,
    names,
)  # fmt: skip
JOBS: Final[tuple[Call, ...]] = (
    enqueue, enqueue, enqueue_batch, claim_one, claim_one, claim_batch, claim_waiting, settle, settle, settle,
    look_at_jobs, get_job, stats, sweep, cancel, redrive, purge,
)  # fmt: skip


async def answered(call: Callable[[], Awaitable[object]]) -> object:
    """Give the answer of a call, or what it raised."""
    try:
        return await call()
    except ClaimLost:
        return ClaimLost
    except AlkstoreError as error:
        return type(error), str(error)


class Drawing(random.Random):
    """A source that draws of all the queues' names only those of this sequence."""

    def __init__(self, seed: float, queues: list[str]) -> None:
        super().__init__(seed)
        self._queues = queues

    def choice(self, seq: Any) -> Any:
        return super().choice(self._queues if seq is QUEUES else seq)
