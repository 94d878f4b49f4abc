"""Transactions over a storage that is slow, loses answers, or fails (TX-03, TX-04, DUR-05, DUR-08, DUR-11)."""

import asyncio

import pytest
from faulty import FaultyStore, turn, warped

from alkstore import Closed, DatabaseError, InvalidArgument, Tx


async def begin(store: FaultyStore) -> Tx:
    return await store.begin_tx()


@warped
async def test_a_rollback_that_is_cancelled_leaves_nothing_open() -> None:
    async with FaultyStore() as store:
        gate = store.wire.hang("tx.rollback")
        tx = await store.begin_tx()
        rolling = asyncio.ensure_future(tx.rollback())
        await turn()

        rolling.cancel()
        await asyncio.wait((rolling,))
        gate.set()
        await turn()

        assert (rolling.cancelled(), store.open_transactions) == (True, 0)


@pytest.mark.parametrize("how", ["rollback", "block"])
def test_a_transaction_that_cannot_be_rolled_back_is_let_go_of(how: str) -> None:
    @warped
    async def check() -> None:
        async with FaultyStore() as store:
            store.wire.refusing["tx.rollback"] = 1
            if how == "rollback":
                tx = await store.begin_tx()
                with pytest.raises(DatabaseError):
                    await tx.rollback()
            else:
                with pytest.raises(KeyError):  # the first error, not the rollback's
                    async with store.begin_tx():
                        raise KeyError
            await turn()

            assert store.open_transactions == 0

    check()


@pytest.mark.parametrize("how", ["cancelled", "refused"])
def test_a_commit_that_fails_leaves_nothing_open_and_raises_its_own_error(how: str) -> None:
    @warped
    async def check() -> None:
        async with FaultyStore() as store:
            store.wire.refusing["tx.rollback"] = 1
            store.wire.refusing["tx.commit"] = how == "refused"
            store.wire.hang("tx.commit")

            async def write() -> None:
                async with store.begin_tx() as tx:
                    await tx.enqueue("q", 1)

            writing = asyncio.ensure_future(write())
            await turn()
            if how == "cancelled":
                writing.cancel()
            store.wire.before["tx.commit"].set()
            await asyncio.wait((writing,))
            await turn()

            if how == "refused":
                with pytest.raises(DatabaseError, match=r"tx\.commit failed"):
                    writing.result()
            assert (writing.cancelled(), store.open_transactions) == (how == "cancelled", 0)

    check()


@warped
async def test_a_block_whose_commit_lost_its_answer_says_so_and_has_landed_once() -> None:
    async with FaultyStore() as store:
        store.wire.losing["tx.commit"] = 1

        with pytest.raises(DatabaseError) as caught:
            async with store.begin_tx() as tx:
                await tx.enqueue("q", 1)

        assert caught.value.outcome_unknown
        assert (await store.queue("q").stats()).ready == 1
        assert store.wire.calls["tx.commit"] == 1


@warped
async def test_a_begin_that_is_cancelled_gives_its_transaction_back_when_it_comes() -> None:
    async with FaultyStore() as store:
        gate = store.wire.hang_answers("begin")
        beginning = asyncio.ensure_future(begin(store))
        await turn()
        beginning.cancel()
        await asyncio.wait((beginning,))

        gate.set()
        await turn()

        assert store.open_transactions == 0


@warped
async def test_a_second_task_inside_is_refused_while_the_first_waits_for_the_storage() -> None:
    async with FaultyStore() as store:
        tx = await asyncio.ensure_future(begin(store))
        gate = store.wire.hang("tx.insert_jobs")
        first = asyncio.ensure_future(tx.enqueue("q", 1))
        await turn()

        for call in (tx.enqueue("q", 2), tx.commit(), tx.rollback()):
            with pytest.raises(InvalidArgument, match="another task"):
                await call
        gate.set()
        await first
        await tx.commit()

        with pytest.raises(Closed):
            await tx.enqueue("q", 3)
        assert (await store.queue("q").stats()).ready == 1


@warped
async def test_a_claim_acked_in_a_transaction_is_open_again_however_it_fails() -> None:
    for fault in ("refuse", "lose", "cancel"):
        async with FaultyStore() as store:
            await store.queue("q").enqueue(1)
            handle = await store.queue("q").claim_one()
            assert handle is not None
            store.wire.refusing["tx.commit"] = fault == "refuse"
            store.wire.losing["tx.commit"] = fault == "lose"
            gate = store.wire.hang("tx.commit")
            tx = await asyncio.ensure_future(begin(store))
            await tx.ack(handle)
            committing = asyncio.ensure_future(tx.commit())
            await turn()
            if fault == "cancel":
                committing.cancel()
            gate.set()
            await asyncio.wait((committing,))
            assert committing.cancelled() or committing.exception() is not None

            assert await handle.ack() is (fault != "lose")


@warped
async def test_a_block_that_goes_on_over_the_error_that_ended_its_transaction_is_told_at_its_end() -> None:
    async with FaultyStore() as store:
        first = await asyncio.ensure_future(begin(store))
        await first.read_from_consumer("s", "one")

        async def write() -> None:
            async with store.begin_tx() as tx:
                await tx.enqueue("q", "lost")
                await tx.read_from_consumer("s", "two")
                waiting = asyncio.ensure_future(first.read_from_consumer("s", "two"))
                await turn()
                with pytest.raises(DatabaseError, match="waits for this one"):
                    await tx.read_from_consumer("s", "one")
                await waiting

        with pytest.raises(Closed):
            await asyncio.ensure_future(write())
        await first.rollback()
        assert (await store.queue("q").stats()).ready == 0
