"""Runners over a storage that hangs, fails, loses answers or goes away (SCHED-10 to SCHED-15, OBX-09)."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from faulty import FaultyStore, turn, warped

from alkstore import DatabaseError, JobHandle, LeadershipLost, StopToken
from alkstore.names import SCHEDULER_LOCK

LEASE = 10_000_000


async def reached(condition: Callable[[], Awaitable[bool]], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110  # back-off in the store has no event to wait for
            await asyncio.sleep(0.001)


async def ready(store: FaultyStore) -> int:
    return (await store.queue("q").stats()).ready


def leases(store: FaultyStore) -> list[int]:
    return [lock.fence for lock in store.mem._inner._locks.held()]


@warped
async def test_a_runner_whose_renewal_hangs_past_its_lease_fires_nothing_and_is_lost() -> None:
    async with FaultyStore() as store:
        await store.schedule("s", "@every 1s", "q", 1)
        runner = asyncio.ensure_future(store.run_schedules(StopToken()))
        await turn()
        gate = store.wire.hang("renew_lock")
        await store.clock.advance(15)
        gate.set()

        with pytest.raises(LeadershipLost):
            await runner
        assert await ready(store) == 0


@warped
async def test_a_runner_that_hangs_between_renewal_and_fire_fires_nothing_and_is_lost() -> None:
    async with FaultyStore() as store:
        await store.schedule("s", "@every 1s", "q", 1)
        runner = asyncio.ensure_future(store.run_schedules(StopToken()))
        await turn()
        gate = store.wire.hang("fire_schedules")
        await store.clock.advance(1)
        await store.clock.advance(LEASE / 1_000_000)
        gate.set()

        with pytest.raises(LeadershipLost):
            await runner
        assert await ready(store) == 0


@warped
async def test_a_fire_whose_answer_was_lost_is_not_fired_again() -> None:
    async with FaultyStore() as store:
        await store.schedule("s", "@every 1s", "q", 1)
        stop = StopToken()
        runner = asyncio.ensure_future(store.run_schedules(stop))
        await turn()
        store.wire.losing["fire_schedules"] = 1
        await store.clock.advance(1)
        await reached(lambda: _true(store.wire.calls["fire_schedules"] >= 3))

        stop.cancel()
        await runner
        assert await ready(store) == 1


async def _true(value: bool) -> bool:
    return value


@pytest.mark.parametrize("call", ["renew_lock", "fire_schedules", "watch"])
@pytest.mark.parametrize("fault", ["refusing", "losing"])
def test_a_runner_outlives_errors_while_its_lease_lives(call: str, fault: str) -> None:
    @warped
    async def check() -> None:
        async with FaultyStore() as store:
            await store.schedule("s", "@every 1s", "q", 1)
            stop = StopToken()
            getattr(store.wire, fault)[call] = 5
            runner = asyncio.ensure_future(store.run_schedules(stop))
            await turn()
            await store.clock.advance(1)

            await reached(lambda: _is(ready(store), 1))

            stop.cancel()
            await runner
            assert leases(store) == []

    check()


async def _is(found: Awaitable[int], expected: int) -> bool:
    return await found == expected


@pytest.mark.parametrize("call", ["renew_lock", "fire_schedules"])
def test_a_runner_whose_ticks_do_not_get_through_lets_the_lease_go_and_says_why(call: str) -> None:
    @warped
    async def check() -> None:
        async with FaultyStore() as store:
            runner = asyncio.ensure_future(store.run_schedules(StopToken()))
            await turn()
            store.wire.refusing[call] = 10_000
            await store.clock.advance(3)
            await turn()
            await store.clock.advance(LEASE / 1_000_000)
            store.wire.refusing.clear()
            await asyncio.wait((runner,), timeout=60)

            with pytest.raises(LeadershipLost) as caught:
                await runner
            assert isinstance(caught.value.__cause__, DatabaseError)
            assert str(caught.value.__cause__) == f"{call} failed"

    check()


@warped
async def test_a_runner_that_hears_nothing_until_its_lease_is_over_is_lost() -> None:
    async with FaultyStore() as store:
        runner = asyncio.ensure_future(store.run_schedules(StopToken()))
        await turn()
        store.wire.refusing["watch"] = 10_000
        store.mem._inner._state.hub.fail(DatabaseError("nothing can be heard"))

        await asyncio.wait((runner,), timeout=60)

        with pytest.raises(LeadershipLost) as caught:
            await runner
        assert str(caught.value.__cause__) == "watch failed"


@warped
async def test_a_lease_found_lapsed_when_the_storage_came_back_has_the_error_as_its_cause() -> None:
    async with FaultyStore() as store:
        runner = asyncio.ensure_future(store.run_schedules(StopToken()))
        await turn()
        store.wire.refusing["renew_lock"] = 1
        await store.clock.advance(3)
        gate = store.wire.hang("renew_lock")
        await reached(lambda: _true(store.wire.refusing["renew_lock"] == 0))
        await reached(lambda: _true(store.wire.calls["renew_lock"] >= 3))
        await store.clock.advance(LEASE / 1_000_000)
        gate.set()

        with pytest.raises(LeadershipLost, match="lapsed") as caught:
            await runner
        assert str(caught.value.__cause__) == "renew_lock failed"


@warped
async def test_a_supervisor_takes_over_from_a_leader_that_hangs_within_two_seconds_of_its_lease() -> None:
    async with FaultyStore() as store:
        await store.schedule("s", "@every 1s", "q", 1)
        hanging = await store.mem._inner.take_lock(SCHEDULER_LOCK, LEASE)  # killed: it renews nothing
        stop = StopToken()
        standing_by = asyncio.ensure_future(store.supervise_schedules(stop))
        await turn()
        await store.clock.advance(9.9)
        assert leases(store) == [hanging.fence]

        await store.clock.advance(0.1)

        assert leases(store) == [hanging.fence + 1]
        assert await ready(store) == 10
        stop.cancel()
        await standing_by


@pytest.mark.parametrize("call", ["watch", "take_lock", "renew_lock", "fire_schedules"])
def test_a_supervisor_leads_again_when_the_storage_comes_back(call: str) -> None:
    @warped
    async def check() -> None:
        async with FaultyStore() as store:
            await store.schedule("s", "@every 1s", "q", 1)
            stop = StopToken()
            store.wire.refusing[call] = 10_000
            supervisor = asyncio.ensure_future(store.supervise_schedules(stop))
            for _ in range(5):
                await asyncio.sleep(7)
                await store.clock.advance(7)
            assert not supervisor.done()
            store.wire.refusing.clear()
            began = asyncio.get_running_loop().time()

            async def fires() -> bool:
                await store.clock.advance(0.5)
                return await ready(store) >= 35

            await reached(fires)

            assert asyncio.get_running_loop().time() - began < 30
            stop.cancel()
            await supervisor
            assert leases(store) == []

    check()


@pytest.mark.parametrize("call", ["watch", "take_lock", "renew_lock", "fire_schedules"])
def test_a_supervisor_raises_what_is_no_loss_and_no_error_of_the_storage(call: str) -> None:
    @warped
    async def check() -> None:
        async with FaultyStore() as store:
            store.wire.breaking[call] = ZeroDivisionError("a fault in the engine")

            with pytest.raises(ZeroDivisionError):
                await store.supervise_schedules(StopToken())
            assert leases(store) == []

    check()


@pytest.mark.parametrize("call", ["watch", "take_lock", "renew_lock", "fire_schedules"])
@pytest.mark.parametrize("is_supervised", [False, True])
def test_a_runner_that_is_cancelled_anywhere_gives_up_its_lease(call: str, is_supervised: bool) -> None:
    @warped
    async def check() -> None:
        async with FaultyStore() as store:
            gate = store.wire.hang_answers(call)
            run = store.supervise_schedules if is_supervised else store.run_schedules
            runner = asyncio.ensure_future(run(StopToken()))
            await turn()
            runner.cancel()
            await turn()
            gate.set()
            await turn()

            assert (runner.cancelled(), leases(store), store.open_watches) == (True, [], [])

    check()


@pytest.mark.parametrize("call", ["renew_lock", "fire_schedules"])
def test_a_runner_backs_off_ever_longer_and_anew_after_a_success(call: str) -> None:
    @warped
    async def check() -> None:
        async with FaultyStore() as store:
            clock, stop = asyncio.get_running_loop().time, StopToken()
            await store.schedule("s", "@every 1s", "q", 1)
            runner = asyncio.ensure_future(store.run_schedules(stop))
            await turn()
            for _ in range(2):
                fired, calls = store.wire.done["fire_schedules"], list[float]()
                store.wire.refusing[call] = 5
                await store.clock.advance(1)
                for left in reversed(range(5)):
                    await reached(lambda left=left: _true(store.wire.refusing[call] <= left))  # type: ignore[misc]
                    calls.append(clock())
                await reached(lambda fired=fired: _true(store.wire.done["fire_schedules"] > fired))  # type: ignore[misc]
                pauses = [later - earlier for earlier, later in itertools.pairwise(calls)]

                assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8], rel=0.3)

            stop.cancel()
            await runner

    check()


@warped
async def test_a_supervisor_backs_off_ever_longer() -> None:
    async with FaultyStore() as store:
        clock, stop = asyncio.get_running_loop().time, StopToken()
        store.wire.refusing["take_lock"] = 5
        runner = asyncio.ensure_future(store.supervise_schedules(stop))
        calls = []
        for left in reversed(range(5)):
            await reached(lambda left=left: _true(store.wire.refusing["take_lock"] <= left))  # type: ignore[misc]
            calls.append(clock())
        pauses = [later - earlier for earlier, later in itertools.pairwise(calls)]

        for pause, most in zip(pauses, (0.1, 0.2, 0.4, 0.8), strict=True):
            assert most / 2 - 0.01 < pause < most + 0.01
        stop.cancel()
        await runner


@warped
async def test_a_stop_lets_the_tick_under_way_end_and_is_heard_while_the_runner_backs_off() -> None:
    async with FaultyStore() as store:
        await store.schedule("s", "@every 1s", "q", 1)
        stop = StopToken()
        runner = asyncio.ensure_future(store.run_schedules(stop))
        await turn()
        gate = store.wire.hang("fire_schedules")
        await store.clock.advance(1)
        stop.cancel()
        await turn()
        assert not runner.done()
        gate.set()
        await runner
        assert (await ready(store), leases(store)) == (1, [])

        stop = StopToken()
        store.wire.refusing["watch"] = 10_000
        supervisor = asyncio.ensure_future(store.supervise_schedules(stop))
        await asyncio.sleep(5)
        began = asyncio.get_running_loop().time()
        stop.cancel()
        await supervisor
        assert asyncio.get_running_loop().time() - began < 0.1


# ---------------------------------------------------------------- outbox


@warped
async def test_an_outbox_backs_off_ever_longer_and_anew_after_a_success() -> None:
    async with FaultyStore() as store:
        clock, stop = asyncio.get_running_loop().time, StopToken()
        claims: list[float] = []
        delivered = asyncio.Event()

        async def deliver(handle: JobHandle) -> None:
            delivered.set()

        store.wire.refusing["claim_jobs"] = 8
        running = asyncio.ensure_future(store.outbox("o").run(deliver, stop=stop))
        for at in range(1, 9):
            await reached(lambda at=at: _true(store.wire.calls["claim_jobs"] >= at))  # type: ignore[misc]
            claims.append(clock())
        pauses = [later - earlier for earlier, later in itertools.pairwise(claims)]

        assert pauses[0] < 0.11
        assert all(0.04 < pause < 5.1 for pause in pauses)
        assert max(pauses) > 2
        await store.outbox("o").enqueue(1)
        async with asyncio.timeout(30):
            await delivered.wait()

        store.wire.refusing["claim_jobs"] = 1
        await store.outbox("o").enqueue(2)
        await reached(lambda: _true(store.wire.refusing["claim_jobs"] == 0))
        failed_at, calls = clock(), store.wire.calls["claim_jobs"]
        await reached(lambda: _true(store.wire.calls["claim_jobs"] > calls))

        assert clock() - failed_at < 0.11
        stop.cancel()
        await running


@pytest.mark.parametrize("fault", ["refusing", "losing"])
def test_an_outbox_outlives_an_outcome_that_fails(fault: str) -> None:
    @warped
    async def check() -> None:
        async with FaultyStore() as store:
            stop, delivered = StopToken(), []
            await store.outbox("o").enqueue("first")
            getattr(store.wire, fault)["settle_jobs"] = 1

            async def deliver(handle: JobHandle) -> None:
                delivered.append(handle.job.payload)

            running = asyncio.ensure_future(store.outbox("o").run(deliver, stop=stop))
            await reached(lambda: _true(len(delivered) == 1))
            await store.outbox("o").enqueue("second")
            await reached(lambda: _true(len(delivered) == 2))
            stop.cancel()
            await running

            counts = await store.outbox("o").jobs.stats()
            assert (delivered, counts.processing) == (["first", "second"], fault == "refusing")

    check()


@warped
async def test_a_run_that_is_cancelled_ends_its_workers_before_it_ends() -> None:
    async with FaultyStore() as store:
        for at in range(3):
            await store.outbox("o").enqueue(at)
        inside, ended = [], []

        async def deliver(handle: JobHandle) -> None:
            inside.append(handle.job.id)
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(handle.job.id)

        running = asyncio.ensure_future(store.outbox("o").run(deliver, stop=StopToken(), concurrency=3))
        await turn()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

        assert len(inside) == 3
        assert sorted(ended) == sorted(inside)
