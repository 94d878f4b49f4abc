"""Engines on one file that are wrong only where several processes, or the end of one, are concerned."""

import asyncio
import os
import time
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from mutant import mutant

from alkstore import JobState
from alkstore.clock import Clock
from alkstore.engine import (
    Claimed,
    Fired,
    JobFilter,
    JobRecord,
    LockRecord,
    NewJob,
    Taken,
    Topic,
    TopicKind,
    Watch,
)
from alkstore.interval import due_boundaries
from alkstore_mem.engine import MemEngine
from alkstore_sqlite.engine import SqliteEngine

LATER: Final = 1.0
"""Seconds of real time after which an acknowledged write is made; a case that kills a process ends before."""

GAP: Final = 0.003
"""Seconds of real time between a look and what is done about it."""


@mutant(
    "claim-gives-two-processes-one-job",
    kills=("Q-07", "OBX-08"),
    wide="whatever claims while another claim is held",
)
class ClaimGivesTwoProcessesOneJob(SqliteEngine):
    """A claim gives what another process holds in place of its first job, if it finds any."""

    async def claim_jobs(self, queue: str, worker_ids: Sequence[str]) -> Claimed:
        claimed = await super().claim_jobs(queue, worker_ids)
        held = await self.find_jobs(queue, JobFilter(state=JobState.PROCESSING))
        others: list[JobRecord] = [job for job in held if job.worker_id not in worker_ids]
        if not claimed.jobs or not others:
            return claimed
        return Claimed([others[0], *claimed.jobs[1:]], claimed.next_at)


@mutant(
    "no-wake-across-processes",
    kills=("Q-21", "WAKE-01", "LOCK-06", "SCHED-12"),
    wide="whatever waits for the commit of another store",
)
class NoWakeAcrossProcesses(SqliteEngine):
    """Whatever others commit is seen by who looks, and wakes nobody."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._wakes._reported = lambda reports: None  # type: ignore[method-assign]  # the fault


_LOCKS: Final[dict[tuple[int, int], MemEngine]] = {}
"""The locks of a process, by its id and its clock."""


@mutant(
    "two-processes-hold-one-lock",
    kills=("LOCK-01", "LOCK-05"),
    wide="whatever excludes by a lock, leadership too",
)
class TwoProcessesHoldOneLock(SqliteEngine):
    """Locks are known to the process that took them, and to no other."""

    def __init__(self, link: Any, path: str, clock: Clock, **named: Any) -> None:
        super().__init__(link, path, clock, **named)
        self._own = _LOCKS.setdefault((os.getpid(), id(clock)), MemEngine(clock))

    async def take_lock(self, name: str, ttl: int) -> Taken:
        return await self._own.take_lock(name, ttl)

    async def renew_lock(self, name: str, fence: int, ttl: int) -> int | None:
        return await self._own.renew_lock(name, fence, ttl)

    async def list_locks(self) -> Sequence[LockRecord]:
        return await self._own.list_locks()

    async def watch(self, topic: Topic) -> Watch:
        return await (self._own.watch(topic) if topic.kind is TopicKind.LOCK else super().watch(topic))


@mutant("two-processes-fire-one-boundary", kills="SCHED-05", wide="whatever fires and counts what was fired")
class TwoProcessesFireOneBoundary(SqliteEngine):
    """What was due at a look is fired, though somebody else has fired it since."""

    async def fire_schedules(self, lease: tuple[str, int] | None) -> Fired:
        seen = await self.list_schedules()
        await asyncio.sleep(GAP)
        fired = await super().fire_schedules(lease)
        now = self._clock.now()
        missed = [
            NewJob(
                rule.queue,
                rule.payload,
                b"{}",
                rule.priority,
                None,
                None,
                rule.visibility_timeout,
                rule.max_attempts,
                rule.base_delay,
                rule.expires,
            )
            for rule, next_fire_at in seen
            for _ in due_boundaries(next_fire_at, rule.every, now).boundaries
        ]
        if missed and not fired.jobs:
            await self.insert_jobs(missed)
        return fired


@mutant("acknowledged-before-durable", kills="DUR-01", wide="whatever reads a position that was moved")
class AcknowledgedBeforeDurable(SqliteEngine):
    """A position is acknowledged at once and written some time later."""

    async def move_offset(self, stream: str, consumer: str, offset: int, *, backwards: bool) -> bool:
        move = super().move_offset(stream, consumer, offset, backwards=backwards)

        async def later() -> None:
            await asyncio.sleep(LATER)
            await move

        self._later = asyncio.create_task(later())
        return True


@mutant("instants-from-the-clients-clock", kills="DUR-09")
class InstantsFromTheClientsClock(SqliteEngine):
    """A lock ends when the process that took it thinks so."""

    claims_to_have: ClassVar = ("server",)

    async def take_lock(self, name: str, ttl: int) -> Taken:
        # The operating system's clock is right in every process.
        ahead = round(time.time() - time.clock_gettime(time.CLOCK_REALTIME))
        return await super().take_lock(name, ttl + ahead * 1_000_000)
