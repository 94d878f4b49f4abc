"""The grammar of schedules (``@every <n><unit>``) and the arithmetic of their boundaries."""

import re
from typing import Final, NamedTuple

from alkstore.errors import InvalidArgument, InvalidSpec, show
from alkstore.numbers import MAX_INSTANT, shift
from alkstore.records import NewJob, NewSchedule, ScheduleRecord

__all__ = [
    "CATCH_UP",
    "LONGEST",
    "Due",
    "due_boundaries",
    "fired_job",
    "first_boundary",
    "parse",
    "registered",
]

CATCH_UP: Final = 64
"""How many missed boundaries one pass fires for one schedule before it skips the rest."""

LONGEST: Final = 36_500 * 86_400 * 1_000_000
"""The longest interval in microseconds: 36,500 days."""

_UNITS: Final = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_SPEC: Final = re.compile(r"@every +([1-9][0-9]*)([smhd])")

_LONGEST_DIGITS: Final = len(str(LONGEST // 1_000_000))
"""Digits of the longest interval in seconds. int() of a text of thousands of digits would raise its own ValueError."""


class Due(NamedTuple):
    """The boundaries to fire now, oldest first and at most 64, and the boundary that comes next."""

    boundaries: tuple[int, ...]
    next_at: int


def parse(spec: object) -> int:
    """Read ``@every <n><unit>`` (unit s, m, h or d) as microseconds.

    Raises:
        InvalidArgument: Not a ``str``.
        InvalidSpec: Anything else, or more than 36,500 days.

    Rows: SCHED-02.
    """
    if not isinstance(spec, str):
        raise InvalidArgument(f"schedule spec must be a str, got {show(spec)}")
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise InvalidSpec(spec)
    digits, unit = match.groups()
    if len(digits) > _LONGEST_DIGITS or int(digits) * _UNITS[unit] > LONGEST:
        raise InvalidSpec(spec, "must be at most 36,500 days")
    return int(digits) * _UNITS[unit]


def first_boundary(now: int, every: int, anchor: int | None) -> int:
    """Give the first boundary of a schedule registered now.

    Without an anchor it is now + ``every``; with one it is the first of anchor + k * ``every`` (k >= 0) after now.

    Rows: SCHED-03, NAME-10.
    """
    if anchor is None:
        return shift(now, every)
    if now < anchor:
        return anchor
    return shift(anchor, ((now - anchor) // every + 1) * every)


def registered(rule: NewSchedule, now: int, old: ScheduleRecord | None) -> ScheduleRecord:
    """Give what is to be stored of a schedule that is written now over ``old``: the same interval and anchor keep its grid.

    Rows: SCHED-01, SCHED-03.
    """
    if old is not None and (old.rule.every, old.rule.anchor) == (rule.every, rule.anchor):
        return ScheduleRecord(rule, old.next_fire_at)
    return ScheduleRecord(rule, first_boundary(now, rule.every, rule.anchor))


def due_boundaries(next_fire_at: int, every: int, now: int) -> Due:
    """Say what a pass at ``now`` fires for one schedule, and the first grid point strictly after ``now``.

    Nothing due gives no boundaries and ``next_fire_at`` unchanged.

    Rows: SCHED-06, SCHED-07, CLK-01.
    """
    # A boundary past the calendar's end is stored as MAX_INSTANT. That is no point of the grid, and the one after it
    # would be MAX_INSTANT again: if it could be due it would fire in every pass for ever.
    if now < next_fire_at or next_fire_at >= MAX_INSTANT:
        return Due((), next_fire_at)
    missed = (now - next_fire_at) // every + 1
    fired = tuple(next_fire_at + k * every for k in range(min(missed, CATCH_UP)))
    return Due(fired, shift(next_fire_at, missed * every))


def fired_job(rule: NewSchedule) -> NewJob:
    """Give the job that a schedule puts into its queue at each of its boundaries: ready at once. Rows: SCHED-04."""
    return NewJob(
        rule.queue, rule.payload, b"{}", rule.priority, None, None,
        rule.visibility_timeout, rule.max_attempts, rule.base_delay, rule.expires,
    )  # fmt: skip
