"""What core does only for engines with I/O, the pump and the batcher, fulfils the contract too."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

COLUMNS = Path(__file__).parent / "columns"
FACTORY = "FACTORY-"
"""Rows about the factory: one that plays several processes in a single one cannot pass all of them."""


def run_column(folder: Path, *options: str) -> tuple[str, list[dict[str, Any]]]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "io_columns",
        "--rootdir",
        str(folder),
    ]
    command += ["--pyargs", "alkstore_contract_suite", "--alk-report", str(folder), *options]
    environment = {**os.environ, "PYTHONPATH": str(COLUMNS)}
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return done.stdout, report["engines"][0]["cells"]


def test_an_engine_that_is_batched_is_conformant(tmp_path: Path) -> None:
    output, cells = run_column(tmp_path, "--alk-engine", "mem_io")

    assert {cell["status"] for cell in cells} == {"PASS", "N/A"}, output
    assert "CONFORMANT" in output


def test_rows_hold_from_a_second_store_and_after_reopening(tmp_path: Path) -> None:
    output, cells = run_column(tmp_path, "--alk-engine", "mem_shared", "--alk-mode", "second,reopen")

    failed = {(cell["row"], cell["mode"]) for cell in cells if cell["status"] == "FAIL"}
    assert {row for row, _ in failed if not row.startswith(FACTORY)} == set(), output
    assert sum(cell["status"] == "PASS" for cell in cells) >= 100, output
