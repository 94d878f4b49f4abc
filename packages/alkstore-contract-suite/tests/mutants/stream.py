"""Engines that store, show or trim events wrongly, or transactions that do, each in exactly one way."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mutant import Patch, mutant

from alkstore import Stream, StreamEvent
from alkstore.engine import EngineTransaction, EventRecord, EventRows, NewEvent, OffsetSave
from alkstore_mem.engine import MemEngine
from alkstore_mem.hold import Position
from alkstore_mem.stream import Log, Streams
from alkstore_mem.transaction import MemTransaction, _Save


class Transacting(MemEngine):
    """An honest engine whose faulty children begin a transaction of their own kind."""

    kind: type[MemTransaction] = MemTransaction

    async def begin(self, *place: Any, **named: Any) -> EngineTransaction:
        tx = await super().begin(*place, **named)
        assert isinstance(tx, MemTransaction)
        tx.__class__ = self.kind
        return tx


# ---------------------------------------------------------------- publishing


@mutant("offsets-start-at-zero", kills="STR-01", wide="whatever reads a stream from its beginning")
def offsets_start_at_zero(patch: Patch) -> None:
    original = Log.__init__

    def init(log: Log, name: str) -> None:
        original(log, name)
        log.last = -1

    patch.attribute(Log, "__init__", init)


@mutant("events-lose-their-headers", kills="STR-01")
class EventsLoseTheirHeaders(MemEngine):
    async def append_events(self, events: Sequence[NewEvent]) -> Sequence[int]:
        return await super().append_events([event._replace(headers=b"{}") for event in events])


@mutant("equal-keys-deduplicate", kills="STR-02")
class EqualKeysDeduplicate(MemEngine):
    async def append_events(self, events: Sequence[NewEvent]) -> Sequence[int]:
        return [await self._append(event) for event in events]

    async def _append(self, event: NewEvent) -> int:
        for record in self._streams.read(event.stream, 0, 1_000):
            if event.key is not None and record.key == event.key:
                return record.offset
        return (await super().append_events([event]))[0]


@mutant("batch-reversed", kills="STR-14")
class BatchReversed(MemEngine):
    async def append_events(self, events: Sequence[NewEvent]) -> Sequence[int]:
        return await super().append_events(list(reversed(events)))


@mutant("batch-stored-in-part", kills="STR-14")
def batch_stored_in_part(patch: Patch) -> None:
    original = Stream.publish_batch

    async def publish_batch(stream: Stream, payloads: Iterable[object], **keywords: Any) -> list[int]:
        try:
            return await original(stream, payloads, **keywords)
        except Exception:
            if isinstance(payloads, list):
                await stream.publish(payloads[0])
            raise

    patch.attribute(Stream, "publish_batch", publish_batch)


@mutant("batch-appended-one-by-one", kills="STR-14")
class BatchAppendedOneByOne(MemEngine):
    async def append_events(self, events: Sequence[NewEvent]) -> Sequence[int]:
        offsets: list[int] = []
        for event in events:
            offsets += await super().append_events([event])
            await asyncio.sleep(0)
        return offsets


# ---------------------------------------------------------------- reading


@mutant("read-since-includes-n", kills="STR-03", wide="whatever reads a stream page by page")
class ReadSinceIncludesN(MemEngine):
    async def read_events(self, stream: str, after: int, limit: int) -> Sequence[EventRecord]:
        return await super().read_events(stream, after - 1, limit)


@mutant("read-ignores-its-limit", kills="STR-03")
class ReadIgnoresItsLimit(MemEngine):
    async def read_events(self, stream: str, after: int, limit: int) -> Sequence[EventRecord]:
        return await super().read_events(stream, after, limit + 1)


@mutant("offset-visible-out-of-order", kills="STR-04")
def offset_visible_out_of_order(patch: Patch) -> None:
    def read(streams: Streams, stream: str, after: int, limit: int) -> EventRows:
        log = streams._logs.get(stream)
        return EventRows(stream, [] if log is None else log.read(after, limit, None))

    patch.attribute(Streams, "read", read)


@mutant("open-tx-holds-every-stream", kills="STR-15")
class OpenTxHoldsEveryStream(MemEngine):
    heads: Mapping[str, int] = {}  # replaced, never changed

    async def begin(self, *place: Any, **named: Any) -> EngineTransaction:
        if not self._state.open:
            self.heads = {name: log.head for name, log in self._streams._logs.items()}
        return await super().begin(*place, **named)

    async def read_events(self, stream: str, after: int, limit: int) -> Sequence[EventRecord]:
        found = await super().read_events(stream, after, limit)
        if not self._state.open:
            return found
        return [record for record in found if record.offset <= self.heads.get(stream, 0)]


@mutant("read-from-consumer-saves", kills="STR-07")
def read_from_consumer_saves(patch: Patch) -> None:
    original = Stream.read_from_consumer

    async def read(stream: Stream, consumer: str, limit: int = 100) -> list[StreamEvent]:
        found = await original(stream, consumer, limit)
        if found:
            await stream.save_offset(consumer, found[-1].offset)
        return found

    patch.attribute(Stream, "read_from_consumer", read)


# ---------------------------------------------------------------- positions and trimming


@mutant("save-offset-moves-backwards", kills="STR-06")
class SaveOffsetMovesBackwards(MemEngine):
    async def move_offset(self, stream: str, consumer: str, offset: int, *, backwards: bool) -> bool:
        return await super().move_offset(stream, consumer, offset, backwards=True)


@mutant("positions-shared-by-streams", kills="STR-06", wide="whatever saves a position beside another one")
class PositionsSharedByStreams(MemEngine):
    async def move_offset(self, stream: str, consumer: str, offset: int, *, backwards: bool) -> bool:
        return await super().move_offset("all", consumer, offset, backwards=backwards)

    async def read_offsets(self, stream: str, consumer: str | None = None) -> Mapping[str, int]:
        return await super().read_offsets("all", consumer)


@mutant("trim-drops-the-event-after-the-horizon", kills="STR-11")
class TrimDropsTheEventAfterTheHorizon(MemEngine):
    async def trim_events(self, stream: str, horizon: int) -> int:
        return await super().trim_events(stream, horizon + 1)


@mutant("trim-resets-numbering", kills="STR-11")
class TrimResetsNumbering(MemEngine):
    async def trim_events(self, stream: str, horizon: int) -> int:
        trimmed = await super().trim_events(stream, horizon)
        log = self._streams.log(stream)
        if not log.read(0, 1, None):
            log.last = 0
        return trimmed


# ---------------------------------------------------------------- transactions: events


class _AppendsAtOnce(MemTransaction):
    async def append_events(self, events: Sequence[NewEvent]) -> Sequence[int]:
        return self._streams.append(events)


@mutant("publish-visible-before-commit", kills="STR-05", wide="whatever publishes in a transaction")
class PublishVisibleBeforeCommit(Transacting):
    kind = _AppendsAtOnce


class _LandsOnRollback(MemTransaction):
    async def rollback(self) -> None:
        for stream, records in self._events.items():
            self._streams.end(stream, self, records)
        self._events.clear()
        await super().rollback()


@mutant("rolled-back-event-stays", kills="STR-05")
class RolledBackEventStays(Transacting):
    kind = _LandsOnRollback


class _IsNeverAbandoned(MemTransaction):
    def abandon(self) -> None:
        """Nobody frees what it holds."""


@mutant("abandoned-tx-holds-readers", kills="STR-05")
class AbandonedTxHoldsReaders(Transacting):
    kind = _IsNeverAbandoned


class _ReadsOthersOnly(MemTransaction):
    async def read_events(self, stream: str, after: int, limit: int) -> Sequence[EventRecord]:
        return EventRows(stream, self._streams.read_within(stream, after, limit, self)[0])


@mutant("tx-read-misses-own-events", kills="STR-12")
class TxReadMissesOwnEvents(Transacting):
    kind = _ReadsOthersOnly


class _ReadsOverHoles(MemTransaction):
    async def read_events(self, stream: str, after: int, limit: int) -> Sequence[EventRecord]:
        others = self._streams.read_within(stream, after, limit, self)[0]
        own = [row for row in self._events.get(stream, ()) if row[0] > after]
        return EventRows(stream, sorted([*others, *own])[:limit])


@mutant("tx-reads-own-events-over-a-hole", kills="STR-12")
class TxReadsOwnEventsOverAHole(Transacting):
    kind = _ReadsOverHoles


# ---------------------------------------------------------------- transactions: positions


class _SavesAtOnce(MemTransaction):
    async def save_offset(self, stream: str, consumer: str, offset: int, expected: int | None) -> OffsetSave:
        save = await super().save_offset(stream, consumer, offset, expected)
        if save.saved:
            self._streams.set_position(stream, consumer, offset)
        return save


@mutant("tx-save-lands-before-commit", kills="STR-12", wide="whatever saves a position in a transaction")
class TxSaveLandsBeforeCommit(Transacting):
    kind = _SavesAtOnce


class _SavesBlindly(MemTransaction):
    async def commit(self) -> None:
        await super().commit()
        for position, save in self._saves.items():
            self._streams.set_position(*position, save.offset)


@mutant("tx-save-overwrites-a-greater-one", kills="STR-06")
class TxSaveOverwritesAGreaterOne(Transacting):
    kind = _SavesBlindly


class _HoldsNothing(MemTransaction):
    async def _hold(self, position: Position) -> None:
        """Nobody waits."""


@mutant("read-from-consumer-holds-nothing", kills="STR-12")
class ReadFromConsumerHoldsNothing(Transacting):
    kind = _HoldsNothing


class _ComparesNothing(_HoldsNothing):
    async def save_offset(self, stream: str, consumer: str, offset: int, expected: int | None) -> OffsetSave:
        position = Position(stream, consumer)
        found = self._position(position)
        resets = self._streams.resets(stream, consumer)
        self._saves[position] = _Save(offset, self._streams.position(stream, consumer), resets)
        return OffsetSave(found, True)


@mutant("tx-save-compares-nothing", kills="STR-12")
class TxSaveComparesNothing(Transacting):
    kind = _ComparesNothing
