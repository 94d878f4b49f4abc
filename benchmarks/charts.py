"""Charts of a report, as SVG: the same bytes for the same report, on a light ground of their own, so that they can be read on
dark pages too.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from figure import Figure, Report, middle, spread
from stage import OURS

__all__ = ["CHARTS", "draw"]

Axes: TypeAlias = Any
"""Of matplotlib, which only those install who draw: its group is ``bench``."""

STYLE: Final[Mapping[str, Any]] = {
    "svg.hashsalt": "alkstore",  # ids are drawn at random otherwise
    "svg.fonttype": "path",  # the same on machines with other fonts
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 9,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "#fbfbfb",
    "axes.facecolor": "#fbfbfb",
    "savefig.facecolor": "#fbfbfb",
    "text.color": "#222222",
    "axes.labelcolor": "#222222",
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "axes.edgecolor": "#888888",
}
# Told apart by people who see no red or no green too (Okabe and Ito), and by their marks.
COLOURS: Final = ("#0072b2", "#555555", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195")
MARKS: Final = ("o", "|", "s", "^", "D", "v", "x", "P", "*")
"""One more than the colours: where there are more sides than either, no two look the same."""
WIDTH: Final = 7.4
SECONDS: Final = "seconds"


def _looks(sides: Sequence[str]) -> dict[str, dict[str, Any]]:
    return {
        side: {"color": COLOURS[at % len(COLOURS)], "marker": MARKS[at % len(MARKS)], "label": side}
        for at, side in enumerate(sides)
    }


def _factors(axis: Any, *steps: float) -> None:
    """Give an axis steps that are factors, in whole numbers: what differs by less than ten has two of them to be read by."""
    ticker = importlib.import_module("matplotlib.ticker")
    axis.set_major_locator(ticker.LogLocator(subs=steps))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(ticker.NullFormatter())


def _sides(figures: Sequence[Figure]) -> list[str]:
    found = list(dict.fromkeys(figure.side for figure in figures))
    return sorted(found, key=lambda side: (side != OURS, side != "bare driver", found.index(side)))


def _rates(axes: Axes, figures: Sequence[Figure]) -> None:
    """One line a workload: everybody's rate, with the bounds of half of the slices."""
    names = list(dict.fromkeys(figure.name for figure in figures))
    for side, look in _looks(_sides(figures)).items():
        mine = [figure for figure in figures if figure.side == side]
        at = [len(names) - names.index(figure.name) for figure in mine]
        bounds = [spread(figure.values) for figure in mine]
        axes.hlines(
            at, [low for low, _ in bounds], [high for _, high in bounds], color=look["color"], linewidth=1
        )
        axes.plot([middle(figure.values) for figure in mine], at, linestyle="", markersize=6, **look)
    axes.set_yticks(range(len(names), 0, -1), names)
    axes.set_xscale("log")
    _factors(axes.xaxis, 1)
    axes.set_xlabel("operations a second: further to the right is faster")
    axes.legend(loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=4, frameon=False)


def _lines(across: str, upright: str, *, logs: str) -> Callable[[Axes, Sequence[Figure]], None]:
    """Make the drawing of a part with an axis; ``logs`` names the axes whose steps are factors."""

    def paint(axes: Axes, figures: Sequence[Figure]) -> None:
        for side, look in _looks(_sides(figures)).items():
            mine = sorted((figure for figure in figures if figure.side == side), key=lambda figure: figure.x)
            xs, bounds = [figure.x for figure in mine], [spread(figure.values) for figure in mine]
            axes.fill_between(
                xs, [low for low, _ in bounds], [high for _, high in bounds], color=look["color"], alpha=0.15
            )
            axes.plot(xs, [middle(figure.values) for figure in mine], linewidth=1.4, markersize=5, **look)
        if "x" in logs:
            axes.set_xscale("log")
        places = sorted({figure.x for figure in figures})
        axes.set_xticks(places, [f"{place:,.0f}" for place in places])
        axes.minorticks_off()
        if "y" in logs:
            axes.set_yscale("log")
            _factors(axes.yaxis, 1, 2, 5)
        else:
            axes.set_ylim(bottom=0)
        axes.set_xlabel(across)
        axes.set_ylabel(upright)
        axes.legend(frameon=False)

    return paint


def _wakes(axes: Axes, figures: Sequence[Figure]) -> None:
    """How many wakes took longer than that: the tail is what matters, so its steps are factors."""
    labels = [each.name if each.side == OURS else f"{each.name}: {each.side}" for each in figures]
    for look, label, figure in zip(_looks(labels).values(), labels, figures, strict=True):
        count = len(figure.values)
        left = [1 - at / count for at in range(count)]
        axes.step(figure.values, left, where="post", color=look["color"], linewidth=1.4, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    _factors(axes.xaxis, 1, 2, 5)
    _factors(axes.yaxis, 1)
    axes.set_xlabel("milliseconds from the call that sends to the return of the call that waited")
    axes.set_ylabel("part of the wakes that took longer")
    axes.legend(frameon=False)


def _series(across: str, upright: str) -> Callable[[Axes, Sequence[Figure]], None]:
    """Make the drawing of values that follow each other; ``x`` of a figure is the step between two."""

    def paint(axes: Axes, figures: Sequence[Figure]) -> None:
        for look, figure in zip(_looks([figure.name for figure in figures]).values(), figures, strict=True):
            steps = range(1, len(figure.values) + 1)
            scale = figure.x if across == SECONDS else 100 / len(figure.values)
            axes.plot(
                [at * scale for at in steps],
                list(figure.values),
                linewidth=1.4,
                color=look["color"],
                label=figure.name,
            )
        axes.set_ylim(0, 1.3 * max(max(figure.values) for figure in figures))
        axes.set_xlabel(across)
        axes.set_ylabel(upright)
        axes.legend(frameon=False)

    return paint


CHARTS: Final[Mapping[str, Callable[[Axes, Sequence[Figure]], None]]] = {
    "rates": _rates,
    "backlog": _lines("rows that wait", "µs a job: claimed and finished, one put in for it", logs="xy"),
    "dead": _lines("dead rows", "µs a job", logs=""),
    "payload": _lines("bytes of payload", "µs a job", logs="xy"),
    "connections": _lines("stores, or connections of the driver", "enqueues a second", logs="x"),
    "processes": _lines("processes", "jobs a second", logs="xy"),
    "foreign": _lines("commits a second of others", "% of a core that a wait costs", logs=""),
    "snapshot": _series(SECONDS, "jobs a second"),
    "wakes": _wakes,
    "memory": _series("% of the way", "MiB of the process"),
}


def draw(report: Report, folder: Path) -> list[Path]:
    """Draw what a report has figures for, as ``<engine>-<part>.svg``."""
    mpl = importlib.import_module("matplotlib")
    mpl.use("svg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    written = []
    for part, paint in CHARTS.items():
        figures = report.of(part)
        if not figures:
            continue
        names = len({figure.name for figure in figures}) if part == "rates" else 0
        with mpl.rc_context(STYLE):
            picture, axes = pyplot.subplots(figsize=(WIDTH, 1.4 + 0.27 * names if names else 3.6))
            paint(axes, figures)
            path = folder / f"{report.engine}-{part}.svg"
            picture.savefig(path, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
            pyplot.close(picture)
        written.append(path)
    return written
