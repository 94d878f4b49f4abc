"""Rows Q-07, OBX-08, STR-04 and LOCK-01 by histories: what several did at once can have been so."""

import random
import time
from collections.abc import Sequence
from typing import Final

from alkstore import JobHandle, Lock, Queue, Store, StreamEvent
from alkstore_contract_suite.child import hold
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.histories import accounting, objects, prefix
from alkstore_contract_suite.histories.call import Call, Note, noted
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._history import MODES, adds_up, history, lapse, linear_or_not, pause

WINDOW: Final = 60
"""Seconds that a claim or a lock lasts; none lapses while time stands still."""

ROUNDS: Final = 14
LOCK_ROUNDS: Final = 12
EVERYTHING: Final = 10_000
ENDED: Final = "everybody's end"


# ---------------------------------------------------------------- queues


def _jobs(handles: Sequence[JobHandle]) -> list[tuple[int, str, int]]:
    return [(handle.job.id, str(handle.job.payload), handle.job.attempts) for handle in handles]


async def _work(store: Store, note: Note, draw: random.Random, name: str, me: str) -> None:
    """Enqueue, claim, ack and release, in no order."""
    queue = store.queue(name, visibility_timeout=WINDOW, max_attempts=999)
    for round in range(ROUNDS):
        keys = [f"{me}.{round}.{number}" for number in range(draw.choice((1, 1, 3)))]
        await noted(note, "enqueue", keys, queue.enqueue_batch(keys))
        await pause(draw)
        handles = await noted(note, "claim", None, queue.claim_batch(draw.choice((1, 2, 4))), _jobs)
        for handle in handles:
            await pause(draw)
            how = draw.choice(("ack", "ack", "release"))
            call = handle.ack() if how == "ack" else handle.release()
            await noted(note, how, (handle.job.id, handle.job.attempts), call)


async def _drained(queue: Queue) -> list[Call]:
    """Claim and ack all there is; gives the calls."""
    found = []
    while True:
        begun = time.monotonic_ns()
        handles = await queue.claim_batch(50)
        found.append(Call(ENDED, "claim", None, _jobs(handles), begun, time.monotonic_ns()))
        if not handles:
            return found
        for handle in handles:
            begun, given = time.monotonic_ns(), (handle.job.id, handle.job.attempts)
            found.append(Call(ENDED, "ack", given, await handle.ack(), begun, time.monotonic_ns()))


@row(
    "Q-07",
    text="Jobs add up: each acknowledged one is given out, to one at a time, and none after its ack.",
    oracle="the accounts of all calls of several workers, one of whom was killed, and of a last one who took the rest",
    modes=MODES,
    kills=("claimed-row-given-twice",),
)
async def jobs_add_up(ctx: Context) -> None:
    queue = ctx.store.queue(ctx.name("mail"))
    found = await history(ctx, _work, queue.name)
    found += [await lapse(ctx, WINDOW), *await _drained(queue)]
    left = [str(job.payload) for job in await queue.list(limit=EVERYTHING)]
    adds_up(ctx, accounting.faults(found, left), "what was enqueued, given out and acked adds up")


async def _send(store: Store, note: Note, draw: random.Random, name: str, me: str) -> None:
    """Put entries in, by themselves and in transactions, and deliver some."""
    outbox = store.outbox(name)

    async def delivery(handle: JobHandle) -> None:
        note(("begins", "claim", None, time.monotonic_ns()))
        note(("ends", _jobs([handle]), time.monotonic_ns()))
        await pause(draw)

    for round in range(ROUNDS):
        key = f"{me}.{round}"
        if draw.random() < 0.5:
            await noted(note, "enqueue", [key], outbox.enqueue(key), lambda id: [id])
        else:
            await noted(note, "enqueue", [key], _send_in_tx(store, name, key), lambda id: [id])
        await pause(draw)
        await outbox.run_once(delivery)


async def _send_in_tx(store: Store, name: str, key: str) -> int:
    async with store.begin_tx() as tx:
        return await tx.outbox_enqueue(name, key, max_attempts=999)


