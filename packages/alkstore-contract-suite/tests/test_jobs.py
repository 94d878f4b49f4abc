"""A run in several processes says what a run in one says, whatever becomes of the processes."""

import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest
from hanging import HUNG

from alkstore_contract_suite import jobs

# Some run pytest twice, and that starts processes of its own.

ROWS = ("--pyargs", "alkstore_contract_suite", "--alk-engine", "toy", "--alk-row", "LOCK-*,Q-09")

CONFTEST = """
import asyncio, logging, os, signal, sys, threading, warnings
from contextlib import asynccontextmanager, contextmanager
from alkstore_contract_suite.in_process import InProcessBackend, InProcessColumn
from alkstore_mem.contract import CAPABILITIES, make_store

class Backend(InProcessBackend):
    @asynccontextmanager
    async def scope(self, case):
        await meet(case)
        async with super().scope(case) as factory:
            yield factory

class Column(InProcessColumn):
    @asynccontextmanager
    async def backend(self, worker):
        yield Backend(self._make_store)

async def meet(case):
    pass

def pytest_alkstore_register(registry):
    registry.register(
        Column("toy", version="0", contract="1.0", capabilities=CAPABILITIES, make_store=make_store))
"""

MEETING = """
async def meet(case):
    if "{case}" in case:
        {what}
"""


class Author(Protocol):
    path: Path

    def pytest(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]": ...


Toy = Callable[..., Author]


@pytest.fixture
def toy(author: Author) -> Toy:
    """Gives an author of an engine that is mem's; in one case something happens before the store is opened."""

    def made(case: str = "", what: str = "pass") -> Author:
        (author.path / "conftest.py").write_text(
            CONFTEST + (MEETING.format(case=case, what=what) if case else ""), "utf-8"
        )
        return author

    return made


def report_of(author: Author) -> Any:
    return json.loads((author.path / "report.json").read_text("utf-8"))


def cells(author: Author, *statuses: str) -> list[str]:
    (engine,) = report_of(author)["engines"]
    return [f"{cell['row']} {cell['mode']}" for cell in engine["cells"] if cell["status"] in statuses]


def timeless(values: Any) -> Any:
    if isinstance(values, dict):
        return {
            name: timeless(value)
            for name, value in values.items()
            if name not in ("seconds", "jobs", "begun")
        }
    return [timeless(value) for value in values] if isinstance(values, list) else values


def test_outcomes_and_their_order_are_those_of_one_process(toy: Toy) -> None:
    author = toy("LOCK-04[toy-plain]", "raise RuntimeError('out of order')")
    found = []
    for count in ("1", "3"):
        told = author.pytest(*ROWS, "-v", "--alk-seed", "5", "--alk-report", ".", "--alk-jobs", count)
        lines = [line.split(" [")[0] for line in told.stdout.splitlines() if "::" in line]
        found.append((told.returncode, lines, timeless(report_of(author))))

    one, three = found

    assert one == three
    assert one[0] == 1
    assert report_of(author)["engines"][0]["run"]["jobs"] == 3


def test_a_case_that_kills_its_process_is_inconclusive_and_every_other_is_run(toy: Toy) -> None:
    author = toy(
        "LOCK-02[toy-boundary]::after", "os.write(2, b'good bye'); os.kill(os.getpid(), signal.SIGKILL)"
    )

    told = author.pytest(*ROWS, "--alk-report", ".", "--alk-jobs", "2")

    assert told.returncode == 1, told.stdout
    assert cells(author, "INCONCLUSIVE") == ["LOCK-02 boundary"]
    assert cells(author, "FAIL", "BLOCKED") == []
    assert "the process that ran it ended with status -9; it said: good bye: LOCK-02 boundary" in told.stdout


def test_processes_that_all_die_end_the_run_all_the_same(toy: Toy) -> None:
    author = toy("[toy-plain]", "os._exit(3)")

    told = author.pytest(*ROWS, "--alk-report", ".", "--alk-jobs", "2")

    assert told.returncode == 1, told.stdout
    assert cells(author, "INCONCLUSIVE") != []
    assert all(cell.endswith(" plain") for cell in cells(author, "INCONCLUSIVE"))
    assert not any(cell.endswith(" plain") for cell in cells(author, "PASS"))


def test_what_a_case_says_is_shown_with_it(toy: Toy) -> None:
    author = toy(
        "LOCK-02[toy-boundary]::after",
        "print('printed'); logging.warning('logged'); os.write(2, b'written'); warnings.warn('warned'); 1 / 0",
    )

    told = author.pytest(*ROWS, "-W", "always::UserWarning", "--alk-jobs", "2")

    captured = told.stdout.split("Captured stdout call")[1]
    assert all(word in captured for word in ("printed", "logged", "written"))
    assert "UserWarning: warned" in told.stdout


def test_warnings_are_errors_there_where_they_are_errors_here(toy: Toy) -> None:
    author = toy("LOCK-02[toy-boundary]::after", "warnings.warn('warned')")

    told = author.pytest(*ROWS, "--alk-jobs", "2")

    assert told.returncode == 1
    assert "toy  FAIL  unexpected UserWarning: 'warned': LOCK-02 boundary" in told.stdout


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_case_that_ends_its_interpreter_fails_and_says_so(toy: Toy, jobs: str) -> None:
    author = toy("LOCK-02[toy-boundary]::after", "raise SystemExit(3)")

    told = author.pytest(*ROWS, "--alk-jobs", jobs, "--alk-report", ".")

    assert told.returncode == 1
    assert cells(author, "FAIL") == ["LOCK-02 boundary"]
    assert "the case could not run: SystemExit(3)" in told.stdout


