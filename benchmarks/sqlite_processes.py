"""Whether worker processes on one SQLite file get their shares, and whether waits that end leave anything behind.

    python benchmarks/sqlite_processes.py [--seconds 10] [--workers 4] [--waits 1000] [--folder /var/tmp] [--to …]

Workers claim and ack one job at a time from one queue, which is either full or fed by a producer as they go; no share should
be below a tenth of the fair one. Waits are opened by the thousand (``listen``, ``claim``, ``subscribe``, each on a name of its
own), cancelled, and their store closed, again and again: threads, descriptors and memory must not grow.
"""

import argparse
import asyncio
import gc
import multiprocessing
import multiprocessing.connection
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from harness import PAYLOAD, machine, machine_lines, table, write_reports

from alkstore_sqlite import SqliteStore

SPAWN: Final = multiprocessing.get_context("spawn")
STARTING: Final = 2.0
"""Seconds that processes get to start."""
FEED: Final = 10
PAUSE: Final = 0.005
"""Jobs that the producer enqueues at once, and seconds between."""
FEWEST: Final = 0.1
GROWTH: Final = 0.05
"""Memory may grow by so much from the second cycle to the last: the allocator's own noise."""

# ---------------------------------------------------------------- shares


def _work(
    path: Path, begin_at: float, seconds: float, waits: bool, answer: multiprocessing.connection.Connection
) -> None:
    """In a process of its own: claim and ack for so long, and tell how often."""

    async def run() -> int:
        done = 0
        async with SqliteStore(path, durability="process") as store:
            queue = store.queue("bench")
            await asyncio.sleep(begin_at - time.monotonic())
            while (left := begin_at + seconds - time.monotonic()) > 0:
                handle = await (queue.claim(timeout=left) if waits else queue.claim_one())
                if handle is not None:
                    done += await handle.ack()
        return done

    answer.send(asyncio.run(run()))


async def _feed(store: SqliteStore, until: float) -> None:
    queue = store.queue("bench")
    while time.monotonic() < until:
        await queue.enqueue_batch([PAYLOAD] * FEED)
        await asyncio.sleep(PAUSE)


async def _share(path: Path, workers: int, seconds: float, *, is_fed: bool) -> list[int]:
    async with SqliteStore(path, durability="process") as store:
        for _ in range(0 if is_fed else int(seconds)):
            await store.queue("bench").enqueue_batch([PAYLOAD] * 10_000)
        begin_at = time.monotonic() + STARTING
        pipes, children = [], []
        for _ in range(workers):
            mine, its = SPAWN.Pipe()
            pipes.append(mine)
            children.append(SPAWN.Process(target=_work, args=(path, begin_at, seconds, is_fed, its)))
            children[-1].start()
        if is_fed:
            await _feed(store, begin_at + seconds)
        for child in children:
            await asyncio.to_thread(child.join)
        return [pipe.recv() for pipe in pipes]


def _shares(workers: int, seconds: float, folder: Path) -> tuple[list[list[str]], dict[str, list[int]], bool]:
    rows, figures, is_fair = [], {}, True
    for name, is_fed in (("full queue, claim_one", False), ("fed queue, claim waits", True)):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            done = asyncio.run(_share(Path(place) / "bench.db", workers, seconds, is_fed=is_fed))
        figures[name] = done
        least = min(done) * workers / max(sum(done), 1)
        is_fair &= least >= FEWEST
        rows.append(
            [name, f"{sum(done) / seconds:,.0f}", " ".join(f"{each:,}" for each in done), f"{least:.2f}"]
        )
    return rows, figures, is_fair


# ---------------------------------------------------------------- what stays


class State(NamedTuple):
    """What this process holds."""

    threads: int
    descriptors: int
    mebibytes: float

    @classmethod
    def now(cls) -> "State":
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        memory = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
        return cls(len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), round(memory, 1))


async def _listen(store: SqliteStore, name: str) -> None:
    async with store.listen(name) as receiver:
        await receiver.recv()


async def _subscribe(store: SqliteStore, name: str) -> None:
    async with store.stream(name).subscribe() as receiver:
        await receiver.recv()


async def _cycle(path: Path, waits: int) -> tuple[State, State]:
    """Open the waits, cancel them, close; gives what was held while all waited, and after the cancellation."""
    async with SqliteStore(path, durability="process") as store:
        kinds = (_listen, _subscribe, lambda store, name: store.queue(name).claim())
        tasks = [asyncio.ensure_future(kind(store, f"name-{at}")) for kind in kinds for at in range(waits)]
        await store.notify("last", None)
        await asyncio.sleep(2)  # long enough for each to have opened and to wait
        waiting = State.now()
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends[0]
        del tasks, ends
        await asyncio.sleep(0.1)
        return waiting, State.now()


async def _flatness(waits: int, cycles: int, folder: Path) -> tuple[list[list[str]], bool]:
    rows: list[list[str]] = []
    is_flat = True
    before, peaks = State.now(), []
    with tempfile.TemporaryDirectory(dir=folder) as place:
        for cycle in range(1, cycles + 1):
            waiting, cancelled = await _cycle(Path(place) / "bench.db", waits)
            closed = State.now()
            peaks.append(
                waiting.mebibytes
            )  # what is held once closed depends on when the allocator gives back
            for what, state in (("waiting", waiting), ("cancelled", cancelled), ("closed", closed)):
                rows.append([f"{cycle}: {what}", *map(str, state)])
            is_flat &= closed[:2] == before[:2]
    rows.insert(0, ["before", *map(str, before)])
    is_flat &= peaks[-1] <= peaks[min(1, cycles - 1)] * (1 + GROWTH)
    return rows, is_flat


# ---------------------------------------------------------------- the report


def _report(options: argparse.Namespace) -> tuple[list[str], object, bool]:
    seconds = 2.0 if options.quick else options.seconds
    # Before other processes are started, which leaves things behind in this one.
    waits, is_flat = asyncio.run(_flatness(options.waits, 2 if options.quick else 5, options.folder))
    shares, figures, is_fair = _shares(options.workers, seconds, options.folder)
    facts = machine(options.folder)
    lines = ["# Processes and waits of alkstore-sqlite", "", *machine_lines(facts), ""]
    lines += [f"{options.workers} worker processes on one queue for {seconds:g} s:", ""]
    lines += table(("", "jobs/s", "of each", "least / fair"), shares)
    lines += ["", f"{options.waits:,} each of listen, claim and subscribe, opened, cancelled, closed:", ""]
    lines += table(("cycle", "threads", "descriptors", "MiB"), waits)
    lines += ["", f"Verdict: {_word(is_fair, 'fair')}, {_word(is_flat, 'flat')}."]
    return lines, {"machine": facts, "shares": figures, "waits": _named(waits)}, is_fair and is_flat


def _word(is_so: bool, word: str) -> str:
    return word if is_so else f"not {word}"


def _named(rows: Sequence[Sequence[str]]) -> dict[str, Sequence[str]]:
    return {row[0]: row[1:] for row in rows}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--waits", type=int, default=1_000)
    parser.add_argument("--quick", action="store_true", help="2 s, two cycles")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="where the files stand"
    )
    parser.add_argument("--to", type=Path, help="write the report here, as .md and .json")
    lines, figures, is_good = _report(options := parser.parse_args())
    write_reports(options.to, lines, figures)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