@row(
    "OBX-08",
    text="Entries add up: each acknowledged one is delivered, by one at a time.",
    oracle="the accounts of all entries and deliveries of several workers, one of whom was killed, and of a last one",
    modes=MODES,
    kills=("claimed-row-given-twice",),
)
async def entries_add_up(ctx: Context) -> None:
    outbox = ctx.store.outbox(ctx.name("mail"))
    found = await history(ctx, _send, outbox.name)
    found.append(await lapse(ctx, WINDOW))
    got: list[Call] = []

    async def delivery(handle: JobHandle) -> None:
        got.append(Call(ENDED, "claim", None, _jobs([handle]), time.monotonic_ns(), time.monotonic_ns()))

    while await outbox.run_once(delivery):
        pass
    left = [str(job.payload) for job in await outbox.jobs.list(limit=EVERYTHING)]
    adds_up(ctx, accounting.faults([*found, *got], left), "what was put into an outbox and delivered adds up")
    ctx.expect(left, [], "every entry is delivered in the end")


# ---------------------------------------------------------------- streams


def _seen(events: Sequence[StreamEvent]) -> list[tuple[int, str]]:
    return [(event.offset, str(event.payload)) for event in events]


async def _publish(store: Store, note: Note, draw: random.Random, name: str, me: str) -> None:
    """Publish, by oneself and in transactions that may be rolled back, and read on from what was read."""
    stream, last = store.stream(name), 0
    for round in range(ROUNDS):
        keys = [f"{me}.{round}.{number}" for number in range(draw.choice((1, 1, 3)))]
        if draw.random() < 0.5:
            await noted(note, "publish", keys, stream.publish_batch(keys))
        elif draw.random() < 0.7:
            await noted(note, "publish", keys, _publish_in_tx(store, draw, name, keys))
        await pause(draw)
        events = await noted(note, "read", last, stream.read_since(last, draw.choice((1, 5, 100))), _seen)
        last = events[-1].offset if events else last


async def _publish_in_tx(store: Store, draw: random.Random, name: str, keys: list[str]) -> list[int]:
    async with store.begin_tx() as tx:
        offsets = await tx.publish_batch(name, keys)
        # Long enough for the others to publish, and to read past these.
        await hold(draw.uniform(0, 0.002))
    return offsets


@row(
    "STR-04",
    text="Every reader sees a beginning of one order, whoever publishes meanwhile, and no publish contradicts it.",
    oracle="the offsets of all publishes and the pages of all readers, one of whom was killed, against the whole stream",
    modes=MODES,
    kills=("offset-visible-out-of-order",),
)
async def readers_see_a_beginning_of_one_order(ctx: Context) -> None:
    stream = ctx.store.stream(ctx.name("orders"))
    found = await history(ctx, _publish, stream.name)
    log = _seen(await stream.read_since(0, EVERYTHING))
    readers: dict[str, list[tuple[int, str]]] = {}
    for call in found:
        if call.do == "read" and call.is_known:
            readers.setdefault(call.process, []).extend(call.answer)
    published = [call for call in found if call.do == "publish"]
    adds_up(ctx, prefix.faults(published, readers, log), "readers see a beginning of one order")


# ---------------------------------------------------------------- locks


async def _contend(store: Store, note: Note, draw: random.Random, name: str, me: str) -> None:
    """Try the lock, and renew and free it when it was got."""
    for _ in range(LOCK_ROUNDS):
        lock = await noted(note, "take", None, store.try_lock(name, WINDOW), _fence)
        await pause(draw)
        if lock is None:
            continue
        if draw.random() < 0.3:
            await noted(note, "renew", lock.fence, lock.renew(WINDOW))
            await pause(draw)
        await noted(note, "free", lock.fence, lock.release())
        await pause(draw)


def _fence(lock: Lock | None) -> int | None:
    return None if lock is None else lock.fence


@row(
    "LOCK-01",
    text="A lock's answers can have been given one at a time: a holder, and fences that rise.",
    oracle="a search for an order of all calls of several workers, one of whom was killed, before and after a lapse",
    modes=MODES,
    kills=("lock-check-then-take",),
)
async def a_locks_answers_can_have_been_given_one_at_a_time(ctx: Context) -> None:
    name = ctx.name("lock")
    found = await history(ctx, _contend, name)
    found.append(await lapse(ctx, WINDOW))
    begun = time.monotonic_ns()
    last = await ctx.store.try_lock(name, WINDOW)
    found.append(Call(ENDED, "take", None, _fence(last), begun, time.monotonic_ns()))
    promise = "the answers of a lock can have been given one at a time"
    linear_or_not(ctx, found, objects.FREE, objects.locking, promise)
