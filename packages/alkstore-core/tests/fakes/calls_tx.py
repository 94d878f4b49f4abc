"""A drawn transaction with drawn calls in it."""

import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from calls import (
    CHANNELS,
    CONSUMERS,
    EXTENTS,
    HEADERS,
    OFFSETS,
    PAYLOADS,
    PRIORITIES,
    QUEUES,
    STREAMS,
    WORKERS,
    Drawing,
    job_options,
    some_options,
    step,
)
from sides import Side, answered

from alkstore import EnqueueOpts, OffsetConflict, Tx, outside_tx

__all__ = ["transact"]


async def transact(side: Side, rng: Drawing) -> object:
    answers: list[object] = []
    lands, before, has_landed = rng.random() < 0.6, side.offsets, False
    tx = await side.store.begin_tx()
    try:
        for _ in range(rng.randrange(7)):
            call = rng.choice(_calls(side, lands))
            answers.append((call.__name__, await answered(partial(call, side, tx, rng.nested()))))
            if rng.random() < 0.2:
                await side.clock.advance(step(side, rng))
        await (tx.commit() if lands else tx.rollback())
        has_landed = lands
    finally:
        if not has_landed:
            side.offsets = before
    return answers


def _calls(side: Side, lands: bool) -> tuple["TxCall", ...]:
    # An offset that was rolled back may be given again, or not: told by its place, it is the same.
    publishes = (tx_publish,) if lands or side.has_gaps else ()
    return (*TX_CALLS, *publishes, *((claim_beside,) if side.writes_beside else ()))


async def tx_enqueue(side: Side, tx: Tx, rng: random.Random) -> object:
    verb, queue, payloads = rng.randrange(3), rng.choice(QUEUES), rng.choices(PAYLOADS, k=rng.randrange(4))
    if verb == 0:
        return await tx.outbox_enqueue(rng.choice(("o", "O")), rng.choice(PAYLOADS)) > 0
    if verb == 1:
        return await tx.enqueue(queue, rng.choice(PAYLOADS), **job_options(side, rng)) > 0
    each = [EnqueueOpts(priority=rng.choice(PRIORITIES), headers=rng.choice(HEADERS)) for _ in payloads]
    return len(await tx.enqueue_batch(queue, payloads, each=each, **some_options(rng)))


async def tx_get_job(side: Side, tx: Tx, rng: random.Random) -> object:
    return side.job(await tx.get_job(rng.choice(QUEUES), side.id_of(rng)))


async def tx_publish(side: Side, tx: Tx, rng: random.Random) -> object:
    stream, payloads = rng.choice(STREAMS), rng.choices(PAYLOADS, k=rng.randrange(4))
    return side.given(stream, await tx.publish_batch(stream, payloads))


async def tx_read(side: Side, tx: Tx, rng: random.Random) -> object:
    stream, consumer, limit = rng.choice(STREAMS), rng.choice(CONSUMERS), rng.choice(EXTENTS)
    offset = side.offset(stream, rng.choice(OFFSETS))
    if rng.random() < 0.5:
        return [side.event(each) for each in await tx.read_since(stream, offset, limit)]
    return [side.event(each) for each in await tx.read_from_consumer(stream, consumer, limit)]


async def tx_offset(side: Side, tx: Tx, rng: random.Random) -> object:
    stream, consumer, after = rng.choice(STREAMS), rng.choice(CONSUMERS), rng.choice((None, None, *OFFSETS))
    offset = side.offset(stream, rng.choice(OFFSETS))
    if rng.random() < 0.4:
        return side.place(stream, await tx.get_offset(stream, consumer))
    expected = None if after is None else side.offset(stream, after)
    try:
        await tx.save_offset(stream, consumer, offset, after=expected)
    except OffsetConflict as error:
        where = None if error.expected is None else side.place(stream, error.expected)
        return OffsetConflict, where, side.place(stream, error.found)
    return None


async def tx_ack(side: Side, tx: Tx, rng: random.Random) -> object:
    which = rng.random()
    mine = [each.handle for each in side.held if each.turn == side.turn]
    if mine:
        await tx.ack(mine[-1 - int(which**2 * len(mine))])
    return None


async def tx_notify(side: Side, tx: Tx, rng: random.Random) -> None:
    await tx.notify(rng.choice(CHANNELS), rng.choice(PAYLOADS))


async def look_beside(side: Side, tx: Tx, rng: random.Random) -> object:
    """Look past the transaction: at what was committed."""
    name, offset = rng.choice(STREAMS), rng.choice(OFFSETS)
    queue, stream = side.store.queue(rng.choice(QUEUES)), side.store.stream(name)
    events, found = await stream.read_since(side.offset(name, offset)), await queue.stats()
    return (
        [side.event(each) for each in events],
        side.place(name, await stream.head()),
        # A lapsed claim that the transaction has acked may be told as any of the three: the moment is not quiet.
        (found.ready + found.processing + found.stale, found.delayed, found.dead),
        [side.job(job) for job in await queue.list()],
    )


async def claim_beside(side: Side, tx: Tx, rng: random.Random) -> object:
    """Claim past the transaction: never what it has acked or put in."""
    queue = side.store.queue(rng.choice(QUEUES))
    with outside_tx():
        return side.took(await queue.claim_batch(rng.choice(EXTENTS), worker_id=rng.choice(WORKERS)))


TxCall = Callable[[Side, Tx, random.Random], Awaitable[object]]

TX_CALLS: Final[tuple[TxCall, ...]] = (
    tx_enqueue, tx_get_job, tx_read, tx_offset, tx_offset, tx_ack, tx_ack, tx_notify, look_beside,
)  # fmt: skip
