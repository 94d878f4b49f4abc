"""The plugin as an author and as an application meet it."""

import json
import re
import subprocess
from pathlib import Path
from typing import Protocol

import pytest


class Author(Protocol):
    path: Path

    def pytest(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]": ...


CONTRACT = ("--pyargs", "alkstore_contract_suite")

ENTRY = """
[[expect]]
engine = "skeleton"
row = "Q-01"
mode = "plain"
kind = "fail"
reason = "just begun"
issue = "#1"
expires = 9999-01-01
"""

FORGETFUL = """
from alkstore import Store
from alkstore_contract_suite.in_process import InProcessColumn
from alkstore_mem.contract import CAPABILITIES
from alkstore_mem.engine import MemEngine

class Forgetful(MemEngine):
    async def list_locks(self):
        return []

def make_store(clock, source, **options):
    async def connect():
        return Forgetful(clock)
    return Store(connect, name="forgetful", random=source, **options)

def pytest_alkstore_register(registry):
    registry.register(InProcessColumn(
        "forgetful", version="0", contract="1.0", capabilities=CAPABILITIES, make_store=make_store))
"""


def test_nothing_happens_until_it_is_asked_for(author: Author) -> None:
    (author.path / "conftest.py").unlink()
    (author.path / "test_own.py").write_text("def test_own(): pass\n", "utf-8")

    told = author.pytest()

    assert told.returncode == 0, told.stdout
    assert "contract" not in told.stdout.replace("alkstore-contract-suite-", "")
    assert "1 passed" in told.stdout


def test_it_runs_without_plugins_being_found_by_themselves(author: Author) -> None:
    (author.path / "pytest.ini").unlink()

    told = author.pytest(
        "-p",
        "alkstore_contract_suite.plugin",
        *CONTRACT,
        "--alk-engine",
        "skeleton",
        "--alk-row",
        "Q-01",
        PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
    )

    assert told.returncode == 1, told.stdout + told.stderr
    assert "skeleton  FAIL  not implemented: insert_jobs: Q-01" in told.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--alk-engine", "nobody"), "no engine 'nobody' is registered"),
        (("--alk-engine", "skeleton,nobody"), "no engine 'nobody' is registered"),
        (("--alk-engine", "skeleton", "--alk-row", "Q-99"), "no row fits 'Q-99'"),
        (("--alk-engine", "skeleton", "--alk-mode", "sideways"), "unknown mode 'sideways'"),
        (("--alk-explain", "Q-99"), "no row fits 'Q-99'"),
        (("--alk-selftest", "--alk-mutant", "nobody"), "no broken engine is named 'nobody'"),
    ],
)
def test_what_does_not_exist_is_an_error_of_usage(
    author: Author, arguments: tuple[str, ...], said: str
) -> None:
    told = author.pytest(*CONTRACT, *arguments)

    assert told.returncode == pytest.ExitCode.USAGE_ERROR
    assert said in told.stderr


def test_a_column_of_another_major_version_is_refused(author: Author) -> None:
    conftest = author.path / "conftest.py"
    conftest.write_text(conftest.read_text("utf-8").replace('contract="1.0"', 'contract="2.0"'), "utf-8")

    told = author.pytest(*CONTRACT, "--alk-engine", "skeleton")

    assert told.returncode == pytest.ExitCode.USAGE_ERROR
    assert "built for contract 2.0" in told.stderr


def be_away(author: Author) -> None:
    """Have the column say that it cannot run here."""
    conftest = author.path / "conftest.py"
    away = """
from alkstore_contract_suite.factory import Missing

class Column(InProcessColumn):
    def available(self):
        return Missing("set TOY_DSN")
"""
    text = conftest.read_text("utf-8").replace("def pytest_alk", f"{away}\ndef pytest_alk")
    conftest.write_text(text.replace("register(InProcessColumn(", "register(Column("), "utf-8")


def test_an_engine_that_cannot_run_here_is_an_error_when_named(author: Author) -> None:
    be_away(author)

    told = author.pytest(*CONTRACT, "--alk-engine", "skeleton")

    assert told.returncode == pytest.ExitCode.USAGE_ERROR
    assert "set TOY_DSN" in told.stderr


