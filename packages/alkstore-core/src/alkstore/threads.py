"""Threads for what blocks, which nothing waits for: not the end of the process either."""

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

__all__ = ["Threads", "stopped", "tell"]

T = TypeVar("T")


class _Call(NamedTuple):
    function: Callable[[], object]
    future: asyncio.Future[Any]


class Threads:
    """As many threads as calls are under way at once; each waits for its next call.

    They are daemons. Those of `concurrent.futures` are waited for when the process ends, so one that hangs would keep it
    from ending for ever. Used in one event loop.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._count = 0

    def run(self, function: Callable[[], T]) -> "asyncio.Future[T]":
        """Run a function in a thread. Whoever gives the future up leaves the function running."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._calls.put(_Call(function, future))
        if not self._idle.acquire(blocking=False):
            self._count += 1
            threading.Thread(target=self._work, name=f"{self._name}-{self._count}", daemon=True).start()
        return future

    def close(self) -> None:
        """Let each thread end once it has nothing to do."""
        for _ in range(self._count):
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            value, error = _outcome(call.function)
            # Before it is told, or the next call, which that may bring, would have one more thread begin.
            self._idle.release()
            with suppress(RuntimeError):  # the loop has ended meanwhile
                call.future.get_loop().call_soon_threadsafe(tell, call.future, value, error)
            del call, value, error  # or they would live until the next call


def _outcome(function: Callable[[], object]) -> tuple[object, BaseException | None]:
    try:
        return function(), None
    except StopIteration as error:  # a future refuses it, and whoever waits for that would do so for ever
        return None, stopped(error)
    except BaseException as error:
        return None, error


def stopped(error: StopIteration) -> RuntimeError:
    """Give what stands for a StopIteration where coroutines pass it on, as it is with that of a coroutine's own."""
    other = RuntimeError("the function raised StopIteration")
    other.__cause__ = error
    return other.with_traceback(error.__traceback__)


def tell(future: asyncio.Future[Any], value: object, error: BaseException | None) -> None:
    """Let a future have an outcome, in its loop, unless it was given up."""
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
