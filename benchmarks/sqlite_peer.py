"""alkstore beside honker on SQLite, in turn, where honker can be imported (it has wheels for newer C libraries only).

    python benchmarks/sqlite_peer.py [--quick] [--rounds 3] [--folder /var/tmp] [--to benchmarks/reports/sqlite_peer]

Each is driven by its public interface in the way that its own documentation recommends: honker's calls are synchronous, many
enqueues share one of its transactions, and jobs claimed by 100 are acked by ``ack_batch``. Both use synchronous NORMAL, which
is honker's setting. Install it in an environment of its own, beside alkstore: it is no dependency of this repository.
"""

import argparse
import asyncio
import importlib
import importlib.metadata
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple

from harness import Cost, machine, machine_lines, measure, median, table, write_reports
from sqlite_queues import Honker
from sqlite_sides import Durability, Ours, Side

NORMAL: Final[Durability] = "process"


class Workload(NamedTuple):
    """One operation again and again; ``size`` is the jobs of one, ``backlog`` those that wait beside what is claimed."""

    name: str
    operations: int
    run: Callable[[Side, int], Awaitable[object]]
    size: int = 1
    is_claim: bool = False
    backlog: int = 0


WORKLOADS: Final = (
    Workload("enqueue one by one", 3_000, lambda side, _: side.enqueue()),
    Workload("enqueue by 1,000", 20, lambda side, size: side.enqueue_many(size), 1_000),
    Workload("claim+ack one by one", 1_000, lambda side, _: side.claim_and_ack(), 1, True),
    Workload("the same, 20,000 waiting", 200, lambda side, _: side.claim_and_ack(), 1, True, 20_000),
    Workload("claim+ack by 100", 50, lambda side, size: side.claim_and_ack_many(size), 100, True),
    Workload("publish one by one", 3_000, lambda side, _: side.publish()),
    Workload("publish by 1,000", 20, lambda side, size: side.publish_many(size), 1_000),
)


async def _run(work: Workload, kind: type[Side], operations: int, folder: Path) -> Cost:
    async def repeat(times: int) -> None:
        for _ in range(times):
            await work.run(side, work.size)

    warm = max(operations // 10, 1)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        side = await kind().open(Path(place) / "bench.db", NORMAL)
        try:
            missing = work.backlog + (warm + operations) * work.size if work.is_claim else 0
            while missing > 0:
                await side.enqueue_many(min(missing, 10_000))
                missing -= 10_000
            await repeat(warm)
            return await measure(lambda: repeat(operations), operations * work.size)
        finally:
            await side.close()


def _rows(
    rounds: int, share: float, folder: Path
) -> tuple[list[list[str]], dict[str, dict[str, list[float]]]]:
    rows, figures = [], {}
    for work in WORKLOADS:
        operations = max(int(work.operations * share), 2)
        ours, its = [], []
        for _ in range(rounds):
            ours.append(asyncio.run(_run(work, Ours, operations, folder)).rate)
            its.append(asyncio.run(_run(work, Honker, operations, folder)).rate)
        ratios = [mine / other for mine, other in zip(ours, its, strict=True)]
        spread = f"{median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"
        rows.append([work.name, f"{median(ours):,.0f}", f"{median(its):,.0f}", spread])
        figures[work.name] = {"alkstore": ours, "honker": its}
        print(work.name, file=sys.stderr)
    return rows, figures


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="where the files stand"
    )
    parser.add_argument("--to", type=Path, help="write the report here, as .md and .json")
    options = parser.parse_args()
    try:
        importlib.import_module("honker")
    except ImportError as error:
        print(
            f"honker cannot be imported here, so there is nothing to compare with: {error}", file=sys.stderr
        )
        return 2
    rows, figures = _rows(options.rounds, 0.1 if options.quick else 1.0, options.folder)
    facts = {**machine(options.folder), "honker": importlib.metadata.version("honker")}
    lines = ["# alkstore-sqlite beside honker, synchronous NORMAL", "", *machine_lines(facts), ""]
    lines += table(("", "alkstore/s", "honker/s", "ratio"), rows)
    write_reports(options.to, lines, {"machine": facts, "figures": figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
