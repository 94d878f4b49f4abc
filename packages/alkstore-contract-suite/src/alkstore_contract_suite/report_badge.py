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
LETTER: Final = 6.1
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
    corners = element("rect", width=str(left + right), height=str(HEIGHT), rx="3")
    ground = joined([_box(0, left, "#3d444d"), _box(left, right, colour)])
    parts = [
        element("title", title),
        element("clipPath", corners, id="corners"),
        element("g", ground, **{"clip-path": "url(#corners)"}),
        _words(LABEL, left / 2, left),
        _words(text, left + right / 2, right),
    ]
    size = {"width": str(left + right), "height": str(HEIGHT)}
    picture = element("svg", *parts, xmlns="http://www.w3.org/2000/svg", role="img", aria_label=title, **size)
    return f"{picture}\n"


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


def _width(text: str) -> int:
    # Whole pixels: between two halves of one the ground would show.
    return round(len(text) * LETTER + 2 * MARGIN)


def _box(x: int, width: int, colour: str) -> str:
    return element("rect", x=str(x), width=str(width), height=str(HEIGHT), fill=colour)


def _words(text: str, middle: float, width: int) -> str:
    return element(
        "text",
        text,
        x=f"{middle:g}",
        y="14",
        fill="#fff",
        textLength=str(width - 2 * MARGIN),
        lengthAdjust="spacingAndGlyphs",
        **{"text-anchor": "middle", "font-family": "Verdana, DejaVu Sans, sans-serif", "font-size": "11"},
    )
