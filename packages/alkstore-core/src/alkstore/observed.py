"""An engine under observation: it does what the engine does, and tells of it.

A store without observers has its engine bare; with them it has three of these around it. `ObservedEngine` is next to the
engine: it sees claims, sweeps, fires, reads, and what the batcher has made of many calls. `ObservedWriter` is above the
batcher: each call is still its caller's, in his context, so what he carries gets into the headers here. And
`ObservedTransaction` keeps what there is to tell until the commit.

A joined transaction has its commit past us, so a claim that was acked in one is neither ended nor known to go on. The next
settle that the engine answers decides: if it lands, that transaction was rolled back, and the claim is told of as any other.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeVar
from weakref import WeakValueDictionary

from alkstore import carrying
from alkstore.engine import (
    Ack,
    Cancel,
    Claimed,
    Engine,
    EngineTransaction,
    EventRecord,
    Fired,
    JobFilter,
    JobRecord,
    ListenerReporting,
    NewEvent,
    NewJob,
    NewWake,
    OffsetSave,
    Redrive,
    Settle,
    Traits,
)
from alkstore.holding import Claims
from alkstore.observation import Observation
from alkstore.observing import (
    BatchWritten,
    Destination,
    EventsPublished,
    EventsRead,
    Fact,
    JobsClaimed,
    JobsEnqueued,
    JobsExpired,
    ListenerChanged,
    SchedulesFired,
)
from alkstore.values import Job, stream_events

__all__ = ["ObservedEngine", "ObservedTransaction", "ObservedWriter", "Writer", "report_listener"]

T = TypeVar("T")

_clock: Final = time.perf_counter


class Writer(Protocol):
    """What takes the writes that are merged: the batcher, or an engine that needs none."""

    def insert_jobs(self, jobs: Sequence[NewJob], /) -> Awaitable[Sequence[int]]: ...

    def settle_jobs(self, settles: Sequence[Settle], /) -> Awaitable[Sequence[int | None]]: ...

    def append_events(self, events: Sequence[NewEvent], /) -> Awaitable[Sequence[int]]: ...

    def notify(self, wakes: Sequence[NewWake], /) -> Awaitable[object]: ...


# ---------------------------------------------------------------- the engine


class ObservedEngine:
    """`alkstore.engine.Engine`, told of. What is of no interest to observers is the engine's own method."""

    def __init__(self, engine: Engine, observation: Observation, claims: Claims) -> None:
        self._engine = engine
        self._observation = observation
        self._claims = claims
        self._riding = _Riding(claims)
        self._batches = engine.traits.batches
        self.find_jobs: Final = engine.find_jobs
        self.count_jobs: Final = engine.count_jobs
        self.purge_jobs: Final = engine.purge_jobs
        self.read_head: Final = engine.read_head
        self.trim_events: Final = engine.trim_events
        self.read_offsets: Final = engine.read_offsets
        self.move_offset: Final = engine.move_offset
        self.notify: Final = engine.notify
        self.watch: Final = engine.watch
        self.take_lock: Final = engine.take_lock
        self.renew_lock: Final = engine.renew_lock
        self.list_locks: Final = engine.list_locks
        self.put_schedule: Final = engine.put_schedule
        self.delete_schedule: Final = engine.delete_schedule
        self.list_schedules: Final = engine.list_schedules
        self.list_names: Final = engine.list_names
        self.aclose: Final = engine.aclose

    @property
    def traits(self) -> Traits:
        return self._engine.traits

    async def insert_jobs(self, jobs: Sequence[NewJob]) -> Sequence[int]:
        return await self._written("enqueue", len(jobs), self._engine.insert_jobs(jobs))

    async def settle_jobs(self, settles: Sequence[Settle]) -> Sequence[int | None]:
        instants = await self._written("settle", len(settles), self._engine.settle_jobs(settles))
        self._riding.decide(settles, instants)
        return instants

    async def append_events(self, events: Sequence[NewEvent]) -> Sequence[int]:
        return await self._written("publish", len(events), self._engine.append_events(events))

    async def claim_jobs(self, queue: str, worker_ids: Sequence[str]) -> Claimed:
        began = _clock()
        claimed = await self._engine.claim_jobs(queue, worker_ids)
        if claimed.jobs:
            self._tell_claimed(queue, len(worker_ids), claimed, _clock() - began)
        return claimed

    async def sweep_jobs(self, queue: str) -> int:
        count = await self._engine.sweep_jobs(queue)
        if count:
            self._observation.tell(JobsExpired(destination=Destination.of_queue(queue), count=count))
        return count

    async def read_events(self, stream: str, after: int, limit: int) -> Sequence[EventRecord]:
        began = _clock()
        records = await self._engine.read_events(stream, after, limit)
        if records:
            self._observation.tell(_read(stream, records, _clock() - began))
        return records

    async def fire_schedules(self, lease: tuple[str, int] | None) -> Fired:
        began = _clock()
        fired = await self._engine.fire_schedules(lease)
        if fired.jobs:
            self._observation.tell(SchedulesFired(jobs=fired.jobs, seconds=_clock() - began))
        return fired

    async def begin(self, connection: object | None = None, begun: str = "") -> EngineTransaction:
        inner = await self._engine.begin(connection, begun)
        is_joined = connection is not None
        return ObservedTransaction(inner, self._observation, self._claims, self._riding, joined=is_joined)

    async def _written(self, kind: str, size: int, writing: Awaitable[T]) -> T:
        if not self._batches:
            return await writing
        began = _clock()
        result = await writing
        self._observation.tell(BatchWritten(kind=kind, size=size, seconds=_clock() - began))
        return result

    def _tell_claimed(self, queue: str, wanted: int, claimed: Claimed, seconds: float) -> None:
        jobs, is_exact = claimed.jobs, self.traits.tells_reclaims
        for lost in self._claims.begin(jobs):
            self._observation.tell(lost)
        self._observation.tell(
            JobsClaimed(
                destination=Destination.of_queue(queue),
                jobs=tuple(map(Job, jobs)),
                wanted=wanted,
                waited=tuple(map(_waited, jobs)),
                reclaimed=claimed.reclaimed if is_exact else sum(map(_seems_reclaimed, jobs)),
                reclaimed_exactly=is_exact,
                seconds=seconds,
            )
        )


