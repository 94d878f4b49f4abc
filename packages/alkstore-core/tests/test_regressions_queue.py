"""Faults that were found in claims and their handles, and stay found."""

import asyncio
import gc
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from alkstore import HandleConsumed, InsideTransaction, InvalidArgument, StopToken, Store
from alkstore.claiming import Want
from alkstore.clock import SystemClock
from alkstore.engine import Claimed, Engine, Settle, Traits
from alkstore.numbers import MAX_INT64
from alkstore.testing import ManualClock
from alkstore_mem import MemStore
from alkstore_mem.engine import MemEngine


class SlowEngine(MemEngine):
    """An engine whose settles take as long as a test wants, as I/O does."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.is_settling = asyncio.Event()
        self.may_settle = asyncio.Event()

    @property
    def traits(self) -> Traits:
        return replace(super().traits, batches=True)

    async def claim_jobs(self, queue: str, worker_ids: Sequence[str]) -> Claimed:
        await asyncio.sleep(0)  # time for others to ask
        return await super().claim_jobs(queue, worker_ids)

    async def settle_jobs(self, settles: Sequence[Settle]) -> Sequence[int | None]:
        self.is_settling.set()
        await self.may_settle.wait()
        return await super().settle_jobs(settles)


class SlowStore(Store):
    """A store over it."""

    def __init__(self) -> None:
        super().__init__(self._connected, name="slow://")
        self.slow = SlowEngine()

    async def _connected(self) -> Engine:
        return self.slow


async def test_claims_go_on_after_a_wait_that_was_cancelled() -> None:
    async with MemStore() as store:
        queue = store.queue("q")
        claims = queue.claims()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await anext(claims)

        await queue.enqueue("late")

        assert (await anext(claims)).job.payload == "late"


@pytest.mark.parametrize("ends", ["by its store", "by its token"])
async def test_a_loop_that_claims_again_and_again_holds_nobody_up_at_its_end(ends: str) -> None:
    stop = StopToken()
    store = await MemStore()

    async def outlive_failures() -> None:
        while True:
            async for _ in store.queue("q").claims(stop=stop):
                pass

    worker = asyncio.create_task(outlive_failures())
    if ends == "by its token":
        stop.cancel()
    await store.aclose()

    worker.cancel()
    with pytest.raises(asyncio.CancelledError):
        await worker


async def test_any_extent_of_a_batch_has_a_meaning() -> None:
    async with MemStore() as store:
        queue = store.queue("q")
        await queue.enqueue_batch([1, 2, 3])

        handles = await queue.claim_batch(MAX_INT64)

        assert [handle.job.payload for handle in handles] == [1, 2, 3]


async def test_a_settled_handle_cannot_be_held() -> None:
    async with MemStore() as store:
        queue = store.queue("q")
        await queue.enqueue(1)
        handle = await queue.claim_one()
        assert handle is not None
        await handle.ack()

        with pytest.raises(HandleConsumed):
            await handle.hold().__aenter__()


async def test_holding_a_claim_inside_the_tasks_own_transaction_is_refused() -> None:
    async with MemStore() as store:
        queue = store.queue("q")
        await queue.enqueue(1)
        handle = await queue.claim_one()
        assert handle is not None

        async with store.begin_tx() as tx:
            with pytest.raises(InsideTransaction):
                await handle.hold().__aenter__()
            await tx.ack(handle)

        assert await queue.list() == []


async def test_a_claim_cannot_be_held_in_another_event_loop() -> None:
    async with MemStore() as store:
        queue = store.queue("q")
        await queue.enqueue(1)
        handle = await queue.claim_one()
        assert handle is not None

        async def hold() -> None:
            async with handle.hold():
                pass

        with pytest.raises(InvalidArgument, match="event loop"):
            await asyncio.to_thread(asyncio.run, hold())


async def test_a_hold_begins_from_the_deadline_that_the_last_heartbeat_gave() -> None:
    clock = ManualClock()
    async with MemStore(clock=clock) as store:
        queue = store.queue("q", visibility_timeout=30)
        await queue.enqueue(1)
        handle = await queue.claim_one()
        assert handle is not None
        await handle.heartbeat(5)

        async with handle.hold():
            for _ in range(4):
                await clock.advance(2)

        job = await queue.get_job(handle.job.id)
        assert job is not None
        assert job.deadline is not None
        assert job.deadline > clock.datetime + timedelta(seconds=20)


@pytest.mark.parametrize("is_good", [True, False])
async def test_a_cancellation_during_the_outcome_of_a_block_does_not_leave_its_job_to_lapse(
    is_good: bool,
) -> None:
    async with SlowStore() as store:
        queue = store.queue("q", base_delay=0)
        await queue.enqueue(1)

        async def work() -> None:
            async with await queue.claim():  # type: ignore[union-attr]  # it waits until there is one
                if not is_good:
                    raise ValueError

        worker = asyncio.create_task(work())
        await store.slow.is_settling.wait()

        worker.cancel()
        await asyncio.sleep(0)
        store.slow.may_settle.set()

        with pytest.raises(asyncio.CancelledError):
            await worker
        for _ in range(5):
            await asyncio.sleep(0)
        stats = await queue.stats()
        assert (stats.processing, stats.ready) == ((0, 0) if is_good else (0, 1))


async def test_a_hold_renews_at_once_after_a_shorter_heartbeat_of_its_block() -> None:
    clock = ManualClock()
    async with MemStore(clock=clock) as store:
        queue = store.queue("q", visibility_timeout=30)
        await queue.enqueue(1)
        handle = await queue.claim_one()
        assert handle is not None

        async with handle.hold():
            await clock.settle()
            await handle.heartbeat(1)
            await clock.settle()  # one jump of the clock would pass the new end before anybody had a turn
            await clock.advance(2)
            job = await queue.get_job(handle.job.id)

        assert job is not None
        assert job.deadline == clock.datetime + timedelta(seconds=28)


async def test_a_hold_leaves_a_longer_heartbeat_of_its_block_alone() -> None:
    clock = ManualClock()
    async with MemStore(clock=clock) as store:
        queue = store.queue("q", visibility_timeout=30)
        await queue.enqueue(1)
        handle = await queue.claim_one()
        assert handle is not None

        async with handle.hold():
            await clock.settle()
            await handle.heartbeat(300)
            deadline = clock.datetime + timedelta(seconds=300)
            await clock.advance(100)

            job = await queue.get_job(handle.job.id)
            assert job is not None
            assert job.deadline == deadline
            await clock.advance(185)

        job = await queue.get_job(handle.job.id)
        assert job is not None
        assert job.deadline == clock.datetime + timedelta(seconds=30)


def is_of(thing: object, loop: asyncio.AbstractEventLoop) -> bool:
    # Its type and not its class, which other tests' objects may refuse to tell.
    return type(thing) is Want and thing.future.get_loop() is loop


async def test_who_claims_again_and_again_leaves_nothing_of_what_was_answered_in_memory() -> None:
    kept: list[int] = []

    async def drain(store: SlowStore) -> None:
        loop = asyncio.get_running_loop()
        # So many that each has a claim of his own: others always stand in line.
        while await store.queue("q").claim_batch(50):
            kept.append(sum(is_of(each, loop) for each in gc.get_objects()))

    async with SlowStore() as store:
        await store.queue("q").enqueue_batch(range(2_000))
        await asyncio.gather(*(drain(store) for _ in range(3)))

    assert len(kept) == 40
    assert max(kept) <= 6  # those that wait, and those that were answered just now
