"""Waits whose wakes are lost, whose storage hangs, and whose callers give up (Q-21, LOCK-06, DUR-05, DUR-08)."""

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable

import pytest
from faulty import FaultyStore, WarpLoop, turn, warped
from hanging import HUNG

from alkstore import DatabaseError, JobHandle, LockTimeout, StopToken
from alkstore.claiming import MANY, WANTS_A_ROUND, Want
from alkstore.engine import Signal, Topic, TopicKind
from alkstore.pausing import Pause
from alkstore.testing import ManualClock
from alkstore.watch import Hub

NEAR = 0.011
"""Seconds: a poll of 0.01 and a little."""


@warped
async def test_a_pause_may_be_cut_in_the_moment_in_which_it_runs_out() -> None:
    watch, pause = Hub(ManualClock()).watch(Topic(TopicKind.CLOCK)), Pause()
    waiting = asyncio.ensure_future(pause.wait(watch, timeout=0))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    pause.cut()

    assert await waiting is None


async def test_whoever_is_told_of_the_same_past_instant_again_and_again_lets_others_run() -> None:
    clock, pause = ManualClock(), Pause()
    watch = Hub(clock).watch(Topic(TopicKind.QUEUE, "q"))
    signals: list[Signal | None] = []

    async def look_for_ever() -> None:
        while len(signals) < 1_000:
            signals.append(await pause.wait(watch, until=clock.now()))

    looking = asyncio.ensure_future(look_for_ever())
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert len(signals) < 1_000
    looking.cancel()
    await asyncio.wait([looking])
    assert set(signals) == {Signal.DUE}


# ---------------------------------------------------------------- lost wakes


def deaf_store() -> FaultyStore:
    store = FaultyStore(poll_interval=0.01)
    store.wire.is_deaf = True
    return store


@warped
async def test_a_commit_costs_one_claim_however_many_wait() -> None:
    async with FaultyStore(poll_interval=1_000) as store:
        queue = store.queue("q")
        waiting = [asyncio.ensure_future(queue.claim()) for _ in range(50)]
        await turn()

        for handed_over, commit in (
            (1, lambda: queue.enqueue(1)),
            (21, lambda: queue.enqueue_batch(range(20))),
            (21, lambda: store.queue("other").enqueue(1)),
            (21, lambda: store.notify("q")),
        ):
            before = store.wire.calls["claim_jobs"]
            await commit()
            await turn(200)

            assert store.wire.calls["claim_jobs"] - before <= 1
            assert sum(each.done() for each in waiting) == handed_over
        for each in waiting:
            each.cancel()
        await asyncio.wait(waiting)


@warped
async def test_a_commit_that_feeds_a_crowd_feeds_also_those_whom_one_claim_left_out() -> None:
    async with FaultyStore(poll_interval=1_000) as store:
        queue = store.queue("q")
        waiting = [asyncio.ensure_future(queue.claim()) for _ in range(WANTS_A_ROUND + 1)]
        await turn()
        began = asyncio.get_running_loop().time()

        await queue.enqueue_batch(range(len(waiting)))
        await asyncio.wait(waiting)

        assert asyncio.get_running_loop().time() - began < 100


async def within_a_poll(waiting: Awaitable[object]) -> None:
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(HUNG):
        await waiting
    assert asyncio.get_running_loop().time() - began < 2 * NEAR


@warped
async def test_a_claim_without_wakes_looks_within_its_poll() -> None:
    async with deaf_store() as store:
        queue = store.queue("q")
        claiming = asyncio.ensure_future(queue.claim())
        await turn()
        await queue.enqueue(1)

        await within_a_poll(claiming)

        assert isinstance(claiming.result(), JobHandle)


@warped
async def test_a_subscription_without_wakes_looks_within_its_poll() -> None:
    async with deaf_store() as store, store.stream("s").subscribe() as events:
        receiving = asyncio.ensure_future(events.recv())
        await turn()
        await store.stream("s").publish(1)

        await within_a_poll(receiving)


