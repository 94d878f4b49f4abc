"""alkstore on PostgreSQL beside the bare driver, pgqueuer and procrastinate, in turn, in one process, on one server.

    python benchmarks/pg_peers.py [--quick] [--rounds 3] [--only enqueue] [--version 18] [--folder /var/tmp]
        [--to benchmarks/reports/pg_peers]

Each round visits the sides in turn (A B A B), each in a fresh database of a server whose commits are durable, after a
warm-up in it. A rate is the median of the rounds; a ratio is the median of the rounds' own ratios, so that a machine that
slows down slows every side. `pg_sides.py` says what the sides do. A peer that is not installed (group ``bench`` of
pyproject.toml) is left out, and so are its bars.
"""

import argparse
import asyncio
import importlib.metadata
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

import asyncpg
from harness import Cost, machine, machine_lines, measure, median, table, write_reports
from pg_server import add_options, database, facts, started
from pg_sides import Bare, Ours, Pgqueuer, PgqueuerPool, PgqueuerUnlogged, Procrastinate, Side
from workloads import (
    BATCH,
    TASKS,
    enqueue,
    enqueue_at_once,
    enqueue_by_batch,
    publish,
    publish_at_once,
    publish_by_batch,
)

from alkstore_pg.contract_server import Server

FILLING: Final = 5_000

PEERS: Final[Mapping[type[Side], str]] = {
    Pgqueuer: "pgqueuer",
    PgqueuerPool: "pgqueuer",
    PgqueuerUnlogged: "pgqueuer",
    Procrastinate: "procrastinate",
}
SHOWN: Final[Mapping[type[Side], str]] = {
    Ours: "alkstore",
    Bare: "bare driver",
    Pgqueuer: "pgqueuer",
    PgqueuerPool: "pgqueuer, pool of 8",
    PgqueuerUnlogged: "pgqueuer, log unlogged",
    Procrastinate: "procrastinate",
}


Kinds: TypeAlias = Mapping[type[Side], int]
NONE: Final[Kinds] = MappingProxyType({})


class Workload(NamedTuple):
    """Something to do ``operations`` times.

    Attributes:
        bar: Least ratio to pgqueuer, as the issue asks; None if it names none.
        floor: Least operations in a second, as the issue asks.
        slow: Sides that do a small part of the operations, because all would take minutes.
        is_claim: Whether jobs must wait before it begins.
    """

    name: str
    operations: int
    run: Callable[[Any, int], Awaitable[object]]
    bar: float | None = None
    floor: float | None = None
    sides: Sequence[type[Side]] = (Ours, Bare, Pgqueuer, PgqueuerUnlogged, Procrastinate)
    slow: Kinds = NONE
    is_claim: bool = False


def _process(size: int) -> Callable[[Any, int], Awaitable[object]]:
    return lambda side, count: side.process(count, size)


SINGLE: Final[Kinds] = {Procrastinate: 4}
CROWD: Final[Kinds] = {Bare: 8, Pgqueuer: 8, PgqueuerUnlogged: 8, Procrastinate: 16}
BATCHES: Final[Kinds] = {Procrastinate: 8}
BY_MANY: Final[Kinds] = {Procrastinate: 20}
ALONE: Final = (Ours, Bare, Pgqueuer, PgqueuerPool, PgqueuerUnlogged, Procrastinate)
STREAMS: Final = (Ours, Bare)  # the peers have none

WORKLOADS: Final = (
    Workload("enqueue one by one", 4_000, enqueue, 3.0, sides=ALONE, slow=SINGLE),
    Workload("64 tasks enqueue", 51_200, enqueue_at_once, 15.0, slow=CROWD),
    Workload("enqueue by 1,000", 80_000, enqueue_by_batch, 3.5, slow=BATCHES),
    Workload("claim, run, ack one by one", 2_000, _process(1), slow=SINGLE, is_claim=True),
    Workload("claim, run, ack by 100", 40_000, _process(100), slow=BY_MANY, is_claim=True),
    Workload("claim, run, ack by 500", 40_000, _process(500), 2.5, 25_000, slow=BY_MANY, is_claim=True),
    Workload("publish one by one", 4_000, publish, sides=STREAMS),
    Workload("64 tasks publish", 51_200, publish_at_once, sides=STREAMS, slow=CROWD),
    Workload("publish by 1,000", 80_000, publish_by_batch, sides=STREAMS),
)

# ---------------------------------------------------------------- runs


