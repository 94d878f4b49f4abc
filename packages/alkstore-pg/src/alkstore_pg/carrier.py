"""The connections that can be joined, each as a session: asyncpg's, psycopg's, and SQLAlchemy's on either.

SQLAlchemy and psycopg are imported when something of theirs was given, and not before: both are extras.
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import asyncpg

from alkstore.errors import InvalidArgument, show
from alkstore.plain import is_of
from alkstore_pg.errors import DRIVER
from alkstore_pg.link import Connection, DriverSession
from alkstore_pg.session import Row, Schema, Session
from alkstore_pg.transaction import SQL, is_in_transaction

if TYPE_CHECKING:
    import psycopg
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

__all__ = ["Carrier", "carried", "check_psycopg", "for_psycopg", "is_in_psycopg_transaction", "origin"]

_HOW: Final = (
    "an asyncpg connection, a psycopg AsyncConnection, or a SQLAlchemy AsyncConnection or AsyncSession "
    "on postgresql+asyncpg or postgresql+psycopg"
)


class Carrier(Session, Protocol):
    """A caller's connection as a session. Its `fetch` is of use between `enter` and the end of his transaction."""

    @property
    def given(self) -> object:
        """What the caller joined."""

    @property
    def driver(self) -> object:
        """The driver's connection under it."""

    @property
    def errors(self) -> tuple[type[BaseException], ...]:
        """What its libraries raise."""

    @property
    def is_open(self) -> bool:
        """Whether it is in the transaction in which it was entered."""

    async def enter(self) -> None:
        """Make it begin, if it begins by itself.

        Raises:
            InvalidArgument: It cannot be joined, and why.
        """

    async def leave(self) -> None:
        """Roll back what `enter` made begin, or was about to when it was cut short."""


def carried(given: object, schema: Schema) -> Carrier:
    """Give the carrier of what a caller joins.

    Raises:
        InvalidArgument: There is none.
    """
    found = _of_sqlalchemy(given, schema) or _of_driver(given, schema)
    if found is None:
        raise InvalidArgument(f"this engine joins {_HOW}, got {show(given)}")
    return found


def origin(error: BaseException) -> BaseException:
    """Give the driver's exception in one of SQLAlchemy's, which wraps it twice; else the error itself."""
    wrapped = getattr(error, "orig", None)
    if not isinstance(wrapped, BaseException):
        return error
    return wrapped.__cause__ or wrapped


def _of_driver(given: object, schema: Schema) -> Carrier | None:
    if isinstance(given, asyncpg.Connection):  # also what its pool lends
        return AsyncpgCarrier(given, schema)
    if is_of(given, "psycopg"):
        import psycopg

        if isinstance(given, psycopg.AsyncConnection):
            return PsycopgCarrier(given, schema)
    return None


def _of_sqlalchemy(given: object, schema: Schema) -> Carrier | None:
    if is_of(given, "sqlalchemy"):
        from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

        if isinstance(given, async_scoped_session):
            # Its session is often that of the task that asks, and who undoes a join that was cut short is another one.
            raise InvalidArgument(
                "session is a scoped one: join the session that it stands for, join(session())"
            )
        if isinstance(given, (AsyncConnection, AsyncSession)):
            return AlchemyCarrier(given, schema)
    return None


# -------------------------------------------------------------------- asyncpg


class AsyncpgCarrier:
    """An asyncpg connection."""

    errors = DRIVER

    def __init__(self, given: Connection, schema: Schema) -> None:
        self.given = given
        self._session = DriverSession(given, schema)
        self._root = _root_of(given)

    @property
    def driver(self) -> object:
        # What a pool lends is new at every loan.
        return getattr(self.given, "_con", self.given)

    @property
    def is_open(self) -> bool:
        return is_in_transaction(self.given) and self._root is _root_of(self.given)

    async def enter(self) -> None:
        if not self.is_open:
            raise InvalidArgument(
                "connection is in no transaction, or closed; begin one: 'async with connection.transaction():'"
            )

    async def leave(self) -> None:
        return None

    async def fetch(self, statement: str, *parameters: object) -> Sequence[Row]:
        return await self._session.fetch(statement, *parameters)


def _root_of(connection: Connection) -> object:
    # Tells one transaction() from the next, which the server's state does not. Not public: without it a transaction that
    # was ended and begun anew between two operations would be ridden on.
    return getattr(connection, "_top_xact", None)


# -------------------------------------------------------------------- psycopg


