"""Riding a SQLAlchemy session: what it does to its transaction, and what the store makes of that."""

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from sqlalchemy import ForeignKey, create_engine, event, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from alkstore import Closed, DatabaseError, InsideTransaction, InvalidArgument, OffsetConflict, Store
from alkstore.testing import ManualClock
from alkstore_mem import MemStore


class Base(DeclarativeBase):
    """The application's tables."""


class Order(Base):
    __tablename__ = "order_"

    id: Mapped[int] = mapped_column(primary_key=True)


class Part(Base):
    __tablename__ = "part"

    id: Mapped[int] = mapped_column(primary_key=True)
    order: Mapped[int] = mapped_column(ForeignKey("order_.id", deferrable=True, initially="DEFERRED"))


@asynccontextmanager
async def database(url: str = "sqlite+aiosqlite://", **options: str) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(url, **options)

    def connected(connection: object, _: object) -> None:
        connection.isolation_level = None  # type: ignore[attr-defined]  # SQLAlchemy's face of aiosqlite's
        cursor = connection.cursor()  # type: ignore[attr-defined]
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.close()

    event.listen(engine.sync_engine, "connect", connected)
    event.listen(engine.sync_engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    try:
        yield engine
    finally:
        await engine.dispose()


@pytest.fixture
async def engine() -> AsyncIterator[AsyncEngine]:
    async with database() as engine:
        yield engine


@pytest.fixture
async def session(engine: AsyncEngine) -> AsyncIterator[AsyncSession]:
    async with AsyncSession(engine) as session:
        yield session


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with MemStore(clock=ManualClock(), wait_timeout=0.01) as store:
        yield store


async def payloads(store: Store, queue: str = "q") -> list[object]:
    return [job.payload for job in await store.queue(queue).list()]


async def events(store: Store) -> list[object]:
    return [event.payload for event in await store.stream("s").read_since(0)]


# ---------------------------------------------------------------- with the session's commit


@pytest.mark.parametrize("url", ["file", "sqlite+aiosqlite://"])
async def test_everything_lands_with_the_sessions_commit_or_leaves_no_trace(
    store: Store, tmp_path: Path, url: str
) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'a.db'}" if url == "file" else url
    async with database(url) as engine, AsyncSession(engine) as session:
        for keep in (False, True):
            await store.queue("claims").enqueue("claimed")
            handle = await store.queue("claims").claim_one()
            assert handle is not None
            async with store.listen("bell") as bell:
                async with store.join(session) as tx:
                    session.add(Order(id=1))
                    await tx.enqueue("q", 1)
                    await tx.publish("s", 1)
                    await tx.notify("bell")
                    await tx.ack(handle)
                    await tx.save_offset("s", "c", 7)
                    assert await tx.get_offset("s", "c") == 7
                    assert tx.connection is session
                assert (await payloads(store), await events(store)) == ([], [])
                assert await bell.try_recv() is None
                await (session.commit() if keep else session.rollback())

                assert (await payloads(store), await events(store)) == (([1], [1]) if keep else ([], []))
                assert (await bell.try_recv() is not None) == keep
            assert await store.stream("s").get_offset("c") == 7 * keep
            left = [job.id for job in await store.queue("claims").list()]
            assert (handle.job.id in left) != keep
            assert len((await session.execute(text("SELECT id FROM order_"))).all()) == keep
            await session.rollback()


async def test_what_was_joined_is_closed_after_the_commit_and_the_session_goes_on(
    store: Store, session: AsyncSession
) -> None:
    async with store.join(session) as tx:
        await tx.enqueue("q", 1)
        await session.commit()
        with pytest.raises(Closed):
            await tx.enqueue("q", 2)
    async with store.join(session) as tx:
        await tx.enqueue("q", 3)
        await session.rollback()
        with pytest.raises(Closed):
            await tx.enqueue("q", 4)
    async with session.begin(), store.join(session) as tx:
        await tx.enqueue("q", 5)

    assert await payloads(store) == [1, 5]


async def test_a_session_that_is_closed_without_a_commit_leaves_nothing(
    store: Store, engine: AsyncEngine
) -> None:
    async with AsyncSession(engine) as session, store.join(session) as tx:
        await tx.enqueue("q", 1)
        async with session.begin_nested():
            await tx.publish("s", 1)
    async with AsyncSession(engine) as session, store.join(session) as tx:
        await tx.enqueue("q", 2)
        await session.reset()
        with pytest.raises(Closed):
            await tx.enqueue("q", 3)

    assert (await payloads(store), await events(store)) == ([], [])
    await store.stream("s").publish("seen")
    assert await events(store) == ["seen"]


