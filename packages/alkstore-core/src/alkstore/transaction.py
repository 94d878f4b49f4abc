"""Transactions: everything in one lands with one commit, or not at all."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Final

from alkstore import names, numbers
from alkstore.draft import job_id, new_event, new_events, new_job, new_jobs
from alkstore.engine import JobFilter
from alkstore.errors import AlkstoreError, ClaimLost, InvalidArgument, OffsetConflict, show
from alkstore.job import ACKED_IN_TX, JobHandle
from alkstore.outbox import Outbox
from alkstore.queue import Queue
from alkstore.stamps import OUTBOX, Duration, Stamps, resolve
from alkstore.stream import Stream
from alkstore.tx_life import TxLife
from alkstore.values import EnqueueOpts, Job, StreamEvent, stream_events

if TYPE_CHECKING:
    from alkstore.store import Store

__all__ = ["Tx", "outside_tx"]

OUTSIDE: Final[ContextVar[bool]] = ContextVar("alkstore_outside_tx", default=False)


@contextmanager
def outside_tx() -> Iterator[None]:
    """Allow writes that commit by themselves beside this task's open transaction, for the block.

    They do not ride the transaction and stay if it rolls back. Engines on which such a write would wait for the very
    transaction that waits for it refuse it with `InvalidArgument`. Rows: TX-07.
    """
    token = OUTSIDE.set(True)
    try:
        yield
    finally:
        OUTSIDE.reset(token)


class Tx(TxLife):
    """An open transaction. Its operations see its own writes; nobody else does before the commit.

    Every operation raises `Closed` once it has ended, `InvalidArgument` if another task is inside it at that moment, and
    `DatabaseError` if the engine failed. What is refused for its arguments leaves the transaction usable.
    Rows: TX-01 to TX-11.
    """

    __slots__ = ()

    # ------------------------------------------------------------ queues and outboxes

    async def enqueue(
        self,
        queue: Queue | str,
        payload: object,
        *,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        priority: int = 0,
        visibility_timeout: Duration | None = None,
        max_attempts: int | None = None,
        base_delay: Duration | None = None,
        expires: Duration | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Put a job into a queue at commit; arguments and errors as `Queue.enqueue`. Rows: Q-23, TX-01."""
        name, under = self._queue(queue)
        stamps = resolve(under, visibility_timeout, max_attempts, base_delay, expires)
        job = new_job(name, stamps, payload, delay, run_at, priority, headers)
        with self._using():
            return (await self._tx.insert_jobs((job,)))[0]

    async def enqueue_batch(
        self,
        queue: Queue | str,
        payloads: Iterable[object],
        *,
        each: Iterable[EnqueueOpts] | None = None,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        priority: int = 0,
        visibility_timeout: Duration | None = None,
        max_attempts: int | None = None,
        base_delay: Duration | None = None,
        expires: Duration | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> list[int]:
        """Put many jobs into a queue at commit; arguments and errors as `Queue.enqueue_batch`. Rows: Q-22, TX-01."""
        name, under = self._queue(queue)
        call = EnqueueOpts(
            delay=delay,
            run_at=run_at,
            priority=priority,
            visibility_timeout=visibility_timeout,
            max_attempts=max_attempts,
            base_delay=base_delay,
            expires=expires,
            headers=headers,
        )
        jobs = new_jobs(name, under, payloads, each, call)
        with self._using():
            return list(await self._tx.insert_jobs(jobs)) if jobs else []

    async def outbox_enqueue(
        self,
        outbox: Outbox | str,
        payload: object,
        *,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        priority: int = 0,
        visibility_timeout: Duration | None = None,
        max_attempts: int | None = None,
        base_delay: Duration | None = None,
        expires: Duration | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Put an entry into an outbox at commit; arguments and errors as `Outbox.enqueue`. Rows: OBX-02."""
        name = self._outbox(outbox)
        stamps = resolve(OUTBOX, visibility_timeout, max_attempts, base_delay, expires)
        job = new_job(names.OUTBOX_PREFIX + name, stamps, payload, delay, run_at, priority, headers)
        with self._using():
            return (await self._tx.insert_jobs((job,)))[0]

    async def get_job(self, queue: Queue | str, id: int) -> Job | None:
        """Read one job of a queue, this transaction's own writes included. Rows: Q-23, TX-02."""
        name, _ = self._queue(queue)
        wanted = job_id(id)
        with self._using():
            if wanted is None:
                return None
            found = await self._tx.find_jobs(name, JobFilter(ids=(wanted,), limit=1))
        return Job(found[0]) if found else None

    async def ack(self, handle: JobHandle) -> None:
        """Ack a claim with the commit: business write + ack is an exactly-once effect.

        The handle is consumed while the transaction is open and after its commit; a rollback opens it again.

        Raises:
            ClaimLost: The claim is no longer live; the transaction stays usable.
            HandleConsumed: The handle was settled before.
            InvalidArgument: Not a handle of this store.

        One that was cancelled may have been done: the handle is consumed, until the claim tells after the end, and the ack
        may be repeated here (`ClaimLost` if it had been done).

        Rows: Q-23.
        """
        if not isinstance(handle, JobHandle) or handle._store is not self._store:
            raise InvalidArgument(f"ack takes a job handle of this store, got {show(handle)}")
        with self._using():
            if handle not in self._doubted:
                handle._check_open()
            await self._ack(handle)

    # ------------------------------------------------------------ streams and wakes

    async def publish(
        self,
        stream: Stream | str,
        payload: object,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Append an event at commit; gives the offset that it has then. As `Stream.publish`. Rows: STR-05."""
        event = new_event(self._stream(stream), payload, key, headers)
        with self._using():
            return (await self._tx.append_events((event,)))[0]

    async def publish_batch(
        self,
        stream: Stream | str,
        payloads: Iterable[object],
        *,
        key: str | None = None,
        keys: Iterable[str | None] | None = None,
    ) -> list[int]:
        """Append events at commit; as `Stream.publish_batch`. Rows: STR-05, STR-14."""
        events = new_events(self._stream(stream), payloads, key, keys)
        with self._using():
            return list(await self._tx.append_events(events)) if events else []

    async def read_since(self, stream: Stream | str, offset: int, limit: int = 100) -> list[StreamEvent]:
        """Read events after an offset, own ones included. Rows: STR-12."""
        name = self._stream(stream)
        after = numbers.integer(offset, "offset")
        count = numbers.extent(limit, "limit")
        with self._using():
            return await self._read(name, after, count)

    async def read_from_consumer(
        self, stream: Stream | str, consumer: str, limit: int = 100
    ) -> list[StreamEvent]:
        """Read events after a consumer's position, and hold that position until this transaction ends.

        With `save_offset` in the same transaction: an exactly-once effect. Rows: STR-12.
        """
        name = self._stream(stream)
        who = names.local(consumer, "consumer")
        count = numbers.extent(limit, "limit")
        with self._using():
            position = await self._tx.read_offset(name, who, hold=True)
            self._positions[name, who] = position
            return await self._read(name, position, count)

    async def get_offset(self, stream: Stream | str, consumer: str) -> int:
        """Give a consumer's position, 0 for an unknown one. Rows: STR-06."""
        name = self._stream(stream)
        who = names.local(consumer, "consumer")
        with self._using():
            position = await self._tx.read_offset(name, who, hold=False)
            self._positions[name, who] = position
            return position

    async def save_offset(
        self, stream: Stream | str, consumer: str, offset: int, *, after: int | None = None
    ) -> None:
        """Save a consumer's position at commit, if it is still where this transaction read it.

        Args:
            after: Where the position must be; by default where this transaction read it, and if it read nothing the
                position must move forward.

        Raises:
            OffsetConflict: It is elsewhere; the transaction stays usable.

        Rows: STR-12.
        """
        name = self._stream(stream)
        who = names.local(consumer, "consumer")
        target = numbers.integer(offset, "offset")
        expected = self._positions.get((name, who)) if after is None else numbers.integer(after, "after")
        with self._using():
            save = await self._tx.save_offset(name, who, target, expected)
            if not save.saved:
                raise OffsetConflict(expected, save.found)
            self._positions[name, who] = target

    async def notify(self, channel: str, payload: object = None) -> None:
        """Wake a channel at commit; as `Store.notify`. Rows: WAKE-05."""
        wake = self._store._new_wake(channel, payload)
        with self._using():
            await self._tx.notify((wake,))

    # ------------------------------------------------------------ within core

    async def _ack(self, handle: JobHandle) -> None:
        consumed, ridden = handle._consumed, handle._rides
        handle._consumed, handle._rides = ACKED_IN_TX, None
        try:
            landed = (await self._tx.settle_jobs((handle._ack(),)))[0]
        except BaseException as error:
            handle._consumed, handle._rides = consumed, ridden
            if ridden is None and not isinstance(error, AlkstoreError):
                self._doubt(handle)
            raise
        if landed is None:
            handle._consumed, handle._rides = consumed, ridden
            if ridden is not self._tx:
                handle._missed()
            raise ClaimLost(f"claim of job {handle._record.id} is no longer live; claim it again")
        if self._is_joined:
            handle._rides = self._tx
        self._doubted.discard(handle)
        self._acked.append(handle)

    def _doubt(self, handle: JobHandle) -> None:
        # Cut short too late it has been done, and lands if its caller goes on and commits.
        handle._consumed, handle._rides = ACKED_IN_TX, self._tx
        self._doubted.add(handle)
        self._acked.append(handle)

    def _queue(self, queue: Queue | str) -> tuple[str, Stamps]:
        return self._store._queue_of(queue)

    def _outbox(self, outbox: Outbox | str) -> str:
        if isinstance(outbox, Outbox):
            self._check_same(outbox._queue._store, "outbox")
            return outbox.name
        return names.shared(outbox, "outbox name")

    def _stream(self, stream: Stream | str) -> str:
        if isinstance(stream, Stream):
            self._check_same(stream._store, "stream")
            return stream.name
        return names.shared(stream, "stream name")

    def _check_same(self, store: "Store", what: str) -> None:
        if store is not self._store:
            raise InvalidArgument(
                f"{what} handle belongs to another store; take it from the store of this transaction"
            )

    async def _read(self, stream: str, after: int, limit: int) -> list[StreamEvent]:
        if limit <= 0 or after >= numbers.MAX_INT64:
            return []
        return stream_events(await self._tx.read_events(stream, max(after, 0), limit))
