"""The report as one HTML file: it needs no network and no server, and asks for neither."""

import base64
import functools
import hashlib
import importlib.resources
from collections.abc import Sequence

from alkstore_contract_suite.html_text import Html, element
from alkstore_contract_suite.outcome import Status
from alkstore_contract_suite.report_html_matrix import areas_of, marked, matrix
from alkstore_contract_suite.report_reading import RED, absences, choices, headings
from alkstore_contract_suite.report_values import EngineValue, Report

__all__ = ["render"]

WITHOUT_SCRIPT = "tr.detail[hidden] { display: table-row } #filter { display: none }"


def render(report: Report) -> str:
    """Give the page: the verdicts, the matrix of rows and engines with a filter, and what each engine leaves out."""
    title = f"alkstore contract {report.contract}"
    body = element(
        "body",
        element("a", "Skip to the matrix", class_="skip", href="#matrix"),
        element("header", element("h1", title), element("p", _intro(report), class_="quiet")),
        element("main", _verdicts(report), _filtered_matrix(report), _notes(report)),
        element("script", Html(_asset("report_page.js"))),
    )
    return f"<!doctype html>\n{element('html', _head(title), body, lang='en')}\n"


def _head(title: str) -> Html:
    # Nothing is fetched, and no script runs but ours, whatever an engine's name or a driver's error may hold.
    policy = (
        f"default-src 'none'; script-src '{_hash('report_page.js')}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", **{"http-equiv": "Content-Security-Policy", "content": policy}),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        # Else a browser asks the server for one.
        element("link", rel="icon", href="data:,"),
        element("style", Html(_asset("report_page.css"))),
        element("noscript", element("style", Html(WITHOUT_SCRIPT))),
    )


@functools.cache
def _asset(name: str) -> str:
    return importlib.resources.files("alkstore_contract_suite").joinpath(name).read_text("utf-8")


def _hash(name: str) -> str:
    digest = hashlib.sha256(_asset(name).encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


def _intro(report: Report) -> str:
    begun = sorted({engine.run.begun[:16].replace("T", " ") for engine in report.engines})
    when = begun[0] if len(begun) == 1 else f"from {begun[0]} to {begun[-1]}" if begun else "never"
    return f"{len(report.rows)} rows, suite {report.suite}, run {when} (UTC)."


def _verdicts(report: Report) -> Html:
    shown = [status for status in Status if any(engine.counts.get(status) for engine in report.engines)]
    heads = ["Engine", "Verdict", *(s.value for s in shown), "Version", "Storage", "Python", "Platform"]
    body = [
        element("tr", element("th", heading, scope="row"), *_totals(engine, shown))
        for heading, engine in zip(headings(report.engines), report.engines, strict=True)
    ]
    return element(
        "section",
        element("h2", "Verdicts", id="verdicts"),
        _pane("verdicts", _table(heads, body, "verdicts")),
    )


def _totals(engine: EngineValue, shown: Sequence[Status]) -> list[Html]:
    where = engine.version, engine.storage, engine.run.python, engine.run.platform
    verdict = element("td", element("strong", engine.verdict, class_=f"verdict {_word(engine.verdict)}"))
    counts = [element("td", str(engine.counts.get(status, 0)), class_="number") for status in shown]
    return [verdict, *counts, *(element("td", text) for text in where)]


def _word(text: str) -> str:
    return text.lower().replace(" ", "-")


def _filtered_matrix(report: Report) -> Html:
    return element(
        "section",
        element("h2", "Rows", id="rows"),
        _filter(report),
        element("p", f"{len(report.rows)} of {len(report.rows)} rows", id="count", role="status"),
        _pane("rows", matrix(report), id="matrix"),
    )


def _filter(report: Report) -> Html:
    statuses = [element("option", "any", value=""), element("option", "needs a look", value="red")]
    statuses += [element("option", status.value, value=status.value) for status in Status]
    areas = [element("option", "all", value="")]
    areas += [element("option", title, value=word) for word, title in areas_of(report).items()]
    return element(
        "form",
        _labelled("Text", element("input", type="search", name="text", autocomplete="off")),
        _labelled("Status", element("select", *statuses, name="status")),
        _labelled("Area", element("select", *areas, name="area")),
        element("button", "Reset", type="reset"),
        element("button", "Open all shown", type="button", id="open"),
        element("button", "Close all", type="button", id="close"),
        id="filter",
        role="search",
        aria_label="Filter the rows",
        data_red=" ".join(RED),
    )


def _labelled(text: str, control: Html) -> Html:
    return element("label", element("span", text), control)


def _pane(label: str, table: Html, id: str | None = None) -> Html:
    # What scrolls must be reached by the keyboard, too.
    return element("div", table, class_="pane", id=id, tabindex="0", role="region", aria_labelledby=label)


def _table(heads: Sequence[str], body: Sequence[Html], kind: str | None = None) -> Html:
    head = element("thead", element("tr", *(element("th", text, scope="col") for text in heads)))
    return element("table", head, element("tbody", *body), class_=kind)


def _notes(report: Report) -> Html:
    named = zip(headings(report.engines), report.engines, strict=True)
    absent = [_folded(heading, _absences(engine)) for heading, engine in named if absences(engine)]
    parts = [element("h2", "Not run, and why"), *absent] if absent else []
    chosen = _choices(report)
    if chosen is not None:
        parts += [element("h2", "Free choices"), _folded("Where the contract allows several results", chosen)]
    return element("section", *parts)


def _absences(engine: EngineValue) -> Html:
    rows = [
        element(
            "tr",
            element("td", marked(status)),
            element("td", reason),
            element("td", str(len(cells)), class_="number"),
            element("td", ", ".join(dict.fromkeys(cell.row for cell in cells))),
        )
        for (status, reason), cells in absences(engine).items()
    ]
    return _table(["Status", "Why", "Cells", "Rows"], rows)


def _choices(report: Report) -> Html | None:
    """Set the engines' choices side by side: what differs is what an application must not count on."""
    taken: dict[tuple[str, str], list[list[str]]] = {}
    for place, engine in enumerate(report.engines):
        for row, promise, label in choices(engine):
            taken.setdefault((row, promise), [[] for _ in report.engines])[place].append(label)
    rows = [
        element(
            "tr",
            element("th", row, scope="row"),
            *(element("td", text) for text in (promise, *map(", ".join, labels))),
        )
        for (row, promise), labels in sorted(taken.items())
    ]
    return _table(["Row", "Promise", *headings(report.engines)], rows) if rows else None


def _folded(title: str, table: Html) -> Html:
    pane = element("div", table, class_="pane", tabindex="0", role="region", aria_label=title)
    return element("details", element("summary", title), pane)
