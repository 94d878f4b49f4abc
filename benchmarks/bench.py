"""Every benchmark in one command: alkstore beside the bare driver and its peers, in turn, with charts.

    python benchmarks/bench.py [--engine sqlite] [--peer huey] [--part wakes] [--quick] [--folder /var/tmp]
        [--version 18] [--to FOLDER]

Without ``--quick``, ``--peer`` and ``--part`` this is the whole work of an engine, about five minutes: its report replaces the one of
benchmarks/reports, its charts those of docs/performance, and the figures of docs/performance.md are printed anew, unless
others used the machine meanwhile. Everything else goes to a folder: ``--to``, or a new one.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import engine_mem
import engine_pg
import engine_sqlite
import page
from actor import jiffies
from charts import draw
from figure import Figure, Report, save
from harness import machine
from pg_server import started
from report import bar_table, text
from stage import OURS, Amount, Stage

ENGINES: Final[Mapping[str, Any]] = {"mem": engine_mem, "sqlite": engine_sqlite, "pg": engine_pg}
KEPT: Final = (OURS, "bare driver", "bare skeleton")
"""Sides that no choice of peers leaves out."""
WHOLE: Final = Amount(1, 5)
QUICK: Final = Amount(0.1, 2)
LOOK: Final = 0.5
"""Seconds of each look at what else the machine does."""
QUIET: Final = 0.1
"""Part of its processors that others may use, half of the looks at most above it."""


def _busy() -> float:
    """Look at what part of the processors is used while nothing of ours works."""
    before = jiffies()
    time.sleep(LOOK)
    worked, idled = (late - early for early, late in zip(before, jiffies(), strict=True))
    return worked / (worked + idled) if worked + idled else 1.0


@contextmanager
def _stage(engine: str, options: argparse.Namespace) -> Iterator[tuple[Stage, dict[str, str]]]:
    known = ENGINES[engine]
    sides = {
        name: kind
        for name, kind in known.SIDES.items()
        if not options.peer or name in KEPT or name.partition(",")[0] in options.peer
    }
    if engine == "pg":
        with started(options.folder, options.version) as server:
            yield engine_pg.stage(sides, server), engine_pg.facts(server)
    elif engine == "sqlite":
        yield engine_sqlite.stage(sides, options.folder), engine_sqlite.facts()
    else:
        yield engine_mem.stage(sides), {}


def _measure(engine: str, options: argparse.Namespace) -> Report:
    amount = QUICK if options.quick else WHOLE
    figures: list[Figure] = []
    looks, began = [], time.monotonic()
    with _stage(engine, options) as (stage, told):
        for name, part in ENGINES[engine].PARTS.items():
            if options.part and name not in options.part:
                continue
            looks.append(_busy())
            started_at = time.monotonic()
            figures += part(stage, amount)
            print(f"{engine}: {name} took {time.monotonic() - started_at:.0f} s", file=sys.stderr)
        looks.append(_busy())
        about = machine(options.folder, told)
    busy = sorted(looks)[len(looks) // 2]
    about |= {
        "used by others": f"{busy:.0%} of the processors in half of {len(looks)} looks, {max(looks):.0%} at most",
        "slices": f"{amount.slices} of each side, in turn, each in a process of its own",
        "took": f"{time.monotonic() - began:.0f} s",
    }
    return Report(engine, about, _is_whole(options) and busy <= QUIET, figures)


def _is_whole(options: argparse.Namespace) -> bool:
    return not (options.quick or options.peer or options.part)


def _write(report: Report, to: Path, charts: Path) -> None:
    for folder in (to, charts):
        folder.mkdir(parents=True, exist_ok=True)
    save(report, to / f"bench_{report.engine}.json")
    (to / f"bench_{report.engine}.md").write_text(text(report), encoding="utf-8")
    draw(report, charts)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", action="append", choices=tuple(ENGINES), help="this one; all by default")
    parser.add_argument("--peer", action="append", help="this one alone, beside the bare driver")
    parser.add_argument("--part", action="append", help="this part alone: rates, backlog, wakes, …")
    parser.add_argument(
        "--quick", action="store_true", help="a look at the scripts: a tenth, not for publishing"
    )
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="where the storage stands"
    )
    parser.add_argument("--version", type=int, help="the PostgreSQL server's major version (the newest here)")
    parser.add_argument(
        "--to", type=Path, help="write reports and charts here, and leave the committed ones alone"
    )
    return parser


def main() -> int:
    """Measure, report, and print the page anew."""
    options = _parser().parse_args()
    for engine in options.engine or ENGINES:
        report = _measure(engine, options)
        is_published = report.publishable and options.to is None
        if is_published:
            _write(report, page.REPORTS, page.CHARTS)
            page.main()
        else:
            to = options.to or Path(tempfile.mkdtemp(prefix="alkstore-bench-"))
            _write(report, to, to)
            print(f"not for publishing: {to}", file=sys.stderr)
        print("\n".join([f"# {engine}", "", *bar_table(report), ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
