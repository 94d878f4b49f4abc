"""Races: coroutines that begin together, and the measure of whether they really overlapped.

A race has *arms*. How long one was at work is an interval of this machine's clock, from its first step behind the gate to
its end; where it let a child process work, the interval is the child's own, for to await an answer is no work. Two arms
overlapped if each began before the other one ended.

An arm that never gave way was one step of the loop, which nobody in its process can interrupt. Such arms cannot overlap
anything, and need not: that nothing comes in between is what they are to show. So an engine without I/O races with all
that it has, and only arms that could have overlapped, and did not, say nothing.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

from alkstore_contract_suite.failure import NotRaced

__all__ = [
    "LEAST_OVERLAP",
    "Arm",
    "Step",
    "Worker",
    "overlapped",
    "overlapping",
    "race",
    "race_workers",
    "worked",
]

T = TypeVar("T")
Step: TypeAlias = Callable[[], Awaitable[None]]
Worker: TypeAlias = Callable[[Step], Awaitable[T]]
Span: TypeAlias = tuple[int, int]
"""Begin and end, in nanoseconds of the clock that all processes of a machine have in common."""

LEAST_OVERLAP: Final = 2
"""Workers that must have been interrupted by another one; with fewer there was no race."""


@dataclass(slots=True)
class Arm:
    """What one coroutine of a race did, and when.

    Attributes:
        own: When it ran in this process.
        gave_way: Whether anybody else in this process had a turn meanwhile.
        elsewhere: When child processes worked for it.
    """

    own: Span = (0, 0)
    gave_way: bool = False
    elsewhere: list[Span] = field(default_factory=list)

    @property
    def spans(self) -> Sequence[Span]:
        return self.elsewhere or (self.own,)

    @property
    def can_overlap(self) -> bool:
        return self.gave_way or bool(self.elsewhere)


_ARM: ContextVar[Arm] = ContextVar("arm")
"""The arm that the current task is."""


def worked(begun: int, ended: int) -> None:
    """Say that a child process worked for the current arm; nothing where nobody races."""
    if (arm := _ARM.get(None)) is not None:
        arm.elsewhere.append((begun, ended))


async def race(coroutines: Sequence[Coroutine[Any, Any, T]], arms: Sequence[Arm] | None = None) -> list[T]:
    """Run all at once, none continuing before all have begun; the first error ends the others and is raised.

    Args:
        arms: Where to note what each of them did, for `overlapped`.
    """
    gate = asyncio.Barrier(len(coroutines))
    noted = arms or [Arm() for _ in coroutines]

    async def begin(coroutine: Coroutine[Any, Any, T], arm: Arm) -> T:
        try:
            await gate.wait()
        except BaseException:
            coroutine.close()
            raise
        _ARM.set(arm)
        return await _timed(coroutine, arm)

    tasks = [asyncio.create_task(begin(*each)) for each in zip(coroutines, noted, strict=True)]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _timed(coroutine: Coroutine[Any, Any, T], arm: Arm) -> T:
    # It stands in line before whatever the coroutine may wait for.
    turn = asyncio.get_running_loop().call_soon(setattr, arm, "gave_way", True)
    begun = time.monotonic_ns()
    try:
        return await coroutine
    finally:
        arm.own = begun, time.monotonic_ns()
        turn.cancel()


def overlapped(arms: Sequence[Arm]) -> str:
    """Say in a line how many arms overlapped another one.

    Raises:
        NotRaced: Two or more of them could have, and fewer than `LEAST_OVERLAP` did.
    """
    able = [arm for arm in arms if arm.can_overlap]
    if len(able) < LEAST_OVERLAP:
        return f"{len(arms) - len(able)} of {len(arms)} never gave way, so that nothing can come in between"
    met = sum(any(_met(arm, other) for other in able if other is not arm) for arm in able)
    told = f"{met} of {len(arms)} in the race overlapped another one"
    if met < LEAST_OVERLAP:
        raise NotRaced(f"{told}, at least {LEAST_OVERLAP} must")
    return told


def _met(one: Arm, other: Arm) -> bool:
    return any(a[0] < b[1] and b[0] < a[1] for a in one.spans for b in other.spans)


async def race_workers(workers: Sequence[Worker[T]]) -> list[T]:
    """Race workers that say when they stand between two operations.

    Raises:
        NotRaced: Fewer than two of them were ever interrupted by another one.
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
        raise NotRaced(
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
