"""The applications whose transactions the contract suite joins: each library as its users hold it."""

import uuid
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import psycopg
from psycopg import sql
from psycopg.rows import dict_row
from sqlalchemy import NullPool, make_url, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine

from alkstore_pg.contract_application import INSERT, SELECT

if TYPE_CHECKING:
    from alkstore_pg.contract_factory import Place
    from alkstore_pg.contract_outsider import Outsider
    from alkstore_pg.link import Connection

__all__ = ["APPLICATIONS"]

NAMED: Final = text(INSERT.replace("$1", ":key").replace("$2", ":value"))

ANOTHER: Final = "template1"
"""A database that every server has."""


class _Application:
    """What all of them share: one database, and what is committed in it."""

    label = ""

    def __init__(self, place: "Place", outsider: "Outsider") -> None:
        self._dsn = place.dsn
        self._direct = place.direct
        self._is_pooled = place.is_pooled
        self._outsider = outsider

    async def read(self, key: str) -> str | None:
        rows = self._outsider.run(SELECT, key)
        return None if not rows else str(rows[0][0])


# -------------------------------------------------------------------- asyncpg


class _AsyncpgTransaction:
    def __init__(self, connection: "Connection") -> None:
        self.connection = connection
        self._transaction = connection.transaction()

    async def begin(self) -> None:
        await self._transaction.start()

    async def write(self, key: str, value: str) -> None:
        await self.connection.execute(INSERT, key, value)

    async def commit(self) -> None:
        await self._transaction.commit()

    async def rollback(self) -> None:
        await self._transaction.rollback()

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[object]:
        async with self.connection.transaction():
            yield self


class Asyncpg(_Application):
    """A connection within `transaction()`."""

    label = "asyncpg"

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator["Connection"]:
        connection = await asyncpg.connect(self._dsn, statement_cache_size=0 if self._is_pooled else 100)
        try:
            yield connection
        finally:
            await connection.close()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[_AsyncpgTransaction]:
        async with self._connected() as connection:
            application = _AsyncpgTransaction(connection)
            await application.begin()
            yield application  # closing rolls back

    def idle(self) -> AbstractAsyncContextManager[object]:
        return self._connected()

    @asynccontextmanager
    async def foreign(self) -> AsyncIterator[object]:
        connection = await asyncpg.connect(self._direct, database=ANOTHER)
        try:
            async with connection.transaction():
                yield connection
        finally:
            await connection.close()


class AsyncpgPools(Asyncpg):
    """A connection that asyncpg's pool has lent."""

    label = "asyncpg, from a pool"

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator["Connection"]:
        size = 0 if self._is_pooled else 100
        async with asyncpg.create_pool(self._dsn, min_size=1, max_size=1, statement_cache_size=size) as pool:
            connection: Any = await pool.acquire()
            try:
                yield connection
            finally:
                if connection.is_in_transaction():
                    await connection.execute("ROLLBACK")
                await connection.close()


# -------------------------------------------------------------------- psycopg


class _PsycopgTransaction:
    def __init__(self, connection: "psycopg.AsyncConnection[Any]") -> None:
        self.connection = connection

    async def write(self, key: str, value: str) -> None:
        statement = sql.SQL("INSERT INTO public.business (key, value) VALUES ({key}, {value}) ").format(
            key=key, value=value
        )
        await self.connection.execute(
            statement + sql.SQL("ON CONFLICT (key) DO UPDATE SET value = excluded.value")
        )

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[object]:
        async with self.connection.transaction():
            yield self


class Psycopg(_Application):
    """An `AsyncConnection` that begins by itself, has run nothing, and gives its rows as dictionaries."""

    label = "psycopg"

    @asynccontextmanager
    async def _connected(self, dsn: str, **options: Any) -> AsyncIterator["psycopg.AsyncConnection[Any]"]:
        connection = await psycopg.AsyncConnection.connect(
            dsn, row_factory=dict_row, prepare_threshold=None if self._is_pooled else 5, **options
        )
        try:
            yield connection
        finally:
            await connection.close()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[_PsycopgTransaction]:
        async with self._connected(self._dsn) as connection:
            yield _PsycopgTransaction(connection)

    def idle(self) -> AbstractAsyncContextManager[object]:
        return self._connected(self._dsn, autocommit=True)

    def foreign(self) -> AbstractAsyncContextManager[object]:
        return self._connected(self._direct, dbname=ANOTHER)


