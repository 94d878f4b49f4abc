"""Streams: publishing, reading, positions, and receivers that page through the log."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Self

from alkstore import names, numbers
from alkstore.draft import new_event, new_events
from alkstore.engine import EventRecord, Signal, Topic, TopicKind, Watch
from alkstore.entering import AwaitableContext
from alkstore.errors import Closed, DatabaseError, InvalidArgument, show
from alkstore.pausing import Pause
from alkstore.values import StreamEvent, stream_events
from alkstore.wake import Receiver

if TYPE_CHECKING:
    from alkstore.store import Store
    from alkstore.transaction import Tx

__all__ = ["EventReceiver", "Stream"]

PAGE: Final = 500
"""Events that a receiver holds at most: what bounds its memory, and what one round trip brings."""


class Stream:
    """An append-only log of events with one saved position a consumer. A handle: it holds nothing.

    Every operation raises `Closed` after the store's end and `DatabaseError` if the engine failed.
    """

    __slots__ = ("_name", "_store")

    def __init__(self, store: "Store", name: str) -> None:
        self._store = store
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f"Stream({self._name!r})"

    # ------------------------------------------------------------ publish

    async def publish(
        self, payload: object, *, key: str | None = None, headers: Mapping[str, str] | None = None
    ) -> int:
        """Append one event and give its offset.

        Args:
            payload: A JSON value.
            key: Carried along for readers; it orders and deduplicates nothing.
            headers: Text to text, 8 KiB at most, for trace context and the like.

        Raises:
            InvalidName: ``key`` is blank or too long.
            CodecError: ``payload`` is no JSON value.
            InsideTransaction: The task is inside a transaction; use ``tx.publish``.

        Cost: one round trip, shared with what is awaited at the same time. Rows: STR-01, STR-02.
        """
        event = new_event(self._name, payload, key, headers)
        self._store._check("Stream.publish", "tx.publish", write=True)
        return (await self._store._writer.append_events((event,)))[0]

    async def publish_batch(
        self, payloads: Iterable[object], *, key: str | None = None, keys: Iterable[str | None] | None = None
    ) -> list[int]:
        """Append all or none; gives the offsets, increasing, in the order of ``payloads``.

        Args:
            key: The key of every event.
            keys: One key (or None) a payload, in place of ``key``.

        Raises:
            InvalidArgument: ``payloads`` is text, bytes or a mapping; ``keys`` do not match them.
            InvalidName, CodecError, InsideTransaction: As `publish`; nothing is stored.

        Cost: one round trip. Rows: STR-14.
        """
        events = new_events(self._name, payloads, key, keys)
        self._store._check("Stream.publish_batch", "tx.publish_batch", write=True)
        return list(await self._store._writer.append_events(events)) if events else []

    # ------------------------------------------------------------ read

    async def read_since(self, offset: int, limit: int = 100) -> list[StreamEvent]:
        """Give the events after an offset, ascending, ``limit`` at most; a negative offset reads from the start.

        Cost: one round trip; never waits for a writer. Rows: STR-03, STR-04.
        """
        after = numbers.integer(offset, "offset")
        count = numbers.extent(limit, "limit")
        self._store._check("Stream.read_since", write=False)
        return stream_events(await self._read(after, count))

    async def read_from_consumer(self, consumer: str, limit: int = 100) -> list[StreamEvent]:
        """Give the events after a consumer's saved position, ``limit`` at most; saves nothing.

        Cost: two round trips. Rows: STR-07.
        """
        who = names.local(consumer, "consumer")
        count = numbers.extent(limit, "limit")
        self._store._check("Stream.read_from_consumer", write=False)
        after = await self._position(who)
        return stream_events(await self._read(after, count))

    async def head(self) -> int:
        """Give the greatest offset that a reader may see now; 0 if there never was one. Rows: ADM-01."""
        self._store._check("Stream.head", write=False)
        return await self._store._engine.read_head(self._name)

    def subscribe(
        self, consumer: str | None = None, *, after: int | None = None
    ) -> AwaitableContext["EventReceiver"]:
        """Open a receiver: ``async with stream.subscribe("mailer") as events``.

        Args:
            consumer: Starts after its saved position; it is what `EventReceiver.save` saves for.
            after: Starts after this offset instead. With neither, from now on.

        Cost: two round trips on entering, then one a page. Rows: STR-08 to STR-11.
        """
        who = None if consumer is None else names.local(consumer, "consumer")
        start = None if after is None else numbers.integer(after, "after")

        async def open_receiver() -> EventReceiver:
            store = self._store
            store._check("Stream.subscribe", write=False)
            # Watch first, then look where to start: the other way round loses what is committed in between.
            watch = await store._watch(Topic(TopicKind.STREAM, self._name))
            try:
                after = await self._start(who, start)
                store._check("Stream.subscribe", write=False)  # closed meanwhile, perhaps
                return EventReceiver(self, who, watch, after)
            except BaseException:
                watch.close()
                raise

        return AwaitableContext(open_receiver, EventReceiver.aclose)

    async def _start(self, consumer: str | None, after: int | None) -> int:
        if after is not None:
            return after
        if consumer is not None:
            return await self._position(consumer)
        return await self._store._engine.read_head(self._name)

    # ------------------------------------------------------------ positions and trimming

    async def get_offset(self, consumer: str) -> int:
        """Give a consumer's saved position; 0 if it never saved. Rows: STR-06."""
        who = names.local(consumer, "consumer")
        self._store._check("Stream.get_offset", write=False)
        return await self._position(who)

    async def save_offset(self, consumer: str, offset: int) -> bool:
        """Move a consumer's position forward, past the end too; False if it was there or further. Rows: STR-06."""
        who = names.local(consumer, "consumer")
        target = numbers.integer(offset, "offset")
        self._store._check("Stream.save_offset", "tx.save_offset", write=True)
        return await self._store._engine.move_offset(self._name, who, target, backwards=False)

    async def reset_offset(self, consumer: str, offset: int) -> None:
        """Set a consumer's position, backwards too. Rows: STR-06."""
        who = names.local(consumer, "consumer")
        target = numbers.integer(offset, "offset")
        self._store._check("Stream.reset_offset", write=True)
        await self._store._engine.move_offset(self._name, who, target, backwards=True)

    async def consumers(self) -> dict[str, int]:
        """Give every saved position by consumer, sorted by name."""
        self._store._check("Stream.consumers", write=False)
        return dict(sorted((await self._store._engine.read_offsets(self._name)).items()))

    async def trim_to(self, horizon: int) -> int:
        """Delete the events with offset <= ``horizon``; gives how many. Positions and numbering stay. Rows: STR-11."""
        last = numbers.integer(horizon, "horizon")
        self._store._check("Stream.trim_to", write=True)
        return await self._store._engine.trim_events(self._name, last)

    async def _position(self, consumer: str) -> int:
        return (await self._store._engine.read_offsets(self._name, consumer)).get(consumer, 0)

    async def _read(self, after: int, limit: int) -> Sequence[EventRecord]:
        # The seam asks for one event or more, and behind the greatest offset there is none.
        if limit == 0 or after == numbers.MAX_INT64:
            return ()
        return await self._store._engine.read_events(self._name, max(after, 0), limit)


