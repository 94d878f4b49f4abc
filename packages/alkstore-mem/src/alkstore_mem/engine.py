"""The in-memory engine: everything in one event loop, without threads, locks or a driver.

State model. A call runs to its end without awaiting, so it is atomic by itself, and what it changed is seen by the
next one. Each area keeps its rows and says what a change means; the state keeps what they share. Only a transaction
lives across awaits, as an overlay of its own.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

from alkstore import Store
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
    ScheduleRecord,
    Settle,
    Taken,
    Topic,
    Traits,
    Watch,
)
from alkstore.errors import InvalidArgument, show
from alkstore.hookspecs import EngineRegistration, hookimpl
from alkstore.observing import Observer
from alkstore.plain import PlainConnection
from alkstore.stamps import Duration
from alkstore_mem import join as _join
from alkstore_mem.hold import Holds
from alkstore_mem.join import JoinedTransaction
from alkstore_mem.lock import Locks
from alkstore_mem.plain import begin_plain
from alkstore_mem.queue import Queues, page
from alkstore_mem.schedule import Schedules
from alkstore_mem.state import State
from alkstore_mem.stream import Streams
from alkstore_mem.transaction import MemTransaction
from alkstore_mem.wake import Wakes

__all__ = ["MemEngine", "MemStore", "alkstore_engine"]

T = TypeVar("T", bound=MemTransaction)

# It gives back, since no call that takes something awaits anything behind that: none is ever cancelled with it in its hands.
TRAITS: Final = Traits(
    batches=False, gives_back=True, notify_limit=None, outside_tx=True, durable=False, tells_reclaims=True
)

_ENDS: Final = "everything ends with the store"
_ALONE: Final = "a store is seen by its own process and by nothing else"
_NO_SERVER: Final = "there is no server and no connection that could be lost"
_NO_TABLES: Final = "there are no tables"

OMITTED: Final[Mapping[str, str]] = {
    "WAKE-10": _NO_SERVER,
    "STR-13": _NO_SERVER,
    "STR-16": _ENDS,
    "TX-05": "a commit in memory cannot fail",
    "DUR-02": _ALONE,
    "DUR-03": _NO_TABLES,
    "DUR-04": _NO_TABLES,
    "DUR-05": "there is no driver that could fail",
    "DUR-09": _NO_SERVER,
    "DUR-10": _NO_TABLES,
}
"""Contract rows that cannot be expressed here, and why."""


class MemEngine:
    """`alkstore.engine.Engine` in memory.

    Args:
        clock: Every instant is this clock's.
        wait_timeout: Seconds of the event loop's time that a transaction waits for another one's position.
    """

    def __init__(self, clock: Clock, *, wait_timeout: float = 30.0) -> None:
        self._state = State(clock)
        self._queues = Queues(self._state)
        self._streams = Streams(self._state)
        self._wakes = Wakes(self._state)
        self._locks = Locks(self._state)
        self._schedules = Schedules(self._state, self._queues, self._locks)
        self._holds = Holds(wait_timeout)
        self._begun = 0

    @property
    def traits(self) -> Traits:
        return TRAITS

    def _enter(self) -> None:
        if self._state.is_stirred:
            self._state.enter()

    # ------------------------------------------------------------ jobs

    async def insert_jobs(self, jobs: Sequence[NewJob]) -> Sequence[int]:
        self._enter()
        return self._queues.insert(jobs)

    async def find_jobs(self, queue: str, where: JobFilter) -> Sequence[JobRecord]:
        self._enter()
        return page(self._queues.scan(queue, where), where.limit)

    async def count_jobs(self, queue: str) -> JobCounts:
        self._enter()
        return self._queues.count(queue)

    async def claim_jobs(self, queue: str, worker_ids: Sequence[str]) -> Claimed:
        self._enter()
        return self._queues.claim(queue, worker_ids)

    async def settle_jobs(self, settles: Sequence[Settle]) -> Sequence[int | None]:
        self._enter()
        return self._queues.settle(settles)

    async def sweep_jobs(self, queue: str) -> int:
        self._enter()
        return self._queues.sweep(queue)

    async def purge_jobs(self, queue: str, older_than: int) -> int:
        self._enter()
        return self._queues.purge(queue, older_than)

    # ------------------------------------------------------------ streams

    async def append_events(self, events: Sequence[NewEvent]) -> Sequence[int]:
        self._enter()
        return self._streams.append(events)

    async def read_events(self, stream: str, after: int, limit: int) -> Sequence[EventRecord]:
        self._enter()
        return self._streams.read(stream, after, limit)

    async def read_head(self, stream: str) -> int:
        self._enter()
        return self._streams.head(stream)

    async def trim_events(self, stream: str, horizon: int) -> int:
        self._enter()
        return self._streams.trim(stream, horizon)

    async def read_offsets(self, stream: str, consumer: str | None = None) -> Mapping[str, int]:
        self._enter()
        return self._streams.offsets(stream, consumer)

    async def move_offset(self, stream: str, consumer: str, offset: int, *, backwards: bool) -> bool:
        self._enter()
        return self._streams.move(stream, consumer, offset, backwards=backwards)

    # ------------------------------------------------------------ wakes

    async def notify(self, wakes: Sequence[NewWake]) -> None:
        self._enter()
        self._wakes.notify(wake.channel for wake in wakes)

    async def watch(self, topic: Topic) -> Watch:
        self._enter()
        return self._wakes.watch(topic)

    # ------------------------------------------------------------ locks

    async def take_lock(self, name: str, ttl: int) -> Taken:
        self._enter()
        return self._locks.take(name, ttl)

    async def renew_lock(self, name: str, fence: int, ttl: int) -> int | None:
        self._enter()
        return self._locks.renew(name, fence, ttl)

    async def list_locks(self) -> Sequence[LockRecord]:
        self._enter()
        return self._locks.held()

    # ------------------------------------------------------------ schedules

    async def put_schedule(self, schedule: NewSchedule) -> ScheduleRecord:
        self._enter()
        return self._schedules.put(schedule)

    async def delete_schedule(self, name: str) -> bool:
        self._enter()
        return self._schedules.delete(name)

    async def fire_schedules(self, lease: tuple[str, int] | None) -> Fired:
        self._enter()
        return self._schedules.fire(lease)

    async def list_schedules(self) -> Sequence[ScheduleRecord]:
        self._enter()
        return self._schedules.all()

    # ------------------------------------------------------------ transactions and life

    async def begin(self, connection: object | None = None, begun: str = "") -> EngineTransaction:
        self._enter()
        if isinstance(connection, PlainConnection):
            return await begin_plain(connection, self, lambda kind: self._make(kind, begun))
        if connection is not None:
            return await _join.begin(connection, self, lambda: self._make(JoinedTransaction, begun))
        return self._make(MemTransaction, begun)

    def _make(self, kind: type[T], begun: str) -> T:
        self._enter()  # once more: a session may have taken its time to begin
        self._begun += 1
        label = f"open transaction {self._begun}" + (f", begun at {begun}" if begun else "")
        return kind(self._state, self._queues, self._streams, self._wakes, self._holds, label)

    async def list_names(self) -> Names:
        self._enter()
        return Names(self._queues.names(), self._streams.names())

    async def aclose(self) -> None:
        if not self._state.is_closed:
            self._state.close()


class MemStore(Store):
    """A store that lives in this process and ends with it: two of them share nothing, ever.

    ``async with MemStore() as store:``. It runs wherever asyncio does, Pyodide included.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        worker_id: str | None = None,
        wait_timeout: Duration = 30,
        poll_interval: Duration = 5,
        random: random.Random | None = None,
        observers: Iterable[Observer] = (),
    ) -> None:
        """Prepare a store; it opens with ``async with`` or by awaiting it.

        Args:
            clock: What *now* is; the machine's wall clock by default. `alkstore.testing.ManualClock` in tests.
            worker_id: Who claims, for people to read; ``host:pid:4 hex`` by default.
            wait_timeout: Seconds that a transaction waits for another one.
            poll_interval: Seconds between looks when a wake was lost.
            random: The source of jitter.
            observers: Who is told what happens (`alkstore.observing`).

        Raises:
            InvalidArgument: An option is not of its domain.
            InvalidName: ``worker_id`` is blank or cannot be stored.
        """
        super().__init__(
            self._open_engine,
            name="mem://",
            worker_id=worker_id,
            wait_timeout=wait_timeout,
            poll_interval=poll_interval,
            random=random,
            observers=observers,
        )
        self._clock = chosen(clock)

    async def _open_engine(self) -> Engine:
        return MemEngine(self._clock, wait_timeout=self._wait_timeout)


@hookimpl
def alkstore_engine() -> EngineRegistration:
    """Tell core of this engine."""
    return EngineRegistration(
        schemes=("mem",),
        open=_open,
        package="alkstore-mem",
        contract_version="1.0",
        durable=False,
        capabilities={
            "durable": "everything ends with the store",
            "multi_process": "a store is seen by its own process and by nothing else",
            "sql": "there is no database",
            "listen": True,
            "reconnects": "there is no connection that could be lost",
            "notify_limit": None,
        },
        options=frozenset({"clock"}),
        omitted=OMITTED,
    )


def _open(url: str, options: Mapping[str, object]) -> Store:
    if url != "mem://":
        raise InvalidArgument(f"a store in memory is 'mem://' with nothing after it, got {show(url)}")
    # Core let only known names through; the constructor judges their values.
    return MemStore(**options)  # type: ignore[arg-type]
