"""Jobs: how they go to the script and come back."""

from collections.abc import Sequence
from typing import Any, Final

from alkstore.engine import (
    Cancel,
    Claimed,
    Fail,
    Heartbeat,
    JobCounts,
    JobFilter,
    JobRecord,
    JobState,
    NewJob,
    Redrive,
    Retry,
    Settle,
)
from alkstore_redis.state import MOST, Area, found, number, optional, text

__all__ = ["Queues", "packed", "record"]


def packed(job: NewJob) -> list[object]:
    """Give a new job as `make` of queue.lua takes it; a priority so that high sorts first."""
    return [
        job.queue, job.payload.decode(), job.headers.decode(), text(~job.priority), optional(job.delay), optional(job.run_at),
        text(job.visibility_timeout), text(job.max_attempts), text(job.base_delay), optional(job.expires),
    ]  # fmt: skip


_READ: Final[tuple[Any, ...]] = (
    number, str, str.encode, str.encode, JobState, lambda text: ~number(text), number, number, number, number, number,
    number, str, number, number, number, str, str, number, number,
)  # fmt: skip


def record(values: Sequence[str | bool]) -> JobRecord:
    """Read a job as `shown` of queue.lua gives it."""
    read = zip(_READ, values, strict=True)
    return JobRecord._make(None if value is False else convert(value) for convert, value in read)


class Queues(Area):
    """Everything about jobs."""

    async def insert_jobs(self, jobs: Sequence[NewJob]) -> Sequence[int]:
        return [number(id) for id in await self._state.run("insert_jobs", [packed(job) for job in jobs])]

    async def find_jobs(self, queue: str, where: JobFilter) -> Sequence[JobRecord]:
        ids = where.ids is not None and [text(id) for id in sorted({*where.ids})]
        state = where.state is not None and where.state.value
        error = where.error is not None and where.error
        rows = await self._state.run(
            "find_jobs", queue, ids, state, error, text(where.after), min(where.limit, MOST)
        )
        return [record(values) for values in rows]

    async def count_jobs(self, queue: str) -> JobCounts:
        *counts, oldest, now = await self._state.run("count_jobs", queue)
        return JobCounts._make([*counts, number(now) - number(oldest) if oldest else None])

    async def claim_jobs(self, queue: str, worker_ids: Sequence[str]) -> Claimed:
        taken, next_at = await self._state.run("claim_jobs", queue, list(worker_ids))
        return Claimed([record(values) for values in taken], found(next_at))

    async def settle_jobs(self, settles: Sequence[Settle]) -> Sequence[int | None]:
        instants = await self._state.run("settle_jobs", [_settle(settle) for settle in settles])
        return [found(at) for at in instants]

    async def sweep_jobs(self, queue: str) -> int:
        return int(await self._state.run("sweep_jobs", queue))

    async def purge_jobs(self, queue: str, older_than: int) -> int:
        return int(await self._state.run("purge_jobs", queue, older_than > 0 and text(-older_than)))


def _settle(settle: Settle) -> list[object]:
    given: list[object] = [type(settle).__name__, settle.queue, text(settle.id)]
    if isinstance(settle, (Cancel, Redrive)):
        return given
    given.append(text(settle.token))
    match settle:
        case Retry():
            given += [text(settle.delay), settle.error is not None and settle.error]
        case Fail():
            given.append(settle.error)
        case Heartbeat():
            given.append(text(settle.window))
    return given
