"""Sequences of the seam that hold what their records share once, and make each record when it is asked for."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, overload

from alkstore.records import EventRecord, EventRow, NewEvent, NewJob

__all__ = ["AlikeEvents", "AlikeJobs", "EventRows"]


class AlikeJobs(Sequence[NewJob]):
    """Jobs that differ in nothing but their payloads, each made when it is asked for.

    An engine may take them as any other sequence, or what they share and their payloads: a batch then costs half as much.
    """

    __slots__ = ("pattern", "payloads")

    def __init__(self, pattern: NewJob, payloads: Sequence[bytes]) -> None:
        """Take a job whose payload does not matter, and the payload of each."""
        self.pattern = pattern
        self.payloads = payloads

    def __len__(self) -> int:
        return len(self.payloads)

    def __iter__(self) -> Iterator[NewJob]:
        queue, _, *rest = self.pattern
        return iter([_new_job(NewJob, (queue, payload, *rest)) for payload in self.payloads])

    @overload
    def __getitem__(self, at: int) -> NewJob: ...

    @overload
    def __getitem__(self, at: slice) -> "AlikeJobs": ...

    def __getitem__(self, at: int | slice) -> "NewJob | AlikeJobs":
        if isinstance(at, slice):
            return AlikeJobs(self.pattern, self.payloads[at])
        return self.pattern._replace(payload=self.payloads[at])


_new_job: Final[Callable[[type[NewJob], tuple[object, ...]], NewJob]] = tuple.__new__
"""A job from its fields in their order: a quarter of the time that the named tuple's own constructor takes."""


class AlikeEvents(Sequence[NewEvent]):
    """Events that differ in nothing but their payloads, each made when it is asked for; of use as `AlikeJobs`."""

    __slots__ = ("pattern", "payloads")

    def __init__(self, pattern: NewEvent, payloads: Sequence[bytes]) -> None:
        """Take an event whose payload does not matter, and the payload of each."""
        self.pattern = pattern
        self.payloads = payloads

    def __len__(self) -> int:
        return len(self.payloads)

    def __iter__(self) -> Iterator[NewEvent]:
        stream, key, _, headers = self.pattern
        return iter([_new_event(NewEvent, (stream, key, payload, headers)) for payload in self.payloads])

    @overload
    def __getitem__(self, at: int) -> NewEvent: ...

    @overload
    def __getitem__(self, at: slice) -> "AlikeEvents": ...

    def __getitem__(self, at: int | slice) -> "NewEvent | AlikeEvents":
        if isinstance(at, slice):
            return AlikeEvents(self.pattern, self.payloads[at])
        return self.pattern._replace(payload=self.payloads[at])


_new_event: Final[Callable[[type[NewEvent], tuple[object, ...]], NewEvent]] = tuple.__new__


class EventRows(Sequence[EventRecord]):
    """Events of one stream as a storage has them, each made a record when it is asked for.

    An engine may give them in place of records: core takes the rows as they are, and a page costs a third less to read.
    """

    __slots__ = ("rows", "stream")

    def __init__(self, stream: str, rows: Sequence[EventRow]) -> None:
        self.stream = stream
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[EventRecord]:
        return map(self._record, self.rows)

    @overload
    def __getitem__(self, at: int) -> EventRecord: ...

    @overload
    def __getitem__(self, at: slice) -> "EventRows": ...

    def __getitem__(self, at: int | slice) -> "EventRecord | EventRows":
        if isinstance(at, slice):
            return EventRows(self.stream, self.rows[at])
        return self._record(self.rows[at])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as a list has none

    def __repr__(self) -> str:
        return f"EventRows({list(self)!r})"

    def _record(self, row: EventRow) -> EventRecord:
        offset, key, payload, headers, created_at = row
        return EventRecord(offset, self.stream, key, payload, headers, created_at)