@warped
async def test_a_lock_without_wakes_looks_within_its_poll() -> None:
    async with deaf_store() as store:
        holder = await store.try_lock("l", 30)
        assert holder is not None

        async def wait() -> None:
            await (await store.lock("l")).release()

        waiting = asyncio.ensure_future(wait())
        await turn()
        await holder.release()

        await within_a_poll(waiting)


@pytest.mark.parametrize("is_supervised", [False, True])
def test_a_runner_without_wakes_sees_a_new_schedule_within_its_poll(is_supervised: bool) -> None:
    @warped
    async def check() -> None:
        async with deaf_store() as store:
            stop = StopToken()
            run = store.supervise_schedules if is_supervised else store.run_schedules
            runner = asyncio.ensure_future(run(stop))
            await turn()
            anchor = store.clock.datetime
            await store.clock.advance(0.5)
            await store.schedule("s", "@every 1s", "q", 1, anchor=anchor)

            async def fired() -> None:
                while not (await store.queue("q").stats()).ready:  # noqa: ASYNC110  # a queue looked at, not claimed from
                    await asyncio.sleep(0.001)

            store.clock._now += (
                500_000  # without a word to whoever waits for the instant: his timer was another's
            )
            await within_a_poll(fired())
            stop.cancel()
            await runner

    check()


@warped
async def test_a_runner_that_stands_by_without_wakes_takes_over_within_its_poll() -> None:
    async with deaf_store() as store:
        first, second = StopToken(), StopToken()
        leading = asyncio.ensure_future(store.run_schedules(first))
        await turn()
        standing_by = asyncio.ensure_future(store.supervise_schedules(second))
        await turn()
        first.cancel()
        await leading

        async def led() -> None:
            while not store.mem._inner._locks.held():  # noqa: ASYNC110  # the engine's own view has no event
                await asyncio.sleep(0.001)

        await within_a_poll(led())
        second.cancel()
        await standing_by


# ---------------------------------------------------------------- limits


@pytest.mark.parametrize("call", ["watch", "take_lock"])
def test_a_lock_times_out_while_its_storage_hangs_and_holds_nothing(call: str) -> None:
    @warped
    async def check() -> None:
        async with FaultyStore() as store:
            gate = store.wire.hang_answers(call)
            began = asyncio.get_running_loop().time()

            with pytest.raises(LockTimeout):
                await store.lock("l", timeout=2)

            assert 2 <= asyncio.get_running_loop().time() - began < 2.1
            gate.set()
            await turn()
            assert (await store.locks(), store.open_watches) == ([], [])

    check()


@warped
async def test_a_claim_times_out_while_its_storage_hangs_and_the_job_is_given_back() -> None:
    async with FaultyStore() as store:
        await store.queue("q").enqueue(1)
        gate = store.wire.hang_answers("claim_jobs")

        assert await store.queue("q").claim(timeout=2) is None

        gate.set()
        await turn()
        handle = await store.queue("q").claim_one()
        assert handle is not None
        assert handle.job.attempts == 1


@pytest.mark.parametrize(("count", "calls"), [(MANY, 3), (MANY - 1, 1)])
async def test_who_claims_many_at_once_shares_no_claim(count: int, calls: int) -> None:
    async with FaultyStore() as store:
        queue = store.queue("q")
        await queue.enqueue_batch(range(3 * count))

        batches = await asyncio.gather(*(queue.claim_batch(count) for _ in range(3)))

        claimed = [handle.job.payload for batch in batches for handle in batch]
        assert claimed == list(range(3 * count))
        assert store.wire.calls["claim_jobs"] == calls


# ---------------------------------------------------------------- callers that give up


async def test_a_claim_that_got_its_job_leaves_no_timer_that_holds_it() -> None:
    def wants() -> int:
        gc.collect()
        return sum(type(each) is Want for each in gc.get_objects())

    async with FaultyStore() as store:
        queue = store.queue("q")
        await queue.enqueue_batch(range(3))
        before = wants()

        for _ in range(3):
            assert await queue.claim(timeout=3_600) is not None

        assert wants() <= before


async def _listen(store: FaultyStore) -> None:
    async with store.listen("c"):
        pass


async def _subscribe(store: FaultyStore) -> None:
    async with store.stream("s").subscribe():
        pass


async def _lock(store: FaultyStore) -> None:
    async with store.lock("l"):
        pass


