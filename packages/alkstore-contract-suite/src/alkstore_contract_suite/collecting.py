"""The nodes that pytest sees: the contract's text is a file, a cell is a collector, a case is an item."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import pytest

from alkstore_contract_suite import layout, replaying
from alkstore_contract_suite.outcome import Outcome, Status
from alkstore_contract_suite.plan import Case
from alkstore_contract_suite.session import Session

__all__ = ["CONTRACT_FILE", "RUN", "SESSION", "CaseFailed", "ContractCase", "ContractCell", "ContractFile"]

CONTRACT_FILE: Final = Path(__file__).parent / "contract.md"

SESSION: Final = pytest.StashKey[Session]()
RUN: Final = pytest.StashKey[Callable[[Case], Outcome]]()
"""What runs a case, in this process or in another."""


class CaseFailed(Exception):
    """A case did not pass; the text is what is shown."""


class ContractFile(pytest.File):
    """All the cells that are to be run."""

    def collect(self) -> Iterable["ContractCell"]:
        cells: dict[str, list[Case]] = {}
        for case in self.config.stash[SESSION].wanted:
            cells.setdefault(case.cell, []).append(case)
        for name, cases in cells.items():
            yield ContractCell.from_parent(self, name=name, cases=cases)


class ContractCell(pytest.Collector):
    """One row on one engine in one mode."""

    def __init__(self, *, cases: list[Case], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._cases = cases

    def collect(self) -> Iterable["ContractCase"]:
        for case in self._cases:
            yield ContractCase.from_parent(self, name=case.row.name, case=case)


class ContractCase(pytest.Item):
    """One case."""

    def __init__(self, *, case: Case, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.case = case
        self.outcome: Outcome | None = None

    def runtest(self) -> None:
        session = self.config.stash[SESSION]
        outcome = self.outcome = self.config.stash[RUN](self.case)
        listed = session.expected(self.case, outcome)
        if listed is not None:
            pytest.xfail(f"{listed.reason} ({listed.issue}, until {listed.expires})")
        if outcome.status is Status.FAIL:
            trace = replaying.keep(self.config, self.case, outcome) if outcome.trace else None
            raise CaseFailed(layout.failure(self.case, outcome, session.seed, trace))
        if outcome.status is not Status.PASS:
            pytest.skip(f"{outcome.status}: {outcome.reason}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, CaseFailed):
            return str(excinfo.value)
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.case.id
