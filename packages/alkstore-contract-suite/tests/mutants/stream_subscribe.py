"""Subscriptions with gaps, duplicates, or a will of their own."""

from collections.abc import Awaitable, Callable
from typing import Any

from mutant import Patch, mutant

from alkstore import EventReceiver, Stream, StreamEvent
from alkstore import stream as streaming

Read = Callable[[Any], Awaitable[None]]


def _reading(name: str, kills: str) -> Callable[[Callable[[Read], Read]], None]:
    """Declare a mutant whose receivers read a page in their own way; it is given the honest one."""

    def declare(make: Callable[[Read], Read]) -> None:
        def plant(patch: Patch) -> None:
            patch.attribute(EventReceiver, "_read", make(EventReceiver._read))

        mutant(name, kills=kills)(plant)

    return declare


async def _head(receiver: Any) -> int:
    head: int = await receiver._store._engine.read_head(receiver._stream.name)
    return head


@mutant("subscribe-without-a-start-replays", kills="STR-08")
def subscribe_without_a_start_replays(patch: Patch) -> None:
    original = Stream._start

    async def start(stream: Stream, consumer: str | None, after: int | None) -> int:
        return 0 if consumer is None and after is None else await original(stream, consumer, after)

    patch.attribute(Stream, "_start", start)


@_reading("subscription-starts-at-its-first-read", "STR-08")
def subscription_starts_at_its_first_read(honest: Read) -> Read:
    async def read(receiver: Any) -> None:
        if receiver._consumer is None and not hasattr(receiver, "has_read"):
            receiver._after = max(receiver._after, await _head(receiver))
        receiver.has_read = True
        await honest(receiver)

    return read


@_reading("pages-skip-an-event", "STR-08")
def pages_skip_an_event(honest: Read) -> Read:
    async def read(receiver: Any) -> None:
        await honest(receiver)
        if receiver._is_behind:
            receiver._after += 1

    return read


@_reading("gap-between-backlog-and-live", "STR-08")
def gap_between_backlog_and_live(honest: Read) -> Read:
    async def read(receiver: Any) -> None:
        # The backlog was read once; what came between that and the first wake is taken for read.
        if getattr(receiver, "is_live", False) is None:
            receiver._after = max(receiver._after, await _head(receiver) - 1)
            receiver.is_live = True
        await honest(receiver)
        if not hasattr(receiver, "is_live"):
            receiver.is_live = None

    return read


@_reading("duplicate-between-backlog-and-live", "STR-08")
def duplicate_between_backlog_and_live(honest: Read) -> Read:
    async def read(receiver: Any) -> None:
        await honest(receiver)
        if receiver._page and not hasattr(receiver, "is_live"):
            receiver._after -= 1
        receiver.is_live = True

    return read


@mutant("recv-saves-by-itself", kills="STR-08")
def recv_saves_by_itself(patch: Patch) -> None:
    original = EventReceiver.recv

    async def recv(receiver: EventReceiver) -> StreamEvent | None:
        event = await original(receiver)
        if event is not None and receiver._consumer is not None:
            await receiver.save(event)
        return event

    patch.attribute(EventReceiver, "recv", recv)


@mutant("receivers-of-a-consumer-share-events", kills="STR-09")
def receivers_of_a_consumer_share_events(patch: Patch) -> None:
    original = EventReceiver.recv
    given: set[tuple[Any, ...]] = set()

    async def recv(receiver: EventReceiver) -> StreamEvent | None:
        while (event := await original(receiver)) is not None:
            place = (id(receiver._store), event.stream, receiver._consumer, event.offset)
            if receiver._consumer is None or place not in given:
                given.add(place)
                return event
        return None

    patch.attribute(EventReceiver, "recv", recv)


@_reading("stalled-subscriber-drops", "STR-10")
def stalled_subscriber_drops(honest: Read) -> Read:
    async def read(receiver: Any) -> None:
        receiver._after = max(receiver._after, await _head(receiver) - streaming.PAGE)
        await honest(receiver)

    return read


@mutant("stalled-subscriber-hoards", kills="STR-10")
def stalled_subscriber_hoards(patch: Patch) -> None:
    patch.attribute(streaming, "PAGE", 100_000)


@mutant("receiver-saves-outside-its-tx", kills="STR-06")
def receiver_saves_outside_its_tx(patch: Patch) -> None:
    original = EventReceiver.save

    async def save(receiver: EventReceiver, event: StreamEvent, *, tx: Any = None) -> None:
        if tx is None:
            await original(receiver, event)
        else:
            engine, name = receiver._store._engine, receiver._stream.name
            await engine.move_offset(name, receiver._consumer or "", event.offset, backwards=False)

    patch.attribute(EventReceiver, "save", save)
