"""Schedules: a grid each, its next boundary, and what one pass fires. Rows: SCHED-01 to SCHED-07."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from alkstore_contract_suite.model.allowed import Allowed, just
from alkstore_contract_suite.model.row import NewJob

__all__ = ["Fire", "Schedule", "Schedules"]

AT_ONCE: Final = 64
"""Missed boundaries that one pass catches up on (SCHED-06)."""


class Fire(NamedTuple):
    """A job that a pass is to enqueue."""

    job: NewJob
    boundary: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """One schedule; ``every`` in microseconds."""

    name: str
    every: int
    job: NewJob
    anchor: int | None
    next_at: int

    def due(self, now: int) -> list[Fire]:
        """Give what a pass fires: the oldest missed boundaries."""
        missed = (now - self.next_at) // self.every + 1 if now >= self.next_at else 0
        return [Fire(self.job, self.next_at + k * self.every) for k in range(min(missed, AT_ONCE))]

    def after(self, now: int) -> "Schedule":
        """Give it as a pass leaves it: at the first point of its grid after now."""
        missed = (now - self.next_at) // self.every + 1 if now >= self.next_at else 0
        return replace(self, next_at=self.next_at + missed * self.every)


class Schedules:
    """Every schedule of one storage."""

    def __init__(self) -> None:
        self._all: dict[str, Schedule] = {}

    def put(self, now: int, name: str, every: int, job: NewJob, anchor: int | None) -> Allowed:
        """An upsert; it gives the next boundary. The same interval and anchor keep the grid, others begin it anew."""
        old = self._all.get(name)
        if old is not None and (old.every, old.anchor) == (every, anchor):
            next_at = old.next_at
        elif anchor is None:
            next_at = now + every
        else:
            # The first point of the grid after now, and not before the anchor.
            next_at = anchor if now < anchor else anchor + ((now - anchor) // every + 1) * every
        return just(next_at, lambda: self._put(Schedule(name, every, job, anchor, next_at)))

    def _put(self, schedule: Schedule) -> None:
        self._all[schedule.name] = schedule

    def remove(self, name: str) -> Allowed:
        """True once."""
        is_there = name in self._all
        return just(is_there, lambda: self._all.pop(name, None))

    def due(self, now: int) -> Sequence[Sequence[Fire]]:
        """Give what a pass fires, by schedule; each one's in the order of boundaries."""
        return [fires for each in self._all.values() if (fires := each.due(now))]

    def passed(self, now: int) -> None:
        """Go on as after a pass."""
        self._all = {name: each.after(now) for name, each in self._all.items()}

    def look(self) -> list[tuple[str, int, str, object, int | None, int]]:
        """Give (name, every, queue, payload, anchor, next_at) by name."""
        return [
            (name, each.every, each.job.queue, each.job.payload, each.anchor, each.next_at)
            for name, each in sorted(self._all.items())
        ]

    def edges(self) -> set[int]:
        """Give the boundaries."""
        return {each.next_at for each in self._all.values()}
