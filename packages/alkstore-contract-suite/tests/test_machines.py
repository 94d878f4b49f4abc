"""The machines find broken engines, and leave a short trace that finds them again; on an honest engine they find nothing."""

import random
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import pytest

from alkstore import Store
from alkstore.engine import Traits
from alkstore.testing import ManualClock
from alkstore_contract_suite import broken, rows
from alkstore_contract_suite.backends import Backends
from alkstore_contract_suite.factory import Unsupported
from alkstore_contract_suite.in_process import InProcessColumn
from alkstore_contract_suite.machines.exploring import MACHINES
from alkstore_contract_suite.machines.trace import Step, Trace, TraceError, told
from alkstore_contract_suite.outcome import Outcome, Status
from alkstore_contract_suite.plan import Case
from alkstore_contract_suite.row import CAPABILITIES, MODEL_PREFIX, RowError
from alkstore_contract_suite.running import Limits, run

SEED = 1


RUNS = 200
"""At most: a fault ends them."""


class Author(Protocol):
    path: Path

    def pytest(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]": ...


MUTANTS = {mutant.name: mutant for mutant in broken.load()[1]}

MODELS = {row.machine: row for row in rows.registered() if row.machine}


def explored(mutant: str | None, machine: str, **limits: Any) -> Outcome:
    honest, _ = broken.load()
    planted = honest if mutant is None else MUTANTS[mutant]
    with planted.column() as column, closing(Backends("test")) as backends:
        case = Case(MODELS[machine], column.name, "plain")
        return run(backends.of(column), case, seed=SEED, limits=Limits(**{"soon": 1.0, **limits}))


@pytest.mark.parametrize(
    ("mutant", "machine", "promise", "steps"),
    [
        ("ack-ignores-token", "queue", "settle answers as the model does (Q-09, Q-10, Q-15)", 6),
        ("attempts-not-counted", "queue", "claim answers as the model does", 2),
        ("priority-inverted", "queue", "claim answers as the model does", 4),
        ("release-ignores-owner", "lock", "free answers as the model does (LOCK-03, LOCK-04)", 5),
        ("held-at-its-expiry-instant", "lock", "take answers as the model does (LOCK-01, LOCK-02, LOCK-05)", 4),
        ("trim-drops-the-event-after-the-horizon", "stream", "trim answers as the model does (STR-11)", 3),
        ("save-offset-moves-backwards", "stream", "save answers as the model does (STR-06)", 4),
        ("re-registration-resets-the-grid", "schedule", "schedule answers as the model does (SCHED-01, SCHED-03)", 4),
        ("catch-up-of-65", "schedule", "tick answers as the model does", 4),
        ("rolled-back-event-stays", "whole", "all events of", 4),
        ("wake-before-commit", "whole", "hear answers as the model does (WAKE-01 to WAKE-05)", 6),
    ],
)  # fmt: skip
def test_a_machine_finds_a_broken_engine_and_shows_it_in_few_steps(
    mutant: str, machine: str, promise: str, steps: int
) -> None:
    outcome = explored(mutant, machine, runs=RUNS)

    assert outcome.status is Status.FAIL
    assert outcome.promise.startswith(promise)
    assert len(outcome.timeline) <= steps


@pytest.mark.parametrize("machine", MACHINES)
def test_the_same_seed_draws_the_same_steps_and_an_honest_engine_answers_them(machine: str) -> None:
    first, second = (explored(None, machine, runs=3, steps=10) for _ in range(2))

    assert (first.status, first.reason, first.trace) == (Status.PASS, "", "")
    assert (second.status, second.reason) == (Status.PASS, "")


def test_a_trace_finds_again_what_it_was_found_for() -> None:
    outcome = explored("ack-ignores-token", "queue", runs=RUNS)
    again = Trace.from_json(outcome.trace)

    assert [told(step) for step in again.steps] == list(outcome.timeline)
    assert again.areas == ["queue"]
    assert outcome.promise in again.found


def test_too_little_time_for_all_the_runs_is_inconclusive() -> None:
    outcome = explored(None, "queue", runs=10_000, case=0.5)

    assert outcome.status is Status.INCONCLUSIVE
    assert "of 10000 runs" in outcome.reason


class Hollow:
    """An engine that opens and closes, and has nothing else yet."""

    traits = Traits()

    def __getattr__(self, name: str) -> Any:
        async def method(*args: object, **named: object) -> None:
            raise NotImplementedError(name)

        return method

    async def aclose(self) -> None:
        """Nothing to free."""


def make_hollow(clock: ManualClock, source: random.Random, **options: Any) -> Store:
    async def connect() -> Any:
        return Hollow()

    return Store(connect, name="hollow", random=source, **options)


