"""``alkstore enqueue``: lines of JSON from files or standard input become jobs."""

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from alkstore.cli import FAILED, INTERRUPTED, UNREACHABLE
from alkstore.cli.enqueue_lines import BadLine, Batch, Position, Source, batches, sources
from alkstore.cli.enqueue_state import State
from alkstore.cli.output import console, emit, many
from alkstore.cli.storage import Failure, Storage, json_option, run, storage_options
from alkstore.cli.values import HEADER, INSTANT, SECONDS
from alkstore.cli.waiting import unless_stopped
from alkstore.errors import DatabaseError
from alkstore.queue import Queue
from alkstore.stop import StopToken
from alkstore.threads import Threads
from alkstore.worker.signals import listening

__all__ = ["enqueue"]


@click.command(short_help="Make jobs of lines of JSON.")
@click.argument("queue")
@click.argument("files", nargs=-1, metavar="[FILE]...", type=click.Path())
@click.option("--delay", type=SECONDS, help="Ready so long from now.")
@click.option("--run-at", type=INSTANT, help="Ready at this instant.")
@click.option("--priority", type=int, default=0, help="Higher is claimed first.  [default: 0]")
@click.option("--visibility-timeout", type=SECONDS, help="How long a claim lasts.  [default: 300 s]")
@click.option("--max-attempts", type=int, help="Claims before a job is dead.  [default: 3]")
@click.option("--base-delay", type=SECONDS, help="The first wait between attempts.  [default: 5 s]")
@click.option("--expires", type=SECONDS, help="Not claimed after so long.  [default: never]")
@click.option(
    "--header", "headers", type=HEADER, multiple=True, help="A header of every job; may be repeated."
)
@click.option(
    "--batch", type=click.IntRange(1, 100_000), default=1_000, help="Lines a commit.  [default: 1000]"
)
@click.option(
    "--resume",
    metavar="STATEFILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write after each batch how far it is; where the file is there already, go on from there.",
)
@storage_options
@json_option
def enqueue(
    storage: Storage,
    queue: str,
    files: Sequence[str],
    batch: int,
    resume: Path | None,
    as_json: bool,
    **stamps: Any,
) -> None:
    """Put each line of the FILEs, a JSON value, into QUEUE as a job's payload; without FILE, or with -, of standard input.

    A batch is in whole or not at all. Files are read through before anything is enqueued, so a bad line leaves nothing
    behind; of standard input, the lines before a bad one are in. With --resume a run that was killed goes on where it was:
    nothing is lost, and at most the one batch that was under way is in twice.
    """
    if stamps["delay"] is not None and stamps["run_at"] is not None:
        raise click.UsageError("--delay and --run-at each say when a job is ready: give one")
    stamps["headers"] = _headers(stamps["headers"])
    found = sources(files)
    state = None if resume is None else State(resume, storage.place(), queue, found)
    job = _Run(storage, queue, found, batch, state, stamps, as_json)
    began = time.monotonic()
    start = Position() if state is None else state.read()
    position = run(job.go(start))
    if job.problem is None or position.jobs > start.jobs:
        _report(queue, start, position, time.monotonic() - began, as_json)
    if job.is_stopped:
        advice = (
            "--resume goes on from here" if state is not None else "with --resume it could go on from here"
        )
        click.echo(f"stopped at {found[position.file].shown}:{position.line}; {advice}", err=True)
        sys.exit(INTERRUPTED)
    if job.problem is not None:
        before = "nothing was" if position.jobs == start.jobs else "the lines before it are"
        raise Failure(f"{job.problem} ({before} enqueued)", FAILED)


def _headers(given: Sequence[tuple[str, str]]) -> dict[str, str] | None:
    found = dict(given)
    if len(found) < len(given):
        names = [name for name, _ in given]
        twice = next(name for name in names if names.count(name) > 1)
        raise click.UsageError(f"--header {twice!r} is given twice; a job has one header of a name")
    return found or None


