"""Riding a SQLAlchemy session: what it does to its transaction, and what the store makes of that."""

import asyncio
import gc
from contextlib import suppress
from pathlib import Path

import pytest
from hanging import HUNG
from ordering import Order, Part, database, events, payloads
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
)

from alkstore import Closed, DatabaseError, InsideTransaction, InvalidArgument, OffsetConflict, Store
from alkstore_mem import MemStore

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


async def test_what_was_joined_and_dropped_lands_with_its_session(
    store: Store, session: AsyncSession
) -> None:
    tx = await store.join(session)
    await tx.enqueue("q", 1)
    del tx
    gc.collect()

    await session.commit()

    assert await payloads(store) == [1]


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
    async with session.begin():
        async with store.join(session) as tx:
            await tx.enqueue("q", 5)
        with pytest.raises(Closed):  # its own block has ended
            await tx.enqueue("q", 6)

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

    async with asyncio.timeout(HUNG):
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

        async with asyncio.timeout(HUNG):
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
