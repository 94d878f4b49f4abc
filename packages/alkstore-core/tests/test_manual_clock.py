import asyncio
import contextvars
import datetime as dt
import functools

import pytest
from hanging import HUNG

from alkstore import testing
from alkstore.clock import Clock
from alkstore.engine import Signal, Topic, TopicKind
from alkstore.errors import InvalidArgument
from alkstore.numbers import MAX_INSTANT, MIN_INSTANT
from alkstore.testing import ManualClock, seeded
from alkstore.watch import Hub

SECOND = 1_000_000
NOON = dt.datetime(2026, 5, 4, 12, tzinfo=dt.UTC)


def test_a_clock_can_be_read_without_an_event_loop() -> None:
    clock: Clock = ManualClock(NOON)

    assert clock.now() == int(NOON.timestamp()) * SECOND
    assert ManualClock(NOON).datetime == NOON
    assert ManualClock().datetime == testing.START


@pytest.mark.parametrize("start", [dt.datetime(2026, 5, 4), 5], ids=["naive", "number"])  # noqa: DTZ001 - naive is the point
def test_a_clock_starts_at_an_aware_datetime(start: dt.datetime) -> None:
    with pytest.raises(InvalidArgument, match="start must be"):
        ManualClock(start)


async def test_time_stands_still_until_it_is_moved() -> None:
    clock = ManualClock(NOON)

    await clock.settle()
    assert clock.datetime == NOON
    await clock.advance(1.5)
    assert clock.datetime == NOON + dt.timedelta(seconds=1.5)
    await clock.advance(dt.timedelta(hours=1))
    assert clock.datetime == NOON + dt.timedelta(hours=1, seconds=1.5)
    await clock.advance(-2)
    assert clock.datetime == NOON + dt.timedelta(hours=1, seconds=-0.5)
    await clock.set(NOON)
    assert clock.datetime == NOON


async def test_time_stays_within_the_calendar() -> None:
    clock = ManualClock(NOON)

    await clock.advance(2**63 - 1)
    assert clock.now() == MAX_INSTANT
    await clock.advance(dt.timedelta.min)
    assert clock.now() == MIN_INSTANT


@pytest.mark.parametrize("by", [float("nan"), "1", True, None], ids=repr)
async def test_time_moves_by_a_duration(by: float) -> None:
    clock = ManualClock(NOON)

    with pytest.raises(InvalidArgument, match="by must be"):
        await clock.advance(by)

    assert clock.datetime == NOON


async def test_due_callbacks_run_once_in_the_order_of_instants_after_one_jump() -> None:
    clock = ManualClock(NOON)
    now = clock.now()
    calls: list[tuple[str, int]] = []

    def note(name: str) -> None:
        calls.append((name, clock.now() - now))

    for name, seconds in {"c": 3, "a": 1, "b": 2, "b again": 2, "late": 11}.items():
        clock.call_at(now + seconds * SECOND, functools.partial(note, name))

    await clock.advance(10)

    assert calls == [(name, 10 * SECOND) for name in ("a", "b", "b again", "c")]
    await clock.advance(1)
    assert calls[4:] == [("late", 11 * SECOND)]


async def test_an_instant_is_due_when_now_is_not_before_it() -> None:
    clock = ManualClock(NOON)
    calls: list[int] = []
    clock.call_at(clock.now() + SECOND, lambda: calls.append(1))

    await clock.advance(dt.timedelta(seconds=1) - dt.timedelta.resolution)
    assert calls == []
    await clock.advance(1e-6)
    assert calls == [1]


@pytest.mark.parametrize("seconds", [0, -5])
async def test_a_past_instant_is_called_back_soon_and_never_within_the_call(seconds: int) -> None:
    clock = ManualClock(NOON)
    calls: list[int] = []

    clock.call_at(clock.now() + seconds * SECOND, lambda: calls.append(1))

    assert calls == []
    await asyncio.sleep(0)
    assert calls == [1]


async def test_a_cancelled_callback_is_forgotten() -> None:
    clock = ManualClock(NOON)
    calls: list[str] = []
    waiting = clock.call_at(clock.now() + SECOND, lambda: calls.append("waiting"))
    soon = clock.call_at(clock.now(), lambda: calls.append("soon"))
    last = clock.call_at(clock.now() + 3 * SECOND, lambda: calls.append("last"))
    clock.call_at(clock.now() + 2 * SECOND, last.cancel)

    waiting.cancel()
    soon.cancel()
    await clock.advance(3)
    last.cancel()

    assert calls == []


async def test_a_clock_stepped_back_calls_nobody_twice() -> None:
    clock = ManualClock(NOON)
    calls: list[int] = []
    clock.call_at(clock.now() + SECOND, lambda: calls.append(1))

    for by in (1, -1, 1):
        await clock.advance(by)

    assert calls == [1]


async def test_a_callback_runs_in_the_context_that_asked_for_it() -> None:
    clock = ManualClock(NOON)
    who = contextvars.ContextVar("who", default="nobody")
    seen: list[str] = []

    who.set("asker")
    clock.call_at(clock.now() + SECOND, lambda: seen.append(who.get()))
    who.set("mover")
    await clock.advance(1)

    assert seen == ["asker"]


async def test_moving_returns_when_what_it_set_off_has_run() -> None:
    clock = ManualClock(NOON)
    hub = Hub(clock)
    due: list[float] = []

    async def tick() -> None:
        for _ in range(3):
            at = clock.now() + SECOND
            assert await hub.watch(Topic(TopicKind.CLOCK)).wait(at) is Signal.DUE
            for _ in range(testing.QUIET_TURNS - 2):
                await asyncio.sleep(0)
            due.append((clock.now() - at) / SECOND)

    async with asyncio.timeout(HUNG), asyncio.TaskGroup() as tasks:
        tasks.create_task(tick())
        await clock.settle()
        await clock.advance(1)
        assert due == [0]
        await clock.advance(10)
        assert due == [0, 9]
        await clock.advance(1)
        assert due == [0, 9, 0]


async def test_a_task_that_never_rests_is_an_error_and_not_a_hang() -> None:
    clock = ManualClock(NOON)

    async def look() -> None:
        while True:
            clock.now()
            await asyncio.sleep(0)

    task = asyncio.create_task(look())

    with pytest.raises(RuntimeError, match="manual clock did not come to rest"):
        await clock.settle()
    task.cancel()


def test_a_clock_may_outlive_an_event_loop() -> None:
    clock = ManualClock(NOON)
    calls: list[str] = []

    async def wait(name: str) -> None:
        clock.call_at(clock.now() + SECOND, lambda: calls.append(name))

    asyncio.run(wait("closed"))

    async def move() -> None:
        await wait("open")
        await clock.advance(1)

    asyncio.run(move())

    assert calls == ["open"]


def test_one_seed_gives_one_sequence() -> None:
    assert [seeded().random(), seeded(1).random()] == [seeded(0).random(), seeded(1).random()]
    assert seeded(0).random() != seeded(1).random()
