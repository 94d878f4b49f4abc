"""Calls to a storage that answers over connections: they outlive their callers, and end with the store.

State model. A call is a task of its own. Whoever awaits it may be cancelled, and the call goes on: an answer that is still
due on a connection must not be taken for the next call's, and to drop the connection each time would be dear. So many at
most are on their way at once; the others stand in line. The close refuses those in line, and cuts off the rest.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from alkstore.batching import unanswered
from alkstore.errors import Closed, DatabaseError

__all__ = ["ASK_AGAIN", "CIRCLE", "HELD", "Calls"]

T = TypeVar("T")

HELD: Final = "held"
CIRCLE: Final = "circle"
"""What a storage answers that does not wait: another transaction has it, or has it and waits for the one that asks."""

LEAST_PATIENCE: Final = 1.0
"""Seconds that the storage has for its answer, however short ``wait_timeout``, the limit of waiting for others, is."""

ASK_AGAIN: Final = 0.01
"""Seconds after which to look whether it is still held: nobody tells, for a process that died could not."""


class Calls:
    """Every call of one store.

    Args:
        at_once: How many may be on their way.
        wait_timeout: Seconds that one may wait for another transaction.
        name: What messages call the engine.
        errors: What the driver raises.
        refused: Those of them that say that nothing was executed; after any other it is not known.

    Attributes:
        in_hand: Calls in line or under way.
        done: How many have ended.
        patience: Seconds that one may take, in line and under way.
    """

    def __init__(
        self,
        at_once: int,
        wait_timeout: float,
        name: str,
        errors: tuple[type[Exception], ...],
        refused: tuple[type[Exception], ...],
    ) -> None:
        self.in_hand = self.done = 0
        self._is_closed = False
        self._slots = asyncio.Semaphore(at_once)
        self.patience: Final = max(wait_timeout, LEAST_PATIENCE)
        self._wait_timeout = wait_timeout
        self._errors: tuple[type[Exception], ...] = (*errors, TimeoutError)
        self._name = name
        self._refused = refused
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.get_running_loop()

    async def run(self, call: Callable[..., Awaitable[T]], *arguments: object) -> T:
        """Call, and give the answer.

        Raises:
            Closed: The store is closed.
            DatabaseError: The driver's error is its cause; or the store was closed before the answer came.
        """
        if self._is_closed:
            raise Closed("store")
        task = self._start(self._run(call, *arguments))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():  # by the close
                raise unanswered() from None
            raise

    def leave(self, call: Callable[..., Awaitable[object]], *arguments: object) -> None:
        """Call, and await nothing; from a finaliser too, in whatever thread that runs. Too late, it does nothing."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._begin_left, call, *arguments)

    async def run_when_free(
        self, what: Callable[[], str], call: Callable[..., Awaitable[T]], *arguments: object
    ) -> T:
        """As `run`, again and again while the answer is HELD; transactions hold positions for moments.

        Raises:
            Closed, DatabaseError: As `run`. Or another transaction held what ``what`` names for ``wait_timeout`` seconds, or waits for
                this one (the answer is CIRCLE).
        """
        until = self._loop.time() + self._wait_timeout
        while (answer := await self.run(call, *arguments)) in (HELD, CIRCLE):
            if answer == CIRCLE:
                raise _held_back(
                    f"{what()} is held by a transaction that waits for this one; begin this one again"
                )
            if self._loop.time() >= until:
                raise _held_back(
                    f"{what()} was held by another transaction for over {self._wait_timeout:g} s"
                )
            await asyncio.sleep(ASK_AGAIN)
        return answer

    async def aclose(self, cut: Callable[[], Awaitable[object]]) -> None:
        """End every call: ``cut`` ends those under way, by an error of the driver's. What that left is cancelled."""
        self._is_closed = True
        await cut()
        while self._tasks:
            # Again and again: asyncio.wait_for, which drivers use, may swallow a cancellation before Python 3.12.
            _, left = await asyncio.wait(self._tasks, timeout=0.1)
            for task in left:
                task.cancel()

    async def _run(self, call: Callable[..., Awaitable[T]], *arguments: object) -> T:
        self.in_hand += 1
        try:
            async with asyncio.timeout(self.patience), self._slots:
                if self._is_closed:
                    raise Closed("store")
                return await call(*arguments)
        except self._errors as error:
            raise self._translated(error) from error
        finally:
            self.in_hand -= 1
            self.done += 1

    def _translated(self, error: Exception) -> DatabaseError:
        made = DatabaseError(f"{self._name}: {str(error).strip() or type(error).__name__}")
        is_late = isinstance(error, TimeoutError)
        made.outcome_unknown = is_late or not isinstance(error, self._refused)
        made._is_held_back = is_late
        return made

    def _begin_left(self, call: Callable[..., Awaitable[object]], *arguments: object) -> None:
        if not self._is_closed:
            _ = self._start(self._run(call, *arguments))

    def _start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever awaits it sees it


def _held_back(why: str) -> DatabaseError:
    error = DatabaseError(why)
    error._is_held_back = True
    return error
