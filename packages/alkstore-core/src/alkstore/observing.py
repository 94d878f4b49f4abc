"""What a store tells of what happens in it, and who may listen: a function, given to `alkstore.open` as an observer.

An *observer* is called with one *fact* after the other, in the store's event loop, after each has happened. What a
transaction does is told at its commit, in its order, and nothing of one that is rolled back. A *carrier* is an observer
that also takes a context along with a job or an event, from who sends it to who handles it: traces are made of that.

An observer must not wait: everything in the loop would wait with it. What it raises is logged, once, and changes nothing.
Without observers nothing of all this is in the way of any call.

Durations are ``float`` seconds: ``seconds`` on this process's own clock, ``held`` and ``waited`` on the engine's.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from alkstore import names
from alkstore.values import Job, StreamEvent

__all__ = [
    "BatchWritten",
    "Carrier",
    "Destination",
    "EventsPublished",
    "EventsRead",
    "Fact",
    "JobHandled",
    "JobSettled",
    "JobsClaimed",
    "JobsEnqueued",
    "JobsExpired",
    "ListenerChanged",
    "Observer",
    "Outcome",
    "SchedulesFired",
]

Outcome: TypeAlias = Literal["done", "retried", "dead", "released", "lost"]
"""How a claim ended: acked; put back with an error; buried; given back; or lapsed, so that the job may run again."""


class Destination(NamedTuple):
    """Where something is sent to: ``kind`` is ``"queue"``, ``"outbox"`` or ``"stream"``."""

    kind: str
    name: str

    @classmethod
    def of_queue(cls, queue: str) -> "Destination":
        """Tell an outbox's backing queue from a queue."""
        if queue.startswith(names.OUTBOX_PREFIX):
            return cls("outbox", queue.removeprefix(names.OUTBOX_PREFIX))
        return cls("queue", queue)


# ---------------------------------------------------------------- facts


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsEnqueued:
    """One call has put jobs into a queue or an outbox, and they are committed."""

    destination: Destination
    ids: Sequence[int]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsClaimed:
    """One round trip has claimed jobs, for one who waits or for several; never told of none.

    Attributes:
        jobs: As claimed, in claim order.
        wanted: How many were asked for.
        waited: For each, the seconds from its run_at to this claim.
        reclaimed: How many of them somebody had claimed before and let lapse.
        reclaimed_exactly: False where the engine cannot tell: then those count that are on a further attempt without an
            error of the one before.
    """

    destination: Destination
    jobs: Sequence[Job]
    wanted: int
    waited: Sequence[float]
    reclaimed: int
    reclaimed_exactly: bool
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHandled:
    """A handler has ended: of a worker, a delivery, `Queue.run_once`, or the block of an ``async with handle``.

    ``error`` is what it raised, or the worker's `Retry` or `Fail` where that gives no exception; None: it ended well.
    """

    destination: Destination
    job: Job
    seconds: float
    error: BaseException | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettled:
    """A claim of this store has ended; told once for each.

    Attributes:
        job: As it was claimed; ``job.attempts`` counts this claim.
        outcome: How it ended. A claim that nobody settled is told as lost when this store next claims.
        held: Seconds from the claim to its end; None for a lost one.
        seconds: What the round trip took; 0.0 for a lost claim that nobody settled.
    """

    destination: Destination
    job: Job
    outcome: Outcome
    held: float | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsExpired:
    """A sweep has moved jobs to the dead: expired ones, and those whose last attempt lapsed; never told of none."""

    destination: Destination
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulesFired:
    """A tick has enqueued jobs of schedules; never told of none."""

    jobs: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsPublished:
    """One call has appended events to a stream, and they are committed."""

    destination: Destination
    offsets: Sequence[int]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsRead:
    """One round trip has brought events of a stream, for a receiver or a reader; never told of none."""

    destination: Destination
    events: Sequence[StreamEvent]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWritten:
    """One round trip has written what was awaited at the same time; told by engines whose calls cost I/O.

    ``kind`` is ``"enqueue"``, ``"settle"`` or ``"publish"``; ``size`` is in jobs, settles or events.
    """

    kind: str
    size: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerChanged:
    """The connection that hears of other processes' commits has come up, or is lost, and ``reason`` says why.

    While it is lost whoever waits polls. Told by engines that have such a connection.
    """

    is_connected: bool
    reason: str | None


Fact: TypeAlias = (
    JobsEnqueued
    | JobsClaimed
    | JobHandled
    | JobSettled
    | JobsExpired
    | SchedulesFired
    | EventsPublished
    | EventsRead
    | BatchWritten
    | ListenerChanged
)
"""What an observer is told. A minor version may bring new ones: leave alone what you do not know."""

Observer: TypeAlias = Callable[[Fact], object]
"""Anything that takes a fact. ``alkstore.open(url, observers=[print])`` is one."""


@runtime_checkable
class Carrier(Protocol):
    """An observer that takes a context along. All methods are called in the context of the caller, and must not wait."""

    def __call__(self, fact: Fact, /) -> object:
        """Hear of a fact."""

    def sending(self, destination: Destination, count: int, /) -> AbstractContextManager[Mapping[str, str]]:
        """Be around one call that enqueues or publishes; gives headers to go along with each job or event.

        They never take the place of the caller's own of the same name, and are left out where they would not fit into
        the 8 KiB of headers, the last first.
        """

    def sent(self, ids: Sequence[int], /) -> object:
        """Hear of the ids or offsets that the call gave, while still around it; a transaction may yet roll back."""

    def handling(self, job: Job, /) -> AbstractContextManager[object]:
        """Be around one handler of a job; the context variables that it sets are the handler's.

        It is left with the handler's error, if there is one, and cannot swallow it.
        """
