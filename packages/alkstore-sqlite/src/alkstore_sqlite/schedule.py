"""Schedules: rules, their next boundaries, and the jobs that they become."""

import logging
import sqlite3
from collections.abc import Sequence
from typing import Final, NamedTuple

from alkstore import statements
from alkstore.engine import Fired, NewSchedule, ScheduleRecord, Topic, TopicKind
from alkstore.errors import show
from alkstore.interval import Due, due_boundaries, fired_job, first_boundary
from alkstore.numbers import MAX_INSTANT, MIN_INSTANT
from alkstore_sqlite import lock, queue
from alkstore_sqlite.connection import Change, Row, Statement, Steps, Woken

__all__ = ["all", "delete", "fire", "put"]

LOGGER: Final = logging.getLogger("alkstore")

CHANGED: Final = (Woken(Topic(TopicKind.SCHEDULE)),)

NOTHING: Final = Due((), MAX_INSTANT)

_SQL: Final = statements.load("alkstore_sqlite", "schedule")


def put(rule: NewSchedule, now: int) -> Steps[Change[ScheduleRecord]]:
    """Write by name, whole. Same interval and anchor keep next_fire_at, else the grid starts anew."""
    old = yield Statement(_SQL["grid"], (rule.name,))
    if old and old[0][:2] == (rule.every, rule.anchor):
        next_fire_at: int = old[0][2]
    else:
        next_fire_at = first_boundary(now, rule.every, rule.anchor)
    yield Statement(_SQL["delete"], (rule.name,))
    yield Statement(_SQL["insert"], (*rule, next_fire_at))
    return Change(ScheduleRecord(rule, next_fire_at), CHANGED)


def delete(name: str) -> Steps[Change[bool]]:
    """Delete by name. True if it was there."""
    was_there = bool((yield Statement(_SQL["delete"], (name,))))
    return Change(was_there, CHANGED if was_there else ())


def fire(lease: tuple[str, int] | None, now: int) -> Steps[Change[Fired]]:
    """Fire what is due: nothing if ``lease`` (name and fence) is not live."""
    if lease is not None and not (yield from lock.is_live(*lease, now)):
        return Change(Fired(0, (yield from _next_at(MIN_INSTANT - 1)), False))
    fires = [
        _Fire(record.rule, due.boundaries, due.next_at)
        for record in _records((yield Statement(_SQL["due"], (now,))))
        if (due := _due(record, now)).boundaries
    ]
    fired, woken = yield from _land(fires, now)
    # What is still due now cannot fire: as the next instant it would keep the runner from ever sleeping.
    # (The last instant of the calendar is never due, even when it is now.)
    return Change(Fired(fired, (yield from _next_at(min(now, MAX_INSTANT - 1))), True), woken)


class _Fire(NamedTuple):
    """What one schedule fires, and its next boundary."""

    rule: NewSchedule
    boundaries: Sequence[int]
    next_at: int


def _land(fires: Sequence[_Fire], now: int) -> Steps[tuple[int, Sequence[Woken]]]:
    """Enqueue and advance all together, or one by one where one of them cannot: it must not hold back the others."""
    try:
        return (yield from _land_together(fires, now))
    except sqlite3.Error:
        if len(fires) == 1:
            LOGGER.exception("scheduler: schedule %s cannot fire", show(fires[0].rule.name))
            return 0, ()
    count = 0
    woken: list[Woken] = []
    for fire in fires:
        fired, topics = yield from _land((fire,), now)
        count += fired
        woken += topics
    return count, woken


def _land_together(fires: Sequence[_Fire], now: int) -> Steps[tuple[int, Sequence[Woken]]]:
    if not fires:
        return 0, ()
    yield Statement("SAVEPOINT fires")
    jobs = [fired_job(fire.rule) for fire in fires for _ in fire.boundaries]
    boundaries = [boundary for fire in fires for boundary in fire.boundaries]
    try:
        change = yield from queue.insert(jobs, now, boundaries)
        yield Statement(_SQL["advance"], [(fire.rule.name, fire.next_at) for fire in fires], True)
    except sqlite3.Error:
        # Fails as well, and so for all of them, where SQLite has given up the whole transaction.
        yield Statement("ROLLBACK TO fires")
        yield Statement("RELEASE fires")
        raise
    yield Statement("RELEASE fires")
    return len(jobs), change.woken


def all() -> Steps[list[ScheduleRecord]]:
    """Give all, sorted by name."""
    return _records((yield Statement(_SQL["all"])))


def _records(rows: Sequence[Row]) -> list[ScheduleRecord]:
    # Not by ORDER BY: a file in UTF-16 has another order of names.
    records = [ScheduleRecord(NewSchedule(*row[:-1]), row[-1]) for row in rows]
    return sorted(records, key=lambda record: record.rule.name)


def _due(record: ScheduleRecord, now: int) -> Due:
    """Say what a schedule fires; nothing, logged, if that cannot be said."""
    try:
        if record.rule.every <= 0:
            raise ValueError(f"stored interval must be positive, got {record.rule.every}; schedule it again")
        return due_boundaries(record.next_fire_at, record.rule.every, now)
    except Exception:
        # Whatever it is, it is this schedule's: the boundaries of the others must not be lost to it.
        LOGGER.exception("scheduler: schedule %s cannot fire", show(record.rule.name))
        return NOTHING


def _next_at(after: int) -> Steps[int | None]:
    ((next_at,),) = yield Statement(_SQL["next_at"], (after,))
    first: int | None = next_at
    return first
