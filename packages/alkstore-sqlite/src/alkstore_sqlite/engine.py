"""The SQLite engine: everything in one file, which many processes may have open.

State model. One connection writes, in the order of its line (`writer.py`); a few others read; a thread watches for what
other processes commit (`watcher.py`). Each area says in statements what a change means; this module says which runs where.
"""

import asyncio
import logging
import os
import random
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from alkstore import Store
from alkstore.beginning import TxContext, where_called
from alkstore.clock import Clock, chosen
from alkstore.engine import (
    Claimed,
    Engine,
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
from alkstore.errors import AlkstoreError, Closed, InvalidArgument
from alkstore.hookspecs import EngineRegistration, hookimpl
from alkstore.migrations import Migration
from alkstore.observing import Observer
from alkstore.stamps import Duration
from alkstore_sqlite import examining, schema
from alkstore_sqlite import lock as _lock
from alkstore_sqlite import queue as _queue
from alkstore_sqlite import schedule as _schedule
from alkstore_sqlite import stream as _stream
from alkstore_sqlite import wake as _wake
from alkstore_sqlite.connection import Single, Steps, Wait
from alkstore_sqlite.hop import Work
from alkstore_sqlite.link import Link
from alkstore_sqlite.native import SqliteTx
from alkstore_sqlite.opening import open_writer
from alkstore_sqlite.plain import begin_joined
from alkstore_sqlite.reader import Readers, open_reader
from alkstore_sqlite.surroundings import (
    Durability,
    check_durability,
    check_path,
    check_place,
    check_version,
    path_of_url,
)
from alkstore_sqlite.transaction import SqliteTransaction
from alkstore_sqlite.wake import Wakes
from alkstore_sqlite.writer import Writer

__all__ = ["OMITTED", "SqliteEngine", "SqliteStore", "alkstore_engine"]

T = TypeVar("T")

LOGGER: Final = logging.getLogger("alkstore")

Answer: TypeAlias = Coroutine[Any, Any, T]
"""What the hottest methods give: the writer's own coroutine, spared another one around it."""

TRAITS: Final = Traits(batches=True, gives_back=True, outside_tx=False, durable=True, tells_reclaims=True)

_NO_SERVER: Final = "there is no server and no connection that could be lost"
_NO_CLUSTER: Final = "a file is copied whole; there is no other server to restore it into"

OMITTED: Final[Mapping[str, str]] = {
    "WAKE-10": "there is no polling-only mode: the watcher needs nothing but the file",
    "STR-13": _NO_SERVER,
    "STR-16": _NO_CLUSTER,
    "TX-09": "one writer at a time: an open transaction holds back every write (TX-08)",
    "DUR-09": "there is no server's clock: now is the clock of each process",
    "DUR-10": "a file has no schemas and one encoding",
}
"""Contract rows that cannot be expressed here, and why."""


class SqliteEngine:
    """`alkstore.engine.Engine` on one file. Make it by `open`."""

    def __init__(
        self, link: Link, path: str, clock: Clock, *, wait_timeout: float, durability: Durability
    ) -> None:
        self._clock = clock
        place = link.place
        self._wakes = Wakes(place, clock, self._read_channel)
        self._readers = Readers(partial(open_reader, place), wait_timeout=wait_timeout)
        self._writer = Writer(
            link,
            reopen=partial(open_writer, path, clock, durability, place),
            clock=clock,
            wait_timeout=wait_timeout,
            landed=self._wakes.landed,
        )
        self._begun = 0
        self._is_closed = False

    @classmethod
    async def open(
        cls, path: str, clock: Clock, *, wait_timeout: float, durability: Durability
    ) -> "SqliteEngine":
        """Open a file, made if it is not there, and bring its tables up to date.

        Raises:
            DatabaseError: The file, or what is around it, will not do, and why.
            SchemaMismatch: It was written by a newer version.
        """
        check_version()
        check_place(path)
        link = await open_writer(path, clock, durability, None, Wait(wait_timeout))
        return cls(link, path, clock, wait_timeout=wait_timeout, durability=durability)

    @property
    def traits(self) -> Traits:
        return TRAITS

    # ------------------------------------------------------------ jobs

    def insert_jobs(self, jobs: Sequence[NewJob]) -> Answer[Sequence[int]]:
        operation = _queue.inserting(jobs)
        return self._writer.do(Work(operation, is_single=isinstance(operation, Single)))

    async def find_jobs(self, queue: str, where: JobFilter) -> Sequence[JobRecord]:
        return await self._readers.run(lambda: _queue.find(queue, where))

    async def count_jobs(self, queue: str) -> JobCounts:
        return await self._readers.run(lambda: _queue.count(queue, self._clock.now()))

    async def claim_jobs(self, queue: str, worker_ids: Sequence[str]) -> Claimed:
        wakes = self._wakes
        if not wakes.board.is_empty:
            wakes.claim_begins(queue)
        claimed, began = None, None
        try:
            while claimed is None:  # in portions: what a claim has to put in its place may be a million rows
                work = Work(partial(_queue.claim, queue, worker_ids), self._give_back)
                claimed = await self._writer.do(work)
                began = work.began
            return claimed
        finally:
            if not wakes.board.is_empty:
                is_short = claimed is not None and len(claimed.jobs) < len(worker_ids)
                wakes.claim_ended(queue, began, claimed.next_at if claimed else None, is_short)

    def _give_back(self, claimed: Claimed | None) -> None:
        if claimed is not None and claimed.jobs:
            self._writer.start(self._release(claimed.jobs))

    async def _release(self, jobs: Sequence[JobRecord]) -> None:
        try:
            await self.settle_jobs([Release(job.queue, job.id, job.token or 0) for job in jobs])
        except AlkstoreError as error:
            LOGGER.warning("could not give back %d claimed jobs, they lapse: %s", len(jobs), error)

    def settle_jobs(self, settles: Sequence[Settle]) -> Answer[Sequence[int | None]]:
        return self._writer.do(Work(_queue.settling(settles), is_single=len(settles) == 1))

    async def sweep_jobs(self, queue: str) -> int:
        return await self._writer.run(partial(_queue.sweep, queue))

    async def purge_jobs(self, queue: str, older_than: int) -> int:
        return await self._writer.run(partial(_queue.purge, queue, older_than), is_single=True)

    # ------------------------------------------------------------ streams

    def append_events(self, events: Sequence[NewEvent]) -> Answer[Sequence[int]]:
        return self._writer.run(partial(_stream.append, events))

    async def read_events(self, stream: str, after: int, limit: int) -> Sequence[EventRecord]:
        return await self._readers.run(lambda: _stream.read(stream, after, limit), is_single=True)

    async def read_head(self, stream: str) -> int:
        return await self._readers.run(lambda: _stream.head(stream))

    async def trim_events(self, stream: str, horizon: int) -> int:
        return await self._writer.run(lambda _: _stream.trim(stream, horizon), is_single=True)

    async def read_offsets(self, stream: str, consumer: str | None = None) -> Mapping[str, int]:
        return await self._readers.run(lambda: _stream.offsets(stream, consumer))

    async def move_offset(self, stream: str, consumer: str, offset: int, *, backwards: bool) -> bool:
        return await self._writer.run(lambda _: _stream.move(stream, consumer, offset, backwards=backwards))

    # ------------------------------------------------------------ wakes

    async def notify(self, wakes: Sequence[NewWake]) -> None:
        await self._writer.run(partial(_wake.notify, wakes))

    async def watch(self, topic: Topic) -> Watch:
        return await self._wakes.watch(topic)

    async def _read_channel(self, channel: str) -> int:
        return await self._readers.run(lambda: _wake.read_channel(channel))

    # ------------------------------------------------------------ locks

    def take_lock(self, name: str, ttl: int) -> Answer[Taken]:
        def free(taken: Taken) -> None:
            self._writer.start(self.renew_lock(name, taken.fence or 0, 0))  # no lease has fence 0

        return self._writer.do(Work(partial(_lock.take, name, ttl), free))

    def renew_lock(self, name: str, fence: int, ttl: int) -> Answer[int | None]:
        return self._writer.run(_lock.renewing(name, fence, ttl), is_single=True)

    async def list_locks(self) -> Sequence[LockRecord]:
        return await self._readers.run(lambda: _lock.held(self._clock.now()))

    # ------------------------------------------------------------ schedules

    async def put_schedule(self, rule: NewSchedule) -> ScheduleRecord:
        return await self._writer.run(partial(_schedule.put, rule))

    async def delete_schedule(self, name: str) -> bool:
        return await self._writer.run(lambda _: _schedule.delete(name))

    async def fire_schedules(self, lease: tuple[str, int] | None) -> Fired:
        return await self._writer.run(partial(_schedule.fire, lease))

    async def list_schedules(self) -> Sequence[ScheduleRecord]:
        return await self._readers.run(_schedule.all)

    # ------------------------------------------------------------ transactions and life

    async def begin(self, connection: object | None = None, begun: str = "") -> EngineTransaction:
        if self._is_closed:
            raise Closed("store")
        self._begun += 1
        label = f"open transaction {self._begun}" + (f", begun at {begun}" if begun else "")
        if connection is not None:
            return await begin_joined(connection, self._writer, label)
        return await SqliteTransaction.begin(self._writer, label)

    @property
    def moves(self) -> int:
        """Hops that have ended, as far as their connections are still there, and topics that the watcher woke."""
        return self._writer.hops + self._readers.hops + self._wakes.heard

    @property
    def is_at_work(self) -> bool:
        """Whether any of our threads has something in hand."""
        return self._writer.is_at_work or self._readers.is_at_work

    @property
    def is_held_up(self) -> bool:
        """Whether all that they do is to ask for the write lock again, which somebody else had when they last did."""
        return self._writer.is_held_up and not self._readers.is_at_work

    async def look(self) -> None:
        """Have the watcher look now, and wake whom it finds something for."""
        await self._wakes.look()

    async def list_names(self) -> Names:
        return await self._readers.run(_names)

    async def aclose(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        await self._wakes.aclose()
        await asyncio.gather(self._readers.close(), self._writer.close())


def _names() -> Steps[Names]:
    return Names((yield from _queue.names()), (yield from _stream.names()))


class SqliteStore(Store):
    """A store in one file, which any number of processes of one machine may have open.

    ``async with SqliteStore("app.db") as store:``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: str = "power",
        clock: Clock | None = None,
        worker_id: str | None = None,
        wait_timeout: Duration = 30,
        poll_interval: Duration = 5,
        random: random.Random | None = None,
        observers: Iterable[Observer] = (),
    ) -> None:
        """Prepare a store; it opens with ``async with`` or by awaiting it.

        Args:
            path: Of the file; a relative one is resolved now. Its folder must be there.
            durability: ``"power"``: what was acknowledged survives the loss of power. ``"process"``: it survives the
                end of the process; the last commits before a loss of power may be gone, whole ones, the last first.
            clock: What *now* is; the machine's wall clock by default. Processes that share a file share its meaning.
            worker_id: Who claims, for people to read; ``host:pid:4 hex`` by default.
            wait_timeout: Seconds that anything waits for a transaction or another process.
            poll_interval: Seconds between looks when a wake was lost.
            random: The source of jitter.
            observers: Who is told what happens (`alkstore.observing`).

        Raises:
            InvalidArgument: An option is not of its domain, or ``path`` is a private database.
            InvalidName: ``worker_id`` is blank or cannot be stored.
        """
        self._path = check_path(path)
        self._durability = check_durability(durability)
        super().__init__(
            self._open_engine,
            name=f"sqlite file {self._path}",
            worker_id=worker_id,
            wait_timeout=wait_timeout,
            poll_interval=poll_interval,
            random=random,
            observers=observers,
        )
        self._clock = chosen(clock)

    def begin_tx(self) -> TxContext[SqliteTx]:
        """As `Store.begin_tx`; the transaction's ``connection`` has the driver's type. Rows: TX-06."""
        return TxContext(self, where_called(1), SqliteTx)

    async def _open_engine(self) -> Engine:
        return await SqliteEngine.open(
            self._path, self._clock, wait_timeout=self._wait_timeout, durability=self._durability
        )


@hookimpl
def alkstore_engine() -> EngineRegistration:
    """Tell core of this engine."""
    return EngineRegistration(
        schemes=("sqlite", "sqlite+aiosqlite"),
        open=_open,
        package="alkstore-sqlite",
        contract_version="1.0",
        durable=True,
        capabilities={
            "durable": True,
            "multi_process": True,
            "sql": True,
            "listen": True,
            "reconnects": _NO_SERVER,
            "notify_limit": None,
        },
        options=frozenset({"clock", "durability"}),
        omitted=OMITTED,
        migrate=_migrate,
        migration_sql=_migration_sql,
        examine=lambda url, _: examining.examine(path_of_url(url)),
    )


async def _migrate(url: str, options: Mapping[str, object]) -> Sequence[Migration]:
    store = _open(url, options)
    lacking = await asyncio.to_thread(schema.pending, store._path)
    async with store:
        return lacking


async def _migration_sql(url: str, options: Mapping[str, object], grant_to: str | None) -> str:
    if grant_to is not None:
        raise InvalidArgument("a file has no roles; who may use it is said by its owner and its permissions")
    store = _open(url, options)
    return schema.script(await asyncio.to_thread(schema.pending, store._path))


def _open(url: str, options: Mapping[str, object]) -> SqliteStore:
    # Core let only known names through; the constructor judges their values.
    return SqliteStore(path_of_url(url), **options)  # type: ignore[arg-type]
