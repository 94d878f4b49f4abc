"""Faults that were found in named locks and in what wakes their waiters, and stay found."""

import asyncio
import gc
import time
import warnings

import pytest

from alkstore import Closed, DatabaseError, HandleConsumed, Lock, LockTimeout, Store
from alkstore.engine import Engine, Taken, Topic, TopicKind, Watch
from alkstore.testing import ManualClock
from alkstore.watch import Hub
from alkstore_mem import MemStore
from alkstore_mem.engine import MemEngine


async def test_a_waiter_hears_of_an_end_that_a_renewal_brought_forward() -> None:
    clock = ManualClock()
    async with MemStore(clock=clock, poll_interval=3_600) as store:
        holder = await store.try_lock("l", ttl=3_600)
        assert holder is not None
        got: list[Lock] = []

        async def wait() -> None:
            got.append(await store.lock("l"))

        waiter = asyncio.create_task(wait())
        await clock.settle()

        await holder.renew(1)
        await clock.advance(1)

        assert [lock.fence for lock in got] == [holder.fence + 1]
        await waiter


async def test_a_lock_that_its_block_released_is_not_released_again() -> None:
    async with MemStore() as store:
        async with store.lock("l") as lock:
            pass

        with pytest.raises(HandleConsumed):
            await lock.release()


async def test_closing_a_watch_costs_the_same_however_many_are_open() -> None:
    hub = Hub(ManualClock())
    watches = [hub.watch(Topic(TopicKind.CLOCK)) for _ in range(20_000)]

    began = time.process_time()  # whatever else the machine does
    for watch in reversed(watches):
        watch.close()

    assert time.process_time() - began < 1


class CountingEngine(MemEngine):
    """An engine that counts how often a lock is tried."""

    tries = 0

    async def take_lock(self, name: str, ttl: int) -> Taken:
        self.tries += 1
        return await super().take_lock(name, ttl)


class CountingStore(Store):
    """A store over it."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(self._connected, name="counting://")
        self.counting = CountingEngine(clock)

    async def _connected(self) -> Engine:
        return self.counting


async def test_a_release_lets_one_waiter_of_a_store_try_and_not_all_of_them() -> None:
    clock = ManualClock()
    async with CountingStore(clock) as store:
        served: list[int] = []

        async def serve(number: int) -> None:
            async with store.lock("l"):
                served.append(number)
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            for number in range(100):
                group.create_task(serve(number))

        assert served == list(range(100))
        assert store.counting.tries <= 300


async def test_who_stands_in_line_for_a_lock_hears_of_his_timeout_and_of_the_close() -> None:
    async with MemStore() as store:
        holder = await store.try_lock("l", ttl=60)
        assert holder is not None

        async def wait(limit: float | None) -> None:
            await store.lock("l", timeout=limit)

        waiters = [asyncio.create_task(wait(limit)) for limit in (None, 0.001, None, 0)]
        with pytest.raises(LockTimeout):
            await waiters[1]
        with pytest.raises(LockTimeout):
            await waiters[3]
        waiters[2].cancel()
        await store.aclose()

        with pytest.raises(Closed):
            await waiters[0]
        with pytest.raises(asyncio.CancelledError):
            await waiters[2]


async def test_a_lock_block_renews_at_once_after_a_shorter_renewal_of_its_own() -> None:
    clock = ManualClock()
    async with MemStore(clock=clock) as store, store.lock("report", 30) as lock:
        await clock.settle()
        await lock.renew(1)
        await clock.settle()  # one jump of the clock would pass the new end before anybody had a turn
        await clock.advance(2)

        assert await store.try_lock("report", 30) is None
        assert lock.held


async def test_a_lock_that_was_awaited_and_dropped_warns_and_one_that_was_tried_for_is_left_to_its_ttl() -> (
    None
):
    async with MemStore() as store:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", ResourceWarning)
            _ = await store.lock("dropped")
            _ = await store.try_lock("tried", 30)
            released = await store.lock("released")
            await released.release()
            async with await store.lock("left"), store.lock("entered"):
                pass
            del _, released
            gc.collect()

    assert [str(each.message).partition(" was")[0] for each in told] == [
        "Lock('dropped', fence=1, held=True)"
    ]


async def test_a_timeout_says_which_lock_it_was_and_how_long_it_waited() -> None:
    async with MemStore() as store, store.lock("l"):
        with pytest.raises(LockTimeout) as caught:
            await store.lock("l", timeout=0.001)

    assert (caught.value.name, caught.value.timeout) == ("l", 0.001)


async def test_a_block_that_cannot_begin_to_renew_is_not_entered_and_frees_the_lock() -> None:
    class Deaf(MemEngine):
        async def watch(self, topic: Topic) -> Watch:
            if topic.kind is TopicKind.CLOCK:
                raise DatabaseError("nothing can be heard")
            return await super().watch(topic)

    async def connect() -> Engine:
        return Deaf(ManualClock())

    async with Store(connect, name="deaf") as store:
        with pytest.raises(DatabaseError, match="nothing can be heard"):
            async with store.lock("l"):
                pytest.fail("the block was entered")

        assert await store.locks() == []
