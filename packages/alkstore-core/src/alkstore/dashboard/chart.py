"""Charts as numbers: where lines go in a box of fixed size, which a template makes SVG of, and what they say in words."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from alkstore.dashboard.history import Point, Span

__all__ = [
    "AGES",
    "HEIGHT",
    "WIDTH",
    "Chart",
    "Drawn",
    "Line",
    "Slice",
    "chart",
    "of",
    "pace",
    "short",
    "spark",
]

WIDTH: Final = 600
HEIGHT: Final = 120
"""The box. It is stretched to the room that there is, so lines only, and no text, are drawn in it."""

COLUMNS: Final = 120
"""Points of a line at most: more would not be seen, and each is sent to every viewer at every look."""

SPARK_COLUMNS: Final = 40
"""The same of a small line in a row of a table: there may be two hundred of them."""

SLICES: Final = 24
"""Stretches of a chart whose values are told: to who points at one, and as rows of a table."""

AGES: Final = (
    1.0,
    2.0,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
    1_800.0,
    3_600.0,
    7_200.0,
    18_000.0,
    43_200.0,
    86_400.0,
)
"""Ends of an axis of seconds."""

LEAST_SPAN: Final = 60.0
"""Seconds that a chart covers at least."""

GAP: Final = 3.2
"""Looks that may be missing between two points that are joined: while nobody looks nothing is known."""


class Line(NamedTuple):
    """One line: its name, its class in the style sheet, and the values over time."""

    label: str
    kind: str
    points: Sequence[tuple[float, float]]


class Drawn(NamedTuple):
    """A line as it is drawn: ``path`` is the ``d`` of an SVG path, ``area`` the same closed to the zero line."""

    label: str
    kind: str
    path: str
    area: str
    last: float | None


class Slice(NamedTuple):
    """A stretch of a chart: from ``x`` on, ``width`` wide; the instant of its last look, and what that saw, line by line."""

    x: float
    width: float
    at: float
    values: Sequence[float | None]


class Chart(NamedTuple):
    """What a template needs. ``top`` and ``bottom`` are the values at the edges, ``zero`` is the height of the zero line."""

    lines: Sequence[Drawn]
    top: float
    bottom: float
    zero: float
    covered: float
    summary: str
    slices: Sequence[Slice] = ()


def chart(
    lines: Iterable[Line],
    span: Span,
    now: float,
    tell: Callable[[float], str] | None = None,
    steps: Sequence[float] = (),
    columns: int = COLUMNS,
    slices: int = SLICES,
) -> Chart:
    """Draw lines over one time axis that ends now, and one axis of values that holds zero.

    Args:
        tell: How a value is said in the summary.
        columns: Points of a line at most.
        slices: Stretches whose values are told.
        steps: Values that the axis may end at, ascending; beyond them, and without them: 1, 2, 5, 10, 20, …
    """
    given = list(lines)
    began = min((line.points[0][0] for line in given if line.points), default=now)
    covered = min(max(now - began, LEAST_SPAN), span.seconds)
    start = now - covered
    thin = [line._replace(points=_thinned(line.points, start, covered, columns)) for line in given]
    values = [value for line in thin for _, value in line.points if not math.isnan(value)]
    top = _round_up(max([*values, 0.0]), steps)
    bottom = -_round_up(max([*(-value for value in values), 0.0]), steps)
    if top == bottom:
        top = steps[0] if steps else 1.0
    scale = _Scale(start, covered, bottom, top, max(GAP * span.step, GAP * covered / columns))
    drawn = [_draw(line, scale) for line in thin]
    summary = _summary(drawn, tell or short)
    told = _slices(given, start, covered, slices)
    return Chart(drawn, top, bottom, scale.height(0.0), covered, summary, told)


def spark(points: Sequence[tuple[float, float]], span: Span, now: float) -> Drawn:
    """Draw one small line for the row of a table."""
    return chart([Line("", "spark", points)], span, now, columns=SPARK_COLUMNS, slices=0).lines[0]


class _Scale(NamedTuple):
    start: float
    covered: float
    bottom: float
    top: float
    gap: float

    def place(self, at: float) -> float:
        return (at - self.start) / self.covered * WIDTH

    def height(self, value: float) -> float:
        return HEIGHT - (value - self.bottom) / (self.top - self.bottom) * HEIGHT


def _thinned(
    points: Sequence[tuple[float, float]], start: float, covered: float, columns: int
) -> Sequence[tuple[float, float]]:
    """Give a point a column, the one farthest from zero: a peak that lasted one look must not be lost."""
    kept: dict[int, tuple[float, float]] = {}
    for at, value in points:
        if at < start:
            continue
        column = int((at - start) / covered * columns)
        before = kept.get(column)
        if before is None or math.isnan(before[1]) or abs(value) >= abs(before[1]):
            kept[column] = (at, value)
    found = list(kept.values())
    if points and found and found[-1] != points[-1] and points[-1][0] >= start:
        found.append(points[-1])  # what the legend says is where the line ends
    return found


def _slices(lines: Sequence[Line], start: float, covered: float, count: int) -> list[Slice]:
    """Give the stretches in which there was a look, oldest first. All lines have the same instants."""
    instants = [at for at, _ in lines[0].points] if lines and count else []
    last = {
        min(int((at - start) / covered * count), count - 1): place
        for place, at in enumerate(instants)
        if at >= start
    }
    width = WIDTH / max(count, 1)
    return [
        Slice(number * width, width, instants[place], [_known(line.points[place][1]) for line in lines])
        for number, place in last.items()
    ]


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _draw(line: Line, scale: _Scale) -> Drawn:
    runs: list[list[str]] = [[]]
    before = None
    for at, value in line.points:
        if math.isnan(value) or (before is not None and at - before > scale.gap):
            runs.append([])
        before = at
        if not math.isnan(value):
            runs[-1].append(f"{scale.place(at):.0f} {_tenth(scale.height(value))}")
    found = [run for run in runs if run]
    zero = _tenth(scale.height(0.0))
    areas = [f"M{run[0].split()[0]} {zero}L{'L'.join(run)}L{run[-1].split()[0]} {zero}Z" for run in found]
    # A run of one point is a dot: a line to itself, with round ends.
    path = "".join(f"M{run[0]}L{'L'.join(run[1:] or run)}" for run in found)
    last = _known(line.points[-1][1]) if line.points else None
    return Drawn(line.label, line.kind, path, "".join(areas), last)


def _tenth(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _round_up(value: float, steps: Sequence[float] = ()) -> float:
    """Give the next of the steps, or of 1, 2, 5, 10, 20, …; 0 for 0."""
    if value <= 0:
        return 0.0
    if (step := next((step for step in steps if step >= value), None)) is not None:
        return step
    size = 10.0 ** math.floor(math.log10(value))
    return next(size * step for step in (1, 2, 5, 10) if size * step >= value * (1 - 1e-9))


def _summary(drawn: Sequence[Drawn], tell: Callable[[float], str]) -> str:
    told = [f"{line.label} {'unknown' if line.last is None else tell(line.last)}" for line in drawn]
    return "now: " + ", ".join(told)


def short(value: float) -> str:
    """Show a number in four or five characters, exactly below 10,000."""
    size = abs(value)
    if size >= 10_000:
        for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
            if size >= unit * 0.9995:
                return f"{value / unit:.3g}{name}" if size < unit * 999.5 else f"{value / unit:.0f}{name}"
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}".removesuffix(".0") if size >= 10 else f"{value:.2f}"


def of(points: Iterable[Point], index: int, scale: float = 1.0) -> list[tuple[float, float]]:
    """Give one of the numbers of a track, as the points of a line."""
    return [(point.at, point.values[index] * scale) for point in points]


def pace(points: Sequence[Point], index: int, over: float) -> list[tuple[float, float]]:
    """Give how fast one of the numbers changed, a second, each over the ``over`` seconds before it."""
    found: list[tuple[float, float]] = []
    first = 0
    for place, point in enumerate(points):
        while first < place - 1 and point.at - points[first + 1].at >= over:
            first += 1
        since = point.at - points[first].at
        rate = (
            (point.values[index] - points[first].values[index]) / since if 0 < since <= 4 * over else math.nan
        )
        found.append((point.at, rate))
    return found
