"""The store: what a user holds. It checks where a call comes from, and hands out the areas."""

from datetime import datetime

from alkstore import interval, names, numbers, payload, schedule
from alkstore.beginning import TxContext, where_called
from alkstore.engine import NewSchedule, NewWake, Topic, TopicKind
from alkstore.entering import AwaitableContext
from alkstore.errors import (
    InvalidArgument,
    PayloadTooLarge,
)
from alkstore.life import Life
from alkstore.lock import Lock, LockContext, take
from alkstore.outbox import Outbox
from alkstore.queue import Queue
from alkstore.stamps import PLAIN, Duration, Stamps, resolve
from alkstore.stop import StopToken, check_stop
from alkstore.stream import Stream
from alkstore.transaction import Tx
from alkstore.values import LockInfo, Schedule
from alkstore.wake import WakeReceiver

__all__ = ["Store"]


class Store(Life):
    """Queues, streams, wakes, locks, schedules, outboxes and transactions over one engine.

    ``async with MemStore() as store:`` or ``async with alkstore.open(url) as store:`` opens and closes it. A store
    belongs to the event loop that opened it; another loop, thread or forked process is refused (DUR-07).
    """

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
            return WakeReceiver(self, checked, await self._watch(Topic(TopicKind.CHANNEL, checked)))

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
        taken = await take(self, checked, window)
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
        check_stop(stop)
        self._check("Store.run_schedules", None, write=True)
        await schedule.run(self, stop)

    async def supervise_schedules(self, stop: StopToken) -> None:
        """Lead when nobody else does, again and again, until ``stop`` or the store's close. Rows: SCHED-13."""
        check_stop(stop)
        self._check("Store.supervise_schedules", None, write=True)
        await schedule.supervise(self, stop)

    # ------------------------------------------------------------ transactions

    def begin_tx(self) -> TxContext[Tx]:
        """Begin a transaction: ``async with store.begin_tx() as tx`` commits on a clean exit, else rolls back.

        Raises:
            InsideTransaction: This task is inside one.
            DatabaseError: It waited longer than ``wait_timeout``.

        Rows: TX-01 to TX-09.
        """
        return TxContext(self, where_called(1), Tx)

    def join(self, connection: object) -> TxContext[Tx]:
        """Ride the transaction that is open on the caller's connection: ``async with store.join(connection) as tx``.

        Leaving the block commits nothing; the caller's commit does. Raises InvalidArgument for what cannot be joined.
        Rows: TX-10, TX-11.
        """
        if connection is None:
            raise InvalidArgument(
                "join takes the connection or session whose transaction is to be joined, got None"
            )
        return TxContext(self, where_called(1), Tx, connection)

    # ------------------------------------------------------------ within core

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


def _encode(value: object) -> bytes:
    return payload.encode(value)  # methods have an argument named payload
