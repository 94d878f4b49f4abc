"""A badge of an engine's verdict, as a picture in one file or as values for a service that draws them."""

import json
from collections.abc import Sequence
from typing import Final

from alkstore_contract_suite.html_text import element, joined
from alkstore_contract_suite.report_values import EngineValue, Report, ReportError
from alkstore_contract_suite.verdict import Verdict

__all__ = ["as_json", "as_svg"]

LABEL: Final = "alkstore contract"

COLOURS: Final = {Verdict.CONFORMANT: "#116329", Verdict.NOT_CONFORMANT: "#a1261e"}
"""The verdicts that have a badge; white text stands out from both. What was not run whole shows none."""

HEIGHT: Final = 20
LETTER: Final = 6.6
"""Mean width of a letter of 11 px, in px: the text is fitted to it, whatever the font."""
MARGIN: Final = 7


def as_svg(report: Report, engine: str | None = None) -> str:
    """Give the badge as SVG, which needs no network and no font of its own.

    Raises:
        ReportError: The report has no such engine, several of which none was named, or a verdict that has no badge.
    """
    text, colour = _text(report, engine)
    left, right = _width(LABEL), _width(text)
    title = f"{LABEL}: {text}"
    parts = [
        element("title", title),
        _box(0, left, "#3d444d"),
        _box(left, right, colour),
        _words(LABEL, left / 2, left),
        _words(text, left + right / 2, right),
    ]
    return (
        element(
            "svg",
            joined(parts),
            xmlns="http://www.w3.org/2000/svg",
            width=f"{left + right:g}",
            height=str(HEIGHT),
            role="img",
            aria_label=title,
        )
        + "\n"
    )


def as_json(report: Report, engine: str | None = None) -> str:
    """Give the badge as values in the form that shields.io reads from an endpoint. Raises as `as_svg` does."""
    text, colour = _text(report, engine)
    return json.dumps({"schemaVersion": 1, "label": LABEL, "message": text, "color": colour}) + "\n"


def _text(report: Report, name: str | None) -> tuple[str, str]:
    engines = _chosen(report, name)
    for verdict in (Verdict.NOT_TRUSTWORTHY, Verdict.INCOMPLETE, Verdict.MISSING):
        if any(engine.verdict is verdict for engine in engines):
            raise ReportError(f"engine {engines[0].name} is {verdict}: only what was run whole has a badge")
    is_good = all(engine.verdict is Verdict.CONFORMANT for engine in engines)
    verdict = Verdict.CONFORMANT if is_good else Verdict.NOT_CONFORMANT
    return f"{report.contract} {verdict.lower()}", COLOURS[verdict]


def _chosen(report: Report, name: str | None) -> Sequence[EngineValue]:
    names = list(dict.fromkeys(engine.name for engine in report.engines))
    if name is None and len(names) != 1:
        raise ReportError(f"the report has the engines {', '.join(names) or 'none'}: name one with --engine")
    chosen = [engine for engine in report.engines if name in (None, engine.name)]
    if not chosen:
        raise ReportError(f"the report has no engine {name!r}, only {', '.join(names)}")
    return chosen


def _width(text: str) -> float:
    return round(len(text) * LETTER + 2 * MARGIN, 1)


def _box(x: float, width: float, colour: str) -> str:
    return element("rect", x=f"{x:g}", width=f"{width:g}", height=str(HEIGHT), fill=colour)


def _words(text: str, middle: float, width: float) -> str:
    return element(
        "text",
        text,
        x=f"{middle:g}",
        y="14",
        fill="#fff",
        textLength=f"{width - 2 * MARGIN:g}",
        lengthAdjust="spacingAndGlyphs",
        **{"text-anchor": "middle", "font-family": "Verdana, DejaVu Sans, sans-serif", "font-size": "11"},
    )
