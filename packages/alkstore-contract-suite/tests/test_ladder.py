"""The ladder leads from an empty engine up: it says what to write, and stops where a promise is broken."""

import subprocess
from pathlib import Path
from typing import Protocol

import pytest

from alkstore_contract_suite import ladder, rows
from alkstore_contract_suite.outcome import Outcome, Status
from alkstore_contract_suite.plan import Case, plan
from alkstore_contract_suite.registry import Registry
from alkstore_mem.contract import register


class Author(Protocol):
    path: Path

    def pytest(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]": ...


CONTRACT = ("--pyargs", "alkstore_contract_suite", "--alk-ladder", "--alk-jobs", "1")

# mem, whose release of a lock does nothing.
BROKEN = """
from alkstore_contract_suite.in_process import InProcessColumn
from alkstore_mem import MemStore
from alkstore_mem.contract import CAPABILITIES
from alkstore_mem.engine import MemEngine

class Engine(MemEngine):
    async def renew_lock(self, name, fence, ttl):
        return await super().renew_lock(name, fence, ttl or 1_000_000)

class Store(MemStore):
    async def _open_engine(self):
        return Engine(self._clock)

def pytest_alkstore_register(registry):
    registry.register(InProcessColumn(
        "broken", version="0", contract="1.0", capabilities=CAPABILITIES,
        make_store=lambda clock, source, **more: Store(clock=clock, random=source, **more)))
"""


@pytest.fixture
def cases() -> list[Case]:
    registry = Registry()
    register(registry)
    return ladder.climb(plan(rows.registered(), registry.columns["mem"]))


def test_a_climb_has_every_case_once_and_the_factory_first(cases: list[Case]) -> None:
    climbed = ladder.climb(cases)
    areas = list(dict.fromkeys(case.row.id.split("-")[0] for case in climbed))

    assert sorted(climbed, key=lambda case: case.id) == sorted(cases, key=lambda case: case.id)
    assert (areas[0], areas.index("WAKE") < areas.index("Q") < areas.index("NAME")) == ("FACTORY", True)


def test_a_row_comes_after_those_that_it_depends_on(cases: list[Case]) -> None:
    ids = [case.row.id for case in ladder.climb(cases)]
    depending = [case.row for case in cases if case.row.depends]

    assert depending
    for row in depending:
        last = len(ids) - 1 - ids[::-1].index(row.id)
        assert all(ids.index(id) < last for id in row.depends)


def test_every_area_of_the_contract_has_its_place(cases: list[Case]) -> None:
    assert {case.row.id.split("-")[0] for case in cases} <= set(ladder.AREAS)


def test_the_method_to_write_next_is_the_simplest_for_which_a_case_waits(cases: list[Case]) -> None:
    first, second, third = cases[:3]
    outcomes = {
        first: Outcome(status=Status.PASS),
        second: Outcome(status=Status.FAIL, missing="fire_schedules"),
        third: Outcome(status=Status.FAIL, missing="insert_jobs"),
    }

    lines = ladder.advice(cases[:3], outcomes)

    assert lines[0] == "ladder: 1 of 3 cases green, 2 wait for methods that are not there"
    assert lines[1].startswith("next: write insert_jobs, for which 1 cases wait; the first is ")


def test_what_could_not_be_shown_says_why(cases: list[Case]) -> None:
    outcomes = {cases[0]: Outcome(status=Status.INCONCLUSIVE, reason="the column does not say how")}

    lines = ladder.advice(cases[:1], outcomes)

    assert lines[1].startswith(f"next: mend {cases[0].row.id} ")
    assert lines[-1] == "      it could not be shown: the column does not say how"


def test_the_first_case_of_a_method_is_one_about_the_engine(cases: list[Case]) -> None:
    factory, other = cases[0], next(case for case in cases if not case.row.is_factory)
    outcomes = {
        factory: Outcome(status=Status.NOT_TESTED, missing="insert_jobs"),
        other: Outcome(status=Status.FAIL, missing="insert_jobs"),
    }

    lines = ladder.advice([factory, other], outcomes)

    assert factory.row.is_factory
    assert f"for which 2 cases wait; the first is {other.row.id} " in lines[1]


def test_a_climb_to_the_top_leads_to_the_whole_contract(cases: list[Case]) -> None:
    outcomes = {case: Outcome(status=Status.PASS) for case in cases[:2]}

    assert ladder.advice(cases[:2], outcomes)[1:] == [
        "next: nothing; run the whole contract without the ladder"
    ]


def test_an_empty_engine_is_told_what_to_write_first(author: Author) -> None:
    told = author.pytest(*CONTRACT, "--alk-engine", "skeleton", "--alk-row", "WAKE-*,Q-01")

    assert told.returncode == 1, told.stdout + told.stderr
    assert "next: write aclose, for which " in told.stdout
    assert "skeleton  FAIL" not in told.stdout


def test_a_climb_ends_at_the_first_promise_that_is_broken(author: Author) -> None:
    (author.path / "conftest.py").write_text(BROKEN, "utf-8")

    told = author.pytest(*CONTRACT, "--alk-engine", "broken", "--alk-row", "WAKE-01,LOCK-*,Q-01", "-v")

    ran = [line for line in told.stdout.splitlines() if "::" in line and "%]" in line]
    assert told.returncode == 1, told.stdout + told.stderr
    assert ["FAILED" in line for line in ran] == [False] * (len(ran) - 1) + [True]
    assert not any("Q-01" in line for line in ran)
    assert "\nnext: mend LOCK-0" in told.stdout
