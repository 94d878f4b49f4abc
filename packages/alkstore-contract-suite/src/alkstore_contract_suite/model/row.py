"""A job as the model knows it, and what a store may show of it. Rows: Q-01 to Q-06, Q-08, Q-11, Q-13, CLK-01."""

from dataclasses import dataclass
from typing import Final, NamedTuple

__all__ = ["DEAD", "PENDING", "PROCESSING", "Claim", "Like", "NewJob", "Row", "Seen", "Span"]

PENDING: Final = "pending"
PROCESSING: Final = "processing"
DEAD: Final = "dead"


class Like(NamedTuple):
    """A text of an error that an exception made: only that this is in it is known."""

    part: str


class Span(NamedTuple):
    """Instants among which an engine may choose, both ends included."""

    least: int
    most: int


class NewJob(NamedTuple):
    """What an enqueue was given, its options resolved; durations in microseconds."""

    queue: str
    payload: object
    priority: int = 0
    delay: int | None = None
    run_at: int | None = None
    visibility: int = 300_000_000
    max_attempts: int = 3
    base_delay: int = 5_000_000
    expires: int | None = None


class Seen(NamedTuple):
    """A job as a store shows it; what is None is shown as None."""

    id: int
    queue: str
    payload: object
    state: str
    priority: int
    run_at: int
    expires_at: int | None
    attempts: int
    max_attempts: int
    visibility: int
    base_delay: int
    worker: str | None
    deadline: int | None
    created_at: int
    scheduled_for: int | None
    retry_error: str | None
    last_error: str | None
    died_at: int | None


@dataclass(frozen=True, slots=True)
class Row:
    """A job as the model knows it; ``claim`` tells its claims apart."""

    id: int
    new: NewJob
    run_at: int | Span
    expires_at: int | None
    created_at: int
    scheduled_for: int | None = None
    state: str = PENDING
    attempts: int = 0
    worker: str | None = None
    deadline: int | None = None
    claim: int = 0
    retry_error: str | Like | None = None
    last_error: str | Like | None = None
    died_at: int | None = None

    def is_expired(self, now: int) -> bool:
        return self.expires_at is not None and now >= self.expires_at

    def has_lapsed(self, now: int) -> bool:
        return self.state == PROCESSING and self.deadline is not None and now >= self.deadline

    def is_used_up(self) -> bool:
        return self.attempts >= self.new.max_attempts

    def is_claimable(self, now: int) -> bool:
        """Whether a claim could take it. A claim made before the clock was set back may lapse before its run_at."""
        free = self.state == PENDING or (self.has_lapsed(now) and not self.is_used_up())
        return free and now >= self.due and not self.is_expired(now)

    @property
    def due(self) -> int:
        return self.run_at.most if isinstance(self.run_at, Span) else self.run_at

    def differs(self, seen: Seen) -> list[str]:
        """Give the names of what a store shows wrongly. Of a dead row the contract keeps the stamps, and no place in time."""
        new = self.new
        found = {
            "id": self.id, "queue": new.queue, "payload": new.payload, "state": self.state, "priority": new.priority,
            "expires_at": self.expires_at, "attempts": self.attempts, "max_attempts": new.max_attempts,
            "visibility": new.visibility, "base_delay": new.base_delay, "created_at": self.created_at,
            "scheduled_for": self.scheduled_for, "last_error": self.last_error, "died_at": self.died_at,
        }  # fmt: skip
        if self.state == PROCESSING:
            found |= {"worker": self.worker, "deadline": self.deadline}
        if self.state != DEAD:
            found["retry_error"] = self.retry_error
        wrong = [name for name, value in found.items() if not _is(getattr(seen, name), value)]
        return wrong if self.state == DEAD or self._may_run_at(seen.run_at) else [*wrong, "run_at"]

    def __str__(self) -> str:
        facts = [self.state, f"attempts {self.attempts}", f"run_at {self.run_at}"]
        names = ("deadline", "expires_at", "died_at", "retry_error", "last_error")
        facts += [f"{name} {value}" for name in names if (value := getattr(self, name)) is not None]
        return f"job {self.id} ({', '.join(facts)})"

    def _may_run_at(self, run_at: int) -> bool:
        span = self.run_at if isinstance(self.run_at, Span) else Span(self.run_at, self.run_at)
        return span.least <= run_at <= span.most


@dataclass(slots=True)
class Claim:
    """A handle: which claim of which job it is of, and whether its one settle was used."""

    id: int
    queue: str
    claim: int
    is_consumed: bool = False


def _is(seen: object, wanted: object) -> bool:
    if isinstance(wanted, Like):
        return isinstance(seen, str) and wanted.part in seen
    return seen == wanted
