"""Clearing up dead jobs: many of them, page by page."""

from typing import Final

from alkstore.queue import Queue
from alkstore.records import JobState

__all__ = ["redrive_dead"]

PAGE: Final = 1_000
"""Dead jobs that are read, and redriven, at once."""


async def redrive_dead(queue: Queue, error: str | None = None, *, most: int | None = None) -> int:
    """Make the dead jobs of a queue pending again: those whose error contains ``error``, about ``most`` of them.

    Cost: two round trips for each thousand. Gives how many it made pending.
    """
    # By ids that grow: what dies again meanwhile is met once, or this would go round for ever.
    count, after = 0, 0
    while found := await queue.list(state=JobState.DEAD, error=error, after=after, limit=PAGE):
        count += await queue.redrive(*(job.id for job in found))
        if most is not None and count >= most:
            break
        after = found[-1].id
    return count
