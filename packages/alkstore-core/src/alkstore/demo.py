"""The demo: index a source tree with every mechanism of alkstore, and check that nothing was lost.

One job a file. Workers claim, parse, and in one transaction publish the facts to a stream, put an entry into an outbox
and ack; they are tasks, or processes that may be killed while they work. Files that do not parse retry on the curve and
end dead. A delivery writes the outbox to a JSON Lines file, a subscriber adds the facts up, a schedule takes snapshots
of the progress, a named lock guards the report.
"""

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from alkstore.demo_crew import Crew, CrewPlan, CrewReport, check_plan
from alkstore.demo_pool import parsing
from alkstore.demo_proof import Proof, prove
from alkstore.demo_source import Facts, find_sources, write_broken
from alkstore.demo_work import Areas, Parse, Worker
from alkstore.errors import LeadershipLost
from alkstore.job import JobHandle
from alkstore.queue import Queue
from alkstore.stop import StopToken
from alkstore.store import Store

__all__ = ["Report", "Workers", "run"]

LOGGER: Final = logging.getLogger("alkstore")
TASKS: Final = 4
LOOK_EVERY: Final = 0.1
"""Seconds between two looks at what is left, for the progress bar and the end."""
PATIENCE: Final = 30.0
"""Seconds without any progress after which the demo gives up and says what is missing."""
WINDOW: Final = 2.0
"""Seconds after which a killed worker's job is taken up again: many times what the largest file takes to parse."""

Progress = Callable[[int, int], None]