class PsycopgCarrier:
    """A psycopg AsyncConnection, whatever its rows and cursors are."""

    def __init__(self, given: "psycopg.AsyncConnection[Any]", schema: Schema) -> None:
        import psycopg

        self.given = given
        self.errors: tuple[type[BaseException], ...] = (psycopg.Error, OSError)
        self._schema = schema
        self._has_begun = False
        self._make_cursor = psycopg.AsyncRawCursor  # takes $1 as it is
        self._row_factory = psycopg.rows.tuple_row

    @property
    def driver(self) -> object:
        return self.given

    @property
    def is_open(self) -> bool:
        return is_in_psycopg_transaction(self.given)

    async def enter(self) -> None:
        if check_psycopg(self.given, begin="async with connection.transaction():"):
            self._has_begun = True
            await self.fetch(SQL["alive"])

    async def leave(self) -> None:
        if self._has_begun and not self.given.closed:
            await self.given.rollback()

    async def fetch(self, statement: str, *parameters: object) -> Sequence[Row]:
        async with self._make_cursor(self.given, row_factory=self._row_factory) as cursor:
            await cursor.execute(
                self._schema.render(statement).encode(), for_psycopg(parameters), binary=True
            )
            return [] if cursor.description is None else await cursor.fetchall()


def check_psycopg(connection: "psycopg.BaseConnection[Any]", *, begin: str) -> bool:
    """See that a connection of psycopg's, of either kind, can be joined; True if it has yet to begin.

    Raises:
        InvalidArgument: It cannot, and why; ``begin`` is how its caller begins.
    """
    if connection.closed:
        raise InvalidArgument("connection cannot be joined: it is closed")
    if connection.pgconn.pipeline_status:
        raise InvalidArgument("connection cannot be joined in pipeline mode: leave its pipeline() first")
    if connection.info.encoding != "utf-8":
        raise InvalidArgument(
            f"connection's client_encoding must be UTF8, got {show(connection.info.encoding)}"
        )
    if is_in_psycopg_transaction(connection):
        return False
    if connection.autocommit:
        raise InvalidArgument(
            f"connection is in no transaction and commits every statement by itself; begin one: '{begin}'"
        )
    return True


def is_in_psycopg_transaction(connection: "psycopg.BaseConnection[Any]") -> bool:
    """Whether a connection of psycopg's is in a transaction; one that was lost or closed is in none."""
    from psycopg.pq import TransactionStatus

    return connection.info.transaction_status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)


def for_psycopg(parameters: Sequence[object]) -> list[object]:
    """Give parameters as psycopg takes them: a list for an array, and a tuple for a row."""
    return [
        list(value) if isinstance(value, Collection) and not isinstance(value, (str, bytes)) else value
        for value in parameters
    ]


# -------------------------------------------------------------------- SQLAlchemy


class AlchemyCarrier:
    """A SQLAlchemy AsyncConnection or AsyncSession, on one of those drivers."""

    def __init__(self, given: "AsyncConnection | AsyncSession", schema: Schema) -> None:
        from sqlalchemy.exc import SQLAlchemyError

        self.given = given
        self._schema = schema
        self._error: type[BaseException] = SQLAlchemyError
        self._inner: Carrier | None = None
        self._root: object = None
        self._nested: object = None
        self._has_begun = False
        # The asynchronous face makes a new object at every question.
        self._sync: Any = getattr(given, "sync_session", None) or cast(Any, given).sync_connection
        self._is_session = hasattr(given, "sync_session")

    @property
    def driver(self) -> object:
        return None if self._inner is None else self._inner.driver

    @property
    def errors(self) -> tuple[type[BaseException], ...]:
        return (self._error, *(DRIVER if self._inner is None else self._inner.errors))

    @property
    def is_open(self) -> bool:
        inner = self._inner
        return inner is not None and inner.is_open and self._root is self._sync.get_transaction()

    async def enter(self) -> None:
        connection = await self._begun()
        driver = (await connection.get_raw_connection()).driver_connection
        inner = _of_driver(driver, self._schema)
        if inner is None:
            raise InvalidArgument(f"this engine joins {_HOW}, got one on {show(driver)}")
        if not inner.is_open:
            # SQLAlchemy begins in the driver with the first statement that it sends itself.
            await connection.exec_driver_sql("SELECT 1")
            inner = _of_driver(driver, self._schema) or inner
        await inner.enter()
        self._inner, self._root = inner, self._sync.get_transaction()

    async def _begun(self) -> Any:
        given: Any = self.given
        self._has_begun = not given.in_transaction()
        if self._is_session:
            self._nested = self._sync.get_nested_transaction()
            return await given.connection()
        if self._has_begun:
            await given.begin()
        return given

    async def leave(self) -> None:
        if not self._has_begun:
            return
        given: Any = self.given
        if self._is_session:
            # A rollback of the session's would have its objects read anew, which is not ours to ask for.
            await given.run_sync(_end_of_session)
        else:
            await given.rollback()

    async def fetch(self, statement: str, *parameters: object) -> Sequence[Row]:
        assert self._inner is not None
        if self._is_session and self._nested is not (nested := self._sync.get_nested_transaction()):
            # A session sends the SAVEPOINT of begin_nested() when it is next asked for its connection, and not before.
            await cast(Any, self.given).connection()
            self._nested = nested
        return await self._inner.fetch(statement, *parameters)


def _end_of_session(session: Any) -> None:
    if (transaction := session.get_transaction()) is not None:
        transaction.close()
