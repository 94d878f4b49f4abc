"""The server's clock as far as this process knows it: it is told what the server said, and never runs ahead of that.

State model. Every answer that holds the server's *now* bounds how far that clock is from the loop's: by what the loop's
said when the question left, and when the answer came. The least offset that agrees with all bounds is taken, so that an
instant is never reached here before it is there. Bounds that contradict the ones before mean that the server's clock was
set, or that the two drifted apart: they begin anew.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from alkstore.clock import SteppedTimer, Timer

__all__ = ["ServerClock"]

T = TypeVar("T")

SECOND: Final = 1_000_000


class ServerClock:
    """`alkstore.clock.Clock` of a server that tells its time now and then."""

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
        least, most = now - math.ceil(received * SECOND), now - math.floor(sent * SECOND)
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
        return math.floor(asyncio.get_running_loop().time() * SECOND) + self._least

    def call_at(self, instant: int, callback: Callable[[], object]) -> Timer:
        return SteppedTimer(self, instant, callback)
