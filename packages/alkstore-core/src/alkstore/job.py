"""The handle on a claimed job: settles once, renews while it is open."""

import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self

from alkstore import backoff, numbers, payload
from alkstore.engine import Ack, Fail, Heartbeat, JobRecord, Release, Retry, Settle
from alkstore.errors import AlkstoreError, ClaimLost, HandleConsumed
from alkstore.logs import job_fields
from alkstore.observation import Handling
from alkstore.renewal import Renewal
from alkstore.stamps import Duration
from alkstore.values import Job

if TYPE_CHECKING:
    from alkstore.store import Store

__all__ = ["JobHandle", "Keeper"]

LOGGER: Final = logging.getLogger("alkstore")
_new_ack: Final[Callable[[type[Ack], tuple[object, ...]], Ack]] = tuple.__new__
"""An ack from its fields in their order: half of the time that the named tuple's own constructor takes."""

UNOBSERVED: Final = nullcontext()
EXHAUSTED: Final = "attempts used up"
FAILED: Final = "failed"


class Keeper(Protocol):
    """Who renews the claims of many handles, and has to hear what one of them does by itself."""

    def note_moved(self, handle: "JobHandle", /) -> None: ...


class JobHandle:
    """One claim of one job.

    ``async with handle:`` acks on a clean exit, retries with an `Exception` and propagates it, releases on cancellation;
    a body that settled the handle itself is left at that. Rows: Q-09, Q-15, Q-28.
    """

    __slots__ = ("_consumed", "_deadline", "_handling", "_hold", "_job", "_keeper", "_record", "_store")

    def __init__(self, store: "Store", record: JobRecord) -> None:
        self._store = store
        self._record = record
        self._job: Job | None = None
        self._consumed: str | None = None
        self._deadline = record.deadline or 0
        self._hold: Renewal | None = None
        self._keeper: Keeper | None = None
        self._handling: Handling  # only once it is observed: claims are not to pay for it

    @property
    def job(self) -> Job:
        """The job as it was at the claim."""
        if self._job is None:
            self._job = Job(self._record)
        return self._job

    def __repr__(self) -> str:
        state = self._consumed or "open"
        return f"JobHandle(id={self._record.id}, queue={self._record.queue!r}, {state})"

    async def ack(self) -> bool:
        """Delete the job: it is done.

        Returns:
            True if it landed; False if the claim was no longer live, and nothing changed.

        Raises:
            HandleConsumed: The handle was settled before.
            InsideTransaction: The task is inside a transaction; use ``tx.ack``.
            DatabaseError: The engine failed; the handle stays open.

        Cost: one round trip. Rows: Q-09, Q-10, Q-15.
        """
        # As `_settle`: what is awaited by the hundred is spared a coroutine each.
        store = self._store
        store._check("JobHandle.ack", "tx.ack", write=True)
        if self._consumed is not None:
            raise HandleConsumed("job handle", self._consumed)
        self._consumed = "acked"
        try:
            record = self._record
            ack = _new_ack(Ack, (record.queue, record.id, record.token or 0))
            landed = await store._writer.settle_jobs((ack,))
        except BaseException:
            self._consumed = None
            raise
        return landed[0] is not None

    async def retry(self, *, error: str | BaseException | None = None, delay: Duration | None = None) -> bool:
        """Put the job back, to be tried again after a delay; on its last attempt it goes dead.

        Args:
            error: Why; a text, or an exception with its traceback.
            delay: Seconds from now; the curve's by default. See `alkstore.backoff`.

        Returns:
            True if it landed; False if the claim was no longer live.

        Raises:
            InvalidArgument: ``error`` or ``delay`` is of another type; the handle stays open.
            HandleConsumed, InsideTransaction, DatabaseError: As `ack`.

        Cost: one round trip. Rows: Q-11, Q-12, Q-25.
        """
        return await self._settle(self._retrying(error, delay), "JobHandle.retry", "retried")

    def _retrying(self, error: str | BaseException | None, delay: Duration | None) -> Settle:
        record = self._record
        wait = None if delay is None else max(numbers.duration(delay, "delay"), 0)
        if record.attempts >= record.max_attempts:
            text = payload.error_text(error, EXHAUSTED, payload.LAST_ERROR_BYTES)
            return Fail(record.queue, record.id, record.token or 0, text)
        reason = None if error is None else payload.error_text(error, EXHAUSTED, payload.RETRY_ERROR_BYTES)
        if wait is None:
            wait = backoff.delay(record.attempts, record.base_delay, self._store._random)
        return Retry(record.queue, record.id, record.token or 0, wait, reason)

    async def fail(self, error: str | BaseException | None = None) -> bool:
        """Move the job to dead at once.

        Returns:
            True if it landed; False if the claim was no longer live.

        Raises:
            InvalidArgument: ``error`` is of another type; the handle stays open.
            HandleConsumed, InsideTransaction, DatabaseError: As `ack`.

        Cost: one round trip. Rows: Q-13, Q-25.
        """
        return await self._settle(self._failing(error), "JobHandle.fail", "failed")

    def _failing(self, error: str | BaseException | None) -> Fail:
        record = self._record
        text = payload.error_text(error, FAILED, payload.LAST_ERROR_BYTES)
        return Fail(record.queue, record.id, record.token or 0, text)

    async def release(self) -> bool:
        """Give the claim back as if it had not been: claimable at once, the attempt not counted.

        Returns:
            True if it landed; False if the claim was no longer live.

        Raises:
            HandleConsumed, InsideTransaction, DatabaseError: As `ack`.

        Cost: one round trip. Rows: Q-27.
        """
        return await self._settle(self._release(), "JobHandle.release", "released")

    async def heartbeat(self, window: Duration | None = None) -> bool:
        """Move the deadline to now + ``window`` seconds (the row's visibility timeout by default).

        Returns:
            True if it landed; False if the claim was no longer live: it is not revived.

        Raises:
            InvalidArgument: ``window`` is not positive.
            HandleConsumed, InsideTransaction, DatabaseError: As `ack`; the handle stays open.

        Cost: one round trip. Rows: Q-14.
        """
        span = self._window(window)
        self._check("JobHandle.heartbeat")
        return await self._renew(span) is not None

    def hold(self) -> "Renewal":
        """Renew the claim at a third of its window for as long as the block runs.

        A lost claim cancels the block once, and leaving it raises `ClaimLost`; the block's own exception and a
        cancellation from outside win over it. A block that settled the handle itself ends the renewal.

        Raises:
            HandleConsumed, InsideTransaction: As `heartbeat`, on entering.

        Rows: Q-14.
        """
        record = self._record
        self._hold = Renewal(
            self._store,
            renew=lambda: self._renew(record.visibility_timeout),
            end=lambda: self._deadline,
            window=record.visibility_timeout,
            lost=lambda: ClaimLost(f"claim of job {record.id} was lost while it was held; it may run again"),
            is_over=lambda: self._consumed is not None,
            check=lambda: self._check("JobHandle.hold"),
        )
        return self._hold

    def _check(self, operation: str, twin: str | None = None) -> None:
        self._store._check(operation, twin, write=True)
        if self._consumed is not None:
            raise HandleConsumed("job handle", self._consumed)

    def _window(self, window: Duration | None) -> int:
        if window is None:
            return self._record.visibility_timeout
        return numbers.duration(window, "window", positive=True)

    async def _renew(self, window: int) -> int | None:
        record = self._record
        beat = Heartbeat(record.queue, record.id, record.token or 0, window)
        end = (await self._store._writer.settle_jobs((beat,)))[0]
        if end is not None:
            before, self._deadline = self._deadline, end
            if end < before and self._hold is not None:
                self._hold.note_sooner()
            if self._keeper is not None:
                self._keeper.note_moved(self)
        return end

    async def _settle(self, settle: Settle, operation: str, done: str) -> bool:
        self._check(operation, "tx.ack" if done == "acked" else None)
        self._consumed = done
        try:
            landed = await self._store._writer.settle_jobs((settle,))
        except BaseException:
            self._consumed = None  # nothing is known to have landed: calling it again is safe
            raise
        return landed[0] is not None

    async def _conclude(self, settle: Settle, operation: str, done: str) -> bool:
        """As `_settle` at the end of a block: a cancellation that comes now must not leave the job to lapse."""
        if not self._store._engine.traits.batches:  # no I/O, so nothing that could be cut short
            return await self._settle(settle, operation, done)
        self._check(operation, "tx.ack" if done == "acked" else None)  # in this task: a child's is another's
        self._consumed = done
        try:
            return await self._store._shielded(self._land(settle))
        except AlkstoreError:
            self._consumed = None
            raise

    async def _land(self, settle: Settle) -> bool:
        return (await self._store._writer.settle_jobs((settle,)))[0] is not None

    async def __aenter__(self) -> Self:
        if self._store._observation is not None:
            self._begin_handling()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._store._observation is not None:
            self._end_handling(exc)
        if self._consumed is not None:
            return
        if exc is None:
            if not await self._conclude(self._ack(), "JobHandle.ack", "acked"):
                raise ClaimLost(
                    f"claim of job {self._record.id} ended before its block did; it may run again"
                )
        elif isinstance(exc, Exception):
            await self._quietly(self._conclude(self._retrying(exc, None), "JobHandle.retry", "retried"))
        else:
            # A second cancellation must not strand the claim.
            self._consumed = "released"
            await self._quietly(self._store._shielded(self._land(self._release())))

    def _begin_handling(self) -> Handling | None:
        """Let observers know that a handler begins; None if there are none, or if they know of one around it."""
        observation = self._store._observation
        if observation is None or hasattr(self, "_handling"):
            return None
        self._handling = observation.handling(self.job)
        return self._handling

    def _handled(self) -> AbstractContextManager[object]:
        """As `_begin_handling`, for a block that is the handler."""
        return self._begin_handling() or UNOBSERVED

    def _end_handling(self, error: BaseException | None) -> None:
        handling: Handling | None = getattr(self, "_handling", None)
        if handling is not None:
            handling.end(error)

    def _ack(self) -> Ack:
        record = self._record
        return _new_ack(Ack, (record.queue, record.id, record.token or 0))

    def _release(self) -> Release:
        record = self._record
        return Release(record.queue, record.id, record.token or 0)

    async def _quietly(self, outcome: Awaitable[bool]) -> None:
        # The body's own end is the first error: a settle that fails after it must not take its place.
        try:
            await outcome
        except AlkstoreError as error:
            record = self._record
            LOGGER.warning(
                "job %d of queue %r was left to lapse: %s",
                record.id,
                record.queue,
                error,
                extra=job_fields(record),
            )