async def test_a_session_that_is_dropped_holds_nothing_back(store: Store, engine: AsyncEngine) -> None:
    session = AsyncSession(engine)
    async with store.join(session) as tx:
        await tx.publish("s", "lost")
    connection = await session.connection()
    await store.stream("s").publish("seen")
    assert await events(store) == []
    await connection.close()  # else SQLAlchemy warns of it
    del session, tx, connection
    gc.collect()
    await asyncio.sleep(0)

    assert await events(store) == ["seen"]


async def test_joined_twice_in_one_transaction_it_sees_what_it_did_before(
    store: Store, session: AsyncSession
) -> None:
    async with store.join(session) as tx:
        await tx.publish("s", 1)
    async with store.join(session) as tx:
        assert [event.payload for event in await tx.read_since("s", 0)] == [1]
        await tx.publish("s", 2)
    await session.commit()

    assert await events(store) == [1, 2]


async def test_two_stores_ride_one_session(store: Store, session: AsyncSession) -> None:
    async with MemStore() as other:
        async with store.join(session) as tx:
            await tx.enqueue("q", 1)
            async with other.join(session) as tx:
                await tx.enqueue("q", 2)
        await session.commit()

        assert (await payloads(store), await payloads(other)) == ([1], [2])


async def test_a_commit_that_the_database_refuses_leaves_nothing(store: Store, session: AsyncSession) -> None:
    async with store.join(session) as tx:
        await tx.enqueue("q", 1)
        session.add(Part(id=1, order=7))
        with pytest.raises(IntegrityError):
            await session.commit()
        await session.rollback()

    assert await payloads(store) == []
    async with store.join(session) as tx:
        await tx.enqueue("q", 2)
    await session.commit()
    assert await payloads(store) == [2]


async def test_a_flush_that_fails_ends_it_with_the_sessions_transaction(
    store: Store, session: AsyncSession
) -> None:
    async with store.join(session) as tx:
        await tx.enqueue("q", 1)
        session.add_all([Order(id=1), Order(id=1)])
        with pytest.raises(IntegrityError):
            await session.flush()
        with pytest.raises(Closed):
            await tx.enqueue("q", 2)
        await session.rollback()

    assert await payloads(store) == []


async def test_waiting_tasks_are_woken_by_the_commit(store: Store, session: AsyncSession) -> None:
    waiting = asyncio.ensure_future(store.queue("q").claim())
    async with store.join(session) as tx:
        await tx.enqueue("q", 1)
    await asyncio.sleep(0)
    assert not waiting.done()
    await session.commit()

    async with asyncio.timeout(5):
        handle = await waiting
    assert handle is not None


async def test_a_store_that_closes_first_leaves_the_commit_to_the_session(
    store: Store, session: AsyncSession
) -> None:
    async with MemStore() as other, other.join(session) as tx:
        await tx.enqueue("q", 1)
    session.add(Order(id=1))
    await session.commit()

    with pytest.raises(Closed):
        await tx.enqueue("q", 2)
    assert (await session.get(Order, 1)) is not None


# ---------------------------------------------------------------- savepoints


async def test_a_savepoint_takes_its_part_along(store: Store, session: AsyncSession) -> None:
    await store.queue("claims").enqueue("claimed")
    handle = await store.queue("claims").claim_one()
    assert handle is not None
    async with store.listen("lost") as lost, store.listen("kept") as kept:
        async with store.join(session) as tx:
            await tx.publish("s", "before")
            await tx.save_offset("s", "c", 1)
            with suppress(KeyError):
                async with session.begin_nested():
                    await tx.enqueue("q", "lost")
                    await tx.publish("s", "lost")
                    await tx.publish("t", "lost")
                    await tx.notify("lost")
                    await tx.save_offset("s", "c", 2)
                    await tx.ack(handle)
                    raise KeyError
            assert await tx.get_offset("s", "c") == 1
            await tx.publish("s", "after")
            await tx.notify("kept")
        await session.commit()

        assert (await lost.try_recv() is None, await kept.try_recv() is None) == (True, False)
    assert (await payloads(store), await events(store)) == ([], ["before", "after"])
    assert await store.stream("s").get_offset("c") == 1
    assert await store.streams() == ["s"]
    assert [job.state.name for job in await store.queue("claims").list()] == ["PROCESSING"]


