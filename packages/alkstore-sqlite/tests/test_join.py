"""Riding an application's transaction: what it may have made of its connection, and what it does with it meanwhile."""

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, cast

import aiosqlite
import pytest
from engines import locked, opened, rows
from hanging import HUNG
from jobs import new_job
from sqlalchemy import URL, create_engine, event, text
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session as SyncSession

from alkstore.engine import Ack, JobFilter, NewEvent, NewWake, OffsetSave
from alkstore.errors import Closed, DatabaseError, InvalidArgument
from alkstore_sqlite.engine import SqliteEngine


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


@pytest.fixture
async def engine(path: Path) -> AsyncIterator[SqliteEngine]:
    async with opened(path, wait_timeout=0.2) as engine:
        yield engine


@asynccontextmanager
async def begun(path: Path) -> AsyncIterator[aiosqlite.Connection]:
    async with aiosqlite.connect(path, isolation_level=None) as connection:
        await connection.execute("BEGIN IMMEDIATE")
        yield connection


# ---------------------------------------------------------------- which connections ride


async def test_a_connection_in_its_transaction_is_ridden_and_lands_with_it(
    engine: SqliteEngine, path: Path
) -> None:
    for end in ("ROLLBACK", "COMMIT"):
        async with begun(path) as connection:
            tx = await engine.begin(connection)
            assert tx.connection is connection
            await tx.insert_jobs([new_job(end.encode())])
            await connection.execute(end)

            assert not tx.is_open
            with pytest.raises(Closed):
                await tx.insert_jobs([new_job()])

    assert rows(path) == [b"COMMIT"]


async def test_a_connection_that_begins_by_itself_is_made_to_begin_with_the_write_lock(
    engine: SqliteEngine, path: Path
) -> None:
    async with aiosqlite.connect(path) as connection:
        tx = await engine.begin(connection)
        assert connection.in_transaction
        assert await tx.find_jobs("q", JobFilter()) == []
        with closing(sqlite3.connect(path, timeout=0)) as other, pytest.raises(sqlite3.OperationalError):
            other.execute("BEGIN IMMEDIATE")
        await tx.insert_jobs([new_job()])
        await connection.commit()

    assert rows(path) == [b"1"]


async def test_a_beginning_behind_another_process_is_an_error_of_ours(
    engine: SqliteEngine, path: Path
) -> None:
    async with aiosqlite.connect(path, timeout=0) as connection:
        with locked(path), pytest.raises(DatabaseError, match="locked by another connection"):
            await engine.begin(connection)

        assert not connection.in_transaction


async def test_the_stores_own_connection_is_refused_within_its_transaction_and_after(
    engine: SqliteEngine, path: Path
) -> None:
    tx = await engine.begin()
    connection = tx.connection
    await tx.insert_jobs([new_job()])

    with pytest.raises(InvalidArgument, match="connection is the store's own"):
        await engine.begin(connection)
    await tx.commit()
    with pytest.raises(InvalidArgument, match="connection is the store's own"):
        await engine.begin(connection)

    assert rows(path) == [b"1"]


@pytest.mark.parametrize("given", [7, "a.db", object(), sqlite3.Row, AsyncSession, aiosqlite.Connection])
async def test_what_is_no_connection_is_refused_by_name(engine: SqliteEngine, given: object) -> None:
    with pytest.raises(InvalidArgument, match="this engine joins an aiosqlite connection, or a SQLAlchemy"):
        await engine.begin(given)


async def test_a_plain_connection_of_the_standard_library_is_refused(
    engine: SqliteEngine, path: Path
) -> None:
    with (
        closing(sqlite3.connect(path)) as connection,
        pytest.raises(InvalidArgument, match="this engine joins"),
    ):
        await engine.begin(connection)


async def test_what_is_sqlalchemys_and_cannot_be_awaited_is_refused(engine: SqliteEngine, path: Path) -> None:
    alchemy = create_engine(f"sqlite:///{path}")
    try:
        with alchemy.connect() as connection, SyncSession(alchemy) as session:
            for given in (alchemy, connection, session):
                with pytest.raises(InvalidArgument, match="this engine joins"):
                    await engine.begin(given)
    finally:
        alchemy.dispose()


