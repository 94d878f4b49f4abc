"""The bars that the project set itself, and whether a report meets them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from axes import REFERENCE
from figure import Figure, Report, middle, ratio
from stage import OURS

__all__ = ["Bar", "bars", "percentile"]

BATCHES: Final = (
    "enqueue by 1,000",
    "publish by 1,000",
    "claim, run, ack by 100",
    "claim, run, ack by 500",
    "replay",
)
SINGLES: Final = (
    "enqueue one by one",
    "claim, run, ack one by one",
    "publish one by one",
    "lock, release",
    "a row and a job in one transaction",
)
BARE: Final = "bare driver"
FLAT: Final = 1.05
"""What the memory of the last quarter of the way may be to that of the first; the allocator's own noise."""


class Bar(NamedTuple):
    """One bar: what is asked, what was measured, and whether that is enough."""

    what: str
    measured: str
    asked: str
    is_held: bool


def bars(report: Report) -> list[Bar]:
    """Judge a report by its engine's bars; what was not measured is left out."""
    judge = _JUDGES[report.engine]
    return [*judge(report), *_flat(report)]


def percentile(sorted_values: Sequence[float], part: float) -> float:
    """Give the value that this part of all is not above."""
    return sorted_values[min(int(len(sorted_values) * part), len(sorted_values) - 1)]


def _rates(report: Report) -> dict[str, dict[str, Figure]]:
    found: dict[str, dict[str, Figure]] = {}
    for figure in report.of("rates"):
        found.setdefault(figure.name, {})[figure.side] = figure
    return found


def _least(what: str, value: float, asked: float, unit: str) -> Bar:
    if unit == "×":
        return Bar(what, f"{value:.2f}×", f"≥ {asked:g}×", value >= asked)
    return Bar(what, f"{value:,.0f}{unit}", f"≥ {asked:,.0f}{unit}", value >= asked)


def _most(what: str, value: float, asked: float, unit: str) -> Bar:
    return Bar(what, f"{value:,.3g}{unit}", f"≤ {asked:g}{unit}", value <= asked)


def _beside(report: Report, name: str, side: str, asked: float) -> Iterator[Bar]:
    sides = _rates(report).get(name, {})
    if side in sides and OURS in sides:
        value = middle(ratio(sides[OURS].values, sides[side].values))
        yield _least(f"{name}, to {side}", value, asked, "×")


def _mem(report: Report) -> Iterator[Bar]:
    rates = _rates(report)
    for name, asked in (("enqueue one by one", 130_000), ("claim+ack one by one", 120_000)):
        if name in rates:
            yield _least(name, middle(rates[name][OURS].values), asked, "/s")
    for figure in report.of("footprint"):
        if figure.side == OURS:
            size = figure.grown[0] * 1024 / figure.x - PAYLOAD_BYTES
            yield _most(
                f"memory of one of {figure.x:,.0f} jobs that wait, beyond its payload", size, 600, " bytes"
            )
    yield from _growth(report, 2.0)
    yield from _wakes(report, {"idle, 5 ms apart": 0.05})


PAYLOAD_BYTES: Final = len('{"to":"ada@example.org","n":7}')


def _sqlite(report: Report) -> Iterator[Bar]:
    for name, sides in _rates(report).items():
        is_crowd = name.startswith("64 tasks")
        asked = (11.0 if name.endswith("FULL") else 9.0) if is_crowd else 0.9
        yield from _beside(report, name, BARE, asked)
        # One by one, what is called in the loop's own thread blocks everybody else: no program with a loop may do so.
        peers = [side for side in sides if side not in (OURS, BARE)]
        peers = [side for side in peers if side.endswith("in a thread")] or peers
        if peers and not name.startswith("lock"):
            best = max(peers, key=lambda side: middle(sides[side].values))
            yield from _beside(report, name, best, 3.0)
    yield from _growth(report, 1.5)
    names = ("idle, 5 ms apart, NORMAL", "idle, 100 ms apart, NORMAL")
    yield from _wakes(report, dict.fromkeys(names, 1.5))


def _pg(report: Report) -> Iterator[Bar]:
    asked: Mapping[tuple[str, str], float] = {
        ("enqueue one by one", "pgqueuer, pool"): 3.0,
        ("64 tasks enqueue", "pgqueuer"): 17.0,
        ("enqueue by 1,000", "pgqueuer"): 4.0,
        ("worker", "pgqueuer"): 3.0,
        ("worker", "procrastinate"): 50.0,
    }
    for (name, side), least in asked.items():
        yield from _beside(report, name, side, least)
    for least, names in ((0.85, BATCHES), (0.7, SINGLES)):
        for name in names:
            yield from _beside(report, name, BARE, least)
    yield from _growth(report, 1.5)
    yield from _wakes(report, {"idle, 5 ms apart": 2.0})


def _growth(report: Report, asked: float) -> Iterator[Bar]:
    """Judge what a job costs beside the most rows, by the turns of the store with a thousand."""
    figures = {(figure.side, figure.x): figure for figure in report.of("backlog")}
    most = max((x for side, x in figures if side == OURS), default=0.0)
    if most:
        value = middle(ratio(figures[OURS, most].values, figures[REFERENCE, most].values))
        yield _most(f"cost beside {most:,.0f} waiting rows to that beside 1,000", value, asked, "×")


def _wakes(report: Report, asked: Mapping[str, float]) -> Iterator[Bar]:
    for figure in report.of("wakes"):
        if figure.name in asked and figure.side == OURS:
            half = percentile(figure.values, 0.5)
            yield _most(f"half of the wakes, {figure.name}", half, asked[figure.name], " ms")


def _flat(report: Report) -> Iterator[Bar]:
    for figure in report.of("memory"):
        quarter = max(len(figure.values) // 4, 1)
        first, last = max(figure.values[:quarter]), max(figure.values[-quarter:])
        yield _most(f"memory at the end to that at the beginning, {figure.name}", last / first, FLAT, "×")


_JUDGES: Final[Mapping[str, Callable[[Report], Iterator[Bar]]]] = {"mem": _mem, "sqlite": _sqlite, "pg": _pg}
