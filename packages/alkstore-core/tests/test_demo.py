"""The demo does real work, checks it, and says so by its exit code."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from hanging import HUNG

import alkstore
from alkstore.cli.command import command
from alkstore.clock import SystemClock
from alkstore.demo import run
from alkstore.demo_source import find_sources, parse
from alkstore.engine import Engine, EventRecord
from alkstore_mem.engine import MemEngine

SOURCES = {
    "one.py": "def short():\n    return 1\n\n\nclass Thing:\n    def longer(self):\n        value = 1\n        return value\n",
    "two.py": "async def waits():\n    return None\n",
    "inner/three.py": "VALUE = 3\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for name, text in SOURCES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


class ForgetsAnEvent(MemEngine):
    """Wrong on purpose: readers never see the second event."""

    async def read_events(self, stream: str, after: int, limit: int) -> Sequence[EventRecord]:
        found = await super().read_events(stream, after, limit)
        return [event for event in found if event.offset != 2]


def test_parsing_counts_functions_classes_and_the_longest(tree: Path) -> None:
    facts = parse(str(tree / "one.py"))

    assert facts == {
        "path": str(tree / "one.py"),
        "lines": 8,
        "functions": 2,
        "classes": 1,
        "longest": "longer",
        "longest_lines": 3,
    }


@pytest.mark.parametrize("options", [[], ["--url", "mem://"], ["--processes", "1"]])
def test_the_command_indexes_a_tree_and_reports_broken_files_as_dead(tree: Path, options: list[str]) -> None:
    result = CliRunner().invoke(command, ["demo", str(tree), "--json", *options])

    report = json.loads(result.stdout)
    assert result.exit_code == 0
    assert (report["files"], report["acked"], report["events"], report["delivered"]) == (6, 3, 3, 3)
    assert sorted(Path(path).name for path, _ in report["dead"]) == [
        "broken_encoding.py",
        "broken_null.py",
        "broken_syntax.py",
    ]
    assert report["problems"] == []


def test_the_command_prints_a_verdict_for_people(tree: Path) -> None:
    result = CliRunner().invoke(command, ["demo", str(tree)])

    assert result.exit_code == 0
    assert "verdict: good" in result.stdout


def test_a_folder_without_python_files_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["demo", str(tmp_path)])

    assert result.exit_code != 0
    assert "at least one .py file" in result.stderr


async def test_an_engine_that_loses_an_event_is_found_out(tree: Path, tmp_path: Path) -> None:
    async def connect() -> Engine:
        return ForgetsAnEvent(SystemClock())

    scratch = tmp_path / "scratch"
    scratch.mkdir()
    async with asyncio.timeout(HUNG), alkstore.Store(connect, name="forgetful") as store:
        report = await run(store, tree, scratch)

    assert not report.is_good
    assert "every file is either indexed or dead" in report.problems


def test_the_standard_library_is_the_default_tree() -> None:
    _, found = find_sources(None)

    assert len(found) >= 500


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT to a process group")
@pytest.mark.parametrize("options", [["--url", "mem://"], [], ["--processes", "2", "--kill"]])
def test_ctrl_c_ends_the_demo_without_a_traceback_and_without_a_trace(
    options: list[str], tmp_path: Path
) -> None:
    command_line = [sys.executable, "-m", "alkstore", "demo", "--json", *options]
    # A shell's background job ignores SIGINT, and its children would too; a debugging loop has more to say on stderr.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONASYNCIODEBUG"}
    env["TMPDIR"] = str(tmp_path)
    with subprocess.Popen(
        command_line, stderr=subprocess.PIPE, text=True, start_new_session=True, env=env
    ) as process:
        signal.signal(signal.SIGINT, before)
        assert process.stderr is not None
        # This line comes from the open store: from there on it is at work.
        while not process.stderr.readline().startswith("runs on"):
            assert process.poll() is None
        os.killpg(process.pid, signal.SIGINT)
        # It ends when the last process that has inherited it is gone.
        rest = process.stderr.read()

    assert rest.strip() == "stopped by Ctrl-C"
    assert process.returncode == 130
    assert list(tmp_path.iterdir()) == []
