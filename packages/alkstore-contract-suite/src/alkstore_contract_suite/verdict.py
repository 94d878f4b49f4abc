"""From the outcomes of cases to the cells of the matrix and an engine's verdict."""

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from alkstore_contract_suite.contract import promises
from alkstore_contract_suite.expectations import Expectation
from alkstore_contract_suite.factory import EngineColumn, Missing
from alkstore_contract_suite.outcome import Outcome, Status, combined
from alkstore_contract_suite.plan import Case
from alkstore_contract_suite.row import FACTORY_PREFIX

__all__ = ["Cell", "EngineResult", "Verdict", "judge"]

NOT_RUN = Outcome(status=Status.NOT_TESTED, reason="not run")
NO_FUNCTION = Outcome(status=Status.NOT_TESTED, reason="the suite has no test for this row yet")


class Verdict(enum.StrEnum):
    """What a run says about an engine."""

    CONFORMANT = "CONFORMANT"
    NOT_CONFORMANT = "NOT CONFORMANT"
    INCOMPLETE = "INCOMPLETE"
    MISSING = "MISSING"
    NOT_TRUSTWORTHY = "HARNESS NOT TRUSTWORTHY"


@dataclass(frozen=True, slots=True)
class Cell:
    """One row on one engine in one mode; ``outcome`` is the one of its cases that speaks for all."""

    row: str
    mode: str
    outcome: Outcome
    cases: Mapping[str, Outcome]
    expectation: Expectation | None = None

    @property
    def status(self) -> Status:
        """The status that the matrix shows."""
        return self.outcome.status


@dataclass(frozen=True, slots=True)
class EngineResult:
    """One engine's column of the matrix."""

    column: EngineColumn
    cells: Sequence[Cell]
    verdict: Verdict

    @property
    def counts(self) -> Mapping[Status, int]:
        """How many cells have each status."""
        return Counter(cell.status for cell in self.cells)

    def exit_code(self, *, partial: bool, may_be_missing: bool = False) -> int:
        """Give 0 only for a conformant engine; a run that was asked for a part gives 0 if nothing in it is red, and one that
        may do without an engine 0 for one that cannot run here.
        """
        if self.verdict is Verdict.MISSING:
            return 0 if may_be_missing else 1
        red = {Status.FAIL, Status.XFAIL, Status.XPASS, Status.BLOCKED, Status.INCONCLUSIVE}
        if any(status in self.counts for status in red):
            return 1
        return 0 if partial or self.verdict is Verdict.CONFORMANT else 1


def judge(
    column: EngineColumn,
    cases: Sequence[Case],
    outcomes: Mapping[Case, Outcome],
    expectations: Mapping[tuple[str, str, str], Expectation],
) -> EngineResult:
    """Give every cell one status, and the engine its verdict. A row of the contract without a test is a cell too."""
    grouped: dict[tuple[str, str], dict[str, Outcome]] = {}
    for case in cases:
        grouped.setdefault((case.row.id, case.mode), {})[case.row.name] = outcomes.get(case, NOT_RUN)
    for id, reason in column.omitted.items():
        _omit(reason, [found for (row, _), found in grouped.items() if row == id])
    tested = {id for id, _ in grouped}
    for id in promises():
        if id not in tested:
            omitted = column.omitted.get(id)
            outcome = Outcome(status=Status.NOT_APPLICABLE, reason=omitted) if omitted else NO_FUNCTION
            grouped[id, "plain"] = {"": outcome}
    cells = [
        _cell(id, mode, found, expectations.get((column.name, id, mode)))
        for (id, mode), found in grouped.items()
    ]
    verdict = Verdict.MISSING if isinstance(column.available(), Missing) else _verdict(cells)
    return EngineResult(column, cells, verdict)


def _omit(reason: str, modes: Sequence[dict[str, Outcome]]) -> None:
    """Settle the cases of an omitted row: N/A, unless every one of them that could be run passed."""
    ran = [outcome.status for found in modes for outcome in found.values() if not _is_absent(outcome, reason)]
    is_expressed = bool(ran) and all(status is Status.PASS for status in ran)
    excuse = f"omitted ({reason}), but everything of it passes: take it off the list"
    for found in modes:
        for name, outcome in found.items():
            if outcome.status is not Status.PASS:
                continue
            status = Status.FAIL if is_expressed else Status.NOT_APPLICABLE
            found[name] = replace(outcome, status=status, reason=excuse if is_expressed else reason)


def _is_absent(outcome: Outcome, omission: str) -> bool:
    """Whether a case needs a capability that is not there, so that it says nothing about the omission."""
    return outcome.status is Status.NOT_APPLICABLE and outcome.reason != omission


def _cell(id: str, mode: str, cases: Mapping[str, Outcome], expectation: Expectation | None) -> Cell:
    outcome = combined(cases.values())
    if expectation is not None and outcome.status is expectation.status:
        outcome = replace(outcome, status=Status.XFAIL)
    elif expectation is not None and outcome.status is Status.PASS:
        reason = f"listed as {expectation.kind}, but it passes: delete the entry"
        outcome = replace(outcome, status=Status.XPASS, reason=reason)
    return Cell(id, mode, outcome, cases, expectation)


def _verdict(cells: Sequence[Cell]) -> Verdict:
    # An expected failure is a failure here: a list of excuses must not make an engine conformant.
    failed = {Status.FAIL, Status.XFAIL, Status.BLOCKED}
    if any(cell.row.startswith(FACTORY_PREFIX) and cell.status in failed for cell in cells):
        return Verdict.NOT_TRUSTWORTHY
    if any(cell.status in failed for cell in cells):
        return Verdict.NOT_CONFORMANT
    if any(cell.status in (Status.NOT_TESTED, Status.INCONCLUSIVE) for cell in cells):
        return Verdict.INCOMPLETE
    if not any(cell.status in (Status.PASS, Status.XPASS) for cell in cells):
        return Verdict.INCOMPLETE
    return Verdict.CONFORMANT
