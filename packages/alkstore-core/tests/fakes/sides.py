"""One engine of a differential test, what it gave so far, and its answers in a form that can be compared.

Ids are told by when they were first seen: only their order is promised. So are offsets, where an engine leaves gaps.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from random import Random
from typing import Final, NamedTuple, Protocol, TypeGuard

from alkstore import (
    AlkstoreError,
    ClaimLost,
    EventReceiver,
    Job,
    JobHandle,
    Lock,
    Store,
    StreamEvent,
    WakeReceiver,
)

__all__ = ["FAR", "Held", "MovableClock", "Side", "answered"]

MOST_EDGES: Final = 8
"""Instants that are worth a visit at a time: the last ones, since the others' jobs and locks are gone."""

NEAR: Final = timedelta(hours=1)

FAR: Final = 2**62
"""No offset that an engine gives is as great as this."""

JOB_FIELDS: Final = (
    "queue", "payload_bytes", "headers", "state", "priority", "run_at", "expires_at", "attempts", "max_attempts",
    "visibility_timeout", "base_delay", "worker_id", "deadline", "created_at", "scheduled_for", "retry_error",
    "last_error", "died_at",
)  # fmt: skip


class MovableClock(Protocol):
    """The time of all the stores of a side."""

    @property
    def datetime(self) -> datetime: ...

    async def advance(self, by: float | timedelta) -> None: ...


class Held(NamedTuple):
    """A claim, and which store's turn it was when it was made: on another one a transaction cannot ack it."""

    turn: int
    handle: JobHandle


class Side:
    """One engine's stores, which take turns.

    Args:
        stores: All on one storage.
        clock: What moves their time.
        has_gaps: Whether offsets are told by their places; those drawn then mean places, at most the last event's.
        writes_beside: Whether claims are made beside open transactions.
    """

    def __init__(
        self,
        stores: Sequence[Store],
        clock: MovableClock,
        *,
        has_gaps: bool = False,
        writes_beside: bool = False,
    ) -> None:
        self.stores = stores
        self.clock = clock
        self.has_gaps = has_gaps
        self.writes_beside = writes_beside
        self.turn = 0
        self.ids: list[int] = []
        self.held: list[Held] = []
        self.locks: list[Lock] = []
        self.receivers: list[EventReceiver] = []
        self.ears: list[WakeReceiver] = []
        self.edges: list[datetime] = []
        self._offsets: Mapping[str, Sequence[int]] = {}

    @property
    def store(self) -> Store:
        return self.stores[self.turn % len(self.stores)]

    async def has_heard(self) -> None:
        """Return when all that was notified has reached the receivers."""

    def visit(self, *instants: datetime | None) -> None:
        """Note instants at which something ends or begins: to be visited, and the microseconds beside them."""
        self.edges = [*self.edges, *(each for each in instants if self.is_near(each))][-MOST_EDGES:]

    def is_near(self, instant: datetime | None) -> TypeGuard[datetime]:
        """Whether the clock may be set to an instant without leaving everything else behind."""
        return instant is not None and abs(instant - self.clock.datetime) < NEAR

    # ---------------------------------------------------------------- jobs

    def job(self, job: Job | None) -> object:
        if job is None:
            return None
        return (self.number(job.id), *(getattr(job, name) for name in JOB_FIELDS))

    def number(self, id: int) -> int:
        if id not in self.ids:
            self.ids.append(id)
        return self.ids.index(id)

    def id_of(self, rng: Random) -> int:
        odd = rng.randrange(20)
        drawn = rng.random()
        if not self.ids or odd == 0:
            return (0, -1, 2**63 - 1, 2**70)[int(drawn * 4)]
        return self.ids[int(drawn * len(self.ids))]

    def took(self, handles: Sequence[JobHandle]) -> object:
        self.held += [Held(self.turn, handle) for handle in handles]
        for handle in handles:
            self.visit(handle.job.deadline, handle.job.expires_at)
        return [self.job(handle.job) for handle in handles]

    # ---------------------------------------------------------------- offsets

    @property
    def offsets(self) -> Mapping[str, Sequence[int]]:
        """The offsets given so far by stream; set it back to what it was, and those given since were not."""
        return self._offsets

    @offsets.setter
    def offsets(self, known: Mapping[str, Sequence[int]]) -> None:
        self._offsets = known

    def given(self, stream: str, offsets: Sequence[int]) -> Sequence[int]:
        """Note the offsets of an append, and tell them."""
        known = self._offsets.get(stream, ())
        assert list(offsets) == sorted(set(offsets)), offsets
        assert not (known and offsets) or known[-1] < offsets[0], (known, offsets)
        self._offsets = {**self._offsets, stream: [*known, *offsets]}
        return [self.place(stream, offset) for offset in offsets]

    def place(self, stream: str, offset: int) -> int:
        """Tell an offset that an engine gave."""
        if not self.has_gaps or offset <= 0 or offset >= FAR:
            return offset
        return self._offsets[stream].index(offset) + 1

    def offset(self, stream: str, drawn: int) -> int:
        """Give the offset that is meant by one that was drawn."""
        if not self.has_gaps or drawn <= 0 or drawn >= FAR:
            return drawn
        known = self._offsets.get(stream, ())
        return known[min(drawn, len(known)) - 1] if known else 0

    def event(self, event: StreamEvent | None) -> object:
        if event is None:
            return None
        place = self.place(event.stream, event.offset)
        return place, event.stream, event.key, event.payload_bytes, dict(event.headers), event.created_at


async def answered(call: Callable[[], Awaitable[object]]) -> object:
    """Give the answer of a call, or what it raised."""
    try:
        return await call()
    except ClaimLost:
        return ClaimLost
    except AlkstoreError as error:
        return type(error), str(error)