def test_an_engine_that_cannot_run_here_may_be_missing(author: Author) -> None:
    be_away(author)

    told = author.pytest(*CONTRACT, "--alk-allow-missing", "--alk-engine", "skeleton")

    assert told.returncode == pytest.ExitCode.OK
    assert "MISSING" in told.stdout
    assert "set TOY_DSN" in told.stdout


def test_a_failure_that_is_listed_is_shown_as_expected_and_still_red(author: Author) -> None:
    (author.path / "contract-expectations.toml").write_text(ENTRY, "utf-8")

    told = author.pytest(*CONTRACT, "--alk-engine", "skeleton", "--alk-row", "Q-01")

    assert told.returncode == 1
    assert "skeleton  XFAIL  not implemented: insert_jobs: Q-01 plain" in told.stdout


def test_the_command_that_a_failure_shows_runs_the_same_case_again(author: Author) -> None:
    (author.path / "conftest.py").write_text(FORGETFUL, "utf-8")
    told = author.pytest(
        *CONTRACT, "--alk-engine", "forgetful", "--alk-row", "LOCK-01", "--alk-mode", "plain"
    )
    shown = re.search(r"^  again +(.*)$", told.stdout, re.MULTILINE)
    assert shown is not None, told.stdout

    again = subprocess.run(
        shown.group(1), shell=True, cwd=author.path, capture_output=True, text=True, timeout=60, check=False
    )

    promise = "  promise   locks() shows what is held, by whom and how long"
    assert promise in told.stdout
    assert (again.returncode, promise in again.stdout) == (1, True), again.stdout + again.stderr


def test_rows_are_listed_with_their_modes_without_any_engine(author: Author) -> None:
    told = author.pytest("--alk-list")

    assert told.returncode == 0
    assert [line for line in told.stdout.splitlines() if line.startswith("FACTORY-07")] == [
        "FACTORY-07   1 tests  crash-drop, crash-kill"
    ]


def test_a_row_is_explained(author: Author) -> None:
    told = author.pytest("--alk-explain", "FACTORY-07")

    assert told.returncode == 0
    assert "a_crash_does_none_of_the_work_of_a_close" in told.stdout


def test_a_run_that_was_asked_for_a_part_is_incomplete_and_green(author: Author) -> None:
    told = author.pytest(*CONTRACT, "--alk-engine", "mem", "--alk-row", "Q-01", "--alk-seed", "3")

    assert told.returncode == 0, told.stdout + told.stderr
    assert ": INCOMPLETE  [" in told.stdout


def test_a_broken_engine_is_tried_by_its_name(author: Author) -> None:
    told = author.pytest("--alk-selftest", "--alk-mutant", "held-at-its-expiry-*", PYTHONWARNINGS="error")

    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.endswith("1 mutants, 3 claims hold, 0 do not\n")


@pytest.mark.parametrize("engine", ["mem", "sqlite"])
def test_a_smoke_run_is_incomplete_and_green(author: Author, engine: str) -> None:
    told = author.pytest(
        *CONTRACT, "--alk-engine", engine, "--alk-profile", "smoke", "--alk-report", "report"
    )

    report = json.loads((author.path / "report" / "report.json").read_text("utf-8"))
    assert told.returncode == 0, told.stdout + told.stderr
    assert report["engines"][0]["verdict"] == "INCOMPLETE"
    assert report["engines"][0]["run"]["selection"]["profile"] == "smoke"


def test_a_listed_failure_that_passes_is_stale_and_red(author: Author) -> None:
    entry = ENTRY.replace("skeleton", "mem")
    (author.path / "contract-expectations.toml").write_text(entry, "utf-8")

    told = author.pytest(*CONTRACT, "--alk-engine", "mem", "--alk-row", "Q-01")

    assert told.returncode == 1
    assert "mem  XPASS  listed as fail, but it passes: delete the entry: Q-01 plain" in told.stdout
