"""What observers are told, when, and that nothing they do changes anything; on an engine without I/O and on one with."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hanging import HUNG
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

import alkstore
from alkstore import Job, JobHandle, Store
from alkstore.errors import HandleConsumed, InvalidArgument
from alkstore.observing import (
    BatchWritten,
    Destination,
    EventsPublished,
    EventsRead,
    Fact,
    JobHandled,
    JobsClaimed,
    JobsEnqueued,
    JobSettled,
    JobsExpired,
    SchedulesFired,
)
from alkstore.testing import ManualClock
from alkstore.worker import Fail, Worker
from alkstore_mem import MemStore
from alkstore_sqlite import SqliteStore

F = TypeVar("F", bound=Fact)

MAIL = Destination("queue", "mail")


class Notebook:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []

    def __call__(self, fact: Fact) -> None:
        self.facts.append(fact)

    def of(self, kind: type[F]) -> list[F]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    def kinds(self) -> list[type[Fact]]:
        return [type(fact) for fact in self.facts if not isinstance(fact, BatchWritten)]


class Observed:
    """A store with a notebook and a clock."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = ManualClock()
        self.told = Notebook()

    @asynccontextmanager
    async def opened(self, *others: Callable[[Fact], object]) -> AsyncIterator[Store]:
        async with alkstore.open(self.url, clock=self.clock, observers=[*others, self.told]) as store:
            yield store


@pytest.fixture(params=["mem", "sqlite"])
def observed(request: pytest.FixtureRequest, tmp_path: Path) -> Observed:
    return Observed("mem://" if request.param == "mem" else f"sqlite:///{tmp_path}/app.db")