@dataclass
class Report:
    """What the demo did, and whether it adds up."""

    root: str
    files: int = 0
    acked: int = 0
    seconds: float = 0.0
    lines: int = 0
    functions: int = 0
    classes: int = 0
    events: int = 0
    snapshots: int = 0
    delivered: int = 0
    longest: list[Facts] = field(default_factory=list)
    dead: list[tuple[str, str]] = field(default_factory=list)
    proof: Proof | None = None
    crew: CrewReport | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether every check held."""
        return not self.problems


class Workers(Protocol):
    """Who does the jobs."""

    @property
    def is_over(self) -> bool:
        """Whether nobody works any more, though nobody was told to stop."""
        ...

    async def run(self, stop: StopToken) -> None:
        """Work until ``stop``."""
        ...


async def run(
    store: Store,
    root: Path | None,
    scratch: Path,
    progress: Progress = lambda done, total: None,
    *,
    plan: CrewPlan | None = None,
) -> Report:
    """Index a source tree through an open store.

    Args:
        root: The tree; the standard library by default.
        scratch: A folder for the broken files and for the delivered facts.
        progress: Told how many files are done, and of how many.
        plan: Who works, if not tasks of this process; its URL names the storage of ``store``.

    Raises:
        InvalidArgument: ``root`` cannot be indexed, or ``plan`` names a storage that other processes cannot see.
    """
    folder, sources = find_sources(root)
    if plan is not None:
        check_plan(plan)
    areas = Areas(store, f"demo-{secrets.token_hex(4)}")
    indexing = _Indexing(areas, folder, [*sources, *write_broken(scratch)], scratch)
    if plan is None:
        files = store.queue(areas.files.name, base_delay=0.2, max_attempts=3)
        async with parsing() as parse:
            return await indexing.run(files, _Tasks(areas, parse), progress)
    # A kill uses up an attempt and the rest of its window: there are some to spare, and they are short.
    files = store.queue(areas.files.name, visibility_timeout=WINDOW, base_delay=0.05, max_attempts=5)
    crew = Crew(plan, areas.run)
    report = await indexing.run(files, crew, progress)
    report.crew = crew.report
    report.problems += crew.problems()
    return report


class _Tasks:
    """Workers that are tasks of this process."""

    is_over = False

    def __init__(self, areas: Areas, parse: Parse) -> None:
        self._worker = Worker(areas, parse)

    async def run(self, stop: StopToken) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(TASKS):
                tasks.create_task(self._worker.run(stop))


class _Indexing:
    """One run."""

    def __init__(self, areas: Areas, root: Path, sources: list[Path], scratch: Path) -> None:
        self._areas = areas
        self._store = areas.store
        self._sources = sources
        self._target = scratch / "facts.jsonl"
        self._stop = StopToken()
        self._ids: list[int] = []
        self._seen: dict[str, int] = {}
        self._report = Report(root=str(root), files=len(sources))

    async def run(self, files: Queue, workers: Workers, progress: Progress) -> Report:
        began = time.perf_counter()
        areas = self._areas
        self._target.touch()
        name = f"{areas.run}.progress"
        await self._store.schedule(name, "@every 1s", areas.snapshots, {"run": areas.run})
        self._ids = await files.enqueue_batch([{"path": str(path)} for path in self._sources])
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(workers.run(self._stop))
            tasks.create_task(areas.outbox.run(self._deliver, stop=self._stop))
            tasks.create_task(self._take_snapshots())
            tasks.create_task(self._lead())
            aggregate = tasks.create_task(self._aggregate())
            await self._wait_for_the_end(workers, progress)
            self._stop.cancel()
            aggregate.cancel()
        await self._store.unschedule(name)
        self._report.seconds = time.perf_counter() - began
        async with self._store.lock(f"{areas.run}.report", timeout=10):
            await self._check()
        return self._report

    async def _deliver(self, handle: JobHandle) -> None:
        with self._target.open("a", encoding="utf-8") as target:
            target.write(handle.job.payload_bytes.decode("utf-8") + "\n")

    async def _take_snapshots(self) -> None:
        async for handle in self._areas.snapshots.claims(stop=self._stop):
            async with handle:
                stats = await self._areas.files.stats()
                LOGGER.info("%d files wait, %d in hand", stats.ready + stats.delayed, stats.processing)
                self._report.snapshots += 1

    async def _lead(self) -> None:
        try:
            await self._store.run_schedules(self._stop)
        except LeadershipLost:
            LOGGER.info("another process leads the schedules of this storage")

    async def _aggregate(self) -> None:
        report = self._report
        async with self._areas.facts.subscribe("aggregate") as events:
            async for event in events:
                facts = event.payload_as(Facts)
                self._seen[facts["path"]] = self._seen.get(facts["path"], 0) + 1
                report.events += 1
                report.lines += facts["lines"]
                report.functions += facts["functions"]
                report.classes += facts["classes"]
                report.longest = sorted([*report.longest, facts], key=lambda each: -each["longest_lines"])[:5]
                await events.save(event)

    async def _wait_for_the_end(self, workers: Workers, progress: Progress) -> None:
        before, since = (-1, -1), time.monotonic()
        while not workers.is_over:
            left = (await self._files_left(), await self._follow_ups_left())
            progress(self._report.files - left[0], self._report.files)
            if left == (0, 0):
                return
            if left != before:
                before, since = left, time.monotonic()
            elif time.monotonic() - since > PATIENCE:
                self._expect(False, f"the work goes on: nothing was done for {PATIENCE:.0f} s")
                return
            await asyncio.sleep(LOOK_EVERY)

    async def _files_left(self) -> int:
        stats = await self._areas.files.stats()
        if stats.stale:  # killed at the last attempt: it is dead once somebody looks
            await self._areas.files.sweep_expired()
        return stats.ready + stats.delayed + stats.processing + stats.stale

    async def _follow_ups_left(self) -> int:
        """Count the entries that are not delivered, and what the subscriber has not seen."""
        stats = await self._areas.outbox.jobs.stats()
        facts = self._areas.facts
        unseen = await facts.head() - await facts.get_offset("aggregate")
        return stats.ready + stats.delayed + stats.processing + unseen

    # ------------------------------------------------------------ the checks

    async def _check(self) -> None:
        report, areas = self._report, self._areas
        report.proof, dead = await prove(areas, self._ids)
        report.problems += report.proof.problems()
        report.acked = report.proof.acked
        report.dead = [
            (job.payload_as(dict[str, str])["path"], (job.last_error or "").partition("\n")[0])
            for job in dead
        ]
        delivered = [
            json.loads(line)["path"] for line in self._target.read_text(encoding="utf-8").splitlines()
        ]
        report.delivered = len(delivered)
        expected = {str(path) for path in self._sources} - {path for path, _ in report.dead}
        self._expect(set(self._seen) == expected, "every file is either indexed or dead")
        self._expect(all(times == 1 for times in self._seen.values()), "every event was seen once")
        self._expect(set(delivered) == expected, "every indexed file was delivered")
        self._expect(report.events == report.acked, "events and acked jobs are equally many")
        for queue in (areas.files, areas.outbox.jobs):
            left = await queue.stats()
            self._expect(
                left.ready + left.delayed + left.processing + left.stale == 0,
                f"nothing is left in {queue.name}",
            )

    def _expect(self, holds: bool, promise: str) -> None:
        if not holds:
            self._report.problems.append(promise)
