"""One run of the contract: what is to be run, on which engines, and what came out."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from alkstore_contract_suite.backends import Backends
from alkstore_contract_suite.claims import Claims
from alkstore_contract_suite.expectations import Expectation
from alkstore_contract_suite.factory import EngineColumn, Supported
from alkstore_contract_suite.outcome import Outcome, Status
from alkstore_contract_suite.plan import Case, Selection, ordered, plan, settled
from alkstore_contract_suite.report import Run
from alkstore_contract_suite.row import Row
from alkstore_contract_suite.running import Limits, run
from alkstore_contract_suite.verdict import judge

__all__ = ["Session"]

SOON_IF_OMITTED: Final = 0.5
"""Seconds of real time for what an engine says that it cannot do: most likely it will not come at all."""


MOST_PATIENCE: Final = 3
"""Times that something may come later than alone; more would leave a case's own limit no room."""


RUNS: Final = {"server": 3, "durable": 6}
"""Runs of a machine where a run is dear: by the first of these capabilities that a column has."""


class Session:
    """The cases of a run and their outcomes.

    Attributes:
        cases: Every case of every column, also those that are not run.
        wanted: Those to run, in the order in which they are to run.
        seed: What the order (if one was given) and every case's randomness come from.
    """

    def __init__(
        self,
        columns: Sequence[EngineColumn],
        rows: Sequence[Row],
        backends: Backends,
        *,
        selection: Selection,
        seed: int | None,
        limits: Limits | None = None,
        expectations: Mapping[tuple[str, str, str], Expectation],
    ) -> None:
        self._columns = {column.name: column for column in columns}
        self._rows = rows
        self._backends = backends
        self._expectations = expectations
        self._limits = limits or Limits()
        self._begun = time.perf_counter()
        self.selection = selection
        self.is_partial = selection.is_partial
        self.seed = seed or 0
        self.cases = [case for column in columns for case in plan(rows, column)]
        self._by_id = {case.id: case for case in self.cases}
        self.outcomes: dict[Case, Outcome] = {}
        for case in self.cases:
            outcome = settled(case, self._columns[case.engine], selection)
            if outcome is not None:
                self.outcomes[case] = outcome
        self.wanted = ordered([case for case in self.cases if case not in self.outcomes], seed)
        self._has_processes = any(case.mode == "process" for case in self.wanted)
        self._failed: dict[str, set[str]] = {name: set() for name in self._columns}

    def run(self, case: Case) -> Outcome:
        """Run one case in this process, unless a row that it depends on has failed."""
        outcome = self.blocked(case) or self.execute(case, self._backends)
        self.note(case, outcome)
        return outcome

    def share(self, cases: Sequence[Case]) -> Backends:
        """Start here what these cases' backends have in common, before other processes are forked; gives what they take over."""
        for engine in dict.fromkeys(case.engine for case in cases):
            self._backends.share(self._columns[engine])
        return self._backends

    def slow_down(self, count: int) -> None:
        """Be more patient: so many cases are run at once, and what comes at once comes later."""
        self._limits = replace(self._limits, soon=self._limits.soon * min(count, MOST_PATIENCE))

    def blocked(self, case: Case) -> Outcome | None:
        """Give the outcome of a case that need not be run, because a row that it depends on has failed."""
        blocking = next((id for id in case.row.depends if id in self._failed[case.engine]), None)
        if blocking is None:
            return None
        return Outcome(status=Status.BLOCKED, reason=f"{blocking} failed, and this row depends on it")

    def execute(self, case: Case, backends: Backends) -> Outcome:
        """Run one case, whatever became of others."""
        column = self._columns[case.engine]
        processes = backends.processes
        if self._has_processes:
            # Long before the first case that wants a child, so that it need not wait for the server's imports.
            processes.start()
        limits = replace(self._limits, runs=self._limits.runs or _runs(column))
        if case.row.id in column.omitted:
            limits = replace(limits, soon=min(limits.soon, SOON_IF_OMITTED))
        outcome = run(
            backends.of(column),
            case,
            seed=self.seed,
            limits=limits,
            processes=processes,
            claims=Claims.of(column),
        )
        if case.row.id in column.omitted and outcome.status is not Status.PASS:
            return Outcome(status=Status.NOT_APPLICABLE, reason=column.omitted[case.row.id])
        return outcome

    def note(self, case: Case, outcome: Outcome) -> None:
        """Remember a failure, wherever the case was run: other cases may depend on it."""
        if outcome.status is Status.FAIL:
            self._failed[case.engine].add(case.row.id)

    def expected(self, case: Case, outcome: Outcome) -> Expectation | None:
        """Give the entry that lists this outcome of this case, if there is one."""
        entry = self._expectations.get((case.engine, case.row.id, case.mode))
        return entry if entry is not None and entry.status is outcome.status else None

    def record(self, id: str, outcome: Outcome) -> None:
        """Note what became of a case, here or in another process."""
        self.outcomes[self._by_id[id]] = outcome

    def result(self, *, jobs: int = 1) -> Run:
        """Judge every engine by what was recorded in so many processes."""
        engines = [
            judge(
                column,
                [case for case in self.cases if case.engine == column.name],
                self.outcomes,
                self._expectations,
            )
            for column in self._columns.values()
        ]
        return Run(
            engines, self._rows, self.selection, self.seed, time.perf_counter() - self._begun, jobs=jobs
        )


def _runs(column: EngineColumn) -> int | None:
    has = (word for word in RUNS if isinstance(column.capabilities[word], Supported))
    return next((RUNS[word] for word in has), None)
