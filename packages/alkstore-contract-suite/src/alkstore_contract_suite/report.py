"""The report of a run as plain values, and its files."""

import datetime as dt
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

import alkstore
from alkstore_contract_suite import CONTRACT_VERSION, report_html, report_markdown
from alkstore_contract_suite.contract import promises
from alkstore_contract_suite.factory import Capability, Planned, Stored, Unsupported
from alkstore_contract_suite.plan import Selection
from alkstore_contract_suite.report_values import (
    SCHEMA_VERSION,
    CapabilityValue,
    CaseValue,
    CellValue,
    EngineValue,
    ExpectationValue,
    FunctionValue,
    Report,
    RowValue,
    RunValue,
    SelectionValue,
    encode,
)
from alkstore_contract_suite.row import Row
from alkstore_contract_suite.verdict import Cell, EngineResult

__all__ = ["Run", "as_report", "write"]


@dataclass(frozen=True, slots=True)
class Run:
    """Everything that a run found.

    Attributes:
        seconds: Real time of the whole run; that of each case is in its outcome.
        jobs: In how many processes the cases were run.
        ended: When.
    """

    engines: Sequence[EngineResult]
    rows: Sequence[Row]
    selection: Selection
    seed: int
    seconds: float
    jobs: int = 1
    ended: dt.datetime = field(default_factory=lambda: dt.datetime.now(dt.UTC))


def as_report(run: Run) -> Report:
    """Give the report; every row of the contract and every cell is in it."""
    begun = run.ended - dt.timedelta(seconds=run.seconds)
    where = RunValue(
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        begun=begun.isoformat(timespec="seconds"),
        seed=run.seed,
        seconds=round(run.seconds, 3),
        jobs=run.jobs,
        selection=SelectionValue(
            rows=tuple(run.selection.rows),
            modes=tuple(run.selection.modes),
            profile="smoke" if run.selection.picked else "full",
        ),
    )
    return Report(
        schema=SCHEMA_VERSION,
        contract=CONTRACT_VERSION,
        suite=alkstore.__version__,  # one version for all packages
        rows=_rows(run.rows),
        engines=tuple(_engine(result, where) for result in run.engines),
    )


def write(report: Report, directory: Path) -> None:
    """Write ``report.json``, ``report.md`` and ``report.html`` into a directory, made if it is not there."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "report.json").write_bytes(encode(report))
    (directory / "report.md").write_text(report_markdown.render(report), "utf-8")
    (directory / "report.html").write_text(report_html.render(report), "utf-8")


def _rows(rows: Sequence[Row]) -> tuple[RowValue, ...]:
    texts = dict(promises())
    for row in rows:
        texts.setdefault(row.id, row.text)
    return tuple(
        RowValue(id=id, text=text, functions=tuple(_function(row) for row in rows if row.id == id))
        for id, text in texts.items()
    )


def _function(row: Row) -> FunctionValue:
    return FunctionValue(
        name=row.name,
        text=row.text,
        oracle=row.oracle,
        level=row.level,
        since=row.since,
        modes=row.modes,
        needs=row.needs,
        kills=row.kills,
        depends=row.depends,
        hints=row.hints,
    )


def _engine(result: EngineResult, where: RunValue) -> EngineValue:
    column = result.column
    return EngineValue(
        name=column.name,
        version=column.version,
        contract=column.contract,
        clock=column.clock.value,
        storage=column.storage() if isinstance(column, Stored) else "",
        verdict=result.verdict,
        counts={status.value: count for status, count in result.counts.items()},
        run=where,
        capabilities={word: _capability(found) for word, found in column.capabilities.items()},
        omitted=dict(column.omitted),
        cells=tuple(_cell(cell) for cell in result.cells),
    )


def _capability(found: Capability) -> CapabilityValue:
    if isinstance(found, Unsupported):
        return CapabilityValue(status="unsupported", reason=found.reason)
    if isinstance(found, Planned):
        return CapabilityValue(status="planned", what=found.what)
    return CapabilityValue(status="supported")


def _cell(cell: Cell) -> CellValue:
    listed = cell.expectation
    return CellValue(
        row=cell.row,
        mode=cell.mode,
        status=cell.status,
        reason=cell.outcome.reason,
        seconds=round(sum(outcome.seconds for outcome in cell.cases.values()), 6),
        cases={
            name: msgspec.convert(outcome.as_json(), CaseValue)
            for name, outcome in cell.cases.items()
            if name
        },
        expectation=None
        if listed is None
        else ExpectationValue(reason=listed.reason, issue=listed.issue, expires=listed.expires.isoformat()),
    )
