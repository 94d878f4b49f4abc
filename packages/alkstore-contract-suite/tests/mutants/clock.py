"""Engines that see or follow time wrongly, each in exactly one way."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from mutant import Patch, mutant

from alkstore import Queue
from alkstore.clock import Clock, Timer
from alkstore.engine import Fired, NewJob, NewSchedule, ScheduleRecord, Taken
from alkstore.numbers import shift
from alkstore_mem.engine import MemEngine


class _Seen:
    """A clock as an engine sees it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def now(self) -> int:
        return self.clock.now()

    def call_at(self, instant: int, callback: Callable[[], object]) -> Timer:
        return self.clock.call_at(instant, callback)


class _WholeSeconds(_Seen):
    def now(self) -> int:
        return self.clock.now() // 1_000_000 * 1_000_000


@mutant("now-in-whole-seconds", kills="CLK-01", wide="every instant is wrong")
class NowInWholeSeconds(MemEngine):
    def __init__(self, clock: Clock, *, wait_timeout: float = 30.0) -> None:
        super().__init__(_WholeSeconds(clock), wait_timeout=wait_timeout)


class _GoesOn(_Seen):
    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._start = time.monotonic_ns()

    def now(self) -> int:
        return self.clock.now() + (time.monotonic_ns() - self._start) // 1_000


@mutant("time-goes-on-by-itself", kills="CLK-03", wide="every row holds the time still")
class TimeGoesOnByItself(MemEngine):
    def __init__(self, clock: Clock, *, wait_timeout: float = 30.0) -> None:
        super().__init__(_GoesOn(clock), wait_timeout=wait_timeout)


class _Never:
    def cancel(self) -> None:
        """There is nothing to forget."""


class _WakesNobody(_Seen):
    def call_at(self, instant: int, callback: Callable[[], object]) -> Timer:
        return _Never()


@mutant("instants-wake-nobody", kills="CLK-02", wide="whatever waits for an instant")
class InstantsWakeNobody(MemEngine):
    def __init__(self, clock: Clock, *, wait_timeout: float = 30.0) -> None:
        super().__init__(_WakesNobody(clock), wait_timeout=wait_timeout)


@mutant(
    "expired-one-microsecond-late",
    kills="CLK-01",
    wide="rows stop at the very instant at which a job expires",
)
class ExpiredOneMicrosecondLate(MemEngine):
    async def insert_jobs(self, jobs: Sequence[NewJob]) -> Sequence[int]:
        return await super().insert_jobs(
            [job if job.expires is None else job._replace(expires=job.expires + 1) for job in jobs]
        )


@mutant("held-at-the-deadline", kills="CLK-01", wide="rows stop at the very deadline of a claim")
class HeldAtTheDeadline(MemEngine):
    async def insert_jobs(self, jobs: Sequence[NewJob]) -> Sequence[int]:
        return await super().insert_jobs(
            [job._replace(visibility_timeout=job.visibility_timeout + 1) for job in jobs]
        )


@mutant("lock-held-at-its-end", kills="CLK-01", wide="rows stop at the very end of a lock")
class LockHeldAtItsEnd(MemEngine):
    async def take_lock(self, name: str, ttl: int) -> Taken:
        return await super().take_lock(name, ttl + 1)


@mutant("fires-one-microsecond-late", kills="CLK-01", wide="rows stop at the very boundary of a schedule")
class FiresOneMicrosecondLate(MemEngine):
    async def put_schedule(self, schedule: NewSchedule) -> ScheduleRecord:
        record = await super().put_schedule(schedule)
        late = record._replace(next_fire_at=shift(record.next_fire_at, 1))
        self._schedules._records[schedule.name] = late
        return record


@mutant("boundaries-follow-the-clock-back", kills="CLK-03")
class BoundariesFollowTheClockBack(MemEngine):
    _latest = 0

    async def fire_schedules(self, lease: tuple[str, int] | None) -> Fired:
        now = self._state.clock.now()
        if now < self._latest:
            for name, record in self._schedules._records.items():
                again = record._replace(next_fire_at=shift(now, record.rule.every))
                self._schedules._records[name] = again
        self._latest = now
        return await super().fire_schedules(lease)


@mutant("timeouts-run-on-the-stores-clock", kills="CLK-02")
def timeouts_run_on_the_stores_clock(patch: Patch) -> None:
    original = Queue._wait_claim

    async def patient(queue: Queue, worker: str, limit: float | None, stop: Any) -> Any:
        # The storage's clock stands, so a limit measured by it never comes.
        return await original(queue, worker, None if limit else limit, stop)

    patch.attribute(Queue, "_wait_claim", patient)
