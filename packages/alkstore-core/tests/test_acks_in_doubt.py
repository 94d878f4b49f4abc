"""Acks in a transaction that were cut short, or failed: what becomes of the handle (Q-23, DUR-08, DUR-11)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from faulty import FaultyStore, turn, warped

from alkstore import ClaimLost, Closed, DatabaseError, HandleConsumed, JobHandle, Store, Tx
from alkstore.testing import ManualClock
from alkstore.worker import Counts, Worker
from alkstore_mem import MemStore
from alkstore_mem.contract_joins import Sessions


@pytest.fixture
async def store() -> AsyncIterator[MemStore]:
    async with MemStore(clock=ManualClock()) as store:
        yield store


@pytest.fixture
def sessions(tmp_path: Path) -> Sessions:
    return Sessions(tmp_path)


async def claimed(store: Store) -> JobHandle:
    await store.queue("q").enqueue(1, visibility_timeout=60)
    handle = await store.queue("q").claim_one()
    assert handle is not None
    return handle


async def cut_short(tx: Tx, handle: JobHandle) -> None:
    """Ack until the wire holds up the work or its answer, and give up."""
    acking = asyncio.ensure_future(tx.ack(handle))
    await turn()
    acking.cancel()
    await asyncio.wait((acking,))
    assert acking.cancelled()


# ---------------------------------------------------------------- cut short


@pytest.mark.parametrize("has_run", [True, False])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_what_a_cancelled_ack_has_left_is_what_the_claim_says(has_run: bool, end: str) -> None:
    @warped
    async def check() -> None:
        async with FaultyStore() as store:
            handle = await claimed(store)
            (store.wire.hang_answers if has_run else store.wire.hang)("tx.settle_jobs")

            async def work() -> None:
                tx = await store.begin_tx()
                await cut_short(tx, handle)
                await getattr(tx, end)()

            await asyncio.ensure_future(work())

            if has_run and end == "commit":
                with pytest.raises(HandleConsumed, match="acked in a transaction"):
                    await handle.ack()
            else:
                assert await handle.ack()
            assert await store.queue("q").list() == []

    check()


@warped
async def test_a_worker_counts_as_done_what_a_cancelled_ack_has_landed() -> None:
    async with FaultyStore() as store:
        await store.queue("q").enqueue(1)
        store.wire.hang_answers("tx.settle_jobs")

        async def handler(handle: JobHandle) -> None:
            async with store.begin_tx() as tx:
                with suppress(TimeoutError):
                    async with asyncio.timeout(1):
                        await tx.ack(handle)

        assert await Worker(store, {"q": handler}).run_until_idle() == Counts(done=1)


@warped
async def test_a_cancelled_ack_is_repeated_in_the_same_transaction() -> None:
    async with FaultyStore() as store:
        one, two = await claimed(store), await claimed(store)
        gate = store.wire.hang("tx.settle_jobs")

        async def work() -> None:
            async with store.begin_tx() as tx:
                await cut_short(tx, one)
                store.wire.before.clear()
                gate.set()
                await tx.ack(one)  # had not run
                store.wire.hang_answers("tx.settle_jobs")
                await cut_short(tx, two)
                store.wire.after.clear()
                with pytest.raises(ClaimLost):  # had run, or has lapsed: nobody can tell yet
                    await tx.ack(two)

        await asyncio.ensure_future(work())

        for handle in (one, two):
            with pytest.raises(HandleConsumed, match="acked in a transaction"):
                await handle.ack()
        assert await store.queue("q").list() == []


@warped
async def test_a_handle_whose_ack_was_cut_short_is_used_up_while_the_transaction_is_open() -> None:
    async with FaultyStore() as store:
        handle = await claimed(store)
        store.wire.hang_answers("tx.settle_jobs")
        tx = await asyncio.ensure_future(begin(store))
        await cut_short(tx, handle)

        with pytest.raises(HandleConsumed, match="acked in a transaction"):
            await handle.ack()
        await tx.rollback()

        assert await handle.ack()


async def begin(store: Store) -> Tx:
    return await store.begin_tx()


# ---------------------------------------------------------------- one transaction after another


async def ack_in(store: Store, sessions: Sessions, handle: JobHandle, end: str) -> None:
    async with sessions.transaction() as session:
        async with store.join(session.connection) as tx:
            await tx.ack(handle)
        await getattr(session, end)()


async def test_an_ack_in_a_second_transaction_is_told_that_the_first_has_landed(
    store: MemStore, sessions: Sessions
) -> None:
    handle = await claimed(store)
    await ack_in(store, sessions, handle, "commit")

    for _ in range(2):
        async with store.begin_tx() as tx:
            with pytest.raises(HandleConsumed, match="acked in a transaction"):
                await tx.ack(handle)
            await tx.enqueue("after", 1)  # it stays usable

    assert (await store.queue("after").stats()).ready == 2


async def hold_position(store: Store) -> Tx:
    tx = await store.begin_tx()
    await tx.read_from_consumer("s", "c")
    return tx


async def test_of_a_joined_transaction_that_is_known_to_be_lost_nothing_is_taken_for_landed(
    sessions: Sessions,
) -> None:
    clock = ManualClock()
    async with MemStore(clock=clock, wait_timeout=0.001) as store:
        handle = await claimed(store)
        holder = await asyncio.ensure_future(hold_position(store))
        async with sessions.transaction() as session:
            tx = await store.join(session.connection)
            await tx.ack(handle)
            with pytest.raises(DatabaseError):  # it waited too long, and is rolled back
                await tx.read_from_consumer("s", "c")
            with pytest.raises(Closed):
                await tx.enqueue("q", 1)
        await holder.rollback()
        await clock.advance(60)

        assert not await handle.ack()
