"""What a transaction is when its engine is known: the same, with a connection that has a type."""

from typing import cast

import asyncpg

from alkstore import Tx

__all__ = ["PgTx"]


class PgTx(Tx):
    """What ``PgStore.begin_tx`` gives: `alkstore.Tx`, whose ``connection`` is an `asyncpg.Connection`. Rows: TX-06."""

    __slots__ = ()

    @property
    def connection(self) -> "asyncpg.Connection[asyncpg.Record]":
        """The driver's connection, for the caller's own SQL in this transaction.

        Raises:
            Closed: The transaction has ended.
        """
        return cast("asyncpg.Connection[asyncpg.Record]", super().connection)
