"""Engines whose queues are wrong in exactly one way."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any

from mutant import Patch, mutant

import alkstore.job
from alkstore import CodecError, DatabaseError, JobHandle, Queue, Store, backoff, payload
from alkstore.claiming import ClaimPump, Want
from alkstore.engine import (
    Ack,
    Cancel,
    Claimed,
    Fail,
    Heartbeat,
    JobCounts,
    JobFilter,
    JobRecord,
    NewJob,
    Redrive,
    Release,
    Retry,
    Settle,
)
from alkstore_mem import backlog as backlog_module
from alkstore_mem.backlog import BITS, ID, Backlog, due_at
from alkstore_mem.engine import MemEngine
from alkstore_mem.queue import Queues
from alkstore_mem.transaction import MemTransaction


class Looking(MemEngine):
    """An honest engine whose faulty children look at rows and change them behind its back."""

    def now(self) -> int:
        return self._state.clock.now()

    def backlog(self, queue: str) -> Backlog | None:
        return self._queues._backlogs.get(queue)

    def row(self, settle: Settle) -> JobRecord | None:
        backlog = self.backlog(settle.queue)
        return None if backlog is None else backlog.rows.get(settle.id)

    def overwrite(self, settle: Settle, **fields: Any) -> None:
        backlog = self.backlog(settle.queue)
        assert backlog is not None
        backlog.rows[settle.id] = backlog.rows[settle.id]._replace(**fields)


# ---------------------------------------------------------------- what an enqueue writes


@mutant("default-budget-is-four", kills="Q-01")
class DefaultBudgetIsFour(MemEngine):
    async def insert_jobs(self, jobs: Sequence[NewJob]) -> Sequence[int]:
        return await super().insert_jobs(
            [job._replace(max_attempts=4) if job.max_attempts == 3 else job for job in jobs]
        )


@mutant("handle-options-ignored", kills="Q-02")
def handle_options_ignored(patch: Patch) -> None:
    original = Store.queue
    patch.attribute(Store, "queue", lambda store, name, **options: original(store, name))


@mutant("delay-ignored", kills="Q-03")
class DelayIgnored(MemEngine):
    async def insert_jobs(self, jobs: Sequence[NewJob]) -> Sequence[int]:
        return await super().insert_jobs(
            [job._replace(delay=None if job.delay is None else 0) for job in jobs]
        )


@mutant("ids-given-again", kills="Q-04")
class IdsGivenAgain(MemEngine):
    async def insert_jobs(self, jobs: Sequence[NewJob]) -> Sequence[int]:
        if not self._queues.names():
            self._queues._last_id = 0
        return await super().insert_jobs(jobs)


@mutant("batch-not-atomic", kills="Q-22")
def batch_not_atomic(patch: Patch) -> None:
    original = Queue.enqueue_batch

    async def one_by_one(queue: Queue, payloads: Iterable[object], **options: Any) -> list[int]:
        values = payloads if isinstance(payloads, (str, bytes, dict)) else list(payloads)
        try:
            return await original(queue, values, **options)
        except CodecError:
            for value in values:
                await queue.enqueue(value)  # raises at the bad one, and what came before it stays
            raise

    patch.attribute(Queue, "enqueue_batch", one_by_one)


# ---------------------------------------------------------------- who gets which job, and when


@mutant("due-one-microsecond-late", kills="Q-05")
def due_one_microsecond_late(patch: Patch) -> None:
    original = Backlog._promote

    def promote(self: Backlog, now: int) -> None:
        delayed, self._delayed = self._delayed, []
        original(self, now)
        deadlines, self._deadlines = self._deadlines, []
        lasts, self._lasts = self._lasts, []
        self._delayed = delayed
        original(self, now - 1)
        self._deadlines, self._lasts = deadlines, lasts

    patch.attribute(Backlog, "_promote", promote)


@mutant("newest-first", kills="Q-05")
def newest_first(patch: Patch) -> None:
    patch.attribute(
        backlog_module, "rank", lambda row: (-row.run_at - (row.priority << BITS) << BITS) | row.id
    )


@mutant("priority-inverted", kills="Q-05")
def priority_inverted(patch: Patch) -> None:
    patch.attribute(
        backlog_module, "rank", lambda row: (row.run_at + (row.priority << BITS) << BITS) | row.id
    )


@mutant("attempts-not-counted", kills=("Q-06", "Q-24"))
def attempts_not_counted(patch: Patch) -> None:
    original = Backlog._hand_out

    def hand_out(self: Backlog, row: JobRecord, worker_id: str, token: int, now: int) -> JobRecord:
        return original(self, row._replace(attempts=row.attempts - 1), worker_id, token, now)

    patch.attribute(Backlog, "_hand_out", hand_out)


@mutant("batch-in-id-order", kills="Q-06")
class BatchInIdOrder(MemEngine):
    async def claim_jobs(self, queue: str, worker_ids: Sequence[str]) -> Claimed:
        claimed = await super().claim_jobs(queue, worker_ids)
        return claimed._replace(jobs=sorted(claimed.jobs, key=lambda job: job.id))


@mutant("claimed-row-given-twice", kills="Q-07")
class ClaimedRowGivenTwice(MemEngine):
    """Looks, then takes: who comes between the two is given the same rows."""

    _claiming = 0
    _seen: Claimed | None = None

    async def claim_jobs(self, queue: str, worker_ids: Sequence[str]) -> Claimed:
        self._claiming += 1
        try:
            await asyncio.sleep(0)
            seen, self._seen = self._seen, None
            if self._claiming > 1 and seen is not None:
                return seen._replace(jobs=seen.jobs[: len(worker_ids)])
            self._seen = await super().claim_jobs(queue, worker_ids)
            return self._seen
        finally:
            self._claiming -= 1


@mutant("lapsed-claim-never-returns", kills=("Q-08", "Q-21"))
def lapsed_claim_never_returns(patch: Patch) -> None:
    for name in ("_promote", "next_at"):
        patch.attribute(Backlog, name, _without_deadlines(vars(Backlog)[name]))


def _without_deadlines(original: Callable[[Backlog, int], Any]) -> Callable[[Backlog, int], Any]:
    def blind(self: Backlog, now: int) -> Any:
        deadlines, self._deadlines = self._deadlines, []
        try:
            return original(self, now)
        finally:
            self._deadlines = deadlines

    return blind


@mutant("one-attempt-too-many", kills=("Q-08", "Q-24"))
class OneAttemptTooMany(MemEngine):
    """Counts to one more than it shows."""

    async def insert_jobs(self, jobs: Sequence[NewJob]) -> Sequence[int]:
        return await super().insert_jobs([job._replace(max_attempts=job.max_attempts + 1) for job in jobs])

    async def find_jobs(self, queue: str, where: JobFilter) -> Sequence[JobRecord]:
        return [_shown(job) for job in await super().find_jobs(queue, where)]

    async def claim_jobs(self, queue: str, worker_ids: Sequence[str]) -> Claimed:
        claimed = await super().claim_jobs(queue, worker_ids)
        return claimed._replace(jobs=[_shown(job) for job in claimed.jobs])


def _shown(job: JobRecord) -> JobRecord:
    return job._replace(max_attempts=job.max_attempts - 1)


@mutant("exhausted-row-stranded", kills=("Q-08", "Q-24"))
def exhausted_row_stranded(patch: Patch) -> None:
    original = Backlog._bury_lapsed

    def bury_lapsed(self: Backlog, now: int, most: int | None = None) -> int:
        return 0 if most is not None else original(self, now)

    patch.attribute(Backlog, "_bury_lapsed", bury_lapsed)


@mutant("expired-row-claimed", kills="Q-16")
def expired_row_claimed(patch: Patch) -> None:
    def following(self: Backlog, now: int) -> JobRecord | None:
        while self._ready:
            entry = backlog_module.heappop(self._ready)
            row = self.rows.get(entry & ID)
            if row is None or backlog_module.rank(row) != entry:
                continue
            if now < due_at(row):
                self.place(row, now)
            elif row.deadline is None or row.attempts < row.max_attempts:
                return row
        return None

    patch.attribute(Backlog, "_next", following)


@mutant("enqueue-wakes-nobody", kills="Q-21")
def enqueue_wakes_nobody(patch: Patch) -> None:
    def insert(self: Queues, jobs: Sequence[NewJob]) -> list[int]:
        now = self._state.clock.now()
        rows = [self.make(job, now) for job in jobs]
        self.land(rows, now)
        return [row.id for row in rows]

    patch.attribute(Queues, "insert", insert)


@mutant("last-waiter-served-first", kills="Q-21")
def last_waiter_served_first(patch: Patch) -> None:
    original = ClaimPump._live

    def live(self: ClaimPump) -> list[Want]:
        return original(self)[::-1]

    patch.attribute(ClaimPump, "_live", live)


@mutant("cancelled-wait-strands-its-job", kills="Q-21")
def cancelled_wait_strands_its_job(patch: Patch) -> None:
    async def release(self: ClaimPump, jobs: Sequence[JobRecord]) -> None:
        """Forget them."""

    patch.attribute(ClaimPump, "_release", release)


# ---------------------------------------------------------------- whose outcome lands


@mutant("ack-ignores-token", kills="Q-09")
class AckIgnoresToken(Looking):
    async def settle_jobs(self, settles: Sequence[Settle]) -> Sequence[int | None]:
        return await super().settle_jobs([self._forged(settle) for settle in settles])

    def _forged(self, settle: Settle) -> Settle:
        row = self.row(settle)
        if isinstance(settle, Ack) and row is not None and row.token is not None:
            return settle._replace(token=row.token)
        return settle


class Landing(Looking):
    """Does a settle honestly, then lets `after` have a look at each; what it gives is the answer."""

    async def settle_jobs(self, settles: Sequence[Settle]) -> Sequence[int | None]:
        landed = await super().settle_jobs(settles)
        return [self.after(settle, at) for settle, at in zip(settles, landed, strict=True)]

    def after(self, settle: Settle, at: int | None) -> int | None:
        raise NotImplementedError


@mutant("ack-after-deadline", kills="Q-09")
class AckAfterDeadline(Landing):
    def after(self, settle: Settle, at: int | None) -> int | None:
        row, backlog = self.row(settle), self.backlog(settle.queue)
        if at is None and isinstance(settle, Ack) and row and backlog and row.token == settle.token:
            backlog.remove(row)
            return self.now()
        return at


@mutant("heartbeat-revives", kills="Q-14")
class HeartbeatRevives(Landing):
    def after(self, settle: Settle, at: int | None) -> int | None:
        row, backlog = self.row(settle), self.backlog(settle.queue)
        if at is None and isinstance(settle, Heartbeat) and row and backlog and row.token == settle.token:
            backlog.replace(row, row._replace(deadline=self.now() + settle.window), self.now())
            return self.now() + settle.window
        return at


@mutant("retry-resets-attempts", kills="Q-11")
class RetryResetsAttempts(Landing):
    def after(self, settle: Settle, at: int | None) -> int | None:
        if at is not None and isinstance(settle, Retry):
            self.overwrite(settle, attempts=0)
        return at


@mutant("release-costs-an-attempt", kills="Q-27")
class ReleaseCostsAnAttempt(Landing):
    def after(self, settle: Settle, at: int | None) -> int | None:
        row = self.row(settle)
        if at is not None and isinstance(settle, Release) and row is not None:
            self.overwrite(settle, attempts=row.attempts + 1)
        return at


@mutant("cancel-takes-processing", kills="Q-18")
class CancelTakesProcessing(Landing):
    def after(self, settle: Settle, at: int | None) -> int | None:
        row, backlog = self.row(settle), self.backlog(settle.queue)
        if at is None and isinstance(settle, Cancel) and row and backlog:
            backlog.remove(row)
            return self.now()
        return at


@mutant("redrive-keeps-attempts", kills="Q-19")
class RedriveKeepsAttempts(Looking):
    async def settle_jobs(self, settles: Sequence[Settle]) -> Sequence[int | None]:
        dead = {id: job for backlog in self._queues._backlogs.values() for id, job in backlog.dead.items()}
        landed = await super().settle_jobs(settles)
        for settle, at in zip(settles, landed, strict=True):
            if at is not None and isinstance(settle, Redrive):
                self.overwrite(settle, attempts=dead[settle.id].attempts)
        return landed


def _swapped(settles: Sequence[Settle], swap: Callable[[Any], Settle], kind: type) -> list[Settle]:
    return [swap(settle) if isinstance(settle, kind) else settle for settle in settles]


@mutant("ack-keeps-the-row", kills="Q-10")
class AckKeepsTheRow(MemEngine):
    async def settle_jobs(self, settles: Sequence[Settle]) -> Sequence[int | None]:
        return await super().settle_jobs(
            _swapped(settles, lambda ack: Fail(ack.queue, ack.id, ack.token, "done"), Ack)
        )


@mutant("dead-row-vanishes", kills="Q-13")
class DeadRowVanishes(MemEngine):
    async def settle_jobs(self, settles: Sequence[Settle]) -> Sequence[int | None]:
        return await super().settle_jobs(
            _swapped(settles, lambda fail: Ack(fail.queue, fail.id, fail.token), Fail)
        )


@mutant("contention-surfaces", kills="Q-26")
class ContentionSurfaces(MemEngine):
    """A sweep holds rows while it looks, and a settle that meets it is chosen as the victim."""

    _sweeping = 0

    async def sweep_jobs(self, queue: str) -> int:
        self._sweeping += 1
        try:
            await asyncio.sleep(0)
            return await super().sweep_jobs(queue)
        finally:
            self._sweeping -= 1

    async def settle_jobs(self, settles: Sequence[Settle]) -> Sequence[int | None]:
        if self._sweeping:
            raise DatabaseError("deadlock detected")
        return await super().settle_jobs(settles)


@mutant("a-handle-settles-twice", kills="Q-15")
def a_handle_settles_twice(patch: Patch) -> None:
    original = JobHandle._settle

    async def settle(self: JobHandle, *args: Any) -> bool:
        try:
            return await original(self, *args)
        finally:
            self._consumed = None

    patch.attribute(JobHandle, "_settle", settle)


@mutant("retry-outlives-the-budget", kills="Q-11")
class RetryOutlivesTheBudget(MemEngine):
    """Its handles think that there is one attempt more."""

    async def claim_jobs(self, queue: str, worker_ids: Sequence[str]) -> Claimed:
        claimed = await super().claim_jobs(queue, worker_ids)
        return claimed._replace(
            jobs=[job._replace(max_attempts=job.max_attempts + 1) for job in claimed.jobs]
        )


@mutant("curve-never-doubles", kills="Q-12")
def curve_never_doubles(patch: Patch) -> None:
    original = backoff.delay
    patch.attribute(backoff, "delay", lambda attempts, base, random: original(1, base, random))


@mutant("curve-without-jitter", kills="Q-12")
def curve_without_jitter(patch: Patch) -> None:
    patch.attribute(
        backoff, "delay", lambda attempts, base, random: min(base << attempts - 1, max(base, backoff.CEILING))
    )


@mutant("error-text-cut-in-characters", kills="Q-25")
def error_text_cut_in_characters(patch: Patch) -> None:
    original = payload.error_text

    def error_text(error: str | BaseException | None, default: str, limit: int) -> str:
        return original(error, default, 4 * limit)[:limit]

    patch.attribute(alkstore.job.payload, "error_text", error_text)


# ---------------------------------------------------------------- dead, expired, swept, counted


@mutant("expired-processing-row-stranded", kills=("Q-16", "Q-17"))
def expired_processing_row_stranded(patch: Patch) -> None:
    original = Backlog.sweep

    def sweep(self: Backlog, now: int) -> int:
        held = [e for e in self._expiries if (row := self.rows.get(e & ID)) and row.deadline is not None]
        self._expiries[:] = sorted(set(self._expiries) - set(held))
        moved = original(self, now)
        self._expiries[:] = sorted([*self._expiries, *held])
        return moved

    patch.attribute(Backlog, "sweep", sweep)


@mutant("sweep-moves-live-claims", kills="Q-17")
class SweepMovesLiveClaims(Looking):
    async def sweep_jobs(self, queue: str) -> int:
        moved, backlog = await super().sweep_jobs(queue), self.backlog(queue)
        for row in list(backlog.rows.values()) if backlog is not None else ():
            if backlog is not None and row.expires_at is not None and self.now() >= row.expires_at:
                backlog.bury(row, "expired", self.now())
                moved += 1
        return moved


@mutant("expired-counted-as-ready", kills="Q-20")
class ExpiredCountedAsReady(MemEngine):
    async def count_jobs(self, queue: str) -> JobCounts:
        counts = await super().count_jobs(queue)
        return counts._replace(ready=counts.ready + counts.stale, stale=0)


# ---------------------------------------------------------------- around a handle


@mutant("tx-ack-is-ignored", kills="Q-23")
def tx_ack_is_ignored(patch: Patch) -> None:
    async def settle_jobs(self: MemTransaction, settles: Sequence[Ack]) -> Sequence[int | None]:
        return [self._state.clock.now()] * len(settles)

    patch.attribute(MemTransaction, "settle_jobs", settle_jobs)


@mutant("rolled-back-ack-stays", kills="Q-23")
def rolled_back_ack_stays(patch: Patch) -> None:
    async def settle_jobs(self: MemTransaction, settles: Sequence[Ack]) -> Sequence[int | None]:
        return self._queues.settle(settles)

    patch.attribute(MemTransaction, "settle_jobs", settle_jobs)


Exit = Callable[
    [JobHandle, type[BaseException] | None, BaseException | None, TracebackType | None], Awaitable[None]
]


@mutant("lost-ack-is-silent", kills="Q-28")
def lost_ack_is_silent(patch: Patch) -> None:
    original: Exit = JobHandle.__aexit__

    async def leave(self: JobHandle, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if error is None and self._consumed is None:
            await self.ack()
        else:
            await original(self, kind, error, traceback)

    patch.attribute(JobHandle, "__aexit__", leave)


@mutant("exception-acks", kills="Q-28")
def exception_acks(patch: Patch) -> None:
    original: Exit = JobHandle.__aexit__

    async def leave(self: JobHandle, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, Exception) and self._consumed is None:
            await self.ack()
        else:
            await original(self, kind, error, traceback)

    patch.attribute(JobHandle, "__aexit__", leave)
