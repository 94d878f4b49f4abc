"""Steps that the schedule rows share."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from alkstore import Job, LockInfo, Schedule, StopToken, Store
from alkstore_contract_suite.context import Context

T = TypeVar("T")

STORED: Final = ("plain", "second", "reopen", "crash-drop", "crash-kill")
"""The modes of a promise about what is written: whoever looks later, it is there."""

SECOND: Final = ("plain", "second")
LEASE: Final = 10
LEASE_NAME: Final = "__alkstore_scheduler"


async def stored(ctx: Context, store: Store, name: str, promise: str = "a schedule stays") -> Schedule:
    """Read one schedule that must be there."""
    found = [each for each in await store.schedules() if each.name == name]
    ctx.expect(len(found), 1, promise)
    return found[0]


async def fires(store: Store, queue: str) -> list[Job]:
    """Read the jobs that were fired into a queue, in the order of their ids."""
    return await store.queue(queue).list(limit=5_000)


async def fired_for(store: Store, queue: str) -> list[datetime | None]:
    """Read the boundaries whose jobs are in a queue, in the order of the jobs' ids."""
    return [job.scheduled_for for job in await fires(store, queue)]


async def lease(store: Store) -> LockInfo | None:
    """Read the runner's lease; None if nobody leads."""
    found = [each for each in await store.locks() if each.name == LEASE_NAME]
    return found[0] if found else None


def boundaries(start: datetime, every: float, *numbers: int) -> list[datetime | None]:
    """Give the boundaries of a grid by their numbers."""
    return [start + number * timedelta(seconds=every) for number in numbers]


class Runner:
    """``run_schedules``, or another of the store's waits, in a task that can be made to stand still.

    Standing still is what a suspended process does: nothing of the task goes on, and nobody is told.
    """

    def __init__(self, ctx: Context, store: Store, *, supervised: bool = False) -> None:
        self.stop = StopToken()
        run = store.supervise_schedules if supervised else store.run_schedules
        self._stalled = Stalled(lambda: run(self.stop))
        self.task = ctx.start(self._stalled.result())

    def stall(self, *, after: int = 0) -> None:
        """Stand still from the next time that the task waits for anything, or so many times later."""
        self._stalled.left = after

    def go_on(self) -> None:
        """Go on where the task stood still."""
        self._stalled.go_on()

    async def ends(self, ctx: Context, promise: str = "a stop ends the runner") -> None:
        """Stop, and wait for the clean end."""
        self.stop.cancel()
        ctx.expect(await ctx.soon(self.task, promise), None, promise)


class Stalled:
    """Drives a coroutine, and holds it back on demand after one of the futures that it waited for is done."""

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._begin = begin  # not begun before it is awaited: a task may be cancelled before its first step
        self._gate = asyncio.Event()
        self._gate.set()
        self.left: int | None = None

    def go_on(self) -> None:
        self.left = None
        self._gate.set()

    async def result(self) -> None:
        """Await the coroutine."""
        await self

    def __await__(self) -> Generator[Any, Any, None]:
        inner = self._begin().__await__()
        send: Any = lambda: next(inner)  # noqa: E731  # what the next step of the coroutine is
        while True:
            try:
                waited_for = send()
            except StopIteration:
                return
            send = lambda: next(inner)  # noqa: E731
            try:
                yield waited_for
                yield from self._hold()
            except BaseException as error:
                send = lambda error=error: inner.throw(error)  # noqa: E731

    def _hold(self) -> Generator[Any, Any, None]:
        if self.left is None:
            return
        if self.left > 0:
            self.left -= 1
            return
        self.left = None
        self._gate.clear()
        yield from self._gate.wait().__await__()
