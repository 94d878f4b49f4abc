"""The report of a run as plain values, and its files."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from alkstore_contract_suite import CONTRACT_VERSION, report_markdown
from alkstore_contract_suite.contract import promises
from alkstore_contract_suite.factory import Capability, Planned, Unsupported
from alkstore_contract_suite.plan import Selection
from alkstore_contract_suite.row import Row
from alkstore_contract_suite.verdict import Cell, EngineResult

__all__ = ["SCHEMA_VERSION", "Run", "as_json", "write"]

SCHEMA_VERSION: Final = 1
"""Grows when a field changes its meaning or goes; new fields do not change it."""


@dataclass(frozen=True, slots=True)
class Run:
    """Everything that a run found.

    Attributes:
        seconds: Real time of the whole run; that of each case is in its outcome.
        jobs: In how many processes the cases were run.
    """

    engines: Sequence[EngineResult]
    rows: Sequence[Row]
    selection: Selection
    seed: int
    seconds: float
    jobs: int = 1


def as_json(run: Run) -> dict[str, Any]:
    """Give the versioned report; every row of the contract and every cell is in it."""
    return {
        "schema": SCHEMA_VERSION,
        "contract": CONTRACT_VERSION,
        "seed": run.seed,
        "selection": {"rows": list(run.selection.rows), "modes": list(run.selection.modes)},
        "seconds": round(run.seconds, 3),
        "jobs": run.jobs,
        "rows": _rows(run.rows),
        "engines": [_engine(result) for result in run.engines],
    }


def write(run: Run, directory: Path) -> None:
    """Write ``report.json`` and ``report.md`` into a directory, made if it is not there."""
    directory.mkdir(parents=True, exist_ok=True)
    values = as_json(run)
    (directory / "report.json").write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", "utf-8")
    (directory / "report.md").write_text(report_markdown.render(run.engines, values), "utf-8")


def _rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    texts = dict(promises())
    for row in rows:
        texts.setdefault(row.id, row.text)
    functions: dict[str, list[dict[str, Any]]] = {id: [] for id in texts}
    for row in rows:
        functions[row.id].append(
            {
                "name": row.name,
                "text": row.text,
                "oracle": row.oracle,
                "level": row.level,
                "since": row.since,
                "modes": list(row.modes),
                "needs": list(row.needs),
                "kills": list(row.kills),
                "depends": list(row.depends),
            }
        )
    return [{"id": id, "text": text, "functions": functions[id]} for id, text in texts.items()]


def _engine(result: EngineResult) -> dict[str, Any]:
    column = result.column
    return {
        "name": column.name,
        "version": column.version,
        "contract": column.contract,
        "clock": column.clock.value,
        "capabilities": {word: _capability(found) for word, found in column.capabilities.items()},
        "omitted": dict(column.omitted),
        "verdict": result.verdict.value,
        "counts": {status.value: count for status, count in result.counts.items()},
        "cells": [_cell(cell) for cell in result.cells],
    }


def _capability(found: Capability) -> dict[str, str]:
    if isinstance(found, Unsupported):
        return {"status": "unsupported", "reason": found.reason}
    if isinstance(found, Planned):
        return {"status": "planned", "what": found.what}
    return {"status": "supported"}


def _cell(cell: Cell) -> dict[str, Any]:
    expected = cell.expectation
    return {
        "row": cell.row,
        "mode": cell.mode,
        "status": cell.status.value,
        "reason": cell.outcome.reason,
        "seconds": round(sum(outcome.seconds for outcome in cell.cases.values()), 6),
        "cases": {name: outcome.as_json() for name, outcome in cell.cases.items() if name},
        "expectation": None
        if expected is None
        else {"reason": expected.reason, "issue": expected.issue, "expires": expected.expires.isoformat()},
    }
