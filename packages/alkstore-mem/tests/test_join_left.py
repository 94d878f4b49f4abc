"""A join that was cancelled, refused, or whose store was closed: a session that had not begun has not."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count

import pytest
from ordering import database
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from alkstore import Closed, InvalidArgument, Store
from alkstore_mem import MemStore


@pytest.fixture
async def engine() -> AsyncIterator[AsyncEngine]:
    async with database() as engine:
        yield engine


async def _cut(store: Store, session: AsyncSession, turns: int) -> bool:
    """Cancel a join after so many turns of the loop; False if it was over by then."""

    async def join() -> None:
        _ = await store.join(session)

    joining = asyncio.ensure_future(join())
    for _ in range(turns):
        await asyncio.sleep(0)
    was_cut = joining.cancel()
    await asyncio.wait((joining,))
    return was_cut and joining.cancelled()


async def test_a_cancelled_join_leaves_the_session_as_it_was(store: Store, engine: AsyncEngine) -> None:
    for turns in count():
        async with AsyncSession(engine) as session:
            if not await _cut(store, session, turns):
                break
            assert not session.in_transaction()
            async with session.begin():
                _ = await store.join(session)
    assert turns > 2


async def test_a_cancelled_join_ends_no_transaction_of_the_sessions_own(
    store: Store, engine: AsyncEngine
) -> None:
    async with AsyncSession(engine) as session:
        _ = await session.connection()
        for turns in range(3):
            await _cut(store, session, turns)
            assert session.in_transaction()


async def test_a_refused_join_leaves_the_session_as_it_was(store: Store) -> None:
    engine = create_async_engine("sqlite+aiosqlite://", isolation_level="AUTOCOMMIT")
    async with AsyncSession(engine) as session:
        with pytest.raises(InvalidArgument, match="AUTOCOMMIT"):
            _ = await store.join(session)
        assert not session.in_transaction()
    await engine.dispose()


@pytest.mark.parametrize("turns", [1, 2, 3])
async def test_a_store_that_closes_meanwhile_leaves_the_session_as_it_was(
    engine: AsyncEngine, turns: int
) -> None:
    store = await MemStore()
    async with AsyncSession(engine) as session:

        async def join() -> None:
            _ = await store.join(session)

        joining = asyncio.ensure_future(join())
        for _ in range(turns):
            await asyncio.sleep(0)
        await store.aclose()
        with pytest.raises(Closed):
            await joining
        assert not session.in_transaction()
