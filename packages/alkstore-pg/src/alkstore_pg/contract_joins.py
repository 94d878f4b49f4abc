"""The applications whose transactions the contract suite joins: each library as its users hold it."""

import uuid
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import asyncpg
import psycopg
from psycopg.rows import dict_row
from sqlalchemy import NullPool
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine

from alkstore_pg import contract_dsn
from alkstore_pg.contract_application import INSERT, Table
from alkstore_pg.contract_outsider import Outsider
from alkstore_pg.link import OwnConnection

if TYPE_CHECKING:
    from alkstore_pg.contract_factory import Place

__all__ = ["APPLICATIONS"]

ELSEWHERE: Final = "postgres"
"""A database in which alkstore is not."""

STRICT: Final = "REPEATABLE READ"

# psycopg's own marks for parameters.
PLAIN: Final = INSERT.replace("$1", "%s").replace("$2", "%s")

Asyncpg: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
Psycopg: TypeAlias = "psycopg.AsyncConnection[Any]"


class _Transaction(Protocol):
    @property
    def connection(self) -> object: ...

    async def write(self, key: str, value: str) -> None: ...

    async def commit(self) -> None: ...

    async def rollback(self) -> None: ...

    def savepoint(self) -> AbstractAsyncContextManager[object]: ...


class _Application:
    """What all of them share: where the database is, and what is committed there."""

    label = ""

    def __init__(self, place: "Place", outsider: Outsider) -> None:
        self._dsn = place.dsn
        self._elsewhere = contract_dsn.on_database(place.dsn, ELSEWHERE)
        self._is_pooled = place.is_pooled
        self._table = Table(outsider)

    async def read(self, key: str) -> str | None:
        return await self._table.read(key)

    def transaction(self) -> AbstractAsyncContextManager[_Transaction]:
        return self._begun(self._dsn)

    def strict(self) -> AbstractAsyncContextManager[_Transaction]:
        """Begin one that sees nothing of what is committed after its first statement."""
        return self._begun(self._dsn, STRICT)

    @asynccontextmanager
    async def foreign(self) -> AsyncIterator[object]:
        async with self._begun(self._elsewhere) as transaction:
            yield transaction.connection

    def _begun(self, dsn: str, isolation: str | None = None) -> AbstractAsyncContextManager[_Transaction]:
        raise NotImplementedError

    # ---------------------------------------------------------------- connections

    async def _asyncpg(self, dsn: str, **options: Any) -> Asyncpg:
        if self._is_pooled:
            options["statement_cache_size"] = 0
            # Of an application that lets go in the midst of cancelling, PgBouncer 1.18 dies, and the store with it.
            options["connection_class"] = OwnConnection
        connection: Asyncpg = await asyncpg.connect(dsn, **options)
        return connection

    async def _psycopg(self, dsn: str, **options: Any) -> Psycopg:
        if self._is_pooled:
            options["prepare_threshold"] = None
        return await psycopg.AsyncConnection.connect(dsn, **options)


# -------------------------------------------------------------------- asyncpg


class _AsyncpgTransaction:
    def __init__(self, connection: Asyncpg) -> None:
        self.connection = connection
        self._transaction = connection.transaction()

    async def begin(self, isolation: str | None) -> None:
        if isolation is not None:
            self._transaction = self.connection.transaction(isolation="repeatable_read")
        await self._transaction.start()

    async def write(self, key: str, value: str) -> None:
        await self.connection.execute(INSERT, key, value)

    async def commit(self) -> None:
        await self._transaction.commit()

    async def rollback(self) -> None:
        await self._transaction.rollback()

    def savepoint(self) -> AbstractAsyncContextManager[object]:
        return self.connection.transaction()


class AsyncpgConnections(_Application):
    """A bare connection, in the driver's own kind of transaction."""

    label = "asyncpg"
    kind: type[_AsyncpgTransaction] = _AsyncpgTransaction

    @asynccontextmanager
    async def _begun(self, dsn: str, isolation: str | None = None) -> AsyncIterator[_Transaction]:
        connection = await self._asyncpg(dsn)
        try:
            transaction = self.kind(connection)
            await transaction.begin(isolation)
            yield transaction
        finally:
            connection.terminate()

    @asynccontextmanager
    async def idle(self) -> AsyncIterator[object]:
        connection = await self._asyncpg(self._dsn)
        try:
            yield connection
        finally:
            connection.terminate()


class _TypedTransaction(_AsyncpgTransaction):
    async def begin(self, isolation: str | None) -> None:
        await self.connection.execute(f"BEGIN ISOLATION LEVEL {isolation or 'READ COMMITTED'}")

    async def commit(self) -> None:
        await self.connection.execute("COMMIT")

    async def rollback(self) -> None:
        await self.connection.execute("ROLLBACK")

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[object]:
        await self.connection.execute("SAVEPOINT application")
        try:
            yield self
        except BaseException:
            await self.connection.execute("ROLLBACK TO application")
            raise
        finally:
            await self.connection.execute("RELEASE application")


class TypedConnections(AsyncpgConnections):
    """A bare connection whose owner types BEGIN and COMMIT himself."""

    label = "asyncpg, BEGIN by hand"
    kind = _TypedTransaction


# -------------------------------------------------------------------- psycopg


