"""What a case may do, and what becomes of it; on an engine that only opens and closes."""

import asyncio
import random
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hanging import HUNG

from alkstore import Closed, InvalidArgument, InvalidName, Store
from alkstore.engine import Traits
from alkstore.testing import ManualClock
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.factory import Backend, Crash
from alkstore_contract_suite.failure import ContractFailure, shown
from alkstore_contract_suite.in_process import InProcessBackend, InProcessFactory
from alkstore_contract_suite.outcome import Outcome, Status
from alkstore_contract_suite.plan import Case
from alkstore_contract_suite.row import Row
from alkstore_contract_suite.running import Limits, run

Body = Callable[[Context], Awaitable[None]]


class Hollow:
    """An engine that opens and closes, and has nothing else."""

    traits = Traits()

    def __getattr__(self, name: str) -> Any:
        async def method(*args: object, **kwargs: object) -> None:
            raise NotImplementedError(name)

        return method

    async def aclose(self) -> None:
        """Nothing to free."""


async def hollow() -> Any:
    return Hollow()


def make_store(clock: ManualClock, source: random.Random) -> Store:
    return Store(hollow, name="hollow", random=source)


def a_case(body: Body, *, mode: str = "plain", id: str = "Q-01") -> Case:
    row = Row(
        id=id,
        name="row",
        text="a promise",
        oracle="a look",
        modes=(mode,),
        needs=(),
        kills=(),
        level="MUST",
        since="1.0",
        depends=(),
        hints="",
        function=body,
    )
    return Case(row, "hollow", mode)


def outcome_of(body: Body, *, seed: int = 0, limits: Limits | None = None, **given: Any) -> Outcome:
    backend = InProcessBackend(make_store)
    return run(backend, a_case(body, **given), seed=seed, limits=limits or Limits(case=HUNG, soon=HUNG))


def test_a_row_that_returns_has_passed() -> None:
    async def body(ctx: Context) -> None:
        ctx.expect(1, 1, "one is one")

    assert outcome_of(body).status is Status.PASS


def test_a_failed_assertion_carries_the_promise_and_the_timeline() -> None:
    async def body(ctx: Context) -> None:
        ctx.note("looked")
        ctx.expect([1, 2], [2, 1], "newest first")

    outcome = outcome_of(body)

    assert (outcome.status, outcome.promise, outcome.expected, outcome.observed, outcome.timeline) == (
        Status.FAIL,
        "newest first",
        "[2, 1]",
        "[1, 2]",
        ("open a", "looked"),
    )


def test_a_failed_assertion_that_a_callback_swallowed_fails_the_case_all_the_same() -> None:
    async def body(ctx: Context) -> None:
        try:
            ctx.that(False, "said in a handler")
        except Exception:
            ctx.note("swallowed")

    assert outcome_of(body).promise == "said in a handler"


def test_a_method_that_is_not_implemented_is_named_without_a_traceback() -> None:
    async def body(ctx: Context) -> None:
        await ctx.store.queues()

    outcome = outcome_of(body)

    assert (outcome.status, outcome.reason, outcome.traceback) == (
        Status.FAIL,
        "not implemented: list_names",
        (),
    )


def test_what_is_not_implemented_says_nothing_of_the_factory() -> None:
    async def body(ctx: Context) -> None:
        await ctx.store.queues()

    assert outcome_of(body, id="FACTORY-01").status is Status.NOT_TESTED


def test_a_method_that_is_not_implemented_is_named_out_of_a_refusal_too() -> None:
    async def body(ctx: Context) -> None:
        async with ctx.refuses(InvalidName, "a bad name is refused"):
            await ctx.store.queues()

    assert outcome_of(body).missing == "list_names"


def test_a_method_that_a_background_task_misses_ends_the_case_at_once() -> None:
    async def body(ctx: Context) -> None:
        begun = asyncio.Event()

        async def work() -> None:
            await ctx.store.queues()
            begun.set()

        _ = ctx.start(work())
        await ctx.soon(begun.wait(), "it begins")

    outcome = outcome_of(body, limits=Limits(case=2 * HUNG, soon=2 * HUNG))

    assert outcome.reason == "not implemented: list_names"
    assert outcome.seconds < HUNG


def test_a_background_task_that_never_got_a_turn_leaves_nothing_behind() -> None:
    async def work() -> None:
        """Never reached."""

    async def body(ctx: Context) -> None:
        _ = ctx.start(work())

    assert outcome_of(body).status is Status.PASS


def test_any_other_error_shows_where_it_came_from() -> None:
    async def body(ctx: Context) -> None:
        raise KeyError("lost")

    outcome = outcome_of(body)

    assert (outcome.status, outcome.promise) == (Status.FAIL, "")
    assert outcome.reason == """unexpected KeyError: "'lost'\""""
    assert "in body: raise KeyError" in outcome.traceback[-1]


def test_a_row_that_skips_itself_fails() -> None:
    async def body(ctx: Context) -> None:
        pytest.skip("not today")

    outcome = outcome_of(body)

    assert (outcome.status, outcome.reason) == (Status.FAIL, "the row skipped itself, which no row may")


