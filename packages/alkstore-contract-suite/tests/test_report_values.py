"""A report keeps to the schema that is published, and what does not is refused with what is wrong."""

import json
import subprocess
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pytest
from jsonschema import Draft202012Validator
from made_reports import a_cell, a_failure, a_report, an_engine

from alkstore_contract_suite import report, report_values, rows
from alkstore_contract_suite.outcome import Outcome, Status
from alkstore_contract_suite.plan import Selection, plan
from alkstore_contract_suite.registry import Registry
from alkstore_contract_suite.report_values import ReportError
from alkstore_contract_suite.verdict import judge
from alkstore_mem.contract import register


class Author(Protocol):
    path: Path

    def pytest(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]": ...


PUBLISHED = Path(report_values.__file__).with_name(report_values.SCHEMA_FILE)


def of_mem() -> report_values.Report:
    """Give the report of a run on mem in which every case of a queue failed."""
    registry = Registry()
    register(registry)
    (column,) = registry.columns.values()
    known = rows.registered()
    failed = Outcome(status=Status.FAIL, reason="lost", traceback=("a.py:1 in f: x",), timeline=("open",))
    cases = plan(known, column)
    outcomes = {
        case: failed if case.row.id.startswith("Q-") else Outcome(status=Status.PASS) for case in cases
    }
    run = report.Run([judge(column, cases, outcomes, {})], known, Selection(("Q-*",)), 7, 1.5, jobs=2)
    return report.as_report(run)


def problems(values: Any) -> list[str]:
    schema = json.loads(PUBLISHED.read_text("utf-8"))
    Draft202012Validator.check_schema(schema)
    return [
        f"{error.json_path}: {error.message}" for error in Draft202012Validator(schema).iter_errors(values)
    ]


def test_the_published_schema_is_that_of_the_values() -> None:
    assert json.loads(PUBLISHED.read_text("utf-8")) == report_values.json_schema()


def test_a_whole_report_keeps_to_the_published_schema() -> None:
    assert problems(json.loads(report_values.encode(of_mem()))) == []


def test_the_report_of_a_real_run_keeps_to_it_and_is_read(author: Author) -> None:
    rows = ("--alk-engine", "mem", "--alk-engine", "skeleton", "--alk-row", "LOCK-01,Q-01")

    told = author.pytest("--pyargs", "alkstore_contract_suite", *rows, "--alk-report", "out")

    path = author.path / "out" / "report.json"
    assert told.returncode == 1, told.stdout + told.stderr
    assert problems(json.loads(path.read_text("utf-8"))) == []
    assert [engine.name for engine in report_values.read(path).engines] == ["mem", "skeleton"]


def test_the_schema_refuses_a_status_that_does_not_exist() -> None:
    values = json.loads(report_values.encode(a_report(an_engine("toy", a_failure("Q-01")))))
    values["engines"][0]["cells"][0]["status"] = "BROKEN"

    assert [text.split(":")[0] for text in problems(values)] == ["$.engines[0].cells[0].status"]


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    written = of_mem()
    report.write(written, tmp_path)

    assert report_values.read(tmp_path / "report.json") == written


def test_fields_of_a_later_suite_are_passed_over(tmp_path: Path) -> None:
    written = a_report(an_engine("toy", a_cell("Q-01")))
    values = {**json.loads(report_values.encode(written)), "weather": "fair"}
    path = tmp_path / "report.json"
    path.write_text(json.dumps(values), "utf-8")

    assert report_values.read(path) == written
    assert problems(values) == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"schema": 2}', "has schema 2, this suite reads 1"),
        (b'{"schema": 1}', "missing required field `contract`"),
        (b"[]", "Expected `object`, got `array`"),
        (b"{", "truncated"),
        (b"\xff", "is no report"),
    ],
)
def test_what_is_no_report_is_refused_with_the_reason(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(content)

    with pytest.raises(ReportError, match=said):
        report_values.read(path)


def test_a_report_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"report\.json cannot be read: No such file"):
        report_values.read(tmp_path / "report.json")


def test_a_storage_is_in_the_report_of_a_column_that_tells_it() -> None:
    class Told:
        def __init__(self, column: Any) -> None:
            self._column = column

        def __getattr__(self, name: str) -> Any:
            return getattr(self._column, name)

        def storage(self) -> str:
            return "Toy 3"

    registry = Registry()
    register(registry)
    column = Told(registry.columns["mem"])
    made = report.as_report(report.Run([judge(column, [], {}, {})], [], Selection(), 0, 0.0))

    assert made.engines[0].storage == "Toy 3"
    assert msgspec.json.decode(report_values.encode(made))["engines"][0]["storage"] == "Toy 3"
