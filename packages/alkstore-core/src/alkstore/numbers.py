"""Instants, durations, integers and extents: checked and turned into integer microseconds once, here."""

import datetime as dt
import math
from typing import Final

from alkstore.errors import InvalidArgument, show

__all__ = [
    "MAX_INSTANT",
    "MAX_INT64",
    "MIN_INSTANT",
    "MIN_INT64",
    "duration",
    "extent",
    "instant",
    "integer",
    "shift",
    "timeout",
    "to_datetime",
    "to_timedelta",
]

MIN_INT64: Final = -(2**63)
MAX_INT64: Final = 2**63 - 1

MIN_INSTANT: Final = -62_135_596_800_000_000
"""0001-01-01T00:00:00Z in microseconds since 1970: the first instant that a ``datetime`` can show."""

MAX_INSTANT: Final = 253_402_300_799_999_999
"""9999-12-31T23:59:59.999999Z in microseconds since 1970: the last instant that a ``datetime`` can show."""

_SECOND: Final = 1_000_000
_DAY_SECONDS: Final = 86_400
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_ORDINAL: Final = _EPOCH.toordinal()


def _in_calendar(instant: int) -> int:
    return min(max(instant, MIN_INSTANT), MAX_INSTANT)


def _in_64_bits(number: int) -> int:
    return min(max(number, MIN_INT64), MAX_INT64)


def shift(instant: int, delta: int) -> int:
    """Add a duration to an instant; the sum stays within the calendar. Rows: NAME-10."""
    moved = instant + delta
    return moved if MIN_INSTANT <= moved <= MAX_INSTANT else _in_calendar(moved)


def integer(value: object, what: str, *, least: int | None = None) -> int:
    """Check an integer of 64 bits.

    Raises:
        InvalidArgument: A bool, anything but an int, outside 64 bits, or below ``least``.

    Rows: NAME-09, NAME-11.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgument(f"{what} must be an int, got {show(value)}")
    if not MIN_INT64 <= value <= MAX_INT64:
        raise InvalidArgument(f"{what} must fit into 64 bits, got {show(value)}")
    if least is not None and value < least:
        raise InvalidArgument(f"{what} must be at least {least}, got {show(value)}")
    return int(value)


def extent(value: object, what: str) -> int:
    """Check how many things are asked for; what is not positive is 0, which asks for none.

    Raises:
        InvalidArgument: As `integer`.

    Rows: NAME-08, NAME-11.
    """
    return max(integer(value, what), 0)


def duration(value: object, what: str, *, positive: bool = False, least: int | None = None) -> int:
    """Turn seconds (int, float) or a timedelta into microseconds: the nearest, half to even, saturated to 64 bits.

    Args:
        positive: Refuse what is not at least one microsecond.
        least: Refuse what is less, in microseconds.

    Raises:
        InvalidArgument: Another type, a bool, a float that is not finite, an int outside 64 bits, or too little.

    Rows: NAME-09, NAME-10, NAME-11.
    """
    microseconds = _in_64_bits(_microseconds(value, what))
    if positive and microseconds <= 0:
        raise InvalidArgument(f"{what} must be positive, one microsecond or more, got {show(value)}")
    if least is not None and microseconds < least:
        raise InvalidArgument(f"{what} must be at least {least / _SECOND:g} s, got {show(value)}")
    return microseconds


def _microseconds(value: object, what: str) -> int:
    if isinstance(value, dt.timedelta):
        return (value.days * _DAY_SECONDS + value.seconds) * _SECOND + value.microseconds
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidArgument(f"{what} must be finite, got {show(value)}")
        return _nearest(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgument(f"{what} must be seconds (int, float) or a timedelta, got {show(value)}")
    return integer(value, what) * _SECOND


def _nearest(seconds: float) -> int:
    # In floats the product would be rounded once before it is rounded to an integer: off by one near a half.
    numerator, denominator = seconds.as_integer_ratio()
    whole, rest = divmod(numerator * _SECOND, denominator)
    if 2 * rest > denominator or (2 * rest == denominator and whole % 2):
        whole += 1
    return whole


def instant(value: object, what: str) -> int:
    """Turn an aware datetime into microseconds since 1970, exactly, clamped to the calendar in UTC.

    Raises:
        InvalidArgument: Not a datetime, or a naive one.

    Rows: NAME-10, NAME-11.
    """
    if not isinstance(value, dt.datetime):
        raise InvalidArgument(f"{what} must be an aware datetime, got {show(value)}")
    offset = value.utcoffset()
    if offset is None:
        raise InvalidArgument(f"{what} must be aware, got naive {show(value)}; give it a tzinfo")
    # Integers, because value.astimezone(UTC) overflows where the offset leads out of the calendar.
    days = value.toordinal() - _EPOCH_ORDINAL
    seconds = days * _DAY_SECONDS + value.hour * 3_600 + value.minute * 60 + value.second
    return _in_calendar(seconds * _SECOND + value.microsecond - _microseconds(offset, what))


def timeout(value: object, what: str) -> float | None:
    """Turn a limit of waiting into seconds of the event loop's time.

    Returns:
        None for ever, 0.0 (one immediate try) for what is not positive, else seconds.

    Raises:
        InvalidArgument: As `duration`.

    Rows: NAME-11.
    """
    return None if value is None else max(duration(value, what), 0) / _SECOND


def to_datetime(instant: int) -> dt.datetime:
    """Give an instant as an aware UTC datetime, clamped to the calendar."""
    return _EPOCH + dt.timedelta(microseconds=_in_calendar(instant))


def to_timedelta(duration: int) -> dt.timedelta:
    """Give a duration of at most 64 bits of microseconds as a timedelta, exactly."""
    return dt.timedelta(microseconds=duration)