def test_a_case_that_hangs_is_ended_and_fails() -> None:
    async def body(ctx: Context) -> None:
        await asyncio.Event().wait()

    outcome = outcome_of(body, limits=Limits(case=0.2))

    assert (outcome.status, outcome.reason) == (Status.FAIL, "it did not end within 0.2 s")


def test_a_row_that_is_cancelled_from_within_fails() -> None:
    async def body(ctx: Context) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.Event().wait()

    assert "CancelledError" in outcome_of(body).reason


def test_a_row_may_say_that_it_could_not_show_anything() -> None:
    async def body(ctx: Context) -> None:
        ctx.skip_inconclusive("nothing raced")

    outcome = outcome_of(body)

    assert (outcome.status, outcome.reason) == (Status.INCONCLUSIVE, "nothing raced")


def test_a_task_that_is_left_fails_the_case() -> None:
    tasks: list[asyncio.Task[Any]] = []

    async def body(ctx: Context) -> None:
        tasks.append(asyncio.create_task(asyncio.Event().wait()))

    outcome = outcome_of(body)

    assert outcome.status is Status.FAIL
    assert "a task goes on" in outcome.reason


def test_a_store_that_is_dropped_unclosed_fails_the_case() -> None:
    async def body(ctx: Context) -> None:
        _ = await make_store(ManualClock(), random.Random(0))

    outcome = outcome_of(body)

    assert outcome.status is Status.FAIL
    assert "never closed" in outcome.reason


def test_an_error_in_a_task_that_nobody_looked_at_fails_the_case() -> None:
    async def fails() -> None:
        raise KeyError("unseen")

    async def body(ctx: Context) -> None:
        _ = ctx.start(fails())
        await ctx.settle()

    outcome = outcome_of(body)

    assert outcome.status is Status.FAIL
    assert "never retrieved" in outcome.reason


@pytest.mark.filterwarnings("ignore")
def test_a_coroutine_that_nobody_awaits_fails_the_case() -> None:
    async def work() -> None:
        """Nothing."""

    async def body(ctx: Context) -> None:
        work()  # type: ignore[unused-coroutine]  # what is found here

    assert "never awaited" in outcome_of(body).reason


def test_a_warning_of_another_kind_goes_on_to_whoever_listens() -> None:
    async def body(ctx: Context) -> None:
        warnings.warn("old", FutureWarning, stacklevel=1)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outcome = outcome_of(body)

    assert outcome.status is Status.PASS
    assert [str(warning.message) for warning in caught] == ["old"]


def test_background_tasks_and_stores_are_ended_with_the_case() -> None:
    seen: list[Any] = []

    async def body(ctx: Context) -> None:
        seen.append(ctx.start(asyncio.Event().wait()))
        seen.append(ctx.store)
        seen.append(await ctx.open("b"))

    assert outcome_of(body).status is Status.PASS
    assert seen[0].cancelled()
    assert [store._state for store in seen[1:]] == ["closed", "closed"]


def test_randomness_comes_from_the_seed_and_the_case() -> None:
    drawn: list[float] = []

    async def body(ctx: Context) -> None:
        drawn.append(ctx.random.random())

    for seed in (1, 1, 2):
        outcome_of(body, seed=seed)

    assert drawn[0] == drawn[1] != drawn[2]


def test_a_scope_that_cannot_be_entered_fails_the_case() -> None:
    class Broken:
        @asynccontextmanager
        async def scope(self, case: str) -> AsyncIterator[InProcessFactory]:
            raise OSError("disk full")
            yield

    async def body(ctx: Context) -> None:
        """Never reached."""

    backend: Backend = Broken()
    outcome = run(backend, a_case(body), seed=0)

    assert outcome.reason == "unexpected OSError: 'disk full'"


# ---------------------------------------------------------------- the context


def failure_of(body: Body, **given: Any) -> str:
    outcome = outcome_of(body, **given)
    assert outcome.status is Status.FAIL
    return f"{outcome.promise}: {outcome.expected} / {outcome.observed}"


def test_a_block_that_does_not_raise_breaks_the_promise_of_a_refusal() -> None:
    async def body(ctx: Context) -> None:
        async with ctx.refuses(InvalidName, "blank is refused"):
            pass

    assert failure_of(body) == "blank is refused: InvalidName / no error"


def test_an_error_of_another_type_breaks_the_promise_of_a_refusal() -> None:
    async def body(ctx: Context) -> None:
        with ctx.refuses_sync((InvalidName, Closed), "blank is refused"):
            raise InvalidArgument("other")

    assert failure_of(body) == "blank is refused: InvalidName or Closed / InvalidArgument('other')"


def test_a_refusal_gives_the_error_that_it_caught() -> None:
    async def body(ctx: Context) -> None:
        with ctx.refuses_sync(InvalidName, "blank is refused") as caught:
            ctx.store.queue(" ")
        ctx.expect(caught.error.name, " ", "the error carries the name")

    assert outcome_of(body).status is Status.PASS


