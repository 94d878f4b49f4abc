"""Small reports, made by hand."""

from collections import Counter
from typing import Any

from alkstore_contract_suite.outcome import Status
from alkstore_contract_suite.report_values import (
    CaseValue,
    CellValue,
    EngineValue,
    FunctionValue,
    Report,
    RowValue,
    RunValue,
)
from alkstore_contract_suite.verdict import Verdict

__all__ = ["HOSTILE", "a_cell", "a_failure", "a_report", "an_engine"]

HOSTILE = "</script><script>alert('x')</script>\x00\x1b[1m & \"quoted\" | `code`"
"""What a driver's error might hold at worst."""


def a_cell(row: str, status: Status = Status.PASS, mode: str = "plain", **fields: Any) -> CellValue:
    return CellValue(row=row, mode=mode, status=status, **{"cases": {}, **fields})


def a_failure(row: str, reason: str = "no id twice", mode: str = "plain") -> CellValue:
    case = CaseValue(
        status=Status.FAIL,
        reason=reason,
        promise=reason,
        expected="distinct ids",
        observed="41 twice",
        timeline=("open a", "race of 2"),
    )
    return a_cell(row, Status.FAIL, mode, reason=reason, cases={"ids_are_distinct": case})


def an_engine(name: str, *cells: CellValue, python: str = "3.11.9", **fields: Any) -> EngineValue:
    """Give an engine whose verdict is that of its cells, unless another is given."""
    is_red = any(cell.status not in (Status.PASS, Status.NOT_APPLICABLE) for cell in cells)
    run = RunValue(
        python=python, platform="Linux x86_64", begun="2026-05-04T10:00:00+00:00", seed=7, seconds=1.5, jobs=1
    )
    given = {
        "version": "1.2",
        "verdict": Verdict.NOT_CONFORMANT if is_red else Verdict.CONFORMANT,
        "run": run,
        **fields,
    }
    return EngineValue(
        name=name,
        contract="1.0",
        clock="injected",
        counts=dict(Counter(cell.status.value for cell in cells)),
        capabilities={},
        cells=cells,
        **given,
    )


def a_report(*engines: EngineValue, contract: str = "1.0") -> Report:
    ids = dict.fromkeys(cell.row for engine in engines for cell in engine.cells)
    return Report(
        schema=1, contract=contract, suite="0.1.0", rows=tuple(_row(id) for id in ids), engines=engines
    )


def _row(id: str) -> RowValue:
    function = FunctionValue(
        name=f"a_test_of_{id.lower().replace('-', '_')}",
        text="It is so.",
        oracle="we look",
        level="MUST",
        since="1.0",
        modes=("plain",),
        kills=("a-broken-engine",),
    )
    return RowValue(id=id, text=f"The promise of `{id}`.", functions=(function,))