# -------------------------------------------------------------------- SQLAlchemy


class _ConnectionTransaction:
    def __init__(self, connection: AsyncConnection) -> None:
        self.connection = connection

    async def write(self, key: str, value: str) -> None:
        await self.connection.execute(NAMED, {"key": key, "value": value})

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()

    def savepoint(self) -> AbstractAsyncContextManager[object]:
        return self.connection.begin_nested()


class AsyncConnections(_Application):
    """An `AsyncConnection` that has run nothing yet: the join makes it begin."""

    label = "SQLAlchemy AsyncConnection on asyncpg"
    driver = "asyncpg"

    @asynccontextmanager
    async def _engine(
        self, dsn: str, database: str | None = None, **options: Any
    ) -> AsyncIterator[AsyncEngine]:
        url = make_url(dsn).set(drivername=f"postgresql+{self.driver}")
        if database is not None:
            url = url.set(database=database)
        engine = create_async_engine(url, poolclass=NullPool, connect_args=self._arguments(), **options)
        try:
            yield engine
        finally:
            await engine.dispose()

    def _arguments(self) -> dict[str, object]:
        if not self._is_pooled:
            return {}
        if self.driver == "psycopg":
            return {"prepare_threshold": None}
        # SQLAlchemy prepares every statement, and a server of the pooler's has seen the names of other clients.
        return {
            "statement_cache_size": 0,
            "prepared_statement_cache_size": 0,
            "prepared_statement_name_func": lambda: f"alchemy_{uuid.uuid4()}",
        }

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[_ConnectionTransaction]:
        async with self._engine(self._dsn) as engine, engine.connect() as connection:
            yield _ConnectionTransaction(connection)

    @asynccontextmanager
    async def idle(self) -> AsyncIterator[object]:
        async with (
            self._engine(self._dsn, isolation_level="AUTOCOMMIT") as engine,
            engine.connect() as connection,
        ):
            yield connection

    @asynccontextmanager
    async def foreign(self) -> AsyncIterator[object]:
        async with self._engine(self._direct, ANOTHER) as engine, engine.connect() as connection:
            yield connection


class PsycopgConnections(AsyncConnections):
    """The same on psycopg."""

    label = "SQLAlchemy AsyncConnection on psycopg"
    driver = "psycopg"


class _SessionTransaction:
    def __init__(self, session: AsyncSession) -> None:
        self.connection = session

    async def write(self, key: str, value: str) -> None:
        await self.connection.execute(NAMED, {"key": key, "value": value})

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()

    def savepoint(self) -> AbstractAsyncContextManager[object]:
        return self.connection.begin_nested()


class AsyncSessions(AsyncConnections):
    """An `AsyncSession` that has run nothing yet: the join makes it begin."""

    label = "SQLAlchemy AsyncSession on asyncpg"

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self._engine(self._dsn) as engine, AsyncSession(engine) as session:
            yield _SessionTransaction(session)

    @asynccontextmanager
    async def idle(self) -> AsyncIterator[object]:
        async with (
            self._engine(self._dsn, isolation_level="AUTOCOMMIT") as engine,
            AsyncSession(engine) as session,
        ):
            yield session

    @asynccontextmanager
    async def foreign(self) -> AsyncIterator[object]:
        async with self._engine(self._direct, ANOTHER) as engine, AsyncSession(engine) as session:
            yield session


class PsycopgSessions(AsyncSessions):
    """The same on psycopg."""

    label = "SQLAlchemy AsyncSession on psycopg"
    driver = "psycopg"


APPLICATIONS: Final = (
    Asyncpg,
    AsyncpgPools,
    Psycopg,
    AsyncConnections,
    PsycopgConnections,
    AsyncSessions,
    PsycopgSessions,
)
