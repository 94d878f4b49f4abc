"""Closing a store whose connections are being opened: none is left, and nothing lands behind the close."""

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import aiosqlite
import pytest
from engines import PATIENCE, held_up, opened, rows
from jobs import new_job

from alkstore.engine import JobFilter
from alkstore.errors import Closed, DatabaseError
from alkstore_sqlite.engine import SqliteEngine

Operation = Callable[[SqliteEngine], Awaitable[object]]

TURNS = 40
"""Turns of the loop that the opening of a connection takes at least."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


def insert(engine: SqliteEngine) -> Awaitable[object]:
    return engine.insert_jobs([new_job()])


def begin(engine: SqliteEngine) -> Awaitable[object]:
    return engine.begin()


def find(engine: SqliteEngine) -> Awaitable[object]:
    return engine.find_jobs("q", JobFilter())


async def broken(engine: SqliteEngine) -> None:
    """Have the writer find that its connection is of no use any more."""
    tx = await engine.begin()
    connection = tx.connection
    assert isinstance(connection, aiosqlite.Connection)
    await tx.rollback()
    await connection.close()
    with pytest.raises(DatabaseError):
        await insert(engine)


@contextmanager
def alone_at(path: Path) -> Iterator[None]:
    """Have the whole file, so that it cannot even be opened by others."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=PATIENCE)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        yield


async def kinds(*calls: asyncio.Future[object]) -> list[type]:
    return [type(answer) for answer in await asyncio.gather(*calls, return_exceptions=True)]


@pytest.mark.parametrize("operation", [insert, begin])
async def test_a_close_ends_the_wait_of_a_connection_that_is_opened_again(
    path: Path, operation: Operation
) -> None:
    before = threading.active_count()
    async with opened(path, wait_timeout=10 * PATIENCE) as engine:
        await broken(engine)
        with alone_at(path):
            call = asyncio.ensure_future(operation(engine))
            behind = asyncio.ensure_future(insert(engine))
            await held_up(engine)

            async with asyncio.timeout(PATIENCE):
                await engine.aclose()

            assert (threading.active_count(), asyncio.all_tasks()) == (before, {asyncio.current_task()})
            assert await kinds(call, behind) == [Closed, Closed]
    assert rows(path) == []


@pytest.mark.parametrize("operation", [insert, begin, find])
async def test_nothing_is_left_of_a_connection_that_is_being_opened_when_the_store_is_closed(
    path: Path, operation: Operation
) -> None:
    before, landed = threading.active_count(), 0
    for turns in range(TURNS):
        async with opened(path) as engine:
            if operation is not find:
                await broken(engine)
            call = asyncio.ensure_future(operation(engine))
            for _ in range(turns):
                await asyncio.sleep(0)

            await engine.aclose()

            assert (threading.active_count(), asyncio.all_tasks()) == (before, {asyncio.current_task()}), (
                turns
            )
            (kind,) = await kinds(call)
            assert issubclass(kind, Closed) or turns > 0
            landed += operation is insert and not issubclass(kind, Exception)
            assert len(rows(path)) == landed, turns
