"""Whether a worker over a million jobs, and a subscriber over ten million events, stay as small as they were.

Each runs in a process of its own, that tells the memory it has, garbage collected, forty times on its way.
"""

import asyncio
import gc
import multiprocessing
import sys
from multiprocessing.connection import Connection
from typing import Any, Final

from actor import resident
from figure import Figure
from stage import OURS, Amount, Stage, Target
from store_side import NAME

from alkstore import StopToken, Store
from alkstore.worker import Worker, handle

__all__ = ["memory"]

SPAWN: Final = multiprocessing.get_context("spawn")
PAYLOAD: Final = {"to": "ada@example.org", "n": 7}
JOBS: Final = 1_000_000
EVENTS: Final = 10_000_000
STORED: Final = {"mem": 1_000_000, "pg": 2_000_000}
"""Events that are there to be read again and again, where ten million would take gigabytes, or minutes to write."""
LOOKS: Final = 40
AHEAD: Final = 5_000
BATCH: Final = 1_000
PAGE: Final = 500


def _size() -> float:
    gc.collect()
    return round(resident() / 1024, 2)


class Looks:
    """What was seen on the way: how many were done, and the MiB of memory then."""

    def __init__(self, total: int) -> None:
        self.seen: list[tuple[float, float]] = []
        self.done = 0
        self._step = max(total // LOOKS, 1)

    def count(self, more: int) -> None:
        before, self.done = self.done // self._step, self.done + more
        if self.done // self._step > before:
            self.seen.append((self.done, _size()))


async def _work(store: Store, jobs: int) -> list[tuple[float, float]]:
    """Have one worker do all jobs, which one task enqueues, a few thousand ahead of it."""
    looks, more, stop = Looks(jobs), asyncio.Event(), StopToken()

    async def work(payload: dict[str, Any]) -> None:
        looks.count(1)
        more.set()
        if looks.done == jobs:
            stop.cancel()

    async def feed() -> None:
        for sent in range(BATCH, jobs + 1, BATCH):
            await store.queue(NAME).enqueue_batch([PAYLOAD] * BATCH)
            while sent - looks.done > AHEAD:
                more.clear()
                await more.wait()

    worker = Worker(store, {NAME: handle(work, concurrency=100)}, prefetch=4)
    feeder = asyncio.create_task(feed())
    await worker.run(stop, signals=False)
    await feeder
    return looks.seen


async def _subscribe(store: Store, events: int) -> list[tuple[float, float]]:
    """Read a stream from its beginning, again from there when it ends, until so many events were read."""
    looks, stream = Looks(events), store.stream(NAME)
    head = await stream.head()
    while looks.done < events:
        async with stream.subscribe(after=0) as receiver:
            left = min(head, events - looks.done)
            while left > 0:
                page = await receiver.recv_page(min(PAGE, left))
                for event in page:
                    assert event.payload is not None
                left -= len(page)
                looks.count(len(page))
    return looks.seen


def _alone(target: Target, what: str, count: int, published: int, pipe: Connection) -> None:
    async def run() -> list[tuple[float, float]]:
        async with target.open() as store:
            if what == "worker":
                return await _work(store, count)
            for _ in range(0, published, BATCH):
                await store.stream(NAME).publish_batch([PAYLOAD] * BATCH)
            return await _subscribe(store, count)

    pipe.send(asyncio.run(run()))


def _figure(stage: Stage, what: str, count: int) -> Figure:
    mine, its = SPAWN.Pipe()
    with stage.place() as place:
        target = stage.target(place, next(iter(stage.settings)))
        stored = min(count, STORED.get(stage.engine, count)) if what == "subscriber" else 0
        if stored and stage.add_events is not None:
            stage.add_events(place, stored)
            stored = 0  # nothing is left to the child
        child = SPAWN.Process(target=_alone, args=(target, what, count, stored, its))
        child.start()
        seen = mine.recv()
        child.join()
    name = f"{what} over {count:,} {'jobs' if what == 'worker' else 'events'}"
    print(f"{name}: {seen[0][1]} MiB at the first look, {seen[-1][1]} MiB at the last", file=sys.stderr)
    return Figure("memory", name, OURS, count / len(seen), "MiB", [size for _, size in seen])


def memory(stage: Stage, amount: Amount) -> list[Figure]:
    """Measure both; the values are MiB, evenly over the way."""
    share = 1 if amount.share == 1 else amount.share / 10
    return [
        _figure(stage, what, round(count * share / BATCH) * BATCH)
        for what, count in (("worker", JOBS), ("subscriber", EVENTS))
    ]
