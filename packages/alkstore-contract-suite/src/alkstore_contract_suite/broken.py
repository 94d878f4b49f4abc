"""Engines that are wrong in exactly one way, each of which a row must find, and one of them tried on rows.

The broken engines live beside the suite's source, in ``tests/mutants``; only a checkout has them.
"""

import importlib.util
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final, Protocol, TypeAlias, cast

from alkstore_contract_suite.backends import Backends
from alkstore_contract_suite.claims import Claims
from alkstore_contract_suite.factory import EngineColumn, StoreFactory, Supported
from alkstore_contract_suite.outcome import Outcome, Status
from alkstore_contract_suite.plan import Case, Selection, plan, settled
from alkstore_contract_suite.row import Row
from alkstore_contract_suite.running import Limits, run

__all__ = ["MOST_ROWS", "Kill", "Mutant", "elsewhere", "load", "planted", "red", "strays", "tried"]

FOLDER: Final = Path(__file__).parents[2] / "tests" / "mutants"

MODULES: Final = "alkstore_mutants_"
"""How the modules of mutants are named once they are imported."""

LIMITS: Final = Limits(case=3.0, soon=0.2)
"""Seconds: a broken engine that hangs is found sooner than a slow honest one is suspected."""

PROCESS_LIMITS: Final = Limits(case=9.0, soon=1.0)
"""The same where processes take turns on the machine, a server's among them."""

MOST_ROWS: Final = 8
"""A fault that more rows find is in something that they all need, and proves none of them."""
MOST_LIMITS: Final = 4
"""A case, its end and its scope's have a limit each; what takes longer than all of them does not give them their turn."""

RACES: Final = frozenset({"concurrent", "process"})

TRIES: Final = 3
"""Seeds with which a race is run until it shows a fault: on a busy machine it may go the right way once."""

SURVIVED: Final = "SURVIVED"

Outcomes: TypeAlias = dict[tuple[str, str], list[tuple[str, Outcome]]]
"""By row and test: the modes that were run, and what came out."""


class LoopKept(Exception):
    """A broken engine never lets anything else run."""


class Mutant(Protocol):
    """An engine with one planted fault."""

    @property
    def name(self) -> str: ...

    @property
    def kills(self) -> Sequence[str]:
        """Ids of the rows that must find the fault."""

    @property
    def wide(self) -> str:
        """Why more than `MOST_ROWS` rows find the fault; empty if they are not to."""

    def column(self) -> AbstractContextManager[EngineColumn]:
        """Plant the fault for the length of a block."""


@dataclass(frozen=True, slots=True)
class Kill:
    """Whether a row, or one test of it, finds the fault of a mutant.

    Attributes:
        test: The test that names the mutant; empty for what a mutant says of a whole row.
        mode: In which the row failed; empty if it did not.
        promise: What the failed assertion named; empty if nothing did.
        how: The same in a line, or why the fault is not found.
    """

    mutant: str
    row: str
    test: str
    how: str
    mode: str = ""
    promise: str = ""

    @property
    def is_killed(self) -> bool:
        """Whether an assertion found the fault; an error that the row merely met finds none."""
        return bool(self.promise)


def load() -> tuple[Mutant, Sequence[Mutant]]:
    """Import every mutant of the checkout; gives the honest engine, which no row may kill, and the broken ones."""
    if not (FOLDER / "mutant.py").exists():
        raise FileNotFoundError(f"the self-test needs a checkout: {FOLDER} is not there")
    registry = _imported("mutant", "mutant")
    for path in sorted(FOLDER.glob("*.py")):
        if path.stem != "mutant":
            _imported(path.stem, f"{MODULES}{path.stem}")
    return cast(Mutant, registry.HONEST), cast(Sequence[Mutant], registry.registered())


def _imported(stem: str, name: str) -> ModuleType:
    # By path: the areas' names are those of modules of the standard library, which must not be shadowed.
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{stem}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        # Half a module would hide the error from whoever asks again.
        del sys.modules[name]
        raise
    return module


def elsewhere(stem: str, name: str, folder: Path, seed: str, process: str) -> StoreFactory:
    """Give the factory of a broken engine in a child process: the recipe of mutants that are more than one process."""
    registry = _imported("mutant", "mutant")
    engine = getattr(_imported(stem, f"{MODULES}{stem}"), name)
    return cast(StoreFactory, registry.file_factory(engine)(folder, f"{seed}/{process}"))


def planted(stem: str, name: str, function: str, *given: object) -> object:
    """Call a function of the mutants' registry with a broken class, in whatever process: neither could be pickled."""
    registry = _imported("mutant", "mutant")
    return getattr(registry, function)(getattr(_imported(stem, f"{MODULES}{stem}"), name), *given)


