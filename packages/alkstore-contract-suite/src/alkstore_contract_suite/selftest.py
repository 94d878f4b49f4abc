"""The self-test: every broken engine of the checkout is tried, and everything that is claimed of it must hold."""

import fnmatch
import logging
import multiprocessing
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from alkstore_contract_suite import broken, platform_needs
from alkstore_contract_suite.broken import MOST_ROWS, Kill, Mutant
from alkstore_contract_suite.contract import promises
from alkstore_contract_suite.row import MODEL_PREFIX, Row

__all__ = ["Selftest", "of_the_checkout"]

Tell: TypeAlias = Callable[[str], None]
"""Takes a line for whoever waits."""

Trial: TypeAlias = tuple[Sequence[Kill], Sequence[Kill]]
"""What was claimed of a mutant, and which rows found it without a claim."""


@dataclass
class Selftest:
    """A run of the self-test.

    Attributes:
        rows: Those that the mutants meet.
        required: Ids of the rows that must each find a fault.
        is_partial: Whether mutants were left out on purpose, so that rows may name others and find none.
        is_full: Whether each mutant meets every row.
        jobs: Processes that share the mutants out; more than one only for the checkout's own rows and mutants.
        tell: What takes each line as soon as it is known.
        kills: What became of each claim, when it has run.
    """

    rows: Sequence[Row]
    honest: Mutant
    mutants: Sequence[Mutant]
    required: Sequence[str]
    seed: int = 0
    is_partial: bool = False
    is_full: bool = False
    jobs: int = 1
    tell: Tell = print
    kills: list[Kill] = field(default_factory=list)

    def run(self) -> int:
        """Try the mutants; gives the exit code, 0 only if each is found as it claims and each row finds one."""
        red = broken.red(self._met(), self.honest, seed=self.seed)
        faults = [f"RED ON THE HONEST ENGINE  {id} {name}: {why}" for (id, name), why in red.items()]
        for mutant, (claims, strays) in self._trials(red):
            self.kills += claims
            for kill in claims:
                if kill.is_killed and not kill.test:
                    self.tell(f"{kill.mutant:<40} {kill.row:<9} {kill.how}")
            for kill in strays:
                self.tell(f"{kill.mutant:<40} {kill.row:<9} not claimed, {kill.how}")
            faults += self._faults(mutant, claims, strays)
        faults += [] if self.is_partial else self._unknown()
        self.tell("")
        for line in faults:
            self.tell(line)
        alone = [] if self.is_partial else self._alone()
        if not self.is_partial:
            self.tell(f"rows without a kill: {', '.join(alone) or 'none'}")
        alive = sum(not kill.is_killed for kill in self.kills)
        self.tell(f"{len(self.mutants)} mutants, {len(self.kills) - alive} claims hold, {alive} do not")
        return 1 if faults or alone or not self.mutants else 0

    def _met(self) -> Sequence[Row]:
        """Give the rows that a mutant meets."""
        names = {mutant.name for mutant in self.mutants}
        ids = {id for mutant in self.mutants for id in mutant.kills}
        return [row for row in self.rows if self.is_full or row.id in ids or not names.isdisjoint(row.kills)]

    def _trials(self, red: Collection[tuple[str, str]]) -> Iterator[tuple[Mutant, Trial]]:
        # A test that is red on the honest engine would "find" every fault there is.
        sound = [row for row in self.rows if (row.id, row.name) not in red]
        if self.jobs == 1 or not platform_needs.CAN_FORK:
            for mutant in self.mutants:
                yield mutant, _try(mutant, sound, self.seed, self.is_full)
            return
        names = [mutant.name for mutant in self.mutants]
        work = partial(_try_by_name, red=[*red], seed=self.seed, is_full=self.is_full)
        with ProcessPoolExecutor(self.jobs, multiprocessing.get_context("fork")) as pool:
            yield from zip(self.mutants, pool.map(work, names), strict=True)

    def _faults(self, mutant: Mutant, claims: Sequence[Kill], strays: Sequence[Kill]) -> Iterator[str]:
        """Say what of a mutant proves nothing."""
        if not claims:
            yield f"NO KILLER  {mutant.name}: it names no row, and no test names it"
        for kill in claims:
            if not kill.is_killed:
                yield f"NOT KILLED  {kill.mutant} by {kill.row} {kill.test}: {kill.how}"
        if self.is_full:
            yield from _width(mutant, {kill.row for kill in (*claims, *strays) if kill.is_killed})

    def _unknown(self) -> Iterator[str]:
        names = {mutant.name for mutant in self.mutants}
        for row in self.rows:
            for name in row.kills:
                if name not in names:
                    yield f"NO SUCH MUTANT  {name}, named by {row.id} {row.name}"

    def _alone(self) -> Sequence[str]:
        found = {kill.row for kill in self.kills if kill.is_killed}
        return [id for id in self.required if id not in found]


def _width(mutant: Mutant, found: Collection[str]) -> Iterator[str]:
    # A model compares everything with everything, and is to find whatever it can.
    ids = sorted(id for id in found if not id.startswith(MODEL_PREFIX))
    if len(ids) > MOST_ROWS and not mutant.wide:
        yield f"TOO WIDE  {mutant.name}: {len(ids)} rows find it, at most {MOST_ROWS}: {', '.join(ids)}"
    if len(ids) <= MOST_ROWS and mutant.wide:
        yield f"NOT WIDE  {mutant.name}: it says {mutant.wide!r}, but only {len(ids)} rows find it: {', '.join(ids)}"


def of_the_checkout(
    rows: Sequence[Row],
    *,
    pattern: str = "*",
    seed: int = 0,
    is_full: bool = False,
    jobs: int = 1,
    tell: Tell = print,
) -> Selftest:
    """Give the self-test of the mutants whose names fit a pattern.

    Raises:
        FileNotFoundError: This is no checkout, and there are no mutants.
    """
    honest, mutants = broken.load()
    wanted = [mutant for mutant in mutants if fnmatch.fnmatchcase(mutant.name, pattern)]
    # Rows about factories are held by broken factories, which are tests.
    required = [*promises(), *dict.fromkeys(row.id for row in rows if row.id.startswith(MODEL_PREFIX))]
    # What is broken on purpose would warn on the terminal, between the lines.
    logging.getLogger("alkstore").addHandler(logging.NullHandler())
    # Hypothesis takes every run before a session of pytest for one that slows its start; here no session begins.
    warnings.filterwarnings("ignore", message="Slow code in plugin")
    return Selftest(
        rows,
        honest,
        wanted,
        required,
        seed=seed,
        is_partial=len(wanted) < len(mutants),
        is_full=is_full,
        jobs=jobs,
        tell=tell,
    )


def _try(mutant: Mutant, rows: Sequence[Row], seed: int, is_full: bool) -> Trial:
    claims = broken.tried(mutant, rows, seed=seed)
    return claims, broken.strays(mutant, rows, seed=seed) if is_full else ()


def _try_by_name(name: str, *, red: Sequence[tuple[str, str]], seed: int, is_full: bool) -> Trial:
    """Try a mutant of the checkout in a fork: neither it nor a row's function could be pickled."""
    from alkstore_contract_suite import rows

    mutant = next(each for each in broken.load()[1] if each.name == name)
    sound = [row for row in rows.registered() if (row.id, row.name) not in red]
    return _try(mutant, sound, seed, is_full)
