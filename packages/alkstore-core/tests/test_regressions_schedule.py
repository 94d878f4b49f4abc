"""Faults that were found in the runner of schedules, and stay found."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import pytest
from hanging import HUNG

from alkstore import LeadershipLost, StopToken, Store
from alkstore.engine import Engine, Fired, Topic, TopicKind, Watch
from alkstore.errors import DatabaseError
from alkstore.names import SCHEDULER_LOCK
from alkstore.testing import ManualClock, seeded
from alkstore_mem import MemStore
from alkstore_mem.engine import MemEngine

LAST_MINUTE = datetime(9999, 12, 31, 23, 59, 55, tzinfo=UTC)


class FaultyEngine(MemEngine):
    """An engine that fails in what it is told to fail in."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.failing: set[str] = set()
        self.failures = 0

    def _fail(self, operation: str) -> None:
        if operation in self.failing:
            self.failures += 1
            raise DatabaseError(f"{operation} failed")

    async def watch(self, topic: Topic) -> Watch:
        self._fail("watch")
        return await super().watch(topic)

    async def fire_schedules(self, lease: tuple[str, int] | None) -> Fired:
        self._fail("fire")
        return await super().fire_schedules(lease)

    @property
    def is_heard(self) -> bool:
        return self._state.hub.is_watched(Topic(TopicKind.SCHEDULE))

    def break_watches(self) -> None:
        self._state.hub.fail(DatabaseError("watcher died"))


class FaultyStore(Store):
    """A store over it."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(self._connected, name="faulty://", random=seeded())
        self.faults = FaultyEngine(clock)

    async def _connected(self) -> Engine:
        return self.faults


async def until(reached: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(HUNG):
        while not await reached():  # noqa: ASYNC110  # back-off in the store has no event that a test could wait for
            await asyncio.sleep(0)


async def test_the_calendars_last_seconds_do_not_make_a_runner_spin() -> None:
    clock = ManualClock(LAST_MINUTE)
    async with MemStore(clock=clock) as store:
        await store.schedule("s", "@every 1s", "q", 1)
        stop = StopToken()
        runner = asyncio.create_task(store.run_schedules(stop))

        await clock.advance(1)
        await clock.advance(1)
        stop.cancel()
        await runner

        assert (await store.queue("q").stats()).ready == 2


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_runner_that_can_hear_nothing_for_a_while_goes_on(is_late: bool) -> None:
    clock = ManualClock()
    async with FaultyStore(clock) as store:
        stop = StopToken()
        if not is_late:
            store.faults.failing.add("watch")
        runner = asyncio.create_task(store.run_schedules(stop))
        await until(lambda: _is_heard(store) if is_late else _has_failed(store))
        store.faults.break_watches()
        store.faults.failing.clear()
        await until(lambda: _is_heard(store))

        await store.schedule("s", "@every 1s", "q", 1)
        await clock.advance(1)
        stop.cancel()
        await runner

        assert (await store.queue("q").stats()).ready == 1


async def test_a_supervisor_outlives_a_storage_in_which_nothing_can_be_heard() -> None:
    async with FaultyStore(ManualClock()) as store:
        stop = StopToken()
        store.faults.failing.add("watch")
        supervisor = asyncio.create_task(store.supervise_schedules(stop))
        await until(lambda: _has_failed(store))

        store.faults.failing.clear()

        await until(lambda: _is_led(store))
        stop.cancel()
        await supervisor


async def test_a_runner_that_renews_but_cannot_fire_gives_up_its_lease() -> None:
    clock = ManualClock()
    async with FaultyStore(clock) as store:
        store.faults.failing.add("fire")
        runner = asyncio.create_task(store.run_schedules(StopToken()))
        await until(lambda: _has_failed(store))

        for _ in range(3):
            await clock.advance(4)
            failures = store.faults.failures
            await until(lambda seen=failures: _is_over_or_has_failed_since(runner, store, seen))  # type: ignore[misc]

        with pytest.raises(LeadershipLost) as lost:
            await runner
        assert isinstance(lost.value.__cause__, DatabaseError)


async def _is_led(store: Store) -> bool:
    return SCHEDULER_LOCK in [lock.name for lock in await store.locks()]


async def _has_failed(store: FaultyStore) -> bool:
    return store.faults.failures > 0


async def _is_heard(store: FaultyStore) -> bool:
    return store.faults.is_heard


async def _is_over_or_has_failed_since(runner: asyncio.Task[None], store: FaultyStore, failures: int) -> bool:
    return runner.done() or store.faults.failures > failures
