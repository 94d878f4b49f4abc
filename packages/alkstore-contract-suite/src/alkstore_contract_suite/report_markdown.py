"""The report as Markdown, short enough for a pull request."""

import re
from collections.abc import Sequence
from typing import Final

from alkstore_contract_suite.outcome import Status
from alkstore_contract_suite.report_reading import RED, absences, by_row, choices, headings
from alkstore_contract_suite.report_values import EngineValue, Report

__all__ = ["render"]

MOST_LINES: Final = 50
"""Cells of one kind that are listed; report.json has them all."""

MOST_CELLS: Final = 6
"""Cells that are named for one reason."""

MARKUP: Final = re.compile(r"[\\`*\[\]|]|(?<!\w)_|_(?!\w)")
"""What Markdown takes for markup; an underscore within a word it does not."""


def render(report: Report) -> str:
    """Give the report: the verdicts, what is red, what was not applicable and why, the matrix by row."""
    named = list(zip(headings(report.engines), report.engines, strict=True))
    heads = ["engine", "version", "storage", "Python", "verdict", *(status.value for status in Status)]
    lines = [
        f"# alkstore contract {report.contract}",
        "",
        *_table(heads, [_totals(engine) for engine in report.engines]),
    ]
    for heading, engine in named:
        run = engine.run
        lines += ["", f"## {_text(heading)}: {engine.verdict}", ""]
        lines += [_text(f"Begun {run.begun} on {run.platform}, seed {run.seed}, {run.seconds} s.")]
        lines += [*_attention(engine), *_absences(engine), *_choices(engine)]
    lines += ["", "## Rows", "", *_matrix(report)]
    return "\n".join(lines) + "\n"


def _totals(engine: EngineValue) -> list[str]:
    counts = [str(engine.counts.get(status, 0)) for status in Status]
    return [engine.name, engine.version, engine.storage, engine.run.python, engine.verdict, *counts]


def _attention(engine: EngineValue) -> list[str]:
    cells = [cell for cell in engine.cells if cell.status in RED]
    if not cells:
        return []
    rows = [[cell.row, cell.mode, cell.status.value, cell.reason] for cell in cells[:MOST_LINES]]
    left = len(cells) - len(rows)
    more = ["", f"… and {left} more in report.json"] if left else []
    return ["", "### Not passed", "", *_table(["row", "mode", "status", "why"], rows), *more]


def _absences(engine: EngineValue) -> list[str]:
    rows = []
    for (status, reason), cells in absences(engine).items():
        named = ", ".join(f"{cell.row} {cell.mode}" for cell in cells[:MOST_CELLS])
        rows.append(
            [status.value, reason, str(len(cells)), named + (" …" if len(cells) > MOST_CELLS else "")]
        )
    if not rows:
        return []
    return ["", "### Not run, and why", "", *_table(["status", "why", "cells", "which"], rows)]


def _choices(engine: EngineValue) -> list[str]:
    rows = [list(found) for found in choices(engine)]
    return ["", "### Free choices taken", "", *_table(["row", "promise", "choice"], rows)] if rows else []


def _matrix(report: Report) -> list[str]:
    columns = [by_row(engine) for engine in report.engines]
    rows = []
    for row in report.rows:
        marks = [
            ", ".join(
                cell.mode if cell.status is Status.PASS else f"{cell.mode} {cell.status}"
                for cell in column.get(row.id, ())
            )
            for column in columns
        ]
        rows.append([row.id, *marks])
    return _table(["row", *headings(report.engines)], rows)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [_line(heads), _line(["---"] * len(heads)), *(_line(row) for row in rows)]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_text, cells)) + " |"


def _text(text: str) -> str:
    """Escape what would be markup: names and reasons come from authors, engines and drivers."""
    one_line = " ".join(text.split())
    for mark, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        one_line = one_line.replace(mark, entity)
    return MARKUP.sub(r"\\\g<0>", one_line)
