"""Giving a job its outcome, until it is known whether that landed."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from alkstore.engine import Fail as FailSettle
from alkstore.engine import Settle
from alkstore.errors import Closed, DatabaseError, show
from alkstore.job import JobHandle
from alkstore.logs import job_fields
from alkstore.store import Store
from alkstore.worker.outcome import Answer, Ending, Fail, Retry, Tally

__all__ = ["FIRST_BACKOFF", "LONGEST_BACKOFF", "SETTLED", "Settling"]

LOGGER: Final = logging.getLogger("alkstore.worker")

SETTLED: Final = "settled by its worker"
"""What a handle says of its end that its worker gives it."""

SHOWN_OF_REASON: Final = 300
"""Characters: what a payload lacks is at the end of the text."""

FIRST_BACKOFF: Final = 0.1
LONGEST_BACKOFF: Final = 5.0
"""Seconds on the event loop's clock between tries while the database is away."""


class Settling:
    """Gives outcomes, counts them, and tells of those that somebody may have to look at."""

    def __init__(self, store: Store, tally: Tally) -> None:
        self._store = store
        self._tally = tally

    async def settle(self, handle: JobHandle, answer: Answer, is_lost: Callable[[], bool]) -> None:
        """Give an outcome; ``is_lost`` says while the database is away that there is no claim any more to settle."""
        if handle._is_settled:
            self._count_own(handle, answer)
            return
        if answer is Ending.LOST:
            self.lose(handle)
            return
        settle = _settle(handle, answer)
        handle._consumed = SETTLED
        if not await self._land(handle, settle, is_lost):
            self._missed(handle, answer)
        elif answer is Ending.DONE:
            self._tally.done += 1
        elif isinstance(answer, (Retry, Fail)):
            is_dead = isinstance(settle, FailSettle)
            self._tally.count("dead" if is_dead else "retried")
            _tell(handle, answer, is_dead=is_dead)
        else:
            self._tally.released += 1

    async def ack(self, handles: Sequence[JobHandle]) -> bool:
        """Ack jobs that are done, in one call; False if that failed, and each is to be settled by itself."""
        try:
            landed = await self._store._writer.settle_jobs([handle._ack() for handle in handles])
        except Closed:
            for handle in handles:
                self.lose(handle)
            return True
        except DatabaseError:
            for handle in handles:
                handle._consumed = None
            return False
        for handle, instant in zip(handles, landed, strict=True):
            if instant is None:
                self._missed(handle, Ending.DONE)
            else:
                self._tally.done += 1
        return True

    def _missed(self, handle: JobHandle, answer: Answer) -> None:
        """Count what did not land: done if the handler's own transaction had the ack, else its claim has ended."""
        if handle._rode_home():
            self._count_own(handle, answer)
        else:
            self.lose(handle)

    def _count_own(self, handle: JobHandle, answer: Answer) -> None:
        """Count what the handler did with its handle, and tell of what it raised after that."""
        self._tally.count(handle._consumed or SETTLED)
        if isinstance(answer, Retry) and isinstance(answer.reason, BaseException):
            handle._tell_unheard(answer.reason)

    def lose(self, handle: JobHandle) -> None:
        """Count and tell of a claim that has ended."""
        self._tally.lost += 1
        record = handle._record
        LOGGER.warning(
            "job %d of queue %r: its claim ended before its outcome landed; it may run again",
            record.id,
            record.queue,
            extra=job_fields(record),
        )

    async def _land(self, handle: JobHandle, settle: Settle, is_lost: Callable[[], bool]) -> bool:
        backoff = FIRST_BACKOFF
        while True:
            try:
                return (await self._store._writer.settle_jobs((settle,)))[0] is not None
            except Closed:
                handle._rides = None  # nothing has been asked
                return False
            except DatabaseError as error:
                if is_lost():
                    handle._rides = None
                    return False
                record, name = handle._record, type(settle).__name__.lower()
                LOGGER.warning(
                    "job %d of queue %r: the %s has not landed: %s; trying again in %.1f s",
                    record.id,
                    record.queue,
                    name,
                    error,
                    backoff,
                    extra=job_fields(record),
                )
            await asyncio.sleep(backoff * self._store._random.uniform(0.5, 1.0))
            backoff = min(backoff * 2, LONGEST_BACKOFF)


def _settle(handle: JobHandle, answer: Answer) -> Settle:
    if isinstance(answer, Retry):
        return handle._retrying(answer.reason, answer.delay)
    if isinstance(answer, Fail):
        return handle._failing(answer.reason)
    return handle._ack() if answer is Ending.DONE else handle._release()


def _tell(handle: JobHandle, answer: Retry | Fail, *, is_dead: bool) -> None:
    record, reason = handle._record, answer.reason
    LOGGER.log(
        logging.ERROR if is_dead else logging.WARNING,
        "job %d of queue %r %s after attempt %d of %d: %s",
        record.id,
        record.queue,
        "is dead" if is_dead else "is to be tried again",
        record.attempts,
        record.max_attempts,
        "no reason given" if reason is None else show(reason, SHOWN_OF_REASON),
        exc_info=reason if isinstance(reason, BaseException) else None,
        extra=job_fields(record),
    )
