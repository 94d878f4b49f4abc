"""Riding the application's own transaction: the same statements, on the application's connection.

What is done here lands with the caller's commit, and whoever waits for it is woken then: by the server, which sends what
a transaction notified when it lands, to this process as to every other.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from alkstore.errors import DatabaseError, InvalidArgument
from alkstore.plain import PlainConnection
from alkstore_pg.carrier import Carrier, carried, origin
from alkstore_pg.errors import translate
from alkstore_pg.link import SLACK, Operation
from alkstore_pg.plain import PlainCarrier
from alkstore_pg.stream import StreamKey
from alkstore_pg.transaction import Operations
from alkstore_pg.wake import Woken

if TYPE_CHECKING:
    from alkstore_pg.engine import PgEngine

__all__ = ["JoinedTransaction"]

T = TypeVar("T")


class JoinedTransaction(Operations):
    """The caller's transaction, as long as it lasts. Make it by `begin`."""

    def __init__(self, engine: "PgEngine", label: str, carrier: Carrier) -> None:
        super().__init__(engine, label)
        self._carrier = carrier
        # A statement that a thread waits for cannot be cut short from here: it ends as the thread's own statements do.
        is_plain = isinstance(carrier, PlainCarrier)
        self._limit = None if is_plain else engine._options.wait_timeout + SLACK
        self._is_left = False

    @classmethod
    async def begin(cls, connection: object, engine: "PgEngine", label: str) -> "JoinedTransaction":
        """Find the driver's connection, make it begin if it begins by itself, and see that it is in a transaction.

        It runs in the caller's task: failed or cancelled, it leaves the connection as it was, with nothing under way on it.

        Raises:
            InvalidArgument: It cannot be joined, and why.
            DatabaseError: Its transaction has failed before, or the server is gone.

        Cost: one round trip for each driver's connection once; SQLAlchemy's may have to begin first.
        """
        schema = engine._options.schema
        carrier: Carrier
        if isinstance(connection, PlainConnection):
            carrier = PlainCarrier(connection, schema)
        else:
            carrier = carried(connection, schema)
        if any(carrier.driver is own.connection for own in engine._pool.lent):
            raise InvalidArgument("connection is the store's own; use the transaction that gave it")
        joined = cls(engine, label, carrier)
        try:
            with engine.traffic:
                await carrier.enter()
                await engine.places.check(carrier)
            if not joined.is_open:
                raise InvalidArgument("connection is in no transaction; begin one on it before joining")
        except BaseException as error:
            await joined._leave()
            if isinstance(error, carrier.errors):
                raise _made(error) from origin(error)
            raise
        return joined

    async def _leave(self) -> None:
        """Roll back what `begin` made begin, to its end: cut short, it would go on beside whoever uses the connection next."""

        async def leave() -> None:
            with suppress(*self._carrier.errors):  # the first error is the one to tell
                async with asyncio.timeout(self._limit):
                    await self._carrier.leave()

        leaving = self._engine._pool.spawn(leave())
        cancelled: asyncio.CancelledError | None = None
        while not leaving.done():
            try:
                await asyncio.wait((leaving,))
            except asyncio.CancelledError as error:
                cancelled = error
        leaving.result()
        if cancelled is not None:
            raise cancelled

    @property
    def is_open(self) -> bool:
        # Once and for all: what was Closed must not come to life again with the caller's next transaction.
        self._is_left = self._is_left or not self._carrier.is_open
        return not self._is_left

    @property
    def connection(self) -> object:
        return self._carrier.given

    def _texts(self, woken: Sequence[Woken]) -> Sequence[str]:
        # Nobody is woken here: the commit is the caller's, and the server tells of it.
        return self._engine.wakes.texts_joined(woken)

    async def _made(self, names: Collection[str]) -> Mapping[str, StreamKey]:
        await self._meet(names)
        return await super()._made(names)

    async def _found(self, stream: str) -> StreamKey | None:
        return (await self._meet({stream})).get(stream) or self._engine._streams.met(stream)

    async def _meet(self, names: Collection[str]) -> Mapping[str, StreamKey]:
        """Ask for streams on the caller's connection: where a pooler has no other, the store's own would wait for it."""
        streams = self._engine._streams
        unmet = streams.unmet(names)
        return await self._do(lambda on: streams.look(on, unmet)) if unmet else {}

    async def _do(self, operation: Operation[T]) -> T:
        self._enter()
        try:
            with self._engine.traffic:
                async with asyncio.timeout(self._limit):
                    return await operation(self._carrier)
        except self._carrier.errors as error:
            self._engine._streams.are_outdated(origin(error))
            raise _made(error) from origin(error)

    async def commit(self) -> None:
        raise InvalidArgument("commit of a joined transaction is its owner's; call it on your connection")

    async def rollback(self) -> None:
        """End what `begin` made begin, and no more: the rest is its owner's. For a store that is closed meanwhile."""
        if self.is_open:
            self._is_left = True
            await self._leave()

    def abandon(self) -> None:
        self._is_left = True


def _made(error: BaseException) -> DatabaseError | InvalidArgument:
    """Make the error that a caller sees of one of his library's."""
    found = origin(error)
    if type(found).__module__.startswith("sqlalchemy."):  # it sent nothing
        return InvalidArgument(f"connection cannot be joined: {found}")
    return translate(found, writes=False)
