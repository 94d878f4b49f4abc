"""Awaiting what must go on to its end though its caller is cancelled, without a task for it."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

__all__ = ["Kept"]

T = TypeVar("T")


class Kept(Generic[T]):
    """A coroutine that runs to its end whoever is cancelled: what a task and a wait for it do, in half of the loop's turns.

    It begins in the turn in which it is awaited, and each of its steps is the callback of what the one before waited for.
    So it has no task of its own, and must wait for nothing that needs one: asyncio's timeouts, but no future.

    Args:
        work: What is to be done.
        left: Called if the caller is cancelled, with the future of what comes of the work.
    """

    __slots__ = ("_answer", "_is_over", "_left", "_loop", "_work")

    def __init__(self, work: Coroutine[Any, Any, T], left: Callable[[asyncio.Future[T]], object]) -> None:
        self._work = work
        self._left = left
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[T] = self._loop.create_future()
        self._is_over = False

    def __await__(self) -> Generator[Any, None, T]:
        self._step()
        try:
            return (yield from self._answer)
        except asyncio.CancelledError:
            if not self._is_over:  # what was awaited is cancelled with its caller
                self._answer = self._loop.create_future()
            self._left(self._answer)
            raise

    def _step(self, _: object = None) -> None:
        try:
            awaited = self._work.send(None)
        except StopIteration as end:
            self._ended().set_result(end.value)
        except asyncio.CancelledError:
            self._ended().cancel()
        except Exception as error:
            self._ended().set_exception(error)
        else:
            if awaited is None:  # a turn of the loop
                self._loop.call_soon(self._step)
                return
            # What a task does to a future that it is given.
            awaited._asyncio_future_blocking = False
            awaited.add_done_callback(self._step)

    def _ended(self) -> asyncio.Future[T]:
        self._is_over = True
        if self._answer.done():  # its caller is cancelled, and has not heard of it yet
            self._answer = self._loop.create_future()
        return self._answer
