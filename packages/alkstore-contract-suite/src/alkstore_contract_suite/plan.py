"""Which cases there are for a column, in which order they run, and what is known without running them."""

import fnmatch
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from alkstore_contract_suite import platform_needs
from alkstore_contract_suite.contract import promises
from alkstore_contract_suite.factory import EngineColumn, Missing, Planned, Supported, Unsupported
from alkstore_contract_suite.outcome import Outcome, Status
from alkstore_contract_suite.row import MODES, Row

__all__ = ["Case", "Selection", "SelectionError", "ordered", "plan", "settled"]


@dataclass(frozen=True, slots=True)
class Case:
    """One row function on one engine in one mode."""

    row: Row
    engine: str
    mode: str

    @property
    def cell(self) -> str:
        """The name of the cell of the matrix that this case belongs to."""
        return f"{self.row.id}[{self.engine}-{self.mode}]"

    @property
    def id(self) -> str:
        """The name of this case, unique in a run."""
        return f"{self.cell}::{self.row.name}"


class SelectionError(Exception):
    """What was asked for does not exist."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows and modes to run; empty means all. Rows about the factory always run: they say if the rest counts.

    Attributes:
        picked: Tests by row, name and mode, if there is to be nothing else.
    """

    rows: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    picked: frozenset[tuple[str, str, str]] = frozenset()

    @classmethod
    def read(
        cls, rows: Sequence[str], modes: Sequence[str], known: Sequence[Row], *, is_smoke: bool = False
    ) -> "Selection":
        """Read comma-separated options, ``Q-1*`` being a pattern.

        Args:
            is_smoke: Whether one test of each row is enough: the one that needs least, in its first mode.

        Raises:
            SelectionError: A pattern fits no row, or a mode is unknown.
        """
        patterns = tuple(part.strip() for given in rows for part in given.split(",") if part.strip())
        words = tuple(part.strip() for given in modes for part in given.split(",") if part.strip())
        ids = {*promises(), *(row.id for row in known)}
        for pattern in patterns:
            if not fnmatch.filter(ids, pattern):
                raise SelectionError(f"no row fits {pattern!r}; --alk-list shows them all")
        for mode in words:
            if mode not in MODES:
                raise SelectionError(f"unknown mode {mode!r}, known are {', '.join(MODES)}")
        return cls(patterns, words, _smoke(known) if is_smoke else frozenset())

    @property
    def is_partial(self) -> bool:
        """Whether anything was left out on purpose."""
        return bool(self.rows or self.modes or self.picked)

    def has(self, row: Row, mode: str) -> bool:
        """Whether a case is to be run."""
        if row.is_factory:
            return True
        if self.picked and (row.id, row.name, mode) not in self.picked:
            return False
        return (not self.rows or any(fnmatch.fnmatchcase(row.id, pattern) for pattern in self.rows)) and (
            not self.modes or mode in self.modes
        )


def _smoke(known: Sequence[Row]) -> frozenset[tuple[str, str, str]]:
    least: dict[str, Row] = {}
    for row in known:
        # A machine draws for as long as everything else takes together.
        if not row.is_factory and not row.machine:
            found = least.setdefault(row.id, row)
            if len(row.needs_in(row.modes[0])) < len(found.needs_in(found.modes[0])):
                least[row.id] = row
    return frozenset((row.id, row.name, row.modes[0]) for row in least.values())


def plan(rows: Sequence[Row], column: EngineColumn) -> list[Case]:
    """Give every case of a column, those that cannot be run included, in the order of declaration."""
    return [Case(row, column.name, mode) for row in rows for mode in row.modes]


def settled(
    case: Case,
    column: EngineColumn,
    selection: Selection,
    absent: Mapping[str, str] = platform_needs.ABSENT,
) -> Outcome | None:
    """Give the outcome of a case that is not to be run; None for one that is.

    An omitted row is run all the same: if the engine could express it, the omission is a failure.
    """
    reason = _absence(case, column, absent)
    if reason:
        return Outcome(status=Status.NOT_APPLICABLE, reason=reason)
    found = column.available()
    if isinstance(found, Missing):
        return Outcome(status=Status.NOT_TESTED, reason=f"not available here: {found.advice}")
    if not selection.has(case.row, case.mode):
        return Outcome(status=Status.NOT_TESTED, reason="not selected")
    if case.mode == "process" and "fork" in absent:
        return Outcome(status=Status.NOT_TESTED, reason=absent["fork"])
    return None


def _absence(case: Case, column: EngineColumn, absent: Mapping[str, str]) -> str:
    for need in case.row.needs_in(case.mode):
        capability = column.capabilities[need]
        if isinstance(capability, Unsupported):
            return f"{need}: {capability.reason}"
        if isinstance(capability, Planned):
            return f"{need} is planned: {capability.what}"
    there = next((word for word in case.row.lacks if isinstance(column.capabilities[word], Supported)), None)
    if there:
        return f"{there} is there, and other rows show it"
    # Where nobody can start a thread the engine has nobody to refuse.
    return next((absent[need] for need in case.row.platform if need in absent), "")


def ordered(cases: Sequence[Case], seed: int | None) -> list[Case]:
    """Give the order of running: engine by engine, the factory's rows first, a row after those it depends on.

    A seed shuffles what these rules leave free.
    """
    free = list(cases)
    if seed is not None:
        random.Random(seed).shuffle(free)
    depends = {case.row.id: set[str]() for case in cases}
    for case in cases:
        depends[case.row.id].update(case.row.depends)
    depths: dict[str, int] = {}
    for id in depends:
        _depth(id, depends, depths)
    engines = {engine: place for place, engine in enumerate(dict.fromkeys(case.engine for case in cases))}
    return sorted(free, key=lambda case: (engines[case.engine], not case.row.is_factory, depths[case.row.id]))


def _depth(id: str, depends: dict[str, set[str]], depths: dict[str, int], path: tuple[str, ...] = ()) -> int:
    if id in path:
        raise SelectionError(f"rows depend on each other in a circle: {' → '.join((*path, id))}")
    if id not in depths:
        nexts = depends.get(id, set())
        depths[id] = max((_depth(each, depends, depths, (*path, id)) + 1 for each in nexts), default=0)
    return depths[id]