@pytest.fixture
async def session(observed: Observed, tmp_path: Path) -> AsyncIterator[AsyncSession]:
    """A session of the application's, whose database is the store's own if that has one."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/app.db")
    async with AsyncSession(engine) as session:
        yield session
    await engine.dispose()


async def claimed(store: Store, *payloads: int) -> Sequence[JobHandle]:
    await store.queue("mail").enqueue_batch(payloads, visibility_timeout=10)
    return await store.queue("mail").claim_batch(len(payloads))


def outcomes(observed: Observed) -> list[tuple[object, str, float | None]]:
    return [(fact.job.payload, fact.outcome, fact.held) for fact in observed.told.of(JobSettled)]


async def test_one_job_is_told_from_its_enqueue_to_its_end(observed: Observed) -> None:
    async with observed.opened() as store:
        queue = store.queue("mail")
        id = await queue.enqueue(1)
        await observed.clock.advance(2)
        (handle,) = await queue.claim_batch(1)
        async with handle:
            await observed.clock.advance(0.5)

    enqueued, claimed, handled, settled = (
        fact for fact in observed.told.facts if not isinstance(fact, BatchWritten)
    )
    assert isinstance(enqueued, JobsEnqueued)
    assert (enqueued.destination, list(enqueued.ids)) == (MAIL, [id])
    assert isinstance(claimed, JobsClaimed)
    assert (claimed.jobs, claimed.wanted, claimed.waited) == ((handle.job,), 1, (2.0,))
    assert (claimed.reclaimed, claimed.reclaimed_exactly) == (0, True)
    assert isinstance(handled, JobHandled)
    assert (handled.job, handled.error) == (handle.job, None)
    assert isinstance(settled, JobSettled)
    assert (settled.job, settled.outcome, settled.held) == (handle.job, "done", 0.5)


async def test_each_outcome_has_its_name(observed: Observed) -> None:
    async with observed.opened() as store:
        queue = store.queue("mail", max_attempts=2)
        await queue.enqueue_batch(["ack", "retry", "fail", "release"])
        for handle in await queue.claim_batch(4):
            await getattr(handle, str(handle.job.payload))()

    assert outcomes(observed) == [
        ("ack", "done", 0.0),
        ("retry", "retried", 0.0),
        ("fail", "dead", 0.0),
        ("release", "released", 0.0),
    ]


async def test_a_retry_on_the_last_attempt_is_told_as_dead(observed: Observed) -> None:
    async with observed.opened() as store:
        queue = store.queue("mail", max_attempts=1)
        await queue.enqueue(1)
        (handle,) = await queue.claim_batch(1)
        await handle.retry(error="no use")

    assert outcomes(observed) == [(1, "dead", 0.0)]


async def test_a_claim_that_lapsed_is_told_as_lost_once_and_its_job_as_reclaimed(observed: Observed) -> None:
    async with observed.opened() as store:
        queue = store.queue("mail", visibility_timeout=10)
        await queue.enqueue(1)
        (late,) = await queue.claim_batch(1)
        await observed.clock.advance(10)
        (handle,) = await queue.claim_batch(1)
        assert not await late.ack()
        await handle.ack()

    assert outcomes(observed) == [(1, "lost", None), (1, "done", 0.0)]
    assert [fact.reclaimed for fact in observed.told.of(JobsClaimed)] == [0, 1]


async def test_a_settle_that_comes_too_late_is_told_as_lost_once(observed: Observed) -> None:
    async with observed.opened() as store:
        queue = store.queue("mail", visibility_timeout=10)
        await queue.enqueue(1)
        (handle,) = await queue.claim_batch(1)
        await observed.clock.advance(10)
        assert not await handle.heartbeat()
        assert not await handle.ack()

    assert outcomes(observed) == [(1, "lost", None)]


async def test_a_renewed_claim_is_not_lost_when_its_first_window_ends(observed: Observed) -> None:
    async with observed.opened() as store:
        queue = store.queue("mail", visibility_timeout=10)
        await queue.enqueue_batch([1, 2])
        (handle,) = await queue.claim_batch(1)
        await observed.clock.advance(6)
        assert await handle.heartbeat()
        await observed.clock.advance(6)
        (other,) = await queue.claim_batch(1)
        await handle.ack()
        await other.ack()

    assert outcomes(observed) == [(1, "done", 12.0), (2, "done", 0.0)]


async def test_what_a_transaction_does_is_told_at_its_commit_in_its_order(observed: Observed) -> None:
    async with observed.opened() as store:
        await store.queue("mail").enqueue(1)
        (handle,) = await store.queue("mail").claim_batch(1)
        observed.told.facts.clear()
        async with store.begin_tx() as tx:
            await tx.publish("log", "x")
            await tx.ack(handle)
            await tx.enqueue("mail", 2)
            await tx.outbox_enqueue("hook", 3)
            assert observed.told.kinds() == []

        assert observed.told.kinds() == [EventsPublished, JobSettled, JobsEnqueued, JobsEnqueued]
        assert [fact.destination for fact in observed.told.of(JobsEnqueued)] == [
            MAIL,
            Destination("outbox", "hook"),
        ]


async def test_nothing_is_told_of_what_a_transaction_rolled_back(observed: Observed) -> None:
    async with observed.opened() as store:
        await store.queue("mail").enqueue(1)
        (handle,) = await store.queue("mail").claim_batch(1)
        observed.told.facts.clear()
        async with store.begin_tx() as tx:
            await tx.enqueue("mail", 2)
            await tx.publish("log", "x")
            await tx.ack(handle)
            await tx.rollback()
        assert observed.told.kinds() == []

        await handle.ack()
        assert outcomes(observed) == [(1, "done", 0.0)]


async def test_what_settles_a_job_after_its_joined_ack_was_rolled_back_is_told(
    observed: Observed, session: AsyncSession
) -> None:
    async with observed.opened() as store:
        for settle in ("ack", "retry", "fail", "release"):
            (handle,) = await claimed(store, 1)
            async with store.join(session) as tx:
                await tx.ack(handle)
            await session.rollback()
            await getattr(handle, settle)()

    assert [outcome for _, outcome, _ in outcomes(observed)] == ["done", "retried", "dead", "released"]


async def test_a_worker_tells_of_a_job_that_goes_dead_after_its_joined_ack_was_rolled_back(
    observed: Observed, session: AsyncSession
) -> None:
    async def handler(handle: JobHandle) -> None:
        async with session.begin(), store.join(session) as tx:
            await tx.ack(handle)
            raise ValueError("no")

    async with observed.opened() as store:
        await store.queue("mail").enqueue(1, max_attempts=1)
        assert (await Worker(store, {"mail": handler}).run_until_idle()).dead == 1

    assert outcomes(observed) == [(1, "dead", 0.0)]


async def test_a_joined_ack_that_landed_is_never_told_as_lost(
    observed: Observed, session: AsyncSession
) -> None:
    async with observed.opened() as store:
        for handle in await claimed(store, 1, 2):
            async with store.join(session) as tx:
                await tx.ack(handle)
            await session.commit()
        with pytest.raises(HandleConsumed):
            await handle.ack()
        await observed.clock.advance(60)
        await claimed(store, 3)

    assert outcomes(observed) == []


async def test_a_second_ack_after_a_joined_one_was_rolled_back_is_told_at_its_commit(
    observed: Observed, session: AsyncSession
) -> None:
    async with observed.opened() as store:
        (handle,) = await claimed(store, 1)
        for _ in range(2):
            async with store.join(session) as joined:
                await joined.ack(handle)
            await session.rollback()
        async with store.begin_tx() as tx:
            await tx.ack(handle)

    assert outcomes(observed) == [(1, "done", 0.0)]


async def test_a_claim_that_is_renewed_after_its_joined_ack_was_rolled_back_is_lost_at_its_end(
    observed: Observed, session: AsyncSession
) -> None:
    async with observed.opened() as store:
        (handle,) = await claimed(store, 1)
        async with store.join(session) as tx:
            await tx.ack(handle)
        await session.rollback()
        assert await handle.heartbeat()
        await observed.clock.advance(60)
        await claimed(store, 1)

    assert outcomes(observed) == [(1, "lost", None)]


async def test_a_sweep_tells_of_what_it_moved_and_nothing_of_nothing(observed: Observed) -> None:
    async with observed.opened() as store:
        queue = store.queue("mail", expires=5)
        await queue.enqueue_batch([1, 2])
        await queue.sweep_expired()
        await observed.clock.advance(5)
        await queue.sweep_expired()

    assert observed.told.of(JobsExpired) == [JobsExpired(destination=MAIL, count=2)]


async def test_schedules_and_streams_are_told_of(observed: Observed) -> None:
    async with observed.opened() as store:
        await store.schedule("tick", "@every 1m", "mail", None)
        await store.tick_schedules()
        await observed.clock.advance(180)
        await store.tick_schedules()
        offsets = await store.stream("log").publish_batch(["a", "b"])
        events = await store.stream("log").read_since(0)
        await store.stream("log").read_since(offsets[-1])

    assert [fact.jobs for fact in observed.told.of(SchedulesFired)] == [3]
    assert [list(fact.offsets) for fact in observed.told.of(EventsPublished)] == [offsets]
    assert [list(fact.events) for fact in observed.told.of(EventsRead)] == [events]


async def test_a_worker_tells_what_its_handlers_ended_with(observed: Observed) -> None:
    def handler(value: int) -> object:
        if value == 2:
            raise ValueError("no")
        return Fail("never") if value == 3 else None

    async with observed.opened() as store:
        await store.queue("mail").enqueue_batch([1, 2, 3])
        await Worker(store, {"mail": handler}).run_until_idle()

    found = {fact.job.payload: fact.error for fact in observed.told.of(JobHandled)}
    assert found[1] is None
    assert isinstance(found[2], ValueError)
    assert isinstance(found[3], Fail)
    assert {payload: outcome for payload, outcome, _ in outcomes(observed)} == {
        1: "done",
        2: "retried",
        3: "dead",
    }


async def test_a_handler_is_told_of_once_however_it_is_run(observed: Observed) -> None:
    async def failing(handle: JobHandle) -> None:
        raise ValueError

    async def nested(handle: JobHandle) -> None:
        async with handle:
            raise KeyError

    async with observed.opened() as store:
        queue, outbox = store.queue("mail", base_delay=0), store.outbox("hook")
        await queue.enqueue(1)
        await outbox.enqueue(1, base_delay=0)
        for handler in (failing, nested):
            assert await queue.run_once(handler)
            assert await outbox.run_once(handler)
        await Worker(store, {"mail": nested}).run_until_idle()

    ended = [type(fact.error) for fact in observed.told.of(JobHandled)]
    assert ended == [ValueError, ValueError, KeyError, KeyError, KeyError]


async def test_an_observer_that_raises_is_logged_once_and_breaks_nothing(
    observed: Observed, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(fact: Fact) -> None:
        raise RuntimeError("no room")

    async with observed.opened(broken) as store:
        async with store.begin_tx() as tx:
            await tx.enqueue("mail", 1)
        (handle,) = await store.queue("mail").claim_batch(1)
        async with handle:
            pass

        assert (await store.queue("mail").stats()).processing == 0
    assert outcomes(observed) == [(1, "done", 0.0)]
    told = [record for record in caplog.records if record.name == "alkstore.observing"]
    assert [(record.levelno, record.exc_info is not None) for record in told] == [(logging.ERROR, True)]


class Clumsy:
    """A carrier that fails in one of its methods."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.left: list[str] = []

    def __call__(self, fact: Fact) -> None:
        pass

    def fail(self, where: str) -> None:
        if where == self.where:
            raise RuntimeError(where)

    def sent(self, ids: object) -> None:
        self.fail("sent")

    @contextmanager
    def sending(self, destination: Destination, count: int) -> Iterator[dict[str, str]]:
        self.fail("before sending")
        yield {"x-own": "1"}
        self.left.append("sending")
        self.fail("after sending")

    @contextmanager
    def handling(self, job: Job) -> Iterator[None]:
        self.fail("before handling")
        yield
        self.left.append("handling")
        self.fail("after handling")


