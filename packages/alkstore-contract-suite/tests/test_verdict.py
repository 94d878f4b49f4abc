"""From outcomes to cells, verdicts and exit codes; and the list of expected failures."""

import datetime as dt
from pathlib import Path

import pytest

from alkstore_contract_suite.context import Context
from alkstore_contract_suite.contract import promises
from alkstore_contract_suite.expectations import Expectation, ExpectationError, read
from alkstore_contract_suite.factory import Missing, Unsupported
from alkstore_contract_suite.in_process import InProcessColumn
from alkstore_contract_suite.outcome import Outcome, Status
from alkstore_contract_suite.plan import Case
from alkstore_contract_suite.row import CAPABILITIES, Row
from alkstore_contract_suite.verdict import EngineResult, Verdict, judge

COLUMN = InProcessColumn(
    "toy",
    version="1",
    contract="1.0",
    capabilities={word: Unsupported("a toy") for word in CAPABILITIES},
    make_store=lambda clock, source: pytest.fail("nothing is opened"),
)

TODAY = dt.date(2026, 6, 1)

ENTRY = """
[[expect]]
engine = "toy"
row = "Q-01"
mode = "plain"
kind = "fail"
reason = "not yet"
issue = "https://example.org/1"
expires = 2026-07-01
"""


async def function(ctx: Context) -> None:
    """A row that is judged and never run."""


def a_case(id: str, name: str = "one") -> Case:
    row = Row(
        id=id,
        name=name,
        text="a promise",
        oracle="a look",
        modes=("plain",),
        needs=(),
        kills=(),
        level="MUST",
        since="1.0",
        depends=(),
        hints="",
        function=function,
    )
    return Case(row, "toy", "plain")


def judged(
    changed: dict[str, Status], expected: dict[tuple[str, str, str], Expectation] | None = None
) -> EngineResult:
    """Judge a run in which every row passed but those given."""
    cases = [a_case(id) for id in [*promises(), "FACTORY-01"]]
    outcomes = {case: Outcome(status=changed.get(case.row.id, Status.PASS), reason="why") for case in cases}
    return judge(COLUMN, cases, outcomes, expected or {})


def status_of(result: EngineResult, id: str) -> Status:
    return next(cell.status for cell in result.cells if cell.row == id)


def an_expectation(kind: str = "fail") -> dict[tuple[str, str, str], Expectation]:
    return {
        ("toy", "Q-01", "plain"): Expectation(
            "toy", "Q-01", "plain", kind, "not yet", "#1", dt.date(2027, 1, 1)
        )
    }


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({}, Verdict.CONFORMANT),
        ({"Q-02": Status.NOT_APPLICABLE}, Verdict.CONFORMANT),
        ({"Q-02": Status.FAIL}, Verdict.NOT_CONFORMANT),
        ({"Q-02": Status.BLOCKED}, Verdict.NOT_CONFORMANT),
        ({"Q-02": Status.NOT_TESTED}, Verdict.INCOMPLETE),
        ({"Q-02": Status.INCONCLUSIVE}, Verdict.INCOMPLETE),
        ({"Q-02": Status.FAIL, "Q-03": Status.NOT_TESTED}, Verdict.NOT_CONFORMANT),
        ({"FACTORY-01": Status.FAIL}, Verdict.NOT_TRUSTWORTHY),
        ({"FACTORY-01": Status.FAIL, "Q-02": Status.FAIL}, Verdict.NOT_TRUSTWORTHY),
        (dict.fromkeys([*promises(), "FACTORY-01"], Status.NOT_APPLICABLE), Verdict.INCOMPLETE),
    ],
)
def test_an_engine_has_one_verdict(changed: dict[str, Status], verdict: Verdict) -> None:
    result = judged(changed)

    assert result.verdict is verdict
    assert result.exit_code(partial=False) == (0 if verdict is Verdict.CONFORMANT else 1)


def test_an_engine_that_cannot_run_here_is_missing_and_red_unless_it_may_be() -> None:
    class Away(InProcessColumn):
        def available(self) -> Missing:  # type: ignore[override]  # a column that cannot run here
            return Missing("set TOY_DSN")

    away = Away(
        "toy",
        version="1",
        contract="1.0",
        capabilities=COLUMN.capabilities,
        make_store=lambda clock, source: pytest.fail("nothing is opened"),
    )
    result = judge(away, [], {}, {})

    assert result.verdict is Verdict.MISSING
    assert result.exit_code(partial=False) == result.exit_code(partial=True) == 1
    assert result.exit_code(partial=False, may_be_missing=True) == 0


def test_a_row_of_the_contract_without_a_test_makes_a_run_incomplete() -> None:
    cases = [a_case(id) for id in promises() if id != "Q-01"]

    result = judge(COLUMN, cases, {case: Outcome(status=Status.PASS) for case in cases}, {})

    assert status_of(result, "Q-01") is Status.NOT_TESTED
    assert result.verdict is Verdict.INCOMPLETE