async def test_a_scoped_session_is_refused_for_the_session_that_it_stands_for(
    engine: SqliteEngine, path: Path
) -> None:
    alchemy = create_async_engine(f"sqlite+aiosqlite:///{path}")
    scoped = async_scoped_session(async_sessionmaker(alchemy), scopefunc=asyncio.current_task)
    with pytest.raises(InvalidArgument, match=r"join\(session\(\)\)"):
        await engine.begin(scoped)
    tx = await engine.begin(scoped())
    await tx.insert_jobs([new_job()])
    await scoped.commit()
    await scoped.remove()
    await alchemy.dispose()

    assert rows(path) == [b"1"]


async def test_a_connection_that_was_closed_is_refused(engine: SqliteEngine, path: Path) -> None:
    connection = await aiosqlite.connect(path)
    await connection.close()

    with pytest.raises(InvalidArgument, match="cannot be joined"):
        await engine.begin(connection)


@pytest.mark.parametrize("database", [":memory:", ""])
async def test_a_private_database_is_refused(engine: SqliteEngine, database: str) -> None:
    async with aiosqlite.connect(database) as connection:
        with pytest.raises(InvalidArgument, match="private database"):
            await engine.begin(connection)


async def test_the_same_file_may_have_another_name_and_another_file_may_be_attached(path: Path) -> None:
    link = path.with_name("link.db")
    os.symlink(path, link)
    async with opened(link) as engine, aiosqlite.connect(path, isolation_level=None) as connection:
        await connection.execute("ATTACH ? AS other", (str(path.with_name("other.db")),))
        await connection.execute("BEGIN IMMEDIATE")
        tx = await engine.begin(connection)
        await tx.insert_jobs([new_job()])
        await connection.execute("COMMIT")

    assert rows(path) == [b"1"]


async def test_the_store_attached_to_another_database_is_refused(engine: SqliteEngine, path: Path) -> None:
    async with aiosqlite.connect(path.with_name("other.db")) as connection:
        await connection.execute("ATTACH ? AS jobs", (str(path),))

        with pytest.raises(InvalidArgument, match=r"join a connection to the same file"):
            await engine.begin(connection)


# ---------------------------------------------------------------- what the application makes of its connection


class Odd:
    """A row as nobody expects it."""

    def __init__(self, cursor: sqlite3.Cursor, row: tuple[object, ...]) -> None:
        self.row = row


def named(cursor: sqlite3.Cursor, row: tuple[object, ...]) -> dict[str, object]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


@pytest.mark.parametrize("row_factory", [None, sqlite3.Row, named, Odd])
@pytest.mark.parametrize("text_factory", [str, bytes, bytearray])
async def test_everything_is_done_whatever_rows_the_application_wants(
    engine: SqliteEngine, path: Path, row_factory: Any, text_factory: Callable[[bytes], object]
) -> None:
    await engine.insert_jobs([new_job(b"claimed")])
    (claimed,) = (await engine.claim_jobs("q", ["me"])).jobs
    assert claimed.token is not None
    ack = Ack("q", claimed.id, claimed.token)
    async with begun(path) as connection:
        connection.row_factory, connection.text_factory = row_factory, cast(Any, text_factory)
        tx = await engine.begin(connection)

        ids = list(await tx.insert_jobs([new_job(b"1"), new_job(b"2")]))
        assert await tx.append_events(
            [NewEvent("s", "key", b"1", b"{}"), NewEvent("t", None, b"2", b"{}")]
        ) == [1, 1]
        assert await tx.settle_jobs([ack, ack]) == [engine._clock.now(), None]
        assert await tx.read_offset("s", "me", hold=True) == 0
        assert await tx.save_offset("s", "me", 1, 0) == OffsetSave(0, True)
        await tx.notify([NewWake("c", b"1")])

        found = await tx.find_jobs("q", JobFilter())
        assert [(job.id, job.queue, job.payload) for job in found] == [
            (ids[0], "q", b"1"),
            (ids[1], "q", b"2"),
        ]
        assert [(read.stream, read.key) for read in await tx.read_events("s", 0, 9)] == [("s", "key")]
        assert connection.row_factory is row_factory
        assert cast(Any, connection.text_factory) is text_factory
        await connection.execute("COMMIT")

    assert rows(path) == [b"1", b"2"]


async def test_a_batch_that_is_refused_leaves_the_applications_transaction_as_it_was(
    engine: SqliteEngine, path: Path
) -> None:
    async with begun(path) as connection:
        await connection.execute(
            "CREATE TRIGGER guard AFTER INSERT ON alkstore_job WHEN NEW.payload = CAST('3' AS BLOB) "
            "BEGIN SELECT RAISE(FAIL, 'no threes'); END"
        )
        tx = await engine.begin(connection)
        await tx.insert_jobs([new_job(b"before")])

        with pytest.raises(DatabaseError, match="no threes"):
            await tx.insert_jobs([new_job(b"%d" % n) for n in range(1, 6)])

        assert tx.is_open
        await tx.insert_jobs([new_job(b"after")])
        await connection.execute("COMMIT")
    assert rows(path) == [b"before", b"after"]


