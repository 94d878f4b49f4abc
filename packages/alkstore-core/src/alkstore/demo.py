"""The demo: index a source tree with every mechanism of alkstore, and check that nothing was lost.

One job a file. Workers claim, parse, and in one transaction publish the facts to a stream, put an entry into an outbox
and ack. Files that do not parse retry on the curve and end dead. A delivery writes the outbox to a JSON Lines file, a
subscriber adds the facts up, a schedule takes snapshots of the progress, a named lock guards the report.
"""

import asyncio
import concurrent.futures
import json
import logging
import multiprocessing
import secrets
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from alkstore.demo_source import Facts, parse, standard_library, write_broken
from alkstore.engine import JobState
from alkstore.errors import InvalidArgument, LeadershipLost
from alkstore.job import JobHandle
from alkstore.stop import StopToken
from alkstore.store import Store

__all__ = ["Report", "find_sources", "run"]

LOGGER: Final = logging.getLogger("alkstore")
WORKERS: Final = 4
LOOK_EVERY: Final = 0.1
"""Seconds between two looks at the queue's counts, for the progress bar and the end."""
_DEAF: Final = (signal.SIGINT, signal.SIG_IGN)

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
    problems: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether every check held."""
        return not self.problems


def find_sources(root: Path | None) -> tuple[Path, list[Path]]:
    """List the Python files of a tree, the standard library's by default.

    Raises:
        InvalidArgument: There is no such folder, or no Python file in it.
    """
    folder = standard_library() if root is None else root
    if not folder.is_dir():
        raise InvalidArgument(f"path must be a folder with Python files, got {str(folder)!r}")
    # The standard library's own tests hold files that are broken on purpose, thousands of lines each.
    skipped = {"__pycache__"} if root is not None else {"__pycache__", "site-packages", "test", "tests"}
    found = sorted(
        path
        for path in folder.rglob("*.py")
        if path.is_file() and not skipped.intersection(path.relative_to(folder).parts)
    )
    if not found:
        raise InvalidArgument(f"path must hold at least one .py file, got {str(folder)!r}")
    return folder, found


async def run(
    store: Store, root: Path | None, scratch: Path, progress: Progress = lambda done, total: None
) -> Report:
    """Index a source tree through an open store.

    Args:
        root: The tree; the standard library by default.
        scratch: A folder for the broken files and for the delivered facts.
        progress: Told how many files are done, and of how many.

    Raises:
        InvalidArgument: ``root`` cannot be indexed.
    """
    folder, sources = find_sources(root)
    async with _parsing() as parse_in_pool:
        indexing = _Indexing(store, folder, [*sources, *write_broken(scratch)], scratch, parse_in_pool)
        return await indexing.run(progress)


@asynccontextmanager
async def _parsing() -> AsyncIterator[Callable[[str], "asyncio.Future[Facts]"]]:
    """Parse in processes where there are any, else in threads, else right here."""
    loop = asyncio.get_running_loop()
    pool: concurrent.futures.Executor
    try:
        spawn = multiprocessing.get_context("spawn")
        pool = concurrent.futures.ProcessPoolExecutor(None, spawn, signal.signal, _DEAF)
        with _deaf():
            started = loop.run_in_executor(pool, len, "")
        await started
    except (ImportError, OSError, NotImplementedError, RuntimeError):
        try:
            pool = concurrent.futures.ThreadPoolExecutor()
            await loop.run_in_executor(pool, len, "")
        except RuntimeError:
            yield _parse_here
            return

    def parse_in_pool(path: str) -> "asyncio.Future[Facts]":
        with _deaf():
            return loop.run_in_executor(pool, parse, path)

    try:
        yield parse_in_pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _deaf() -> Iterator[None]:
    """Keep Ctrl-C from the processes that a pool starts here, from their first moment on: each would print a traceback."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _parse_here(path: str) -> "asyncio.Future[Facts]":
    done: asyncio.Future[Facts] = asyncio.get_running_loop().create_future()
    try:
        done.set_result(parse(path))
    except Exception as error:
        done.set_exception(error)
    return done


