"""The limit on what the server has in hand: one timer for many operations, for one each would cost a tenth of a short one."""

import asyncio
from typing import Final, TypeAlias

import asyncpg

__all__ = ["Watchdog"]

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

MOMENT: Final = 0.001
"""Seconds by which a timer may be early."""


class Watchdog:
    """Ends connections that have an operation in hand for more than ``limit`` seconds.

    Whoever waits for the answer gets the driver's error at once, and whoever is next another connection.
    """

    __slots__ = ("_begun", "_limit", "_timer")

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._begun: dict[Connection, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, connection: Connection) -> float:
        """An operation begins, the only one on its connection; gives the loop's time."""
        loop = asyncio.get_running_loop()
        began = self._begun[connection] = loop.time()
        if self._timer is None:
            self._timer = loop.call_at(began + self._limit, self._look)
        return began

    def end(self, connection: Connection) -> bool:
        """It has ended; True if it had taken too long. Harmless if it has before."""
        return self._begun.pop(connection, None) is None

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time() + MOMENT
        for connection, began in list(self._begun.items()):  # the first of them began first
            if began + self._limit > now:
                self._timer = loop.call_at(began + self._limit, self._look)
                return
            del self._begun[connection]
            connection.terminate()
