"""Transactions: an overlay in this process, sent whole with the commit."""

from collections.abc import Sequence
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import Any

from alkstore.engine import Ack, EventRecord, JobFilter, JobRecord, NewEvent, NewJob, NewWake, OffsetSave
from alkstore.errors import Closed, DatabaseError, InvalidArgument, show
from alkstore_redis.queue import Queues, packed, record
from alkstore_redis.state import MOST, State, found, number, text
from alkstore_redis.stream import event, packed_event

__all__ = ["RedisTransaction"]


class RedisTransaction:
    """One open transaction of one store."""

    def __init__(self, state: State, queues: Queues) -> None:
        self._state = state
        self._queues = queues
        self._id = f"{state.id}/{next(state.numbers)}"
        self._is_open = True
        self._is_marked = False
        self._jobs: dict[int, Sequence[str | bool]] = {}
        self._acked: list[int] = []
        self._events: dict[str, list[EventRecord]] = {}
        self._saves: dict[tuple[str, str], int] = {}
        self._wakes: list[NewWake] = []

    @property
    def is_open(self) -> bool:
        return self._is_open

    @property
    def connection(self) -> object:
        raise InvalidArgument(
            "redis engine has no connection: a transaction is sent at its commit, in one step"
        )

    async def _run(self, operation: str, *arguments: object, marks: bool = False) -> Any:
        if not self._is_open:
            raise Closed("transaction")
        self._is_marked |= marks
        return await self._state.run(operation, *arguments)

    # ------------------------------------------------------------ jobs

    async def insert_jobs(self, jobs: Sequence[NewJob]) -> Sequence[int]:
        rows = {number(row[0]): row for row in await self._run("draw_jobs", [packed(job) for job in jobs])}
        self._jobs.update(rows)
        return list(rows)

    async def find_jobs(self, queue: str, where: JobFilter) -> Sequence[JobRecord]:
        if not self._is_open:
            raise Closed("transaction")
        others = await self._queues.find_jobs(queue, where._replace(limit=where.limit + len(self._acked)))
        own = [
            row for row in map(record, self._jobs.values()) if row.queue == queue and _is_among(row, where)
        ]
        left = (row for row in others if row.id not in self._acked)
        return list(islice(merge(left, own, key=attrgetter("id")), where.limit))

    async def settle_jobs(self, settles: Sequence[Ack]) -> Sequence[int | None]:
        acks = [(ack.queue, text(ack.id), text(ack.token)) for ack in settles]
        instants = await self._run("hold_jobs", self._id, acks, marks=True)
        self._acked += [ack.id for ack, at in zip(settles, instants, strict=True) if at]
        return [found(at) for at in instants]

    # ------------------------------------------------------------ events and positions

    async def append_events(self, events: Sequence[NewEvent]) -> Sequence[int]:
        drawn = await self._run("draw_events", self._id, [each.stream for each in events], marks=True)
        now, offsets = number(drawn[0]), [number(offset) for offset in drawn[1]]
        for offset, (stream, key, payload, headers) in zip(offsets, events, strict=True):
            own = EventRecord(offset, stream, key, payload, headers, now)
            self._events.setdefault(stream, []).append(own)
        return offsets

    async def read_events(self, stream: str, after: int, limit: int) -> Sequence[EventRecord]:
        events, floor = await self._run("read_events", stream, text(after), min(limit, MOST), self._id)
        own = [
            each
            for each in self._events.get(stream, ())
            if each.offset > after and not (floor and each.offset >= number(floor))
        ]
        others = (event(stream, values) for values in events)
        return list(islice(merge(others, own, key=attrgetter("offset")), limit))

    async def read_offset(self, stream: str, consumer: str, *, hold: bool) -> int:
        if hold:
            at = await self._hold(stream, consumer)
        else:
            flat = await self._run("read_offsets", stream, consumer)
            at = number(flat[1]) if flat else 0
        return self._saves.get((stream, consumer), at)

    async def save_offset(self, stream: str, consumer: str, offset: int, expected: int | None) -> OffsetSave:
        at = self._saves.get((stream, consumer), await self._hold(stream, consumer))
        saved = offset > at if expected is None else at == expected
        if saved:
            self._saves[stream, consumer] = offset
        return OffsetSave(at, saved)

    async def _hold(self, stream: str, consumer: str) -> int:
        what = f"position of consumer {show(consumer)} in stream {show(stream)}"
        try:
            at = await self._state.wait_for(
                what, lambda: self._run("hold_position", self._id, stream, consumer, marks=True)
            )
            if at == "circle":
                raise DatabaseError(
                    f"{what} is held by a transaction that waits for this one; begin this one again"
                )
        except DatabaseError:
            if not self._is_open:  # by the store's close, meanwhile
                raise Closed("transaction") from None
            # What it holds meanwhile is what others wait for: an error that left it open could repeat for ever.
            self.abandon()
            raise
        if not self._is_open:
            raise Closed("transaction")
        return number(at)

    # ------------------------------------------------------------ wakes, and the end

    async def notify(self, wakes: Sequence[NewWake]) -> None:
        if not self._is_open:
            raise Closed("transaction")
        self._wakes += wakes

    async def commit(self) -> None:
        own = [each for events in self._events.values() for each in events]
        landed = await self._run(
            "commit",
            self._id,
            self._is_marked,
            [text(id) for id in self._acked],
            list(self._jobs.values()),
            [(each.stream, text(each.offset), *packed_event(each), text(each.created_at)) for each in own],
            [(*position, text(offset)) for position, offset in self._saves.items()],
            [(wake.channel, (wake.payload or b"").decode()) for wake in self._wakes],
        )
        self._is_open = False
        if not landed:
            raise DatabaseError(
                "redis: the transaction was given up when this store's listening connection was lost; begin it again"
            )

    async def rollback(self) -> None:
        if self._is_open:
            self._is_open = False
            if self._is_marked:
                await self._state.run("rollback", self._id)

    def abandon(self) -> None:
        if self._is_open:
            self._is_open = False
            if self._is_marked:
                self._state.leave("rollback", self._id)


def _is_among(row: JobRecord, where: JobFilter) -> bool:
    in_range = row.id > where.after if where.ids is None else row.id in where.ids
    return in_range and where.error is None and where.state in (None, row.state)
