"""The report's files, and the one layout of a failure."""

import json
from pathlib import Path

import pytest

from alkstore_contract_suite import layout, report, report_terminal, rows
from alkstore_contract_suite.factory import Planned, Unsupported
from alkstore_contract_suite.in_process import InProcessColumn
from alkstore_contract_suite.outcome import Outcome, Status
from alkstore_contract_suite.plan import Case, Selection, plan
from alkstore_contract_suite.row import CAPABILITIES
from alkstore_contract_suite.verdict import judge

COLUMN = InProcessColumn(
    "toy",
    version="1.2",
    contract="1.0",
    capabilities={**{word: Unsupported("a toy") for word in CAPABILITIES}, "joins": Planned("in May")},
    make_store=lambda clock, source: pytest.fail("nothing is opened"),
    omitted={"Q-26": "too | big"},
)

FAILED = Outcome(
    status=Status.FAIL,
    reason="no id twice",
    promise="no id twice",
    expected="distinct ids",
    observed="41 twice",
    timeline=("open a", "race of 2"),
)


def a_run(outcome: Outcome) -> report.Run:
    known = rows.registered()
    cases = plan(known, COLUMN)
    outcomes = {case: Outcome(status=Status.PASS, choices={"wakes fold": "one"}) for case in cases}
    omitted = Outcome(status=Status.NOT_APPLICABLE, reason=COLUMN.omitted["Q-26"])
    outcomes.update({case: omitted for case in cases if case.row.id in COLUMN.omitted})
    outcomes[cases[-1]] = outcome
    return report.Run([judge(COLUMN, cases, outcomes, {})], known, Selection(), 7, 1.5)


def test_the_json_report_has_every_cell_and_its_schemas_version(tmp_path: Path) -> None:
    report.write(report.as_report(a_run(FAILED)), tmp_path / "out")

    values = json.loads((tmp_path / "out" / "report.json").read_text("utf-8"))
    engine = values["engines"][0]

    assert (values["schema"], values["contract"], engine["run"]["seed"]) == (1, "1.0", 7)
    assert (engine["name"], engine["version"], engine["verdict"]) == ("toy", "1.2", "NOT CONFORMANT")
    assert engine["capabilities"]["joins"] == {"status": "planned", "what": "in May"}
    assert sum(engine["counts"].values()) == len(engine["cells"])
    assert {cell["row"] for cell in engine["cells"]} >= {
        row["id"] for row in values["rows"] if "functions" in row
    }
    assert [cell["reason"] for cell in engine["cells"] if cell["status"] == "FAIL"] == ["no id twice"]
    # What says nothing is left out: there are thousands of cells.
    assert all("reason" not in cell for cell in engine["cells"] if cell["status"] == "PASS")


def test_the_markdown_report_shows_verdict_failure_and_choices(tmp_path: Path) -> None:
    report.write(report.as_report(a_run(FAILED)), tmp_path)

    text = (tmp_path / "report.md").read_text("utf-8")

    assert "## toy: NOT CONFORMANT" in text
    assert "| FAIL | no id twice |" in text
    assert "wakes fold" in text


def test_the_terminal_groups_cells_by_reason_and_ends_with_the_verdict() -> None:
    lines = report_terminal.summary(a_run(FAILED))

    assert any(line.startswith("toy  FAIL  no id twice: ") for line in lines)
    assert lines[-1].startswith("toy 1.2 (contract 1.0): NOT CONFORMANT")


def test_an_outcome_survives_the_way_to_another_process() -> None:
    assert Outcome.from_json(json.loads(json.dumps(FAILED.as_json()))) == FAILED
    # What carries reports from one process to another may take plain strings alone, and no kind of them.
    assert type(FAILED.as_json()["status"]) is str


def test_a_failure_has_one_layout() -> None:
    row = rows.registered()[0]
    case = Case(row, "toy", "plain")

    lines = layout.failure(case, FAILED, 7).splitlines()

    assert lines[0] == f'{row.id} [toy, plain]  MUST  "{row.text}"'
    assert "  expected  distinct ids" in lines
    assert "  observed  41 twice" in lines
    assert "  timeline  open a | race of 2" in lines
    assert lines[-1] == f"  again     {layout.again(case, 7)}"


def test_what_is_not_implemented_takes_one_line() -> None:
    case = Case(rows.registered()[0], "toy", "plain")
    outcome = Outcome(status=Status.FAIL, reason="not implemented: claim_jobs", missing="claim_jobs")

    assert layout.failure(case, outcome, 0) == f"{case.row.id} [toy, plain]  not implemented: claim_jobs"
