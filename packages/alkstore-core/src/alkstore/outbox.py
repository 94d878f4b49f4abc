"""The outbox: jobs that must leave this system, delivered at least once."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Final, NoReturn

from alkstore import names, numbers
from alkstore.errors import (
    AlkstoreError,
    Closed,
    DatabaseError,
    HandleConsumed,
    InvalidArgument,
    ReservedName,
    show,
)
from alkstore.job import JobHandle
from alkstore.logs import queue_fields
from alkstore.queue import Queue
from alkstore.stamps import OUTBOX, Duration
from alkstore.stop import StopToken, check_stop

if TYPE_CHECKING:
    from alkstore.store import Store

__all__ = ["Outbox"]

LOGGER: Final = logging.getLogger("alkstore")
Delivery = Callable[[JobHandle], Awaitable[object]]
FIRST_BACKOFF: Final = 0.1
LONGEST_BACKOFF: Final = 5.0
"""Seconds on the event loop's clock between tries while the database is away."""


class _Entries(Queue):
    """The outbox's own rows as the outbox feeds and drains them."""

    __slots__ = ()
    _enqueues = ("Outbox.enqueue", "tx.outbox_enqueue")


class _BackingQueue(Queue):
    """The outbox's own rows: to be looked at and cleared up, not fed or drained past the outbox."""

    __slots__ = ()

    async def enqueue(self, payload: object, **options: object) -> NoReturn:
        raise ReservedName(self.name, "queue name")

    async def enqueue_batch(self, payloads: Iterable[object], **options: object) -> NoReturn:
        raise ReservedName(self.name, "queue name")

    async def claim_one(self, *, worker_id: str | None = None) -> NoReturn:
        raise ReservedName(self.name, "queue name")

    async def claim_batch(self, n: int, *, worker_id: str | None = None) -> NoReturn:
        raise ReservedName(self.name, "queue name")

    async def claim(self, *, timeout: Duration | None = None, worker_id: str | None = None) -> NoReturn:
        raise ReservedName(self.name, "queue name")

    def claims(self, *, stop: StopToken | None = None, worker_id: str | None = None) -> NoReturn:
        raise ReservedName(self.name, "queue name")

    async def run_once(self, handler: Delivery, *, worker_id: str | None = None) -> NoReturn:
        raise ReservedName(self.name, "queue name")


class Outbox:
    """A named outbox. ``tx.outbox_enqueue`` writes with the business data, a worker's `run` takes it out."""

    __slots__ = ("_jobs", "_name", "_queue")

    def __init__(self, store: "Store", name: str) -> None:
        self._name = name
        self._queue = _Entries(store, names.OUTBOX_PREFIX + name, OUTBOX)
        self._jobs = _BackingQueue(store, names.OUTBOX_PREFIX + name, OUTBOX)

    @property
    def name(self) -> str:
        return self._name

    @property
    def jobs(self) -> Queue:
        """The backing queue: list, get, cancel, sweep, redrive, purge, stats."""
        return self._jobs

    def __repr__(self) -> str:
        return f"Outbox({show(self._name)})"

    async def enqueue(
        self,
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
        """Put an entry into the outbox, outside a transaction; as `Queue.enqueue` over 60 s, 5 attempts, 5 s.

        Raises:
            As `Queue.enqueue`; inside a transaction use ``tx.outbox_enqueue``.

        Rows: OBX-02.
        """
        return await self._queue.enqueue(
            payload,
            delay=delay,
            run_at=run_at,
            priority=priority,
            visibility_timeout=visibility_timeout,
            max_attempts=max_attempts,
            base_delay=base_delay,
            expires=expires,
            headers=headers,
        )

    async def run_once(self, delivery: Delivery, *, worker_id: str | None = None) -> bool:
        """Claim one entry and deliver it: a return acks, an `Exception` retries on the row's curve.

        Returns:
            True if an entry was claimed: delivered, or reclaimable after its window; False if none was ready.

        Raises:
            InvalidArgument: ``delivery`` is not callable (nothing claimed), or gave nothing to await (entry released).
            DatabaseError: Of the claim or of the outcome.

        No heartbeat is sent: a long delivery calls ``handle.heartbeat()``. Cancellation propagates and applies no
        outcome. Rows: OBX-03 to OBX-08.
        """
        worker = self._queue._worker(worker_id)
        if not callable(delivery):
            raise InvalidArgument(
                f"delivery must be an async callable that takes the handle, got {show(delivery)}"
            )
        handles = await self._queue._claim_now(1, worker, "Outbox.run_once")
        if not handles:
            return False
        await _deliver(handles[0], delivery)
        return True

    async def run(self, delivery: Delivery, *, stop: StopToken, concurrency: int = 1) -> None:
        """Wait for entries and deliver them, up to ``concurrency`` at once, until ``stop`` or the store's close.

        Deliveries under way end first. A `DatabaseError` is met with back-off.

        Raises:
            InvalidArgument: As `run_once`, or ``concurrency`` < 1.

        Rows: OBX-09.
        """
        if not callable(delivery):
            raise InvalidArgument(
                f"delivery must be an async callable that takes the handle, got {show(delivery)}"
            )
        check_stop(stop)
        count = numbers.integer(concurrency, "concurrency", least=1)
        self._queue._store._check("Outbox.run", None, write=True)
        workers = [asyncio.ensure_future(self._work(delivery, stop)) for _ in range(count)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, delivery: Delivery, stop: StopToken) -> None:
        store = self._queue._store
        backoff = FIRST_BACKOFF
        while not stop.is_cancelled:
            try:
                handle = await self._queue._wait_claim(store._worker_id, None, stop)
                if handle is not None:
                    await _deliver(handle, delivery)
                    _heed_cancellation()
                backoff = FIRST_BACKOFF
            except Closed:
                return
            except DatabaseError as error:
                LOGGER.warning(
                    "outbox %r: %s; trying again in %.1f s",
                    self._name,
                    error,
                    backoff,
                    extra=queue_fields(self._queue.name),
                )
                await store._rest(backoff * store._random.uniform(0.5, 1.0), stop)
                backoff = min(backoff * 2, LONGEST_BACKOFF)


def _heed_cancellation() -> None:
    # A delivery that swallowed the cancellation of `run` would otherwise keep it running, for ever.
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def _deliver(handle: JobHandle, delivery: Delivery) -> None:
    try:
        with handle._handled():
            result: object = delivery(handle)
            if not inspect.isawaitable(result):
                await _give_back(handle)
                raise _NothingToAwait(
                    f"delivery must give something to await, got {show(result)}; make it async def"
                )
            await result
    except _NothingToAwait as error:
        raise InvalidArgument(str(error)) from None
    except Exception as error:
        await handle._take_failure(error)
        return
    if not handle._is_settled:
        with suppress(HandleConsumed):  # acked in a transaction of the delivery's own, which has committed
            await handle.ack()


class _NothingToAwait(AlkstoreError):
    """Ours, so that it is not taken for an error of the delivery itself."""


async def _give_back(handle: JobHandle) -> None:
    if not handle._is_settled:
        await handle.release()
