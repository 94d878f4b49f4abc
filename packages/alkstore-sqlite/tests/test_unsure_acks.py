"""Jobs acked in a transaction of whose end the store is not told: the claim says how it was (Q-23)."""

import asyncio
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


async def test_after_a_commit_that_was_cancelled_an_ack_lands_or_finds_the_handle_used_up(
    store: SqliteStore,
) -> None:
    ends: list[object] = []
    for turns in range(1, 12):  # before that nothing has begun
        await store.queue("q").enqueue(turns)
        handle = await store.queue("q").claim_one()
        assert handle is not None
        tx = await store.begin_tx()
        await tx.ack(handle)
        committing = asyncio.ensure_future(tx.commit())
        for _ in range(turns):
            await asyncio.sleep(0)
        committing.cancel()
        await asyncio.wait([committing])
        try:
            ends.append(await handle.ack())
        except HandleConsumed:
            ends.append("used up")

    assert set(ends) <= {True, "used up"}
    assert [job.attempts for job in await store.queue("q").list()] == [0]  # the last one, never claimed
