"""How soon a job that one process enqueues is claimed in another, and what waiting costs meanwhile.

    python benchmarks/sqlite_wakes.py [--quick] [--only idle] [--folder /var/tmp] [--to benchmarks/reports/sqlite_wakes]

A wake is timed from the call of ``enqueue`` in the one process to the return of ``claim`` in the other, which waited: both
read the machine's monotonic clock. "No hints" has the watcher do without inotify, as where there is none. Idle and foreign
traffic are measured in the process that waits, all of its threads together.
"""

import argparse
import asyncio
import multiprocessing
import multiprocessing.connection
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from harness import machine, machine_lines, table, write_reports

from alkstore.engine import Engine
from alkstore_sqlite import SqliteStore
from alkstore_sqlite.engine import SqliteEngine

SPAWN: Final = multiprocessing.get_context("spawn")
SYNCHRONOUS: Final = {"process": "NORMAL", "power": "FULL"}
GAPS: Final = {0.005: 400, 0.1: 60, 0.5: 20}
"""Seconds between two enqueues, and how many."""
WARM: Final = 5
SETTLING: Final = 2.5
"""Seconds until a store that waits is idle."""
RATE: Final = 400
"""Foreign commits in a second."""


class DeafStore(SqliteStore):
    """A store whose watcher has no hints of the file system."""

    async def _open_engine(self) -> Engine:
        engine = await super()._open_engine()
        assert isinstance(engine, SqliteEngine)
        engine._wakes._open_hint = _no_hint  # used when the watcher starts, with the first wait
        return engine


def _no_hint(path: str) -> None:
    """Tell that the file system gives none."""


def _store(path: Path, durability: str, *, has_hints: bool = True) -> SqliteStore:
    return (SqliteStore if has_hints else DeafStore)(path, durability=durability)


# ---------------------------------------------------------------- wakes


def _produce(path: Path, durability: str, gap: float, count: int) -> None:
    """In a process of its own: enqueue now and then."""

    async def run() -> None:
        async with _store(path, durability) as store:
            queue = store.queue("bench")
            for _ in range(count):
                await asyncio.sleep(gap * random.uniform(0.8, 1.2))  # or both would fall into step
                await queue.enqueue({"at": time.monotonic_ns()})

    asyncio.run(run())


async def _consume(path: Path, durability: str, gap: float, count: int, *, has_hints: bool) -> list[float]:
    async with _store(path, durability, has_hints=has_hints) as store:
        queue = store.queue("bench")
        producer = SPAWN.Process(target=_produce, args=(path, durability, gap, count + WARM))
        producer.start()
        taken = []
        for _ in range(count + WARM):
            handle = await queue.claim(timeout=60)
            came = time.monotonic_ns()
            assert handle is not None
            sent = handle.job.payload
            assert isinstance(sent, dict)
            taken.append((came - sent["at"]) / 1e6)
            await handle.ack()
        await asyncio.to_thread(producer.join)
    return sorted(taken[WARM:])


def _latencies(share: float, folder: Path) -> tuple[list[list[str]], list[dict[str, object]]]:
    rows: list[list[str]] = []
    figures: list[dict[str, object]] = []
    for has_hints in (True, False):
        for durability, label in SYNCHRONOUS.items():
            for gap, count in GAPS.items():
                with tempfile.TemporaryDirectory(dir=folder) as place:
                    number = max(int(count * share), 8)
                    path = Path(place) / "bench.db"
                    taken = asyncio.run(_consume(path, durability, gap, number, has_hints=has_hints))
                name = f"{label}, {'inotify' if has_hints else 'no hints'}, {gap * 1e3:g} ms apart"
                p50, p99 = statistics.median(taken), taken[int(len(taken) * 0.99)]
                rows.append([name, str(len(taken)), f"{p50:.2f}", f"{p99:.2f}", f"{taken[-1]:.2f}"])
                figures.append({"name": name, "ms": [round(each, 3) for each in taken]})
                print(name, file=sys.stderr)
    return rows, figures


# ---------------------------------------------------------------- what waiting costs


class Waiting(NamedTuple):
    """What a process used while it waited.

    Attributes:
        cpu: Of one core, in percent.
        written: Bytes that it passed to write calls, and bytes that it caused to reach the disk.
        switches: Times in a second that a thread of it slept and was woken.
    """

    cpu: float
    written: tuple[int, int]
    switches: float


