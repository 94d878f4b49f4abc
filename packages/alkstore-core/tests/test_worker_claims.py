"""The claims of a worker: renewed while handlers run, lost cleanly, settled when the database comes back (Q-09, Q-14)."""

import asyncio
import threading
from typing import Any

import pytest
from faulty import FaultyStore, turn, warped
from hanging import HUNG

from alkstore import JobHandle, JobState, StopToken
from alkstore.worker import Counts, Worker, handle


class Work:
    """A worker at work on queue ``q``, with a handler that waits for its gate."""

    def __init__(self, store: FaultyStore, **options: Any) -> None:
        self.begun: asyncio.Queue[JobHandle] = asyncio.Queue()
        self.gate = asyncio.Event()
        self.cancelled: list[int] = []
        self._stop = StopToken()
        worker = Worker(store, {"q": self._handle}, **options)
        self._run = asyncio.ensure_future(worker.run(self._stop, signals=False))

    async def _handle(self, claim: JobHandle) -> None:
        self.begun.put_nowait(claim)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(claim.job.attempts)
            raise

    async def end(self) -> Counts:
        self._stop.cancel()
        return await self._run


async def states(store: FaultyStore) -> list[tuple[JobState, int]]:
    return [(job.state, job.attempts) for job in await store.queue("q").list()]


@warped
async def test_a_handler_longer_than_its_window_runs_once() -> None:
    async with FaultyStore() as store:
        await store.queue("q").enqueue(1, visibility_timeout=1)
        work = Work(store)
        await work.begun.get()
        for _ in range(50):
            await store.clock.advance(0.1)
        assert await states(store) == [(JobState.PROCESSING, 1)]
        work.gate.set()

        assert await work.end() == Counts(done=1)
        assert work.begun.empty()


@warped
async def test_one_round_trip_renews_the_claims_of_one_burst() -> None:
    async with FaultyStore() as store:
        await store.queue("q").enqueue_batch(range(100), visibility_timeout=30)
        work = Work(store, concurrency=100)
        for _ in range(100):
            await work.begun.get()
        store.wire.calls.clear()
        await store.clock.advance(10)
        await turn()

        assert store.wire.calls["settle_jobs"] == 1
        work.gate.set()
        assert await work.end() == Counts(done=100)


@warped
async def test_claims_of_about_the_same_time_are_renewed_together_and_settled_ones_no_more() -> None:
    async with FaultyStore() as store:
        work = Work(store)
        for number in range(3):
            await store.queue("q").enqueue(number, visibility_timeout=30)
            await work.begun.get()
            await store.clock.advance(1)
        store.wire.calls.clear()
        await store.clock.advance(8)
        await turn()
        assert store.wire.calls["settle_jobs"] == 1
        work.gate.set()
        await turn()
        store.wire.calls.clear()
        await store.clock.advance(15)
        await turn()

        assert store.wire.calls["settle_jobs"] == 0
        assert await work.end() == Counts(done=3)


@warped
async def test_what_waits_for_its_turn_is_renewed_as_well() -> None:
    async with FaultyStore() as store:
        await store.queue("q").enqueue_batch([1, 2], visibility_timeout=1)
        work = Work(store, concurrency=1, prefetch=2)
        await work.begun.get()
        for _ in range(30):
            await store.clock.advance(0.1)
        assert await states(store) == [(JobState.PROCESSING, 1)] * 2
        work.gate.set()
        await work.begun.get()

        assert await work.end() == Counts(done=2)


@warped
async def test_a_lost_claim_cancels_its_handler_and_the_job_runs_again() -> None:
    async with FaultyStore() as store:
        await store.queue("q").enqueue(1, visibility_timeout=3)
        work = Work(store)
        await work.begun.get()
        await store.clock.advance(3)  # over the end in one step: as after a long stand-still
        await work.begun.get()
        assert work.cancelled == [1]
        work.gate.set()

        assert await work.end() == Counts(done=1, lost=1)