def _count(work: Workload, kind: type[Side], share: float) -> int:
    """How often a side does it: a whole number of batches, and as often for each task."""
    count = int(work.operations * share) // work.slow.get(kind, 1)
    step = BATCH if work.operations % BATCH == 0 and work.operations > 10 * BATCH else TASKS
    return max(count // step, 1) * step


async def _run(work: Workload, kind: type[Side], count: int, dsn: str) -> Cost:
    side: Any = await kind().open(dsn)
    try:
        warm = max(count // 10 // BATCH * BATCH, TASKS)
        if work.is_claim:
            await _fill(side, warm)
        await work.run(side, warm if warm % BATCH == 0 or work.run is not enqueue_by_batch else BATCH)
        if work.is_claim:
            await _fill(side, count)
        await _settle_down(dsn)
        return await measure(lambda: work.run(side, count), count)
    finally:
        await side.close()


async def _fill(side: Side, count: int) -> None:
    for start in range(0, count, FILLING):
        await side.enqueue_many(min(FILLING, count - start))


async def _settle_down(dsn: str) -> None:
    """Have the planner know the tables, as it does where a server has run for more than a minute."""
    connection = await asyncpg.connect(dsn)
    await connection.execute("VACUUM ANALYZE")
    await connection.close()


Figures = dict[tuple[str, type[Side]], list[Cost]]


def _measure_all(works: Sequence[Workload], rounds: int, share: float, server: Server) -> Figures:
    figures: Figures = {}
    for turn in range(rounds):
        for work in works:
            for kind in filter(_is_installed, work.sides):
                with database(server) as dsn:
                    cost = asyncio.run(_run(work, kind, _count(work, kind, share), dsn))
                figures.setdefault((work.name, kind), []).append(cost)
            print(f"round {turn + 1}: {work.name}", file=sys.stderr)
    return figures


def _is_installed(kind: type[Side]) -> bool:
    try:
        return kind not in PEERS or bool(importlib.metadata.version(PEERS[kind]))
    except importlib.metadata.PackageNotFoundError:
        return False


# ---------------------------------------------------------------- the report


def _ratio(ours: Sequence[Cost], other: Sequence[Cost]) -> tuple[float, str]:
    ratios = [mine.rate / its.rate for mine, its in zip(ours, other, strict=True)]
    return median(ratios), f"{median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"


def _rate(costs: Sequence[Cost]) -> float:
    return median([cost.rate for cost in costs])


def _verdict(value: float, least: float, unit: str) -> str:
    return f"{'held' if value >= least else 'MISSED'} (≥ {least:,g}{unit})"


def _rows(works: Sequence[Workload], figures: Figures) -> tuple[list[list[str]], list[list[str]], bool]:
    rows, bars, are_held = [], [], True
    for work in works:
        ours = figures[work.name, Ours]
        for kind in work.sides:
            its = figures.get((work.name, kind))
            if its is None:
                continue
            cpu = f"{median([cost.cpu for cost in its]):.1f}"
            text = "–" if kind is Ours else _ratio(ours, its)[1]
            rows.append([f"{work.name}: {SHOWN[kind]}", f"{_rate(its):,.0f}", text, cpu])
        told = []
        for kind in (Pgqueuer, PgqueuerPool):
            pgqueuer = figures.get((work.name, kind))
            if work.bar is not None and pgqueuer is not None:
                told.append((_ratio(ours, pgqueuer)[0], work.bar, f" × {SHOWN[kind]}"))
        if work.floor is not None:
            told.append((_rate(ours), work.floor, "/s"))
        for value, least, unit in told:
            are_held &= value >= least
            bars.append(
                [
                    work.name,
                    f"{value:,.2f}" if unit != "/s" else f"{value:,.0f}",
                    _verdict(value, least, unit),
                ]
            )
    return rows, bars, are_held


NOTES: Final = """
Rates are operations in a second, medians of the rounds; a ratio is the median (least–greatest) of the rounds' own. CPU is
that of this process alone, all of its threads, an operation; the server's is not in it.

Every commit waits for the disk. Nobody listens. The bare driver sends the engine's own statements on one connection,
without wakes, and a crowd's calls follow each other on it. To claim, run and ack by 100 or 500 is: claim so many, decode
each payload, await a trivial handler for each, ack each; alkstore does it in two tasks of one process, pgqueuer in one queue
manager with that batch size (two to five were slower), procrastinate, which claims one at a time, with so many jobs at
once. One by one there are two readings of pgqueuer: on one connection, where it is fastest, and through its pool of 8, as
the figures were taken that the bar goes by (1,620/s one by one, 2,570/s with 64 tasks). pgqueuer's log takes a row for each
job and for each change of it; "log unlogged" is its durability `balanced`.
"""


def _report(
    works: Sequence[Workload], figures: Figures, told: Mapping[str, str]
) -> tuple[list[str], object, bool]:
    rows, bars, are_held = _rows(works, figures)
    lines = ["# alkstore-pg beside the bare driver, pgqueuer and procrastinate", "", *machine_lines(told), ""]
    if bars:
        lines += [*table(("bar", "measured", "verdict"), bars), ""]
    lines += [*table(("", "/s", "alkstore to it", "µs CPU"), rows), NOTES.rstrip()]
    numbers = [
        {
            "workload": name,
            "side": SHOWN[kind],
            "rate": [c.rate for c in costs],
            "cpu_us": [c.cpu for c in costs],
        }
        for (name, kind), costs in figures.items()
    ]
    return lines, {"machine": told, "figures": numbers}, are_held


def _facts(folder: Path, server: Server, rounds: int) -> dict[str, str]:
    peers = {name: importlib.metadata.version(name) for kind, name in PEERS.items() if _is_installed(kind)}
    return {**machine(folder, facts(server)), **peers, "rounds": str(rounds)}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, for a look at the script")
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    add_options(parser)
    options = parser.parse_args()
    works = [work for work in WORKLOADS if options.only in work.name]
    if not works:
        parser.error(f"no workload is named like {options.only!r}")
    with started(options.folder, options.version) as server:
        _measure_all(works, 1, 0.02, server)  # imports, caches
        figures = _measure_all(works, options.rounds, 0.1 if options.quick else 1.0, server)
        told = _facts(options.folder, server, options.rounds)
    lines, numbers, are_held = _report(works, figures, told)
    write_reports(options.to, lines, numbers)
    return 0 if are_held else 1


if __name__ == "__main__":
    sys.exit(main())
