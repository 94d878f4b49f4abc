"""Sides are given the same drawn calls in the same order, and must give the same answers."""

import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from calls import (
    QUEUES,
    Drawing,
    cancel,
    claim_batch,
    claim_one,
    claim_waiting,
    enqueue,
    enqueue_batch,
    get_job,
    hear,
    listen,
    look_at_jobs,
    move_offset,
    names,
    notify,
    publish,
    purge,
    read,
    receive,
    redrive,
    schedule,
    settle,
    stats,
    step,
    subscribe,
    sweep,
    take_lock,
    tick,
    trim,
    use_lock,
    use_outbox,
)
from calls_tx import transact
from sides import Side, answered

__all__ = ["compare"]

TURNS: Final = 2
"""Stores of a side that take turns at most."""

Call = Callable[[Side, Drawing], Awaitable[object]]

JOBS: Final[tuple[Call, ...]] = (
    enqueue, enqueue, enqueue_batch, claim_one, claim_one, claim_batch, claim_waiting, settle, settle, settle,
    look_at_jobs, get_job, stats, sweep, cancel, redrive, purge,
)  # fmt: skip
OTHERS: Final[tuple[Call, ...]] = (
    publish, publish, read, move_offset, trim, subscribe, receive, receive, take_lock, use_lock, schedule, tick,
    use_outbox, notify, listen, hear, transact, transact, transact, names,
)  # fmt: skip


async def compare(sides: Sequence[Side], seed: int, count: int) -> None:
    """Draw so many calls, with steps of the clock forward and back between them.

    Raises:
        AssertionError: A side gave another answer than the first one; says the seed, the number and the calls before.
    """
    drawn = random.Random(seed)
    # Of many names, nothing would meet anything.
    mine = drawn.sample(QUEUES, 2)
    told: list[str] = []
    for number in range(count):
        if drawn.random() < 0.25:
            way = step(sides[0], drawn)
            told.append(f"step {way}")
            for side in sides:
                await side.clock.advance(way)
        call = drawn.choice(JOBS if drawn.random() < 0.6 else OTHERS)
        draws, turn = drawn.random(), drawn.randrange(TURNS)
        told.append(f"{call.__name__} {draws} on {turn}")
        answers = []
        for side in sides:
            side.turn = turn
            answers.append(await answered(partial(call, side, Drawing(draws, mine))))
        for got in answers[1:]:
            assert got == answers[0], (seed, number, told[-12:], sides[0].clock.datetime)