@warped
async def test_a_claim_that_a_renewal_finds_ended_cancels_its_handler_long_before_its_end() -> None:
    async with FaultyStore() as store:
        await store.queue("q").enqueue(1, visibility_timeout=300)
        work = Work(store)
        claim = await work.begun.get()
        await store.mem._inner.settle_jobs([claim._ack()])  # by somebody with a database client
        await store.clock.advance(100)
        await turn()

        assert work.cancelled == [1]
        assert await work.end() == Counts(lost=1)


@warped
async def test_a_place_that_lost_a_claim_is_as_good_as_before() -> None:
    async with FaultyStore() as store:
        values: list[int] = []
        is_begun = asyncio.Event()

        async def handler(value: int) -> None:
            values.append(value)
            if value == 1:
                is_begun.set()
                await asyncio.Event().wait()
            raise asyncio.CancelledError

        queue = store.queue("q")
        await queue.enqueue(1, visibility_timeout=3, max_attempts=1)
        await queue.enqueue(2, max_attempts=1)
        run = asyncio.ensure_future(Worker(store, {"q": handler}, concurrency=1).run_until_idle())
        await is_begun.wait()
        await store.clock.advance(3)

        assert await run == Counts(lost=1, dead=1)
        assert values == [1, 2]


@warped
async def test_the_place_of_a_thread_that_is_over_its_timeout_waits_for_it() -> None:
    async with FaultyStore() as store:
        may_end = threading.Event()

        def handler(value: int) -> None:
            if value == 1:
                may_end.wait(HUNG)

        queue = store.queue("q")
        await queue.enqueue(1, max_attempts=1)
        await queue.enqueue(2, max_attempts=1)
        worker = Worker(store, {"q": handle(handler, concurrency=1, timeout=5)})
        run = asyncio.ensure_future(worker.run_until_idle())
        await asyncio.sleep(100)
        assert [job.payload for job in await queue.list(state=JobState.DEAD)] == [1]
        may_end.set()  # from here on a thread runs against a time that jumps

        assert (await run).total == 2


@warped
async def test_an_unstarted_claim_that_is_lost_is_not_begun() -> None:
    async with FaultyStore() as store:
        await store.queue("q").enqueue_batch([1, 2], visibility_timeout=3, max_attempts=1)
        work = Work(store, concurrency=1, prefetch=2)
        await work.begun.get()
        await store.clock.advance(3)
        await turn()
        work.gate.set()
        await turn()

        assert work.begun.empty()
        assert await work.end() == Counts(lost=2)


@warped
async def test_a_claim_that_ended_unnoticed_is_lost_at_its_outcome_and_nothing_breaks() -> None:
    async with FaultyStore() as store:
        beats = store.wire.hang("watch")  # so nobody renews
        await store.queue("q").enqueue(1, visibility_timeout=1, max_attempts=1)

        async def handler(value: int) -> None:
            store.clock._now += 2_000_000  # time goes on while the loop is blocked

        counts = await Worker(store, {"q": handler}).run_until_idle()

        assert counts == Counts(lost=1)
        beats.set()


@warped
async def test_renewals_that_fail_are_tried_again_while_the_claim_lives() -> None:
    async with FaultyStore() as store:
        await store.queue("q").enqueue(1, visibility_timeout=30)
        work = Work(store)
        await work.begun.get()
        store.wire.refusing["settle_jobs"] = 3
        await store.clock.advance(10)
        async with asyncio.timeout(60):
            while store.wire.done["settle_jobs"] == 0:  # noqa: ASYNC110  # back-off has no event to wait for
                await asyncio.sleep(0.001)
        await store.clock.advance(25)

        assert work.cancelled == []
        assert await states(store) == [(JobState.PROCESSING, 1)]
        work.gate.set()
        assert await work.end() == Counts(done=1)


@warped
async def test_a_renewal_that_hangs_past_the_end_loses_the_claim_at_the_end() -> None:
    async with FaultyStore() as store:
        await store.queue("q").enqueue(1, visibility_timeout=30, max_attempts=1)
        work = Work(store)
        await work.begun.get()
        gate = store.wire.hang("settle_jobs")
        await store.clock.advance(10)
        await turn()
        assert work.cancelled == []
        await store.clock.advance(20)
        await turn()

        assert work.cancelled == [1]
        gate.set()
        counts = await work.end()
        assert (counts.lost, counts.done) == (1, 0)


