"""The read-only values that operations give, and the option values that they take.

A value wraps the record that the engine read and converts on access, so that claiming thousands of jobs does not build
dates and payloads that nobody looks at. Instants are aware UTC datetimes, durations timedeltas.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import repeat
from typing import ClassVar, Final, TypeVar

import msgspec

from alkstore import numbers, payload
from alkstore.engine import (
    EventRecord,
    EventRow,
    EventRows,
    JobCounts,
    JobRecord,
    JobState,
    LockRecord,
    ScheduleRecord,
)
from alkstore.errors import show
from alkstore.stamps import Duration

__all__ = [
    "EnqueueOpts",
    "Job",
    "LockInfo",
    "QueueStats",
    "Schedule",
    "ScheduleOpts",
    "StreamEvent",
    "Wake",
    "stream_events",
]

T = TypeVar("T")

_decode: Final = payload.decode_at_once


def _instant(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else numbers.to_datetime(microseconds)


def _span(microseconds: int | None) -> timedelta | None:
    return None if microseconds is None else numbers.to_timedelta(microseconds)


# A struct, for its constructor: a page of events is made in one call of C, at a sixth of what a Python __init__ costs. What a
# value holds never leads back to it, so the collector need not look at it either.
class _Value(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Equality, hash and pickle by what it holds; no attribute can be set or added."""

    _shown: ClassVar[tuple[str, ...]]
    _sealed: type = object
    """What msgspec cannot encode: else a web framework would send the record as it is, with the token of the claim."""

    def __rich_repr__(self) -> list[tuple[str, object]]:
        # A struct's own shows what it holds, payloads whole.
        return [(name, _Shown(_short(getattr(self, name)))) for name in self._shown]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={_short(getattr(self, name))}" for name in self._shown)
        return f"{type(self).__name__}({shown})"