class _PsycopgTransaction:
    def __init__(self, connection: Psycopg) -> None:
        self.connection = connection

    async def write(self, key: str, value: str) -> None:
        await self.connection.execute(PLAIN.encode(), (key, value))

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()

    def savepoint(self) -> AbstractAsyncContextManager[object]:
        return self.connection.transaction()


class PsycopgConnections(_Application):
    """A connection that has run nothing yet, and whose owner wants his rows as dictionaries: the join makes it begin."""

    label = "psycopg AsyncConnection"

    @asynccontextmanager
    async def _begun(self, dsn: str, isolation: str | None = None) -> AsyncIterator[_Transaction]:
        async with aclosing(_Closing(await self._psycopg(dsn, row_factory=dict_row))) as held:
            if isolation is not None:
                await held.connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
            yield _PsycopgTransaction(held.connection)

    @asynccontextmanager
    async def idle(self) -> AsyncIterator[object]:
        async with aclosing(_Closing(await self._psycopg(self._dsn, autocommit=True))) as held:
            yield held.connection


class _Closing:
    """Closes a connection; its own block would commit."""

    def __init__(self, connection: Psycopg) -> None:
        self.connection = connection

    async def aclose(self) -> None:
        await self.connection.close()


# -------------------------------------------------------------------- SQLAlchemy


class _ConnectionTransaction:
    def __init__(self, connection: AsyncConnection) -> None:
        self.connection = connection

    async def write(self, key: str, value: str) -> None:
        await _insert(self.connection, key, value)

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()

    def savepoint(self) -> AbstractAsyncContextManager[object]:
        return self.connection.begin_nested()


async def _insert(connection: AsyncConnection, key: str, value: str) -> None:
    sql = INSERT if connection.dialect.driver == "asyncpg" else PLAIN
    await connection.exec_driver_sql(sql, (key, value))


class _Alchemy(_Application):
    """What SQLAlchemy's users share: an engine, on either driver."""

    driver = "asyncpg"

    @asynccontextmanager
    async def _engine(self, dsn: str, isolation: str | None = None) -> AsyncIterator[AsyncEngine]:
        async def connect(*_: object, **options: Any) -> object:
            return await (self._asyncpg if self.driver == "asyncpg" else self._psycopg)(dsn, **options)

        arguments: dict[str, Any] = {}
        if self._is_pooled and self.driver == "asyncpg":
            # As SQLAlchemy's page on PgBouncer has it: a name once given may be another client's by now.
            name: Any = lambda: f"__asyncpg_{uuid.uuid4()}__"  # noqa: E731
            arguments = {"prepared_statement_cache_size": 0, "prepared_statement_name_func": name}
        engine = create_async_engine(
            f"postgresql+{self.driver}://",
            async_creator=connect,
            poolclass=NullPool,
            connect_args=arguments,
            **({"isolation_level": isolation} if isolation else {}),
        )
        try:
            yield engine
        finally:
            await engine.dispose()

    @asynccontextmanager
    async def idle(self) -> AsyncIterator[object]:
        async with self._engine(self._dsn, "AUTOCOMMIT") as engine, engine.connect() as connection:
            yield connection


class AsyncConnections(_Alchemy):
    """An `AsyncConnection` that has begun."""

    label = "SQLAlchemy AsyncConnection"

    @asynccontextmanager
    async def _begun(self, dsn: str, isolation: str | None = None) -> AsyncIterator[_Transaction]:
        async with self._engine(dsn, isolation) as engine, engine.connect() as connection:
            _ = await connection.begin()
            yield _ConnectionTransaction(connection)


class IdleConnections(_Alchemy):
    """An `AsyncConnection` that has run nothing yet: the join makes it begin."""

    label = "SQLAlchemy AsyncConnection, begun by the join"

    @asynccontextmanager
    async def _begun(self, dsn: str, isolation: str | None = None) -> AsyncIterator[_Transaction]:
        async with self._engine(dsn, isolation) as engine, engine.connect() as connection:
            yield _ConnectionTransaction(connection)


class _SessionTransaction:
    def __init__(self, session: AsyncSession) -> None:
        self.connection = session

    async def write(self, key: str, value: str) -> None:
        await _insert(await self.connection.connection(), key, value)

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()

    def savepoint(self) -> AbstractAsyncContextManager[object]:
        return self.connection.begin_nested()


class AsyncSessions(_Alchemy):
    """An `AsyncSession` that has run nothing yet: the join makes it begin."""

    label = "SQLAlchemy AsyncSession"

    @asynccontextmanager
    async def _begun(self, dsn: str, isolation: str | None = None) -> AsyncIterator[_Transaction]:
        async with self._engine(dsn, isolation) as engine, AsyncSession(engine) as session:
            yield _SessionTransaction(session)

    @asynccontextmanager
    async def idle(self) -> AsyncIterator[object]:
        async with self._engine(self._dsn, "AUTOCOMMIT") as engine, AsyncSession(engine) as session:
            yield session


class PsycopgSessions(AsyncSessions):
    """An `AsyncSession` on the other driver."""

    label = "SQLAlchemy AsyncSession on psycopg"
    driver = "psycopg"


APPLICATIONS: Final = (
    AsyncpgConnections,
    TypedConnections,
    PsycopgConnections,
    AsyncConnections,
    IdleConnections,
    AsyncSessions,
    PsycopgSessions,
)
