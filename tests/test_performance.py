"""The page about performance shows what the committed reports say, and no figure that they do not."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "performance.md"
REPORTS = ROOT / "benchmarks" / "reports"
PRINTER = ROOT / "benchmarks" / "page.py"

BLOCK = re.compile(r"<!-- bench: (\w+) (\w+) -->\n(.*?)<!-- end -->\n", re.DOTALL)
PICTURE = re.compile(r"!\[[^]]*\]\(([^)]+)\)")
MEASURED = re.compile(r"\d[\d,.]*\s?(?:/s\b|µs\b|ms\b|MiB\b|KiB\b|bytes\b|%|×|times\b)")
ENGINES = ("mem", "sqlite", "pg")


def printer(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PRINTER), "--check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_page_is_what_the_committed_reports_say() -> None:
    checked = printer()

    assert checked.returncode == 0, checked.stderr


def report(**changes: object) -> str:
    figure = {
        "part": "rates",
        "name": "enqueue one by one",
        "side": "alkstore",
        "x": 0,
        "unit": "/s",
        "values": [100.0, 300.0, 200.0],
        "cpu": [1.0, 2.0, 3.0],
    }
    told = {"engine": "mem", "publishable": True, "machine": {"python": "3.11"}, "figures": [figure]}
    return json.dumps(told | changes)


@pytest.fixture
def printed(tmp_path: Path) -> Path:
    """A page that was printed from one report, beside it."""
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n<!-- bench: mem rates -->\n<!-- end -->\n", encoding="utf-8")
    (tmp_path / "bench_mem.json").write_text(report(), encoding="utf-8")
    command = [sys.executable, str(PRINTER), "--page", str(page), "--reports", str(tmp_path)]
    subprocess.run(command, check=True)
    return page


def test_a_page_shows_the_median_of_what_was_measured(printed: Path) -> None:
    assert re.search(r"\| enqueue one by one +\| +200 \| +2\.0 \|", printed.read_text(encoding="utf-8"))


def test_a_figure_that_somebody_changed_on_the_page_is_told(printed: Path) -> None:
    assert printer("--page", str(printed), "--reports", str(printed.parent)).returncode == 0
    printed.write_text(printed.read_text(encoding="utf-8").replace("200", "900"), encoding="utf-8")

    checked = printer("--page", str(printed), "--reports", str(printed.parent))

    assert checked.returncode == 1
    assert "not what the reports say" in checked.stderr


def test_a_report_from_a_busy_machine_is_never_shown(printed: Path) -> None:
    (printed.parent / "bench_mem.json").write_text(report(publishable=False), encoding="utf-8")
    command = [sys.executable, str(PRINTER), "--page", str(printed), "--reports", str(printed.parent)]

    subprocess.run(command, check=True)

    assert "No report is committed yet" in printed.read_text(encoding="utf-8")


@pytest.mark.parametrize("engine", ENGINES)
def test_committed_reports_are_of_the_whole_work_on_a_quiet_machine(engine: str) -> None:
    path = REPORTS / f"bench_{engine}.json"
    if not path.exists():
        pytest.skip(f"nobody has committed one for {engine}")

    assert json.loads(path.read_text(encoding="utf-8"))["publishable"]


def test_every_picture_of_the_page_is_there() -> None:
    pictures = PICTURE.findall(PAGE.read_text(encoding="utf-8"))

    assert [name for name in pictures if not (PAGE.parent / name).is_file()] == []


def test_no_figure_stands_in_the_prose() -> None:
    prose = BLOCK.sub("", PAGE.read_text(encoding="utf-8"))

    assert MEASURED.findall(prose) == []


def test_every_engine_is_on_the_page() -> None:
    shown = {engine for engine, what, _ in BLOCK.findall(PAGE.read_text(encoding="utf-8")) if what == "rates"}

    assert shown == set(ENGINES)
