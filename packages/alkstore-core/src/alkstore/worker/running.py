"""A run of a worker, from its start to the last outcome."""

import asyncio
import contextvars
import logging
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from alkstore.errors import Closed, DatabaseError
from alkstore.queue import Queue
from alkstore.stop import StopToken
from alkstore.store import Store
from alkstore.threads import Threads
from alkstore.worker.handler import Selector
from alkstore.worker.keeping import Keeper
from alkstore.worker.lane import Lane, Setting
from alkstore.worker.outcome import Counts, Tally
from alkstore.worker.settling import Settling
from alkstore.worker.signals import listening

__all__ = ["Assignment", "Plan", "lanes", "run"]

LOGGER: Final = logging.getLogger("alkstore.worker")

LAST_CALL: Final = 5.0
"""Seconds for the outcomes of handlers that were cancelled at a stop; what has none by then lapses."""

CLOSING: Final = 2.0
"""Seconds that handlers have when the store is closed under them."""

TIDYING: Final = 60.0
"""Seconds between two looks for expired and long dead rows."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a worker does with one queue.

    Attributes:
        title: What messages call it.
        queue: Whose jobs.
        select: Chooses the call for a job.
        concurrency: Jobs at once.
    """

    title: str
    queue: Queue
    select: Selector
    concurrency: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What a worker does.

    Attributes:
        store: Where the jobs are.
        assignments: Its queues and outboxes.
        fires_schedules: Whether it leads the schedules when nobody else does.
        prefetch: Jobs claimed for each that may run.
        grace: Seconds that handlers have at a stop.
        keep_dead: Microseconds after which dead jobs are deleted, or None.
    """

    store: Store
    assignments: Sequence[Assignment]
    fires_schedules: bool
    prefetch: int
    grace: float
    keep_dead: int | None


async def run(plan: Plan, stop: StopToken | None, *, signals: bool) -> Counts:
    """Work until told to stop, or until the store closes; what must not happen is raised."""
    store, token, hurry = plan.store, StopToken(), asyncio.Event()
    store._check("Worker.run", None, write=True)
    tally = Tally()
    if stop is not None and stop.is_cancelled:
        return tally.counts()
    with ExitStack() as stack:
        if stop is not None:
            stack.callback(stop.subscribe(token.cancel))
        if signals:
            stack.enter_context(listening(token, hurry))
        async with lanes(plan, token, tally, hurry) as work:
            LOGGER.info("worker %s is at work on %s", store._worker_id, _titles(plan))
            await _until_stopped(plan, token, work)
            LOGGER.info("worker %s stops; running handlers have %g s", store._worker_id, plan.grace)
    counts = tally.counts()
    LOGGER.info("worker %s has stopped: %s", store._worker_id, counts)
    return counts


async def _until_stopped(plan: Plan, token: StopToken, work: Sequence[Lane]) -> None:
    # What was claimed with the store must be given back by it: its close waits for this.
    background: list[Coroutine[Any, Any, None]] = [_tidy(plan, token)]
    if plan.fires_schedules:
        background.append(plan.store.supervise_schedules(token))
    tasks = [asyncio.ensure_future(each) for each in (*(lane.run() for lane in work), *background)]
    stopped = asyncio.ensure_future(token.wait())
    try:
        await asyncio.wait((stopped, *tasks), return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in (stopped, *tasks):
            task.cancel()
        await asyncio.wait((stopped, *tasks))


@asynccontextmanager
async def lanes(
    plan: Plan, token: StopToken, tally: Tally, hurry: asyncio.Event
) -> AsyncIterator[Sequence[Lane]]:
    """Give the lanes with what they share; in the end let what runs end, within the grace."""
    store = plan.store
    keeper = Keeper(store)
    threads = Threads("alkstore-handler")
    setting = Setting(store, token, keeper, Settling(store, tally), threads, contextvars.copy_context())
    with store._inside:
        keeping = asyncio.ensure_future(keeper.run())
        work = [
            Lane(setting, each.queue, each.select, concurrency=each.concurrency, prefetch=plan.prefetch)
            for each in plan.assignments
        ]
        try:
            yield work
            # A store that is being closed waits for its own limit, and no longer.
            grace = plan.grace if store._state == "open" else min(plan.grace, CLOSING)
            await _wind_up(work, grace, hurry)
        except BaseException:
            # A bug, or the run was cancelled: no grace, but what is claimed is given back all the same.
            await _wind_up(work, 0.0, hurry)
            raise
        finally:
            for lane in work:
                await lane.close()
            keeping.cancel()
            await asyncio.wait((keeping,))
            threads.close()


async def _wind_up(work: Sequence[Lane], grace: float, hurry: asyncio.Event) -> None:
    """Let what runs end within the grace, then give it back."""
    for lane in work:
        lane.stop()
    empty = asyncio.ensure_future(_empty(work))
    hurried = asyncio.ensure_future(hurry.wait())
    try:
        await asyncio.wait((empty, hurried), timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        if not empty.done():
            LOGGER.warning("worker: handlers still run; they are cancelled, and their jobs given back")
            for lane in work:
                lane.interrupt()
            await asyncio.wait((empty,), timeout=LAST_CALL)
        if not empty.done():
            LOGGER.warning("worker: some jobs could not be given back; they lapse")
    finally:
        empty.cancel()
        hurried.cancel()
        await asyncio.wait((empty, hurried))


async def _empty(work: Sequence[Lane]) -> None:
    for lane in work:  # they claim no more, so one that is empty stays so
        await lane.empty()


async def _tidy(plan: Plan, token: StopToken) -> None:
    """Let expired and long dead rows go, again and again; a failure waits for the next time."""
    store = plan.store
    while not token.is_cancelled:
        for each in plan.assignments:
            try:
                await store._engine.sweep_jobs(each.queue.name)
                if plan.keep_dead is not None:
                    await store._engine.purge_jobs(each.queue.name, plan.keep_dead)
            except Closed:
                return
            except DatabaseError as error:
                LOGGER.warning("%s could not be tidied: %s", each.title, error)
        # Not all workers of a fleet at the same time.
        await store._rest(TIDYING * store._random.uniform(0.5, 1.0), token)
        if store._state != "open":
            return


def _titles(plan: Plan) -> str:
    titles: Iterable[str] = (each.title for each in plan.assignments)
    return ", ".join((*titles, *(("schedules",) if plan.fires_schedules else ())))