def _report(queue: str, start: Position, end: Position, spent: float, as_json: bool) -> None:
    jobs = end.jobs - start.jobs
    if as_json:
        emit({"queue": queue, "jobs": jobs, "jobs_before": start.jobs, "seconds": round(spent, 3)})
        return
    before = f" ({start.jobs:,} were there from before)" if start.jobs else ""
    click.echo(f"enqueued {many(jobs, 'job')} in {spent:.1f} s{before}")


@dataclass
class _Run:
    """One run, and how it ended."""

    storage: Storage
    queue: str
    sources: Sequence[Source]
    size: int
    state: State | None
    stamps: dict[str, Any]
    as_json: bool
    is_stopped: bool = False
    problem: BadLine | None = None
    # A program that ends must not wait for a pipe.
    readers: Threads = field(default_factory=lambda: Threads("alkstore-reads"))

    async def go(self, start: Position) -> Position:
        """Enqueue from a position to the end, a bad line, or a signal; give how far it came."""
        stop = StopToken()
        with listening(stop, asyncio.Event()), self._bar() as bar:
            if all(source.size is not None for source in self.sources):
                await self._check(start, bar, stop)
            if self.problem is not None or stop.is_cancelled:
                self.is_stopped = stop.is_cancelled
                return start
            async with self.storage.open() as store:
                queue = store.queue(self.queue)
                return await self._feed(queue, start, bar, stop)

    async def _check(self, start: Position, bar: "_Bar", stop: StopToken) -> None:
        bar.begin("checking", start)
        reading = batches(self.sources, start, self.size)
        while (batch := await self._next(reading, stop)) is not None:
            bar.show(batch.position)
            self.problem = batch.problem

    async def _feed(self, queue: Queue, start: Position, bar: "_Bar", stop: StopToken) -> Position:
        bar.begin("enqueuing", start)
        position = start
        reading = batches(self.sources, start, self.size)
        while (batch := await self._next(reading, stop)) is not None:
            try:
                await queue.enqueue_batch(batch.payloads, **self.stamps)
            except DatabaseError as error:
                raise self._broken_off(error, position, batch) from error
            position = batch.position
            if self.state is not None:
                self.state.write(position)
            bar.show(position)
            self.problem = batch.problem
        self.is_stopped = stop.is_cancelled
        return position

    async def _next(self, reading: Iterator[Batch], stop: StopToken) -> Batch | None:
        if stop.is_cancelled or self.problem is not None:
            return None
        return await unless_stopped(self.readers.run(lambda: next(reading, None)), stop)

    def _broken_off(self, error: DatabaseError, position: Position, batch: Batch) -> Failure:
        name, end = self.sources[batch.position.file].shown, batch.position.line
        first = position.line + 1 if batch.position.file == position.file else 1
        batch_is = "may be in" if error.outcome_unknown else "are not in"
        return Failure(f"{error} (lines {first} to {end} of {name} {batch_is}, all before are)", UNREACHABLE)

    def _bar(self) -> "_Bar":
        return _Bar(self.sources, is_hidden=self.as_json)


class _Bar:
    """How far it is, on a terminal: in bytes, for who knows how many lines a file has before it is read."""

    def __init__(self, sources: Sequence[Source], *, is_hidden: bool) -> None:
        self._sources = sources
        sizes = [source.size for source in sources]
        self._total = None if None in sizes else sum(size or 0 for size in sizes)
        out = console(stderr=True)
        columns = (
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[jobs]:,} jobs"),
            TimeElapsedColumn(), TimeRemainingColumn(),
        )  # fmt: skip
        self._progress = Progress(
            *columns, console=out, transient=True, disable=is_hidden or not out.is_terminal
        )
        self._task: TaskID | None = None

    def __enter__(self) -> "_Bar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, what: str, start: Position) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(what, total=self._total, jobs=start.jobs)
        self.show(start)

    def show(self, position: Position) -> None:
        if self._task is not None:
            before = sum(source.size or 0 for source in self._sources[: position.file])
            self._progress.update(self._task, completed=before + position.offset, jobs=position.jobs)
