"""What the sides of every benchmark are asked to do, again and again; a side is whatever has these operations."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

__all__ = [
    "BATCH",
    "CLAIMED",
    "JOINS",
    "TASKS",
    "Run",
    "Work",
    "claim",
    "claim_by_batch",
    "drain",
    "enqueue",
    "enqueue_at_once",
    "enqueue_by_batch",
    "fill",
    "fill_stream",
    "lock",
    "pass_through",
    "process",
    "process_by_batch",
    "process_by_page",
    "publish",
    "publish_at_once",
    "publish_by_batch",
    "replay",
    "stay",
    "transact",
    "work",
]

TASKS: Final = 64
BATCH: Final = 1_000
CLAIMED: Final = 100
PAGE: Final = 500
"""The most that one call of the worker's claims for."""

JOINS: Final = "joins"
"""The setting of a side whose tables another one has made."""

Run: TypeAlias = Callable[[Any, int], Awaitable[object]]
"""Does an operation of a side so many times."""


class Work(NamedTuple):
    """Something to do.

    Attributes:
        step: Operations are a multiple of it.
        sides: Names of those that do it, ours first.
        needs: What must be done unmeasured before, for as many operations.
        part: Of the engine's parts.
        seconds: That one slice takes about; what has a start of its own gets longer ones.
    """

    name: str
    run: Run
    sides: Sequence[str]
    step: int = 1
    needs: Run | None = None
    part: str = "rates"
    seconds: float = 0.12


async def enqueue(side: Any, count: int) -> None:
    for _ in range(count):
        await side.enqueue()


async def enqueue_at_once(side: Any, count: int) -> None:
    await asyncio.gather(*(enqueue(side, count // TASKS) for _ in range(TASKS)))


async def enqueue_by_batch(side: Any, count: int) -> None:
    for start in range(0, count, BATCH):
        await side.enqueue_many(min(BATCH, count - start))


fill: Final[Run] = enqueue_by_batch


async def claim(side: Any, count: int) -> None:
    for _ in range(count):
        await side.claim_and_ack()


async def claim_by_batch(side: Any, count: int) -> None:
    for start in range(0, count, CLAIMED):
        await side.claim_and_ack_many(min(CLAIMED, count - start))


async def process(side: Any, count: int) -> None:
    await side.process(count, 1)


async def process_by_batch(side: Any, count: int) -> None:
    await side.process(count, CLAIMED)


async def process_by_page(side: Any, count: int) -> None:
    await side.process(count, PAGE)


async def stay(side: Any, count: int) -> None:
    """Take a job, finish it, and put one in: as many wait afterwards as before."""
    for _ in range(count):
        await side.claim_and_ack()
        await side.enqueue()


async def pass_through(side: Any, count: int) -> None:
    for _ in range(count):
        await side.enqueue()
        await side.claim_and_ack()


async def publish(side: Any, count: int) -> None:
    for _ in range(count):
        await side.publish()


async def publish_at_once(side: Any, count: int) -> None:
    await asyncio.gather(*(publish(side, count // TASKS) for _ in range(TASKS)))


async def publish_by_batch(side: Any, count: int) -> None:
    for start in range(0, count, BATCH):
        await side.publish_many(min(BATCH, count - start))


fill_stream: Final[Run] = publish_by_batch


async def replay(side: Any, count: int) -> None:
    """Read so many further events of a stream, and their payloads."""
    await side.replay(count)


async def lock(side: Any, count: int) -> None:
    for _ in range(count):
        await side.lock()


async def transact(side: Any, count: int) -> None:
    """Commit a row of the application's own and a job, again and again."""
    for _ in range(count):
        await side.transact()


async def work(side: Any, count: int) -> None:
    """Have the library's own worker work off what waits."""
    await side.work(count)


async def drain(side: Any, count: int) -> None:
    """Work off what waits, with other processes that do so too."""
    await side.drain()
