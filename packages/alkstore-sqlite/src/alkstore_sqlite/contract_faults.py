"""What the contract suite lets go wrong with the file, brought about by SQLite, by the file system or by the engine's own end."""

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from typing import Final, cast
from urllib.parse import quote

import aiosqlite

from alkstore import Store
from alkstore_sqlite.connection import TRUST
from alkstore_sqlite.engine import SqliteEngine

__all__ = ["commit_fails", "outsider", "read_only", "storage_away", "storage_full", "watcher_dies"]

LONGEST_WAIT: Final = 5.0
"""Seconds of real time that an outsider waits for the write lock, which the store has for moments only."""

NO_LIMIT: Final = 2**32 - 2
"""The greatest ``max_page_count``, and SQLite's default."""

TABLES: Final = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name GLOB 'alkstore_*' ORDER BY name"
TRIGGERS: Final = (
    "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND name GLOB 'break_*' ORDER BY name"
)
CHANGES: Final = ("INSERT", "UPDATE", "DELETE")


@contextmanager
def outsider(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a connection that is nobody's of alkstore; the file must be there."""
    database = f"file:{quote(str(path))}?mode=rw"
    with closing(
        sqlite3.connect(database, uri=True, isolation_level=None, timeout=LONGEST_WAIT)
    ) as connection:
        yield connection


async def _writer_of(store: Store) -> aiosqlite.Connection:
    """Give the connection that a store writes through, by the one documented way to it."""
    async with store.begin_tx() as tx:
        return cast(aiosqlite.Connection, tx.connection)


async def _set(connection: aiosqlite.Connection, pragma: str) -> None:
    await connection.execute_fetchall(f"PRAGMA {pragma}")


async def _unset(connection: aiosqlite.Connection, pragma: str) -> None:
    # A store that has lost faith in this connection has closed it, and its next one is as it should be.
    with suppress(ValueError, sqlite3.ProgrammingError):
        await _set(connection, pragma)


@asynccontextmanager
async def commit_fails(path: Path, store: Store) -> AsyncIterator[None]:
    """Let a deferred foreign key of the application find at the COMMIT, and not before, that what was written is wrong."""
    writer = await _writer_of(store)
    await _set(writer, "foreign_keys = ON")
    with outsider(path) as connection:
        connection.execute("BEGIN IMMEDIATE")
        for (table,) in connection.execute(TABLES).fetchall():
            for change in CHANGES:
                connection.execute(
                    f"CREATE TRIGGER break_{change}_{table} AFTER {change} ON {table} "
                    "BEGIN INSERT INTO business_part (whole) VALUES (1); END"
                )
        connection.execute("COMMIT")
    try:
        yield
    finally:
        with outsider(path) as connection:
            connection.execute("BEGIN IMMEDIATE")
            for (trigger,) in connection.execute(TRIGGERS).fetchall():
                connection.execute(f"DROP TRIGGER {trigger}")
            connection.execute("COMMIT")
        await _unset(writer, "foreign_keys = OFF")


@asynccontextmanager
async def storage_full(path: Path, store: Store) -> AsyncIterator[None]:
    """Let the file have as many pages as it has now, and no more."""
    writer = await _writer_of(store)
    await _set(writer, "max_page_count = 1")  # SQLite takes the present size where that is more
    try:
        yield
    finally:
        await _unset(writer, f"max_page_count = {NO_LIMIT}")


@asynccontextmanager
async def read_only(path: Path, store: Store) -> AsyncIterator[None]:
    """Have SQLite refuse the store's writes: who may do everything, as tests in a container do, is stopped by no mode."""
    writer = await _writer_of(store)
    await _set(writer, "query_only = ON")
    try:
        yield
    finally:
        await _unset(writer, "query_only = OFF")


@asynccontextmanager
async def storage_away(path: Path, store: Store) -> AsyncIterator[None]:
    """Take the file's folder away and back, as with a volume that is unmounted."""
    away = path.parent.with_name(f"{path.parent.name}-away")
    os.rename(path.parent, away)
    await asyncio.sleep(2 * TRUST)  # a look at where the file is counts for that long
    try:
        yield
    finally:
        os.rename(away, path.parent)


@asynccontextmanager
async def watcher_dies(path: Path, store: Store) -> AsyncIterator[None]:
    """End the thread that looks for other processes' commits, as a fault of its own would."""
    cast(SqliteEngine, store._engine)._wakes.kill_watcher()
    yield
