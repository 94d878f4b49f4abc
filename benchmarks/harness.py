"""What the benchmarks share: the machine, medians of rounds, tables, and the reports they write."""

import gc
import importlib.metadata
import json
import os
import platform
import sqlite3
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["PAYLOAD", "Cost", "machine", "machine_lines", "measure", "median", "table", "write_reports"]

PAYLOAD: Final = {"to": "ada@example.org", "n": 7}
"""The small payload of every benchmark."""


class Cost(NamedTuple):
    """What some operations cost.

    Attributes:
        rate: Operations in a second of the wall.
        cpu: Microseconds of the processor an operation, all threads of this process together.
    """

    rate: float
    cpu: float


async def measure(work: Callable[[], Awaitable[object]], operations: int) -> Cost:
    """Time some operations. What lives by then is kept from the collector: it is not theirs."""
    gc.collect()
    gc.freeze()
    wall, cpu = time.perf_counter(), time.process_time()
    await work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    gc.unfreeze()
    return Cost(operations / wall, cpu / operations * 1e6)


def median(values: Sequence[float]) -> float:
    """Give the median."""
    return statistics.median(values)


def machine(folder: Path, storage: Mapping[str, str] | None = None) -> dict[str, str]:
    """Tell where figures come from; ``storage`` is the software that keeps the rows, SQLite and its driver by default."""
    if storage is None:
        storage = {"sqlite": sqlite3.sqlite_version, "aiosqlite": importlib.metadata.version("aiosqlite")}
    return {
        "machine": f"{_processor()}, {os.cpu_count()} cores, {_memory():.0f} GiB",
        "system": f"{platform.system()} {platform.release()}, {platform.libc_ver()[1] and ' '.join(platform.libc_ver())}",
        "python": platform.python_version(),
        **storage,
        "file system": _file_system(folder),
        "load when it ended": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "measured": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _file_system(folder: Path) -> str:
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    except OSError:
        return "unknown"
    path = f"{folder.resolve()}/"
    _, kind = max((len(at), kind) for _, at, kind, *_ in mounts if path.startswith(at.rstrip("/") + "/"))
    return kind


def machine_lines(facts: Mapping[str, str]) -> list[str]:
    """Lay the machine's facts out as a list in Markdown."""
    return [f"- {name}: {value}" for name, value in facts.items()]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay a table out in Markdown, wide enough to be read as it is: the first column to the left, numbers to the right."""
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        first = cells[0].ljust(widths[0])
        return (
            "| "
            + " | ".join([first, *(c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True))])
            + " |"
        )

    rule = "| " + " | ".join(["-" * widths[0], *("-" * (w - 1) + ":" for w in widths[1:])]) + " |"
    return [line(head), rule, *map(line, rows)]


def write_reports(to: Path | None, lines: Sequence[str], figures: object) -> None:
    """Print a report, and write it as ``to``.md and its figures as ``to``.json."""
    print("\n".join(lines))
    if to is not None:
        to.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
        to.with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
