"""The applications whose transactions the contract suite joins: SQLAlchemy's sessions as their users hold them."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, event
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)

__all__ = ["APPLICATIONS"]

TABLE: Final = "CREATE TABLE IF NOT EXISTS business (key TEXT PRIMARY KEY, value TEXT NOT NULL)"
INSERT: Final = "INSERT OR REPLACE INTO business (key, value) VALUES (?, ?)"
SELECT: Final = "SELECT value FROM business WHERE key = ?"


class _Transaction:
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


class Sessions:
    """An `AsyncSession` that has run nothing yet: the join makes it begin."""

    label = "SQLAlchemy AsyncSession"

    def __init__(self, folder: Path) -> None:
        self._path = folder / "application.db"
        with closing(sqlite3.connect(self._path)) as connection:
            connection.execute(TABLE)

    @asynccontextmanager
    async def _engine(self, **options: Any) -> AsyncIterator[AsyncEngine]:
        url = URL.create("sqlite+aiosqlite", database=str(self._path))
        engine = create_async_engine(url, **options)
        if not options:
            # The recipe of SQLAlchemy's page on SQLite: begin when SQLAlchemy says so, or savepoints do not hold.
            event.listen(engine.sync_engine, "connect", _leave_beginning_to_us)
            event.listen(engine.sync_engine, "begin", _begin)
        try:
            async with engine.connect():
                pass  # cancelled while it connects, the driver leaves a thread that tells nobody
            yield engine
        finally:
            await engine.dispose()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[_Transaction]:
        async with self._engine() as engine, AsyncSession(engine) as session:
            yield _Transaction(session)

    @asynccontextmanager
    async def idle(self) -> AsyncIterator[object]:
        async with self._engine(isolation_level="AUTOCOMMIT") as engine, AsyncSession(engine) as session:
            yield session

    @asynccontextmanager
    async def foreign(self) -> AsyncIterator[object]:
        # In memory nothing is another storage's; but what has no commit that could be heard of is refused.
        async with self._engine() as engine, engine.connect() as connection:
            yield connection

    async def read(self, key: str) -> str | None:
        with closing(sqlite3.connect(self._path)) as connection:
            row = connection.execute(SELECT, (key,)).fetchone()
        return None if row is None else str(row[0])


class BegunSessions(Sessions):
    """An `AsyncSession` that has begun and written."""

    label = "SQLAlchemy AsyncSession, begun"

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[_Transaction]:
        async with self._engine() as engine, AsyncSession(engine, autobegin=False) as session:
            _ = await session.begin()
            application = _Transaction(session)
            await application.write("begun", "by a write")
            yield application


class ScopedSessions(Sessions):
    """The session of an `async_scoped_session`, as web frameworks keep one a request."""

    label = "SQLAlchemy async_scoped_session"

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[_Transaction]:
        async with self._engine() as engine:
            scoped = async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: "a request")
            try:
                yield _Transaction(scoped())
            finally:
                await scoped.remove()


def _leave_beginning_to_us(connection: Any, _: object) -> None:
    connection.isolation_level = None


def _begin(connection: Any) -> None:
    connection.exec_driver_sql("BEGIN")


APPLICATIONS: Final = (Sessions, BegunSessions, ScopedSessions)
