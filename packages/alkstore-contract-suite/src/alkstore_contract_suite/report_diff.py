"""What got better and what got worse from one report to another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from alkstore_contract_suite.outcome import Status
from alkstore_contract_suite.report_reading import headings, identity
from alkstore_contract_suite.report_values import CellValue, EngineValue, Report
from alkstore_contract_suite.verdict import Verdict

__all__ = ["Difference", "difference"]

_VERDICTS: Final = (
    Verdict.CONFORMANT,
    Verdict.INCOMPLETE,
    Verdict.MISSING,
    Verdict.NOT_CONFORMANT,
    Verdict.NOT_TRUSTWORTHY,
)
"""Best first: what was not run may be good."""

_STATUSES: Final = {
    Status.PASS: 0,
    Status.XPASS: 1,
    Status.NOT_APPLICABLE: 1,
    Status.NOT_TESTED: 2,
    Status.INCONCLUSIVE: 3,
    Status.BLOCKED: 4,
    Status.XFAIL: 4,
    Status.FAIL: 4,
}
"""Best first. That a failure became one that is listed, or that something before it fails now, makes nothing better."""

_Cells = Mapping[tuple[str, str], CellValue]


@dataclass(frozen=True, slots=True)
class Difference:
    """Lines for people: what is worse and better, and what only one of the reports has."""

    worse: list[str] = field(default_factory=list)
    better: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Give all of it, the worse first."""
        parts = (("worse", self.worse), ("better", self.better), ("other", self.other))
        shown = [f"{word}  {line}" for word, lines in parts for line in lines]
        return [*shown, f"{len(self.worse)} worse, {len(self.better)} better"]


def difference(old: Report, new: Report) -> Difference:
    """Compare engine by engine and cell by cell.

    An engine of one report is that of the other which is the same in most of name, storage, platform, Python and version.
    One that is gone is worse; a row that the old suite did not have is worse if the verdict is.
    """
    found = Difference()
    pairs, gone, come = _paired(old.engines, new.engines)
    names = dict(zip(map(id, new.engines), headings(new.engines), strict=True))
    for before, after in pairs:
        _compare(names[id(after)], before, after, found)
    found.worse.extend(f"{' '.join(filter(None, identity(engine)))}: no longer there" for engine in gone)
    found.other.extend(f"{names[id(engine)]}: new, {engine.verdict}" for engine in come)
    return found


def _paired(
    old: Sequence[EngineValue], new: Sequence[EngineValue]
) -> tuple[list[tuple[EngineValue, EngineValue]], list[EngineValue], list[EngineValue]]:
    left, right = list(old), list(new)
    pairs: list[tuple[EngineValue, EngineValue]] = []
    alike = [(_likeness(one, other), one, other) for one in old for other in new if one.name == other.name]
    for _, one, other in sorted(alike, key=lambda pair: pair[0], reverse=True):
        if any(one is each for each in left) and any(other is each for each in right):
            pairs.append((one, other))
            left = [each for each in left if each is not one]
            right = [each for each in right if each is not other]
    order = {id(engine): place for place, engine in enumerate(new)}
    return sorted(pairs, key=lambda pair: order[id(pair[1])]), left, right


def _likeness(one: EngineValue, other: EngineValue) -> tuple[bool, ...]:
    """Say in what two runs of an engine are the same, what matters most first: a version is what changes."""
    return (
        one.storage == other.storage,
        one.run.platform == other.run.platform,
        _series(one) == _series(other),
        one.run.python == other.run.python,
        one.version == other.version,
    )


def _series(engine: EngineValue) -> list[str]:
    return engine.run.python.split(".")[:2]


def _compare(name: str, old: EngineValue, new: EngineValue, found: Difference) -> None:
    ranks = _VERDICTS.index(old.verdict), _VERDICTS.index(new.verdict)
    if ranks[0] != ranks[1]:
        _sort(ranks, f"{name}: {old.verdict} → {new.verdict}", found)
    before, after = _cells(old), _cells(new)
    for key, cell in after.items():
        where = f"{name}: {cell.row} {cell.mode}"
        reason = f": {cell.reason}" if cell.reason else ""
        was = before.get(key)
        if was is None:
            found.other.append(f"{where} is new, {cell.status}{reason}")
        elif was.status is not cell.status:
            _sort(
                (_STATUSES[was.status], _STATUSES[cell.status]),
                f"{where} {was.status} → {cell.status}{reason}",
                found,
            )
    found.other.extend(f"{name}: {row} {mode} is gone" for row, mode in before if (row, mode) not in after)


def _sort(ranks: tuple[int, int], line: str, found: Difference) -> None:
    old, new = ranks
    (found.worse if new > old else found.better if new < old else found.other).append(line)


def _cells(engine: EngineValue) -> _Cells:
    return {(cell.row, cell.mode): cell for cell in engine.cells}
