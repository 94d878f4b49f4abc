"""alkstore on SQLite beside the bare driver: the same statements, the same hops, in turn.

    python benchmarks/sqlite_driver.py [--quick] [--rounds 5] [--only claim] [--folder /var/tmp] [--processor 0]
        [--to benchmarks/reports/sqlite]

Each round opens all sides of a workload, each on a fresh file of the same folder, warms them up, and visits them in turn by
slices of the work (A B A B). A rate is the median of the slices of all rounds; a ratio is the median of the slices' own, so
that a machine that slows down slows both sides.
`sqlite_sides.py` says what the sides do. The strict reading is against the driver that takes as many hops as the engine.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

from harness import Cost, machine, machine_lines, measure, median, table, write_reports
from sqlite_sides import Bare, Blind, Durability, Listed, Ours, Side, Stepwise
from workloads import (
    BATCH,
    CLAIMED,
    TASKS,
    claim,
    claim_by_batch,
    enqueue,
    enqueue_at_once,
    enqueue_by_batch,
    publish,
    publish_at_once,
    publish_by_batch,
)

FILLING: Final = 10_000
SLICES: Final = 10
SYNCHRONOUS: Final[dict[Durability, str]] = {"process": "NORMAL", "power": "FULL"}


class Workload(NamedTuple):
    """Something to do ``operations`` times.

    Attributes:
        bars: Least ratio to the driver with synchronous NORMAL and FULL, as the issue asks; None if it names none.
        needs: Jobs that must wait before it begins, for each operation.
    """

    name: str
    operations: int
    run: Callable[[Side, int], Awaitable[object]]
    bars: tuple[float, float] | None
    sides: Sequence[type[Side]] = (Ours, Bare, Stepwise)
    needs: int = 0


SINGLE: Final = (0.85, 0.85)
CROWD: Final = (8.0, 10.0)
LEAD: Final = 8
"""About what a crowd's calls take the bare driver to what they take us."""
CLAIMING: Final = (Ours, Bare, Blind, Stepwise)

WORKLOADS: Final = (
    Workload("enqueue one by one", 4_000, enqueue, SINGLE, (Ours, Bare)),
    Workload("claim+ack one by one", 3_000, claim, SINGLE, CLAIMING, 1),
    Workload("claim+ack by 100", 20_000, claim_by_batch, SINGLE, (Ours, Bare, Listed, Blind, Stepwise), 1),
    Workload("enqueue_batch of 1,000", 50_000, enqueue_by_batch, SINGLE),
    Workload("publish one by one", 4_000, publish, None),
    Workload("publish_batch of 1,000", 50_000, publish_by_batch, None),
    Workload("64 tasks enqueue", 102_400, enqueue_at_once, CROWD, (Ours, Bare)),
    Workload("64 tasks publish", 51_200, publish_at_once, CROWD),
)
READINGS: Final[dict[type[Side], str]] = {
    Listed: "acks a list by one call",
    Blind: "claims without the look",
    Stepwise: "a hop a statement",
}


