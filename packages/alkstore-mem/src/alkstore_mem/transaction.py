"""Transactions: an overlay that nobody else sees, merged into the store in one step.

State model. What a transaction writes stays in it. Outside it leaves three marks, all freed at its end: a row that it
acked is kept from everybody else, the first offset that it took in a stream is a floor there, and a position that it
read to move is held, against other transactions alone. Nobody waits for it but those.
"""

from collections.abc import Mapping, Sequence
from heapq import merge
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple

from alkstore.engine import (
    Ack,
    EventRecord,
    EventRow,
    EventRows,
    JobFilter,
    JobRecord,
    NewEvent,
    NewJob,
    NewWake,
    OffsetSave,
)
from alkstore.errors import Closed, DatabaseError, InvalidArgument, OffsetConflict
from alkstore_mem.backlog import is_among
from alkstore_mem.hold import Holds, Position
from alkstore_mem.queue import Queues, page
from alkstore_mem.state import State
from alkstore_mem.stream import Streams
from alkstore_mem.wake import Wakes

__all__ = ["Mark", "MemTransaction"]

_id: Final = attrgetter("id")
_offset: Final = itemgetter(0)


class _Save(NamedTuple):
    """A position to save, what it was when that was decided, and how often it had been reset by then."""

    offset: int
    before: int
    resets: int


class Mark(NamedTuple):
    """How much of a transaction there was at a savepoint."""

    jobs: int
    acked: int
    events: Mapping[str, int]
    saves: Mapping[Position, _Save]
    channels: int


