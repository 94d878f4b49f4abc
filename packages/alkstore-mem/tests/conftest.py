from collections.abc import AsyncIterator

import pytest
from ordering import database
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from alkstore import Store
from alkstore.testing import ManualClock
from alkstore_mem import MemStore


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
