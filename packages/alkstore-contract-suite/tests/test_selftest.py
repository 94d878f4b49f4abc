"""The self-test tells a fault that a row finds from one that survives or trips over something else."""

import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from alkstore import Store
from alkstore.engine import Traits
from alkstore.testing import ManualClock
from alkstore_contract_suite import broken, rows
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.factory import Unsupported
from alkstore_contract_suite.in_process import InProcessColumn
from alkstore_contract_suite.row import CAPABILITIES, Row

WORLD = SimpleNamespace(answer=42)
"""What the rows of this file look at, and the mutants of this file break."""


class Hollow:
    traits = Traits()

    async def aclose(self) -> None:
        """Nothing to free."""


async def hollow() -> Any:
    return Hollow()


def make_store(clock: ManualClock, source: random.Random) -> Store:
    return Store(hollow, name="hollow", random=source)


class Planted:
    """A mutant that changes the world for its run."""

    def __init__(self, name: str, answer: object, kills: Sequence[str]) -> None:
        self.name = name
        self.kills = kills
        self._answer = answer

    @contextmanager
    def column(self) -> Iterator[InProcessColumn]:
        honest, WORLD.answer = WORLD.answer, self._answer
        try:
            yield InProcessColumn(
                "broken",
                version="0",
                contract="1.0",
                capabilities={word: Unsupported("hollow") for word in CAPABILITIES},
                make_store=make_store,
            )
        finally:
            WORLD.answer = honest


async def asks(ctx: Context) -> None:
    ctx.expect(WORLD.answer + 0, 42, "the answer is 42")


async def asks_nothing(ctx: Context) -> None:
    """Passes on everything."""


def a_row(function: Callable[[Context], Awaitable[None]], **changed: Any) -> Row:
    given: dict[str, Any] = {
        "id": "Q-01",
        "name": getattr(function, "__name__", ""),
        "text": "a promise",
        "oracle": "a look",
        "modes": ("plain",),
        "needs": (),
        "kills": (),
        "level": "MUST",
        "since": "1.0",
        "depends": (),
        "hints": "",
        "function": function,
    }
    return Row(**{**given, **changed})


def told(mutant: Planted, *known: Row) -> list[tuple[str, str, bool, str]]:
    return [(kill.row, kill.test, kill.is_killed, kill.how) for kill in broken.tried(mutant, known)]


def test_a_fault_that_an_assertion_names_is_found() -> None:
    assert told(Planted("wrong", 41, ["Q-01"]), a_row(asks)) == [
        ("Q-01", "", True, "plain: the answer is 42")
    ]


def test_one_test_of_a_row_is_enough_to_find_a_fault() -> None:
    found = told(Planted("wrong", 41, ["Q-01"]), a_row(asks_nothing), a_row(asks))

    assert [is_killed for _, _, is_killed, _ in found] == [True]


def test_a_fault_that_no_assertion_meets_survives() -> None:
    assert told(Planted("wrong", 41, ["Q-01"]), a_row(asks_nothing)) == [("Q-01", "", False, "SURVIVED")]


def test_a_fault_that_trips_over_something_else_is_not_found() -> None:
    ((_, _, is_killed, how),) = told(Planted("wrong", "text", ["Q-01"]), a_row(asks))

    assert not is_killed
    assert how.startswith("DIED OTHERWISE plain: unexpected TypeError")


def test_a_row_that_cannot_run_proves_nothing() -> None:
    ((_, _, is_killed, how),) = told(Planted("wrong", 41, ["Q-01"]), a_row(asks, needs=("sql",)))

    assert not is_killed
    assert how.startswith("NOT RUN")


def test_a_test_that_names_a_mutant_must_find_it_itself() -> None:
    honest = a_row(asks)
    boasting = a_row(asks_nothing, kills=("wrong",))

    assert told(Planted("wrong", 41, ["Q-01"]), honest, boasting) == [
        ("Q-01", "", True, "plain: the answer is 42"),
        ("Q-01", "asks_nothing", False, "SURVIVED"),
    ]


def test_a_fault_is_gone_after_its_run() -> None:
    told(Planted("wrong", 41, ["Q-01"]), a_row(asks))

    assert WORLD.answer == 42


HONEST = Planted("honest", 42, [])


@pytest.mark.parametrize(("answer", "code"), [(41, 0), (42, 1)])
def test_the_self_test_fails_if_a_fault_survives(answer: int, code: int) -> None:
    lines, found = broken.table(
        [a_row(asks, kills=("wrong", "absent"))], HONEST, [Planted("wrong", answer, ["Q-01"])]
    )

    assert found == code
    assert "no such mutant: absent (named by Q-01 asks)" in lines
    assert any(line.startswith("rows without a kill: ") for line in lines)


def test_a_test_that_is_red_on_the_honest_engine_proves_nothing() -> None:
    async def complains(ctx: Context) -> None:
        ctx.expect(1, 2, "never so")

    lines, code = broken.table([a_row(complains)], HONEST, [Planted("wrong", 41, ["Q-01"])])

    assert code == 1
    assert "RED ON THE HONEST ENGINE  Q-01 complains: plain: never so" in lines
    assert any(line.startswith("NOT KILLED  wrong by Q-01 : NOT RUN") for line in lines)


def test_every_mutant_of_the_checkout_names_rows_that_have_tests() -> None:
    ids = {row.id for row in rows.registered()}

    assert [mutant.name for mutant in broken.load()[1] if not set(mutant.kills) <= ids] == []


def test_every_mutant_that_a_row_names_is_there() -> None:
    names = {mutant.name for mutant in broken.load()[1]}

    assert [(row.id, name) for row in rows.registered() for name in row.kills if name not in names] == []