async def test_a_connection_that_is_closed_beneath_it_closes_the_transaction(
    engine: SqliteEngine, path: Path
) -> None:
    async with begun(path) as connection:
        tx = await engine.begin(connection)
        await tx.insert_jobs([new_job()])
    assert not tx.is_open

    with pytest.raises(Closed):
        await tx.insert_jobs([new_job()])
    assert rows(path) == []


async def test_the_end_is_the_applications_alone(engine: SqliteEngine, path: Path) -> None:
    async with begun(path) as connection:
        tx = await engine.begin(connection)
        await tx.insert_jobs([new_job()])

        with pytest.raises(InvalidArgument, match="commit of a joined transaction is its owner's"):
            await tx.commit()
        await tx.rollback()

        assert (tx.is_open, connection.in_transaction) == (False, True)
        await connection.execute("COMMIT")
    assert rows(path) == [b"1"]


# ---------------------------------------------------------------- SQLAlchemy


class Session(AsyncSession):
    """As applications have it, with methods of their own."""


@pytest.fixture
async def alchemy(path: Path, engine: SqliteEngine) -> AsyncIterator[AsyncEngine]:
    made = create_async_engine(URL.create("sqlite+aiosqlite", database=str(path)))
    event.listen(made.sync_engine, "connect", _leave_beginning_to_us)
    event.listen(made.sync_engine, "begin", _begin)
    yield made
    await made.dispose()


def _leave_beginning_to_us(connection: Any, _: object) -> None:
    connection.isolation_level = None


def _begin(connection: Any) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


async def test_a_session_of_a_class_of_the_applications_is_ridden(
    engine: SqliteEngine, alchemy: AsyncEngine, path: Path
) -> None:
    async with Session(alchemy) as session:
        tx = await engine.begin(session)
        await tx.insert_jobs([new_job()])
        await session.commit()

    assert rows(path) == [b"1"]


async def test_the_next_transaction_of_a_session_is_not_the_one_that_was_joined(
    engine: SqliteEngine, alchemy: AsyncEngine, path: Path
) -> None:
    async with Session(alchemy) as session:
        first = await engine.begin(session)
        await first.insert_jobs([new_job(b"first")])
        await session.commit()
        await session.execute(text("SELECT 1"))
        assert session.in_transaction()

        assert not first.is_open
        with pytest.raises(Closed):
            await first.insert_jobs([new_job(b"stray")])
        second = await engine.begin(session)
        await second.insert_jobs([new_job(b"second")])
        await session.commit()

    assert rows(path) == [b"first", b"second"]


async def test_the_next_transaction_of_a_connection_is_not_the_one_that_was_joined(
    engine: SqliteEngine, alchemy: AsyncEngine, path: Path
) -> None:
    async with alchemy.connect() as connection:
        first = await engine.begin(connection)
        await connection.rollback()
        _ = await connection.begin()

        with pytest.raises(Closed):
            await first.insert_jobs([new_job(b"stray")])
        await connection.commit()

    assert rows(path) == []


async def test_a_savepoint_that_a_session_still_owes_takes_its_operations_along(
    engine: SqliteEngine, alchemy: AsyncEngine, path: Path
) -> None:
    async with Session(alchemy) as session:
        tx = await engine.begin(session)
        await tx.insert_jobs([new_job(b"before")])
        nested = await session.begin_nested()
        await tx.insert_jobs([new_job(b"within")])
        await nested.rollback()
        async with session.begin_nested():
            await tx.insert_jobs([new_job(b"kept")])
        await tx.insert_jobs([new_job(b"after")])
        await session.commit()

    assert rows(path) == [b"before", b"kept", b"after"]


async def test_a_join_that_is_refused_leaves_a_connection_as_it_was(
    engine: SqliteEngine, alchemy: AsyncEngine, path: Path
) -> None:
    async with opened(path.with_name("other.db")) as other, alchemy.connect() as connection:
        with pytest.raises(InvalidArgument, match="join a connection to the same file"):
            await other.begin(connection)

        assert not connection.in_transaction()
        async with asyncio.timeout(HUNG):
            await engine.insert_jobs([new_job()])
