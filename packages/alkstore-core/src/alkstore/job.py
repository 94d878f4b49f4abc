"""The handle on a claimed job: settles once, renews while it is open."""

import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self

from alkstore import backoff, numbers, payload
from alkstore.engine import Ack, EngineTransaction, Fail, Heartbeat, JobRecord, Release, Retry, Settle
from alkstore.errors import AlkstoreError, ClaimLost, HandleConsumed, show
from alkstore.logs import job_fields
from alkstore.observation import Handling
from alkstore.renewal import Renewal
from alkstore.stamps import Duration
from alkstore.values import Job

if TYPE_CHECKING:
    from alkstore.store import Store

__all__ = ["ACKED_IN_TX", "JobHandle", "Keeper"]

LOGGER: Final = logging.getLogger("alkstore")
_new_ack: Final[Callable[[type[Ack], tuple[object, ...]], Ack]] = tuple.__new__
"""An ack from its fields in their order: half of the time that the named tuple's own constructor takes."""

UNOBSERVED: Final = nullcontext()
ACKED_IN_TX: Final = "acked in a transaction"
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

    __slots__ = (
        "_consumed", "_deadline", "_handling", "_hold", "_job", "_keeper", "_record", "_rides", "_store"
    )  # fmt: skip

    def __init__(self, store: "Store", record: JobRecord) -> None:
        self._store = store
        self._record = record
        self._job: Job | None = None
        self._consumed: str | None = None
        self._rides: EngineTransaction | None = None
        """The transaction in which it was acked, if how that ended nobody tells us: the claim knows."""
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
            self._check_open()
        self._consumed = "acked"
        try:
            record = self._record
            ack = _new_ack(Ack, (record.queue, record.id, record.token or 0))
            landed = await store._writer.settle_jobs((ack,))
        except BaseException:
            self._consumed = None
            raise
        return landed[0] is not None or self._missed()

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
        return await self._renew(span) is not None or self._missed()

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
            is_over=lambda: self._is_settled,
            check=lambda: self._check("JobHandle.hold"),
        )
        return self._hold

    def _check(self, operation: str, twin: str | None = None) -> None:
        self._store._check(operation, twin, write=True)
        self._check_open()

    def _check_open(self) -> None:
        if self._is_settled and self._consumed is not None:
            raise HandleConsumed("job handle", self._consumed)

    @property
    def _is_settled(self) -> bool:
        """Whether it is used up."""
        return self._consumed is not None and not self._is_undecided

    @property
    def _is_undecided(self) -> bool:
        """Whether all that is known of its end is an ack in a transaction that it rode, and that is over: a settle will tell."""
        rides = self._rides
        return self._consumed is ACKED_IN_TX and rides is not None and not rides.is_open

    def _rode_home(self) -> bool:
        """Whether nothing landed because the transaction had that it rode: the ack was in it, and the job is done."""
        if self._rides is not None:
            self._consumed, self._rides = ACKED_IN_TX, None
        return self._consumed is ACKED_IN_TX

    def _missed(self) -> bool:
        """Give what is told of a settle that did not land: False, for the claim was no longer live.

        Raises:
            HandleConsumed: It was acked in a transaction that it rode, and that has committed.
        """
        if self._rode_home():
            raise HandleConsumed("job handle", ACKED_IN_TX)
        return False

    def _window(self, window: Duration | None) -> int:
        if window is None:
            return self._record.visibility_timeout
        return numbers.duration(window, "window", positive=True)

    async def _renew(self, window: int) -> int | None:
        record = self._record
        beat = Heartbeat(record.queue, record.id, record.token or 0, window)
        end = (await self._store._writer.settle_jobs((beat,)))[0]
        if self._is_undecided:
            if end is None:
                self._rode_home()
            else:  # it was rolled back
                self._consumed = self._rides = None
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
        return landed[0] is not None or self._missed()

    async def _conclude(self, settle: Settle, operation: str, done: str) -> bool:
        """As `_settle` at the end of a block: a cancellation that comes now must not leave the job to lapse."""
        self._check(operation, "tx.ack" if done == "acked" else None)  # in this task: a child's is another's
        self._consumed = done
        try:
            if not self._store._engine.traits.batches:  # no I/O, so nothing that could be cut short
                return await self._land(settle)
            return await self._store._shielded(self._land(settle))
        except AlkstoreError:
            self._consumed = None
            raise

    async def _land(self, settle: Settle) -> bool:
        return (await self._store._writer.settle_jobs((settle,)))[0] is not None or self._rode_home()

    async def __aenter__(self) -> Self:
        if self._store._observation is not None:
            self._begin_handling()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._store._observation is not None:
            self._end_handling(exc)
        if self._is_settled:
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

    async def _take_failure(self, error: Exception) -> None:
        """Retry with what a handler raised, or tell of it where the handler has settled the job before."""
        if not self._is_settled:
            with suppress(HandleConsumed):  # acked in a transaction of the caller's own, which has committed
                await self.retry(error=error)
                return
        self._tell_unheard(error)

    def _tell_unheard(self, error: BaseException) -> None:
        """Log what a handler raised behind its own settle, which no row keeps."""
        record = self._record
        LOGGER.warning(
            "job %d of queue %r: its handler raised after the job was %s, so it is not tried again: %s",
            record.id,
            record.queue,
            self._consumed,
            show(error),
            exc_info=error,
            extra=job_fields(record),
        )

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
