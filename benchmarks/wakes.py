"""How soon a job that one process enqueues is claimed in another, idle and under load, and what others' commits cost.

A wake is timed from the call of ``enqueue`` to the return of ``claim`` that waited, by the machine's monotonic clock, which all
processes share. In memory there is one process: `mem_wakes.py`.
"""

import asyncio
import multiprocessing
import sys
import time
from multiprocessing.process import BaseProcess
from typing import Any, Final, NamedTuple

from figure import Figure
from stage import OURS, Amount, Stage, Target
from workloads import JOINS

from alkstore import Store

__all__ = ["CASES", "LIMIT", "LOAD", "NAME", "WARM", "Case", "apart", "foreign", "load", "wakes"]

SPAWN: Final = multiprocessing.get_context("spawn")
NAME: Final = "bench"
WARM: Final = 10
LIMIT: Final = 60.0
LOAD: Final = 400
"""Jobs a second that are enqueued, claimed and acked on another queue meanwhile."""


class Case(NamedTuple):
    """Wakes so many seconds apart, and whether there is load."""

    name: str
    gap: float
    wakes: int
    is_loaded: bool = False


CASES: Final = (
    Case("idle, 5 ms apart", 0.005, 1_000),
    Case("idle, 100 ms apart", 0.1, 50),
    Case("under load, 5 ms apart", 0.005, 1_000, is_loaded=True),
)
RATES: Final = (0, 100, 400)
"""Commits a second on other queues."""
SETTLING: Final = 1.5
WATCHED: Final = 1.0
LOOKS: Final = 3
"""Seconds until a store that waits is idle, those of each look at it, and how many looks."""


def apart(case: Case, at: int) -> float:
    """Give the seconds before a wake. Not a plain gap, or both sides would fall into step."""
    return case.gap * (0.8 + 0.4 * (at * 0.618 % 1))


async def _produce(store: Store, case: Case, count: int) -> None:
    queue = store.queue(NAME)
    for at in range(count):
        await asyncio.sleep(apart(case, at))
        await queue.enqueue({"at": time.monotonic_ns()})


async def load(store: Store, rate: int) -> None:
    """Work on other queues at an even pace until cancelled."""
    began, done = time.monotonic(), 0
    queues = [store.queue(f"other-{at}") for at in range(8)]
    while True:
        await asyncio.sleep(max(began + done / rate - time.monotonic(), 0))
        queue = queues[done % len(queues)]
        await queue.enqueue(None)
        handle = await queue.claim_one()
        assert handle is not None
        await handle.ack()
        done += 1


def _produce_alone(target: Target, case: Case, count: int) -> None:
    async def run() -> None:
        async with target.open() as store:
            await _produce(store, case, count)

    asyncio.run(run())


def _load_alone(target: Target, rate: int) -> None:
    async def run() -> None:
        async with target.open() as store:
            await load(store, rate)

    asyncio.run(run())


async def _consume(store: Store, count: int) -> list[float]:
    queue = store.queue(NAME)
    taken = []
    for _ in range(count):
        handle = await queue.claim(timeout=LIMIT)
        came = time.monotonic_ns()
        assert handle is not None
        sent = handle.job.payload
        assert isinstance(sent, dict)
        taken.append((came - sent["at"]) / 1e6)
        await handle.ack()
    return taken[WARM:]


async def _across(target: Target, case: Case, count: int) -> list[float]:
    async with target.open() as store:
        others: list[BaseProcess] = []
        if case.is_loaded:
            others.append(SPAWN.Process(target=_load_alone, args=(target, LOAD)))
        others.append(SPAWN.Process(target=_produce_alone, args=(target, case, count + WARM)))
        for other in others:
            other.start()
        taken = await _consume(store, count + WARM)
        await asyncio.to_thread(others[-1].join)
        for other in others[:-1]:
            other.kill()
            await asyncio.to_thread(other.join)
        return taken


def _produce_for(kind: type, place: Any, case: Case, count: int) -> None:
    async def run() -> None:
        side: Any = await kind().open(place, JOINS)
        for at in range(count):
            await asyncio.sleep(apart(case, at))
            side.payload = {"at": time.monotonic_ns()}
            await side.enqueue()
        await side.close()

    asyncio.run(run())


async def _peers(kind: type, place: Any, case: Case, count: int) -> list[float]:
    """Time a peer's: until its worker calls the function for the job."""
    side: Any = await kind().open(place, "")
    taken: list[float] = []

    def heard(payload: Any) -> bool:
        taken.append((time.monotonic_ns() - payload["at"]) / 1e6)
        return len(taken) >= count + WARM

    other = SPAWN.Process(target=_produce_for, args=(kind, place, case, count + WARM))
    other.start()
    async with asyncio.timeout(LIMIT):
        await side.hear(heard)
    await asyncio.to_thread(other.join)
    await side.close()
    return taken[WARM : WARM + count]


def peers(stage: Stage, amount: Amount) -> list[Figure]:
    """Time the wakes of those peers that wake anybody."""
    found = []
    for side, kind in stage.sides.items():
        if side == OURS or not hasattr(kind, "hear") or "," in side:
            continue
        for case in CASES[:2]:
            with stage.place() as place:
                taken = asyncio.run(_peers(kind, place, case, amount.of(case.wakes / 2, 20)))
            found.append(Figure("wakes", case.name, side, case.gap * 1e3, "ms", sorted(taken)))
            print(f"wakes, {case.name}: {side}", file=sys.stderr)
    return found


def wakes(stage: Stage, amount: Amount) -> list[Figure]:
    """Time wakes, idle and under load; the values are all of them, in milliseconds."""
    found = []
    for setting, shown in stage.settings.items():
        for case in CASES:
            with stage.place() as place:
                target, count = stage.target(place, setting), amount.of(case.wakes, 20)
                taken = asyncio.run(_across(target, case, count))
            name = f"{case.name}, {shown}" if shown else case.name
            found.append(Figure("wakes", name, OURS, case.gap * 1e3, "ms", sorted(taken)))
            print(f"wakes, {name}", file=sys.stderr)
    return found + peers(stage, amount)


# ---------------------------------------------------------------- others' commits


async def _wait(target: Target, seconds: float) -> list[float]:
    """Wait for a job that never comes; gives the shares of one core that it costs, in percent."""
    async with target.open() as store:
        task = asyncio.create_task(store.queue(NAME).claim())
        await asyncio.sleep(SETTLING)
        used = []
        for _ in range(LOOKS):
            before = time.process_time()
            await asyncio.sleep(seconds)
            used.append((time.process_time() - before) / seconds * 100)
        assert not task.done()
        task.cancel()
        return used


def foreign(stage: Stage, amount: Amount) -> list[Figure]:
    """Measure what a process that waits uses while another one works on other queues of the same storage."""
    found = []
    for rate in RATES:
        with stage.place() as place:
            target = stage.target(place, next(iter(stage.settings)))
            other = SPAWN.Process(target=_load_alone, args=(target, max(rate // 3, 1)))
            if rate:
                other.start()
            used = asyncio.run(_wait(target, WATCHED * max(amount.share, 0.2)))
            if rate:
                other.kill()
                other.join()
        found.append(Figure("foreign", "one wait", OURS, rate, "%", used))
        print(f"foreign, {rate} commits/s: {used}", file=sys.stderr)
    return found
