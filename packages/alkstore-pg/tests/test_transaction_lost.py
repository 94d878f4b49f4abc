"""A transaction whose connection is lost while nothing of it is in hand: its caller must learn of it."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from alkstore import DatabaseError, Store
from alkstore_pg import PgStore
from alkstore_pg.contract_server import Server, execute

END = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND state = 'idle in transaction'
"""

GONE = """
DO $$ BEGIN
    WHILE EXISTS (
        SELECT FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'
    ) LOOP
        PERFORM pg_sleep(0.001), pg_stat_clear_snapshot();
    END LOOP;
END $$
"""


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[Store]:
    async with PgStore(dsn) as store:
        yield store


async def lose(dsn: str, waits: bool) -> None:
    """End the backend of the open transaction; the driver hears of it in a turn of the loop, if there is one."""
    ended = execute(dsn, END)
    assert len(ended) == 1
    if waits:
        execute(dsn, GONE)
        for _ in range(10):
            await asyncio.sleep(0)


@pytest.mark.parametrize("waits", [False, True])
async def test_leaving_the_block_raises(server: Server, store: Store, dsn: str, waits: bool) -> None:
    async def work() -> None:
        async with store.begin_tx() as tx:
            await tx.enqueue("mail", 1)
            await lose(dsn, waits)

    with pytest.raises(DatabaseError):
        await work()
    assert (await store.queue("mail").stats()).ready == 0


@pytest.mark.parametrize("waits", [False, True])
async def test_the_next_operation_raises(server: Server, store: Store, dsn: str, waits: bool) -> None:
    async def work() -> None:
        async with store.begin_tx() as tx:
            await tx.enqueue("mail", 1)
            await lose(dsn, waits)
            await tx.enqueue("mail", 2)

    with pytest.raises(DatabaseError) as caught:
        await work()
    assert "pool" not in str(caught.value)
    assert (await store.queue("mail").stats()).ready == 0


async def test_a_commit_says_that_nothing_landed(server: Server, store: Store, dsn: str) -> None:
    tx = await store.begin_tx()
    await tx.enqueue("mail", 1)
    await lose(dsn, True)
    with pytest.raises(DatabaseError, match="nothing of the transaction landed") as caught:
        await tx.commit()
    assert not caught.value.outcome_unknown


async def test_a_commit_says_what_it_cannot_know_of_the_callers_own_statements(
    server: Server, store: Store, dsn: str
) -> None:
    tx = await store.begin_tx()
    await tx.enqueue("mail", 1)
    assert tx.connection is not None
    await lose(dsn, True)
    with pytest.raises(DatabaseError, match="unless your own SQL") as caught:
        await tx.commit()
    assert caught.value.outcome_unknown


async def test_a_rollback_is_what_happened_anyway(server: Server, store: Store, dsn: str) -> None:
    tx = await store.begin_tx()
    await tx.enqueue("mail", 1)
    await lose(dsn, True)
    await tx.rollback()
    assert (await store.queue("mail").stats()).ready == 0
