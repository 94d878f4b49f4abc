"""How soon a task that waits has a job that another task of the same event loop enqueues, beside `asyncio.Queue`.

Timed from the call that enqueues to the return of the call that waited. Between wakes that are some milliseconds apart the
processor forgets the code of both: what `asyncio.Queue` takes then is what the machine gives. *Active* is each wake right
after the one before.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from figure import Figure
from stage import OURS, Amount, Stage
from wakes import CASES, LIMIT, LOAD, NAME, WARM, Case, apart, load

from alkstore_mem import MemStore

__all__ = ["wakes"]

ACTIVE: Final = Case("active", 0, 1_000)
PEER: Final = "asyncio.Queue"


async def _timed(
    case: Case,
    count: int,
    put: Callable[[object], Awaitable[object]],
    take: Callable[[], Awaitable[Any]],
    finish: Callable[[Any], Awaitable[Any]],
) -> list[float]:
    """Give the milliseconds of each wake; ``finish`` makes of what was taken what was put, unmeasured."""
    is_free = asyncio.Event()

    async def produce() -> None:
        for at in range(count + WARM):
            if case.gap:
                await asyncio.sleep(apart(case, at))
            else:
                await is_free.wait()
                is_free.clear()
            await put({"at": time.monotonic_ns()})

    producer = asyncio.create_task(produce())
    taken = []
    for _ in range(count + WARM):
        is_free.set()  # what this wakes runs when the call below waits
        found = await take()
        came = time.monotonic_ns()
        sent = await finish(found)
        taken.append((came - sent["at"]) / 1e6)
    await producer
    return taken[WARM:]


async def _ours(case: Case, count: int) -> list[float]:
    async def finish(handle: Any) -> object:
        sent: object = handle.job.payload
        await handle.ack()
        return sent

    async with MemStore() as store:
        queue = store.queue(NAME)
        others = asyncio.create_task(load(store, LOAD)) if case.is_loaded else None
        taken = await _timed(case, count, queue.enqueue, lambda: queue.claim(timeout=LIMIT), finish)
        if others is not None:
            others.cancel()
        return taken


async def _peers(case: Case, count: int) -> list[float]:
    queue: asyncio.Queue[Any] = asyncio.Queue()

    async def finish(sent: object) -> object:
        queue.task_done()
        return sent

    return await _timed(case, count, queue.put, queue.get, finish)


def wakes(stage: Stage, amount: Amount) -> list[Figure]:
    """Time wakes of both, in turn; the values are all of them, in milliseconds."""
    found = []
    for case in (*CASES, ACTIVE):
        for side, measure in ((OURS, _ours), (PEER, _peers)):
            # Of load on other queues, one that has no others hears nothing.
            if side not in stage.sides or (side == PEER and case.is_loaded):
                continue
            taken = asyncio.run(measure(case, amount.of(case.wakes, 20)))
            found.append(Figure("wakes", case.name, side, case.gap * 1e3, "ms", sorted(taken)))
            print(f"wakes, {case.name}: {side}", file=sys.stderr)
    return found
