import asyncio
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from hanging import HUNG

import alkstore
from alkstore.clock import SystemClock
from alkstore.engine import (
    Engine,
    EngineTransaction,
    JobFilter,
    JobRecord,
    LockRecord,
    NewEvent,
    NewJob,
    NewSchedule,
    NewWake,
    ScheduleRecord,
    Signal,
    Taken,
    Topic,
    TopicKind,
)
from alkstore.errors import Closed, InvalidArgument, InvalidName
from alkstore.interval import CATCH_UP
from alkstore.testing import ManualClock
from alkstore_contract_suite.factory import Supported
from alkstore_mem import MemStore, contract
from alkstore_mem.engine import MemEngine, alkstore_engine
from alkstore_mem.lock import Locks
from alkstore_mem.queue import Queues
from alkstore_mem.schedule import Schedules
from alkstore_mem.state import State

CAPABILITIES = ("durable", "multi_process", "sql", "listen", "reconnects", "notify_limit")
"""Those of contract.md, VER-02."""

SECOND = 1_000_000
MINUTE = 60 * SECOND
JOB = NewJob("mail", b"1", b"{}", 0, None, None, 300 * SECOND, 3, 5 * SECOND, None)
RULE = NewSchedule("nightly", "@every 1m", MINUTE, None, "mail", b"1", 0, 300 * SECOND, 3, 5 * SECOND, None)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def engine(clock: ManualClock) -> Engine:
    return MemEngine(clock)


class Dropped:
    """A transaction that nobody has any more."""

    def free(self) -> None:
        """Hold nothing."""


def test_what_is_dropped_after_its_loop_was_closed_is_freed_without_an_error(clock: ManualClock) -> None:
    state, dropped = State(clock), Dropped()

    async def work() -> None:
        state.opened(dropped)

    asyncio.run(work())
    state.abandon(dropped)  # as a finaliser does, whose errors nobody can catch

    assert state.is_stirred


# ---------------------------------------------------------------- wakes


async def test_each_notify_is_one_wake(engine: Engine) -> None:
    early = await engine.watch(Topic(TopicKind.CHANNEL, "bell"))
    await engine.notify([NewWake("bell", None), NewWake("other", b"1"), NewWake("bell", b"2")])
    late = await engine.watch(Topic(TopicKind.CHANNEL, "bell"))

    assert [early.poll(), early.poll(), early.poll()] == [Signal.WOKEN, Signal.WOKEN, None]
    assert late.poll() is None


# ---------------------------------------------------------------- locks


async def test_a_lock_lapses_at_its_instant_and_its_fence_only_grows(
    engine: Engine, clock: ManualClock
) -> None:
    end = clock.now() + SECOND
    assert await engine.take_lock("a", SECOND) == Taken(1, end)
    assert await engine.take_lock("a", SECOND) == Taken(None, end)
    await clock.advance(0.999999)
    assert await engine.list_locks() == [LockRecord("a", 1, end)]
    await clock.advance(0.000001)

    assert await engine.list_locks() == []
    assert await engine.renew_lock("a", 1, SECOND) is None
    assert await engine.take_lock("a", SECOND) == Taken(2, end + SECOND)
    assert await engine.renew_lock("a", 1, 0) is None
    assert await engine.renew_lock("a", 2, 3 * SECOND) == end + 3 * SECOND


async def test_a_release_frees_at_once_and_wakes(engine: Engine, clock: ManualClock) -> None:
    watch = await engine.watch(Topic(TopicKind.LOCK, "a"))
    await engine.take_lock("a", SECOND)
    await engine.take_lock("b", SECOND)

    assert await engine.renew_lock("a", 1, 0) == clock.now()

    assert watch.poll() is Signal.WOKEN
    assert await engine.renew_lock("a", 1, 0) is None
    assert watch.poll() is None
    assert (await engine.take_lock("a", SECOND)).fence == 2
    assert [(lock.name, lock.fence) for lock in await engine.list_locks()] == [("a", 2), ("b", 1)]


# ---------------------------------------------------------------- schedules


async def test_a_schedule_keeps_its_grid_until_its_rule_changes(engine: Engine, clock: ManualClock) -> None:
    watch = await engine.watch(Topic(TopicKind.SCHEDULE))
    start = clock.now()
    assert await engine.put_schedule(RULE) == ScheduleRecord(RULE, start + MINUTE)
    await clock.advance(30)
    replaced = RULE._replace(payload=b"2")
    moved = replaced._replace(anchor=start + 3 * MINUTE)

    assert await engine.put_schedule(replaced) == ScheduleRecord(replaced, start + MINUTE)
    assert await engine.put_schedule(moved) == ScheduleRecord(moved, start + 3 * MINUTE)
    assert await engine.list_schedules() == [ScheduleRecord(moved, start + 3 * MINUTE)]
    assert watch.poll() is Signal.WOKEN
    assert (await engine.delete_schedule("nightly"), watch.poll()) == (True, Signal.WOKEN)
    assert (await engine.delete_schedule("nightly"), watch.poll()) == (False, None)


