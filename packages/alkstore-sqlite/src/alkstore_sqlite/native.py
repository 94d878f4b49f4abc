"""What a transaction is when its engine is known: the same, with a connection that has a type."""

from typing import cast

import aiosqlite

from alkstore import Tx

__all__ = ["SqliteTx"]


class SqliteTx(Tx):
    """What ``SqliteStore.begin_tx`` gives: `alkstore.Tx`, whose ``connection`` is an `aiosqlite.Connection`. Rows: TX-06."""

    __slots__ = ()

    @property
    def connection(self) -> aiosqlite.Connection:
        """The driver's connection, for the caller's own SQL in this transaction.

        Raises:
            Closed: The transaction has ended.
        """
        return cast(aiosqlite.Connection, super().connection)
