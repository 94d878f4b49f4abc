"""The PostgreSQL engine: everything in one schema of a database, which any number of processes and hosts may use.

State model. One connection writes what is merged into flushes, one claims, a pool serves everything else, and one more
listens for what other processes commit (`listener.py`). Each area says in statements what a change means; this module
only says which of them runs where, and who is woken.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from alkstore.clock import ServerClock
from alkstore.engine import (
    Claimed,
    EngineTransaction,
    EventRecord,
    Fired,
    JobCounts,
    JobFilter,
    JobRecord,
    LockRecord,
    Names,
    NewEvent,
    NewJob,
    NewSchedule,
    NewWake,
    Release,
    ScheduleRecord,
    Settle,
    Taken,
    Topic,
    Traits,
    Watch,
)
from alkstore.errors import Closed
from alkstore_pg import lock as _lock
from alkstore_pg import queue as _queue
from alkstore_pg import schedule as _schedule
from alkstore_pg import stream as _stream
from alkstore_pg import wake as _wake
from alkstore_pg.join import JoinedTransaction
from alkstore_pg.link import Guest, Link, Traffic
from alkstore_pg.mark import Marks
from alkstore_pg.place import Places, look
from alkstore_pg.pool import Pool
from alkstore_pg.session import Row, Session, milliseconds
from alkstore_pg.stream import StreamKey, StreamKeys
from alkstore_pg.surroundings import Options, prepare
from alkstore_pg.transaction import PgTransaction
from alkstore_pg.wake import Wakes, Woken

__all__ = ["NOTIFY_LIMIT", "PgEngine"]

T = TypeVar("T")

NOTIFY_LIMIT: Final = 7_000
"""Bytes of a notify payload: PostgreSQL takes 7,999 in all, and the longest channel must fit too (PAY-06)."""

TRAITS: Final = Traits(
    batches=True,
    begins_whole=True,
    reads_apart=True,
    notify_limit=NOTIFY_LIMIT,
    outside_tx=True,
    durable=True,
)


class PgEngine:
    """`alkstore.engine.Engine` on one schema. Make it by `open`."""

    def __init__(
        self, options: Options, writer: Link, pool: Pool, clock: ServerClock, traffic: Traffic, place: Row
    ) -> None:
        self.traffic: Final = traffic
        self.clock: Final = clock
        self._options = options
        self._pool = pool
        self._writer, self._claimer = writer, _link(options, traffic)
        self._claims = Guest(self._writer, self._claimer)
        self._reads = Guest(self._writer, pool)
        self.wakes: Final = Wakes(options, clock, self._writer)
        self.places: Final = Places(options, place, pool)
        self._marks = Marks()
        # Not the pool, whose every connection may be lent to a transaction that waits for just this.
        self._streams = StreamKeys(self._claims)
        self._patience = milliseconds(options.wait_timeout)
        self._begun = 0
        self._is_closed = False

    @classmethod
    async def open(cls, options: Options, clock: ServerClock) -> "PgEngine":
        """Connect, look whether server and schema will do, and bring the schema up to date.

        Raises:
            InvalidArgument: The database or the role's settings cannot work, and why.
            DatabaseError: The server, or the role's privileges, will not do, and why.
            SchemaMismatch: The schema was written by a newer version.
        """
        traffic = Traffic()
        writer = _link(options, traffic)
        pool = Pool(
            options.dial,
            options.schema,
            size=options.pool_size,
            wait_timeout=options.wait_timeout,
            traffic=traffic,
        )
        try:
            await prepare(writer, pool, options, clock)
            place = await writer.run(lambda on: look(on, options.schema.name), reads=True)
        except BaseException:
            await writer.close()
            await pool.close()
            raise
        return cls(options, writer, pool, clock, traffic, place)

    @property
    def traits(self) -> Traits:
        return TRAITS

    async def _write(
        self, operation: Callable[[Session, Sequence[str]], Awaitable[T]], woken: Sequence[Woken]
    ) -> T:
        """Run a rare operation that commits by itself and tells other processes in the same statement whom it concerns."""
        # Not debounced: some find nothing to do and so tell nothing.
        with self.wakes.telling(woken, debounced=False) as texts:
            return await self._pool.run(lambda on: operation(on, texts))

    # ------------------------------------------------------------ jobs

    async def insert_jobs(self, jobs: Sequence[NewJob]) -> Sequence[int]:
        woken = _queue.woken_by_jobs(jobs, self.clock.now)
        try:
            with self.wakes.telling(woken, debounced=True, is_single=len(jobs) == 1) as texts:
                return await self._writer.run(lambda on: _queue.insert(on, jobs, texts))
        finally:  # not before: a claim that came between would be the last full one for a while
            if self._marks:
                self._marks.stir(job.queue for job in jobs if job.run_at is not None)

    async def find_jobs(self, queue: str, where: JobFilter) -> Sequence[JobRecord]:
        # A page of what is looked for by its text may take its time.
        place = self._pool if where.ids is None else self._reads
        return await place.run(lambda on: _queue.find(on, queue, where), reads=True)

    async def count_jobs(self, queue: str) -> JobCounts:
        return await self._pool.run(lambda on: _queue.count(on, queue), reads=True)

    async def claim_jobs(self, queue: str, worker_ids: Sequence[str]) -> Claimed:
        self.wakes.claim_begins(queue)
        claimed = None
        try:
            while claimed is None:  # in portions: what a claim has to put in its place may be a million rows
                plan = self._marks.plan(queue)
                take = partial(_queue.claim, queue=queue, worker_ids=worker_ids, plan=plan)
                answer = await self._claims.run(take)
                self.clock.heard(answer.now, answer.sent, answer.received)
                self._marks.learn(queue, plan, answer)
                claimed = answer.claimed
            return claimed
        finally:
            is_short = claimed is not None and len(claimed.jobs) < len(worker_ids)
            self.wakes.claim_ended(queue, claimed.next_at if claimed else None, is_short)

    async def settle_jobs(self, settles: Sequence[Settle]) -> Sequence[int | None]:
        woken = _queue.woken_by_settles(settles, self.clock.now)
        try:
            with self.wakes.telling(woken, debounced=True) as texts:
                return await self._writer.run(lambda on: self._settle(on, settles, texts, bool(woken)))
        finally:
            if self._marks:
                self._marks.stir(each.queue for each in settles if isinstance(each, Release))

    def _settle(
        self, on: Session, settles: Sequence[Settle], texts: Sequence[str], is_timed: bool
    ) -> Awaitable[Sequence[int | None]]:
        settled = _queue.settle(on, settles, texts, self._patience)
        # A heartbeat, which tells the server's time, wakes somebody.
        return self.clock.learn(settled, partial(_queue.settled_at, settles)) if is_timed else settled

    async def sweep_jobs(self, queue: str) -> int:
        return await _queue.sweep(self._pool.run, queue)

    async def purge_jobs(self, queue: str, older_than: int) -> int:
        return await self._pool.run(lambda on: _queue.purge(on, queue, older_than))

    # ------------------------------------------------------------ streams

    async def append_events(self, events: Sequence[NewEvent]) -> Sequence[int]:
        names = _stream.names_in(events)

        async def append(keys: Mapping[str, StreamKey]) -> Sequence[int]:
            woken, is_single = _stream.woken_by(names), len(events) == 1
            with self.wakes.telling(woken, debounced=True, is_single=is_single) as texts:
                return await self._writer.run(
                    lambda on: _stream.append(on, events, keys, texts, self._patience)
                )

        return await self._streams.making(names, append)

    async def read_events(self, stream: str, after: int, limit: int) -> Sequence[EventRecord]:
        async def read(key: StreamKey) -> Sequence[EventRecord]:
            page = await self._reads.run(lambda on: _stream.read(on, stream, key, after, limit), reads=True)
            if page.is_held_back:
                self.wakes.look_again(stream)
            return page.events

        return await self._streams.using(stream, read, ())

    async def read_head(self, stream: str) -> int:
        return await self._streams.using(
            stream, lambda key: self._reads.run(lambda on: _stream.head(on, key), reads=True), 0
        )

    async def trim_events(self, stream: str, horizon: int) -> int:
        return await self._streams.using(
            stream, lambda key: self._pool.run(lambda on: _stream.trim(on, key, horizon)), 0
        )

    async def read_offsets(self, stream: str, consumer: str | None = None) -> Mapping[str, int]:
        async def read(key: StreamKey) -> Mapping[str, int]:
            return await self._reads.run(lambda on: _stream.offsets(on, key, consumer), reads=True)

        return await self._streams.using(stream, read, {})

    async def move_offset(self, stream: str, consumer: str, offset: int, *, backwards: bool) -> bool:
        async def move(keys: Mapping[str, StreamKey]) -> bool:
            key, patience = keys[stream], self._patience
            return await self._pool.run(
                lambda on: _stream.move(on, key, consumer, offset, patience, backwards=backwards)
            )

        return await self._streams.making({stream}, move)

    # ------------------------------------------------------------ wakes

    def report_listener(self, report: Callable[[str | None], object]) -> None:
        self.wakes.report_listener = report

    async def notify(self, wakes: Sequence[NewWake]) -> None:
        await self._writer.run(lambda on: _wake.notify(on, wakes))

    async def watch(self, topic: Topic) -> Watch:
        return await self.wakes.watch(topic)

    # ------------------------------------------------------------ locks

    async def take_lock(self, name: str, ttl: int) -> Taken:
        take = partial(_lock.take, name=name, ttl=ttl, patience=self._patience)
        begun = partial(_lock.taken_at, ttl=ttl)
        return await self._pool.run(lambda on: self.clock.learn(take(on), begun))

    async def renew_lock(self, name: str, fence: int, ttl: int) -> int | None:
        renew = partial(_lock.renew, name=name, fence=fence, ttl=ttl, patience=self._patience)
        learn, begun = self.clock.learn, partial(_lock.renewed_at, ttl=ttl)
        return await self._write(lambda on, texts: learn(renew(on, texts=texts), begun), _lock.woken_by(name))

    async def list_locks(self) -> Sequence[LockRecord]:
        return await self._reads.run(_lock.held, reads=True)

    # ------------------------------------------------------------ schedules

    async def put_schedule(self, rule: NewSchedule) -> ScheduleRecord:
        return await self._write(
            lambda on, texts: _schedule.put(on, rule, texts, self._patience), _schedule.CHANGED
        )

    async def delete_schedule(self, name: str) -> bool:
        return await self._write(
            lambda on, texts: _schedule.delete(on, name, texts, self._patience), _schedule.CHANGED
        )

    async def fire_schedules(self, lease: tuple[str, int] | None) -> Fired:
        return await _schedule.fire(lease, self._pool, self._write, self._patience)

    async def list_schedules(self) -> Sequence[ScheduleRecord]:
        return await self._reads.run(_schedule.all, reads=True)

    # ------------------------------------------------------------ transactions and life

    async def begin(self, connection: object | None = None, begun: str = "") -> EngineTransaction:
        if self._is_closed:
            raise Closed("store")
        self._begun += 1
        label = f"open transaction {self._begun}" + (f", begun at {begun}" if begun else "")
        if connection is not None:
            return await JoinedTransaction.begin(connection, self, label)
        return await PgTransaction.begin(self, label)

    async def list_names(self) -> Names:
        return await self._reads.run(_names, reads=True)

    async def aclose(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            await self.wakes.aclose()
        finally:
            await asyncio.gather(self._writer.close(), self._claimer.close(), self._pool.close())


def _link(options: Options, traffic: Traffic) -> Link:
    return Link(options.dial, options.schema, wait_timeout=options.wait_timeout, traffic=traffic)


async def _names(on: Session) -> Names:
    return Names(await _queue.names(on), await _stream.names(on))
