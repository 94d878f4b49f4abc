import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from faulty import warped
from hanging import HUNG

from alkstore.clock import Timer
from alkstore.engine import Signal, Topic, TopicKind, Watch
from alkstore.errors import ClaimLost, Closed, DatabaseError, InvalidArgument
from alkstore.numbers import MAX_INSTANT
from alkstore.renewal import Renewal
from alkstore.watch import Hub

SECOND = 1_000_000
WINDOW = 30 * SECOND
START = 1_000_000 * SECOND


class Alarm:
    """A timer of `HandClock`."""

    def __init__(self, instant: int, callback: Callable[[], object]) -> None:
        self.instant = instant
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class HandClock:
    """A clock that only a test moves."""

    def __init__(self) -> None:
        self._now = START
        self._alarms: list[Alarm] = []

    def now(self) -> int:
        return self._now

    def call_at(self, instant: int, callback: Callable[[], object]) -> Timer:
        alarm = Alarm(instant, callback)
        self._alarms.append(alarm)
        return alarm

    def jump(self, microseconds: int) -> None:
        """Move without letting the loop run, as a body that blocks it does."""
        self._now += microseconds
        due = [alarm for alarm in self._alarms if alarm.instant <= self._now]
        self._alarms = [alarm for alarm in self._alarms if alarm.instant > self._now]
        for alarm in due:
            if not alarm.is_cancelled:
                asyncio.get_running_loop().call_soon(alarm.callback)

    async def advance(self, microseconds: int) -> None:
        self.jump(microseconds)
        await turn()


async def turn() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


class Timeless:
    """A watch of an engine that can tell no time any more, once the event says so."""

    def __init__(self, told: asyncio.Event) -> None:
        self._told = told

    def poll(self) -> Signal | None:
        return None

    async def wait(self, until: int | None = None) -> Signal:
        await self._told.wait()
        raise DatabaseError("the clock cannot be read")

    def close(self) -> None:
        pass


