"""What a caller gets of a connection for as long as it is his."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from alkstore_pg.link import Connection, answered

__all__ = ["Loan"]

T = TypeVar("T")


class Loan(PoolConnectionProxy):
    """A connection that is of no use to whom it was lent once that is over, as what asyncpg's own pool lends.

    Args:
        connection: What is lent.
        told: Called after each statement of the borrower's.
    """

    __slots__ = ("_told",)

    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]", told: Callable[[], object]) -> None:
        # Not the pool's own beginning, which has the connection ask that pool for what it has forgotten.
        self._con: Any = connection
        self._holder: Any = None
        self._told = told

    def end(self) -> None:
        """Take it back, and what was made of it: its statements, cursors and transactions end too."""
        connection, self._con = self._con, None
        # Not public: without it a statement that was prepared on it could still be run.
        if (forget := getattr(connection, "_on_release", None)) is not None:
            forget()

    # The driver's loggers of statements are called a turn of the loop later, when the next one may have hidden this one.

    def execute(self, *args: Any, **options: Any) -> Any:
        return self._telling(super().execute(*args, **options))

    def executemany(self, *args: Any, **options: Any) -> Any:
        return self._telling(super().executemany(*args, **options))

    def fetch(self, *args: Any, **options: Any) -> Any:
        return self._telling(super().fetch(*args, **options))

    def fetchmany(self, *args: Any, **options: Any) -> Any:
        return self._telling(super().fetchmany(*args, **options))

    def fetchrow(self, *args: Any, **options: Any) -> Any:
        return self._telling(super().fetchrow(*args, **options))

    def fetchval(self, *args: Any, **options: Any) -> Any:
        return self._telling(super().fetchval(*args, **options))

    def _telling(self, statement: Awaitable[T]) -> Awaitable[T]:
        return self._told_of(self._con, statement)

    async def _told_of(self, connection: Connection, statement: Awaitable[T]) -> T:
        try:
            return await answered(connection, statement)
        finally:
            self._told()
