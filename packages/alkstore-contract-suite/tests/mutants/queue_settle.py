"""Engines that settle, sweep, or count jobs wrongly, each in exactly one way."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from mutant import Patch, mutant

from alkstore import DatabaseError, JobHandle, backoff, payload, queue
from alkstore.engine import (
    Ack,
    Cancel,
    Claimed,
    Fail,
    Heartbeat,
    JobCounts,
    JobRecord,
    Redrive,
    Release,
    Retry,
    Settle,
)
from alkstore_mem.backlog import ID, Backlog
from alkstore_mem.engine import MemEngine


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
            end = self.now() + settle.window
            self.overwrite(settle, deadline=end)
            backlog.place(row._replace(deadline=end), self.now())
            return end
        return at


@mutant("retry-resets-attempts", kills="Q-11", wide="whatever retries more than once")
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


@mutant("ack-keeps-the-row", kills="Q-10", wide="whatever looks for the rest of a queue")
class AckKeepsTheRow(MemEngine):
    async def settle_jobs(self, settles: Sequence[Settle]) -> Sequence[int | None]:
        return await super().settle_jobs(
            _swapped(settles, lambda ack: Fail(ack.queue, ack.id, ack.token, "done"), Ack)
        )


@mutant("dead-row-vanishes", kills="Q-13", wide="whatever looks for dead jobs")
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


@mutant("retry-outlives-the-budget", kills="Q-11", wide="whatever retries to the end")
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

    patch.attribute(payload, "error_text", error_text)


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


@mutant("run-once-settles-what-its-handler-settled", kills="Q-28")
def run_once_settles_what_its_handler_settled(patch: Patch) -> None:
    async def contained(handle: JobHandle, handler: Callable[[JobHandle], Awaitable[object]]) -> None:
        async with handle:
            try:
                await handler(handle)
            except Exception as error:  # whatever the handler raises: that is the point
                await handle.retry(error=error)

    patch.attribute(queue, "_handle_contained", contained)