class EventReceiver(Receiver):
    """Gives a stream's events in order, the backlog first, then each as it is committed. Saves nothing by itself.

    It holds one page of at most 500 events. An event leaves the page only in the step that hands it over, so a cancelled
    call loses none. Whether there is more is decided by reading: a wake or ``poll_interval`` only says when to look. From a
    server the next page is read while the application works on one that it got whole: then that is the one held.
    Made by `Stream.subscribe`. Rows: STR-08 to STR-11, STR-13, WAKE-06, WAKE-09.
    """

    def __init__(self, stream: Stream, consumer: str | None, watch: Watch, after: int) -> None:
        self._stream = stream
        self._consumer = consumer
        self._after = after
        self._page: list[StreamEvent] = []
        """The next one at its end, whence it is taken without moving the others."""
        self._is_behind = True
        self._is_full = False
        self._ahead: asyncio.Task[Sequence[EventRecord]] | None = None
        super().__init__(stream._store, watch)

    def __repr__(self) -> str:
        return f"<EventReceiver {self._stream.name!r} {'closed' if self._is_ended else 'open'}>"

    async def recv(self) -> StreamEvent | None:
        """Wait for the next event; None once the receiver is closed, again and again. Cancelling it loses nothing.

        Raises:
            InvalidArgument: Another task is receiving.
            DatabaseError: The engine failed; the receiver stays open and goes on from here.

        Rows: STR-08, WAKE-06, WAKE-09.
        """
        if not self._begin("EventReceiver.recv"):
            return None
        try:
            return self._page.pop() if await self._fill() else None
        finally:
            self._is_receiving = False

    async def recv_page(self, limit: int = PAGE) -> list[StreamEvent]:
        """Wait for at least one event and give what is there, ``limit`` and 500 at most; [] once closed.

        Raises:
            InvalidArgument, DatabaseError: As `recv`.

        Rows: WAKE-06, NAME-08.
        """
        count = numbers.extent(limit, "limit")
        if not self._begin("EventReceiver.recv_page"):
            return []
        try:
            if count == 0 or not await self._fill():
                return []
            if self._is_full and count >= len(self._page) and self._store._engine.traits.reads_apart:
                await self._begin_to_read_ahead()
            return self._hand_out(count)
        finally:
            self._is_receiving = False

    async def try_recv(self) -> StreamEvent | None:
        """Give the next event, or None if no later one is committed.

        Raises:
            Closed: The receiver is closed.
            InvalidArgument, DatabaseError: As `recv`.

        Cost: one round trip when no event is held. Rows: WAKE-06.
        """
        if not self._begin("EventReceiver.try_recv"):
            raise self._closed()
        try:
            if not self._page and self._can_hear():
                await self._read()
            if not self._is_ended:
                return self._page.pop() if self._page else None
        finally:
            self._is_receiving = False
        raise self._closed()

    async def save(self, event: StreamEvent, *, tx: "Tx | None" = None) -> None:
        """Move the consumer's position to an event, forward only; on a closed receiver too, while the store is open.

        Args:
            tx: Saves with this transaction, as `Tx.save_offset` does.

        Raises:
            InvalidArgument: Subscribed without a consumer, or the event is of another stream.
            OffsetConflict: In a transaction: the position is not where that transaction read it.
            InsideTransaction: The task is inside a transaction that was not given.

        Rows: STR-06, STR-12.
        """
        offset, consumer = self._checked(event)
        if tx is not None:
            from alkstore.transaction import Tx  # it imports this module

            if not isinstance(tx, Tx):
                raise InvalidArgument(f"tx must be an open transaction of this store, got {show(tx)}")
            await tx.save_offset(self._stream, consumer, offset)
            return
        self._store._check("EventReceiver.save", "EventReceiver.save(event, tx=tx)", write=True)
        await self._store._engine.move_offset(self._stream.name, consumer, offset, backwards=False)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamEvent:
        if self._page and self._begin("EventReceiver.recv"):  # spared two coroutines an event
            self._is_receiving = False
            return self._page.pop()
        event = await self.recv()
        if event is None:
            raise StopAsyncIteration
        return event

    # ------------------------------------------------------------ within core

    def _checked(self, event: StreamEvent) -> tuple[int, str]:
        if not isinstance(event, StreamEvent) or event.stream != self._stream.name:
            raise InvalidArgument(
                f"save takes an event of stream {show(self._stream.name)}, got {show(event)}"
            )
        if self._consumer is None:
            raise InvalidArgument("save needs a consumer; subscribe with one, as in subscribe('mailer')")
        return event.offset, self._consumer

    def _end(self) -> None:
        super()._end()
        self._page.clear()
        if self._ahead is not None:
            self._ahead.cancel()

    async def _fill(self) -> bool:
        """Hold at least one event, waiting for it; False once ended."""
        while not self._page and not self._is_ended:
            if self._is_behind or await self._hear():
                await self._read()
        return not self._is_ended

    def _hand_out(self, count: int) -> list[StreamEvent]:
        events = self._page
        if count < len(events):
            events, self._page = events[-count:], events[:-count]
        else:
            self._page = []
        events.reverse()
        return events

    async def _hear(self) -> bool:
        """Wait until it is worth reading again; False if there will be nothing more to hear."""
        try:
            signal = await Pause().wait(self._watch, timeout=self._store._poll_after())
        except DatabaseError as error:
            self._fail(error)
            return False
        return self._note(signal)

    def _can_hear(self) -> bool:
        try:
            return self._note(self._watch.poll())
        except DatabaseError as error:
            self._fail(error)
            return False

    def _note(self, signal: Signal | None) -> bool:
        if signal is Signal.CLOSED:
            self._end()
        # Remembered until a read succeeds: a cancelled or failed read must not use up the wake.
        self._is_behind = True
        return not self._is_ended

    async def _read(self) -> None:
        records = () if self._ahead is None else await self._read_before(self._ahead)
        if not (was_ahead := bool(records)) and not self._is_ended:
            try:
                records = await self._stream._read(self._after, PAGE)
            except Closed:
                self._end()
            except DatabaseError:
                if not self._is_ended:  # it is nothing to who has closed it
                    raise
        if self._is_ended:  # closed meanwhile: what came in after that is dropped as well
            return
        self._is_full = len(records) >= PAGE
        # What was read ahead says nothing of what was committed since, and the wake of that may have been taken.
        self._is_behind = self._is_full or was_ahead
        if records:
            self._page = stream_events(records)
            self._after = self._page[-1].offset
            self._page.reverse()

    # ------------------------------------------------------------ reading ahead

    async def _begin_to_read_ahead(self) -> None:
        ahead = self._ahead = self._store._spawn(self._stream._read(self._after, PAGE))
        try:
            await asyncio.sleep(0)  # the server is to have it before the application keeps the loop
        except asyncio.CancelledError:
            ahead.cancel()  # the page in hand stays, and one is all that is held
            raise

    async def _read_before(self, ahead: asyncio.Task[Sequence[EventRecord]]) -> Sequence[EventRecord]:
        """Give what was read ahead; nothing if that failed: nobody had asked for it."""
        if not ahead.done():
            await asyncio.wait((ahead,))  # a cancelled call leaves it to the next one
        self._ahead = None
        return () if ahead.cancelled() or ahead.exception() is not None else ahead.result()
