"""How often the watcher looks at the file: at once when there is news, seldom when there is none, never all the time.

State model. A look finds that nothing moved, that something moved which concerns nobody here, or something which does. A
*hint* says that somebody wrote; what was written can be seen only later, after a sync perhaps, so a hint that is not
borne out is followed by a *chase*: looks at growing distances, until one finds it or all have been spent. Without hints
the file is polled. A look that found a movement has read a mark of everything that is waited for, so it is followed by a
*rest* in which hints do not count.
"""

from typing import Final, NamedTuple

__all__ = ["SAFETY", "Pace", "Wait"]

SAFETY: Final = 1.0
"""Seconds between looks while no hint comes: one may have been missed."""

CHASE: Final = (0.0002,) * 5 + (0.001,) * 5 + tuple(0.002 * 2**step for step in range(9))
"""Seconds before each look after a hint. Without a sync a commit is seen within 0.1 ms of its hint; the rest of it is
for slow disks, where it comes late by no more than the sync took."""

CHASE_AGAIN: Final = 5
CHASE_ON: Final = 10
"""Where in it to go on after a further hint, and after a look that found something: the hint of a second commit may have
come before the first one was seen. From there on a hint begins it anew."""

REST: Final = 0.001
REST_SHARE: Final = 10
"""Shortest rest in seconds after news, and the part of the time (1 in 11) that looks with news may take."""

IDLE_REST: Final = 0.0025
IDLE_REST_SHARE: Final = 30
"""The same after movements that concern nobody here: other people's commits are not worth a core."""

LONGEST_REST: Final = 0.25
"""Seconds: with thousands of names a look is long, and a wake may not wait for ever."""

POLL: Final = 0.001
IDLE_POLL: Final = 0.025
"""Seconds between looks without hints, while something moves and while nothing does (0.6 % of a core)."""

ACTIVE: Final = 0.25
"""Seconds after a movement for which polling expects another one."""


class Wait(NamedTuple):
    """What to do before the next look.

    ``is_open`` says that a hint ends it; ``is_safety`` that nothing is expected, so what the next look finds was missed.
    """

    seconds: float
    is_open: bool
    is_safety: bool = False


class Pace:
    """The distances between one watcher's looks."""

    def __init__(self) -> None:
        self.has_hints = False
        self._rest = 0.0
        self._chase = CHASE_ON
        self._active_until = 0.0

    def note_hint(self) -> None:
        """Somebody wrote."""
        # A long transaction writes again and again before it commits: that is no reason to look all the time.
        self._chase = min(self._chase, CHASE_AGAIN) if self._chase < CHASE_ON else 0

    def note_still(self) -> None:
        """A look found that nothing moved."""
        self._chase = min(self._chase + 1, len(CHASE))

    def note_moved(self, now: float, cost: float, *, concerns: bool) -> None:
        """A look found that something moved, and took so many seconds of processor time."""
        rest, share = (REST, REST_SHARE) if concerns else (IDLE_REST, IDLE_REST_SHARE)
        self._rest = min(max(rest, share * cost), LONGEST_REST)
        self._chase = CHASE_ON
        self._active_until = now + ACTIVE

    def note_busy(self) -> None:
        """A look could not be made because somebody holds the whole file."""
        self._rest = IDLE_REST
        self._chase = min(self._chase, CHASE_ON)

    def next(self, now: float) -> Wait:
        """Say what to wait for now."""
        if self._rest:
            rest, self._rest = self._rest, 0.0
            return Wait(rest, is_open=False)
        if not self.has_hints:
            return Wait(POLL if now < self._active_until else IDLE_POLL, is_open=False)
        if self._chase < len(CHASE):
            return Wait(CHASE[self._chase], is_open=True)
        return Wait(SAFETY, is_open=True, is_safety=True)
