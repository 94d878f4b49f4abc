"""Steps that the queue rows share."""

import asyncio
from datetime import datetime, timedelta
from typing import Final

from alkstore import Job, JobHandle, JobState, Queue
from alkstore_contract_suite.context import Context

STORED: Final = ("plain", "second", "reopen", "crash-drop", "crash-kill")
"""The modes of a promise about what is written: whoever looks later, it is there."""

LAPSED: Final = "visibility timeout lapsed on the last attempt"
EXPIRED: Final = "expired"


async def take(
    ctx: Context,
    queue: Queue,
    promise: str = "a ready job is given to whoever claims",
    *,
    worker_id: str | None = None,
) -> JobHandle:
    """Claim one job that must be there."""
    handle = await queue.claim_one(worker_id=worker_id)
    ctx.that(handle is not None, promise, observed=[] if handle else await queue.list())
    assert handle is not None
    return handle


async def read(
    ctx: Context, queue: Queue, job_id: int, promise: str = "a row stays until it is acked"
) -> Job:
    """Read one job that must be there."""
    job = await queue.get_job(job_id)
    ctx.that(job is not None, promise, observed=job)
    assert job is not None
    return job


async def take_nothing(ctx: Context, queue: Queue, promise: str) -> None:
    """Claim and get nothing."""
    handle = await queue.claim_one()
    ctx.expect(None if handle is None else handle.job, None, promise)


async def given(ctx: Context, waiter: "asyncio.Task[JobHandle | None]", promise: str) -> JobHandle:
    """Wait for a waiting claim that must get a job."""
    handle = await ctx.soon(waiter, promise)
    ctx.that(handle is not None, promise, observed=handle)
    assert handle is not None
    return handle


async def drain(queue: Queue) -> list[int]:
    """Claim one by one until nothing is ready; gives the ids in the order in which they came."""
    ids: list[int] = []
    while (handle := await queue.claim_one()) is not None:
        ids.append(handle.job.id)
    return ids


async def bury(ctx: Context, queue: Queue, payload: object = None) -> int:
    """Enqueue one job and fail it; gives its id. Nothing else may be ready in the queue."""
    job_id = await queue.enqueue(payload)
    handle = await take(ctx, queue)
    await handle.fail("buried")
    return job_id


async def states(queue: Queue) -> dict[int, JobState]:
    """Read the state of every row of a queue of at most 5,000."""
    return {job.id: job.state for job in await queue.list(limit=5_000)}


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


def later(instant: datetime, value: float) -> datetime:
    return instant + timedelta(seconds=value)