def tried(mutant: Mutant, rows: Sequence[Row], *, seed: int = 0, limits: Limits = LIMITS) -> Sequence[Kill]:
    """Run a mutant against the rows that it names, and against the tests that name it."""
    naming = [row for row in rows if mutant.name in row.kills]
    others = [row for row in rows if row.id in mutant.kills and mutant.name not in row.kills]
    with ExitStack() as stack:
        try:
            column = stack.enter_context(mutant.column())
        except Exception as error:  # whatever a mutant meets on planting: core has moved on under it
            how = f"CANNOT BE PLANTED: {type(error).__name__}: {error}"
            return [Kill(mutant.name, id, "", how) for id in mutant.kills]
        outcomes = _outcomes(mutant, [*naming, *others], column, seed, limits)
        for again in range(1, TRIES):
            for key, more in _outcomes(
                mutant, _by_chance(mutant, [*naming, *others], outcomes), column, seed + again, limits
            ).items():
                outcomes[key] += more
    claims = [_kill(mutant, id, "", _of(id, outcomes)) for id in mutant.kills]
    return [*claims, *(_kill(mutant, row.id, row.name, outcomes[row.id, row.name]) for row in naming)]


def _by_chance(mutant: Mutant, rows: Sequence[Row], outcomes: Outcomes) -> Sequence[Row]:
    """Give the rows that have not found the fault, and might in another race."""
    racing = [row for row in rows if not RACES.isdisjoint(row.modes)]
    return [row for row in racing if not any(found.promise for _, found in _so_far(mutant, row, outcomes))]


def _so_far(mutant: Mutant, row: Row, outcomes: Outcomes) -> Sequence[tuple[str, Outcome]]:
    # A test that names the mutant must find it itself; of the others one is enough.
    return outcomes[row.id, row.name] if mutant.name in row.kills else _of(row.id, outcomes)


def strays(mutant: Mutant, rows: Sequence[Row], *, seed: int = 0) -> Sequence[Kill]:
    """Run a mutant against all rows of which neither side says anything; gives those that fail on it all the same."""
    declared = {*mutant.kills, *(row.id for row in rows if mutant.name in row.kills)}
    others = [row for row in rows if row.id not in declared]
    with mutant.column() as column:
        outcomes = _outcomes(mutant, others, column, seed, LIMITS)
    found = (_kill(mutant, id, "", _of(id, outcomes)) for id in dict.fromkeys(row.id for row in others))
    return [kill for kill in found if kill.mode]


def red(rows: Sequence[Row], honest: Mutant, *, seed: int = 0) -> Mapping[tuple[str, str], str]:
    """Give the tests that fail on the honest engine, by row and name: they would "find" every fault there is."""
    with honest.column() as column, closing(Backends("selftest")) as backends:
        return {
            (case.row.id, case.row.name): f"{case.mode}: {outcome.reason}"
            for case in plan(rows, column)
            if settled(case, column, Selection()) is None
            and (outcome := _run(backends, column, case, seed, Limits())).status is not Status.PASS
        }


def _outcomes(
    mutant: Mutant, wanted: Sequence[Row], column: EngineColumn, seed: int, limits: Limits
) -> Outcomes:
    outcomes: Outcomes = {(row.id, row.name): [] for row in wanted}
    is_far = isinstance(column.capabilities["server"], Supported)
    with closing(Backends("selftest")) as backends:
        for case in plan(wanted, column):
            own = outcomes[case.row.id, case.row.name]
            is_found = any(outcome.promise for _, outcome in _so_far(mutant, case.row, outcomes))
            if not is_found and settled(case, column, Selection()) is None:
                most = PROCESS_LIMITS if is_far or case.mode == "process" else limits
                own.append((case.mode, _run(backends, column, case, seed, most)))
    return outcomes


def _run(backends: Backends, column: EngineColumn, case: Case, seed: int, limits: Limits) -> Outcome:
    backend = backends.of(column)
    try:
        with _interrupted(MOST_LIMITS * limits.case):
            return run(
                backend,
                case,
                seed=seed,
                limits=limits,
                processes=backends.processes,
                claims=Claims.of(column),
            )
    except LoopKept as error:
        return Outcome(status=Status.FAIL, reason=str(error))


@contextmanager
def _interrupted(seconds: float) -> Iterator[None]:
    """Raise `LoopKept` in whatever runs after so long: a limit within the event loop needs its turn, as everything else."""
    if not hasattr(signal, "setitimer"):
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise LoopKept(f"it kept the event loop for itself, and did not end within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    # Again and again: what it is raised in may go on all the same.
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _of(id: str, outcomes: Outcomes) -> Sequence[tuple[str, Outcome]]:
    return [found for key in outcomes if key[0] == id for found in outcomes[key]]


def _kill(mutant: Mutant, row: str, test: str, outcomes: Sequence[tuple[str, Outcome]]) -> Kill:
    failed = [(mode, outcome) for mode, outcome in outcomes if outcome.status is Status.FAIL]
    named = [(mode, outcome) for mode, outcome in failed if outcome.promise]
    if named:
        mode, outcome = named[0]
        return Kill(mutant.name, row, test, f"{mode}: {outcome.promise}", mode, outcome.promise)
    if failed:
        mode, outcome = failed[0]
        return Kill(mutant.name, row, test, f"DIED OTHERWISE {mode}: {outcome.reason}", mode)
    if not outcomes:
        return Kill(mutant.name, row, test, "NOT RUN: no case of this row can run on this engine")
    return Kill(mutant.name, row, test, SURVIVED)
