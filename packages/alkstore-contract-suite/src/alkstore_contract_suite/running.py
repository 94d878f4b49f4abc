"""Runs one case: an event loop and a scope of its own, a time limit, and a look at what was left behind."""

import asyncio
import gc
import random
import threading
import time
import traceback
import warnings
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self

import pytest

from alkstore_contract_suite.claims import UNSAID, Claims
from alkstore_contract_suite.context import KILLS, SOON, Context
from alkstore_contract_suite.factory import Backend, StorageEnded, StoreFactory
from alkstore_contract_suite.failure import ContractFailure, Inconclusive, NotRaced, missing, shown
from alkstore_contract_suite.outcome import Outcome, Status
from alkstore_contract_suite.plan import Case
from alkstore_contract_suite.platform_needs import ABSENT
from alkstore_contract_suite.processes import Processes

__all__ = ["Limits", "run"]

RUNS: Final = 15
"""Runs of a machine where the column says nothing of what they cost."""

STEPS: Final = 25

STEP: Final = 2.0
"""Seconds of real time for a step at least: it is several calls, and all the looks after them."""

FRAMES: Final = 4
"""Frames of an unexpected error's traceback that a report shows."""

SECONDS_PER_KILL: Final = 1.0
"""Real time that a round with one kill may take at most, on a slow machine."""

SECONDS_PER_STEP: Final = 0.02
"""The same for a step of a machine and all the looks after it."""

TRIES: Final = 3
"""Times that a case is run in all while nothing in it overlaps: that depends on the machine, and what else it does."""

LAST_TURNS: Final = 3
"""Turns of the loop in which tasks that the close ended may finish."""

HERE: Final = str(Path(__file__).parent)


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a case may take, and how much the long ones do.

    Attributes:
        case: Seconds of real time for a whole case.
        soon: Seconds after which something that should come at once has not come.
        kills: How many processes are killed in the case that does nothing else.
        runs: How many sequences of steps a machine draws; None for as many as the column can afford.
        steps: The most steps of one.
    """

    case: float = 20.0
    soon: float = SOON
    kills: int = KILLS
    runs: int | None = None
    steps: int = STEPS

    @classmethod
    def of(cls, kills: int, runs: int | None = None, steps: int | None = None) -> Self:
        """Give limits for so many kills, runs and steps: a case may take longer for more of them."""
        steps = steps or STEPS
        drawn = 0.0 if runs is None else runs * steps * SECONDS_PER_STEP
        seconds = cls().case + kills * SECONDS_PER_KILL + drawn
        return cls(case=seconds, kills=kills, runs=runs, steps=steps)


@dataclass(frozen=True, slots=True)
class _Setting:
    backend: Backend
    case: Case
    seed: int
    limits: Limits
    processes: Processes | None
    claims: Claims
    tries: int = 1

    @property
    def name(self) -> str:
        """What names the case's storage and seeds its randomness."""
        again = f"/{self.tries}" if self.tries > 1 else ""
        return f"{self.seed}/{self.case.id}{again}"

    def context(self, factory: StoreFactory) -> Context:
        return Context(
            factory,
            mode=self.case.mode,
            random=random.Random(self.name),
            soon=self.limits.soon,
            kills=self.limits.kills,
            processes=self.processes,
            claims=self.claims,
        )


@dataclass(slots=True)
class _Seen:
    """What a case showed beside its outcome.

    Attributes:
        leaks: What it left behind, and what the loop told of.
        absent: What is not implemented, met in tasks of core's.
        is_unraced: Whether the outcome is that nothing overlapped.
    """

    leaks: list[str] = field(default_factory=list)
    absent: list[BaseException] = field(default_factory=list)
    is_unraced: bool = False


class Stuck(Exception):
    """A case, or the end of one, did not come back within its limit."""


def run(
    backend: Backend,
    case: Case,
    *,
    seed: int,
    limits: Limits = Limits(),
    processes: Processes | None = None,
    claims: Claims = UNSAID,
) -> Outcome:
    """Run one case to its outcome; nothing that the engine raises gets out. Mode "process" needs ``processes``.

    A case in which nothing overlapped is run anew, on storage of its own, three times in all.
    """
    begun = time.perf_counter()
    setting = _Setting(backend, case, seed, limits, processes, claims)
    outcome, seen = _listened(setting)
    while seen.is_unraced and setting.tries < TRIES:
        setting = replace(setting, tries=setting.tries + 1)
        outcome, seen = _listened(setting)
    return replace(outcome, seconds=time.perf_counter() - begun)


def _listened(setting: _Setting) -> tuple[Outcome, _Seen]:
    """Run a case once, and fail it for what it left behind."""
    seen = _Seen()
    with warnings.catch_warnings(record=True) as caught, _cheap_collections():
        warnings.filterwarnings("always", category=ResourceWarning)
        warnings.filterwarnings("always", message="coroutine .* was never awaited", category=RuntimeWarning)
        outcome = _run(setting, seen)
        # Only what is collected while we still listen is told to this case, and not to the one after it.
        _collect()
    for warning in caught:
        if issubclass(warning.category, ResourceWarning) or "was never awaited" in str(warning.message):
            seen.leaks.append(f"{warning.category.__name__}: {warning.message}")
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if seen.absent:
        # Whatever the row saw came of that: what core had asked for in a task of its own was not done.
        outcome = _judged(setting.case, seen.absent[0], None)
    elif seen.leaks and (outcome.status is Status.PASS or seen.is_unraced):
        reason = f"the case left something behind: {'; '.join(seen.leaks)}"
        outcome = Outcome(status=Status.FAIL, reason=reason)
    seen.is_unraced &= outcome.status is Status.INCONCLUSIVE
    return outcome, seen


