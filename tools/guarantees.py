"""Print docs/guarantees.md from the suite's rows and the engines' columns; ``--check`` only says whether it is stale."""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from alkstore_contract_suite import rows
from alkstore_contract_suite.contract import promises
from alkstore_contract_suite.factory import EngineColumn, Planned, Supported
from alkstore_contract_suite.registry import Registry, load_entry_points
from alkstore_contract_suite.row import CAPABILITIES, MODEL_PREFIX, Row
from workspace import ROOT, engines

__all__ = ["PAGE", "anchors", "areas", "cell", "main", "page"]

PAGE = Path("docs", "guarantees.md")
"""Where the page stands, relative to the root."""

AREA = re.compile(r"^### (?P<area>[A-Z]+): (?P<title>.+)$", re.MULTILINE)

HEAD = """\
# Guarantees and their proofs

Printed from the suite's rows and the engines' columns by `python tools/guarantees.py`: a change here is lost, change those.

Each line is one test. *Promise* is what it holds an engine to, *looked at* is what tells it whether the promise was
kept, *modes* are the ways in which it is run, one case for each. The wording that binds stands in
[the contract](contract.md); `pytest --pyargs alkstore_contract_suite --alk-explain Q-09` shows it beside its tests.
That each of them can fail [the kill matrix](kill-matrix.md) shows.
"""

ENGINES = """\
## Engines: what each leaves out

A row that needs what an engine does not have is not run on it; all others are. A row named here is run all the same,
and fails the engine if it could keep the promise after all.
"""

FACTORY = """\
## FACTORY: what an engine's author supplies

These judge the column, not the engine: if one fails, nothing that the other rows say counts.
"""

MODEL = """\
## MODEL: whole areas at once

What is done here is drawn, and what is answered is compared with [the model](model.md). The rows above say the same of
sequences that somebody wrote down.
"""


def page(contract: str, known: Sequence[Row], columns: Sequence[EngineColumn] = ()) -> str:
    """Give the text of the page: the engines, a table for each area of the contract, then other rows."""
    parts = [HEAD, *([ENGINES + "\n" + _engines(columns)] if columns else [])]
    parts += [_section(area, title, known) for area, title in areas(contract)]
    models = [row for row in known if row.id.startswith(MODEL_PREFIX)]
    if models:
        parts.append(MODEL + "\n" + _table(models))
    factory = [row for row in known if row.is_factory]
    if factory:
        parts.append(FACTORY + "\n" + _table(factory))
    return "\n".join(parts)


def anchors(contract: str) -> dict[str, str]:
    """Give for every row of the contract the anchor of its area's heading."""
    slugs = {area: _slug(f"{area}: {title}") for area, title in areas(contract)}
    return {id: slugs[_area(id)] for id in promises()}


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Write the page, or check it; gives the exit code."""
    contract = (root / "docs" / "contract.md").read_text("utf-8")
    text = page(contract, rows.registered(), _columns())
    path = root / PAGE
    if list(arguments) == ["--check"]:
        if path.is_file() and path.read_text("utf-8") == text:
            return 0
        print(f"{PAGE.as_posix()} is stale: run `python tools/guarantees.py`")
        return 1
    path.write_text(text, "utf-8")
    return 0


def areas(contract: str) -> Iterator[tuple[str, str]]:
    """Give the areas of the contract and their titles."""
    return ((found["area"], found["title"]) for found in AREA.finditer(contract))


def _area(id: str) -> str:
    return id.partition("-")[0]


def _slug(heading: str) -> str:
    """Give a heading's anchor as GitHub and MyST build it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _section(area: str, title: str, known: Sequence[Row]) -> str:
    found = [row for row in known if _area(row.id) == area]
    untested = [id for id in promises() if _area(id) == area and all(row.id != id for row in found)]
    parts = [f"## {area}: {title}\n"]
    if found:
        parts.append(_table(found))
    if untested:
        parts.append(f"No test yet: {', '.join(untested)}.\n")
    return "\n".join(parts)


def _columns() -> list[EngineColumn]:
    """Give the columns of the workspace's engines; others may be installed beside them."""
    registry = Registry()
    load_entry_points(registry)
    return [registry.columns[name] for name in engines()]


def _engines(columns: Sequence[EngineColumn]) -> str:
    lines = [f"| | {' | '.join(column.name for column in columns)} |", f"| --- |{' --- |' * len(columns)}"]
    for word in CAPABILITIES:
        cells = (_capability(column, word) for column in columns)
        lines.append(f"| {cell(word)} | {' | '.join(cells)} |")
    for id in sorted({id for column in columns for id in column.omitted}):
        cells = (f"no: {cell(column.omitted[id])}" if id in column.omitted else "yes" for column in columns)
        lines.append(f"| {id} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _capability(column: EngineColumn, word: str) -> str:
    match column.capabilities[word]:
        case Supported():
            return "yes"
        case Planned(what):
            return f"planned: {cell(what)}"
        case absent:
            return f"no: {cell(absent.reason)}"


def _table(found: Sequence[Row]) -> str:
    lines = ["| row | promise | looked at | modes |", "| --- | --- | --- | --- |"]
    for row in found:
        cells = (row.id, cell(row.text), cell(row.oracle), ", ".join(row.modes))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    """Give text that neither ends its cell nor is taken for markup."""
    return re.sub(r"([|*_<>`\[\]])", r"\\\1", " ".join(text.split()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
