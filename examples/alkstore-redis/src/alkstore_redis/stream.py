"""Streams: how events go to the script and come back."""

from collections.abc import Mapping, Sequence
from typing import Any

from alkstore.engine import EventRecord, NewEvent
from alkstore.errors import show
from alkstore_redis.state import MOST, Area, number, text

__all__ = ["Streams", "event", "packed_event"]


def packed_event(event: NewEvent | EventRecord) -> tuple[object, str, str]:
    """Give of an event what a log of stream.lua holds."""
    return event.key or False, event.payload.decode(), event.headers.decode()


def event(stream: str, values: Sequence[Any]) -> EventRecord:
    """Read an event as `read_events` of stream.lua gives it."""
    offset, key, payload, headers, created_at = values
    return EventRecord(
        number(offset), stream, key or None, payload.encode(), headers.encode(), number(created_at)
    )


class Streams(Area):
    """Everything about events and positions."""

    async def append_events(self, events: Sequence[NewEvent]) -> Sequence[int]:
        given = [
            (each.stream, each.key or False, each.payload.decode(), each.headers.decode()) for each in events
        ]
        return [number(offset) for offset in await self._state.run("append_events", given)]

    async def read_events(self, stream: str, after: int, limit: int) -> Sequence[EventRecord]:
        events, _ = await self._state.run("read_events", stream, text(after), min(limit, MOST), False)
        return [event(stream, values) for values in events]

    async def read_head(self, stream: str) -> int:
        return number(await self._state.run("read_head", stream))

    async def trim_events(self, stream: str, horizon: int) -> int:
        return int(await self._state.run("trim_events", stream, text(horizon)))

    async def read_offsets(self, stream: str, consumer: str | None = None) -> Mapping[str, int]:
        flat = await self._state.run("read_offsets", stream, consumer or False)
        return {flat[at]: number(flat[at + 1]) for at in range(0, len(flat), 2)}

    async def move_offset(self, stream: str, consumer: str, offset: int, *, backwards: bool) -> bool:
        what = f"position of consumer {show(consumer)} in stream {show(stream)}"
        given = (stream, consumer, text(offset), backwards)
        return bool(await self._state.wait_for(what, lambda: self._state.run("move_offset", *given)))
