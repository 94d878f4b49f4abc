"""A join whose caller has gone, or whose store was closed, before it had begun: the connection is as it was."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any, TypeVar

import aiosqlite
import pytest
from engines import PATIENCE, locked, opened, rows
from hanging import HUNG

import alkstore.sync
from alkstore.errors import Closed
from alkstore_sqlite import SqliteStore
from alkstore_sqlite.engine import SqliteEngine

T = TypeVar("T")

TURNS = 30
"""Turns of the loop that a join takes at least."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


@pytest.fixture
async def engine(path: Path) -> AsyncIterator[SqliteEngine]:
    async with opened(path) as engine:
        yield engine


class Telling(sqlite3.Connection):
    """A connection that says when it begins."""

    begins = threading.Event()

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        if sql == "BEGIN IMMEDIATE":
            self.begins.set()
        return super().execute(sql, *arguments)


@asynccontextmanager
async def connected(
    path: Path, factory: type[sqlite3.Connection] = sqlite3.Connection
) -> AsyncIterator[aiosqlite.Connection]:
    """Connect as the driver does by default: a transaction begins by itself with the first write."""
    async with aiosqlite.connect(path, timeout=PATIENCE, factory=factory) as connection:
        await connection.execute("CREATE TABLE IF NOT EXISTS business (value)")
        yield connection


async def on_its_way(join: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a join of a connection that tells, and wait until that begins."""
    Telling.begins.clear()
    joining = asyncio.ensure_future(join)
    assert await asyncio.to_thread(Telling.begins.wait, HUNG)
    return joining


async def is_in_transaction(connection: aiosqlite.Connection) -> bool:
    """Ask behind all that the connection's thread has in hand."""
    await connection.execute_fetchall("SELECT 1")
    return connection.in_transaction


# ---------------------------------------------------------------- callers who have gone


async def test_a_join_that_is_cancelled_anywhere_leaves_no_transaction(
    engine: SqliteEngine, path: Path
) -> None:
    ends = set()
    for turns in range(TURNS):
        async with connected(path) as connection:
            joining = asyncio.ensure_future(engine.begin(connection))
            for _ in range(turns):
                await asyncio.sleep(0)
            joining.cancel()
            await asyncio.wait((joining,))

            ends.add(joining.cancelled())
            if joining.cancelled():
                assert not await is_in_transaction(connection), turns
    assert True in ends


async def test_a_join_that_is_cancelled_behind_another_process_ends_at_once_and_begins_nothing(
    engine: SqliteEngine, path: Path
) -> None:
    async with connected(path, Telling) as connection:
        with locked(path) as other:
            joining = await on_its_way(engine.begin(connection))
            joining.cancel()
            await asyncio.wait((joining,), timeout=PATIENCE / 2)

            assert joining.cancelled()
            other.execute("ROLLBACK")
        assert not await is_in_transaction(connection)


async def test_what_the_caller_does_behind_a_join_that_was_cancelled_is_kept(
    engine: SqliteEngine, path: Path
) -> None:
    async with connected(path, Telling) as connection:
        with locked(path) as other:
            joining = await on_its_way(engine.begin(connection))

            async def go_on() -> None:
                with suppress(asyncio.CancelledError):
                    await joining
                await connection.execute("INSERT INTO business VALUES ('kept')")

            going_on = asyncio.ensure_future(go_on())
            await asyncio.sleep(0)
            joining.cancel()
            await asyncio.wait((joining,))
            await asyncio.sleep(0)
            other.execute("ROLLBACK")
            await going_on
        await connection.commit()

    assert rows(path, "SELECT value FROM business") == ["kept"]


async def test_what_another_task_has_written_in_the_meantime_is_its_own(
    engine: SqliteEngine, path: Path
) -> None:
    for turns in range(TURNS):
        async with connected(path) as connection:
            joining = asyncio.ensure_future(engine.begin(connection))
            for _ in range(turns):
                await asyncio.sleep(0)
            writing = asyncio.ensure_future(connection.execute("INSERT INTO business VALUES (?)", [turns]))
            await asyncio.sleep(0)
            joining.cancel()
            await asyncio.wait((joining, writing))
            await connection.commit()

    assert rows(path, "SELECT value FROM business") == list(range(TURNS))


async def test_a_connection_that_is_closed_behind_a_cancelled_join_ends_with_its_lock(
    engine: SqliteEngine, path: Path
) -> None:
    left = []  # a task keeps the traceback of its end, and that what was in the hands of every call
    for attempt in range(10 * TURNS):
        connection = await aiosqlite.connect(path, isolation_level=None)
        await connection.execute("BEGIN IMMEDIATE")
        left.append(joining := asyncio.ensure_future(engine.begin(connection)))
        for _ in range(attempt % 10):
            await asyncio.sleep(0)
        joining.cancel()
        await asyncio.wait((joining,))
        await connection.close()

        with locked(path, patience=0):
            pass


# ---------------------------------------------------------------- stores that are closed


async def test_a_join_whose_store_is_closed_meanwhile_leaves_no_transaction(path: Path) -> None:
    async with SqliteStore(path) as store, connected(path, Telling) as connection:
        with locked(path) as other:
            joining = await on_its_way(store.join(connection).__aenter__())
            end = asyncio.ensure_future(store.aclose())
            await asyncio.sleep(0)
            other.execute("ROLLBACK")
            with pytest.raises(Closed):
                await joining
            await end

        assert not await is_in_transaction(connection)


def test_a_threads_join_whose_store_is_closed_meanwhile_leaves_no_transaction(path: Path) -> None:
    store = alkstore.sync.open(f"sqlite:///{path}", durability="process")
    ending = threading.Thread(target=store.close)

    def look_until_it_ends() -> None:
        while True:
            store.queue("q").stats()

    class Slow(sqlite3.Connection):
        def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
            cursor = super().execute(sql, *arguments)
            if sql == "BEGIN IMMEDIATE":
                ending.start()
                with pytest.raises(Closed):
                    look_until_it_ends()
            return cursor

    with store, closing(sqlite3.connect(path, factory=Slow)) as connection:
        with pytest.raises(Closed), store.join(connection):
            pass
        ending.join(HUNG)

        assert not connection.in_transaction
