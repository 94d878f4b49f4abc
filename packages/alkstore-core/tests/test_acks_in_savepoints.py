"""Jobs acked in a transaction whose connection its caller has: a savepoint of his own may take the ack back (Q-23, TX-06)."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from faulty import FaultyStore, warped

from alkstore import HandleConsumed, JobHandle, JobState
from alkstore.worker import Counts, Worker
from alkstore_sqlite import SqliteStore
from alkstore_sqlite.native import SqliteTx


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with SqliteStore(tmp_path / "a.db") as store:
        await store.queue("q").enqueue(1)
        yield store


async def ack_in_savepoint(tx: SqliteTx, handle: JobHandle, end: str) -> None:
    await tx.connection.execute("SAVEPOINT mine")
    await tx.ack(handle)
    await tx.connection.execute(f"{end} mine")


@pytest.mark.parametrize(
    ("end", "counts", "left"),
    [("ROLLBACK TO", Counts(retried=1), [JobState.PENDING]), ("RELEASE", Counts(done=1), [])],
)
async def test_a_worker_hears_of_a_handler_that_failed_after_an_ack_which_did_not_land(
    store: SqliteStore, end: str, counts: Counts, left: list[JobState]
) -> None:
    async def handler(handle: JobHandle) -> None:
        async with store.begin_tx() as tx:
            await ack_in_savepoint(tx, handle, end)
            await tx.enqueue("fallback", 1)
        raise ValueError("goes wrong afterwards")

    assert await Worker(store, {"q": handler}).run_until_idle() == counts
    assert [job.state for job in await store.queue("q").list()] == left
    assert (await store.queue("fallback").stats()).ready == 1


async def test_a_block_around_an_ack_that_did_not_land_acks_by_itself(store: SqliteStore) -> None:
    handle = await store.queue("q").claim_one()
    assert handle is not None

    async with handle, store.begin_tx() as tx:
        await ack_in_savepoint(tx, handle, "ROLLBACK TO")

    assert await store.queue("q").list() == []


async def test_a_handle_is_used_up_by_a_commit_whatever_else_its_transaction_did(store: SqliteStore) -> None:
    handle = await store.queue("q").claim_one()
    assert handle is not None
    async with store.begin_tx() as tx:
        await tx.ack(handle)
        await tx.connection.execute("SELECT 1")

    for settle in (handle.heartbeat, handle.ack, handle.retry):
        with pytest.raises(HandleConsumed, match="acked in a transaction"):
            await settle()


@warped
async def test_a_commit_is_asked_nothing_where_nobody_has_the_connection() -> None:
    async with FaultyStore() as store:
        await store.queue("q").enqueue(1)

        async def handler(handle: JobHandle) -> None:
            async with store.begin_tx() as tx:
                await tx.ack(handle)

        assert await Worker(store, {"q": handler}).run_until_idle() == Counts(done=1)

        assert store.wire.calls["settle_jobs"] == 0