def _waited(job: JobRecord) -> float:
    # The claim's instant, unless it was too far in the future for the deadline to be after it.
    return max((job.deadline or job.run_at) - job.visibility_timeout - job.run_at, 0) / 1_000_000


def _seems_reclaimed(job: JobRecord) -> bool:
    return job.attempts > 1 and job.retry_error is None


def _read(stream: str, records: Sequence[EventRecord], seconds: float) -> EventsRead:
    events = tuple(stream_events(records))
    return EventsRead(destination=Destination("stream", stream), events=events, seconds=seconds)


def report_listener(engine: Engine, observation: Observation) -> None:
    """Tell of an engine's listener from now on, if it has one."""
    if isinstance(engine, ListenerReporting):
        engine.report_listener(
            lambda reason: observation.tell(ListenerChanged(is_connected=reason is None, reason=reason))
        )


# ---------------------------------------------------------------- calls


class ObservedWriter:
    """The calls that are merged, each told of as the call that it was."""

    def __init__(self, inner: Writer, observation: Observation, claims: Claims) -> None:
        self._inner = inner
        self._observation = observation
        self._claims = claims
        self.notify: Final = inner.notify

    async def insert_jobs(self, jobs: Sequence[NewJob]) -> Sequence[int]:
        ids, fact = await _insert(self._observation, self._inner.insert_jobs, jobs)
        self._observation.tell(fact)
        return ids

    async def append_events(self, events: Sequence[NewEvent]) -> Sequence[int]:
        offsets, fact = await _append(self._observation, self._inner.append_events, events)
        self._observation.tell(fact)
        return offsets

    async def settle_jobs(self, settles: Sequence[Settle]) -> Sequence[int | None]:
        began = _clock()
        instants = await self._inner.settle_jobs(settles)
        seconds = _clock() - began
        for settle, at in zip(settles, instants, strict=True):
            fact = self._claims.settle(settle, at, seconds)
            if fact is not None:
                self._observation.tell(fact)
        return instants


async def _insert(
    observation: Observation,
    insert: Callable[[Sequence[NewJob]], Awaitable[Sequence[int]]],
    jobs: Sequence[NewJob],
) -> tuple[Sequence[int], JobsEnqueued]:
    destination = Destination.of_queue(jobs[0].queue)  # one call is for one queue
    began = _clock()
    with observation.sending(destination, len(jobs)) as around:
        ids = await insert(carrying.jobs(jobs, around.headers) if around.headers else jobs)
        around.sent(ids)
    return ids, JobsEnqueued(destination=destination, ids=ids, seconds=_clock() - began)


async def _append(
    observation: Observation,
    append: Callable[[Sequence[NewEvent]], Awaitable[Sequence[int]]],
    events: Sequence[NewEvent],
) -> tuple[Sequence[int], EventsPublished]:
    destination = Destination("stream", events[0].stream)
    began = _clock()
    with observation.sending(destination, len(events)) as around:
        offsets = await append(carrying.events(events, around.headers) if around.headers else events)
        around.sent(offsets)
    return offsets, EventsPublished(destination=destination, offsets=offsets, seconds=_clock() - began)


