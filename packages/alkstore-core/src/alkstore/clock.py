"""The clock seam: what *now* is for an engine that keeps its own time, and how to wait for an instant on it.

An instant is an ``int``: microseconds since 1970-01-01T00:00:00Z. A duration is an ``int`` of microseconds.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

from alkstore.errors import InvalidArgument, show

__all__ = ["Clock", "ServerClock", "SteppedTimer", "SystemClock", "Timer", "chosen"]

T = TypeVar("T")

_SECOND: Final = 1_000_000

LONGEST_SLEEP: Final = 1.0
"""Seconds between two looks at a wall clock that may be set while we sleep."""


class Timer(Protocol):
    """A callback that waits for an instant."""

    def cancel(self) -> None:
        """Forget the callback; harmless after it ran."""


class Clock(Protocol):
    """Time as one store, or several stores on one storage, see it."""

    def now(self) -> int:
        """Give the present instant."""

    def call_at(self, instant: int, callback: Callable[[], object]) -> Timer:
        """Call back once, in the running event loop, when ``now() >= instant``; never within this call."""


class SystemClock:
    """The machine's wall clock."""

    def now(self) -> int:
        return time.time_ns() // 1_000

    def call_at(self, instant: int, callback: Callable[[], object]) -> Timer:
        return SteppedTimer(self, instant, callback)


class SteppedTimer:
    """A timer on a clock that may be set at any time: it looks at it again every LONGEST_SLEEP seconds."""

    __slots__ = ("_callback", "_clock", "_handle", "_instant", "_loop")

    def __init__(self, clock: Clock, instant: int, callback: Callable[[], object]) -> None:
        self._clock = clock
        self._instant = instant
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self._sleep()

    def _sleep(self) -> None:
        # That clock may be set at any time while the loop's is monotonic: short sleeps notice it.
        seconds = min(max((self._instant - self._clock.now()) / _SECOND, 0.0), LONGEST_SLEEP)
        self._handle = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        if self._clock.now() >= self._instant:
            self._handle = None
            self._callback()
        else:
            self._sleep()

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class ServerClock:
    """The clock of a server that tells its time now and then, as far as this process knows it; it never runs ahead of that.

    State model. Every answer that holds the server's *now* bounds how far that clock is from the loop's: by what the loop's
    said when the question left, and when the answer came. The least offset that agrees with all bounds is taken, so that an
    instant is never reached here before it is there. Bounds that contradict the ones before mean that the server's clock
    was set, or that the two drifted apart: they begin anew.
    """

    def __init__(self) -> None:
        self._least: int | None = None
        self._most = 0

    def heard(self, now: int, sent: float, received: float) -> None:
        """Learn from an answer.

        Args:
            now: What the server's clock said while it worked on it, in microseconds.
            sent: What the running loop's clock said before the question left, in seconds.
            received: The same when the answer was there.
        """
        least, most = now - math.ceil(received * _SECOND), now - math.floor(sent * _SECOND)
        if self._least is None or least > self._most or most < self._least:
            self._least, self._most = least, most
        else:
            self._least, self._most = max(self._least, least), min(self._most, most)

    async def learn(self, answer: Awaitable[T], told: Callable[[T], int | None]) -> T:
        """Await an answer, and learn from the instant at which the server began on it, if ``told`` finds one in it."""
        time = asyncio.get_running_loop().time
        sent = time()
        found = await answer
        received = time()
        if (now := told(found)) is not None:
            self.heard(now, sent, received)
        return found

    def now(self) -> int:
        """Give the server's present instant, or one that it passed no longer ago than its answers take.

        Raises:
            RuntimeError: The server has not told its time yet.
        """
        if self._least is None:
            raise RuntimeError("the server has not told its time yet")
        return math.floor(asyncio.get_running_loop().time() * _SECOND) + self._least

    def call_at(self, instant: int, callback: Callable[[], object]) -> Timer:
        return SteppedTimer(self, instant, callback)


def chosen(clock: Clock | None) -> Clock:
    """Give the clock that was handed to a store, the machine's own if none was.

    Raises:
        InvalidArgument: It is no clock.
    """
    if clock is None:
        return SystemClock()
    for name in ("now", "call_at"):
        if isinstance(clock, type) or not callable(getattr(clock, name, None)):
            raise InvalidArgument(
                f"clock must have now() and call_at(), as alkstore.clock.Clock says, got {show(clock)}"
            )
    return clock