@warped
async def test_while_no_time_can_be_heard_claims_are_renewed_all_the_same() -> None:
    async with FaultyStore() as store:
        await store.queue("q").enqueue(1, visibility_timeout=1000)
        store.wire.refusing["watch"] = 3
        work = Work(store)
        await work.begun.get()
        async with asyncio.timeout(60):
            while store.wire.done["settle_jobs"] == 0:  # noqa: ASYNC110  # back-off has no event to wait for
                await asyncio.sleep(0.001)
        work.gate.set()

        assert await work.end() == Counts(done=1)


@warped
async def test_a_handler_that_renews_for_long_holds_up_no_other_renewal() -> None:
    async with FaultyStore() as store:
        await store.queue("q").enqueue_batch([1, 2], visibility_timeout=3)
        work = Work(store)
        first, _ = await work.begun.get(), await work.begun.get()
        await first.heartbeat(1000)
        for _ in range(20):
            await store.clock.advance(0.5)

        assert work.cancelled == []
        assert await states(store) == [(JobState.PROCESSING, 1)] * 2
        work.gate.set()
        assert await work.end() == Counts(done=2)


@warped
async def test_a_handler_that_renews_for_less_is_renewed_in_time() -> None:
    async with FaultyStore() as store:
        await store.queue("q").enqueue(1, visibility_timeout=300)
        work = Work(store)
        claim = await work.begun.get()
        await claim.heartbeat(230)
        await store.clock.advance(229)

        assert work.cancelled == []
        work.gate.set()
        assert await work.end() == Counts(done=1)


@warped
async def test_a_clock_that_is_set_back_between_two_claims_loses_neither() -> None:
    async with FaultyStore() as store:
        queue = store.queue("q")
        await queue.enqueue(1, visibility_timeout=30)
        work = Work(store)
        await work.begun.get()
        await store.clock.advance(-3600)
        await queue.enqueue(2, visibility_timeout=30)
        await work.begun.get()
        for _ in range(100):
            await store.clock.advance(1)

        assert work.cancelled == []
        work.gate.set()
        assert await work.end() == Counts(done=2)


# ---------------------------------------------------------------- the database goes away


@warped
async def test_an_outcome_is_given_when_the_database_is_back() -> None:
    async with FaultyStore() as store:
        await store.queue("q").enqueue(1)
        work = Work(store)
        await work.begun.get()
        store.wire.refusing["settle_jobs"] = 5
        work.gate.set()
        async with asyncio.timeout(60):
            while await states(store):  # noqa: ASYNC110  # back-off has no event to wait for
                await asyncio.sleep(0.001)

        assert await work.end() == Counts(done=1)


@warped
async def test_claims_go_on_when_the_database_is_back() -> None:
    async with FaultyStore() as store:
        store.wire.refusing["claim_jobs"] = 5
        work = Work(store)
        await store.queue("q").enqueue(1)
        async with asyncio.timeout(60):
            await work.begun.get()
        work.gate.set()

        assert await work.end() == Counts(done=1)


@warped
async def test_an_outcome_of_a_claim_that_is_gone_is_not_tried_for_ever() -> None:
    async with FaultyStore() as store:
        await store.queue("q").enqueue(1, visibility_timeout=3, max_attempts=1)
        work = Work(store)
        await work.begun.get()
        store.wire.refusing["settle_jobs"] = 1_000_000
        work.gate.set()
        await turn()
        await store.clock.advance(3)
        await store.clock.advance(3)

        assert await work.end() == Counts(lost=1)


@warped
async def test_a_worker_sweeps_and_deletes_what_is_long_dead() -> None:
    async with FaultyStore() as store:
        queue = store.queue("q")
        await queue.enqueue("old", max_attempts=1)
        first = await queue.claim_one()
        assert first is not None
        await first.fail("old")
        await store.clock.advance(3600)
        await queue.enqueue("expired", expires=1, delay=100)
        await store.clock.advance(50)
        stop = StopToken()
        run = asyncio.ensure_future(Worker(store, {"q": print}, keep_dead=3000).run(stop, signals=False))
        await turn()

        assert [job.payload for job in await queue.list(state=JobState.DEAD)] == ["expired"]
        await store.clock.advance(3600)
        async with asyncio.timeout(600):
            while await queue.list():  # noqa: ASYNC110  # it comes with the next look, a minute later
                await asyncio.sleep(10)
        stop.cancel()
        await run