# ---------------------------------------------------------------- transactions


class ObservedTransaction:
    """`alkstore.engine.EngineTransaction`, told of at its commit.

    Of a joined one nothing is told: its commit is the caller's, past us, and might be a rollback.
    """

    def __init__(
        self,
        inner: EngineTransaction,
        observation: Observation,
        claims: Claims,
        riding: "_Riding",
        *,
        joined: bool,
    ) -> None:
        self._inner = inner
        self._observation = observation
        self._claims = claims
        self._riding = riding
        self._is_joined = joined
        self._facts: list[Fact] = []
        self._held: list[JobRecord] = []
        self.ridden: Final[dict[int, JobRecord]] = {}

    @property
    def is_open(self) -> bool:
        return self._inner.is_open

    @property
    def connection(self) -> object:
        return self._inner.connection

    async def insert_jobs(self, jobs: Sequence[NewJob]) -> Sequence[int]:
        ids, fact = await _insert(self._observation, self._inner.insert_jobs, jobs)
        self._facts.append(fact)
        return ids

    async def find_jobs(self, queue: str, where: JobFilter) -> Sequence[JobRecord]:
        return await self._inner.find_jobs(queue, where)

    async def settle_jobs(self, settles: Sequence[Ack]) -> Sequence[int | None]:
        began = _clock()
        instants = await self._inner.settle_jobs(settles)
        seconds = _clock() - began
        self._riding.decide(settles, instants)
        for settle, at in zip(settles, instants, strict=True):
            record = self._claims.find(settle.token)
            fact = self._claims.settle(settle, at, seconds)
            if fact is None or record is None:
                continue
            if at is None:  # lost, whatever becomes of the transaction
                self._observation.tell(fact)
            elif self._is_joined:
                self._riding.add(record, self)
            else:
                self._held.append(record)
                self._facts.append(fact)
        return instants

    async def append_events(self, events: Sequence[NewEvent]) -> Sequence[int]:
        offsets, fact = await _append(self._observation, self._inner.append_events, events)
        self._facts.append(fact)
        return offsets

    async def read_events(self, stream: str, after: int, limit: int) -> Sequence[EventRecord]:
        began = _clock()
        records = await self._inner.read_events(stream, after, limit)
        if records:
            self._observation.tell(_read(stream, records, _clock() - began))
        return records

    async def read_offset(self, stream: str, consumer: str, *, hold: bool) -> int:
        return await self._inner.read_offset(stream, consumer, hold=hold)

    async def save_offset(self, stream: str, consumer: str, offset: int, expected: int | None) -> OffsetSave:
        return await self._inner.save_offset(stream, consumer, offset, expected)

    async def notify(self, wakes: Sequence[NewWake]) -> None:
        await self._inner.notify(wakes)

    async def commit(self) -> None:
        try:
            await self._inner.commit()
        except BaseException:
            self._forget()
            raise
        facts, self._facts, self._held = self._facts, [], []
        for fact in facts:
            self._observation.tell(fact)

    async def rollback(self) -> None:
        self._forget()
        await self._inner.rollback()

    def abandon(self) -> None:
        self._forget()
        self._inner.abandon()

    def _forget(self) -> None:
        held, self._held = self._held, []
        self._claims.take_back(held)


class _Riding:
    """The claims that were acked in joined transactions, until it is known what became of each.

    Each is its transaction's to keep, and that its handle's: what no handle can settle any more is forgotten.
    """

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._by_token: WeakValueDictionary[int, ObservedTransaction] = WeakValueDictionary()

    def add(self, record: JobRecord, tx: ObservedTransaction) -> None:
        """Take in a claim that was acked."""
        token = record.token or 0
        tx.ridden[token] = record
        self._by_token[token] = tx

    def decide(self, settles: Sequence[Settle], instants: Sequence[int | None]) -> None:
        """Hear what the engine says of claims: what has landed for one whose transaction is over tells that it goes on.

        Where nothing has landed, the ack did, or the claim has lapsed; the engine cannot say which, so nothing is told.
        """
        if not self._by_token:
            return
        for settle, at in zip(settles, instants, strict=True):
            if isinstance(settle, (Cancel, Redrive)):
                continue
            tx = self._by_token.get(settle.token)
            if tx is None or tx.is_open:
                continue
            del self._by_token[settle.token]
            record = tx.ridden.pop(settle.token)
            if at is not None:
                self._claims.take_back((record,))