async def _run(store: FaultyStore) -> None:
    await store.run_schedules(StopToken())


async def _supervise(store: FaultyStore) -> None:
    await store.supervise_schedules(StopToken())


async def _hold(store: FaultyStore) -> None:
    await store.queue("q").enqueue(1)
    handle = await store.queue("q").claim_one()
    assert handle is not None
    async with handle.hold():
        pass


@pytest.mark.parametrize("wait", [_listen, _subscribe, _lock, _run, _supervise, _hold])
def test_a_wait_that_is_cancelled_while_it_begins_to_hear_leaves_no_watch(
    wait: Callable[[FaultyStore], Awaitable[None]],
) -> None:
    @warped
    async def check() -> None:
        async with FaultyStore() as store:
            gate = store.wire.hang_answers("watch")
            waiting = asyncio.ensure_future(wait(store))
            if wait is _hold:
                gate.set()
                await turn()
                gate.clear()
            await turn()

            waiting.cancel()
            await asyncio.wait((waiting,))
            gate.set()
            await turn()

            assert store.open_watches == []

    check()


def test_a_loop_that_ends_without_a_close_leaves_no_claim_behind(caplog: pytest.LogCaptureFixture) -> None:
    async def forget_to_close() -> None:
        store = await FaultyStore(turns=5)
        waiting = [asyncio.ensure_future(store.queue("q").claim()) for _ in range(3)]
        await turn()
        assert not any(claim.done() for claim in waiting)
        store._state = "closed"  # or its finaliser warns, rightly

    with caplog.at_level(logging.ERROR), asyncio.Runner(loop_factory=WarpLoop) as runner:
        runner.run(forget_to_close())
        runner.close()
        gc.collect()

    assert caplog.records == []


# ---------------------------------------------------------------- errors


@warped
async def test_each_waiter_of_a_failed_claim_gets_an_error_of_its_own() -> None:
    async with FaultyStore() as store:
        store.wire.refusing["claim_jobs"] = 1
        claims = [asyncio.ensure_future(store.queue("q").claim()) for _ in range(3)]

        errors = await asyncio.gather(*claims, return_exceptions=True)

        assert [type(error) for error in errors] == [DatabaseError] * 3
        assert len({id(error) for error in errors}) == 3


@warped
async def test_a_claim_after_a_failure_claims() -> None:
    async with FaultyStore() as store:
        await store.queue("q").enqueue(1)
        for call in ("watch", "claim_jobs"):
            store.wire.refusing[call] = 1
            with pytest.raises(DatabaseError):
                await store.queue("q").claim()

        assert await store.queue("q").claim() is not None


@warped
async def test_a_subscription_goes_on_after_failed_reads_where_it_was() -> None:
    async with FaultyStore() as store, store.stream("s").subscribe() as events:
        await store.stream("s").publish_batch([1, 2])
        for _ in range(3):
            store.wire.refusing["read_events"] = 1
            with pytest.raises(DatabaseError):
                await events.recv()
        gate = store.wire.hang_answers("read_events")
        receiving = asyncio.ensure_future(events.recv())
        await turn()
        receiving.cancel()
        await asyncio.wait((receiving,))
        gate.set()

        found = [await events.recv(), await events.recv()]

        assert [event and event.payload for event in found] == [1, 2]
        assert await events.try_recv() is None


@warped
async def test_a_lock_whose_storage_fails_frees_the_line_behind_it() -> None:
    async with FaultyStore() as store:
        store.wire.refusing["take_lock"] = 1
        entering = [asyncio.ensure_future(_lock(store)) for _ in range(3)]

        errors = await asyncio.gather(*entering, return_exceptions=True)

        assert [type(error) for error in errors] == [DatabaseError, type(None), type(None)]
        assert (await store.locks(), store.open_watches) == ([], [])


def test_the_signals_of_a_watch_that_hears_nothing_end_with_its_store() -> None:
    @warped
    async def check() -> None:
        store = await deaf_store()
        watch = await store.mem.watch(Topic(TopicKind.CHANNEL, "c"))
        await store.aclose()

        assert await watch.wait() is Signal.CLOSED

    check()
