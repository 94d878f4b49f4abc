"""The store: what a user holds. It checks where a call comes from, and hands out the areas."""

import asyncio
import logging
import os
import random
import secrets
import socket
import warnings
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

from alkstore import interval, lock, names, numbers, payload, schedule
from alkstore.batching import Batcher
from alkstore.claiming import ClaimPump
from alkstore.engine import Engine, NewSchedule, NewWake, Taken, Topic, TopicKind, Watch
from alkstore.entering import AwaitableContext
from alkstore.errors import (
    AlkstoreError,
    Closed,
    InsideTransaction,
    InvalidArgument,
    PayloadTooLarge,
    show,
)
from alkstore.lock import Lock, LockContext
from alkstore.outbox import Outbox
from alkstore.queue import Queue
from alkstore.stamps import PLAIN, Duration, Stamps, resolve
from alkstore.stop import StopToken
from alkstore.stream import Stream
from alkstore.transaction import OUTSIDE, Tx, TxContext, where_called
from alkstore.values import LockInfo, Schedule
from alkstore.wake import WakeReceiver

__all__ = ["Store"]

LOGGER: Final = logging.getLogger("alkstore")
CLOSE_LIMIT: Final = 5.0
"""Seconds that `aclose` waits for what was handed to the storage (DUR-06)."""

T = TypeVar("T")


class Endable(Protocol):
    """A receiver: something that waits, and ends with the store."""

    def _end(self) -> None: ...