class _Indexing:
    """One run: its names are its own, so that runs on one storage do not meet."""

    def __init__(
        self,
        store: Store,
        root: Path,
        sources: list[Path],
        scratch: Path,
        parse_in_pool: Callable[[str], "asyncio.Future[Facts]"],
    ) -> None:
        run_name = f"demo-{secrets.token_hex(4)}"
        self._store = store
        self._sources = sources
        self._parse = parse_in_pool
        self._files = store.queue(f"{run_name}.files", base_delay=0.2, max_attempts=3)
        self._snapshots = store.queue(f"{run_name}.snapshots")
        self._facts = store.stream(f"{run_name}.facts")
        self._outbox = store.outbox(f"{run_name}.delivery")
        self._name = run_name
        self._target = scratch / "facts.jsonl"
        self._stop = StopToken()
        self._seen: dict[str, int] = {}
        self._report = Report(root=str(root), files=len(sources))

    async def run(self, progress: Progress) -> Report:
        began = time.perf_counter()
        self._target.touch()
        await self._store.schedule(
            f"{self._name}.progress", "@every 1s", self._snapshots, {"run": self._name}
        )
        await self._files.enqueue_batch([{"path": str(path)} for path in self._sources])
        async with asyncio.TaskGroup() as tasks:
            for _ in range(WORKERS):
                tasks.create_task(self._work())
            tasks.create_task(self._outbox.run(self._deliver, stop=self._stop))
            tasks.create_task(self._take_snapshots())
            tasks.create_task(self._lead())
            aggregate = tasks.create_task(self._aggregate())
            await self._wait_for_the_end(progress)
            self._stop.cancel()
            aggregate.cancel()
        await self._store.unschedule(f"{self._name}.progress")
        self._report.seconds = time.perf_counter() - began
        async with self._store.lock(f"{self._name}.report", timeout=10):
            await self._check()
        return self._report

    async def _work(self) -> None:
        async for handle in self._files.claims(stop=self._stop):
            try:
                async with handle:
                    await self._index(handle)
            except (SyntaxError, ValueError, OSError) as error:
                # The row carries the error: it is retried on the curve, and dead after its last attempt.
                LOGGER.debug("attempt %d of %r: %s", handle.job.attempts, handle.job.payload, error)

    async def _index(self, handle: JobHandle) -> None:
        path = handle.job.payload_as(dict[str, str])["path"]
        facts = await self._parse(path)
        async with self._store.begin_tx() as tx:
            await tx.publish(self._facts, facts, key=path[-200:] or None)
            await tx.outbox_enqueue(self._outbox, facts)
            await tx.ack(handle)

    async def _deliver(self, handle: JobHandle) -> None:
        with self._target.open("a", encoding="utf-8") as target:
            target.write(handle.job.payload_bytes.decode("utf-8") + "\n")

    async def _take_snapshots(self) -> None:
        async for handle in self._snapshots.claims(stop=self._stop):
            async with handle:
                stats = await self._files.stats()
                LOGGER.info("%d files wait, %d in hand", stats.ready + stats.delayed, stats.processing)
                self._report.snapshots += 1

    async def _lead(self) -> None:
        try:
            await self._store.run_schedules(self._stop)
        except LeadershipLost:
            LOGGER.info("another process leads the schedules of this storage")

    async def _aggregate(self) -> None:
        report = self._report
        async with self._facts.subscribe("aggregate") as events:
            async for event in events:
                facts = event.payload_as(Facts)
                self._seen[facts["path"]] = self._seen.get(facts["path"], 0) + 1
                report.events += 1
                report.lines += facts["lines"]
                report.functions += facts["functions"]
                report.classes += facts["classes"]
                report.longest = sorted([*report.longest, facts], key=lambda each: -each["longest_lines"])[:5]
                await events.save(event)

    async def _wait_for_the_end(self, progress: Progress) -> None:
        while True:
            stats = await self._files.stats()
            waiting = stats.ready + stats.delayed + stats.processing
            progress(self._report.files - waiting, self._report.files)
            if waiting == 0 and stats.stale == 0 and await self._is_drained():
                return
            await asyncio.sleep(LOOK_EVERY)

    async def _is_drained(self) -> bool:
        left = await self._outbox.jobs.stats()
        head = await self._facts.head()
        return (
            left.ready + left.delayed + left.processing == 0
            and await self._facts.get_offset("aggregate") == head
        )

    # ------------------------------------------------------------ the checks

    async def _check(self) -> None:
        report = self._report
        report.dead = await self._dead_files()
        report.acked = report.files - len(report.dead)
        delivered = [
            json.loads(line)["path"] for line in self._target.read_text(encoding="utf-8").splitlines()
        ]
        report.delivered = len(delivered)
        expected = {str(path) for path in self._sources} - {path for path, _ in report.dead}
        self._expect(set(self._seen) == expected, "every file is either indexed or dead")
        self._expect(all(times == 1 for times in self._seen.values()), "every event was seen once")
        self._expect(set(delivered) == expected, "every indexed file was delivered")
        self._expect(report.events == report.acked, "events and acked jobs are equally many")
        for queue in (self._files, self._outbox.jobs):
            left = await queue.stats()
            self._expect(
                left.ready + left.delayed + left.processing + left.stale == 0,
                f"nothing is left in {queue.name}",
            )

    async def _dead_files(self) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        after = 0
        while page := await self._files.list(state=JobState.DEAD, after=after):
            found += [
                (job.payload_as(dict[str, str])["path"], (job.last_error or "").splitlines()[0])
                for job in page
            ]
            after = page[-1].id
        return found

    def _expect(self, holds: bool, promise: str) -> None:
        if not holds:
            self._report.problems.append(promise)
