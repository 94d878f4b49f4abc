"""What a caller gets of a connection for as long as it is his."""

from typing import Any

import asyncpg
from asyncpg.pool import PoolConnectionProxy

__all__ = ["Loan"]


class Loan(PoolConnectionProxy):
    """A connection that is of no use to whom it was lent once that is over, as what asyncpg's own pool lends."""

    __slots__ = ()

    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        # Not the pool's own beginning, which has the connection ask that pool for what it has forgotten.
        self._con: Any = connection
        self._holder: Any = None

    def end(self) -> None:
        """Take it back, and what was made of it: its statements, cursors and transactions end too."""
        connection, self._con = self._con, None
        # Not public: without it a statement that was prepared on it could still be run.
        if (forget := getattr(connection, "_on_release", None)) is not None:
            forget()