def _wait(path: Path, names: int, seconds: float, answer: multiprocessing.connection.Connection) -> None:
    """In a process of its own: wait for claims of some queues, and measure."""

    async def run() -> None:
        async with _store(path, "process") as store:
            tasks = [asyncio.create_task(store.queue(f"mine-{at}").claim()) for at in range(names)]
            await asyncio.sleep(SETTLING)
            before = (time.process_time(), *_written(), _switches())
            await asyncio.sleep(seconds)
            after = (time.process_time(), *_written(), _switches())
            cpu, called, reached, switches = (late - early for early, late in zip(before, after, strict=True))
            assert not any(task.done() for task in tasks)
            answer.send(Waiting(cpu / seconds * 100, (int(called), int(reached)), switches / seconds))
            for task in tasks:
                task.cancel()

    asyncio.run(run())


def _written() -> tuple[int, int]:
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    numbers = {name: int(value) for name, value in (line.split(": ") for line in lines)}
    return numbers["wchar"], numbers["write_bytes"]


def _switches() -> int:
    total = 0
    for thread in os.listdir("/proc/self/task"):
        status = Path(f"/proc/self/task/{thread}/status").read_text(encoding="utf-8")
        total += sum(
            int(line.split()[1]) for line in status.splitlines() if line.startswith("voluntary_ctxt_switches")
        )
    return total


async def _traffic(store: SqliteStore, child: multiprocessing.process.BaseProcess) -> float:
    """Commit on other queues at an even pace for as long as the child lives; gives commits in a second."""
    queues = [store.queue(f"other-{at}") for at in range(8)]
    began, sent = time.monotonic(), 0
    while child.is_alive():
        await asyncio.sleep(max(began + sent / RATE - time.monotonic(), 0))
        await queues[sent % len(queues)].enqueue(None)
        sent += 1
    return sent / (time.monotonic() - began)


async def _observe(path: Path, names: int, seconds: float, *, has_traffic: bool) -> tuple[Waiting, float]:
    async with _store(path, "process") as store:
        mine, its = SPAWN.Pipe()
        child = SPAWN.Process(target=_wait, args=(path, names, seconds, its))
        child.start()
        rate = await _traffic(store, child) if has_traffic else 0.0
        await asyncio.to_thread(child.join)
        waiting: Waiting = mine.recv()
        return waiting, rate


def _costs(seconds: float, folder: Path) -> tuple[list[list[str]], list[dict[str, object]]]:
    rows: list[list[str]] = []
    figures: list[dict[str, object]] = []
    for has_traffic, names in ((False, 1), (False, 20), (True, 1), (True, 20)):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            path = Path(place) / "bench.db"
            waiting, rate = asyncio.run(_observe(path, names, seconds, has_traffic=has_traffic))
        what = f"{rate:.0f} foreign commits/s" if has_traffic else "idle"
        called, reached = waiting.written
        name = f"{what}, waits for {names} of {'its' if has_traffic else 'the'} queues"
        rows.append([name, f"{waiting.cpu:.2f}", f"{called:,}", f"{reached:,}", f"{waiting.switches:.0f}"])
        figures.append({"name": name, **waiting._asdict(), "foreign_commits": rate})
        print(name, file=sys.stderr)
    return rows, figures


# ---------------------------------------------------------------- the report


def _report(parts: Sequence[str], share: float, folder: Path) -> tuple[list[str], dict[str, object]]:
    lines: list[str] = []
    figures: dict[str, object] = {}
    if "latency" in parts:
        rows, figures["latency"] = _latencies(share, folder)
        lines += ["", "Enqueue in one process to claim in another, milliseconds:", ""]
        lines += table(("", "wakes", "p50", "p99", "greatest"), rows)
    if "cost" in parts:
        rows, figures["cost"] = _costs(max(10 * share, 3), folder)
        lines += ["", "What the waiting process uses:", ""]
        head = ("", "% of a core", "bytes to write calls", "bytes to the disk", "switches/s")
        lines += table(head, rows)
    facts = machine(folder)
    return ["# Wakes of alkstore-sqlite", "", *machine_lines(facts), *lines], {"machine": facts, **figures}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a fifth of the wakes, 3 s of waiting")
    parser.add_argument("--only", choices=("latency", "cost"), help="one of the two parts")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="where the files stand"
    )
    parser.add_argument("--to", type=Path, help="write the report here, as .md and .json")
    options = parser.parse_args()
    parts = (options.only,) if options.only else ("latency", "cost")
    lines, figures = _report(parts, 0.2 if options.quick else 1.0, options.folder)
    write_reports(options.to, lines, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
