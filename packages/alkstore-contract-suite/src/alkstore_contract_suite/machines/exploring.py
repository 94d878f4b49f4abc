"""One case of a machine: many runs of drawn steps, and of a failure the shortest trace that time allows."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from alkstore_contract_suite.factory import Backend
from alkstore_contract_suite.failure import ContractFailure, Inconclusive
from alkstore_contract_suite.machines import rules, whole
from alkstore_contract_suite.machines.machine import Machine
from alkstore_contract_suite.machines.player import Play, Plays
from alkstore_contract_suite.machines.trace import Step, Trace, told

__all__ = ["Effort", "Explored", "explore", "replayed"]

MACHINES: Final[dict[str, type[Machine]]] = {
    "queue": rules.QueueMachine,
    "stream": rules.StreamMachine,
    "lock": rules.LockMachine,
    "schedule": rules.ScheduleMachine,
    "whole": whole.WholeMachine,
}

SHRINKING: Final = 0.4
"""The part of a case's time that is kept for making a trace shorter."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much a case does.

    Attributes:
        runs: Sequences of steps, each on empty storage.
        steps: Steps of a sequence at most.
        seconds: Real time for all of it.
        soon: Real time for one step.
    """

    runs: int
    steps: int
    seconds: float
    soon: float


@dataclass(frozen=True, slots=True)
class Explored:
    """What a machine found: an error, and the run in which it was."""

    error: Exception
    play: Play
    areas: tuple[str, ...]

    @property
    def timeline(self) -> Sequence[str]:
        """What was done, a line a step."""
        return [told(step) for step in self.play.steps]

    def trace(self, case: str) -> str:
        """Give the run as the text of a trace; ``case`` says where it was found."""
        steps = self.play.steps
        needs = {need for step in steps for need in _needs(step)}
        return Trace(steps, self.areas, sorted(needs), f"{case}: {self.error}").as_json()


def explore(
    runner: asyncio.Runner, backend: Backend, machine: str, name: str, mode: str, effort: Effort
) -> Explored | None:
    """Let a machine draw its steps; gives what it found, and None if every answer was one that the model allows.

    The same name draws the same steps. Call it where no event loop is running.

    Raises:
        Inconclusive: There was no time for all the runs.
    """
    kind = MACHINES[machine]
    end = time.monotonic() + effort.seconds
    plays = Plays(runner, backend, name, mode=mode, areas=kind.areas, soon=effort.soon)
    begun = 0
    late: Inconclusive | None = None

    def begin() -> Play:
        nonlocal begun, late
        if time.monotonic() > end - SHRINKING * effort.seconds:
            took = f"{begun} of {effort.runs} runs took {effort.seconds * (1 - SHRINKING):g} s"
            late = Inconclusive(f"{took}; ask for fewer runs, or shorter ones")
            raise late
        begun += 1
        return plays.begin()

    try:
        _draw(kind, begin, name, effort)
    except Exception as error:
        # Hypothesis runs what failed once more, and complains if it does not fail again; the first time counts.
        if plays.failed is None and late is not None:
            raise late from error
        if plays.failed is None:
            raise
    return None if plays.failed is None else _shrunk(plays, plays.failed, end)


def _draw(kind: type[Machine], begin: Callable[[], Play], name: str, effort: Effort) -> None:
    chosen = settings(
        max_examples=effort.runs,
        stateful_step_count=effort.steps,
        # A trace is made shorter below, within the case's time and without a database of old failures.
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=[*HealthCheck],
        verbosity=Verbosity.quiet,
        report_multiple_bugs=False,
        print_blob=False,
    )
    machine = seed(random.Random(name).getrandbits(64))(lambda: kind(begin))
    run_state_machine_as_test(machine, settings=chosen)  # type: ignore[arg-type]  # any callable will do, it says


def replayed(plays: Plays, steps: Sequence[Step]) -> Play:
    """Do given steps on empty storage; the play says what came of it."""
    play = plays.begin()
    # The play keeps its error.
    with suppress(Exception):
        for step in steps:
            play.do(step)
    try:
        play.end()
    except Exception as error:  # an engine that cannot even be closed after it
        play.error = play.error or error
    return play


def _shrunk(plays: Plays, found: Play, end: float) -> Explored:
    """Leave out steps, as long as what is left fails in the same way and there is time."""
    best, size = found, max(len(found.steps) // 2, 1)
    while size:
        at, before = 0, len(best.steps)
        while at < len(best.steps) and time.monotonic() < end:
            play = replayed(plays, [*best.steps[:at], *best.steps[at + size :]])
            if _is_same(play.error, found.error):
                best = play
            else:
                at += size
        is_done = size == 1 and len(best.steps) == before
        size = 0 if is_done or time.monotonic() >= end else max(size // 2, 1)
    best = _plain(plays, best, end)
    assert best.error is not None
    return Explored(best.error, best, plays.areas)


def _plain(plays: Plays, found: Play, end: float) -> Play:
    """Leave out arguments of the steps, as long as it fails in the same way and there is time."""
    best = found
    for at, step in enumerate(found.steps):
        for name in (name for name in step if name not in ("do", "as")):
            if time.monotonic() >= end:
                return best
            plainer = {key: value for key, value in best.steps[at].items() if key != name}
            play = replayed(plays, [*best.steps[:at], plainer, *best.steps[at + 1 :]])
            # Fewer steps: one of them could not be done any more.
            if _is_same(play.error, found.error) and len(play.steps) == len(best.steps):
                best = play
    return best


def _needs(step: Step) -> Sequence[str]:
    """Give the capabilities that a step takes for granted."""
    return [
        *(["multi_process"] if step.get("on") == "b" else []),
        *(["durable"] if step["do"] == "end" else []),
        *(["listen"] if step["do"] == "listen" else []),
    ]


def _is_same(error: Exception | None, other: Exception | None) -> bool:
    if isinstance(error, ContractFailure) and isinstance(other, ContractFailure):
        return error.promise == other.promise
    return type(error) is type(other)
