"""What the areas of one in-memory store share: its clock, its hub, its open transactions, and whether it still lives."""

import asyncio
from collections.abc import Iterable
from typing import Protocol

from alkstore.clock import Clock
from alkstore.engine import Topic
from alkstore.errors import Closed
from alkstore.watch import Hub

__all__ = ["Freeable", "State"]


class Freeable(Protocol):
    """An open transaction, as far as the state must know it."""

    def free(self) -> None:
        """Leave no trace, and wake whoever was held back."""


class State:
    """Everything that is neither a row nor an area's own."""

    __slots__ = ("_abandoned", "_loop", "clock", "hub", "is_closed", "is_stirred", "open")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.hub = Hub(clock)
        self.open: dict[Freeable, None] = {}
        self.is_closed = False
        self.is_stirred = False
        """Whether `enter` has anything to do: one flag, because every operation asks."""
        self._abandoned: list[Freeable] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def enter(self) -> None:
        """Begin an operation.

        Raises:
            Closed: The store is closed.
        """
        self.is_stirred = self.is_closed
        self.reap()
        if self.is_closed:
            raise Closed("store")

    def opened(self, transaction: Freeable) -> None:
        self._loop = asyncio.get_running_loop()
        self.open[transaction] = None

    def abandon(self, transaction: Freeable) -> None:
        """Free a transaction soon: a finaliser may run in the middle of any statement, even within a heap's sift."""
        self._abandoned.append(transaction)
        self.is_stirred = True
        if self._loop is not None and not self._loop.is_closed():
            # The collector may run in another thread of the application: call_soon alone would be unsafe there.
            self._loop.call_soon_threadsafe(self.reap)

    def reap(self) -> None:
        """Free what was abandoned."""
        while self._abandoned:
            self._abandoned.pop().free()

    def wake(self, topics: Iterable[Topic]) -> None:
        for topic in topics:
            self.hub.wake(topic)

    def close(self) -> None:
        """Refuse everything from now on; ends open transactions and every watch."""
        self.is_closed = self.is_stirred = True
        self.reap()
        for transaction in list(self.open):
            transaction.free()
        self.hub.aclose()
