"""Working off what there is, and coming back: for tests and batch jobs."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from alkstore import numbers
from alkstore.engine import JobFilter, JobState, Topic, TopicKind
from alkstore.stop import StopToken
from alkstore.testing import ManualClock
from alkstore.worker.lane import Lane
from alkstore.worker.outcome import Counts, Tally
from alkstore.worker.running import lanes

if TYPE_CHECKING:
    from alkstore.store import Store
    from alkstore.worker.running import Plan

__all__ = ["run_until_idle"]

PAGE: Final = 1_000


async def run_until_idle(plan: "Plan", *, include_delayed: bool) -> Counts:
    """Work until nothing is ready, or with ``include_delayed`` until nothing is left to become so."""
    store = plan.store
    store._check("Worker.run_until_idle", None, write=True)
    tally = Tally()
    async with lanes(plan, StopToken(), tally, asyncio.Event()) as work:
        while True:
            if plan.fires_schedules:
                await store.tick_schedules()
            if await _drain(work):
                continue
            at = await _next(plan) if include_delayed else None
            if at is None:
                break
            await _wait(store, at)
    return tally.counts()


async def _drain(work: Sequence[Lane]) -> int:
    """Work off what is ready in all lanes; give how many jobs that were."""
    tasks = [asyncio.ensure_future(lane.drain()) for lane in work]
    if not tasks:
        return 0
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        return sum(task.result() for task in done)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _next(plan: "Plan") -> int | None:
    """The earliest instant at which a pending job becomes ready; what has expired is no more."""
    engine, found = plan.store._engine, []
    for name in {each.queue.name for each in plan.assignments}:
        await engine.sweep_jobs(name)
        after = 0
        while page := await engine.find_jobs(
            name, JobFilter(state=JobState.PENDING, after=after, limit=PAGE)
        ):
            found += [record.run_at for record in page]
            after = page[-1].id
    return min(found, default=None)


async def _wait(store: "Store", instant: int) -> None:
    clock = getattr(store, "_clock", None)
    if isinstance(clock, ManualClock):
        await clock.set(numbers.to_datetime(instant))
        return
    async with store._watching(Topic(TopicKind.CLOCK)) as watch:
        await watch.wait(until=instant)