async def test_a_savepoint_that_is_released_belongs_to_what_is_around_it(
    store: Store, session: AsyncSession
) -> None:
    async with store.join(session) as tx:
        with suppress(KeyError):
            async with session.begin_nested():
                await tx.enqueue("q", "lost")
                async with session.begin_nested():
                    await tx.enqueue("q", "released, then lost")
                raise KeyError
        async with session.begin_nested():
            await tx.enqueue("q", "kept")
            inner = await session.begin_nested()
            await tx.enqueue("q", "rolled back")
            await inner.rollback()
    await session.commit()

    assert await payloads(store) == ["kept"]


async def test_a_savepoint_from_before_the_join_takes_all_of_it_along(
    store: Store, session: AsyncSession
) -> None:
    with suppress(KeyError):
        async with session.begin_nested(), session.begin_nested(), store.join(session) as tx:
            await tx.enqueue("q", 1)
            raise KeyError
    async with store.join(session) as tx:
        await tx.enqueue("q", 2)
    await session.commit()

    assert await payloads(store) == [2]


async def test_readers_are_woken_when_a_savepoint_held_them_back(store: Store, session: AsyncSession) -> None:
    async with store.stream("s").subscribe(after=0) as receiver, store.join(session) as tx:
        savepoint = await session.begin_nested()
        await tx.publish("s", "lost")
        await asyncio.create_task(store.stream("s").publish("seen"))
        assert await receiver.try_recv() is None
        await savepoint.rollback()

        async with asyncio.timeout(5):
            found = await receiver.recv()
        assert found is not None
        assert found.payload == "seen"


async def test_a_commit_within_an_open_savepoint_lands_all_of_it(store: Store, session: AsyncSession) -> None:
    async with store.join(session) as tx:
        await tx.enqueue("q", 1)
        _ = await session.begin_nested()
        await tx.enqueue("q", 2)
    await session.commit()

    assert await payloads(store) == [1, 2]


async def test_a_flush_that_fails_in_a_savepoint_takes_that_along_alone(
    store: Store, session: AsyncSession
) -> None:
    async with store.join(session) as tx:
        await tx.enqueue("q", "kept")
        with suppress(IntegrityError):
            async with session.begin_nested():
                await tx.enqueue("q", "lost")
                session.add_all([Order(id=1), Order(id=1)])
                await session.flush()
        await tx.enqueue("q", "after")
    await session.commit()

    assert await payloads(store) == ["kept", "after"]


# ---------------------------------------------------------------- conflicts


async def test_a_position_that_was_reset_meanwhile_refuses_the_sessions_commit(
    store: Store, session: AsyncSession
) -> None:
    async with store.join(session) as tx:
        await tx.save_offset("s", "c", 3)
    session.add(Order(id=1))
    await store.stream("s").reset_offset("c", 9)
    with pytest.raises(OffsetConflict):
        await session.commit()
    await session.rollback()

    assert await session.get(Order, 1) is None
    assert await store.stream("s").get_offset("c") == 9


async def test_one_that_failed_refuses_the_sessions_commit(store: Store, session: AsyncSession) -> None:
    async with store.begin_tx() as holder:
        await holder.read_from_consumer("s", "c")

        async def ride() -> None:
            async with store.join(session) as tx:
                await tx.enqueue("q", 1)
                with pytest.raises(DatabaseError, match="held by"):
                    await tx.read_from_consumer("s", "c")
            with pytest.raises(DatabaseError, match="roll the session back"):
                async with store.join(session):
                    pass
            with pytest.raises(DatabaseError, match="roll the session back"):
                await session.commit()
            await session.rollback()

        await asyncio.create_task(ride())
    async with store.join(session) as tx:
        await tx.enqueue("q", 2)
    await session.commit()

    assert await payloads(store) == [2]


async def test_what_the_store_refuses_leaves_the_session_usable(store: Store, session: AsyncSession) -> None:
    async with store.join(session) as tx:
        with pytest.raises(InvalidArgument):
            await tx.enqueue("q", 1, max_attempts=0)
        with pytest.raises(InsideTransaction):
            await store.queue("q").enqueue(1)
        await tx.enqueue("q", 2)
    await session.commit()

    assert await payloads(store) == [2]


# ---------------------------------------------------------------- which ride


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
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=20
    )

    assert done.stdout.strip() == "False"
