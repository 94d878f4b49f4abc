import asyncio
import math

import pytest
from faulty import warped
from hanging import HUNG

from alkstore.clock import ServerClock

HOUR = 3_600_000_000


def loop_now() -> int:
    return math.floor(asyncio.get_running_loop().time() * 1_000_000)


async def test_a_clock_that_has_heard_nothing_says_so() -> None:
    with pytest.raises(RuntimeError, match="has not told its time"):
        ServerClock().now()


@pytest.mark.parametrize("ahead", [HOUR, -HOUR, 0])
@warped
async def test_it_is_the_servers_time_and_never_later(ahead: int) -> None:
    clock = ServerClock()
    sent = asyncio.get_running_loop().time()
    now = math.floor(sent * 1_000_000) + ahead  # the server looks as soon as the question leaves
    clock.heard(now, sent, sent + 0.5)

    before = loop_now()
    lag = before + ahead - clock.now()

    # It may have looked just before its answer came.
    assert 490_000 <= lag <= 500_001


@warped
async def test_a_quick_answer_beats_slow_ones_whenever_it_came() -> None:
    for order in ((0.5, 0.001, 0.3), (0.001, 0.5, 0.3), (0.3, 0.5, 0.001)):
        clock = ServerClock()
        sent = asyncio.get_running_loop().time()
        for seconds in order:
            clock.heard(math.floor(sent * 1_000_000) + HOUR, sent, sent + seconds)

        assert loop_now() + HOUR - clock.now() <= 1_001


@warped
async def test_a_server_whose_clock_is_set_is_followed_in_both_directions() -> None:
    clock = ServerClock()
    sent = asyncio.get_running_loop().time()
    for ahead in (0, HOUR, -HOUR):
        clock.heard(math.floor(sent * 1_000_000) + ahead, sent, sent + 0.001)

        assert 0 <= loop_now() + ahead - clock.now() <= 1_001


async def test_a_callback_comes_at_its_instant_on_the_servers_clock_and_not_before() -> None:
    clock = ServerClock()
    sent = asyncio.get_running_loop().time()
    clock.heard(HOUR, sent, sent)
    called = asyncio.Event()
    instants: list[int] = []

    def callback() -> None:
        instants.append(clock.now())
        called.set()

    due = clock.now() + 20_000
    clock.call_at(due, callback)
    assert not called.is_set()
    async with asyncio.timeout(HUNG):
        await called.wait()

    assert instants[0] >= due


async def test_an_instant_that_has_passed_calls_back_soon_but_not_within_the_call() -> None:
    clock = ServerClock()
    clock.heard(HOUR, 0.0, 0.0)
    called = asyncio.Event()

    clock.call_at(-(2**63), called.set)

    assert not called.is_set()
    async with asyncio.timeout(HUNG):
        await called.wait()


async def test_a_timer_that_is_cancelled_never_calls_and_may_be_cancelled_again() -> None:
    clock = ServerClock()
    clock.heard(HOUR, 0.0, 0.0)
    called: list[int] = []
    later = asyncio.Event()

    timer = clock.call_at(0, lambda: called.append(1))
    timer.cancel()
    timer.cancel()
    clock.call_at(0, later.set)
    async with asyncio.timeout(HUNG):
        await later.wait()

    assert called == []
