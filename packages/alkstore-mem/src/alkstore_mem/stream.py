"""Streams: logs that readers see in the order of their offsets, and where each consumer stands.

State model. An offset is taken when an append is called. An append that commits by itself lands at once; one in a
transaction lands at its commit. The least offset that an open transaction took in a log is a *floor*: readers see what
lies below every floor, so an event that lands late never comes up behind what somebody has read.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Final

from alkstore.engine import EventRow, EventRows, NewEvent, Topic, TopicKind
from alkstore_mem.state import State

__all__ = ["Log", "Streams"]

TRIMMED: Final[EventRow] = (0, None, b"", b"", 0)
"""Stands where an event was until enough of them are gone to move the rest."""

SLACK: Final = 64
"""Trimmed places that are not worth moving the rest for."""

_offset: Final = itemgetter(0)


class Log:
    """One stream: its events, sorted and from `_first` on not trimmed, its floors and its consumers' positions."""

    __slots__ = ("_events", "_first", "_floors", "head", "last", "name", "positions", "resets", "topic")

    def __init__(self, name: str) -> None:
        self.name = name
        self.topic = Topic(TopicKind.STREAM, name)
        self.last = 0
        """The greatest offset taken."""
        self.head = 0
        """The greatest offset that readers may see, or could before a trim."""
        self.positions: dict[str, int] = {}
        self.resets: dict[str, int] = {}
        """How often a consumer's position was moved by force, for transactions that hold what they saw before."""
        self._events: list[EventRow] = []
        self._first = 0
        self._floors: dict[object, int] = {}

    @property
    def is_listed(self) -> bool:
        return self._first < len(self._events) or bool(self.positions)

    @property
    def is_unused(self) -> bool:
        """Whether nothing ever landed here and nothing is about to."""
        return not (self.is_listed or self.head or self._floors)

    def land(self, rows: list[EventRow]) -> None:
        events, offset = self._events, rows[0][0]
        if events and offset < events[-1][0]:
            # Others took later offsets and landed first, held back from readers by this transaction's floor.
            at = bisect_left(events, offset, lo=self._first, key=_offset)
            events[at:] = sorted([*events[at:], *rows], key=_offset)
        else:
            events.extend(rows)
        self._raise_head()

    def set_floor(self, owner: object, offset: int) -> None:
        self._floors.setdefault(owner, offset)

    def drop_floor(self, owner: object) -> None:
        self._floors.pop(owner, None)
        self._raise_head()

    def floor(self, apart_from: object = None) -> int | None:
        """Give the first offset that another open transaction may still fill."""
        return min((at for owner, at in self._floors.items() if owner is not apart_from), default=None)

    def read(self, after: int, limit: int, floor: int | None) -> list[EventRow]:
        start = bisect_right(self._events, after, lo=self._first, key=_offset)
        return self._events[start : min(start + limit, self._end(floor))]

    def trim(self, horizon: int) -> int:
        events, first = self._events, self._first
        end = min(bisect_right(events, horizon, lo=first, key=_offset), self._end(self.floor()))
        events[first:end] = [TRIMMED] * (end - first)
        self._first = end
        if end > SLACK and 2 * end > len(events):
            del events[:end]
            self._first = 0
        return end - first

    def _end(self, floor: int | None) -> int:
        if floor is None:
            return len(self._events)
        return bisect_left(self._events, floor, lo=self._first, key=_offset)

    def _raise_head(self) -> None:
        end = self._end(self.floor())
        if end > self._first:
            self.head = max(self.head, self._events[end - 1][0])


class Streams:
    """Every stream of one store."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._logs: dict[str, Log] = {}

    # ------------------------------------------------------------ the seam, in its order

    def append(self, events: Sequence[NewEvent]) -> list[int]:
        offsets, parted = self.take(events)
        for stream, rows in parted.items():
            self._logs[stream].land(rows)
        self._state.wake(self._logs[stream].topic for stream in parted)
        return offsets

    def read(self, stream: str, after: int, limit: int) -> EventRows:
        log = self._logs.get(stream)
        return EventRows(stream, [] if log is None else log.read(after, limit, log.floor()))

    def head(self, stream: str) -> int:
        log = self._logs.get(stream)
        return 0 if log is None else log.head

    def trim(self, stream: str, horizon: int) -> int:
        log = self._logs.get(stream)
        return 0 if log is None else log.trim(horizon)

    def offsets(self, stream: str, consumer: str | None) -> Mapping[str, int]:
        log = self._logs.get(stream)
        if log is None:
            return {}
        if consumer is None:
            return dict(log.positions)
        return {consumer: log.positions[consumer]} if consumer in log.positions else {}

    def move(self, stream: str, consumer: str, offset: int, *, backwards: bool) -> bool:
        if not backwards and offset <= self.position(stream, consumer):
            return False
        log = self.log(stream)
        if backwards:
            log.resets[consumer] = log.resets.get(consumer, 0) + 1
        log.positions[consumer] = offset
        return True

    def names(self) -> list[str]:
        return sorted(name for name, log in self._logs.items() if log.is_listed)

    # ------------------------------------------------------------ parts of a transaction

    def log(self, stream: str) -> Log:
        """Give a stream's log, made if there is none."""
        return self._logs.get(stream) or self._logs.setdefault(stream, Log(stream))

    def take(
        self, events: Sequence[NewEvent], owner: object = None
    ) -> tuple[list[int], dict[str, list[EventRow]]]:
        """Give events their offsets, in their order, and their rows by stream: they land, or their offsets stay gaps.

        With an owner, readers wait below the first of each stream.
        """
        now = self._state.clock.now()
        offsets: list[int] = []
        parted: dict[str, list[EventRow]] = {}
        for stream, key, payload, headers in events:
            log = self.log(stream)
            offset = log.last = log.last + 1
            if owner is not None:
                log.set_floor(owner, offset)
            offsets.append(offset)
            parted.setdefault(stream, []).append((offset, key, payload, headers, now))
        return offsets, parted

    def read_within(
        self, stream: str, after: int, limit: int, owner: object
    ) -> tuple[list[EventRow], int | None]:
        """Read what landed below every floor but the owner's; gives that bound too."""
        log = self._logs.get(stream)
        if log is None:
            return [], None
        floor = log.floor(owner)
        return log.read(after, limit, floor), floor

    def position(self, stream: str, consumer: str) -> int:
        """Give a consumer's committed position, 0 for an unknown one."""
        log = self._logs.get(stream)
        return 0 if log is None else log.positions.get(consumer, 0)

    def resets(self, stream: str, consumer: str) -> int:
        """Give how often a consumer's position was moved by force."""
        log = self._logs.get(stream)
        return 0 if log is None else log.resets.get(consumer, 0)

    def set_position(self, stream: str, consumer: str, offset: int) -> None:
        self.log(stream).positions[consumer] = offset

    def end(self, stream: str, owner: object, rows: list[EventRow]) -> Topic:
        """End a transaction's part of a stream, with its rows landed or without any; gives the topic to wake."""
        log = self.log(stream)
        if rows:
            log.land(rows)
        log.drop_floor(owner)
        if log.is_unused:
            del self._logs[stream]
        return log.topic