@pytest.mark.parametrize(
    "where", ["before sending", "sent", "after sending", "before handling", "after handling"]
)
async def test_a_carrier_that_raises_is_logged_once_and_breaks_nothing(
    observed: Observed, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    clumsy = Clumsy(where)
    async with observed.opened(clumsy) as store:
        for _ in range(2):
            await store.queue("mail").enqueue(1)
        counts = await Worker(store, {"mail": lambda: None}).run_until_idle()

    assert counts.done == 2
    assert clumsy.left.count("sending") == (0 if where == "before sending" else 2)
    assert clumsy.left.count("handling") == (0 if where == "before handling" else 2)
    assert [record.name for record in caplog.records].count("alkstore.observing") == 1


async def test_carriers_are_left_with_the_error_of_what_they_are_around(observed: Observed) -> None:
    seen: list[BaseException] = []

    class Curious(Clumsy):
        @contextmanager
        def handling(self, job: Job) -> Iterator[None]:
            try:
                yield
            except ValueError as error:
                seen.append(error)  # swallowed here, and nowhere else

    async def handler(value: int) -> None:
        raise ValueError("no")

    async with observed.opened(Curious("nowhere")) as store:
        await store.queue("mail").enqueue(1)
        counts = await Worker(store, {"mail": handler}).run_until_idle()

    assert counts.retried == 1
    assert [str(error) for error in seen] == ["no"]


async def test_calls_awaited_together_are_told_one_by_one_and_as_the_batch_that_was_written(
    tmp_path: Path,
) -> None:
    observed = Observed(f"sqlite:///{tmp_path}/app.db")
    async with observed.opened() as store:
        queue = store.queue("mail")
        await asyncio.gather(*(queue.enqueue(number) for number in range(64)))

    sizes = [fact.size for fact in observed.told.of(BatchWritten) if fact.kind == "enqueue"]
    assert len(observed.told.of(JobsEnqueued)) == sum(sizes) == 64
    assert len(sizes) < 64


async def test_nobody_is_asked_anything_where_there_are_no_observers(observed: Observed) -> None:
    async with alkstore.open(observed.url) as store:
        assert store._observation is None
        assert not hasattr(store._engine, "_observation")


async def test_an_engines_own_constructor_takes_observers_too(tmp_path: Path) -> None:
    for make in (MemStore, partial(SqliteStore, tmp_path / "app.db")):
        told = Notebook()
        async with make(observers=[told]) as store:
            await store.queue("mail").enqueue(1)

        assert told.kinds() == [JobsEnqueued]


@pytest.mark.parametrize("observers", [7, "print", [7], None])
async def test_what_cannot_be_called_is_no_observer(observers: Any) -> None:
    with pytest.raises(InvalidArgument, match="observer"):
        _ = alkstore.open("mem://", observers=observers)


async def test_a_cancellation_that_an_observer_raises_is_its_own_error_and_the_claim_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def cancelled(fact: Fact) -> None:
        raise asyncio.CancelledError

    async with alkstore.open("mem://", observers=[cancelled]) as store:
        await store.queue("mail").enqueue(1)
        async with asyncio.timeout(HUNG):
            (handle,) = await store.queue("mail").claim_batch(1)
        async with handle:
            pass

        assert await store.queue("mail").list() == []
    assert caplog.text.count("what it observed is unharmed") == 1
