"""The records that cross the seam between core and an engine: what is inserted, changed, read and waited for.

Units: an instant is an ``int`` of microseconds since 1970-01-01T00:00:00Z, a duration an ``int`` of microseconds.
"""

import enum
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

__all__ = [
    "Ack",
    "Cancel",
    "Claimed",
    "EventRecord",
    "EventRow",
    "Fail",
    "Fired",
    "Heartbeat",
    "JobCounts",
    "JobFilter",
    "JobRecord",
    "JobState",
    "LockRecord",
    "Names",
    "NewEvent",
    "NewJob",
    "NewSchedule",
    "NewWake",
    "OffsetSave",
    "Redrive",
    "Release",
    "Retry",
    "ScheduleRecord",
    "Settle",
    "Signal",
    "Taken",
    "Topic",
    "TopicKind",
]


# ---------------------------------------------------------------- queue: records and changes


class JobState(enum.Enum):
    """Where a job stands; an acked job has no row."""

    PENDING = "pending"
    PROCESSING = "processing"
    DEAD = "dead"


class NewJob(NamedTuple):
    """A job to insert, its stamps resolved. ``delay`` beats ``run_at``; both None means ready now.

    The engine stores ``run_at = now + delay``, or the instant given, and ``expires_at = now + expires``.
    """

    queue: str
    payload: bytes
    headers: bytes
    priority: int
    delay: int | None
    run_at: int | None
    visibility_timeout: int
    max_attempts: int
    base_delay: int
    expires: int | None


class JobRecord(NamedTuple):
    """A job as stored. ``token`` is the live claim's, unique for every claim of every job; None when unclaimed."""

    id: int
    queue: str
    payload: bytes
    headers: bytes
    state: JobState
    priority: int
    run_at: int
    expires_at: int | None
    attempts: int
    max_attempts: int
    visibility_timeout: int
    base_delay: int
    worker_id: str | None
    deadline: int | None
    created_at: int
    scheduled_for: int | None
    retry_error: str | None
    last_error: str | None
    died_at: int | None
    token: int | None


class JobFilter(NamedTuple):
    """Which jobs of one queue to read, in id order: those of ``ids``, else all with id > ``after``; then the rest applies.

    ``error`` is a substring of ``last_error`` or ``retry_error``.
    """

    ids: tuple[int, ...] | None = None
    state: JobState | None = None
    error: str | None = None
    after: int = 0
    limit: int = 100


class Claimed(NamedTuple):
    """What a claim took, in claim order, and when it is worth asking again.

    ``next_at`` is the earliest instant at which a row that is not claimable now becomes claimable by itself (a run_at,
    a deadline); None if there is none. It matters only when fewer jobs came back than were asked for. An earlier one costs
    a claim that takes nothing.

    ``reclaimed`` is how many of ``jobs`` had a claim that lapsed, where the engine tells (`Traits.tells_reclaims`).
    """

    jobs: Sequence[JobRecord]
    next_at: int | None
    reclaimed: int = 0


class Ack(NamedTuple):
    """Done: delete the row."""

    queue: str
    id: int
    token: int


class Retry(NamedTuple):
    """Again at now + ``delay``: PENDING, attempts kept, ``retry_error`` set. Core never sends it on the last attempt."""

    queue: str
    id: int
    token: int
    delay: int
    error: str | None


class Fail(NamedTuple):
    """Never again: DEAD with ``last_error`` and ``died_at``; ``retry_error`` is cleared."""

    queue: str
    id: int
    token: int
    error: str


class Release(NamedTuple):
    """Not tried: PENDING with run_at unchanged and attempts as before the claim."""

    queue: str
    id: int
    token: int


class Heartbeat(NamedTuple):
    """Longer: deadline = now + ``window``."""

    queue: str
    id: int
    token: int
    window: int


class Cancel(NamedTuple):
    """Remove a PENDING row of this queue."""

    queue: str
    id: int


class Redrive(NamedTuple):
    """Make a DEAD row of this queue PENDING: run_at now, attempts 0, no expiry, no errors."""

    queue: str
    id: int


Settle = Ack | Retry | Fail | Release | Heartbeat | Cancel | Redrive


class JobCounts(NamedTuple):
    """The rows of one queue by what a claim would make of them; ``oldest_ready_age`` is a duration."""

    ready: int
    delayed: int
    processing: int
    stale: int
    dead: int
    oldest_ready_age: int | None


# ---------------------------------------------------------------- stream, wake, lock, schedule: records


class NewEvent(NamedTuple):
    """An event to append."""

    stream: str
    key: str | None
    payload: bytes
    headers: bytes


class EventRecord(NamedTuple):
    """An event as stored."""

    offset: int
    stream: str
    key: str | None
    payload: bytes
    headers: bytes
    created_at: int


EventRow: TypeAlias = tuple[int, str | None, bytes, bytes, int]
"""An event of a stream that is known: its offset, key, payload, headers and created_at."""


class OffsetSave(NamedTuple):
    """What a compare-and-set of a position found, and whether it saved."""

    found: int
    saved: bool


class NewWake(NamedTuple):
    """A notify: the channel, and what a listener outside alkstore is to see (None: nothing)."""

    channel: str
    payload: bytes | None


class Taken(NamedTuple):
    """The answer of `take_lock`: our ``fence``, or None with the holder's ``expires_at``."""

    fence: int | None
    expires_at: int


class LockRecord(NamedTuple):
    """A lock that is held now."""

    name: str
    fence: int
    expires_at: int


class NewSchedule(NamedTuple):
    """A schedule to write, its stamps resolved; ``every`` is the interval that ``spec`` says."""

    name: str
    spec: str
    every: int
    anchor: int | None
    queue: str
    payload: bytes
    priority: int
    visibility_timeout: int
    max_attempts: int
    base_delay: int
    expires: int | None


class ScheduleRecord(NamedTuple):
    """A schedule as stored."""

    rule: NewSchedule
    next_fire_at: int


class Fired(NamedTuple):
    """What one pass fired, and the earliest boundary still ahead (None: no schedules that can fire).

    ``led`` is False if a fence was given and is not live: then nothing was fired.
    """

    jobs: int
    next_at: int | None
    led: bool


class Names(NamedTuple):
    """The names that have rows, each sorted; ``queues`` holds the outboxes' backing queues too."""

    queues: Sequence[str]
    streams: Sequence[str]


# ---------------------------------------------------------------- waiting


class TopicKind(enum.Enum):
    """What can be waited for. CLOCK is never woken: it only waits for instants."""

    CHANNEL = "channel"
    STREAM = "stream"
    QUEUE = "queue"
    LOCK = "lock"
    SCHEDULE = "schedule"
    CLOCK = "clock"

    # Enum's own is a call of a Python function, and every commit looks up the topics that it touched.
    __hash__ = object.__hash__


class Topic(NamedTuple):
    """One thing to wait for. SCHEDULE (any schedule changed) and CLOCK have an empty name."""

    kind: TopicKind
    name: str = ""


class Signal(enum.Enum):
    """Why a wait ended."""

    WOKEN = "woken"
    RECONNECTED = "reconnected"
    DUE = "due"
    CLOSED = "closed"
