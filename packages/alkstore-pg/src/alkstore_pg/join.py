"""Riding the application's own transaction: the same statements, on the application's connection.

What is done here lands with the caller's commit, and whoever waits for it is woken then: by the server, which sends what
a transaction notified when it lands, to this process as to every other.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import asyncpg

from alkstore.errors import InvalidArgument, show
from alkstore.statements import load
from alkstore_pg.errors import translate
from alkstore_pg.link import Connection, DriverSession, Operation
from alkstore_pg.session import Row, Schema, Session
from alkstore_pg.transaction import DRIVER, Operations
from alkstore_pg.wake import Woken

if TYPE_CHECKING:
    from alkstore_pg.engine import PgEngine

__all__ = ["JoinedTransaction"]

T = TypeVar("T")

SQL: Final = load("alkstore_pg", "join")

_HOW: Final = "an asyncpg connection"


class Carrier(Session, Protocol):
    """A caller's connection as a session, whatever driver and library it has."""

    errors: tuple[type[BaseException], ...]
    """What its library raises."""

    @property
    def given(self) -> object:
        """What the caller joined."""

    @property
    def is_open(self) -> bool:
        """Whether it is still in the transaction in which it was joined."""


class AsyncpgCarrier:
    """An asyncpg connection, a pool's too."""

    errors = DRIVER

    def __init__(self, given: Connection, schema: Schema) -> None:
        self.given = given
        self._session = DriverSession(given, schema)

    async def fetch(self, statement: str, *parameters: object) -> Sequence[Row]:
        return await self._session.fetch(statement, *parameters)

    @property
    def is_open(self) -> bool:
        return not self.given.is_closed() and self.given.is_in_transaction()


class JoinedTransaction(Operations):
    """The caller's transaction, as long as it lasts. Make it by `begin`."""

    def __init__(self, engine: "PgEngine", label: str, carrier: Carrier) -> None:
        super().__init__(engine, label)
        self._carrier = carrier
        self._is_left = False

    @classmethod
    async def begin(cls, connection: object, engine: "PgEngine", label: str) -> "JoinedTransaction":
        """Find the driver's connection, make it begin if it begins by itself, and see that it is in a transaction.

        Raises:
            InvalidArgument: It cannot be joined, and why.
            DatabaseError: Its transaction has failed before, or the server is gone.
        """
        if not isinstance(connection, asyncpg.Connection):
            raise InvalidArgument(f"this engine joins {_HOW}, got {show(connection)}")
        carrier = AsyncpgCarrier(connection, engine._options.schema)
        if not carrier.is_open:
            raise InvalidArgument("connection is in no transaction; begin one on it before joining")
        return cls(engine, label, carrier)

    @property
    def is_open(self) -> bool:
        # Once and for all: what was Closed must not come to life again with the caller's next transaction.
        self._is_left = self._is_left or not self._carrier.is_open
        return not self._is_left

    @property
    def connection(self) -> object:
        return self._carrier.given

    def _texts(self, woken: Sequence[Woken]) -> Sequence[str]:
        return self._engine.wakes.texts_joined(woken)

    async def _do(self, operation: Operation[T]) -> T:
        self._enter()
        try:
            with self._engine.traffic:
                return await operation(self._carrier)
        except self._carrier.errors as error:
            raise translate(error, writes=False) from error

    async def commit(self) -> None:
        raise InvalidArgument("commit of a joined transaction is its owner's; call it on your connection")

    async def rollback(self) -> None:
        self._is_left = True

    def abandon(self) -> None:
        self._is_left = True
