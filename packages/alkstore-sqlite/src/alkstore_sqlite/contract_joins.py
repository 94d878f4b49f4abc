"""The applications whose transactions the contract suite joins: each library as its users hold it."""

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final

import aiosqlite
from sqlalchemy import URL, NullPool, event
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine

__all__ = ["APPLICATIONS"]

INSERT: Final = "INSERT OR REPLACE INTO business (key, value) VALUES (?, ?)"
SELECT: Final = "SELECT value FROM business WHERE key = ?"


class _Application:
    """What all of them share: one file, and what is committed in it."""

    label = ""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def read(self, key: str) -> str | None:
        with closing(sqlite3.connect(self._path)) as connection:
            row = connection.execute(SELECT, (key,)).fetchone()
        return None if row is None else str(row[0])

    @property
    def _elsewhere(self) -> Path:
        return self._path.with_name("another.db")


# -------------------------------------------------------------------- aiosqlite


class _AiosqliteTransaction:
    def __init__(self, connection: aiosqlite.Connection) -> None:
        self.connection = connection

    async def write(self, key: str, value: str) -> None:
        await self._run(INSERT, (key, value))

    async def commit(self) -> None:
        await self._run("COMMIT")

    async def rollback(self) -> None:
        await self._run("ROLLBACK")

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[object]:
        await self._run("SAVEPOINT application")
        try:
            yield self
        except BaseException:
            await self._run("ROLLBACK TO application")
            raise
        finally:
            await self._run("RELEASE application")

    async def _run(self, sql: str, parameters: Sequence[str] = ()) -> None:
        async with self.connection.execute(sql, parameters):
            pass


class Aiosqlite(_Application):
    """A bare connection whose owner says BEGIN, and who wants his rows as `sqlite3.Row`."""

    label = "aiosqlite"

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[_AiosqliteTransaction]:
        async with aiosqlite.connect(self._path, isolation_level=None) as connection:
            connection.row_factory = sqlite3.Row
            async with connection.execute("BEGIN IMMEDIATE"):
                pass
            yield _AiosqliteTransaction(connection)  # closing it rolls back

    def idle(self) -> AbstractAsyncContextManager[object]:
        return aiosqlite.connect(self._path, isolation_level=None)

    @asynccontextmanager
    async def foreign(self) -> AsyncIterator[object]:
        async with aiosqlite.connect(self._elsewhere, isolation_level=None) as connection:
            async with connection.execute("BEGIN IMMEDIATE"):
                pass
            yield connection


# -------------------------------------------------------------------- SQLAlchemy


@asynccontextmanager
async def _engine(path: Path, *, begins: bool = True, **options: Any) -> AsyncIterator[AsyncEngine]:
    """Give an engine whose transactions begin when SQLAlchemy says so: the recipe of its page on SQLite."""
    url = URL.create("sqlite+aiosqlite", database=str(path))
    engine = create_async_engine(url, poolclass=NullPool, **options)
    if begins:
        event.listen(engine.sync_engine, "connect", _leave_beginning_to_us)
        event.listen(engine.sync_engine, "begin", _begin)
    try:
        yield engine
    finally:
        await engine.dispose()


def _leave_beginning_to_us(connection: Any, _: object) -> None:
    connection.isolation_level = None


def _begin(connection: Any) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


class _ConnectionTransaction:
    def __init__(self, connection: AsyncConnection) -> None:
        self.connection = connection

    async def write(self, key: str, value: str) -> None:
        await self.connection.exec_driver_sql(INSERT, (key, value))

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()

    def savepoint(self) -> AbstractAsyncContextManager[object]:
        return self.connection.begin_nested()


class AsyncConnections(_Application):
    """An `AsyncConnection` that has begun."""

    label = "SQLAlchemy AsyncConnection"

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[_ConnectionTransaction]:
        async with _engine(self._path) as engine, engine.connect() as connection:
            _ = await connection.begin()
            yield _ConnectionTransaction(connection)

    @asynccontextmanager
    async def idle(self) -> AsyncIterator[object]:
        async with (
            _engine(self._path, begins=False, isolation_level="AUTOCOMMIT") as engine,
            engine.connect() as connection,
        ):
            yield connection

    @asynccontextmanager
    async def foreign(self) -> AsyncIterator[object]:
        async with _engine(self._elsewhere) as engine, engine.connect() as connection:
            _ = await connection.begin()
            yield connection


class PlainConnections(AsyncConnections):
    """An `AsyncConnection` as it comes, without the recipe: the driver begins with the first write."""

    label = "SQLAlchemy AsyncConnection, driver's own BEGIN"

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[_ConnectionTransaction]:
        async with _engine(self._path, begins=False) as engine, engine.connect() as connection:
            application = _ConnectionTransaction(connection)
            await application.write("begun", "by a write")
            yield application


class IdleConnections(AsyncConnections):
    """An `AsyncConnection` that has run nothing yet: the join makes it begin."""

    label = "SQLAlchemy AsyncConnection, begun by the join"

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[_ConnectionTransaction]:
        async with _engine(self._path) as engine, engine.connect() as connection:
            yield _ConnectionTransaction(connection)


class _SessionTransaction:
    def __init__(self, session: AsyncSession) -> None:
        self.connection = session

    async def write(self, key: str, value: str) -> None:
        connection = await self.connection.connection()
        await connection.exec_driver_sql(INSERT, (key, value))

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()

    def savepoint(self) -> AbstractAsyncContextManager[object]:
        return self.connection.begin_nested()


class AsyncSessions(_Application):
    """An `AsyncSession` that has run nothing yet: the join makes it begin."""

    label = "SQLAlchemy AsyncSession"

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[_SessionTransaction]:
        async with _engine(self._path) as engine, AsyncSession(engine) as session:
            yield _SessionTransaction(session)

    @asynccontextmanager
    async def idle(self) -> AsyncIterator[object]:
        async with (
            _engine(self._path, begins=False, isolation_level="AUTOCOMMIT") as engine,
            AsyncSession(engine) as session,
        ):
            yield session

    @asynccontextmanager
    async def foreign(self) -> AsyncIterator[object]:
        async with _engine(self._elsewhere) as engine, AsyncSession(engine) as session:
            yield session


APPLICATIONS: Final = (Aiosqlite, AsyncConnections, IdleConnections, PlainConnections, AsyncSessions)
