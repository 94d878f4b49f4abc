"""The self-test tells a fault that a row finds from one that survives or trips over something else."""

import random
import signal
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
from alkstore_contract_suite.running import Limits
from alkstore_contract_suite.selftest import Selftest, of_the_checkout

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

    def __init__(self, name: str, answer: object, kills: Sequence[str], wide: str = "") -> None:
        self.name = name
        self.kills = kills
        self.wide = wide
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


@pytest.mark.skipif(
    not hasattr(signal, "setitimer"), reason="nothing else interrupts a loop that never turns"
)
def test_a_fault_that_keeps_the_event_loop_for_itself_is_interrupted() -> None:
    async def spins(ctx: Context) -> None:
        while WORLD.answer == 41:
            pass

    (kill,) = broken.tried(Planted("wrong", 41, ["Q-01"]), [a_row(spins)], limits=Limits(case=0.05))

    assert not kill.is_killed
    assert "it kept the event loop for itself" in kill.how


@pytest.mark.parametrize(("mode", "is_found"), [("concurrent", True), ("plain", False)])
def test_a_fault_that_a_race_did_not_show_is_tried_again(mode: str, is_found: bool) -> None:
    tries = iter((False, False, True))

    async def shows_it_at_the_third(ctx: Context) -> None:
        ctx.expect(WORLD.answer if next(tries) else 42, 42, "the answer is 42")

    row = a_row(shows_it_at_the_third, modes=(mode,), kills=("wrong",))

    assert [is_killed for _, _, is_killed, _ in told(Planted("wrong", 41, ["Q-01"]), row)] == [is_found] * 2


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
WRONG = Planted("wrong", 41, ["Q-01"])


def judged(
    known: Sequence[Row], *mutants: Planted, required: Sequence[str] = (), **how: Any
) -> tuple[list[str], int]:
    """Give the lines and the exit code of a self-test."""
    lines: list[str] = []
    code = Selftest(known, HONEST, mutants, required, tell=lines.append, **how).run()
    return lines, code


def rows_that_ask(count: int) -> list[Row]:
    return [a_row(asks, id=f"Q-{number:02}") for number in range(1, count + 1)]


def test_all_is_well_if_each_fault_is_found_and_each_row_finds_one() -> None:
    lines, code = judged([a_row(asks, kills=("wrong",))], WRONG, required=["Q-01"])

    assert code == 0
    assert lines == [
        f"{'wrong':<40} {'Q-01':<9} plain: the answer is 42",
        "",
        "rows without a kill: none",
        "1 mutants, 2 claims hold, 0 do not",
    ]


def test_a_fault_that_survives_fails_the_self_test() -> None:
    lines, code = judged([a_row(asks)], Planted("harmless", 42, ["Q-01"]))

    assert code == 1
    assert "NOT KILLED  harmless by Q-01 : SURVIVED" in lines


def test_a_fault_that_dies_of_another_error_fails_the_self_test() -> None:
    lines, code = judged([a_row(asks)], Planted("wrong", "text", ["Q-01"]))

    assert code == 1
    assert any(line.startswith("NOT KILLED  wrong by Q-01 : DIED OTHERWISE plain: ") for line in lines)


def test_a_row_without_a_kill_fails_the_self_test() -> None:
    known = [a_row(asks), a_row(asks_nothing, id="Q-02")]

    lines, code = judged(known, WRONG, required=["Q-01", "Q-02"])

    assert code == 1
    assert "rows without a kill: Q-02" in lines


def test_a_mutant_that_nobody_claims_to_kill_fails_the_self_test() -> None:
    lines, code = judged([a_row(asks)], WRONG, Planted("idle", 41, []))

    assert code == 1
    assert "NO KILLER  idle: it names no row, and no test names it" in lines


def test_a_row_that_names_no_mutant_there_is_fails_the_self_test() -> None:
    lines, code = judged([a_row(asks, kills=("wrong", "absent"))], WRONG)

    assert code == 1
    assert "NO SUCH MUTANT  absent, named by Q-01 asks" in lines


@pytest.mark.parametrize(("count", "code"), [(8, 0), (9, 1)])
def test_a_mutant_that_more_than_eight_rows_find_fails_the_full_self_test(count: int, code: int) -> None:
    known = [*rows_that_ask(count), a_row(asks, id="MODEL-QUEUE")]

    lines, found = judged(known, WRONG, is_full=True)

    ids = ", ".join(row.id for row in known[:count])
    assert found == code
    assert (f"TOO WIDE  wrong: {count} rows find it, at most 8: {ids}" in lines) == bool(code)
    assert f"{'wrong':<40} {'Q-02':<9} not claimed, plain: the answer is 42" in lines
    assert judged(known, WRONG)[1] == 0


@pytest.mark.parametrize(("count", "code"), [(8, 1), (9, 0)])
def test_a_mutant_may_say_why_more_rows_find_it_as_long_as_they_do(count: int, code: int) -> None:
    lines, found = judged(rows_that_ask(count), Planted("wrong", 41, ["Q-01"], wide="all ask"), is_full=True)

    assert found == code
    assert any(line.startswith("NOT WIDE  wrong: it says 'all ask', but only 8 ") for line in lines) == bool(
        code
    )


def test_a_row_that_a_fault_makes_stumble_is_told_and_finds_nothing() -> None:
    known = [a_row(asks, kills=("odd",)), a_row(asks, id="Q-02")]

    lines, code = judged(known, Planted("odd", "text", []), is_full=True)

    assert code == 1
    assert any("Q-02      not claimed, DIED OTHERWISE plain: " in line for line in lines)
    assert not any(line.startswith("TOO WIDE") for line in lines)


def test_a_part_of_the_mutants_says_nothing_of_rows_that_name_others() -> None:
    known = [a_row(asks, kills=("wrong", "left out"))]

    assert judged(known, WRONG, required=["Q-02"], is_partial=True)[1] == 0


def test_no_mutants_are_no_self_test() -> None:
    assert judged([a_row(asks)])[1] == 1


def test_a_test_that_is_red_on_the_honest_engine_proves_nothing() -> None:
    async def complains(ctx: Context) -> None:
        ctx.expect(1, 2, "never so")

    lines, code = judged([a_row(complains)], WRONG)

    assert code == 1
    assert "RED ON THE HONEST ENGINE  Q-01 complains: plain: never so" in lines
    assert any(line.startswith("NOT KILLED  wrong by Q-01 : NOT RUN") for line in lines)


def test_what_is_tried_in_other_processes_comes_out_the_same() -> None:
    known = [row for row in rows.registered() if row.id in {"ADM-01", "CLK-01"}]
    alone, shared = ([], [])  # type: tuple[list[str], list[str]]

    codes = [
        of_the_checkout(known, pattern="lapsed-locks-*", jobs=jobs, tell=lines.append).run()
        for jobs, lines in ((1, alone), (2, shared))
    ]

    assert codes == [0, 0]
    assert alone == shared
    assert alone[-1] == "1 mutants, 2 claims hold, 0 do not"


def test_every_mutant_of_the_checkout_names_rows_that_have_tests() -> None:
    ids = {row.id for row in rows.registered()}

    assert [mutant.name for mutant in broken.load()[1] if not set(mutant.kills) <= ids] == []


def test_every_mutant_that_a_row_names_is_there() -> None:
    names = {mutant.name for mutant in broken.load()[1]}

    assert [(row.id, name) for row in rows.registered() for name in row.kills if name not in names] == []
