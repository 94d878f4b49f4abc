"""A thousand cancellations in random moments, and closes in random moments (DUR-06, DUR-08)."""

import asyncio
import gc
import random
from collections.abc import Awaitable, Callable

import pytest
from broken_network import (
    PATIENCE,
    Trials,
    backends,
    begun,
    everything_locked,
    outside,
    trying,
    until_waiting,
)
from cancelling import left_in
from every_operation import OPERATIONS, Outside, Things
from pg_engines import free_connections

from alkstore import Closed, DatabaseError, JobHandle, JobState, LeadershipLost, Store
from alkstore_pg.engine import PgEngine
from alkstore_pg.store import PgStore

CANCELLATIONS = 1_000
TOGETHER = 20
MOST_TURNS = 40


class Storm:
    """Operations that are cancelled anywhere, and what is known of their jobs."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.queue = store.queue("q", visibility_timeout=3_600, max_attempts=2)
        self.landed: set[int] = set()
        self.claimed: set[int] = set()
        self.acked: set[int] = set()

    async def enqueue(self) -> None:
        self.landed.add(await self.queue.enqueue(1))

    async def enqueue_batch(self) -> None:
        self.landed.update(await self.queue.enqueue_batch([1, 2, 3]))

    async def publish(self) -> None:
        await self.store.stream("s").publish(1)
        await self.store.stream(f"s {random.random()}").publish(1)

    async def claim(self) -> None:
        handle = await self.queue.claim()
        assert handle is not None
        await self._handle(handle)

    async def claims(self) -> None:
        async for handle in self.queue.claims():
            await self._handle(handle)

    async def claim_one(self) -> None:
        if handle := await self.queue.claim_one():
            await self._handle(handle)

    async def run_once(self) -> None:
        await self.queue.run_once(self._hold)

    async def _hold(self, handle: JobHandle) -> None:
        self.claimed.add(handle.job.id)
        async with handle.hold():
            await self.store.stream("s").head()

    async def _handle(self, handle: JobHandle) -> None:
        self.claimed.add(handle.job.id)
        async with handle:
            await self.store.stream("s").save_offset("c", handle.job.id)
        self.acked.add(handle.job.id)

    async def ack_in_a_transaction(self) -> None:
        if handle := await self.queue.claim_one():
            self.claimed.add(handle.job.id)
            async with handle, self.store.begin_tx() as tx:
                await tx.publish("s", 1)
                await tx.ack(handle)
            self.acked.add(handle.job.id)

    async def transaction(self) -> None:
        async with self.store.begin_tx() as tx:
            await tx.read_from_consumer("s", "held")
            id = await tx.enqueue(self.queue, 1)
            await tx.publish("s", 1)
            await tx.notify("c")
        self.landed.add(id)

    async def lock(self) -> None:
        async with self.store.lock("l", 3_600):
            await self.queue.stats()

    async def try_lock(self) -> None:
        if lock := await self.store.try_lock("m", 3_600):
            async with lock:
                await self.queue.list()

    async def subscribe(self) -> None:
        async with self.store.stream("s").subscribe("c", after=0) as events:
            while event := await events.recv():
                await events.save(event)

    async def listen(self) -> None:
        async with self.store.listen("c") as wakes:
            await self.store.notify("c")
            await wakes.recv()

    async def look(self) -> None:
        await self.store.queues()
        await self.queue.sweep_expired()
        await self.store.locks()
        await self.store.tick_schedules()

    @property
    def operations(self) -> list[Callable[[], Awaitable[None]]]:
        return [
            self.enqueue, self.enqueue_batch, self.publish, self.claim, self.claims, self.claim_one, self.run_once,
            self.ack_in_a_transaction, self.transaction, self.lock, self.try_lock, self.subscribe, self.listen, self.look,
        ]  # fmt: skip

    async def rage(self) -> None:
        """Cancel so many operations at once, each after some turns of the loop."""
        tasks = [asyncio.ensure_future(random.choice(self.operations)()) for _ in range(TOGETHER)]
        for task in random.sample(tasks, TOGETHER):
            for _ in range(random.randrange(MOST_TURNS)):
                await asyncio.sleep(0)
            task.cancel()
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait(tasks)
        assert [task.exception() for task in tasks if not task.cancelled() and task.exception()] == []


async def test_a_thousand_cancellations_anywhere_leave_nothing_and_lose_nobody(dsn: str) -> None:
    async with PgStore(dsn, pool_size=4, wait_timeout=PATIENCE) as store, outside(dsn) as outsider:
        storm = Storm(store)
        await store.schedule("often", "@every 1h", "other", 1)
        await store.stream("s").publish(0)
        waiting = asyncio.ensure_future(store.queue("w").claim())
        for _ in range(CANCELLATIONS // TOGETHER):
            await storm.rage()
        await store.queue("w").enqueue("for who waited all the time")
        async with asyncio.timeout(PATIENCE):
            handle = await waiting
        assert handle is not None
        assert await handle.ack()

        await nothing_is_left(store, outsider)
        jobs = await storm.queue.list(limit=10_000)
        assert {(job.state, job.attempts) for job in jobs} <= {(JobState.PENDING, 0)}
        ids = {job.id for job in jobs}
        assert storm.landed - ids <= storm.claimed
        assert storm.acked & ids == set()
        assert await drained(storm) == len(jobs)


async def nothing_is_left(store: PgStore, outsider: Outside) -> None:
    engine = store._engine
    assert isinstance(engine, PgEngine)
    async with asyncio.timeout(PATIENCE):
        while left_in(store) or engine.traffic.in_hand:  # noqa: ASYNC110  # many things end, each by itself
            await asyncio.sleep(0)
    assert await free_connections(engine) == 4
    assert await store.locks() == []
    assert await outsider.fetch("SELECT * FROM pg_locks WHERE locktype = 'advisory'") == []
    where = "state NOT IN ('idle', 'active') OR wait_event_type = 'Lock'"
    assert await backends(outsider, f"({where})") == []


async def drained(storm: Storm) -> int:
    count = 0
    while handles := await storm.queue.claim_batch(100):
        assert {handle.job.attempts for handle in handles} == {1}
        assert all(await asyncio.gather(*(handle.ack() for handle in handles)))
        count += len(handles)
    return count


# ---------------------------------------------------------------- closes


ENDS = (type(None), Closed, DatabaseError, LeadershipLost)
"""How an operation may end whose store is closed."""


async def closed(trials: Trials, running: "dict[str, asyncio.Future[object]]") -> None:
    """Close the store; nothing of it may be left anywhere, and no operation may go on."""
    async with asyncio.timeout(PATIENCE):
        await trials.store.aclose()
        await asyncio.wait(running.values())
        while await backends(trials.outsider):  # noqa: ASYNC110  # the server's to end
            await asyncio.sleep(0.001)
    ends = {name: type(one.exception()) for name, one in running.items()}
    assert {name: end for name, end in ends.items() if not issubclass(end, ENDS)} == {}


async def things_of(trials: Trials) -> dict[str, Things]:
    return {name: await trials.things(name, judged=False) for name in OPERATIONS}


@pytest.mark.parametrize("turns", [0, 1, 5, 20, 60])
async def test_a_close_in_any_moment_leaves_nothing(dsn: str, turns: int) -> None:
    tasks = asyncio.all_tasks()
    async with trying(dsn) as trials:
        running = {name: begun(name, things) for name, things in (await things_of(trials)).items()}
        for _ in range(turns):
            await asyncio.sleep(0)
        await closed(trials, running)
    gc.collect()
    assert asyncio.all_tasks() == tasks


async def test_a_close_while_everything_waits_for_the_server_ends_that_too(dsn: str) -> None:
    async with trying(dsn) as trials, outside(dsn) as locker:
        things = await things_of(trials)
        async with everything_locked(locker):
            running = {name: begun(name, each) for name, each in things.items()}
            await until_waiting(trials.outsider, running["Queue.enqueue"])
            await closed(trials, running)