def test_a_planned_case_that_never_ran_is_not_tested() -> None:
    result = judge(COLUMN, [a_case("Q-01")], {}, {})

    assert status_of(result, "Q-01") is Status.NOT_TESTED


def test_a_cell_shows_a_broken_promise_before_a_method_that_is_missing() -> None:
    unwritten, broken = a_case("Q-01", "one"), a_case("Q-01", "two")
    outcomes = {
        unwritten: Outcome(status=Status.FAIL, reason="not implemented: begin", missing="begin"),
        broken: Outcome(status=Status.FAIL, reason="a job is given once"),
    }

    result = judge(COLUMN, [unwritten, broken], outcomes, {})

    assert [cell.outcome.reason for cell in result.cells if cell.row == "Q-01"] == ["a job is given once"]


def test_a_cell_shows_the_worst_of_its_functions() -> None:
    good, bad = a_case("Q-01", "good"), a_case("Q-01", "bad")
    outcomes = {good: Outcome(status=Status.PASS), bad: Outcome(status=Status.FAIL, reason="bad")}

    result = judge(COLUMN, [good, bad], outcomes, {})

    assert status_of(result, "Q-01") is Status.FAIL


@pytest.mark.parametrize(
    ("status", "code"),
    [(Status.NOT_TESTED, 0), (Status.FAIL, 1), (Status.INCONCLUSIVE, 1), (Status.BLOCKED, 1)],
)
def test_a_run_that_was_asked_for_a_part_is_red_only_if_something_in_it_is(status: Status, code: int) -> None:
    assert judged({"Q-02": status}).exit_code(partial=True) == code


@pytest.mark.parametrize(
    ("second", "status"), [(Status.PASS, Status.FAIL), (Status.NOT_APPLICABLE, Status.NOT_APPLICABLE)]
)
def test_an_omission_fails_only_if_everything_of_its_row_passes(second: Status, status: Status) -> None:
    column = InProcessColumn(
        "toy",
        version="1",
        contract="1.0",
        capabilities=COLUMN.capabilities,
        make_store=COLUMN._make_store,
        omitted={"Q-01": "no queues"},
    )
    cases = [a_case("Q-01", "one"), a_case("Q-01", "two")]
    outcomes = {cases[0]: Outcome(status=Status.PASS), cases[1]: Outcome(status=second, reason="no queues")}

    assert status_of(judge(column, cases, outcomes, {}), "Q-01") is status


def test_an_expected_failure_is_shown_as_one_and_changes_no_verdict() -> None:
    result = judged({"Q-01": Status.FAIL}, an_expectation())

    assert status_of(result, "Q-01") is Status.XFAIL
    assert (result.verdict, result.exit_code(partial=False)) == (Verdict.NOT_CONFORMANT, 1)


def test_an_expected_failure_that_passes_fails_the_run_and_not_the_engine() -> None:
    result = judged({}, an_expectation())

    assert status_of(result, "Q-01") is Status.XPASS
    assert (result.verdict, result.exit_code(partial=False)) == (Verdict.CONFORMANT, 1)


def test_a_failure_is_no_expected_inconclusive() -> None:
    assert status_of(judged({"Q-01": Status.FAIL}, an_expectation("inconclusive")), "Q-01") is Status.FAIL


def test_the_list_is_read_by_cell(tmp_path: Path) -> None:
    path = tmp_path / "contract-expectations.toml"
    path.write_text(ENTRY, "utf-8")

    assert list(read(path, promises(), TODAY)) == [("toy", "Q-01", "plain")]


def test_an_entry_that_has_expired_expects_nothing(tmp_path: Path) -> None:
    path = tmp_path / "contract-expectations.toml"
    path.write_text(ENTRY, "utf-8")

    assert read(path, promises(), dt.date(2026, 7, 1)) == {}


def test_without_a_file_nothing_is_expected(tmp_path: Path) -> None:
    assert read(tmp_path / "contract-expectations.toml", promises(), TODAY) == {}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"Q-01"', '"Q-*"'),
        ('"Q-01"', '"Q-99"'),
        ('"plain"', '"sideways"'),
        ('"fail"', '"flaky"'),
        ("2026-07-01", '"soon"'),
        ('reason = "not yet"', ""),
        ("[[expect]]", "[expect"),
        (ENTRY, ENTRY + ENTRY),
    ],
)
def test_a_list_that_says_nothing_clear_is_refused(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "contract-expectations.toml"
    path.write_text(ENTRY.replace(old, new), "utf-8")

    with pytest.raises(ExpectationError):
        read(path, promises(), TODAY)
