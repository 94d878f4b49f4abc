"""How a handler tells what becomes of its job, and what a worker tells of its work."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from alkstore import numbers
from alkstore.errors import InvalidArgument, show
from alkstore.job import ACKED_IN_TX
from alkstore.stamps import Duration

__all__ = ["Answer", "Counts", "Ending", "Fail", "Retry", "Tally"]


class _Verdict(Exception):  # what a handler asks for, and no error of anybody's
    """Raised or returned by a handler, alike."""

    def __init__(self, reason: str | BaseException | None = None) -> None:
        if reason is not None and not isinstance(reason, (str, BaseException)):
            raise InvalidArgument(
                f"reason of {type(self).__name__} must be a str, an exception or None, got {show(reason)}"
            )
        super().__init__(*(() if reason is None else (reason,)))
        self._reason = reason

    @property
    def reason(self) -> str | BaseException | None:
        """Why: as given, or else the exception that it was raised from."""
        return self.__cause__ if self._reason is None else self._reason


class Retry(_Verdict):
    """Try the job again, ``delay`` seconds from now or as its curve says; on its last attempt it goes dead.

    ``raise Retry("the mail server is busy", delay=30)`` and ``return Retry(…)`` do the same.

    Args:
        reason: A text, or an exception whose traceback is kept; what it is raised from by default.
        delay: Seconds or a timedelta.

    Raises:
        InvalidArgument: An argument is not of its domain.

    Rows: Q-11, Q-12.
    """

    def __init__(self, reason: str | BaseException | None = None, *, delay: Duration | None = None) -> None:
        super().__init__(reason)
        if delay is not None:
            numbers.duration(delay, "delay")
        self.delay = delay


class Fail(_Verdict):
    """Give the job up: it goes dead at once, with the reason, however many attempts it has left. Rows: Q-13."""


class Ending(Enum):
    """What becomes of a job whose handler gave no verdict."""

    DONE = auto()
    GIVEN_BACK = auto()
    LOST = auto()


Answer = Ending | Retry | Fail


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of the jobs that a worker claimed.

    Attributes:
        done: Acked.
        retried: Put back, to be tried again after a delay.
        dead: Gone dead: failed, undecodable, of no known kind, or out of attempts.
        released: Given back with their attempt restored: claimed when the worker stopped.
        lost: The claim had ended before the outcome landed, so they may run again.
    """

    done: int = 0
    retried: int = 0
    dead: int = 0
    released: int = 0
    lost: int = 0

    @property
    def total(self) -> int:
        """How many jobs were claimed."""
        return self.done + self.retried + self.dead + self.released + self.lost


class Tally:
    """Counts while the work goes on."""

    __slots__ = ("dead", "done", "lost", "released", "retried")

    def __init__(self) -> None:
        self.done = self.retried = self.dead = self.released = self.lost = 0

    def counts(self) -> Counts:
        """Give what was counted until now."""
        return Counts(self.done, self.retried, self.dead, self.released, self.lost)

    def count(self, became: str) -> None:
        """Count one job: by what became of it, or by what its handler did with the handle."""
        name = BY_HANDLE.get(became, became)
        setattr(self, name, getattr(self, name) + 1)


BY_HANDLE: Final = {"acked": "done", ACKED_IN_TX: "done", "failed": "dead"}
"""What a handle says of its end, where the counts say it otherwise."""