class Storage:
    """A store with one lease, whose storage fails or hangs when it is told to."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.hub = Hub(self.clock)
        self.end = START + WINDOW
        self.renewed_at: list[int] = []
        self.landed = asyncio.Semaphore(0)
        self.failures = 0
        self.gate: asyncio.Event | None = None
        self.is_over = False
        self.told: asyncio.Event | None = None

    @property
    def _random(self) -> random.Random:
        return random.Random(7)

    async def _watch(self, topic: Topic) -> Watch:
        return Timeless(self.told) if self.told else self.hub.watch(topic)

    async def renew(self) -> int | None:
        if self.gate is not None:
            await self.gate.wait()
        if self.failures:
            self.failures -= 1
            raise DatabaseError("storage is gone")
        if self.is_over or self.clock.now() >= self.end:
            return None
        self.renewed_at.append(self.clock.now() - START)
        self.landed.release()
        self.end = self.clock.now() + WINDOW
        return self.end

    def renewal(self, window: int = WINDOW) -> Renewal:
        return Renewal(
            self,
            renew=self.renew,
            end=lambda: self.end,
            window=window,
            lost=lambda: ClaimLost("claim was lost"),
            is_over=lambda: self.is_over,
        )

    @property
    def is_watched(self) -> bool:
        return self.hub.is_watched(Topic(TopicKind.CLOCK))


@pytest.fixture
def storage() -> Storage:
    return Storage()


async def hold(storage: Storage, block: Callable[[], Awaitable[None]]) -> None:
    async with storage.renewal():
        await turn()
        await block()


def cancellations() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def test_a_lease_is_renewed_at_each_third_of_its_window(storage: Storage) -> None:
    async with storage.renewal():
        await turn()
        for _ in range(6):
            await storage.clock.advance(WINDOW // 6)

    assert storage.renewed_at == [WINDOW // 3, 2 * WINDOW // 3, WINDOW]
    assert not storage.is_watched


async def test_a_jump_over_several_thirds_renews_once(storage: Storage) -> None:
    async with storage.renewal():
        await turn()
        await storage.clock.advance(WINDOW - 1)

    assert storage.renewed_at == [WINDOW - 1]


async def test_an_end_that_the_block_brought_forward_is_heeded_after_a_renewal_too(storage: Storage) -> None:
    renewal = storage.renewal()
    async with renewal:
        await turn()
        await storage.clock.advance(WINDOW // 3)
        storage.end = storage.clock.now() + WINDOW // 6

        renewal.note_sooner()
        await turn()

    assert storage.renewed_at == [WINDOW // 3, WINDOW // 3]


async def test_a_block_that_ends_early_renews_nothing_and_leaves_no_task(storage: Storage) -> None:
    before = len(asyncio.all_tasks())

    async with storage.renewal():
        pass

    assert storage.renewed_at == []
    assert len(asyncio.all_tasks()) == before


async def test_a_lost_lease_cancels_the_block_once_and_leaving_it_raises_the_loss(storage: Storage) -> None:
    cancelled: list[bool] = []

    async def block() -> None:
        storage.clock.jump(WINDOW)
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)
            await turn()

    with pytest.raises(ClaimLost):
        await hold(storage, block)

    assert cancelled == [True]
    assert cancellations() == 0
    await turn()


async def test_a_block_that_swallows_the_cancellation_still_gets_the_loss(storage: Storage) -> None:
    async def block() -> None:
        storage.clock.jump(WINDOW)
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    with pytest.raises(ClaimLost):
        await hold(storage, block)

    assert cancellations() == 0


async def test_the_exception_of_the_block_wins_over_the_loss(storage: Storage) -> None:
    async def block() -> None:
        storage.clock.jump(WINDOW)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise KeyError("the block's own") from None

    with pytest.raises(KeyError):
        await hold(storage, block)

    assert cancellations() == 0


async def test_a_cancellation_from_outside_wins_over_the_loss(storage: Storage) -> None:
    is_cleaning_up = asyncio.Event()

    async def block() -> None:
        storage.clock.jump(WINDOW)
        try:
            await asyncio.Event().wait()
        finally:
            is_cleaning_up.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(hold(storage, block))
    async with asyncio.timeout(HUNG):
        await is_cleaning_up.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_from_outside_alone_propagates_and_stops_renewing(storage: Storage) -> None:
    async def body() -> None:
        async with storage.renewal():
            await asyncio.Event().wait()

    task = asyncio.ensure_future(body())
    await turn()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await storage.clock.advance(WINDOW // 2)

    assert storage.renewed_at == []
    assert not storage.is_watched


async def test_a_timeout_within_the_block_does_not_hide_the_loss(storage: Storage) -> None:
    async def block() -> None:
        storage.clock.jump(WINDOW)
        while True:
            try:
                async with asyncio.timeout(0):
                    await asyncio.Event().wait()
            except TimeoutError:
                continue

    with pytest.raises(ClaimLost):
        await hold(storage, block)

    assert cancellations() == 0


async def test_a_timeout_around_the_block_works_as_without_it(storage: Storage) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0), storage.renewal():
            await asyncio.Event().wait()

    assert cancellations() == 0


async def test_a_block_that_blocked_the_loop_past_the_end_gets_the_loss_at_its_exit(storage: Storage) -> None:
    async def block() -> None:
        storage.clock.jump(WINDOW)

    with pytest.raises(ClaimLost):
        await hold(storage, block)

    assert cancellations() == 0


async def test_a_block_that_blocked_the_loop_short_of_the_end_loses_nothing(storage: Storage) -> None:
    async with storage.renewal():
        await turn()
        storage.clock.jump(WINDOW - 1)

    assert storage.renewed_at == []


async def test_a_block_that_blocked_the_loop_while_the_storage_is_gone_gets_the_loss(
    storage: Storage,
) -> None:
    async def block() -> None:
        storage.failures = 1
        storage.clock.jump(WINDOW)

    with pytest.raises(ClaimLost) as caught:
        await hold(storage, block)

    assert isinstance(caught.value.__cause__, DatabaseError)


async def test_the_exception_of_a_block_that_blocked_the_loop_wins(storage: Storage) -> None:
    async def block() -> None:
        storage.clock.jump(WINDOW)
        raise KeyError("the block's own")

    with pytest.raises(KeyError):
        await hold(storage, block)


async def test_a_failing_renewal_is_repeated_within_the_window(storage: Storage) -> None:
    storage.failures = 2
    async with asyncio.timeout(HUNG):
        async with storage.renewal():
            await turn()
            await storage.clock.advance(WINDOW // 3)
            await storage.landed.acquire()

    assert storage.failures == 0
    assert storage.renewed_at == [WINDOW // 3]


async def test_a_lease_whose_renewals_all_failed_until_its_end_is_lost_with_their_cause(
    storage: Storage,
) -> None:
    storage.failures = 1_000

    async def block() -> None:
        await storage.clock.advance(WINDOW // 3)
        storage.clock.jump(WINDOW)
        await asyncio.Event().wait()

    with pytest.raises(ClaimLost) as caught:
        await hold(storage, block)

    assert isinstance(caught.value.__cause__, DatabaseError)


async def test_a_renewal_that_hangs_is_not_waited_for_beyond_the_end(storage: Storage) -> None:
    storage.gate = asyncio.Event()

    async def block() -> None:
        await storage.clock.advance(WINDOW // 3)
        storage.clock.jump(WINDOW)
        await asyncio.Event().wait()

    with pytest.raises(ClaimLost):
        await hold(storage, block)

    assert cancellations() == 0


async def test_what_the_block_ended_itself_is_neither_renewed_nor_lost(storage: Storage) -> None:
    async with storage.renewal():
        await turn()
        storage.is_over = True
        await storage.clock.advance(WINDOW // 3)
        await storage.clock.advance(2 * WINDOW)

    assert storage.renewed_at == []


async def test_what_the_block_ends_while_a_renewal_is_under_way_is_not_lost(storage: Storage) -> None:
    storage.gate = asyncio.Event()
    async with storage.renewal():
        await turn()
        await storage.clock.advance(WINDOW // 3)
        storage.is_over = True
        storage.gate.set()
        await turn()

    assert cancellations() == 0


async def test_a_store_that_closes_leaves_the_lease_to_lapse(storage: Storage) -> None:
    async with storage.renewal():
        await turn()
        storage.hub.aclose()
        await storage.clock.advance(2 * WINDOW)

    assert storage.renewed_at == []


async def test_a_renewal_that_finds_the_store_closed_stops(storage: Storage) -> None:
    calls: list[int] = []

    async def renew() -> int | None:
        calls.append(1)
        raise Closed("store")

    async with Renewal(
        storage, renew=renew, end=lambda: storage.end, window=WINDOW, lost=lambda: ClaimLost("claim was lost")
    ):
        await turn()
        for _ in range(6):
            await storage.clock.advance(WINDOW)

    assert calls == [1]


@warped
async def test_renewing_goes_on_by_the_loops_clock_when_the_engine_can_tell_no_time(storage: Storage) -> None:
    storage.end = START + SECOND * 6 // 100
    storage.told = asyncio.Event()
    async with asyncio.timeout(HUNG):
        async with storage.renewal(window=SECOND * 6 // 100):
            await turn()
            storage.told.set()
            await storage.landed.acquire()
            await storage.landed.acquire()

    assert storage.renewed_at == [0, 0]


async def test_a_store_that_hears_nothing_any_more_renews_as_before(storage: Storage) -> None:
    async with storage.renewal():
        await turn()
        storage.hub.fail(DatabaseError("watcher died"))
        await turn()
        await storage.clock.advance(WINDOW // 3)

    assert storage.renewed_at == [WINDOW // 3]


async def test_an_endless_lease_is_not_renewed_all_the_time(storage: Storage) -> None:
    storage.end = MAX_INSTANT
    async with storage.renewal(window=2**62):
        await turn()
        await storage.clock.advance(WINDOW)

    assert storage.renewed_at == []


async def test_a_renewal_is_entered_once(storage: Storage) -> None:
    renewal = storage.renewal()
    async with renewal:
        with pytest.raises(InvalidArgument):
            await renewal.__aenter__()
