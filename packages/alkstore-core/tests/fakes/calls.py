"""Public calls with drawn arguments, and answers in a form that can be compared between engines.

A call draws as often on every engine: whatever it then makes of what it drew.
"""

import random
from datetime import datetime, timedelta
from typing import Any, Final

from sides import Side

from alkstore import EnqueueOpts, JobHandle, JobState, Lock, WakeReceiver

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
CHANNELS: Final = ("n", "N", "🙂" * 63 + "abc", "🙂" * 63 + "abd")
HEADERS: Final = (None, None, {"trace": "é"}, {"b\n": "", "é": "a\0b", "a": "'\\%"})


class Drawing(random.Random):
    """A source that draws of all the queues' names only these few: of many, nothing meets anything."""

    def __init__(self, seed: float, queues: list[str]) -> None:
        super().__init__(seed)
        self._queues = queues

    def choice(self, seq: Any) -> Any:
        return super().choice(self._queues if seq is QUEUES else seq)

    def nested(self) -> "Drawing":
        """Give a source for a call within this one."""
        return Drawing(self.random(), self._queues)


def step(side: Side, rng: random.Random) -> timedelta:
    """Draw a step of the clock, or a way to one of the instants at which something happens."""
    seconds, beside, drawn = rng.choice(STEPS), rng.choice((-1, 0, 0, 1)), rng.random()
    if not side.edges or drawn < 0.6:
        return timedelta(seconds=seconds)
    edge = side.edges[int((drawn - 0.6) / 0.4 * len(side.edges))]
    return edge - side.clock.datetime + timedelta(microseconds=beside)


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
    options["headers"] = rng.choice(HEADERS)
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
    is_last_moment, beside = rng.random() < 0.3, rng.choice((-1, 0))
    error, delay, window = rng.choice(ERRORS), rng.choice(DELAYS), rng.choice((None, *SPANS))
    if not side.held:
        return None
    # The last ones most: they are the ones whose claims are live.
    handle = side.held[-1 - int(which**2 * len(side.held))].handle
    if is_last_moment and side.is_near(end := handle.job.deadline):
        await side.clock.advance(end - side.clock.datetime + timedelta(microseconds=beside))
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
    name, key, headers = rng.choice(STREAMS), rng.choice((None, "k", "🙂")), rng.choice(HEADERS)
    stream = side.store.stream(name)
    if rng.random() < 0.5:
        return side.given(name, [await stream.publish(rng.choice(PAYLOADS), key=key, headers=headers)])
    return side.given(name, await stream.publish_batch(rng.choices(PAYLOADS, k=rng.randrange(4)), key=key))


async def read(side: Side, rng: random.Random) -> object:
    name, limit = rng.choice(STREAMS), rng.choice(EXTENTS)
    stream, offset = side.store.stream(name), side.offset(name, rng.choice(OFFSETS))
    if rng.random() < 0.5:
        events = await stream.read_since(offset, limit)
    else:
        events = await stream.read_from_consumer(rng.choice(CONSUMERS), limit)
    saved = {consumer: side.place(name, at) for consumer, at in (await stream.consumers()).items()}
    return [side.event(each) for each in events], side.place(name, await stream.head()), saved


async def move_offset(side: Side, rng: random.Random) -> object:
    name, consumer, verb = rng.choice(STREAMS), rng.choice(CONSUMERS), rng.randrange(4)
    stream, offset = side.store.stream(name), side.offset(name, rng.choice(OFFSETS))
    if verb == 0:
        await stream.reset_offset(consumer, offset)
    if verb <= 1:
        return side.place(name, await stream.get_offset(consumer))
    return await stream.save_offset(consumer, offset)


async def trim(side: Side, rng: random.Random) -> object:
    name = rng.choice(STREAMS)
    return await side.store.stream(name).trim_to(side.offset(name, rng.choice(OFFSETS)))


async def subscribe(side: Side, rng: random.Random) -> object:
    name, consumer, after = rng.choice(STREAMS), rng.choice((None, *CONSUMERS)), rng.choice((None, *OFFSETS))
    if len(side.receivers) < 4:
        start = None if after is None else side.offset(name, after)
        side.receivers.append(await side.store.stream(name).subscribe(consumer, after=start))
    return len(side.receivers)


async def receive(side: Side, rng: random.Random) -> object:
    which, ends, saves = rng.random(), rng.random() < 0.1, rng.random() < 0.3
    if not side.receivers:
        return None
    receiver = side.receivers[int(which * len(side.receivers))]
    if ends:
        side.receivers.remove(receiver)
        await receiver.aclose()
    got = await receiver.try_recv()
    if got is not None and saves:
        await receiver.save(got)
    return side.event(got)


async def notify(side: Side, rng: random.Random) -> None:
    await side.store.notify(rng.choice(CHANNELS), rng.choice(PAYLOADS))


async def listen(side: Side, rng: random.Random) -> object:
    channel = rng.choice(CHANNELS)
    if len(side.ears) == 3:
        await side.ears.pop(0).aclose()
    side.ears.append(await side.store.listen(channel))
    return len(side.ears)


async def hear(side: Side, rng: random.Random) -> object:
    await side.has_heard()
    return [await _wakes(ear) for ear in side.ears]


async def _wakes(ear: WakeReceiver) -> object:
    # How many is the engine's choice, between one and the number of notifies.
    wakes = set()
    while (wake := await ear.try_recv()) is not None:
        wakes.add((wake.channel, wake.reconnected))
    return wakes


async def take_lock(side: Side, rng: random.Random) -> object:
    name, ttl = rng.choice(LOCKS), rng.choice(SPANS)
    if rng.random() < 0.3:
        lock: Lock | None = await side.store.lock(name, ttl, timeout=0)
    else:
        lock = await side.store.try_lock(name, ttl)
    if lock is not None:
        side.locks.append(lock)
        side.visit(_after(side, ttl))
    return None if lock is None else (lock.name, lock.fence, lock.held)


async def use_lock(side: Side, rng: random.Random) -> object:
    which, ttl, releases = rng.random(), rng.choice(SPANS), rng.random() < 0.5
    if not side.locks:
        return None
    lock = side.locks[-1 - int(which**2 * len(side.locks))]
    has_landed = await (lock.release() if releases else lock.renew(ttl))
    if has_landed and not releases:
        side.visit(_after(side, ttl))
    return has_landed, lock.held


def _after(side: Side, seconds: float) -> datetime | None:
    return side.clock.datetime + timedelta(seconds=seconds) if seconds < 3600 else None


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
    side.visit(made.next_fire_at)
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