async def test_due_boundaries_become_jobs_in_their_order(engine: Engine, clock: ManualClock) -> None:
    start = clock.now()
    await engine.put_schedule(RULE._replace(expires=SECOND, priority=4))
    await engine.put_schedule(RULE._replace(name="hourly", every=60 * MINUTE))
    watch = await engine.watch(Topic(TopicKind.QUEUE, "mail"))
    assert (await engine.fire_schedules(None), watch.poll()) == ((0, start + MINUTE, True), None)
    await clock.advance(150)

    fired = await engine.fire_schedules(None)

    now = clock.now()
    assert fired == (2, start + 3 * MINUTE, True)
    assert watch.poll() is Signal.WOKEN
    assert [
        (job.id, job.scheduled_for, job.run_at, job.created_at, job.expires_at, job.priority)
        for job in await engine.find_jobs("mail", JobFilter())
    ] == [(n, start + n * MINUTE, now, now, now + SECOND, 4) for n in (1, 2)]
    await clock.advance(-100)
    assert (await engine.fire_schedules(None)).jobs == 0


async def test_a_long_absence_fires_the_oldest_and_skips_to_the_grid(
    engine: Engine, clock: ManualClock
) -> None:
    start = clock.now()
    await engine.put_schedule(RULE)
    await clock.advance(200 * 3_600)

    fired = await engine.fire_schedules(None)

    assert fired == (CATCH_UP, start + 200 * 60 * MINUTE + MINUTE, True)


class PickyQueues(Queues):
    """Queues of which one takes no job."""

    def make(self, job: NewJob, now: int, scheduled_for: int | None = None) -> JobRecord:
        if job.queue == "full":
            raise OSError("this queue takes no job")
        return super().make(job, now, scheduled_for)


