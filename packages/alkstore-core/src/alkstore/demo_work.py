"""What a worker of the demo does with a job: the same in a task of the demo and in a process of its own."""

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from alkstore.demo_source import UNREADABLE, Facts
from alkstore.errors import ClaimLost
from alkstore.job import JobHandle
from alkstore.stop import StopToken
from alkstore.store import Store

__all__ = ["ATTEMPT", "JOB", "Areas", "Parse", "Worker"]

LOGGER: Final = logging.getLogger("alkstore")

JOB: Final = "job"
"""The header by which an event tells the id of the job whose ack it was committed with."""
ATTEMPT: Final = "attempt"
"""The header by which it tells which claim of that job it was, counted from 1."""

Parse: TypeAlias = Callable[[str], Awaitable[Facts]]


class Areas:
    """What one run uses of a store. The names are the run's own, so that runs on one storage do not meet."""

    def __init__(self, store: Store, run: str) -> None:
        self.run = run
        self.store = store
        self.files = store.queue(f"{run}.files")
        self.snapshots = store.queue(f"{run}.snapshots")
        self.facts = store.stream(f"{run}.facts")
        self.outbox = store.outbox(f"{run}.delivery")


class Worker:
    """Claims files, parses them, and commits what it found together with the ack."""

    def __init__(self, areas: Areas, parse: Parse) -> None:
        self._areas = areas
        self._parse = parse

    async def run(self, stop: StopToken) -> None:
        """Work until ``stop``."""
        async for handle in self._areas.files.claims(stop=stop):
            try:
                async with handle:
                    await self._index(handle)
            except UNREADABLE as error:
                # The row carries the error: it is retried on the curve, and dead after its last attempt.
                LOGGER.debug("attempt %d of %r: %s", handle.job.attempts, handle.job.payload, error)
            except ClaimLost as error:
                # Slower than the window allows, on a busy machine: another worker has it, and nothing of this landed.
                LOGGER.info("%s", error)

    async def _index(self, handle: JobHandle) -> None:
        areas, job = self._areas, handle.job
        path = job.payload_as(dict[str, str])["path"]
        facts = await self._parse(path)
        headers = {JOB: str(job.id), ATTEMPT: str(job.attempts)}
        async with areas.store.begin_tx() as tx:
            await tx.publish(areas.facts, facts, key=path[-200:] or None, headers=headers)
            await tx.outbox_enqueue(areas.outbox, facts)
            await tx.ack(handle)
