"""An engine under construction, everything still missing, gives a red report that can be read."""

import json
import subprocess
from pathlib import Path
from typing import Protocol

import pytest


class Author(Protocol):
    path: Path

    def pytest(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]": ...


@pytest.fixture
def told(author: Author) -> "subprocess.CompletedProcess[str]":
    return author.pytest(
        "--pyargs",
        "alkstore_contract_suite",
        "--alk-engine",
        "skeleton",
        "--alk-report",
        "out",
        "-p",
        "no:randomly",
    )


def test_a_skeleton_gives_a_readable_red_report(
    author: Author, told: "subprocess.CompletedProcess[str]"
) -> None:
    lines = told.stdout.splitlines()

    assert told.returncode == 1, told.stdout + told.stderr
    assert "Traceback" not in told.stdout
    assert len(lines) < 60
    assert max(map(len, lines)) < 200
    assert any(line.startswith("skeleton  FAIL  not implemented: insert_jobs: ") for line in lines)
    assert any(line.startswith("skeleton 0 (contract 1.0): NOT CONFORMANT") for line in lines)
    assert f"report: {Path('out', 'report.html')}" in lines


def test_a_skeletons_report_says_of_every_red_cell_which_method_is_missing(
    author: Author, told: "subprocess.CompletedProcess[str]"
) -> None:
    path = author.path / "out" / "report.json"
    cells = json.loads(path.read_text("utf-8"))["engines"][0]["cells"]

    reasons = {cell["reason"] for cell in cells if cell["status"] == "FAIL"}

    assert reasons
    assert all(reason.startswith("not implemented: ") for reason in reasons)
