"""Which sessions can be joined, and when the join ends."""

import asyncio
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hanging import HUNG
from ordering import Order, database, payloads
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session

from alkstore import DatabaseError, InvalidArgument, Store


async def test_what_is_no_session_is_refused_by_name(
    store: Store, engine: AsyncEngine, session: AsyncSession
) -> None:
    sync = create_engine("sqlite://")
    async with engine.connect() as connection:
        assert isinstance(connection, AsyncConnection)
        for given in (
            7,
            "session",
            object(),
            AsyncSession,
            engine,
            connection,
            session.sync_session,
            Session(sync),
        ):
            with pytest.raises(InvalidArgument, match="this engine joins a SQLAlchemy AsyncSession"):
                await store.join(given)
    sync.dispose()


async def test_a_session_without_a_transaction_is_refused(store: Store, engine: AsyncEngine) -> None:
    async with AsyncSession(engine, autobegin=False) as session:
        with pytest.raises(InvalidArgument, match="cannot be joined"):
            await store.join(session)
    async with AsyncSession() as session:
        with pytest.raises(InvalidArgument, match="cannot be joined"):
            await store.join(session)
    async with AsyncSession(engine.execution_options(isolation_level="AUTOCOMMIT")) as session:
        with pytest.raises(InvalidArgument, match="AUTOCOMMIT"):
            await store.join(session)
    async with database(isolation_level="AUTOCOMMIT") as autocommit, AsyncSession(autocommit) as session:
        with pytest.raises(InvalidArgument, match="AUTOCOMMIT"):
            await store.join(session)


async def test_a_database_that_cannot_be_reached_is_an_error_with_its_cause(
    store: Store, tmp_path: Path
) -> None:
    threads = set(threading.enumerate())
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'nowhere' / 'a.db'}")
    async with AsyncSession(engine) as session:
        with pytest.raises(DatabaseError, match="unable to open") as raised:
            await store.join(session)
    await engine.dispose()
    for thread in set(threading.enumerate()) - threads:  # aiosqlite's, which tells the loop of its end
        await asyncio.to_thread(thread.join)

    assert type(raised.value.__cause__).__module__ == "sqlite3"


async def test_an_error_is_caused_by_the_drivers_own_where_sqlalchemy_adapts_it(store: Store) -> None:
    async def connect() -> object:
        raise sqlite3.OperationalError("as SQLAlchemy tells it") from ConnectionResetError("server went away")

    async with AsyncSession(create_async_engine("sqlite+aiosqlite://", async_creator=connect)) as session:
        with pytest.raises(DatabaseError, match="server went away") as raised:
            await store.join(session)

    assert isinstance(raised.value.__cause__, ConnectionResetError)


async def test_a_scoped_session_is_refused_for_the_session_that_it_stands_for(
    store: Store, engine: AsyncEngine
) -> None:
    scoped = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
    with pytest.raises(InvalidArgument, match=r"join\(session\(\)\)"):
        await store.join(scoped)
    async with store.join(scoped()) as tx:
        await tx.enqueue("q", 1)
    await scoped.commit()
    await scoped.remove()

    assert await payloads(store) == [1]


async def test_a_session_on_the_connection_of_a_test_that_rolls_back_lands_with_its_commit(
    store: Store, engine: AsyncEngine
) -> None:
    async with engine.connect() as connection:
        outer = await connection.begin()
        async with AsyncSession(connection, join_transaction_mode="create_savepoint") as session:
            async with store.join(session) as tx:
                await tx.enqueue("q", 1)
                session.add(Order(id=1))
            await session.commit()
        await outer.rollback()

    assert await payloads(store) == [1]


async def test_the_end_of_a_join_is_the_sessions(store: Store, session: AsyncSession) -> None:
    async with store.join(session) as tx:
        with pytest.raises(InvalidArgument):
            await tx.commit()
        with pytest.raises(InvalidArgument):
            await tx.rollback()
        await tx.enqueue("q", 1)
    await session.commit()

    assert await payloads(store) == [1]


def test_sqlalchemy_is_not_imported_by_a_store() -> None:
    code = (
        "import asyncio, sys, alkstore_mem\n"
        "async def main():\n"
        "    async with alkstore_mem.MemStore() as store:\n"
        "        try:\n"
        "            await store.join(object())\n"
        "        except ValueError:\n"
        "            print('sqlalchemy' in sys.modules)\n"
        "asyncio.run(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=HUNG
    )

    assert done.stdout.strip() == "False"