def _collect() -> None:
    # Finalizers may ask for the current loop (aiosqlite's does, of a connection that was left open). Here, where none runs,
    # they would get somebody else's, or before Python 3.14 be made one, which nobody closes. A thread has none.
    if "threads" in ABSENT:
        gc.collect()
        return
    collecting = threading.Thread(target=gc.collect)
    collecting.start()
    collecting.join()


@contextmanager
def _cheap_collections() -> Iterator[None]:
    # What was there before the case is not its garbage, and in a long run of tests takes half a second to walk.
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _run(setting: _Setting, seen: _Seen) -> Outcome:
    def heard(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and missing(error):
            seen.absent.append(error)
        else:
            seen.leaks.append(_told(context))

    # A loop factory keeps the runner from touching the process's current loop, which may be somebody else's.
    with asyncio.Runner(debug=False, loop_factory=asyncio.new_event_loop) as runner:
        runner.get_loop().set_exception_handler(heard)
        return (
            _explored(runner, setting, seen.leaks)
            if setting.case.row.machine
            else runner.run(_attempt(setting, seen))
        )


def _explored(runner: asyncio.Runner, setting: _Setting, leaks: list[str]) -> Outcome:
    # What draws the steps takes as long to import as a column on mem takes to run, and few runs of tests want it.
    from alkstore_contract_suite.machines.exploring import Effort, explore

    case, limits = setting.case, setting.limits
    effort = Effort(limits.runs or RUNS, limits.steps, limits.case, max(limits.soon, STEP))
    try:
        found = explore(runner, setting.backend, case.row.machine, setting.name, case.mode, effort)
    except Exception as error:  # of the backend, or too little time
        return _judged(case, error, None)
    runner.run(_last_turns(leaks))
    if found is None:
        return _judged(case, None, None)
    outcome = _judged(case, found.error, None)
    return replace(outcome, timeline=tuple(found.timeline), trace=found.trace(case.id))


async def _attempt(setting: _Setting, seen: _Seen) -> Outcome:
    contexts: list[Context] = []
    errors: list[BaseException] = []

    async def body(context: Context) -> None:
        await context.begin(bare=setting.case.row.bare)
        await setting.case.row.function(context)

    async def scoped() -> None:
        async with setting.backend.scope(setting.name) as factory:
            context = setting.context(factory)
            contexts.append(context)
            for part in (body(context), context.finish()):
                error = await _bounded(part, setting.limits.case)
                if error is not None:
                    errors.append(error)

    error = await _bounded(scoped(), 2 * setting.limits.case + 1)
    if error is not None:
        errors.append(error)
    await _last_turns(seen.leaks)
    context = contexts[0] if contexts else None
    found = errors
    if context is not None:
        seen.leaks.extend(context.leaks)
        # A failure that the engine swallowed in a callback still is what went wrong first.
        found = [*context.missing, *context.deaths, *context.failures, *errors, *context.unraced]
    if isinstance(error, StorageEnded):  # whatever else was seen comes of it
        found = [error]
    seen.is_unraced = bool(found) and isinstance(found[0], NotRaced)
    return _judged(setting.case, found[0] if found else None, context)


async def _last_turns(leaks: list[str]) -> None:
    for _ in range(LAST_TURNS):
        await asyncio.sleep(0)
    leaks.extend(f"a task goes on: {task!r}" for task in asyncio.all_tasks() - {asyncio.current_task()})


async def _bounded(work: Coroutine[Any, Any, None], seconds: float) -> BaseException | None:
    """Await in a task of its own, so that a cancellation which a row causes stays the row's."""
    task = asyncio.get_running_loop().create_task(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=1)
            return Stuck(f"it did not end within {seconds:g} s")
    finally:
        task.cancel()
    return asyncio.CancelledError("the case was cancelled") if task.cancelled() else task.exception()


def _judged(case: Case, error: BaseException | None, context: Context | None) -> Outcome:
    timeline = tuple(context.timeline) if context else ()
    if error is None:
        return Outcome(status=Status.PASS, choices=dict(context.choices) if context else {})
    if isinstance(error, Inconclusive):
        return Outcome(status=Status.INCONCLUSIVE, reason=str(error), timeline=timeline)
    if isinstance(error, ContractFailure):
        return Outcome(
            status=Status.FAIL,
            reason=error.promise,
            promise=error.promise,
            expected=error.expected,
            observed=error.observed,
            timeline=timeline,
        )
    if name := missing(error):
        # What is not there yet says nothing about the factory.
        status = Status.NOT_TESTED if case.row.is_factory else Status.FAIL
        return Outcome(status=status, reason=f"not implemented: {name}", missing=name)
    return Outcome(
        status=Status.FAIL,
        reason=_described(error),
        traceback=_frames(error),
        timeline=timeline,
    )


def _described(error: BaseException) -> str:
    if isinstance(error, pytest.skip.Exception):
        return "the row skipped itself, which no row may"
    if isinstance(error, Stuck | StorageEnded):
        return str(error)
    return f"unexpected {type(error).__name__}: {shown(str(error))}"


def _frames(error: BaseException) -> tuple[str, ...]:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    return tuple(
        f"{frame.filename.removeprefix(HERE).lstrip('/')}:{frame.lineno} in {frame.name}: {frame.line}"
        for frame in frames[-FRAMES:]
    )


def _told(context: dict[str, Any]) -> str:
    error = context.get("exception")
    message = str(context.get("message", "the event loop met an error"))
    return f"{message}: {shown(error)}" if error is not None else message
