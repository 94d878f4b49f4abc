"""What a benchmark found: one figure for each thing measured, with every value that it was measured to be."""

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Figure", "Report", "load", "middle", "ratio", "save", "spread"]


class Figure(NamedTuple):
    """One thing that was measured.

    Attributes:
        part: Of the benchmark.
        name: What was done.
        side: Who did it.
        x: Where on the axis of the part; 0 if it has none.
        unit: Of the values.
        values: One for each slice or round, in turn with the other sides'.
        cpu: Microseconds of the processor an operation, in the side's process; one for each value, or none.
        all_cpu: The same of the whole machine, a server included.
        grown: KiB that the side's process grew by at most while it did it; one for each value, or none.
    """

    part: str
    name: str
    side: str
    x: float
    unit: str
    values: Sequence[float]
    cpu: Sequence[float] = ()
    all_cpu: Sequence[float] = ()
    grown: Sequence[float] = ()


class Report(NamedTuple):
    """What one command measured.

    Attributes:
        machine: Facts, to be printed.
        publishable: Whether the work was whole and the machine quiet: others are never shown.
    """

    engine: str
    machine: dict[str, str]
    publishable: bool
    figures: list[Figure]

    def of(self, part: str) -> list[Figure]:
        """Give the figures of a part."""
        return [figure for figure in self.figures if figure.part == part]


def middle(values: Sequence[float]) -> float:
    """Give the median."""
    return statistics.median(values)


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Give the bounds between which half of the values are, or all if they are few."""
    if len(values) < 4:
        return min(values), max(values)
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def ratio(ours: Sequence[float], its: Sequence[float]) -> list[float]:
    """Give the ratio of each two slices that were done in turn, so that a machine that slows down slows both."""
    return [mine / other for mine, other in zip(ours, its, strict=True)]


def save(report: Report, to: Path) -> None:
    """Write a report as JSON, three digits and a unit more than anybody reads, one figure a line."""
    lines = [json.dumps(_rounded(figure)) for figure in report.figures]
    head = {"engine": report.engine, "publishable": report.publishable, "machine": report.machine}
    text = json.dumps(head, indent=1)[:-2] + ',\n "figures": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"
    to.write_text(text, encoding="utf-8")


def _rounded(figure: Figure) -> dict[str, Any]:
    return {
        name: value if isinstance(value, str | float | int) else [float(f"{each:.5g}") for each in value]
        for name, value in figure._asdict().items()
        if value != ()
    }


def load(path: Path) -> Report:
    """Read a report."""
    told = json.loads(path.read_text(encoding="utf-8"))
    figures: Iterable[dict[str, Any]] = told["figures"]
    return Report(
        told["engine"], told["machine"], told["publishable"], [Figure(**figure) for figure in figures]
    )