def test_a_method_that_a_step_needs_and_that_is_not_there_is_named() -> None:
    absent = {word: Unsupported("hollow") for word in CAPABILITIES}
    column = InProcessColumn(
        "hollow", version="0", contract="1.0", capabilities=absent, make_store=make_hollow
    )
    with closing(Backends("test")) as backends:
        outcome = run(
            backends.of(column), Case(MODELS["lock"], "hollow", "plain"), seed=SEED, limits=Limits(runs=3)
        )

    assert outcome.missing == "take_lock"


async def test_a_machines_row_is_not_awaited() -> None:
    with pytest.raises(RowError, match="draws its own steps"):
        await MODELS["queue"].function(None)  # type: ignore[arg-type]  # it looks at nothing


def test_a_row_of_a_model_depends_on_rows_of_the_contract() -> None:
    ids = {row.id for row in rows.registered()}

    for row in MODELS.values():
        assert row.id.startswith(MODEL_PREFIX)
        assert {*row.depends} <= ids


# ---------------------------------------------------------------- traces

STEPS: list[Step] = [
    {"do": "enqueue", "as": "j1", "queue": "q", "payloads": ["é", None]},
    {"do": "claim", "as": "h1", "queue": "q"},
]


def test_a_trace_survives_its_text() -> None:
    trace = Trace(STEPS, ["queue"], ["durable"], "Q-05 [toy, plain]")

    assert Trace.from_json(trace.as_json()) == trace
    assert len(trace.as_json().splitlines()) == 2 + len(STEPS)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format": "alkstore-trace/2"}', '{"format": "alkstore-trace/1", "steps": [{}]}'],
)
def test_what_is_no_trace_is_refused(text: str) -> None:
    with pytest.raises(TraceError):
        Trace.from_json(text)


@pytest.fixture
def project(author: Author) -> Author:
    """An author's directory with mem's column alone."""
    (author.path / "conftest.py").write_text("", "utf-8")
    return author


def test_a_trace_is_replayed_on_each_engine_that_is_named(project: Author) -> None:
    (project.path / "trace.json").write_text(Trace(STEPS, ["queue"]).as_json(), "utf-8")

    ran = project.pytest("--alk-engine", "mem", "--alk-engine", "sqlite", "--alk-replay", "trace.json")

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "mem: every answer is one that the model allows" in ran.stdout
    assert "sqlite: every answer is one that the model allows" in ran.stdout


def test_a_trace_is_not_replayed_where_it_cannot_be(project: Author) -> None:
    steps: list[Step] = [*STEPS, {"do": "end", "how": "reopen"}]
    (project.path / "trace.json").write_text(Trace(steps, ["queue"], ["durable"]).as_json(), "utf-8")

    ran = project.pytest("--alk-engine", "mem", "--alk-replay", "trace.json")

    assert "mem: cannot be replayed here: it has no durable" in ran.stdout


@pytest.mark.parametrize(
    "trace", ["nonsense", Trace([{"do": "fly"}], []).as_json(), Trace(STEPS, ["weather"]).as_json()]
)
def test_a_trace_that_this_suite_cannot_replay_is_refused(project: Author, trace: str) -> None:
    (project.path / "trace.json").write_text(trace, "utf-8")

    ran = project.pytest("--alk-engine", "mem", "--alk-replay", "trace.json")

    assert ran.returncode == 4
    assert "trace.json" in ran.stderr


BROKEN = """
from alkstore import Store
from alkstore.engine import Traits
from alkstore_contract_suite.in_process import InProcessColumn
from alkstore_mem.contract import CAPABILITIES, make_store
from alkstore_mem.engine import MemEngine

class Forgetful(MemEngine):
    async def list_locks(self):
        return [*await super().list_locks()][:1]

def broken(clock, source, **options):
    async def connect():
        return Forgetful(clock, wait_timeout=30)
    return Store(connect, name="broken", random=source, **options)

def pytest_alkstore_register(registry):
    registry.register(InProcessColumn(
        "broken", version="0", contract="1.0", capabilities=CAPABILITIES, make_store=broken))
"""


def test_what_a_machine_found_is_shown_with_its_trace_and_found_again_by_it(author: Author) -> None:
    (author.path / "conftest.py").write_text(BROKEN, "utf-8")
    chosen = ["--pyargs", "alkstore_contract_suite", "--alk-engine", "broken", "--alk-row", "MODEL-LOCK"]

    ran = author.pytest(*chosen, "--alk-report", "out", "--alk-runs", "100", "--alk-steps", "30")
    (trace,) = (author.path / "out" / "alkstore-traces").iterdir()
    again = author.pytest("--alk-engine", "broken", "--alk-engine", "mem", "--alk-replay", str(trace))

    assert ran.returncode == 1, ran.stdout
    assert f"--alk-replay {trace}" in ran.stdout
    assert again.returncode == 1
    assert "broken: not so" in again.stdout
    assert "mem: every answer is one that the model allows" in again.stdout