@asynccontextmanager
async def _ready(
    work: Workload, kind: type[Side], durability: Durability, count: int, place: Path
) -> AsyncIterator[Side]:
    """Open a side on a fresh file, with what ``count`` operations need, and warmed up."""
    warm = max(count // 10 // BATCH * BATCH, min(count // 10, 200) // TASKS * TASKS, TASKS)
    side = await kind().open(place / f"{kind.__name__}.db", durability)
    try:
        missing = (count + warm) * work.needs
        while missing > 0:
            await side.enqueue_many(min(FILLING, missing))
            missing -= FILLING
        await work.run(side, warm)
        yield side
    finally:
        await side.close()


async def _round(work: Workload, durability: Durability, count: int, folder: Path) -> dict[str, list[Cost]]:
    """Visit the sides in turn, slice by slice: what each slice cost each side."""
    whole = _slice(work, count)
    # A crowd's slices take about as long on each side: one of few calls would be over before the caches are warm.
    parts = {
        kind: max(whole // LEAD // TASKS, 1) * TASKS if work.bars == CROWD and kind is not Ours else whole
        for kind in work.sides
    }
    costs: dict[str, list[Cost]] = {kind.__name__: [] for kind in work.sides}
    async with AsyncExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
        sides = {
            kind: await stack.enter_async_context(_ready(work, kind, durability, part * SLICES, place))
            for kind, part in parts.items()
        }
        for _ in range(SLICES):
            for kind, side in sides.items():
                part = parts[kind]
                costs[kind.__name__].append(await measure(lambda: work.run(side, part), part))  # noqa: B023  # awaited here
    return costs


def _slice(work: Workload, count: int) -> int:
    """Give the operations of a slice: whole batches, and as many for each task."""
    least = {"1,000": BATCH, "100": CLAIMED}.get(work.name.rpartition(" ")[2], TASKS)
    return max(count // SLICES // least, 1) * least


Figures = dict[tuple[Durability, str, str], list[Cost]]


def _measure_all(works: Sequence[Workload], rounds: int, share: float, folder: Path) -> Figures:
    figures: Figures = {}
    for turn in range(rounds):
        for durability in SYNCHRONOUS:
            for work in works:
                count = int(work.operations * share)
                for kind, costs in asyncio.run(_round(work, durability, count, folder)).items():
                    figures.setdefault((durability, work.name, kind), []).extend(costs)
                print(f"round {turn + 1}: {SYNCHRONOUS[durability]}, {work.name}", file=sys.stderr)
    return figures


def _ratio(ours: Sequence[Cost], other: Sequence[Cost]) -> tuple[float, str]:
    ratios = [mine.rate / its.rate for mine, its in zip(ours, other, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    return median(ratios), f"{median(ratios):.2f} ({low:.2f}–{high:.2f})"


def _rate(costs: Sequence[Cost]) -> str:
    return f"{median([cost.rate for cost in costs]):,.0f}"


def _cpu(costs: Sequence[Cost]) -> str:
    return f"{median([cost.cpu for cost in costs]):.1f}"


def _tables(works: Sequence[Workload], figures: Figures) -> tuple[list[str], bool]:
    strict: list[list[str]] = []
    further: list[list[str]] = []
    are_held = True
    for at, (durability, label) in enumerate(SYNCHRONOUS.items()):
        for work in works:
            ours, bare = (figures[durability, work.name, kind.__name__] for kind in (Ours, Bare))
            ratio, text = _ratio(ours, bare)
            bar = None if work.bars is None else work.bars[at]
            is_held = bar is None or ratio >= bar
            are_held &= is_held
            verdict = "–" if bar is None else f"{'held' if is_held else 'MISSED'} (≥ {bar:g})"
            name = f"{work.name}, {label}"
            strict.append([name, _rate(ours), _rate(bare), text, verdict, _cpu(ours), _cpu(bare)])
            for kind in work.sides[2:]:
                other = figures[durability, work.name, kind.__name__]
                further.append(
                    [f"{name}: {READINGS[kind]}", _rate(other), _ratio(ours, other)[1], _cpu(other)]
                )
    lines = table(("", "ours/s", "driver/s", "ratio", "bar", "ours µs CPU", "driver µs CPU"), strict)
    if further:
        lines += ["", "Other readings of the driver:", ""]
        lines += table(("", "driver/s", "ours to it", "driver µs CPU"), further)
    return lines, are_held


NOTES: Final = """
Rates are operations in a second, medians of the slices; a ratio is the median of the slices' own (half of them are in the
range). CPU is the processor's time of all threads of the process, an operation.

The driver does the engine's statements on the engine's tables with the engine's settings, encodes and checks payloads in
the same way, and takes as many hops: one for a call, with BEGIN IMMEDIATE and COMMIT in it where there are several
statements. A claim is the look at what time has changed, and the claim. By 100, both sides await 100 acks together: the
store's land in one commit, and each is told whether it landed; the driver's are a task each too, which one `executemany`
in one commit answers, and it only counts them. Every job has an ack of its own in the contract, because each has an end of
its own; "acks a list by one call" is a driver that has one end for all 100, and no task. Jobs of a batch are inserted by one
statement on both sides, which commits by itself. In a crowd, 64 tasks call enqueue (publish) again and again, and the
driver runs their calls one after the other on its one connection.
"""


def _report(
    works: Sequence[Workload], figures: Figures, rounds: int, folder: Path
) -> tuple[list[str], object, bool]:
    facts = {
        **machine(folder),
        "processors": f"{len(os.sched_getaffinity(0))} of them",
        "rounds": f"{rounds}, each of {SLICES} slices",
    }
    tables, are_held = _tables(works, figures)
    lines = [
        "# alkstore-sqlite beside the bare driver",
        "",
        *machine_lines(facts),
        "",
        *tables,
        NOTES.rstrip(),
    ]
    rows = [
        {
            "synchronous": SYNCHRONOUS[durability],
            "workload": name,
            "side": side,
            "rate": rates,
            "cpu_us": cpus,
        }
        for (durability, name, side), costs in figures.items()
        for rates, cpus in [([cost.rate for cost in costs], [cost.cpu for cost in costs])]
    ]
    return lines, {"machine": facts, "figures": rows}, are_held


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, for a look at the script")
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="where the files stand"
    )
    parser.add_argument(
        "--processor", type=int, help="stay on this one: a change of threads then wakes no other processor"
    )
    parser.add_argument("--to", type=Path, help="write the report here, as .md and .json")
    options = parser.parse_args()
    if options.processor is not None:
        os.sched_setaffinity(0, {options.processor})
    works = [work for work in WORKLOADS if options.only in work.name]
    if not works:
        parser.error(f"no workload is named like {options.only!r}")
    share = 0.1 if options.quick else 1.0
    _measure_all(works, 1, 0.02, options.folder)  # imports, caches
    figures = _measure_all(works, options.rounds, share, options.folder)
    lines, rows, are_held = _report(works, figures, options.rounds, options.folder)
    write_reports(options.to, lines, rows)
    return 0 if are_held else 1


if __name__ == "__main__":
    sys.exit(main())
