"""What became of a case, and of a cell of the matrix."""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self

__all__ = ["Outcome", "Status", "combined"]


class Status(enum.StrEnum):
    """What a cell of the matrix shows; each has exactly one."""

    PASS = "PASS"
    FAIL = "FAIL"
    XFAIL = "XFAIL"
    XPASS = "XPASS"
    NOT_APPLICABLE = "N/A"
    BLOCKED = "BLOCKED"
    NOT_TESTED = "NOT_TESTED"
    INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one case.

    Attributes:
        reason: Why, in one line; empty for a pass.
        missing: The engine's method that is not implemented, if that is why.
        promise, expected, observed: What a failed assertion named; empty for any other error.
        traceback: Where another error came from, innermost frame last.
        timeline: What had happened up to the failure.
        trace: What a machine did, as text for ``--alk-replay``.
        choices: Which of several allowed results the engine took, by promise.
        seconds: Real time.
    """

    status: Status
    reason: str = ""
    missing: str = ""
    promise: str = ""
    expected: str = ""
    observed: str = ""
    traceback: tuple[str, ...] = ()
    timeline: tuple[str, ...] = ()
    trace: str = ""
    choices: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Give plain values, for a report or for another process."""
        return {**asdict(self), "status": self.status.value}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read what `as_json` gave."""
        lists = {name: tuple(values[name]) for name in ("traceback", "timeline")}
        return cls(**{**values, **lists, "status": Status(values["status"])})


WORST_FIRST: Final = (
    Status.FAIL,
    Status.BLOCKED,
    Status.INCONCLUSIVE,
    Status.NOT_TESTED,
    Status.PASS,
    Status.NOT_APPLICABLE,
)


def combined(outcomes: Iterable[Outcome]) -> Outcome:
    """Give the outcome that speaks for a cell with several functions: the worst, N/A only if all of them are."""
    # A broken promise is news to who builds an engine, a method still to be written is not.
    return min(outcomes, key=lambda outcome: (WORST_FIRST.index(outcome.status), bool(outcome.missing)))
