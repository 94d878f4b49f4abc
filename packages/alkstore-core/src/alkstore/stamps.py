"""What a row carries from the moment it is enqueued: its stamps, resolved per-call over handle over defaults."""

from datetime import timedelta
from typing import Final, NamedTuple, TypeAlias

from alkstore import numbers

__all__ = ["OUTBOX", "PLAIN", "Duration", "Stamps", "resolve"]

Duration: TypeAlias = int | float | timedelta
"""Seconds, or a timedelta."""


class Stamps(NamedTuple):
    """Durations in microseconds; ``expires`` None for never."""

    visibility_timeout: int
    max_attempts: int
    base_delay: int
    expires: int | None


PLAIN: Final = Stamps(300_000_000, 3, 5_000_000, None)
OUTBOX: Final = Stamps(60_000_000, 5, 5_000_000, None)


def resolve(
    under: Stamps,
    visibility_timeout: Duration | None,
    max_attempts: int | None,
    base_delay: Duration | None,
    expires: Duration | None,
) -> Stamps:
    """Lay what was given over ``under``; None means not given. Rows: Q-02, NAME-09.

    Raises:
        InvalidArgument: A value is not of its domain.
    """
    if visibility_timeout is None and max_attempts is None and base_delay is None and expires is None:
        return under
    return Stamps(
        under.visibility_timeout
        if visibility_timeout is None
        else numbers.duration(visibility_timeout, "visibility_timeout", positive=True),
        under.max_attempts
        if max_attempts is None
        else numbers.integer(max_attempts, "max_attempts", least=1),
        under.base_delay if base_delay is None else numbers.duration(base_delay, "base_delay", least=0),
        under.expires if expires is None else numbers.duration(expires, "expires"),
    )
