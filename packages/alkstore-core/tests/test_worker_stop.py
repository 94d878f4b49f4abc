"""How a worker stops: what has not begun is given back, what runs has its grace, and nothing is lost."""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from faulty import FaultyStore, turn, warped
from hanging import HUNG

from alkstore import JobState, StopToken
from alkstore.errors import Closed, InvalidArgument
from alkstore.testing import ManualClock
from alkstore.worker import Counts, Worker, handle
from alkstore_mem import MemStore


@pytest.fixture
async def store() -> AsyncIterator[MemStore]:
    async with MemStore(clock=ManualClock()) as opened:
        yield opened


class Gate:
    """A handler that says when it has begun, and ends when it may."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[int] = asyncio.Queue()
        self.may_end = asyncio.Event()
        self.ended: list[int] = []

    async def __call__(self, value: int) -> None:
        self.begun.put_nowait(value)
        await self.may_end.wait()
        self.ended.append(value)


async def begun(gate: Gate, count: int = 1) -> list[int]:
    async with asyncio.timeout(HUNG):
        return [await gate.begun.get() for _ in range(count)]


async def attempts(store: Any) -> list[tuple[JobState, int]]:
    return [(job.state, job.attempts) for job in await store.queue("q").list()]


async def test_a_worker_waits_for_jobs_and_ends_at_its_stop(store: MemStore) -> None:
    seen: asyncio.Queue[int] = asyncio.Queue()
    stop = StopToken()
    run = asyncio.ensure_future(Worker(store, {"q": seen.put_nowait}).run(stop, signals=False))
    await turn()
    await store.queue("q").enqueue(1)
    async with asyncio.timeout(HUNG):
        assert await seen.get() == 1
    stop.cancel()

    assert await run == Counts(done=1)


async def test_a_worker_whose_stop_is_cancelled_already_does_nothing(store: MemStore) -> None:
    stop = StopToken()
    stop.cancel()
    await store.queue("q").enqueue(1)

    assert await Worker(store, {"q": print}).run(stop, signals=False) == Counts()
    assert await attempts(store) == [(JobState.PENDING, 0)]


async def test_at_a_stop_what_has_not_begun_is_given_back_and_what_runs_may_end(store: MemStore) -> None:
    gate, stop = Gate(), StopToken()
    await store.queue("q").enqueue_batch(range(10))
    worker = Worker(store, {"q": handle(gate, concurrency=1)}, prefetch=10)
    run = asyncio.ensure_future(worker.run(stop, signals=False))
    await begun(gate)
    assert (await store.queue("q").stats()).processing == 10
    stop.cancel()
    await turn()

    assert await attempts(store) == [(JobState.PROCESSING, 1)] + [(JobState.PENDING, 0)] * 9
    assert not run.done()
    gate.may_end.set()
    assert await run == Counts(done=1, released=9)


async def test_after_the_grace_what_runs_is_cancelled_and_given_back(store: MemStore) -> None:
    gate, stop = Gate(), StopToken()
    await store.queue("q").enqueue_batch([1, 2])
    run = asyncio.ensure_future(Worker(store, {"q": gate}, grace=0).run(stop, signals=False))
    await begun(gate, 2)
    stop.cancel()

    assert await run == Counts(released=2)
    assert await attempts(store) == [(JobState.PENDING, 0)] * 2
    assert gate.ended == []


async def test_a_handler_that_ends_well_on_its_cancellation_has_done_its_job(store: MemStore) -> None:
    is_begun, stop = asyncio.Event(), StopToken()

    async def handler(value: int) -> None:
        is_begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    await store.queue("q").enqueue(1)
    run = asyncio.ensure_future(Worker(store, {"q": handler}, grace=0).run(stop, signals=False))
    await is_begun.wait()
    stop.cancel()

    assert await run == Counts(done=1)
    assert await attempts(store) == []


@warped
async def test_a_handler_that_ignores_its_cancellation_keeps_no_worker_from_ending() -> None:
    async with FaultyStore() as store:
        is_begun, may_end, stop = asyncio.Event(), asyncio.Event(), StopToken()

        async def handler(value: int) -> None:
            is_begun.set()
            while not may_end.is_set():
                try:
                    await may_end.wait()
                except asyncio.CancelledError:
                    continue

        await store.queue("q").enqueue(1)
        run = asyncio.ensure_future(Worker(store, {"q": handler}, grace=0).run(stop, signals=False))
        await is_begun.wait()
        stop.cancel()

        assert await run == Counts()
        assert await attempts(store) == [(JobState.PROCESSING, 1)]
        may_end.set()
        await turn()


async def test_a_cancelled_run_gives_back_what_it_claimed(store: MemStore) -> None:
    gate = Gate()
    await store.queue("q").enqueue_batch(range(3))
    worker = Worker(store, {"q": handle(gate, concurrency=1)}, prefetch=3, grace=1000)
    run = asyncio.ensure_future(worker.run(signals=False))
    await begun(gate)
    run.cancel()

    with pytest.raises(asyncio.CancelledError):
        await run
    assert await attempts(store) == [(JobState.PENDING, 0)] * 3


async def test_jobs_that_come_after_the_stop_are_given_back() -> None:
    async with FaultyStore() as store:
        gate, stop = Gate(), StopToken()
        answers = store.wire.hang_answers("claim_jobs")
        await store.queue("q").enqueue_batch([1, 2])
        run = asyncio.ensure_future(Worker(store, {"q": gate}).run(stop, signals=False))
        await turn()
        assert (await store.queue("q").stats()).processing == 2
        stop.cancel()

        assert (await run).total == 0
        answers.set()
        await turn()
        assert await attempts(store) == [(JobState.PENDING, 0)] * 2
        assert gate.begun.empty()


@warped
async def test_a_closing_store_waits_until_its_worker_has_given_everything_back() -> None:
    async with FaultyStore() as store:
        gate = Gate()
        await store.queue("q").enqueue_batch([1, 2])
        worker = Worker(store, {"q": handle(gate, concurrency=1)}, prefetch=2)
        run = asyncio.ensure_future(worker.run(signals=False))
        await begun(gate)

    assert await run == Counts(released=2)


async def test_a_worker_of_a_store_that_is_not_open_says_so() -> None:
    store = MemStore()
    with pytest.raises(InvalidArgument, match="not open"):
        await Worker(store, {"q": print}).run(signals=False)
    async with store:
        pass
    with pytest.raises(Closed):
        await Worker(store, {"q": print}).run(signals=False)
    with pytest.raises(Closed):
        await Worker(store, {"q": print}).run_until_idle()


async def test_a_worker_runs_once_at_a_time(store: MemStore) -> None:
    stop = StopToken()
    worker = Worker(store, {"q": print})
    run = asyncio.ensure_future(worker.run(stop, signals=False))
    await turn()

    with pytest.raises(InvalidArgument, match="runs already"):
        await worker.run(stop, signals=False)
    with pytest.raises(InvalidArgument, match="runs already"):
        await worker.run_until_idle()
    stop.cancel()
    await run
    assert await worker.run_until_idle() == Counts()


async def test_what_no_stop_token_is_is_refused(store: MemStore) -> None:
    with pytest.raises(InvalidArgument, match="stop must be a StopToken"):
        await Worker(store, {"q": print}).run(asyncio.Event(), signals=False)  # type: ignore[arg-type]


# ---------------------------------------------------------------- signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_the_worker_and_a_second_one_ends_the_grace(
    store: MemStore, number: signal.Signals
) -> None:
    gate, before = Gate(), signal.getsignal(number)
    await store.queue("q").enqueue(1)
    run = asyncio.ensure_future(Worker(store, {"q": gate}, grace=1000).run())
    await begun(gate)
    os.kill(os.getpid(), number)
    await turn()
    assert not run.done()
    os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before  # so a third one does what it does without a worker

    async with asyncio.timeout(HUNG):
        assert await run == Counts(released=1)
    assert signal.getsignal(number) is before


async def test_signals_are_let_be_outside_the_main_thread_and_where_they_are_not_wanted(
    store: MemStore,
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    stop = StopToken()
    run = asyncio.ensure_future(Worker(store, {"q": print}).run(stop, signals=False))
    await turn()
    assert signal.getsignal(signal.SIGTERM) is before
    stop.cancel()
    await run

    done: list[Counts] = []

    async def elsewhere() -> None:
        async with MemStore() as other:
            stopped = StopToken()
            stopped.cancel()
            done.append(await Worker(other, {"q": print}).run(stopped))

    thread = threading.Thread(target=lambda: asyncio.run(elsewhere()))
    thread.start()
    await asyncio.to_thread(thread.join, 10)
    assert done == [Counts()]


# ---------------------------------------------------------------- loud ends


@pytest.mark.parametrize(
    "error", [RuntimeError("a bug in the engine"), InvalidArgument("a bug in core")], ids=repr
)
async def test_what_must_not_happen_ends_the_worker_loudly(error: Exception) -> None:
    async with FaultyStore() as store:
        gate = Gate()
        await store.queue("q").enqueue(1)
        run = asyncio.ensure_future(Worker(store, {"q": gate, "other": print}).run(signals=False))
        await begun(gate)
        store.wire.breaking["claim_jobs"] = error
        await store.queue("q").enqueue(2)
        await store.queue("other").enqueue(2)

        with pytest.raises(type(error), match="a bug in"):
            await run
        assert (JobState.PENDING, 0) in await attempts(store)


async def test_an_outcome_that_must_not_fail_so_ends_the_worker_loudly() -> None:
    async with FaultyStore() as store:
        gate = Gate()
        await store.queue("q").enqueue(1)
        run = asyncio.ensure_future(Worker(store, {"q": gate}).run(signals=False))
        await begun(gate)
        store.wire.breaking["settle_jobs"] = RuntimeError("a bug in the engine")
        gate.may_end.set()

        with pytest.raises(RuntimeError, match="a bug in the engine"):
            await run


def test_a_loop_that_ends_under_a_worker_gives_its_jobs_back() -> None:
    left: list[tuple[JobState, int]] = []
    ends: list[asyncio.Task[None]] = []

    async def main() -> None:
        async with MemStore() as store:
            gate = Gate()
            await store.queue("q").enqueue_batch([1, 2, 3])

            async def ending() -> None:
                await begun(gate)
                raise SystemExit(3)

            ends.append(asyncio.ensure_future(ending()))
            try:
                await Worker(store, {"q": gate}, concurrency=1, prefetch=3, grace=1000).run(signals=False)
            finally:
                left.extend(await attempts(store))
                assert gate.begun.empty()

    with pytest.raises(SystemExit):
        asyncio.run(main())
    # Asked for, or whatever test runs when it is collected has its traceback written in the middle of something else.
    assert [type(end.exception()) for end in ends] == [SystemExit]
    assert left == [(JobState.PENDING, 0)] * 3
