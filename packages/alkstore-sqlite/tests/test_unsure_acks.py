"""Jobs acked in a transaction of whose end the store is not told: the claim says how it was (Q-23)."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from alkstore import HandleConsumed, JobHandle
from alkstore_sqlite import SqliteStore


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with SqliteStore(tmp_path / "a.db") as store:
        await store.queue("q").enqueue(1)
        yield store


@pytest.fixture
async def handle(store: SqliteStore) -> JobHandle:
    handle = await store.queue("q").claim_one()
    assert handle is not None
    return handle


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
async def test_a_block_around_the_callers_own_end_leaves_the_job_done(
    store: SqliteStore, handle: JobHandle, end: str
) -> None:
    async with handle, store.begin_tx() as tx:
        await tx.ack(handle)
        await tx.connection.execute(end)

    assert await store.queue("q").list() == []
    with pytest.raises(HandleConsumed):
        await handle.ack()


async def test_after_the_callers_own_rollback_a_body_that_fails_leads_to_a_retry(
    store: SqliteStore, handle: JobHandle
) -> None:
    async def work() -> None:
        async with handle, store.begin_tx() as tx:
            await tx.ack(handle)
            await tx.connection.execute("ROLLBACK")
            raise KeyError("the body")

    with pytest.raises(KeyError):
        await work()

    (job,) = await store.queue("q").list()
    assert "the body" in str(job.retry_error)