def test_a_failure_blocks_the_rows_that_depend_on_it_in_every_process(toy: Toy) -> None:
    author = toy("Q-21[toy-plain]", "raise RuntimeError('slow')")
    rows = (*ROWS[:4], "--alk-row", "Q-21,Q-22")

    blocked = []
    for count in ("1", "3"):
        author.pytest(*rows, "--alk-report", ".", "--alk-jobs", count)
        blocked.append(cells(author, "BLOCKED"))

    assert blocked[0] == blocked[1] != []


def test_a_run_that_ends_at_the_first_failure_ends_there(toy: Toy) -> None:
    author = toy("LOCK-05[toy-plain]", "raise RuntimeError('late')")
    tails = []
    for count in ("1", "3"):
        told = author.pytest(*ROWS, "-x", "-q", "--alk-jobs", count)
        assert "stopping after 1 failures" in told.stdout
        tails.append(told.stdout.splitlines()[-1].split(" in ")[0])

    assert tails[0] == tails[1]
    assert tails[0].startswith("1 failed, ")


def test_a_case_that_hangs_beyond_a_limit_of_pytests_keeps_nobody_from_running(toy: Toy) -> None:
    author = toy("LOCK-02[toy-boundary]::after", "await asyncio.Event().wait()")

    told = author.pytest(*ROWS, "--alk-report", ".", "--alk-jobs", "2", "--timeout", "1")

    assert told.returncode == 1
    assert cells(author, "FAIL") == ["LOCK-02 boundary"]
    assert cells(author, "INCONCLUSIVE", "BLOCKED") == []
    assert "Timeout (>1.0s)" in told.stdout


def test_an_interrupt_ends_every_process_and_leaves_its_backend(toy: Toy) -> None:
    author = toy(
        "LOCK-02[toy-boundary]::after",
        "os.write(os.open('told', os.O_WRONLY), b'!'); await asyncio.Event().wait()",
    )
    conftest = author.path / "conftest.py"
    left = "try:\n            yield Backend(self._make_store)\n        finally:\n            open(f'left-{worker}', 'w').close()"
    text = conftest.read_text("utf-8").replace("yield Backend(self._make_store)", left)
    conftest.write_text(text, "utf-8")
    os.mkfifo(author.path / "told")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *ROWS, "--alk-jobs", "2"]
    running = subprocess.Popen(
        command,
        cwd=author.path,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # as an author's other runs
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell that runs this in its background has its children ignore it.
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )

    # Whoever has the other end open is a worker: the end of the file is the end of all of them.
    with (author.path / "told").open("rb") as told:
        assert told.read(1) == b"!"
        os.killpg(running.pid, signal.SIGINT)
        assert told.read() == b""
    said, _ = running.communicate(timeout=HUNG)

    assert running.returncode == pytest.ExitCode.INTERRUPTED, said
    assert "KeyboardInterrupt" in said
    assert sorted(path.name for path in author.path.glob("left-*")) == ["left-w1", "left-w2"]


def test_what_backends_share_is_started_once_and_ended_after_them(toy: Toy) -> None:
    author = toy()
    conftest = author.path / "conftest.py"
    shared = """
    @contextmanager
    def shared(self):
        self.server = os.getpid()
        note("started")
        yield
        note("ended")

    @asynccontextmanager
    async def backend(self, worker):
        assert self.server == os.getppid()
        yield Backend(self._make_store)
        note("left")

def note(what):
    with open("notes", "a") as notes:
        notes.write(what + "\\n")

async def meet"""
    conftest.write_text(CONFTEST.replace("async def meet", shared, 1), "utf-8")

    told = author.pytest(*ROWS, "--alk-jobs", "2")

    assert told.returncode == 0, told.stdout
    assert (author.path / "notes").read_text("utf-8").split() == ["started", "left", "left", "ended"]


def test_no_process_is_forked_from_one_with_threads(toy: Toy) -> None:
    author = toy()
    conftest = author.path / "conftest.py"
    thread = "\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    conftest.write_text(conftest.read_text("utf-8") + thread, "utf-8")

    told = author.pytest(*ROWS, "--alk-jobs", "2", "--alk-report", ".")

    assert told.returncode == 0, told.stdout
    assert "in one process: other threads are running in this one" in told.stdout
    assert report_of(author)["engines"][0]["run"]["jobs"] == 1


@pytest.mark.parametrize("count", ["0", "-1", "many"])
def test_a_number_of_processes_that_is_none_is_an_error_of_usage(toy: Toy, count: str) -> None:
    told = toy().pytest(*ROWS, f"--alk-jobs={count}")

    assert told.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--alk-jobs" in told.stderr


def test_few_cases_are_run_where_they_were_collected(pytestconfig: pytest.Config) -> None:
    assert jobs.wanted(pytestconfig, jobs.CASES_PER_PROCESS - 1) == 1


def test_there_are_never_more_processes_than_what_they_cost_is_worth(pytestconfig: pytest.Config) -> None:
    assert jobs.wanted(pytestconfig, 2 * jobs.CASES_PER_PROCESS) <= 2
