"""Jobs acked in a transaction whose object is dropped before its end is known: the claim tells of it (Q-23, TX-03)."""

import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from alkstore import HandleConsumed, JobHandle, Queue, StopToken, Store
from alkstore.testing import ManualClock
from alkstore.worker import Counts, Worker
from alkstore_mem import MemStore
from alkstore_mem.contract_joins import Sessions
from alkstore_sqlite import SqliteStore


@pytest.fixture
async def store() -> AsyncIterator[MemStore]:
    async with MemStore(clock=ManualClock()) as store:
        yield store


@pytest.fixture
def sessions(tmp_path: Path) -> Sessions:
    return Sessions(tmp_path)


async def claimed(queue: Queue) -> JobHandle:
    await queue.enqueue(1)
    handle = await queue.claim_one()
    assert handle is not None
    return handle


async def ack_and_forget(store: Store, connection: object, handle: JobHandle) -> None:
    """As a function of an application does that is given its caller's connection."""
    tx = await store.join(connection)
    await tx.ack(handle)


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_handle_is_used_up_for_as_long_as_the_callers_transaction_is_open(
    store: MemStore, sessions: Sessions, end: str
) -> None:
    handle = await claimed(store.queue("q"))
    async with sessions.transaction() as session:
        await ack_and_forget(store, session.connection, handle)
        gc.collect()
        with pytest.raises(HandleConsumed, match="acked in a transaction"):
            await handle.ack()
        await getattr(session, end)()

    if end == "rollback":
        assert await handle.ack()
    with pytest.raises(HandleConsumed):
        await handle.ack()
    assert await store.queue("q").list() == []


async def test_a_handler_whose_ack_has_committed_goes_on_for_as_long_as_it_likes(sessions: Sessions) -> None:
    clock = ManualClock()
    async with MemStore(clock=clock) as store:
        await store.queue("q", visibility_timeout=3).enqueue(1)
        stop, committed, goes_on = StopToken(), asyncio.Event(), asyncio.Event()

        async def handler(handle: JobHandle) -> None:
            async with sessions.transaction() as session:
                await ack_and_forget(store, session.connection, handle)
                await session.commit()
            committed.set()
            await goes_on.wait()

        working = asyncio.ensure_future(Worker(store, {"q": handler}).run(stop, signals=False))
        await committed.wait()
        for _ in range(10):
            await clock.advance(1)  # its claim would have been renewed, and found to be gone
        goes_on.set()
        stop.cancel()

        assert await working == Counts(done=1)


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
async def test_after_the_callers_own_sql_a_transaction_may_be_dropped(tmp_path: Path, end: str) -> None:
    async with SqliteStore(tmp_path / "a.db") as store:
        handle = await claimed(store.queue("q"))

        async def ack_by_hand() -> None:
            tx = await store.begin_tx()
            await tx.ack(handle)
            await tx.connection.execute(end)

        await ack_by_hand()
        gc.collect()

        if end == "ROLLBACK":
            assert await handle.ack()
        with pytest.raises(HandleConsumed):
            await handle.ack()
        assert await store.queue("q").list() == []


async def test_what_the_stores_close_rolls_back_leaves_its_handle_open(store: MemStore) -> None:
    handle = await claimed(store.queue("q"))
    tx = await store.begin_tx()
    await tx.ack(handle)

    await store.aclose()

    assert "open" in repr(handle)
