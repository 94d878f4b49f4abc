"""Queues: enqueue, claim, look, clear up."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar, Final, Self, TypeAlias

from alkstore import names, numbers
from alkstore.claiming import Want
from alkstore.draft import job_id, new_job, new_jobs
from alkstore.engine import Cancel, JobFilter, JobState, Redrive
from alkstore.errors import Closed, InvalidArgument, show
from alkstore.job import JobHandle
from alkstore.stamps import PLAIN, Duration, Stamps, resolve
from alkstore.stop import StopToken, check_stop
from alkstore.values import EnqueueOpts, Job, QueueStats

if TYPE_CHECKING:
    from alkstore.store import Store

__all__ = ["Queue", "check_async_callable"]

# Queue.list shadows the builtin inside the class, from Python 3.14 in annotations above it too.
Ids: TypeAlias = list[int]
Jobs: TypeAlias = list[Job]
JobHandles: TypeAlias = list[JobHandle]
Handler: TypeAlias = Callable[[JobHandle], Awaitable[object]]

LARGEST_BATCH: Final = 100_000
"""Jobs that one call claims at most: an engine is asked for each by name, and who asks for 2**63 has no memory for that."""


class Queue:
    """A name and the stamps that jobs enqueued through this handle get. It registers nothing anywhere."""

    __slots__ = ("_name", "_stamps", "_store")
    _enqueues: ClassVar[tuple[str, str]] = ("Queue.enqueue", "tx.enqueue")
    """What messages call `enqueue`, and its twin in a transaction."""

    def __init__(self, store: "Store", name: str, stamps: Stamps = PLAIN) -> None:
        self._store = store
        self._name = name
        self._stamps = stamps

    @property
    def name(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f"Queue({show(self._name)})"

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
        """Put a job into the queue.

        Args:
            payload: A JSON value, encoded now.
            delay: Seconds until it is ready; beats ``run_at``.
            run_at: The aware instant from which it is ready; now by default.
            priority: 64-bit; higher is claimed first.
            visibility_timeout, max_attempts, base_delay, expires: Stamps over the handle's.
            headers: str to str, 8 KiB at most.

        Returns:
            The job's id: positive, unique over the storage, never given twice.

        Raises:
            CodecError: ``payload`` is not a JSON value; nothing is stored.
            InvalidArgument: An option is not of its domain; nothing is stored.
            InsideTransaction: The task is inside a transaction; use ``tx.enqueue``.
            DatabaseError: The engine failed; the job may have landed (DUR-11).

        Cost: one round trip, shared with what is awaited at the same time. Rows: Q-01 to Q-05, PAY-01 to PAY-08.
        """
        stamps = self._stamps
        if not (visibility_timeout is max_attempts is base_delay is expires is None):
            stamps = resolve(stamps, visibility_timeout, max_attempts, base_delay, expires)
        job = new_job(self._name, stamps, payload, delay, run_at, priority, headers)
        store = self._store
        operation, twin = self._enqueues
        store._check(operation, twin, write=True)
        return (await store._writer.insert_jobs((job,)))[0]

    async def enqueue_batch(
        self,
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
    ) -> Ids:
        """Put many jobs into the queue, all or nothing; options as `enqueue`, ``each``: one `EnqueueOpts` a payload.

        Returns:
            The ids in payload order; ``[]`` for no payloads.

        Raises:
            As `enqueue`; InvalidArgument too if ``payloads`` is text, bytes or a mapping, or ``each`` does not fit.

        Cost: one round trip. Rows: Q-22.
        """
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
        jobs = new_jobs(self._name, self._stamps, payloads, each, call)
        self._store._check("Queue.enqueue_batch", "tx.enqueue_batch", write=True)
        return list(await self._store._writer.insert_jobs(jobs)) if jobs else []

    async def claim_one(self, *, worker_id: str | None = None) -> JobHandle | None:
        """Take the next ready job for one visibility timeout.

        Args:
            worker_id: Who takes it, for people to read; the store's by default.

        Returns:
            A handle on one job, or None when none is ready. The job's ``attempts`` already counts this claim.

        Raises:
            InvalidName: ``worker_id`` is blank.
            InsideTransaction: The task is inside a transaction; claim before it begins.
            DatabaseError: The engine failed; the driver's error is the cause.

        Order: priority (high first), run_at, id. Cost: one round trip. Rows: Q-05 to Q-08.
        Source: visibility timeout as in Amazon SQS.
        """
        store = self._store
        if store._claims_by_pump:
            handles = await self._claim_now(1, worker_id, "Queue.claim_one")
            return handles[0] if handles else None
        # As `_claim_now`: who claims one by one is spared a coroutine and two lists.
        worker = store._worker_id if worker_id is None else names.local(worker_id, "worker id")
        store._check("Queue.claim_one", None, write=True)
        jobs = (await store._engine.claim_jobs(self._name, (worker,))).jobs
        return JobHandle(store, jobs[0]) if jobs else None

    async def claim_batch(self, n: int, *, worker_id: str | None = None) -> JobHandles:
        """Take up to ``n`` ready jobs at once, in claim order; ``[]`` if ``n`` <= 0. Errors and rows as `claim_one`.

        One call takes 100,000 jobs at most.
        """
        if worker_id is not None:
            names.local(worker_id, "worker id")
        count = min(numbers.extent(n, "n"), LARGEST_BATCH)
        return await self._claim_now(count, worker_id, "Queue.claim_batch")

    async def claim(
        self, *, timeout: Duration | None = None, worker_id: str | None = None
    ) -> JobHandle | None:
        """Wait for a job and take it.

        Args:
            timeout: Seconds on the event loop's clock; <= 0 is one immediate try, None waits for ever.
            worker_id: As `claim_one`.

        Returns:
            A handle, or None at the timeout.

        Raises:
            Closed: The store was closed meanwhile.
            InvalidName, InsideTransaction, DatabaseError: As `claim_one`.

        Waiters of one store are served in the order in which they began; cancelling loses no job and uses no attempt.
        Cost: one round trip a wake for all waiters of this store. Rows: Q-21.
        """
        worker = self._worker(worker_id)
        limit = numbers.timeout(timeout, "timeout")
        self._store._check("Queue.claim", None, write=True)
        return await self._wait_claim(worker, limit, None)

    def claims(
        self, *, stop: StopToken | None = None, worker_id: str | None = None
    ) -> AsyncIterator[JobHandle]:
        """Yield jobs as they become ready, one at a time, until ``stop`` or the store's close.

        Holds none in advance and settles none: ``async with handle:`` in the body does. Errors as `claim`, but for
        `Closed`, which ends it. Rows: Q-21.
        """
        worker = self._worker(worker_id)
        if stop is not None:
            check_stop(stop)
        return _Claims(self, worker, stop)

    async def run_once(self, handler: Handler, *, worker_id: str | None = None) -> bool:
        """Claim one job and handle it as ``async with handle`` would, keeping the handler's `Exception` to the row.

        Returns:
            True if a job was claimed and handled, one way or the other; False if none was ready.

        Raises:
            InvalidArgument: ``handler`` is not an async callable; nothing was claimed.
            ClaimLost: The handler ended well, but its claim had lapsed: the job may run again.
            DatabaseError: Of the claim or of the outcome.

        Rows: Q-28.
        """
        worker = self._worker(worker_id)
        check_async_callable(handler, "handler")
        handles = await self._claim_now(1, worker, "Queue.run_once")
        if not handles:
            return False
        await _handle_contained(handles[0], handler)
        return True

    async def get_job(self, id: int) -> Job | None:
        """Read one job of this queue; None for an unknown id or another queue's. Never writes. Rows: Q-04."""
        wanted = job_id(id)
        self._store._check("Queue.get_job", write=False)
        if wanted is None:
            return None
        found = await self._store._engine.find_jobs(self._name, JobFilter(ids=(wanted,), limit=1))
        return Job(found[0]) if found else None

    async def list(
        self, *, state: JobState | None = None, error: str | None = None, after: int = 0, limit: int = 100
    ) -> Jobs:
        """Read jobs in id order.

        Args:
            state: Only those in this state.
            error: Only those whose error text contains this.
            after: Only those with a greater id: the last id of the page before.
            limit: At most so many; <= 0 gives ``[]``.

        Never writes. Rows: Q-19, NAME-08.
        """
        if state is not None and not isinstance(state, JobState):
            raise InvalidArgument(f"state must be a JobState or None, got {show(state)}")
        if error is not None and not isinstance(error, str):
            raise InvalidArgument(f"error must be a str or None, got {show(error)}")
        start = numbers.integer(after, "after")
        count = numbers.extent(limit, "limit")
        self._store._check("Queue.list", write=False)
        if count <= 0:
            return []
        where = JobFilter(state=state, error=error, after=start, limit=count)
        return [Job(record) for record in await self._store._engine.find_jobs(self._name, where)]

    async def sweep_expired(self) -> int:
        """Move expired rows and lapsed rows without attempts left to dead; gives how many this call moved. Rows: Q-17."""
        self._store._check("Queue.sweep_expired", write=True)
        return await self._store._engine.sweep_jobs(self._name)

    async def cancel(self, id: int) -> bool:
        """Remove a pending job. False if it is claimed, dead or unknown; against a claim exactly one wins. Rows: Q-18."""
        wanted = job_id(id)
        self._store._check("Queue.cancel", write=True)
        if wanted is None:
            return False
        return (await self._store._writer.settle_jobs((Cancel(self._name, wanted),)))[0] is not None

    async def redrive(self, *ids: int) -> int:
        """Make dead jobs pending again: ready now, attempts 0, no expiry, no errors; gives how many. Rows: Q-19."""
        wanted = [found for found in map(job_id, ids) if found is not None]
        self._store._check("Queue.redrive", write=True)
        if not wanted:
            return 0
        settles = [Redrive(self._name, id) for id in dict.fromkeys(wanted)]
        return sum(at is not None for at in await self._store._writer.settle_jobs(settles))

    async def purge_dead(self, *, older_than: Duration) -> int:
        """Delete dead jobs that died longer ago than ``older_than`` seconds (<= 0: all); gives how many. Rows: Q-19."""
        age = numbers.duration(older_than, "older_than")
        self._store._check("Queue.purge_dead", write=True)
        return await self._store._engine.purge_jobs(self._name, age)

    async def stats(self) -> QueueStats:
        """Count this queue's rows; an unknown queue is zeros. Never writes. Rows: Q-20."""
        self._store._check("Queue.stats", write=False)
        return QueueStats.of(await self._store._engine.count_jobs(self._name))

    # ------------------------------------------------------------ within core

    def _worker(self, worker_id: str | None) -> str:
        return self._store._worker_id if worker_id is None else names.local(worker_id, "worker id")

    async def _claim_now(self, count: int, worker_id: str | None, operation: str) -> JobHandles:
        store = self._store
        worker = store._worker_id if worker_id is None else names.local(worker_id, "worker id")
        store._check(operation, None, write=True)
        if count <= 0:
            return []
        if store._claims_by_pump:
            # What a cancelled claim took would be nobody's until it lapses, so the pump's task claims.
            records = await store._pump(self._name).claim(Want(worker, count, waits=False))
        else:
            records = (await store._engine.claim_jobs(self._name, (worker,) * count)).jobs
        return [JobHandle(store, record) for record in records]

    async def _wait_claim(self, worker: str, limit: float | None, stop: StopToken | None) -> JobHandle | None:
        want = Want(worker, 1, waits=limit is None or limit > 0)
        timer = asyncio.get_running_loop().call_later(limit, want.expire) if limit else None
        unsubscribe = stop.subscribe(want.expire) if stop is not None else None
        try:
            records = await self._store._pump(self._name).claim(want)
        finally:
            if timer is not None:
                timer.cancel()
            if unsubscribe is not None:
                unsubscribe()
        return JobHandle(self._store, records[0]) if records else None


