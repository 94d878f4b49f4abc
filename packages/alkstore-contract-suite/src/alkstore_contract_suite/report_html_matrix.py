"""The matrix of the page: a line for each row of the contract, and behind it all that is known of it."""

from collections.abc import Mapping, Sequence
from typing import Final

from alkstore_contract_suite import layout
from alkstore_contract_suite.contract import areas
from alkstore_contract_suite.html_text import Html, element, joined
from alkstore_contract_suite.outcome import Status
from alkstore_contract_suite.report_reading import by_row, headings, speaking
from alkstore_contract_suite.report_values import CaseValue, CellValue, EngineValue, Report, RowValue
from alkstore_contract_suite.row import MODES

__all__ = ["areas_of", "marked", "matrix"]

MARKS: Final = {
    Status.PASS: "✓",
    Status.FAIL: "✗",
    Status.XFAIL: "✗",
    Status.XPASS: "!",
    Status.NOT_APPLICABLE: "–",
    Status.BLOCKED: "◼",
    Status.NOT_TESTED: "○",
    Status.INCONCLUSIVE: "?",
}
"""Beside the word, so that a status is seen without colours and without reading."""

BESIDE: Final = {"FACTORY": "what the author supplies", "MODEL": "random work beside a model"}
"""Areas that are not the contract's own."""

QUIET: Final = (Status.PASS, Status.NOT_APPLICABLE, Status.NOT_TESTED)

Column = Mapping[str, Sequence[CellValue]]


def areas_of(report: Report) -> Mapping[str, str]:
    """Give the title of each area of which the report has rows, in the report's order."""
    words = dict.fromkeys(_area(row) for row in report.rows)
    return {word: f"{word}: {areas().get(word) or BESIDE.get(word, 'further rows')}" for word in words}


def marked(status: Status, more: str = "") -> Html:
    """Give a status as a mark and a word, and something after it."""
    return element(
        "span",
        element("span", MARKS[status], class_="mark", aria_hidden="true"),
        f" {status}",
        element("small", f" {more}") if more else None,
        class_=f"status {_word(status)}",
    )


def matrix(report: Report) -> Html:
    """Give the table."""
    names = headings(report.engines)
    columns = [by_row(engine) for engine in report.engines]
    heads = [element("th", "Row", scope="col"), element("th", "Promise", scope="col", class_="promise")]
    heads += [element("th", name, scope="col") for name in names]
    bodies: list[Html] = []
    for word, title in areas_of(report).items():
        lines = [
            element(
                "tr",
                element("th", element("span", title), scope="rowgroup", colspan=str(len(heads))),
                class_="area",
            )
        ]
        for place, row in enumerate(report.rows):
            if _area(row) == word:
                lines += _row(f"r{place}", row, report.engines, names, columns)
        bodies.append(element("tbody", *lines))
    return element("table", element("thead", element("tr", *heads)), *bodies, class_="matrix")


def _area(row: RowValue) -> str:
    return row.id.split("-")[0]


def _word(status: Status) -> str:
    return status.value.lower().replace("/", "").replace("_", "-")


def _row(
    key: str,
    row: RowValue,
    engines: Sequence[EngineValue],
    names: Sequence[str],
    columns: Sequence[Column],
) -> list[Html]:
    found = [column.get(row.id, ()) for column in columns]
    statuses = dict.fromkeys(cell.status for cells in found for cell in cells)
    button = _button(row.id, controls=key)
    line = element(
        "tr",
        element("th", button, scope="row"),
        element("td", element("div", _prose(row.text)), class_="promise"),
        *(element("td", _summary(cells, f"{key}e{place}")) for place, cells in enumerate(found)),
        class_="row",
        id=row.id,
        data_area=_area(row),
        data_statuses=" ".join(statuses),
    )
    sections = (
        _engine(f"{key}e{place}", names[place], engine, found[place])
        for place, engine in enumerate(engines)
        if found[place]
    )
    inside = element("div", element("p", _prose(row.text)), *sections, _tests(row), class_="inside")
    detail = element("td", inside, colspan=str(2 + len(engines)))
    return [line, element("tr", detail, class_="detail", id=key, hidden=True)]


def _prose(text: str) -> Html:
    """Show what stands between backticks as code."""
    parts = text.split("`")
    return joined(element("code", part) if place % 2 else part for place, part in enumerate(parts))


def _button(label: str, controls: str) -> Html:
    return element("button", label, type="button", aria_expanded="false", aria_controls=controls)


def _summary(cells: Sequence[CellValue], controls: str) -> Html:
    if not cells:
        return Html("")
    status = speaking(cells)
    # What is not applicable is no part of the whole: "PASS 1/3" would look as if something were missing.
    whole = sum(cell.status is not Status.NOT_APPLICABLE for cell in cells)
    count = sum(cell.status is status for cell in cells)
    shown = marked(status, f"{count}/{whole}" if count < whole else "")
    return shown if status in QUIET else _button(shown, controls)


def _engine(key: str, name: str, engine: EngineValue, cells: Sequence[CellValue]) -> Html:
    # The simplest mode first; a later suite may have more of them.
    known = sorted(cells, key=lambda cell: MODES.index(cell.mode) if cell.mode in MODES else len(MODES))
    items = [element("li", *_cell(engine, cell)) for cell in known]
    return element("section", element("h3", name), element("ul", *items), id=key)


def _cell(engine: EngineValue, cell: CellValue) -> list[Html]:
    took = f"{cell.seconds:.3f} s" if cell.seconds else ""
    parts = [joined([marked(cell.status), " ", element("b", cell.mode), " ", element("small", took)])]
    if cell.reason:
        parts.append(element("div", cell.reason, class_="reason"))
    if cell.expectation is not None:
        listed = cell.expectation
        parts.append(
            element(
                "div", f"Listed until {listed.expires}: {listed.reason} ({listed.issue})", class_="reason"
            )
        )
    if cell.status not in QUIET:
        parts += [
            element("div", _facts(name, case), class_="case")
            for name, case in cell.cases.items()
            if case.status not in QUIET
        ]
        again = layout.command(engine.name, cell.row, cell.mode, engine.run.seed)
        parts.append(element("div", "Again: ", element("code", again, class_="command"), class_="again"))
    return parts


def _facts(name: str, case: CaseValue) -> Html:
    facts = {
        "test": name,
        "promise": case.promise,
        "expected": case.expected,
        "observed": case.observed or case.reason,
    }
    shown = [joined([element("dt", label), element("dd", text)]) for label, text in facts.items() if text]
    for label, lines in (("at", case.traceback), ("timeline", case.timeline)):
        if lines:
            steps = element("ol", *(element("li", line) for line in lines))
            shown.append(joined([element("dt", label), element("dd", steps)]))
    if case.trace:
        trace = element("details", element("summary", "for --alk-replay"), element("pre", case.trace))
        shown.append(joined([element("dt", "trace"), element("dd", trace)]))
    return element("dl", *shown)


def _tests(row: RowValue) -> Html | None:
    if not row.functions:
        return None
    items = [
        element(
            "li",
            element("code", function.name),
            f" ({', '.join(function.modes)}): {function.oracle}",
            element("br"),
            element("small", f"Fails on the broken engines {', '.join(function.kills)}.")
            if function.kills
            else None,
        )
        for function in row.functions
    ]
    return element("details", element("summary", f"Tests ({len(items)})"), element("ul", *items))
