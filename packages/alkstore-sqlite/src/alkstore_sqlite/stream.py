"""Streams: logs that readers see in the order of their offsets, and where each consumer stands.

State model. A stream's row holds the greatest offset that was ever committed. Whoever appends takes offsets from it under
SQLite's write lock and keeps that lock until they are committed or undone, so they become visible in their order, and an
offset that was rolled back is given again. That lock is also what holds a consumer's position.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from alkstore import statements
from alkstore.engine import AlikeEvents, EventRows, NewEvent, OffsetSave, Topic, TopicKind
from alkstore_sqlite.connection import (
    Change,
    Row,
    Statement,
    Steps,
    Tells,
    Woken,
    make_change,
    make_statement,
)
from alkstore_sqlite.pack import fits, pack

__all__ = [
    "append",
    "head",
    "hold_position",
    "move",
    "names",
    "offsets",
    "position",
    "read",
    "save",
    "set_position",
    "trim",
]

_SQL: Final = statements.load("alkstore_sqlite", "stream")

APPEND: Final = _SQL["append"]
GROW: Final = _SQL["grow"]
FIND: Final = _SQL["find"]

# An enum's member costs a metaclass call at every access in Python 3.11.
STREAM: Final = TopicKind.STREAM
ROWS, COUNT = Tells.ROWS, Tells.COUNT

# ---------------------------------------------------------------- the seam, in its order


def append(events: Sequence[NewEvent], now: int) -> Steps[Change[Sequence[int]]]:
    """Append to any number of streams; gives the offsets in the order of ``events``."""
    if len(events) == 1:
        ((stream, key, payload, headers),) = events
        id, offset = yield from _grow(stream, 1)
        yield make_statement(Statement, (APPEND, (id, offset, key, payload, headers, now), False, ROWS))
        return make_change(Change, ([offset], (Woken(_topic(stream), offset),)))
    alike = _together(events)
    if alike is not None:
        return (yield from _append_alike(alike, now))
    ids: dict[str, int] = {}
    last: dict[str, int] = {}
    woken: list[Woken] = []
    for stream, count in Counter([event.stream for event in events]).items():
        ids[stream], grown = yield from _grow(stream, count)
        last[stream] = grown - count
        woken.append(Woken(_topic(stream), grown))
    given: list[int] = []
    rows: list[Row] = []
    for stream, key, payload, headers in events:
        offset = last[stream] = last[stream] + 1
        given.append(offset)
        rows.append((ids[stream], offset, key, payload, headers, now))
    if rows:
        yield Statement(APPEND, rows, is_many=True)
    return Change(given, woken)


def _together(events: Sequence[NewEvent]) -> AlikeEvents | None:
    """Give events as alike if they are and one statement may append them all."""
    if not events:
        return None
    if not isinstance(events, AlikeEvents):
        streams, keys, payloads, headers = zip(*events, strict=True)
        if not all(column.count(column[0]) == len(events) for column in (streams, keys, headers)):
            return None
        events = AlikeEvents(events[0], payloads)
    return events if fits(events.payloads) else None


def _append_alike(events: AlikeEvents, now: int) -> Steps[Change[Sequence[int]]]:
    stream, key, _, headers = events.pattern
    id, grown = yield from _grow(stream, len(events))
    before, (payloads, places) = grown - len(events), pack(events.payloads)
    yield Statement(_SQL["append_alike"], (id, before, key, payloads, headers, now, places))
    return Change(range(before + 1, grown + 1), (Woken(_topic(stream), grown),))


def _grow(stream: str, count: int) -> Steps[tuple[int, int]]:
    """Take offsets; gives the stream's id and the last of them."""
    ((was_there,),) = yield make_statement(Statement, (GROW, (stream, count), False, COUNT))
    if was_there:
        ((id, grown),) = yield make_statement(Statement, (FIND, (stream,), False, ROWS))
        return id, grown
    ((id,),) = yield Statement(_SQL["begin"], (stream, count), tells=Tells.ID)
    return id, count


def read(stream: str, after: int, limit: int) -> Steps[EventRows]:
    """Read one page; within a transaction its own events too, for nobody else can have any open."""
    return EventRows(stream, (yield Statement(_SQL["read"], (stream, after, limit))))


def head(stream: str) -> Steps[int]:
    """Give the greatest offset that was ever committed."""
    rows = yield Statement(_SQL["head"], (stream,))
    return rows[0][0] if rows else 0


def trim(stream: str, horizon: int) -> Steps[Change[int]]:
    """Delete events with offset <= ``horizon``; wakes nobody."""
    ((count,),) = yield Statement(_SQL["trim"], (stream, horizon), tells=COUNT)
    return Change(count)


def offsets(stream: str, consumer: str | None) -> Steps[Mapping[str, int]]:
    """Give the saved position of one consumer, or of all; who never saved is absent."""
    if consumer is None:
        return dict((yield Statement(_SQL["offsets"], (stream,))))
    rows = yield Statement(_SQL["position"], (stream, consumer))
    return {consumer: rows[0][0]} if rows else {}


def move(stream: str, consumer: str, offset: int, *, backwards: bool) -> Steps[Change[bool]]:
    """Save a position: any value if ``backwards``, else only a greater one."""
    if not backwards and offset <= (yield from position(stream, consumer)):
        return Change(False)
    yield from set_position(stream, consumer, offset)
    return Change(True)


def names() -> Steps[list[str]]:
    """Give the streams that have events or positions."""
    return sorted(name for (name,) in (yield Statement(_SQL["names"])))


# ---------------------------------------------------------------- parts of a transaction


def position(stream: str, consumer: str) -> Steps[int]:
    """Give a consumer's position, 0 for an unknown one."""
    rows = yield Statement(_SQL["position"], (stream, consumer))
    return rows[0][0] if rows else 0


def hold_position(stream: str, consumer: str) -> Steps[Change[int]]:
    """Give a consumer's position, and let nobody move it until the transaction ends."""
    yield Statement(_SQL["hold"])
    return Change((yield from position(stream, consumer)))


def save(stream: str, consumer: str, offset: int, expected: int | None) -> Steps[Change[OffsetSave]]:
    """Hold the position, and save if it is ``expected`` (None: if ``offset`` is greater)."""
    found = (yield from hold_position(stream, consumer)).result
    if (offset <= found) if expected is None else (found != expected):
        return Change(OffsetSave(found, False))
    yield from set_position(stream, consumer, offset)
    return Change(OffsetSave(found, True))


def set_position(stream: str, consumer: str, offset: int) -> Steps[None]:
    """Write a position, whatever it was."""
    yield Statement(_SQL["add_stream"], (stream,))
    yield Statement(_SQL["save"], (stream, consumer, offset))


@lru_cache(maxsize=256)
def _topic(stream: str) -> Topic:
    return Topic(STREAM, stream)