class _Claims:
    """What `Queue.claims` gives. No generator: that would end for good with the first wait that is cancelled or fails."""

    __slots__ = ("_queue", "_stop", "_worker")

    def __init__(self, queue: Queue, worker: str, stop: StopToken | None) -> None:
        self._queue = queue
        self._worker = worker
        self._stop = stop

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> JobHandle:
        queue, stop = self._queue, self._stop
        while stop is None or not stop.is_cancelled:
            try:
                queue._store._check("Queue.claims", None, write=True)
                handle = await queue._wait_claim(self._worker, None, stop)
            except Closed:
                break
            if handle is not None:
                return handle
        # Whoever iterates again and again, to outlive failures, would else hold up the very loop that is to end him.
        await asyncio.sleep(0)
        raise StopAsyncIteration


async def _handle_contained(handle: JobHandle, handler: Handler) -> None:
    """As ``async with handle``, but the handler's `Exception` stays with the row, and a failing outcome is raised."""
    async with handle:
        try:
            await handler(handle)
        except Exception as error:
            if handle._store._observation is not None:
                handle._end_handling(error)
            await handle._take_failure(error)


def check_async_callable(function: object, what: str) -> None:
    """Refuse what certainly gives nothing to await, before anything is claimed for it.

    Raises:
        InvalidArgument: ``function`` is not callable, or is a plain function.
    """
    call = getattr(function, "__call__", None)  # noqa: B004  # not a test: an object's async __call__ counts
    if not (inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)):
        raise InvalidArgument(f"{what} must be an async callable that takes the handle, got {show(function)}")