@warped
async def test_a_worker_leads_the_schedules() -> None:
    async with FaultyStore() as store:
        seen: list[int] = []
        await store.schedule("s", "@every 10s", "q", 7)
        stop = StopToken()
        run = asyncio.ensure_future(
            Worker(store, {"q": handle(seen.append)}, schedules=True).run(stop, signals=False)
        )
        await turn()
        assert [lock.name for lock in store.mem._inner._locks.held()] == ["__alkstore_scheduler"]
        await store.clock.advance(10)
        for _ in range(1000):
            if seen:
                break
            await asyncio.sleep(0.001)
        stop.cancel()
        await run

        assert seen == [7]
        assert store.mem._inner._locks.held() == []


@warped
async def test_nothing_is_left_of_a_worker_that_has_ended() -> None:
    async with FaultyStore() as store:
        await store.queue("q").enqueue_batch(range(20))
        before = set(threading.enumerate())
        for _ in range(3):
            work = Work(store)
            work.gate.set()
            await turn()
            await work.end()

        assert store.open_watches == []
        assert set(threading.enumerate()) <= before


# ---------------------------------------------------------------- until idle


@warped
async def test_what_handlers_enqueue_is_worked_off_too() -> None:
    async with FaultyStore() as store:
        seen: list[str] = []

        async def first(value: int) -> None:
            seen.append(f"first {value}")
            await store.queue("second").enqueue(value)

        async def second(value: int) -> None:
            seen.append(f"second {value}")
            if value < 3:
                await store.queue("first").enqueue(value + 1)

        await store.queue("first").enqueue(1)
        counts = await Worker(store, {"first": first, "second": second}).run_until_idle()

        assert counts == Counts(done=6)
        assert seen[-1] == "second 3"


@warped
async def test_delayed_jobs_and_retries_are_left_unless_asked_for() -> None:
    async with FaultyStore() as store:
        queue = store.queue("q")
        await queue.enqueue("later", delay=3600)
        await queue.enqueue("never", delay=3600, expires=60)
        await queue.enqueue("fails", max_attempts=3)

        async def handler(value: str) -> None:
            if value == "fails":
                raise ValueError(value)

        worker = Worker(store, {"q": handler})
        assert await worker.run_until_idle() == Counts(retried=1)
        before = store.clock.datetime
        assert await worker.run_until_idle(include_delayed=True) == Counts(done=1, retried=1, dead=1)
        assert (store.clock.datetime - before).total_seconds() >= 3600
        assert len(await queue.list(state=JobState.DEAD)) == 2


@warped
async def test_schedules_that_are_due_fire_before() -> None:
    async with FaultyStore() as store:
        seen: list[int] = []
        await store.schedule("s", "@every 10s", "q", 7)
        await store.clock.advance(10)

        assert await Worker(store, {"q": seen.append}, schedules=True).run_until_idle() == Counts(done=1)
        assert await Worker(store, schedules=True).run_until_idle() == Counts()


@warped
async def test_until_idle_a_failing_engine_is_raised_and_the_jobs_are_given_back() -> None:
    async with FaultyStore() as store:
        await store.queue("q").enqueue(1)
        is_begun = asyncio.Event()

        async def handler(value: int) -> None:
            store.wire.breaking["claim_jobs"] = RuntimeError("a bug")
            is_begun.set()
            await store.queue("other").enqueue(1)
            await asyncio.Event().wait()

        run = asyncio.ensure_future(Worker(store, {"q": handler, "other": print}, grace=0).run_until_idle())
        await is_begun.wait()
        with pytest.raises(RuntimeError, match="a bug"):
            await run
        assert await states(store) == [(JobState.PENDING, 0)]