class _Shown(str):
    """A text that is shown as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _short(value: object) -> str:
    # An instant cut in its middle tells nothing; only text and bytes are long.
    return show(value) if isinstance(value, (str, bytes)) else repr(value)


class _Carrier(_Value, frozen=True, gc=False):
    """What carries a payload and headers, by their places, which jobs and events have in common."""

    _record: JobRecord | EventRow

    @property
    def payload(self) -> object:
        """The decoded JSON value, decoded at every access.

        Raises:
            CodecError: The stored bytes are not JSON; what carries them is unharmed.
        """
        try:
            return _decode(self._record[2])
        except (RecursionError, ValueError):
            return payload.decode(self._record[2])

    @property
    def payload_bytes(self) -> bytes:
        return self._record[2]

    def payload_as(self, type_: type[T]) -> T:
        """Decode the payload as a dataclass, TypedDict, msgspec Struct or any other type, strictly.

        Raises:
            CodecError: The payload does not fit; what carries them is unharmed.
        """
        return payload.decode_as(self._record[2], type_)

    @property
    def headers(self) -> Mapping[str, str]:
        return payload.decode_headers(self._record[3])


class Job(_Carrier, frozen=True, gc=False):
    """A job as it was when it was read."""

    _record: JobRecord
    _shown = ("id", "queue", "state", "priority", "run_at", "attempts", "max_attempts", "payload_bytes")

    @property
    def id(self) -> int:
        """Positive, unique over all queues of the storage."""
        return self._record.id

    @property
    def queue(self) -> str:
        return self._record.queue

    @property
    def state(self) -> JobState:
        return self._record.state

    @property
    def priority(self) -> int:
        return self._record.priority

    @property
    def run_at(self) -> datetime:
        """Not claimable before."""
        return numbers.to_datetime(self._record.run_at)

    @property
    def expires_at(self) -> datetime | None:
        """Not claimable from then on; None for never."""
        return _instant(self._record.expires_at)

    @property
    def attempts(self) -> int:
        """Claims so far, this one included."""
        return self._record.attempts

    @property
    def max_attempts(self) -> int:
        return self._record.max_attempts

    @property
    def visibility_timeout(self) -> timedelta:
        return numbers.to_timedelta(self._record.visibility_timeout)

    @property
    def base_delay(self) -> timedelta:
        return numbers.to_timedelta(self._record.base_delay)

    @property
    def worker_id(self) -> str | None:
        """Who claimed it; None when nobody holds it."""
        return self._record.worker_id

    @property
    def deadline(self) -> datetime | None:
        """When the claim ends by itself; None when nobody holds it."""
        return _instant(self._record.deadline)

    @property
    def created_at(self) -> datetime:
        return numbers.to_datetime(self._record.created_at)

    @property
    def scheduled_for(self) -> datetime | None:
        """The boundary that a schedule fired this job for; None on other jobs."""
        return _instant(self._record.scheduled_for)

    @property
    def retry_error(self) -> str | None:
        """Why it is tried again, while it lives."""
        return self._record.retry_error

    @property
    def last_error(self) -> str | None:
        """Why it is dead; None exactly while it lives."""
        return self._record.last_error

    @property
    def died_at(self) -> datetime | None:
        return _instant(self._record.died_at)


class StreamEvent(_Carrier, frozen=True, gc=False):
    """An event of a stream."""

    _record: EventRow
    _stream: str
    _shown = ("offset", "stream", "key", "payload_bytes", "created_at")

    @property
    def offset(self) -> int:
        """Its place in the stream, from 1, strictly increasing, gaps allowed."""
        return self._record[0]

    @property
    def stream(self) -> str:
        return self._stream

    @property
    def key(self) -> str | None:
        return self._record[1]

    @property
    def created_at(self) -> datetime:
        return numbers.to_datetime(self._record[4])


def stream_events(records: Sequence[EventRecord]) -> list[StreamEvent]:
    """Give events as users see them."""
    if isinstance(records, EventRows):
        return list(map(StreamEvent, records.rows, repeat(records.stream)))
    return [
        StreamEvent((offset, key, payload, headers, created_at), stream)
        for offset, stream, key, payload, headers, created_at in records
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnqueueOpts:
    """Options of one job of a batch, over those of the call; None means not given."""

    delay: Duration | None = None
    run_at: datetime | None = None
    priority: int | None = None
    visibility_timeout: Duration | None = None
    max_attempts: int | None = None
    base_delay: Duration | None = None
    expires: Duration | None = None
    headers: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOpts:
    """What each job that a schedule fires is stamped with, read back resolved."""

    priority: int = 0
    visibility_timeout: timedelta | None = None
    max_attempts: int | None = None
    base_delay: timedelta | None = None
    expires: timedelta | None = None


class Schedule(_Value, frozen=True, gc=False):
    """A schedule as stored."""

    _record: ScheduleRecord
    _shown = ("name", "spec", "queue", "anchor", "next_fire_at")

    @property
    def name(self) -> str:
        return self._record.rule.name

    @property
    def spec(self) -> str:
        return self._record.rule.spec

    @property
    def queue(self) -> str:
        return self._record.rule.queue

    @property
    def payload(self) -> object:
        """The decoded JSON value, decoded at every access."""
        return payload.decode(self._record.rule.payload)

    @property
    def payload_bytes(self) -> bytes:
        return self._record.rule.payload

    @property
    def opts(self) -> ScheduleOpts:
        rule = self._record.rule
        return ScheduleOpts(
            priority=rule.priority,
            visibility_timeout=numbers.to_timedelta(rule.visibility_timeout),
            max_attempts=rule.max_attempts,
            base_delay=numbers.to_timedelta(rule.base_delay),
            expires=_span(rule.expires),
        )

    @property
    def anchor(self) -> datetime | None:
        """An instant of the grid, if one was given."""
        return _instant(self._record.rule.anchor)

    @property
    def next_fire_at(self) -> datetime:
        """The next boundary; in the past when it is still to be caught up."""
        return numbers.to_datetime(self._record.next_fire_at)


@dataclass(frozen=True, slots=True)
class Wake:
    """A hint that something changed on a channel: read again. ``reconnected``: wakes may have been lost before."""

    channel: str
    reconnected: bool = False


@dataclass(frozen=True, slots=True)
class LockInfo:
    """A lock that is held now."""

    name: str
    fence: int
    expires_at: datetime

    @classmethod
    def of(cls, record: LockRecord) -> "LockInfo":
        return cls(record.name, record.fence, numbers.to_datetime(record.expires_at))


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The rows of a queue: the five counts add up to them.

    Attributes:
        ready: What a claim could take now.
        delayed: Unexpired, before their run_at.
        processing: Held by a live claim.
        stale: Expired, or out of attempts, and not yet moved to dead.
        dead: Never tried again.
        oldest_ready_age: Now minus the least run_at among ready; None if none is.
    """

    ready: int
    delayed: int
    processing: int
    stale: int
    dead: int
    oldest_ready_age: timedelta | None

    @classmethod
    def of(cls, counts: JobCounts) -> "QueueStats":
        return cls(
            counts.ready,
            counts.delayed,
            counts.processing,
            counts.stale,
            counts.dead,
            _span(counts.oldest_ready_age),
        )
