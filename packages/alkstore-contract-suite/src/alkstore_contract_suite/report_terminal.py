"""The last lines of a run on the terminal: what is missing, what is stale, and the verdicts."""

from collections.abc import Sequence
from typing import Final

from alkstore_contract_suite import CONTRACT_VERSION
from alkstore_contract_suite.outcome import Status
from alkstore_contract_suite.report import Run
from alkstore_contract_suite.verdict import Cell, EngineResult

__all__ = ["summary"]

MOST_LINES: Final = 20

SHOWN: Final = (
    Status.FAIL,
    Status.XPASS,
    Status.BLOCKED,
    Status.INCONCLUSIVE,
    Status.XFAIL,
    Status.NOT_TESTED,
)


def summary(run: Run, *, ladder: bool = False) -> list[str]:
    """Give the lines: for each engine its cells that need a look, grouped by reason, and one line of verdict.

    After a climb most cells have not been run, and what is not yet written is said by the ladder.
    """
    where = f" in {run.jobs} processes" if run.jobs > 1 else ""
    lines = [f"contract {CONTRACT_VERSION}, seed {run.seed}, {run.seconds:.1f} s{where}"]
    for result in run.engines if not ladder else ():
        lines += _attention(result)
    lines += [_verdict_line(result) for result in run.engines]
    return lines


def _attention(result: EngineResult) -> list[str]:
    lines: list[str] = []
    for status in SHOWN:
        groups: dict[str, list[Cell]] = {}
        for cell in result.cells:
            if cell.status is status:
                groups.setdefault(cell.outcome.reason, []).append(cell)
        largest = sorted(groups.items(), key=lambda group: -len(group[1]))
        lines += [
            f"{result.column.name}  {status}  {reason}: {_named(cells)}"
            for reason, cells in largest[:MOST_LINES]
        ]
        if len(largest) > MOST_LINES:
            lines.append(f"{result.column.name}  {status}  … and {len(largest) - MOST_LINES} more reasons")
    return lines


def _named(cells: Sequence[Cell]) -> str:
    first = ", ".join(f"{cell.row} {cell.mode}" for cell in cells[:3])
    return f"{first} and {len(cells) - 3} more" if len(cells) > 3 else first


def _verdict_line(result: EngineResult) -> str:
    counts = ", ".join(f"{result.counts[status]} {status}" for status in Status if status in result.counts)
    column = result.column
    return f"{column.name} {column.version} (contract {column.contract}): {result.verdict}  [{counts}]"
