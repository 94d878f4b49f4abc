"""Races: coroutines that begin together, and the measure of whether they really overlapped."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from alkstore_contract_suite.failure import Inconclusive

__all__ = ["Step", "Worker", "race", "race_workers"]

T = TypeVar("T")
Step: TypeAlias = Callable[[], Awaitable[None]]
Worker: TypeAlias = Callable[[Step], Awaitable[T]]

LEAST_OVERLAP: Final = 2
"""Workers that must have been interrupted by another one; with fewer there was no race."""


async def race(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all at once, none continuing before all have begun; the first error ends the others and is raised."""
    gate = asyncio.Barrier(len(coroutines))

    async def begin(coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            await gate.wait()
        except BaseException:
            coroutine.close()
            raise
        return await coroutine

    tasks = [asyncio.create_task(begin(coroutine)) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def race_workers(workers: Sequence[Worker[T]]) -> list[T]:
    """Race workers that say when they stand between two operations.

    Raises:
        Inconclusive: Fewer than two of them were ever interrupted by another one.
    """
    order: list[int] = []

    def stepper(number: int) -> Step:
        async def step() -> None:
            order.append(number)
            await asyncio.sleep(0)

        return step

    async def run(number: int, worker: Worker[T]) -> T:
        return await worker(stepper(number))

    results = await race([run(number, worker) for number, worker in enumerate(workers)])
    found = overlapping(order)
    if found < LEAST_OVERLAP:
        raise Inconclusive(
            f"{found} of {len(workers)} workers overlapped another one, at least {LEAST_OVERLAP} must"
        )
    return results


def overlapping(order: Sequence[int]) -> int:
    """Count the workers between whose first and last step another worker stepped."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    count: dict[int, int] = {}
    for place, number in enumerate(order):
        first.setdefault(number, place)
        last[number] = place
        count[number] = count.get(number, 0) + 1
    return sum(last[number] - first[number] + 1 > count[number] for number in count)