class Store:
    """Queues, streams, wakes, locks, schedules, outboxes and transactions over one engine.

    ``async with MemStore() as store:`` or ``async with alkstore.open(url) as store:`` opens and closes it. A store
    belongs to the event loop that opened it; another loop, thread or forked process is refused (DUR-07).
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Engine]],
        *,
        name: str,
        worker_id: str | None = None,
        wait_timeout: Duration = 30,
        poll_interval: Duration = 5,
        random: random.Random | None = None,
    ) -> None:
        """Prepare a store; engines call this, users call an engine's constructor or `alkstore.open`.

        Args:
            connect: Gives the connected engine.
            name: What messages call this store.
            worker_id: Who claims, for people to read; ``host:pid:4 hex`` by default.
            wait_timeout: Seconds that anything waits for a transaction or another process (TX-08).
            poll_interval: Seconds between looks when a wake was lost (Q-21).
            random: The source of jitter.
        """
        self._worker_id = _worker_id() if worker_id is None else names.local(worker_id, "worker id")
        self._wait_timeout = _positive(wait_timeout, "wait_timeout")
        self._poll_interval = _positive(poll_interval, "poll_interval")
        self._random = _random(random)
        self._connect = connect
        self._label = name
        self._state = "new"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._transactions: weakref.WeakSet[Tx] = weakref.WeakSet()
        self._open_transactions = 0
        self._tracked: weakref.WeakSet[Endable] = weakref.WeakSet()
        self._pumps: dict[str, ClaimPump] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._runners: set[asyncio.Future[None]] = set()
        self._watches: set[Watch] = set()
        self._closing: asyncio.Task[None] | None = None

    # ------------------------------------------------------------ life

    def __await__(self) -> Generator[object, None, Self]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        if self._state != "new":
            raise InvalidArgument(f"store {self._label} was opened before; make a new one")
        self._state = "opening"
        self._loop = asyncio.get_running_loop()
        try:
            self._engine = await self._connect()
        except BaseException:
            self._state = "new"
            raise
        self._writer = Batcher(self._engine) if self._engine.traits.batches else self._engine
        self._state = "open"
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End every wait, let what was handed to the storage finish (5 s at most), and free everything.

        Closing twice, or from two tasks, is fine. Rows: DUR-06.
        """
        if self._state == "closed":
            return
        if self._state == "new":
            self._state = "closed"
            return
        self._check_place()
        if self._closing is None:
            self._state = "closed"
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        for pump in self._pumps.values():
            pump.close()
        for tracked in list(self._tracked):
            tracked._end()
        for tx in list(self._transactions):
            await self._finish(tx._tx.rollback())
            tx._abandon()
        for watch in list(self._watches):
            watch.close()
        waits: set[asyncio.Future[Any]] = {*self._tasks, *self._runners}
        if waits:
            await asyncio.wait(waits, timeout=CLOSE_LIMIT)
        if isinstance(self._writer, Batcher):
            await self._finish(self._writer.close())
        await self._finish(self._engine.aclose())

    async def _finish(self, ending: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(CLOSE_LIMIT):
                await ending
        except (AlkstoreError, TimeoutError) as error:
            LOGGER.warning("closing %s: %s", self._label, error)

    def __del__(self) -> None:
        if getattr(self, "_state", "new") in ("open", "opening"):
            warnings.warn(
                f"store {self._label} was never closed; use 'async with' or aclose()",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._label} {self._state}>"

    # ------------------------------------------------------------ queues, streams, outboxes

    def queue(
        self,
        name: str,
        *,
        visibility_timeout: Duration | None = None,
        max_attempts: int | None = None,
        base_delay: Duration | None = None,
        expires: Duration | None = None,
    ) -> Queue:
        """Give a handle on a queue, with the stamps of what is enqueued through it (300 s, 3, 5 s, none).

        Raises:
            InvalidName, ReservedName: ``name`` is not for a queue.
            InvalidArgument: A stamp is not of its domain.

        Rows: Q-01, Q-02.
        """
        checked = names.shared(name, "queue name")
        return Queue(self, checked, resolve(PLAIN, visibility_timeout, max_attempts, base_delay, expires))

    def stream(self, name: str) -> Stream:
        """Give a handle on a stream. Raises InvalidName or ReservedName."""
        return Stream(self, names.shared(name, "stream name"))

    def outbox(self, name: str) -> Outbox:
        """Give a handle on an outbox. Raises InvalidName or ReservedName. Rows: OBX-01."""
        return Outbox(self, names.shared(name, "outbox name"))

    async def queues(self) -> list[str]:
        """Give the sorted names of the queues that have jobs, without the outboxes' own. Rows: ADM-01."""
        self._check("Store.queues", write=False)
        found = (await self._engine.list_names()).queues
        return [name for name in found if not name.startswith(names.OUTBOX_PREFIX)]

    async def streams(self) -> list[str]:
        """Give the sorted names of the streams that have events or positions. Rows: ADM-01."""
        self._check("Store.streams", write=False)
        return list((await self._engine.list_names()).streams)

    async def outboxes(self) -> list[str]:
        """Give the sorted names of the outboxes that have entries. Rows: ADM-01."""
        self._check("Store.outboxes", write=False)
        prefix = names.OUTBOX_PREFIX
        return [
            name.removeprefix(prefix)
            for name in (await self._engine.list_names()).queues
            if name.startswith(prefix)
        ]

    # ------------------------------------------------------------ wakes

    async def notify(self, channel: str, payload: object = None) -> None:
        """Wake every receiver that listens on a channel; the payload is for listeners outside alkstore.

        Raises:
            PayloadTooLarge: The payload is over the engine's limit.
            CodecError: It is not a JSON value.
            InsideTransaction: Use ``tx.notify``.

        Rows: WAKE-01 to WAKE-04, PAY-06.
        """
        wake = self._new_wake(channel, payload)
        self._check("Store.notify", "tx.notify", write=True)
        await self._writer.notify((wake,))

    def listen(self, channel: str) -> AwaitableContext[WakeReceiver]:
        """Open a receiver: ``async with store.listen("orders") as receiver``. It hears what is notified from then on.

        Raises:
            InvalidName, ReservedName: ``channel`` is no channel's name.

        Rows: WAKE-01 to WAKE-09.
        """
        checked = names.shared(channel, "channel")

        async def open_receiver() -> WakeReceiver:
            self._check("Store.listen", write=False)
            return WakeReceiver(self, checked, await self._engine.watch(Topic(TopicKind.CHANNEL, checked)))

        return AwaitableContext(open_receiver, WakeReceiver.aclose)

    # ------------------------------------------------------------ locks

    async def try_lock(self, name: str, ttl: Duration) -> Lock | None:
        """Take a named lock for ``ttl`` seconds, or get None at once when it is held.

        Raises:
            InvalidName, ReservedName: ``name`` is no lock's name.
            InvalidArgument: ``ttl`` is not positive.
            InsideTransaction: No lock operation is in a transaction.

        Cost: one round trip. Rows: LOCK-01 to LOCK-05.
        """
        checked = names.shared(name, "lock name")
        window = numbers.duration(ttl, "ttl", positive=True)
        self._check("Store.try_lock", None, write=True)
        taken = await self._take(checked, window)
        return None if taken.fence is None else Lock(self, checked, taken.fence, taken.expires_at)

    def lock(self, name: str, ttl: Duration = 30, *, timeout: Duration | None = None) -> LockContext:
        """Wait for a named lock: ``async with store.lock("report") as lock`` renews it while the block runs.

        Args:
            ttl: Seconds that it lasts without renewal.
            timeout: Seconds to wait on the event loop's clock; <= 0 is one try, None waits for ever.

        Raises:
            LockTimeout: It was not free in time (on entering).
            LockLost: It ended while the block ran (on leaving).

        Rows: LOCK-06.
        """
        checked = names.shared(name, "lock name")
        window = numbers.duration(ttl, "ttl", positive=True)
        return LockContext(self, checked, window, numbers.timeout(timeout, "timeout"))

    async def locks(self) -> list[LockInfo]:
        """Give the locks that are held now, sorted by name. Rows: ADM-01."""
        self._check("Store.locks", write=False)
        return [LockInfo.of(record) for record in await self._engine.list_locks()]

    # ------------------------------------------------------------ schedules

    async def schedule(
        self,
        name: str,
        spec: str,
        queue: Queue | str,
        payload: object,
        *,
        anchor: datetime | None = None,
        priority: int = 0,
        visibility_timeout: Duration | None = None,
        max_attempts: int | None = None,
        base_delay: Duration | None = None,
        expires: Duration | None = None,
    ) -> Schedule:
        """Write a schedule by name: at every boundary a job goes into ``queue``.

        Args:
            spec: ``@every <n><unit>``, unit s, m, h or d.
            anchor: An instant of the grid; now by default, kept when the same schedule is written again.
            priority, visibility_timeout, max_attempts, base_delay, expires: Stamps over the queue handle's.

        Returns:
            The schedule as stored.

        Raises:
            InvalidName, ReservedName: ``name`` or ``queue``; nothing is written.
            InvalidSpec, CodecError, InvalidArgument: Nothing is written.

        Rows: SCHED-01 to SCHED-04, NAME-07.
        """
        checked = names.shared(name, "schedule name")
        target, under = self._queue_of(queue)
        every = interval.parse(spec)
        stamps = resolve(under, visibility_timeout, max_attempts, base_delay, expires)
        rule = NewSchedule(
            checked,
            spec,
            every,
            None if anchor is None else numbers.instant(anchor, "anchor"),
            target,
            _encode(payload),
            numbers.integer(priority, "priority"),
            *stamps,
        )
        self._check("Store.schedule", None, write=True)
        return Schedule(await self._engine.put_schedule(rule))

    async def unschedule(self, name: str) -> bool:
        """Delete a schedule; True if it was there. Rows: SCHED-07."""
        checked = names.shared(name, "schedule name")
        self._check("Store.unschedule", None, write=True)
        return await self._engine.delete_schedule(checked)

    async def schedules(self) -> list[Schedule]:
        """Give all schedules, sorted by name. Rows: ADM-01."""
        self._check("Store.schedules", write=False)
        return [Schedule(record) for record in await self._engine.list_schedules()]

    async def tick_schedules(self) -> int:
        """Fire what is due, once; gives how many jobs. Safe beside a running leader. Rows: SCHED-08."""
        self._check("Store.tick_schedules", None, write=True)
        return (await self._engine.fire_schedules(None)).jobs

    async def run_schedules(self, stop: StopToken) -> None:
        """Lead and fire until ``stop`` or the store's close.

        Raises:
            LeadershipLost: Another runner leads, or took over.

        Rows: SCHED-09 to SCHED-15.
        """
        _check_stop(stop)
        self._check("Store.run_schedules", None, write=True)
        await schedule.run(self, stop)

    async def supervise_schedules(self, stop: StopToken) -> None:
        """Lead when nobody else does, again and again, until ``stop`` or the store's close. Rows: SCHED-13."""
        _check_stop(stop)
        self._check("Store.supervise_schedules", None, write=True)
        await schedule.supervise(self, stop)

    # ------------------------------------------------------------ transactions

    def begin_tx(self) -> TxContext:
        """Begin a transaction: ``async with store.begin_tx() as tx`` commits on a clean exit, else rolls back.

        Raises:
            InsideTransaction: This task is inside one.
            DatabaseError: It waited longer than ``wait_timeout``.

        Rows: TX-01 to TX-09.
        """
        return TxContext(self, where_called(1))

    def join(self, connection: object) -> TxContext:
        """Ride the transaction that is open on the caller's connection: ``async with store.join(connection) as tx``.

        Leaving the block commits nothing; the caller's commit does. Raises InvalidArgument for what cannot be joined.
        Rows: TX-10, TX-11.
        """
        if connection is None:
            raise InvalidArgument(
                "join takes the connection or session whose transaction is to be joined, got None"
            )
        return TxContext(self, where_called(1), connection)

    # ------------------------------------------------------------ within core

    def _check(self, operation: str, twin: str | None = None, *, write: bool) -> None:
        """Refuse a call that cannot be made here and now; after the arguments' checks, before any engine work."""
        if self._state != "open":
            if self._state in ("new", "opening"):
                raise InvalidArgument(f"store {self._label} is not open; use 'async with' or await it first")
            raise Closed("store")
        if asyncio.get_running_loop() is not self._loop:
            self._check_place()
        if write and self._open_transactions:
            self._check_outside(operation, twin)

    def _check_place(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise InvalidArgument(
                f"store {self._label} belongs to the event loop that opened it; "
                "open another store in this loop, thread or process"
            )

    def _check_outside(self, operation: str, twin: str | None) -> None:
        task = asyncio.current_task()
        for tx in self._transactions:
            if tx._task is not task or not tx._is_open:
                continue
            if not OUTSIDE.get():
                raise InsideTransaction(operation, twin, tx._begun)
            if not self._engine.traits.outside_tx:
                raise InvalidArgument(
                    f"{operation} cannot land beside the open transaction begun at {tx._begun}: "
                    "this engine has one writer; end the transaction first"
                )

    def _queue_of(self, queue: Queue | str) -> tuple[str, Stamps]:
        if isinstance(queue, Queue):
            if queue._store is not self:
                raise InvalidArgument("queue handle belongs to another store; take it from this store")
            return names.shared(queue.name, "queue name"), queue._stamps
        return names.shared(queue, "queue name"), PLAIN

    def _new_wake(self, channel: str, payload: object) -> NewWake:
        checked = names.shared(channel, "channel")
        data = None if payload is None else _encode(payload)
        limit = self._engine.traits.notify_limit if self._state == "open" else None
        if data is not None and limit is not None and len(data) > limit:
            raise PayloadTooLarge(len(data), limit)
        return NewWake(checked, data)

    def _pump(self, queue: str) -> ClaimPump:
        pump = self._pumps.get(queue)
        if pump is None:
            # Pumps nobody waits on are dropped here, so that a million queue names leave nothing behind.
            self._pumps = {name: kept for name, kept in self._pumps.items() if not kept.is_idle}
            pump = ClaimPump(queue, self._engine, self._writer, self._poll_interval, self._start)
            self._pumps[queue] = pump
        return pump

    async def _take(self, name: str, ttl: int) -> Taken:
        return await lock.take(self, name, ttl)

    @asynccontextmanager
    async def _watching(self, topic: Topic) -> AsyncIterator[Watch]:
        watch = await self._engine.watch(topic)
        self._watches.add(watch)
        try:
            yield watch
        finally:
            self._watches.discard(watch)
            watch.close()

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Make `aclose` wait for a runner, which has its lease to give up."""
        running: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._runners.add(running)
        try:
            yield
        finally:
            self._runners.discard(running)
            if not running.done():
                running.set_result(None)

    def _track(self, receiver: Endable) -> None:
        self._tracked.add(receiver)

    def _untrack(self, receiver: Endable) -> None:
        self._tracked.discard(receiver)

    def _tx_begun(self, tx: Tx) -> None:
        self._transactions.add(tx)
        self._open_transactions += 1

    def _tx_ended(self, tx: Tx) -> None:
        self._transactions.discard(tx)
        self._open_transactions -= 1

    def _spawn(self, work: Coroutine[object, object, T]) -> "asyncio.Task[T]":
        """Run something that outlives its caller's cancellation; `aclose` waits for it."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._spawned_ended)
        return task

    def _start(self, work: Coroutine[object, object, object]) -> None:
        """Run something that nobody awaits but `aclose`."""
        self._tasks.add(self._spawn(work))

    def _spawned_ended(self, task: "asyncio.Task[T]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever awaits it sees it; nobody awaiting must not be a warning at exit

    async def _shielded(self, work: Coroutine[object, object, T]) -> T:
        """Await something to its end even if the caller is cancelled again meanwhile."""
        return await asyncio.shield(self._spawn(work))

    async def _quietly(self, work: Coroutine[object, object, object]) -> None:
        """Await a clean-up to its end; its failure must not hide what is under way, so it is only logged."""
        try:
            await self._shielded(work)
        except AlkstoreError as error:
            LOGGER.warning("clean-up in %s failed: %s", self._label, error)


def _encode(value: object) -> bytes:
    return payload.encode(value)  # methods have an argument named payload


def _worker_id() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(2)}"


def _positive(value: Duration, what: str) -> float:
    return numbers.duration(value, what, positive=True) / 1_000_000


def _random(source: random.Random | None) -> random.Random:
    if source is None:
        return random.Random()
    if not isinstance(source, random.Random):
        raise InvalidArgument(f"random must be a random.Random, got {show(source)}")
    return source


def _check_stop(stop: object) -> None:
    if not isinstance(stop, StopToken):
        raise InvalidArgument(f"stop must be a StopToken, got {show(stop)}")