def test_a_free_choice_is_reported() -> None:
    async def body(ctx: Context) -> None:
        ctx.among(3, {"one each": 3, "folded": 1}, "wakes may fold")

    assert outcome_of(body).choices == {"wakes may fold": "one each"}


def test_what_is_not_among_the_free_choices_fails() -> None:
    async def body(ctx: Context) -> None:
        ctx.among(2, [1, 3], "wakes may fold")

    assert failure_of(body) == "wakes may fold: one of 1, 3 / 2"


def test_what_does_not_come_soon_fails_by_its_promise() -> None:
    async def body(ctx: Context) -> None:
        await ctx.soon(asyncio.Event().wait(), "it comes")

    assert failure_of(body, limits=Limits(soon=0.05)) == "it comes: at once / nothing within 0.05 s"


def test_a_timeout_of_the_engine_is_not_taken_for_the_limit_of_soon() -> None:
    async def times_out() -> None:
        raise TimeoutError("the engine's own")

    async def body(ctx: Context) -> None:
        await ctx.soon(times_out(), "it comes")

    assert outcome_of(body).reason == 'unexpected TimeoutError: "the engine\'s own"'


def test_a_task_that_is_done_is_not_waiting() -> None:
    async def answer() -> int:
        return 42

    async def body(ctx: Context) -> None:
        await ctx.idle(ctx.start(answer()), "it waits")

    assert failure_of(body) == "it waits: still waiting / done with 42"


def test_real_time_is_held_for_three_milliseconds_at_most() -> None:
    async def body(ctx: Context) -> None:
        await ctx.hold(0.004)

    assert outcome_of(body).reason.startswith("unexpected ValueError")


def test_the_racers_of_a_race_have_all_begun_before_one_goes_on() -> None:
    begun: list[int] = []

    async def racer(number: int) -> int:
        begun.append(number)
        return number

    async def body(ctx: Context) -> None:
        ctx.expect(await ctx.race(racer(1), racer(2), racer(3)), [1, 2, 3], "results come in order")

    assert outcome_of(body).status is Status.PASS
    assert sorted(begun) == [1, 2, 3]


def test_workers_that_never_meet_make_a_race_inconclusive() -> None:
    async def lonely(step: Callable[[], Awaitable[None]]) -> None:
        """Ends without a step."""

    async def body(ctx: Context) -> None:
        await ctx.race_workers([lonely, lonely])

    assert outcome_of(body).status is Status.INCONCLUSIVE


def test_workers_that_take_turns_have_raced() -> None:
    async def busy(step: Callable[[], Awaitable[None]]) -> int:
        for _ in range(3):
            await step()
        return 3

    async def body(ctx: Context) -> None:
        ctx.expect(await ctx.race_workers([busy, busy]), [3, 3], "every worker ends")

    assert outcome_of(body).status is Status.PASS


class Recorder(InProcessFactory):
    """Notes what is asked of a factory; its storage is nowhere, so it may be shared, reopened and crashed."""

    def __init__(self, calls: list[str]) -> None:
        super().__init__(make_store, random.Random(0))
        self._calls = calls

    async def open(self, instance: str = "a") -> Store:
        self._calls.append(f"open {instance}")
        return await super().open(instance)

    async def reopen(self, store: Store) -> Store:
        self._calls.append("reopen")
        return await super().reopen(store)

    async def crash(self, store: Store, kind: Crash) -> None:
        self._calls.append(f"crash {kind.value}")
        await store.aclose()


@pytest.mark.parametrize(
    ("mode", "calls"),
    [
        ("plain", ["open a"]),
        ("boundary", ["open a"]),
        ("concurrent", ["open a"]),
        ("second", ["open a", "open b"]),
        ("reopen", ["open a", "reopen", "open a"]),
        ("crash-drop", ["open a", "crash drop", "open a"]),
        ("crash-kill", ["open a", "crash kill", "open a"]),
    ],
)
def test_a_turn_does_what_the_mode_says(mode: str, calls: list[str]) -> None:
    noted: list[str] = []

    class Recorded:
        @asynccontextmanager
        async def scope(self, case: str) -> AsyncIterator[Recorder]:
            yield Recorder(noted)

    async def body(ctx: Context) -> None:
        before = ctx.store
        after = await ctx.turn()
        ctx.expect(after is before, mode in ("plain", "boundary", "concurrent"), "the store is another one")
        ctx.that(ctx.store is after, "the case goes on with it")

    backend: Backend = Recorded()
    outcome = run(backend, a_case(body, mode=mode), seed=0)

    assert outcome.status is Status.PASS, outcome
    assert noted == calls


def test_a_value_whose_repr_fails_is_shown_all_the_same() -> None:
    class Sulky:
        def __repr__(self) -> str:
            raise KeyError("no")

    assert "Sulky" in shown(Sulky())


def test_a_shown_value_is_cut_and_printable() -> None:
    text = shown(["\ud800" * 3, "x" * 10_000])

    assert len(text) < 500
    assert text.encode()


def test_a_contract_failure_reads_as_a_sentence() -> None:
    assert (
        str(ContractFailure("first come, first served", "1", "2"))
        == "first come, first served: expected 1, observed 2"
    )
