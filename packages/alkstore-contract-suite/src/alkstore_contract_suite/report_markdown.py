"""The report as Markdown, short enough for a pull request."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from alkstore_contract_suite.outcome import Status
from alkstore_contract_suite.verdict import Cell, EngineResult

__all__ = ["render"]

MOST_LINES: Final = 50
"""Cells of one kind that are listed; report.json has them all."""


def render(engines: Sequence[EngineResult], values: Mapping[str, Any]) -> str:
    """Give the report: the verdicts, what is red, what was not applicable and why, the matrix by row."""
    lines = [
        f"# alkstore contract {values['contract']}",
        "",
        f"Seed {values['seed']}, {values['seconds']} s.",
        "",
    ]
    heads = ["engine", "version", "verdict", *(status.value for status in Status)]
    lines += _table(heads, [_totals(result) for result in engines])
    for result in engines:
        lines += ["", f"## {result.column.name}: {result.verdict}"]
        lines += _section("Not passed", [cell for cell in result.cells if cell.status not in QUIET])
        lines += _absences(result)
        lines += _choices(result)
    lines += ["", "## Rows", "", *_matrix(engines)]
    return "\n".join(lines) + "\n"


QUIET: Final = (Status.PASS, Status.NOT_APPLICABLE, Status.NOT_TESTED)


def _totals(result: EngineResult) -> list[str]:
    counts = [str(result.counts.get(status, 0)) for status in Status]
    return [result.column.name, result.column.version, f"**{result.verdict}**", *counts]


def _section(title: str, cells: Sequence[Cell]) -> list[str]:
    if not cells:
        return []
    rows = [[cell.row, cell.mode, cell.status.value, cell.outcome.reason] for cell in cells[:MOST_LINES]]
    left = len(cells) - len(rows)
    more = [f"… and {left} more in report.json"] if left else []
    return ["", f"### {title}", "", *_table(["row", "mode", "status", "why"], rows), *more]


def _absences(result: EngineResult) -> list[str]:
    by_reason: dict[tuple[str, str], list[str]] = {}
    for cell in result.cells:
        if cell.status in (Status.NOT_APPLICABLE, Status.NOT_TESTED):
            by_reason.setdefault((cell.status.value, cell.outcome.reason), []).append(
                f"{cell.row} {cell.mode}"
            )
    if not by_reason:
        return []
    rows = [
        [status, reason, str(len(cells)), ", ".join(cells[:6]) + (" …" if len(cells) > 6 else "")]
        for (status, reason), cells in sorted(by_reason.items())
    ]
    return ["", "### Not run, and why", "", *_table(["status", "why", "cells", "which"], rows)]


def _choices(result: EngineResult) -> list[str]:
    rows = [
        [cell.row, promise, label]
        for cell in result.cells
        for outcome in cell.cases.values()
        for promise, label in outcome.choices.items()
    ]
    unique = [list(each) for each in dict.fromkeys(tuple(row) for row in rows)]
    return ["", "### Free choices taken", "", *_table(["row", "promise", "choice"], unique)] if rows else []


def _matrix(engines: Sequence[EngineResult]) -> list[str]:
    marks: dict[str, dict[str, list[str]]] = {}
    for result in engines:
        for cell in result.cells:
            cells = marks.setdefault(cell.row, {}).setdefault(result.column.name, [])
            cells.append(cell.mode if cell.status is Status.PASS else f"{cell.mode} {cell.status}")
    names = [result.column.name for result in engines]
    rows = [
        [row, *(", ".join(found.get(name, [])) for name in names)] for row, found in sorted(marks.items())
    ]
    return _table(["row", *names], rows)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [_line(heads), _line(["---"] * len(heads)), *(_line(row) for row in rows)]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