class MemTransaction:
    """One open transaction of one store."""

    def __init__(
        self, state: State, queues: Queues, streams: Streams, wakes: Wakes, holds: Holds, label: str
    ) -> None:
        self._state = state
        self._queues = queues
        self._streams = streams
        self._wakes = wakes
        self._holds = holds
        self._is_open = True
        self._jobs: dict[int, JobRecord] = {}
        self._acked: list[int] = []
        self._events: dict[str, list[EventRow]] = {}
        self._saves: dict[Position, _Save] = {}
        self._channels: list[str] = []
        self._label = label
        state.opened(self)

    @property
    def is_open(self) -> bool:
        return self._is_open

    @property
    def label(self) -> str:
        """What messages call it."""
        return self._label

    @property
    def connection(self) -> object:
        raise InvalidArgument(
            "mem engine has no connection: a transaction in memory runs no SQL; keep such state beside the store"
        )

    def _enter(self) -> None:
        self._state.reap()
        if not self._is_open:
            raise Closed("transaction")

    # ------------------------------------------------------------ jobs

    async def insert_jobs(self, jobs: Sequence[NewJob]) -> Sequence[int]:
        self._enter()
        now = self._state.clock.now()
        rows = {row.id: row for row in (self._queues.make(job, now) for job in jobs)}
        self._jobs.update(rows)
        return list(rows)

    async def find_jobs(self, queue: str, where: JobFilter) -> Sequence[JobRecord]:
        self._enter()
        own = [row for row in self._jobs.values() if row.queue == queue and is_among(row, where)]
        acked = set(self._acked)
        others = (row for row in self._queues.scan(queue, where) if row.id not in acked)
        return page(merge(others, own, key=_id), where.limit)

    async def settle_jobs(self, settles: Sequence[Ack]) -> Sequence[int | None]:
        self._enter()
        instants: list[int | None] = []
        for ack in settles:
            at = self._queues.hold(ack)
            if at is not None:
                self._acked.append(ack.id)
            instants.append(at)
        return instants

    # ------------------------------------------------------------ events and positions

    async def append_events(self, events: Sequence[NewEvent]) -> Sequence[int]:
        self._enter()
        offsets, parted = self._streams.take(events, self)
        for stream, rows in parted.items():
            self._events.setdefault(stream, []).extend(rows)
        return offsets

    async def read_events(self, stream: str, after: int, limit: int) -> Sequence[EventRecord]:
        self._enter()
        others, floor = self._streams.read_within(stream, after, limit, self)
        own = [
            row
            for row in self._events.get(stream, ())
            if row[0] > after and (floor is None or row[0] < floor)
        ]
        return EventRows(stream, page(merge(others, own, key=_offset), limit))

    async def read_offset(self, stream: str, consumer: str, *, hold: bool) -> int:
        self._enter()
        if hold:
            await self._hold(Position(stream, consumer))
        return self._position(Position(stream, consumer))

    async def save_offset(self, stream: str, consumer: str, offset: int, expected: int | None) -> OffsetSave:
        self._enter()
        position = Position(stream, consumer)
        await self._hold(position)
        found = self._position(position)
        if (offset <= found) if expected is None else (found != expected):
            return OffsetSave(found, False)
        own = self._saves.get(position)
        if own is None:
            before = self._streams.position(stream, consumer)
            own = _Save(offset, before, self._streams.resets(stream, consumer))
        self._saves[position] = own._replace(offset=offset)
        return OffsetSave(found, True)

    async def _hold(self, position: Position) -> None:
        try:
            await self._holds.take(position, self)
        except DatabaseError:
            # What it held meanwhile is what others wait for: an error that left it open could repeat for ever.
            self._end()
            raise
        if not self._is_open:  # ended by the store's close in the very moment in which the wait did
            raise Closed("transaction")

    def _position(self, position: Position) -> int:
        own = self._saves.get(position)
        return self._streams.position(*position) if own is None else own.offset

    # ------------------------------------------------------------ wakes

    async def notify(self, wakes: Sequence[NewWake]) -> None:
        self._enter()
        self._channels.extend(wake.channel for wake in wakes)

    # ------------------------------------------------------------ savepoints

    def mark(self) -> Mark:
        """Give what `back_to` goes back to."""
        events = {stream: len(records) for stream, records in self._events.items()}
        return Mark(len(self._jobs), len(self._acked), events, dict(self._saves), len(self._channels))

    def back_to(self, mark: Mark) -> None:
        """Take back what came after a savepoint, and wake whom that held back. Positions stay held until the end."""
        for id in list(self._jobs)[mark.jobs :]:
            del self._jobs[id]
        now = self._state.clock.now()
        topics = {self._queues.put_back(id, now): None for id in self._acked[mark.acked :]}
        del self._acked[mark.acked :]
        for stream in list(self._events):
            kept = mark.events.get(stream, 0)
            del self._events[stream][kept:]
            if not kept:
                del self._events[stream]
                topics[self._streams.end(stream, self, [])] = None
        self._saves = dict(mark.saves)
        del self._channels[mark.channels :]
        self._state.wake(topics)

    # ------------------------------------------------------------ the end

    async def commit(self) -> None:
        self._enter()
        try:
            self.check()
        except OffsetConflict:
            self._end()
            raise
        self.land()

    def check(self) -> None:
        """See that it can land.

        Raises:
            OffsetConflict: A saved position was reset by somebody else since.
        """
        for position, save in self._saves.items():
            if self._streams.resets(*position) != save.resets:
                raise OffsetConflict(save.before, self._streams.position(*position))

    def land(self) -> None:
        """Merge all of it in one step, and wake whom it concerns."""
        self._is_open = False
        topics = self._queues.land(list(self._jobs.values()), self._state.clock.now())
        for id in self._acked:
            self._queues.drop(id)
        topics.extend(self._streams.end(stream, self, records) for stream, records in self._events.items())
        for position, save in self._saves.items():
            # Plain saves that came between went forward and are not lost: the greater wins.
            found = self._streams.position(*position)
            self._streams.set_position(
                *position, save.offset if found == save.before else max(save.offset, found)
            )
        self._leave()
        self._state.wake(topics)
        self._wakes.notify(self._channels)

    async def rollback(self) -> None:
        self._end()

    def abandon(self) -> None:
        if self._is_open:
            self._is_open = False
            self._state.abandon(self)

    def _end(self) -> None:
        if self._is_open:
            self.free()

    def free(self) -> None:
        """Leave no trace, and wake whoever was held back."""
        self._is_open = False
        now = self._state.clock.now()
        topics = {self._queues.put_back(id, now): None for id in self._acked}
        topics.update({self._streams.end(stream, self, []): None for stream in self._events})
        self._leave()
        self._state.wake(topics)

    def _leave(self) -> None:
        self._holds.release(self)
        self._state.open.pop(self, None)
