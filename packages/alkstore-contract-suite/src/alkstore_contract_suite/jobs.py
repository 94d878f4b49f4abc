"""In how many processes the cases of a run are run, and what runs them."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pytest

from alkstore_contract_suite import platform_needs
from alkstore_contract_suite.outcome import Outcome
from alkstore_contract_suite.plan import Case
from alkstore_contract_suite.session import Session

if TYPE_CHECKING:
    from alkstore_contract_suite.workers import Workers

__all__ = ["Runner", "cores", "wanted"]

CASES_PER_PROCESS: Final = 60
"""Cases that are worth a process: one costs about as much as five cases of a slow engine."""

COVERAGE: Final = "_cov"
"""The name under which pytest-cov is at work: it follows no process that is forked."""


def wanted(config: pytest.Config, cases: int) -> int:
    """Give the number of processes for so many cases: what ``--alk-jobs`` says, or else what is quickest here."""
    asked: int | None = config.option.alk_jobs
    if not platform_needs.CAN_FORK or hasattr(config, "workerinput"):
        # pytest-xdist's workers share the cases out among them already.
        return 1
    if asked is not None:
        return max(1, min(asked, cases))
    if config.option.usepdb or config.pluginmanager.hasplugin(COVERAGE) or sys.gettrace() is not None:
        return 1
    # One more than cores: a case of an engine with a disk or a server waits for a fifth of its time.
    return max(1, min(cores() + 1, cases // CASES_PER_PROCESS))


def cores() -> int:
    """Give how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Runner:
    """Runs cases, one after the other in this process or several at a time in others.

    Attributes:
        count: In how many processes.
        is_hindered: Whether there were to be more, and could not.
    """

    def __init__(self, session: Session, cases: Sequence[Case], count: int) -> None:
        self.count = count
        self.is_hindered = False
        self._session = session
        self._cases = cases
        self._workers: Workers | None = None

    def run(self, case: Case) -> Outcome:
        """Give the outcome of a case."""
        # Not before: where warnings are errors is what pytest sets up for each case, and the workers are to have it.
        if self.count > 1 and self._workers is None:
            self._begin()
        return self._session.run(case) if self._workers is None else self._workers.run(case)

    def _begin(self) -> None:
        # Here, so that a run in one process need not import it.
        from alkstore_contract_suite import workers

        backends = self._session.share(self._cases)
        if workers.is_alone():
            self._workers = workers.Workers(self._session, backends, self._cases, self.count)
        else:
            self.is_hindered = True
            self.count = 1

    def close(self) -> None:
        """End what was begun; no case is run any more."""
        if self._workers is not None:
            self._workers.close()
