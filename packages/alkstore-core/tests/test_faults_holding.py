"""Locks and claims that are held over a storage that is slow, fails, or does not let go (LOCK-06, Q-14, Q-28)."""

import asyncio
from contextlib import AbstractAsyncContextManager

import pytest
from faulty import FaultyStore, turn, warped

from alkstore import ClaimLost, DatabaseError, JobHandle, LockLost


async def stay_in(store: FaultyStore, block: AbstractAsyncContextManager[object]) -> None:
    """Be in a block for its thirty seconds while nothing renews it, and longer."""
    async with block:
        await store.clock.advance(15)
        await asyncio.sleep(5)
        await store.clock.advance(15)
        await asyncio.sleep(60)


class Stubborn:
    """A call that does not heed its cancellation for a while, as a driver whose server is gone."""

    def __init__(self, store: FaultyStore) -> None:
        self.may_end = asyncio.Event()
        store.mem.renew_lock = self._hang  # type: ignore[attr-defined]  # the proxy has what it is given

    async def _hang(self, *arguments: object) -> None:
        try:
            await self.may_end.wait()
        finally:
            await self.may_end.wait()


@warped
async def test_a_block_hears_of_its_loss_although_the_renewal_does_not_let_go() -> None:
    async with FaultyStore() as store:
        told = asyncio.Event()

        async def work() -> None:
            async with store.lock("l", 30):
                try:
                    await asyncio.Event().wait()
                finally:
                    told.set()

        working = asyncio.ensure_future(work())
        await turn()
        stubborn = Stubborn(store)
        await store.clock.advance(10)
        await store.clock.advance(20)

        assert told.is_set()
        stubborn.may_end.set()
        with pytest.raises(LockLost):
            await working
        await turn()


@pytest.mark.parametrize("fault", ["refusing", "losing"])
def test_a_lock_outlives_errors_for_less_than_its_ttl(fault: str) -> None:
    @warped
    async def check() -> None:
        async with FaultyStore() as store:
            getattr(store.wire, fault)["renew_lock"] = 5
            async with store.lock("l", 30) as lock:
                await store.clock.advance(10)
                await asyncio.sleep(10)
                await store.clock.advance(19)
                assert [held.fence for held in await store.locks()] == [lock.fence]
            assert await store.locks() == []

    check()


@warped
async def test_a_release_that_failed_may_be_called_again() -> None:
    async with FaultyStore() as store:
        lock = await store.try_lock("l", 30)
        assert lock is not None
        store.wire.refusing["renew_lock"] = 1

        with pytest.raises(DatabaseError):
            await lock.release()

        assert await lock.release()
        assert await store.locks() == []


@warped
async def test_renewals_that_fail_are_tried_at_longer_and_longer_intervals() -> None:
    async with FaultyStore() as store, store.lock("l", ttl=60):
        await turn()
        store.wire.refusing["renew_lock"] = 10_000
        await store.clock.advance(20)
        await asyncio.sleep(15)

        assert 5 < store.wire.calls["renew_lock"] < 25
        store.wire.refusing.clear()


@warped
async def test_a_lock_that_cannot_be_renewed_is_lost_with_the_error_as_its_cause() -> None:
    async with FaultyStore() as store:
        store.wire.refusing["renew_lock"] = 10_000

        with pytest.raises(LockLost) as caught:
            await stay_in(store, store.lock("l", 30))

        assert str(caught.value.__cause__) == "renew_lock failed"


@pytest.mark.parametrize("renews", [False, True])
def test_the_bodys_own_error_wins_over_a_release_that_fails(renews: bool) -> None:
    @warped
    async def check() -> None:
        async with FaultyStore() as store:
            lock = store.lock("l", 30) if renews else await store.try_lock("l", 30)
            assert lock is not None
            store.wire.refusing["renew_lock"] = 1

            with pytest.raises(KeyError):
                async with lock:
                    raise KeyError

    check()


@warped
async def test_the_bodys_own_error_wins_over_a_close() -> None:
    store = await FaultyStore()
    lock = await store.try_lock("l", 30)
    assert lock is not None

    async def close_and_fail() -> None:
        async with lock:
            await store.aclose()
            raise KeyError

    with pytest.raises(KeyError):
        await close_and_fail()


@warped
async def test_a_held_claim_that_cannot_be_renewed_is_lost() -> None:
    async with FaultyStore() as store:
        await store.queue("q", visibility_timeout=30).enqueue(1)
        handle = await store.queue("q").claim_one()
        assert isinstance(handle, JobHandle)
        store.wire.refusing["settle_jobs"] = 10_000

        with pytest.raises(ClaimLost):
            await stay_in(store, handle.hold())


@warped
async def test_a_settle_whose_answer_was_lost_may_be_called_again_and_says_that_it_did_not_land_twice() -> (
    None
):
    async with FaultyStore() as store:
        for fault, second in (("refusing", True), ("losing", False)):
            await store.queue("q").enqueue(1)
            handle = await store.queue("q").claim_one()
            assert handle is not None
            getattr(store.wire, fault)["settle_jobs"] = 1
            with pytest.raises(DatabaseError):
                await handle.ack()

            assert await handle.ack() is second