async def test_a_schedule_that_cannot_fire_is_logged_and_holds_back_no_other(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    state = State(clock)
    queues = PickyQueues(state)
    schedules = Schedules(state, queues, Locks(state))
    for name, queue in (("a", "mail"), ("b", "full"), ("c", "mail")):
        schedules.put(RULE._replace(name=name, queue=queue))
    due = state.clock.now() + MINUTE
    await clock.advance(60)

    fired = schedules.fire(None)

    assert fired == (2, due + MINUTE, True)
    assert queues.count("mail").ready == 2
    assert [record.next_fire_at for record in schedules.all()] == [due + MINUTE, due, due + MINUTE]
    assert "schedule 'b' cannot fire" in caplog.text


async def test_a_lease_that_is_not_live_fires_nothing(engine: Engine, clock: ManualClock) -> None:
    await engine.put_schedule(RULE)
    lease = await engine.take_lock("__alkstore_scheduler", 2 * MINUTE)
    await clock.advance(60)
    assert lease.fence is not None

    assert (await engine.fire_schedules(("__alkstore_scheduler", lease.fence + 1))).led is False
    await clock.advance(60)
    assert await engine.fire_schedules(("__alkstore_scheduler", lease.fence)) == (
        0,
        clock.now() - 60 * SECOND,
        False,
    )
    assert await engine.find_jobs("mail", JobFilter()) == []
    assert (await engine.fire_schedules(None)).jobs == 2


# ---------------------------------------------------------------- names and life


async def test_names_show_what_has_rows(engine: Engine) -> None:
    await engine.insert_jobs([JOB._replace(queue=name) for name in ("b", "a", "c")])
    await engine.append_events([NewEvent("s", None, b"1", b"{}")])
    await engine.claim_jobs("c", ["w"])
    await engine.trim_events("s", 1)
    await engine.move_offset("r", "c", 1, backwards=False)

    assert await engine.list_names() == (["a", "b", "c"], ["r"])


async def test_after_its_close_everything_is_closed(engine: Engine, clock: ManualClock) -> None:
    watch = await engine.watch(Topic(TopicKind.CHANNEL, "bell"))
    first, tx, last = [await engine.begin() for _ in range(3)]
    await tx.read_offset("s", "c", hold=True)
    waits = [asyncio.create_task(waiter.read_offset("s", "c", hold=True)) for waiter in (last, first)]
    await clock.settle()

    await engine.aclose()
    await engine.aclose()

    async with asyncio.timeout(HUNG):
        assert await watch.wait() is Signal.CLOSED
        for waiting in waits:
            with pytest.raises(Closed):
                await waiting
    assert not tx.is_open
    with pytest.raises(Closed):
        await tx.commit()
    with pytest.raises(Closed):
        await engine.begin()


async def test_no_operation_goes_on_after_the_close(engine: Engine) -> None:
    tx, other = await engine.begin(), await engine.begin()
    operations = [*on_both(engine), *on_both(tx)]
    operations += [
        partial(engine.count_jobs, "q"),
        partial(engine.claim_jobs, "q", ["w"]),
        partial(engine.sweep_jobs, "q"),
        partial(engine.purge_jobs, "q", 0),
        partial(engine.read_head, "s"),
        partial(engine.trim_events, "s", 0),
        partial(engine.read_offsets, "s"),
        partial(engine.move_offset, "s", "c", 1, backwards=False),
        partial(engine.watch, Topic(TopicKind.CLOCK)),
        partial(engine.take_lock, "l", SECOND),
        partial(engine.renew_lock, "l", 1, SECOND),
        engine.list_locks,
        partial(engine.put_schedule, RULE),
        partial(engine.delete_schedule, "nightly"),
        partial(engine.fire_schedules, None),
        engine.list_schedules,
        engine.list_names,
        partial(tx.read_offset, "s", "c", hold=False),
        partial(tx.save_offset, "s", "c", 1, None),
        tx.commit,
    ]
    await other.rollback()

    await engine.aclose()

    for operation in operations:
        with pytest.raises(Closed):
            await operation()


def on_both(of: Engine | EngineTransaction) -> list[Callable[[], Awaitable[object]]]:
    """Give the operations that an engine and a transaction have in common."""
    return [
        partial(of.insert_jobs, [JOB]),
        partial(of.find_jobs, "q", JobFilter()),
        partial(of.settle_jobs, []),
        partial(of.append_events, []),
        partial(of.read_events, "s", 0, 1),
        partial(of.notify, []),
    ]


async def test_a_store_opens_by_its_url_and_takes_its_options(clock: ManualClock) -> None:
    async with alkstore.open("mem://", clock=clock, random=random.Random(1), worker_id="w") as store:
        assert isinstance(store, MemStore)
        await store.queue("mail").enqueue(1)
        handle = await store.queue("mail").claim_one()

    assert handle is not None
    assert (handle.job.worker_id, handle.job.created_at) == ("w", clock.datetime)


@pytest.mark.parametrize("url", ["mem:///", "mem://name", "mem://?x=1", "mem:///path"])
def test_nothing_may_follow_the_scheme(url: str) -> None:
    with pytest.raises(InvalidArgument, match="nothing after it"):
        _ = alkstore.open(url)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"clock": object()}, InvalidArgument),
        ({"clock": SystemClock}, InvalidArgument),
        ({"wait_timeout": 0}, InvalidArgument),
        ({"worker_id": " "}, InvalidName),
    ],
)
def test_options_are_checked_when_the_store_is_made(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        _ = MemStore(**options)


async def test_two_stores_share_nothing() -> None:
    async with MemStore() as one, MemStore() as other:
        await one.queue("mail").enqueue(1)

        assert (await one.queues(), await other.queues()) == (["mail"], [])


def test_the_registration_names_a_reason_for_what_is_omitted() -> None:
    registration = alkstore_engine()

    assert (registration.schemes, registration.package) == (("mem",), "alkstore-mem")
    assert all(registration.omitted.values())
    assert not registration.durable
    assert set(CAPABILITIES) == registration.capabilities.keys()
    assert registration.contract_version == alkstore.CONTRACT_VERSION


def test_the_registration_and_the_column_of_the_suite_say_the_same() -> None:
    registration = alkstore_engine()

    for name in CAPABILITIES:
        has_it = registration.capabilities[name] is True
        assert isinstance(contract.CAPABILITIES[name], Supported) is has_it, name


def test_it_runs_where_there_are_no_threads_and_no_database() -> None:
    script = (
        "import sys, asyncio\n"
        "from alkstore_mem import MemStore\n"
        "async def main():\n"
        "    async with MemStore() as store:\n"
        "        await store.queue('q').enqueue(1)\n"
        "        print((await store.queue('q').claim_one()).job.payload)\n"
        "asyncio.run(main())\n"
        "assert not {'sqlite3', 'aiosqlite', 'asyncpg', 'multiprocessing'} & sys.modules.keys()\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=HUNG, check=True
    )

    assert done.stdout == "1\n"
