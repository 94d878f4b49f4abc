"""One database, and one schema in it: where a store is, and whether a caller's connection is there too.

State model. The store's own place is asked for when it opens: who joins has a connection to the server already, and behind a
pooler that has no other left the answer would come only when he lets go. A place that is not ours may be ours all the same,
since the server was restarted or the schema made anew; only then we ask again, once for everybody who wants to know.
"""

import asyncio
from collections.abc import Sequence
from typing import Final
from weakref import WeakSet

from alkstore.errors import Closed, DatabaseError, InvalidArgument, show
from alkstore.statements import load
from alkstore_pg.carrier import Carrier
from alkstore_pg.pool import Pool
from alkstore_pg.session import Row, Session
from alkstore_pg.surroundings import Options

__all__ = ["Places", "look"]

SQL: Final = load("alkstore_pg", "join")


class Places:
    """Where a store is, and the drivers' connections that are known to be there too.

    Args:
        own: What `look` gave when the store opened.
        pool: Asks again.
    """

    def __init__(self, options: Options, own: Row, pool: Pool) -> None:
        self._options = options
        self._schema = options.schema.name
        self.own: Sequence[object] = own[:-1]
        self._pool = pool
        self._known: WeakSet[object] = WeakSet()
        self._asking: asyncio.Task[None] | None = None

    async def check(self, carrier: Carrier) -> None:
        """See that a caller's connection is to this store's database, and may use its schema.

        Raises:
            InvalidArgument: It is not, or may not.
            DatabaseError: The store's own schema is gone, or it failed.

        Cost: one round trip for each driver's connection once, on that connection.
        """
        if carrier.driver in self._known:
            return
        *found, may_use = await look(carrier, self._schema)
        if not found or found != self.own:
            await self._ask_again()
        if not found and not self.own:
            raise DatabaseError(f"postgresql: schema {show(self._schema)} is missing; run alkstore migrate")
        if not found or found != self.own:
            raise InvalidArgument(
                f"connection is to another database than this store, which is on {self._options.shown}"
                + ("" if found else "; that schema is missing where the connection is")
            )
        if not may_use:
            raise InvalidArgument(
                f"connection's role may not use schema {show(self._schema)}; "
                "grant it what alkstore migrate --sql --grant-to prints"
            )
        self._known.add(carrier.driver)

    async def _ask_again(self) -> None:
        """Ask for our own place as it is now, or wait for who does."""
        if self._asking is None:
            # Not for this caller alone: who is cancelled would take the answer from the others, who then ask in vain for a
            # connection that he has just let go.
            self._asking = self._pool.spawn(self._ask())
        asking = self._asking
        await asyncio.wait((asking,))
        if asking.cancelled():
            raise Closed("store")
        asking.result()

    async def _ask(self) -> None:
        try:
            *self.own, _ = await self._pool.run(lambda on: look(on, self._schema), reads=True)
        finally:
            self._asking = None


async def look(on: Session, schema: str) -> Row:
    """Give what tells this database and schema from others, and at last whether the role may use the schema."""
    rows = await on.fetch(SQL["place"], schema)
    return list(rows[0]) if rows else [False]
