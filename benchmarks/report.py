"""Reports as Markdown: what a page shows of them, and all of it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from bars import bars, percentile
from figure import Figure, Report, middle, ratio, spread
from harness import machine_lines, table
from stage import OURS

__all__ = ["TABLES", "bar_table", "facts", "text"]

PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "longest": 1.0}


def _order(figures: Sequence[Figure]) -> list[str]:
    """Give the sides, as they come."""
    return list(dict.fromkeys(figure.side for figure in figures))


def _number(value: float) -> str:
    if value >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _cells(figure: Figure | None, ours: Figure) -> str:
    """Give a side's rate, and how many times ours is that, by the median of the slices' own ratios."""
    if figure is None:
        return "–"
    times = middle(ratio(ours.values, figure.values))
    return (
        f"{_number(middle(figure.values))} ({times:.1f}×)"
        if times >= 10
        else f"{_number(middle(figure.values))} ({times:.2f}×)"
    )


def rates(report: Report) -> list[str]:
    """Rates in a second, medians; in brackets how many times ours is that."""
    figures = report.of("rates")
    sides = [side for side in _order(figures) if side != OURS]
    rows = []
    for name in dict.fromkeys(figure.name for figure in figures):
        found = {figure.side: figure for figure in figures if figure.name == name}
        ours = found[OURS]
        cells = [_number(middle(ours.values)), f"{middle(ours.cpu):.1f}"]
        rows.append([name, *cells, *(_cells(found.get(side), ours) for side in sides)])
    return table(("operations/s", OURS, "µs CPU", *sides), rows)


def _along(part: str, axis: str) -> Callable[[Report], list[str]]:
    """Make the table of a part with an axis: a row for each place on it, a column for each side."""

    def render(report: Report) -> list[str]:
        figures = report.of(part)
        sides, names = _order(figures), list(dict.fromkeys(figure.name for figure in figures))
        columns = [(name, side) for name in names for side in sides]
        columns = [c for c in columns if any((figure.name, figure.side) == c for figure in figures)]
        rows = []
        for x in sorted({figure.x for figure in figures}):
            found = {(figure.name, figure.side): figure for figure in figures if figure.x == x}
            cells = [_number(middle(found[c].values)) if c in found else "–" for c in columns]
            rows.append([f"{x:,.0f}", *cells])
        return table((axis, *(side for _, side in columns)), rows)

    return render


def wakes(report: Report) -> list[str]:
    """Milliseconds from the call that sends to the return of the call that waited."""
    rows = [
        [
            figure.name if figure.side == OURS else f"{figure.name}: {figure.side}",
            str(len(figure.values)),
            *(f"{percentile(figure.values, part):.3f}" for part in PERCENTILES.values()),
        ]
        for figure in report.of("wakes")
    ]
    return table(("milliseconds", "wakes", *PERCENTILES), rows)


def memory(report: Report) -> list[str]:
    """Memory of the whole process, along the way."""
    rows = []
    for figure in report.of("memory"):
        at = [round((len(figure.values) - 1) * part / 4) for part in range(5)]
        rows.append([figure.name, *(f"{figure.values[each]:.1f}" for each in at)])
    return table(
        ("MiB of the process", "first look", "a quarter", "half", "three quarters", "last look"), rows
    )


def footprint(report: Report) -> list[str]:
    """Memory of jobs that wait."""
    rows = [
        [figure.side, f"{figure.grown[0] / 1024:,.0f}", f"{figure.grown[0] * 1024 / figure.x:,.0f}"]
        for figure in report.of("footprint")
    ]
    count = report.of("footprint")[0].x
    return table((f"{count:,.0f} jobs that wait", "MiB", "bytes a job, payload included"), rows)


def snapshot(report: Report) -> list[str]:
    """Rates in the first and the last quarter of the time."""
    rows = []
    for figure in report.of("snapshot"):
        quarter = max(len(figure.values) // 4, 1)
        first, last = middle(figure.values[:quarter]), middle(figure.values[-quarter:])
        rows.append([figure.name, _number(first), _number(last), f"{last / first:.2f}"])
    return table(("jobs/s", "first quarter", "last quarter", "ratio"), rows)


TABLES: Final[Mapping[str, Callable[[Report], list[str]]]] = {
    "rates": rates,
    "footprint": footprint,
    "backlog": _along("backlog", "µs a job, rows that wait"),
    "dead": _along("dead", "µs a job, dead rows"),
    "snapshot": snapshot,
    "payload": _along("payload", "µs a job, bytes of payload"),
    "connections": _along("connections", "enqueues/s, stores or connections"),
    "processes": _along("processes", "jobs/s, processes"),
    "wakes": wakes,
    "foreign": _along("foreign", "% of a core, others' commits/s"),
    "memory": memory,
}


def bar_table(report: Report) -> list[str]:
    """The bars, and whether they are held."""
    rows = [[bar.what, bar.measured, bar.asked, "held" if bar.is_held else "MISSED"] for bar in bars(report)]
    return table(("bar", "measured", "asked", "verdict"), rows)


def facts(report: Report) -> list[str]:
    """Where the figures come from."""
    return machine_lines(report.machine)


def _everything(report: Report) -> list[str]:
    """Each side's median, spread, processor and memory."""
    rows = []
    for figure in report.of("rates"):
        low, high = spread(figure.values)
        between = f"{_number(low)}–{_number(high)}"
        cpu, everybody = (f"{middle(each):.1f}" if each else "–" for each in (figure.cpu, figure.all_cpu))
        grown = f"{max(figure.grown) / 1024:,.1f}" if figure.grown else "–"
        rows.append(
            [f"{figure.name}: {figure.side}", _number(middle(figure.values)), between, cpu, everybody, grown]
        )
    head = ("operations/s", "median", "half are in", "µs CPU", "µs CPU, machine", "MiB grown")
    return table(head, rows)


def text(report: Report) -> str:
    """Give the whole report."""
    lines = [f"# Benchmarks of alkstore-{report.engine}", ""]
    if not report.publishable:
        lines += [
            "**Not for publishing**: a part of the work, or on a machine that had other things to do.",
            "",
        ]
    lines += [*facts(report), "", *bar_table(report), ""]
    for part, render in TABLES.items():
        if report.of(part):
            lines += [f"## {part}", "", *render(report), ""]
    if report.of("rates"):
        lines += ["## rates, all that was measured", "", *_everything(report), ""]
    return "\n".join(lines)
