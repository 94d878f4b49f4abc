"""Wakes that claims and reads ask for: what is later than the last claim told, and streams that are held back."""

import asyncio

import pytest
from hanging import HUNG
from waking import pending, quiet, side

from alkstore.engine import Signal, Topic, TopicKind
from alkstore_pg.wake import FIRST_LOOK, Woken

JOBS = Topic(TopicKind.QUEUE, "jobs")
EVENTS = Topic(TopicKind.STREAM, "events")
WOKEN = [Signal.WOKEN]


# ---------------------------------------------------------------- claims


async def test_a_later_job_wakes_only_if_it_is_sooner_than_what_the_last_claim_told(dsn: str) -> None:
    async with side(dsn) as here, side(dsn) as there:
        watch = await here.wakes.watch(JOBS)
        here.wakes.claim_begins(JOBS.name)
        here.wakes.claim_ended(JOBS.name, 100, True)

        for at, wakes in ((100, []), (101, []), (99, WOKEN), (None, WOKEN)):
            await there.say(*there.wakes.texts_within([Woken(JOBS, at)]))
            await quiet(here)
            assert pending(watch) == wakes, at
            here.wakes.landed([Woken(JOBS, at)])
            assert pending(watch) == wakes, at


@pytest.mark.parametrize(
    ("told", "is_short", "wakes"),
    [(7, True, []), (20, True, []), (25, True, WOKEN), (None, True, WOKEN), (7, False, WOKEN)],
)
async def test_a_later_job_that_came_during_a_claim_is_judged_at_its_end(
    dsn: str, told: int | None, is_short: bool, wakes: list[Signal]
) -> None:
    async with side(dsn) as here:
        watch = await here.wakes.watch(JOBS)
        here.wakes.claim_begins(JOBS.name)
        here.wakes.landed([Woken(JOBS, 30), Woken(JOBS, 20), Woken(JOBS, 40)])
        assert pending(watch) == []

        here.wakes.claim_ended(JOBS.name, told, is_short)

        assert pending(watch) == wakes


async def test_a_ready_job_that_came_during_a_claim_wakes(dsn: str) -> None:
    async with side(dsn) as here:
        watch = await here.wakes.watch(JOBS)
        here.wakes.claim_begins(JOBS.name)
        here.wakes.landed([Woken(JOBS)])
        here.wakes.claim_ended(JOBS.name, 7, True)

        assert pending(watch) == WOKEN


async def test_a_claim_of_a_queue_that_nobody_watches_leaves_nothing_behind(dsn: str) -> None:
    async with side(dsn) as here:
        here.wakes.claim_begins(JOBS.name)
        watch = await here.wakes.watch(JOBS)
        here.wakes.claim_ended(JOBS.name, 7, True)
        here.wakes.landed([Woken(JOBS, 9)])
        assert pending(watch) == []

        watch.close()

        assert here.wakes._queues == {}


# ---------------------------------------------------------------- streams that are held back


async def test_a_stream_that_is_held_back_is_looked_at_ever_later(dsn: str) -> None:
    loop = asyncio.get_running_loop()
    async with side(dsn) as here, asyncio.timeout(HUNG):
        watch = await here.wakes.watch(EVENTS)
        pauses = []
        for _ in range(4):
            began = loop.time()
            here.wakes.look_again(EVENTS.name)
            here.wakes.look_again(EVENTS.name)
            assert await watch.wait() is Signal.WOKEN
            pauses.append(loop.time() - began)

        assert all(pause >= FIRST_LOOK * 2**turn * 0.99 for turn, pause in enumerate(pauses))
        assert pending(watch) == []


async def test_nobody_looks_at_a_stream_that_nobody_watches(dsn: str) -> None:
    async with side(dsn) as here:
        here.wakes.look_again(EVENTS.name)
        assert here.wakes._looks == {}
        watch = await here.wakes.watch(EVENTS)
        here.wakes.look_again(EVENTS.name)
        timer = here.wakes._looks[EVENTS.name]._timer

        watch.close()

        assert here.wakes._looks == {}
        assert timer is not None
        assert timer.cancelled()
