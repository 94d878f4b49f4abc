"""The worker beside the claims that a program makes by itself, on SQLite and on PostgreSQL, in one process.

    python benchmarks/worker.py [--engine sqlite] [--engine pg] [--quick] [--rounds 5] [--folder /var/tmp]
        [--to benchmarks/reports/worker]

Small payloads, and a handler that does nothing, so that what is timed is alkstore. Each round visits the sides in turn; a
ratio is the median of the rounds' own. "by 500" claims 500 jobs, calls the handler for each and acks them together, two such
loops at once; on PostgreSQL the bare driver does the same statements, one batch after the other.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from harness import PAYLOAD, Cost, machine, machine_lines, measure, median, table, write_reports
from pg_server import add_options, database, facts, started
from pg_sides import Bare, Ours
from store_side import NAME

import alkstore
from alkstore import Store
from alkstore.worker import Worker, handle

BATCH: Final = 1_000
SIZE: Final = 500
SQLITE_BAR: Final = 25_000.0
"""Jobs a second, the issue's."""
PG_BAR: Final = 0.7
"""Part of the bare claims and acks by 500, the issue's."""


class Case(NamedTuple):
    """One way of working jobs off, on one storage."""

    storage: str
    side: str
    run: Callable[[int], Awaitable[Cost]]


async def _nothing(payload: dict[str, object]) -> None:
    assert payload


async def _filled(store: Store, jobs: int) -> None:
    for _ in range(0, jobs, BATCH):
        await store.queue(NAME).enqueue_batch([PAYLOAD] * BATCH)


def _worker(url: str, concurrency: int, prefetch: int, **options: object) -> Callable[[int], Awaitable[Cost]]:
    async def run(jobs: int) -> Cost:
        async with alkstore.open(url, **options) as store:
            await _filled(store, jobs)
            worker = Worker(store, {NAME: handle(_nothing, concurrency=concurrency)}, prefetch=prefetch)
            cost = await measure(worker.run_until_idle, jobs)
            assert (await store.queue(NAME).stats()).ready == 0
            return cost

    return run


def _loops(url: str, **options: object) -> Callable[[int], Awaitable[Cost]]:
    async def run(jobs: int) -> Cost:
        async with alkstore.open(url, **options) as store:
            await _filled(store, jobs)
            side = Ours()
            side._use(store)  # of any engine
            return await measure(lambda: side.process(jobs, SIZE), jobs)

    return run


def _bare(dsn: str) -> Callable[[int], Awaitable[Cost]]:
    async def run(jobs: int) -> Cost:
        async with AsyncExitStack() as stack:
            store = await stack.enter_async_context(alkstore.open(dsn))
            await _filled(store, jobs)
            side = await Bare().open(dsn)
            stack.push_async_callback(side.close)
            return await measure(lambda: side.process(jobs, SIZE), jobs)

    return run


PLACES: Final = ((10, 1), (100, 1), (100, 4), (100, 20), (500, 1))


def _on_sqlite(folder: Path) -> Iterator[Case]:
    for durability, shown in (("process", "NORMAL"), ("power", "FULL")):
        url = f"sqlite:///{folder}/{shown}.db"
        for concurrency, prefetch in PLACES:
            yield Case(
                f"sqlite {shown}",
                f"worker, {concurrency} at once, prefetch {prefetch}",
                _worker(url, concurrency, prefetch, durability=durability),
            )
        yield Case(f"sqlite {shown}", f"claims by {SIZE}", _loops(url, durability=durability))


def _on_pg(dsn: str) -> Iterator[Case]:
    for concurrency, prefetch in PLACES:
        yield Case(
            "pg", f"worker, {concurrency} at once, prefetch {prefetch}", _worker(dsn, concurrency, prefetch)
        )
    yield Case("pg", f"claims by {SIZE}", _loops(dsn))
    yield Case("pg", f"bare driver by {SIZE}", _bare(dsn))


@contextmanager
def _server(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, str]]]:
    with started(options.folder, options.version) as server, database(server) as dsn:
        yield dsn, facts(server)


def _measure(cases: list[Case], options: argparse.Namespace) -> list[tuple[Case, list[Cost]]]:
    jobs = BATCH * (5 if options.quick else 30)
    costs: list[list[Cost]] = [[] for _ in cases]
    for _ in range(options.rounds):
        for case, found in zip(cases, costs, strict=True):
            print(f"{case.storage}: {case.side} …", file=sys.stderr)
            found.append(asyncio.run(case.run(jobs)))  # type: ignore[arg-type]  # each is a coroutine
    return list(zip(cases, costs, strict=True))


def _rows(measured: list[tuple[Case, list[Cost]]]) -> list[list[str]]:
    bases = {case.storage: costs for case, costs in measured if case.side == f"claims by {SIZE}"}
    rows = []
    for case, costs in measured:
        ratios = [cost.rate / base.rate for cost, base in zip(costs, bases[case.storage], strict=True)]
        rate, cpu = median([cost.rate for cost in costs]), median([cost.cpu for cost in costs])
        rows.append([f"{case.storage}: {case.side}", f"{rate:,.0f}", f"{median(ratios):.2f}", f"{cpu:.1f}"])
    return rows


def _verdicts(measured: list[tuple[Case, list[Cost]]]) -> list[list[str]]:
    def best(storage: str) -> list[float]:
        workers = [costs for case, costs in measured if case.storage == storage and "worker" in case.side]
        return [cost.rate for cost in max(workers, key=lambda costs: median([c.rate for c in costs]))]

    rows = []
    for storage in dict.fromkeys(case.storage for case, _ in measured):
        if storage == "pg":
            (base,) = (
                costs for case, costs in measured if case.side == f"claims by {SIZE}" and case.storage == "pg"
            )
            ratio = median([ours / cost.rate for ours, cost in zip(best("pg"), base, strict=True)])
            rows.append(
                [f"pg: the best worker to claims by {SIZE}", f"{ratio:.2f}", _said(ratio >= PG_BAR, PG_BAR)]
            )
        else:
            rate = median(best(storage))
            rows.append(
                [f"{storage}: the best worker, jobs/s", f"{rate:,.0f}", _said(rate >= SQLITE_BAR, SQLITE_BAR)]
            )
    return rows


def _said(is_held: bool, bar: float) -> str:
    return f"{'held' if is_held else 'MISSED'} (≥ {bar:,g})"


def main() -> int:
    """Measure, report, and give the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", action="append", choices=("sqlite", "pg"), help="these alone")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a sixth of the work, for a look at the script")
    add_options(parser)
    options = parser.parse_args()
    engines = options.engine or ["sqlite", "pg"]
    measured: list[tuple[Case, list[Cost]]] = []
    storage: dict[str, str] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        if "sqlite" in engines:
            measured += _measure(list(_on_sqlite(Path(folder))), options)
        if "pg" in engines:
            with _server(options) as (dsn, told):
                storage |= told
                measured += _measure(list(_on_pg(dsn)), options)
        about = machine(Path(folder)) | storage
    verdicts = _verdicts(measured)
    lines = ["# The worker of alkstore", "", *machine_lines(about), f"- rounds: {options.rounds}", ""]
    lines += [*table(("bar", "measured", "verdict"), verdicts), ""]
    lines += table(("", "jobs/s", f"to claims by {SIZE}", "µs CPU a job"), _rows(measured))
    write_reports(options.to, lines, [[case.storage, case.side, costs] for case, costs in measured])
    return 0 if all("MISSED" not in row[2] for row in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
