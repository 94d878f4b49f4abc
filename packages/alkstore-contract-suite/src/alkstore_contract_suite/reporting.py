"""What pytest does when the contract was asked for: collect it, note what became of it, judge, report."""

import datetime as dt
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from alkstore_contract_suite import (
    CONTRACT_VERSION,
    columns,
    expectations,
    jobs,
    ladder,
    report,
    report_terminal,
    rows,
)
from alkstore_contract_suite.collecting import CONTRACT_FILE, RUN, SESSION, ContractCase, ContractFile
from alkstore_contract_suite.contract import promises
from alkstore_contract_suite.jobs import Runner
from alkstore_contract_suite.outcome import Outcome, Status
from alkstore_contract_suite.plan import Selection, SelectionError
from alkstore_contract_suite.report import Run
from alkstore_contract_suite.running import Limits
from alkstore_contract_suite.session import Session

__all__ = ["ContractPlugin"]

FIELD: Final = "alkstore_case"
"""The attribute of a test report that carries a case and its outcome, from other processes too."""

HINDERED: Final = (
    "in one process: other threads are running in this one, so that no other can be forked from it"
)

WORDS: Final[Mapping[Status, tuple[str, str, str]]] = {
    Status.BLOCKED: ("blocked", "b", "BLOCKED"),
    Status.INCONCLUSIVE: ("inconclusive", "?", "INCONCLUSIVE"),
    Status.NOT_TESTED: ("not tested", "-", "NOT TESTED"),
}


class ContractPlugin:
    """The hooks of a run that was asked for the contract."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._run: Run | None = None
        self._runner: Runner | None = None
        self._is_collected = False
        self._is_ladder: bool = config.option.alk_ladder
        self._test_session: pytest.Session | None = None
        self._session = config.stash[SESSION] = _session(config)
        if self._is_ladder:
            self._session.wanted = ladder.climb(self._session.wanted)

    def pytest_report_header(self) -> str:
        names = ", ".join(f"{column.name} {column.version}" for column in columns.chosen(self._config))
        return f"alkstore contract {CONTRACT_VERSION}: {names}, seed {self._session.seed}"

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        # An author's python_files may well fit modules of the suite, which are no test modules.
        inside = CONTRACT_FILE.parent in collection_path.parents
        return True if inside and collection_path != CONTRACT_FILE else None

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        if file_path != CONTRACT_FILE:
            return None
        self._is_collected = True
        return ContractFile.from_parent(parent, path=file_path)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        # Plugins that shuffle may not put a row before those it depends on, nor a case before the factory's.
        places = {case: place for place, case in enumerate(self._session.wanted)}
        ours = [item for item in items if isinstance(item, ContractCase)]
        others = [item for item in items if not isinstance(item, ContractCase)]
        items[:] = [*others, *sorted(ours, key=lambda item: places[item.case])]

    def pytest_deselected(self) -> None:
        self._session.is_partial = True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        cases = [item.case for item in session.items if isinstance(item, ContractCase)]
        runner = self._runner = Runner(self._session, cases, jobs.wanted(self._config, len(cases)))
        self._config.stash[RUN] = runner.run
        self._test_session = session
        try:
            return (yield)
        finally:
            runner.close()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        made = yield
        if isinstance(item, ContractCase) and call.when == "call":
            error = call.excinfo.value if call.excinfo else None
            outcome = item.outcome or Outcome(status=Status.FAIL, reason=f"the case could not run: {error!r}")
            setattr(made, FIELD, {"id": item.case.id, "outcome": outcome.as_json()})
            # How long we waited for another process says nothing.
            made.duration = outcome.seconds or made.duration
        return made

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        noted = getattr(report, FIELD, None)
        if noted is not None:
            self._is_collected = True
            outcome = Outcome.from_json(noted["outcome"])
            self._session.record(noted["id"], outcome)
            is_listed = hasattr(report, "wasxfail")
            if self._is_ladder and self._test_session and ladder.is_broken(outcome) and not is_listed:
                self._test_session.shouldfail = "the ladder ends at the first promise that is broken"

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, str] | None:
        noted = getattr(report, FIELD, None)
        if noted is None or hasattr(report, "wasxfail"):
            return None
        if noted["outcome"]["missing"]:
            # An engine under construction has hundreds of these: the summary groups them, no section each.
            return ("not implemented", "n", "NOT IMPLEMENTED")
        return WORDS.get(Status(noted["outcome"]["status"]))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        option = self._config.option
        if not self._is_collected or option.collectonly or hasattr(self._config, "workerinput"):
            return
        self._run = self._session.result(jobs=self._runner.count if self._runner else 1)
        if option.alk_report:
            report.write(report.as_report(self._run), Path(option.alk_report))
        is_partial, may_be_missing = self._session.is_partial, bool(option.alk_allow_missing)
        code = max(
            result.exit_code(partial=is_partial, may_be_missing=may_be_missing)
            for result in self._run.engines
        )
        if session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode(code)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> Generator[None, object, object]:
        result = yield
        if self._run is not None:
            terminalreporter.section("alkstore contract")
            if self._runner is not None and self._runner.is_hindered:
                terminalreporter.line(HINDERED)
            for line in report_terminal.summary(self._run, ladder=self._is_ladder):
                terminalreporter.line(line)
            if self._config.option.alk_report:
                terminalreporter.line(f"report: {Path(self._config.option.alk_report) / 'report.html'}")
            if self._is_ladder:
                for line in ladder.advice(self._session.wanted, self._session.outcomes):
                    terminalreporter.line(line)
        return result


def _session(config: pytest.Config) -> Session:
    known = rows.registered()
    path = config.rootpath / expectations.FILE_NAME
    ids = {*promises(), *(row.id for row in known)}
    try:
        option = config.option
        is_smoke = option.alk_profile == "smoke"
        selection = Selection.read(option.alk_row, option.alk_mode, known, is_smoke=is_smoke)
        listed = expectations.read(path, ids, dt.datetime.now(dt.UTC).date())
        return Session(
            columns.chosen(config),
            known,
            columns.backends(config),
            selection=selection,
            seed=config.option.alk_seed,
            limits=Limits.of(config.option.alk_kills, config.option.alk_runs, config.option.alk_steps),
            expectations=listed,
        )
    except (SelectionError, expectations.ExpectationError) as error:
        raise pytest.UsageError(str(error)) from error
