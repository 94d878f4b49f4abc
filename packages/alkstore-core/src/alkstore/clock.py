"""The clock seam: what *now* is for an engine that keeps its own time, and how to wait for an instant on it.

An instant is an ``int``: microseconds since 1970-01-01T00:00:00Z. A duration is an ``int`` of microseconds.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

from alkstore.errors import InvalidArgument, show

__all__ = ["Clock", "SteppedTimer", "SystemClock", "Timer", "chosen"]

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
        seconds = min(max((self._instant - self._clock.now()) / 1_000_000, 0.0), LONGEST_SLEEP)
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
