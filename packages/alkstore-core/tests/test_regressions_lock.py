"""Faults that were found in named locks and in what wakes their waiters, and stay found."""

import asyncio
import time

from alkstore import Lock
from alkstore.engine import Topic, TopicKind
from alkstore.testing import ManualClock
from alkstore.watch import Hub
from alkstore_mem import MemStore


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


async def test_closing_a_watch_costs_the_same_however_many_are_open() -> None:
    hub = Hub(ManualClock())
    watches = [hub.watch(Topic(TopicKind.CLOCK)) for _ in range(20_000)]

    began = time.perf_counter()
    for watch in reversed(watches):
        watch.close()

    assert time.perf_counter() - began < 1
