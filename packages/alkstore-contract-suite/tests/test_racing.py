"""A race counts only if what could overlap did."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from alkstore_contract_suite.context import Context
from alkstore_contract_suite.factory import Backend
from alkstore_contract_suite.failure import NotRaced
from alkstore_contract_suite.in_process import InProcessFactory
from alkstore_contract_suite.outcome import Outcome, Status
from alkstore_contract_suite.plan import Case
from alkstore_contract_suite.racing import Arm, overlapped, race, worked
from alkstore_contract_suite.row import Row
from alkstore_contract_suite.running import TRIES, run
from alkstore_mem.contract import make_store

Body = Callable[[Context], Awaitable[None]]


class Recording:
    """A backend that notes the name of each scope."""

    def __init__(self) -> None:
        self.scopes: list[str] = []

    @asynccontextmanager
    async def scope(self, case: str) -> AsyncIterator[InProcessFactory]:
        self.scopes.append(case)
        yield InProcessFactory(make_store, random.Random(case))


def outcome_of(body: Body, recording: Recording | None = None) -> Outcome:
    declared = Row(
        id="Q-01",
        name="row",
        text="a promise",
        oracle="a look",
        modes=("concurrent",),
        needs=(),
        kills=(),
        level="MUST",
        since="1.0",
        depends=(),
        hints="",
        function=body,
    )
    backend: Backend = recording or Recording()
    return run(backend, Case(declared, "mem", "concurrent"), seed=0)


async def at_once(value: int) -> int:
    return value


async def after_a_turn(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def elsewhere(begun: int, ended: int) -> None:
    """Wait, as for a process that worked from one instant to another."""
    await asyncio.sleep(0)
    worked(begun, ended)


async def test_arms_that_give_way_have_overlapped() -> None:
    arms = [Arm(), Arm(), Arm()]

    results = await race([after_a_turn(1), after_a_turn(2), after_a_turn(3)], arms)

    assert results == [1, 2, 3]
    assert overlapped(arms) == "3 of 3 in the race overlapped another one"


async def test_arms_that_never_give_way_cannot_be_interrupted_and_need_not_overlap() -> None:
    arms = [Arm(), Arm()]

    await race([at_once(1), at_once(2)], arms)

    assert [arm.gave_way for arm in arms] == [False, False]
    assert overlapped(arms) == "2 of 2 never gave way, so that nothing can come in between"


@pytest.mark.parametrize(
    ("spans", "met"),
    [
        ([[(0, 5)], [(4, 9)]], 2),
        ([[(0, 9)], [(3, 4)]], 2),
        ([[(0, 1), (8, 9)], [(2, 3), (7, 10)]], 2),
        ([[(0, 5)], [(4, 9)], [(20, 30)]], 2),
        ([[(0, 5)], [(5, 9)]], 0),
        ([[(6, 9)], [(0, 5)]], 0),
        ([[(0, 1), (4, 5)], [(2, 3), (6, 7)]], 0),
    ],
)
def test_processes_overlap_if_each_began_before_the_other_ended(
    spans: list[list[tuple[int, int]]], met: int
) -> None:
    arms = [Arm(own=(0, 100), gave_way=True, elsewhere=each) for each in spans]
    if met:
        assert overlapped(arms).startswith(f"{met} of {len(arms)} ")
    else:
        with pytest.raises(NotRaced, match=f"0 of {len(arms)} in the race"):
            overlapped(arms)


def test_a_race_whose_arms_ran_one_after_the_other_is_inconclusive_on_each_of_its_tries() -> None:
    async def body(ctx: Context) -> None:
        await ctx.race(elsewhere(0, 1), elsewhere(2, 3))
        ctx.expect(1, 1, "what came of it is looked at all the same")

    recording = Recording()
    outcome = outcome_of(body, recording)

    assert (outcome.status, outcome.reason) == (
        Status.INCONCLUSIVE,
        "0 of 2 in the race overlapped another one, at least 2 must",
    )
    assert "kept: what came of it is looked at all the same" in outcome.timeline
    assert len(set(recording.scopes)) == len(recording.scopes) == TRIES


def test_a_race_that_overlaps_at_the_second_try_has_been_run_enough() -> None:
    ends = iter((1, 3))

    async def body(ctx: Context) -> None:
        await ctx.race(elsewhere(0, next(ends)), elsewhere(2, 4))

    recording = Recording()

    assert outcome_of(body, recording).status is Status.PASS
    assert len(recording.scopes) == 2


def test_a_broken_promise_outranks_a_race_that_did_not_happen() -> None:
    async def body(ctx: Context) -> None:
        await ctx.race(elsewhere(0, 1), elsewhere(2, 3))
        ctx.expect(2, 1, "one of them wins")

    outcome = outcome_of(body)

    assert (outcome.status, outcome.promise) == (Status.FAIL, "one of them wins")


def test_every_race_of_a_case_has_to_happen() -> None:
    async def body(ctx: Context) -> None:
        await ctx.race(elsewhere(0, 3), elsewhere(2, 4))
        await ctx.race(elsewhere(0, 1), elsewhere(2, 3))

    assert outcome_of(body).status is Status.INCONCLUSIVE


def test_what_is_inconclusive_for_another_reason_is_not_tried_again() -> None:
    async def body(ctx: Context) -> None:
        ctx.skip_inconclusive("no such fault here")

    recording = Recording()

    assert outcome_of(body, recording).status is Status.INCONCLUSIVE
    assert len(recording.scopes) == 1
