"""Everything that core tests over its slow wire, cancelled here while the driver's threads are at work (DUR-08, Q-21)."""

import asyncio
import gc
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Final, cast

import pytest
from cancelling import (
    OPERATIONS,
    Operation,
    cancel,
    claim,
    claim_one,
    left_in,
    lock,
    prepare,
    run_schedules,
    supervise_schedules,
    supply,
    transaction,
)
from engines import rest, rows
from hanging import HUNG

from alkstore.testing import ManualClock, seeded
from alkstore_sqlite import SqliteStore
from alkstore_sqlite.engine import SqliteEngine

HERE: Final[dict[Operation, Operation]] = {
    run: cast(Operation, partial(run, turns=3_000)) for run in (run_schedules, supervise_schedules)
}
"""A stop that comes when the first tick has been through the threads."""

MOST_HOPS: Final = 60
"""Hops that any of the operations takes at most."""


class GatedClock(ManualClock):
    """A clock that a driver's thread stands still at while its gate is shut, in the middle of a hop."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.has_looked = threading.Event(), threading.Event()

    def now(self) -> int:
        if threading.current_thread() is not threading.main_thread():
            self.has_looked.set()
            self.gate.wait(HUNG)
        return super().now()


@asynccontextmanager
async def opened_store(path: Path, clock: ManualClock | None = None) -> AsyncIterator[SqliteStore]:
    async with SqliteStore(
        path, clock=clock or ManualClock(), wait_timeout=5, random=seeded(), durability="process"
    ) as store:
        yield store


def engine_of(store: SqliteStore) -> SqliteEngine:
    assert isinstance(store._engine, SqliteEngine)
    return store._engine


def forget_jobs(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None, timeout=5)) as other:
        other.execute("DELETE FROM alkstore_job")


def moments() -> Iterator[tuple[int, int, int]]:
    """Give when to cancel: after so many hops and so many turns of the loop more; and in how many turns."""
    for hops in range(MOST_HOPS):
        for turns in (0, 1, 2, 4, 9):
            yield hops, turns, 1 + (hops + turns) % 3


async def cancelled_after(
    store: SqliteStore, operation: Operation, hops: int, turns: int, times: int
) -> bool:
    """Cancel an operation in a moment; True if it had ended before.

    A hop takes as long as a few turns, so an operation may end in fewer turns than it has hops.
    """
    engine = engine_of(store)

    def ended() -> int:
        return engine._writer.hops + engine._readers.hops

    last = ended() + hops
    running = asyncio.ensure_future(HERE.get(operation, operation)(store))
    async with asyncio.timeout(HUNG):
        while ended() < last and not running.done():  # noqa: ASYNC110  # a thread's state has no event
            await asyncio.sleep(0)
    for _ in range(turns):
        await asyncio.sleep(0)
    had_ended = running.done()
    await cancel(running, times)
    return had_ended


async def nothing_is_left(store: SqliteStore) -> None:
    """Wait until all that was begun has come to its end, which it does by itself."""
    engine = engine_of(store)
    async with asyncio.timeout(HUNG):
        while left_in(store):  # noqa: ASYNC110  # many things end, each by itself
            await asyncio.sleep(0)
    await rest(engine)
    assert (list(engine._wakes.hub.topics()), list(engine._wakes.board.copy()[1])) == ([], [])
    assert await engine.list_locks() == []


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_nothing_is_left_of_an_operation_that_is_cancelled_anywhere(
    tmp_path: Path, operation: Operation
) -> None:
    async with opened_store(tmp_path / "a.db") as store:
        await prepare(store)
        for hops, turns, times in moments():
            await supply(store)
            if await cancelled_after(store, operation, hops, turns, times):
                if turns == 0:
                    break
                forget_jobs(tmp_path / "a.db")  # what was claimed is the caller's
            gc.collect(0)

            await nothing_is_left(store)
            stats = await store.queue("q").stats()
            assert stats.processing == 0, (hops, turns, times)
            await store.notify("c")  # the writer is free
        else:
            raise AssertionError(f"{operation} takes more than {MOST_HOPS} hops")


@pytest.mark.parametrize("operation", [claim, claim_one])
async def test_a_claim_that_is_cancelled_anywhere_uses_no_attempt_and_loses_no_job(
    tmp_path: Path, operation: Operation
) -> None:
    async with opened_store(tmp_path / "a.db") as store:
        for hops, turns, times in moments():
            id = await store.queue("q").enqueue(1)
            has_ended = await cancelled_after(store, operation, hops, turns, times)
            if has_ended and turns == 0:
                break
            await nothing_is_left(store)
            job = await store.queue("q").get_job(id)
            assert job is not None
            found = (job.state.name, job.attempts)
            assert found == (("PROCESSING", 1) if has_ended else ("PENDING", 0)), (hops, turns, times)
            forget_jobs(tmp_path / "a.db")
        else:
            raise AssertionError("never ended")


async def test_a_row_whose_transaction_is_cancelled_anywhere_is_written_whole_or_not_at_all(
    tmp_path: Path,
) -> None:
    async with opened_store(tmp_path / "a.db") as store:
        await store.stream("s").publish(1)
        for hops, turns, times in moments():
            ended = await cancelled_after(store, transaction, hops, turns, times)
            await nothing_is_left(store)
            jobs = rows(tmp_path / "a.db", "SELECT count(*) FROM alkstore_job WHERE queue = 'other'")
            assert jobs == [await store.stream("other").head()], (hops, turns, times)
            if ended and turns == 0:
                break


@pytest.mark.parametrize("turns", range(0, 300, 20))
async def test_callers_cancelled_anywhere_in_a_batch_leave_the_others_one_row_each(
    tmp_path: Path, turns: int
) -> None:
    async with opened_store(tmp_path / "a.db") as store:
        calls = [asyncio.ensure_future(store.queue("q").enqueue(at)) for at in range(9)]
        for _ in range(turns):
            await asyncio.sleep(0)
        for call in calls[::2]:
            call.cancel()
        await asyncio.wait(calls)
        await nothing_is_left(store)

        stored = [job.payload for job in await store.queue("q").list()]
        landed = [at for at, call in enumerate(calls) if not call.cancelled()]
        assert len(stored) == len(set(map(str, stored)))
        assert set(landed) <= set(stored)


@pytest.mark.parametrize("operation", [claim_one, lock])
async def test_a_close_waits_for_what_is_done_for_somebody_who_has_gone_and_it_is_given_back(
    tmp_path: Path, operation: Operation
) -> None:
    clock = GatedClock()
    clock.gate.set()
    async with opened_store(tmp_path / "a.db", clock) as store:
        id = await store.queue("q").enqueue(1)
        clock.gate.clear()
        clock.has_looked.clear()
        running = asyncio.ensure_future(operation(store))
        async with asyncio.timeout(HUNG):
            while not clock.has_looked.is_set():  # noqa: ASYNC110  # a thread's state has no event
                await asyncio.sleep(0)

        await cancel(running)

        waited_for = len(engine_of(store)._writer._chores)
        clock.gate.set()
        await nothing_is_left(store)
        job = await store.queue("q").get_job(id)
        assert job is not None
        assert (waited_for, job.state.name, job.attempts) == (1, "PENDING", 0)


async def test_waits_that_end_in_every_way_leave_nothing(tmp_path: Path) -> None:
    async with opened_store(tmp_path / "a.db") as store:
        holder = await store.try_lock("held", 3_600)
        assert holder is not None

        async def wait(at: int) -> None:
            kind, is_limited = at % 4, at // 4 % 3 == 0
            limit = 0.02 if is_limited else None
            async with asyncio.timeout(None if is_limited else 0.01 + at % 7 / 100):
                if kind == 0:
                    await store.queue("empty").claim(timeout=limit)
                elif kind == 1:
                    await store.lock("held", timeout=limit)
                elif kind == 2:
                    async with store.listen("quiet") as receiver:
                        await (receiver.recv_timeout(0.02) if is_limited else receiver.recv())
                else:
                    async with store.stream("quiet").subscribe() as events:
                        await asyncio.wait_for(events.recv(), limit)

        waits = [asyncio.ensure_future(wait(at)) for at in range(300)]
        for _ in range(30):
            await asyncio.sleep(0)
        for wait_ in waits[::5]:
            wait_.cancel()
        ended = {type(end).__name__ for end in await asyncio.gather(*waits, return_exceptions=True)}
        await holder.release()
        del waits

        assert ended <= {"NoneType", "TimeoutError", "LockTimeout", "CancelledError"}
        gc.collect()
        await nothing_is_left(store)
        assert (len(store._tracked), len(store._turns)) == (0, 0)
