"""What all the renderings of a report show alike: names of columns, the order of statuses, what speaks for a row."""

from collections.abc import Mapping, Sequence
from typing import Final

from alkstore_contract_suite.outcome import Status
from alkstore_contract_suite.report_values import CellValue, EngineValue

__all__ = ["RED", "absences", "by_row", "choices", "headings", "identity", "speaking"]

RED: Final = (Status.FAIL, Status.XPASS, Status.BLOCKED, Status.INCONCLUSIVE, Status.XFAIL)
"""What somebody has to look at."""

_WORST_FIRST: Final = (*RED, Status.NOT_TESTED, Status.PASS, Status.NOT_APPLICABLE)


def identity(engine: EngineValue) -> tuple[str, str, str, str, str]:
    """Give what tells two columns of a matrix apart: engine, version, storage, Python, platform."""
    return engine.name, engine.version, engine.storage, engine.run.python, engine.run.platform


def headings(engines: Sequence[EngineValue]) -> list[str]:
    """Name each column of a matrix by its engine, and by as much more as tells it from the others."""
    shown: list[str] = []
    for engine in engines:
        parts = [engine.name]
        alike = [other for other in engines if other.name == engine.name]
        for place, prefix in ((1, ""), (2, ""), (3, "Python "), (4, "")):
            if len({identity(other)[place] for other in alike}) > 1:
                parts.append(f"{prefix}{identity(engine)[place]}".strip())
        shown.append(", ".join(part for part in parts if part))
    return shown


def by_row(engine: EngineValue) -> Mapping[str, Sequence[CellValue]]:
    """Give an engine's cells of each row, in the report's order."""
    found: dict[str, list[CellValue]] = {}
    for cell in engine.cells:
        found.setdefault(cell.row, []).append(cell)
    return found


def speaking(cells: Sequence[CellValue]) -> Status:
    """Give the status that speaks for cells of one row: the worst, N/A only if all of them are."""
    return min((cell.status for cell in cells), key=_WORST_FIRST.index)


def absences(engine: EngineValue) -> Mapping[tuple[Status, str], Sequence[CellValue]]:
    """Give the cells that were not run, by status and reason."""
    found: dict[tuple[Status, str], list[CellValue]] = {}
    for cell in engine.cells:
        if cell.status in (Status.NOT_APPLICABLE, Status.NOT_TESTED):
            found.setdefault((cell.status, cell.reason), []).append(cell)
    return dict(sorted(found.items()))


def choices(engine: EngineValue) -> Sequence[tuple[str, str, str]]:
    """Give row, promise and result, where the contract leaves a choice; each once."""
    found = (
        (cell.row, promise, label)
        for cell in engine.cells
        for case in cell.cases.values()
        for promise, label in case.choices.items()
    )
    return list(dict.fromkeys(found))
