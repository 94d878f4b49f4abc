import asyncio
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import cast

import pytest
from hanging import HUNG

from alkstore.engine import Engine, EventRecord, NewEvent, NewWake, Topic, TopicKind, Traits, Watch
from alkstore.errors import Closed, CodecError, DatabaseError, InvalidArgument, InvalidName
from alkstore.store import Store
from alkstore.stream import PAGE
from alkstore.testing import ManualClock
from alkstore.values import Wake
from alkstore.watch import Hub

STREAM = Topic(TopicKind.STREAM, "orders")


class Log:
    """An engine with streams and wakes only, whose reads wait at a gate and fail when they are told to."""

    def __init__(self) -> None:
        self.hub = Hub(ManualClock())
        self.events: list[EventRecord] = []
        self.offsets: dict[str, int] = {}
        self.reads: list[int] = []
        self.gate: asyncio.Event | None = None
        self.error: DatabaseError | None = None
        self.traits = Traits()

    def commit(self, *payloads: int, wake: bool = True) -> None:
        for payload in payloads:
            offset = len(self.events) + 1
            self.events.append(EventRecord(offset, "orders", None, str(payload).encode(), b"{}", 0))
        if wake:
            self.hub.wake(STREAM)

    async def append_events(self, events: Sequence[NewEvent]) -> Sequence[int]:
        first = len(self.events) + 1
        self.commit(*(int(event.payload) for event in events))
        return list(range(first, len(self.events) + 1))

    async def read_events(self, stream: str, after: int, limit: int) -> Sequence[EventRecord]:
        self.reads.append(after)
        found = [event for event in self.events if event.offset > after][:limit]
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        return found

    async def read_head(self, stream: str) -> int:
        return len(self.events)

    async def read_offsets(self, stream: str, consumer: str | None = None) -> Mapping[str, int]:
        return self.offsets

    async def move_offset(self, stream: str, consumer: str, offset: int, *, backwards: bool) -> bool:
        before, self.offsets[consumer] = self.offsets.get(consumer, 0), offset
        return backwards or offset > before

    async def notify(self, wakes: Sequence[NewWake]) -> None:
        for wake in wakes:
            self.hub.wake(Topic(TopicKind.CHANNEL, wake.channel))

    async def watch(self, topic: Topic) -> Watch:
        return self.hub.watch(topic)

    async def aclose(self) -> None:
        self.hub.aclose()


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
async def store(log: Log) -> AsyncIterator[Store]:
    async def connect() -> Engine:
        return cast(Engine, log)  # the areas that these tests use

    async with Store(connect, name="log", poll_interval=60) as store, asyncio.timeout(HUNG):
        yield store


async def turn(times: int = 10) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


# ---------------------------------------------------------------- wakes


async def test_a_receiver_gets_one_wake_a_notify_and_nothing_of_other_channels(store: Store) -> None:
    async with store.listen("a") as receiver:
        await store.notify("b")
        await store.notify("a", {"ignored": 1})
        await store.notify("a")

        assert [await receiver.recv(), await receiver.try_recv()] == [Wake("a", False)] * 2
        assert await receiver.try_recv() is None
        assert await receiver.recv_timeout(0) is None
        assert await receiver.recv_timeout(0.001) is None


async def test_a_waiting_receiver_is_woken(store: Store) -> None:
    async with store.listen("a") as receiver:
        waits = [asyncio.ensure_future(receiver.recv())]
        await turn()
        await store.notify("a")
        assert await waits[0] == Wake("a", False)

        waits = [asyncio.ensure_future(receiver.recv_timeout(60))]
        await turn()
        await store.notify("a")
        assert await waits[0] == Wake("a", False)


async def test_a_reconnect_shows_on_the_wake(log: Log, store: Store) -> None:
    async with store.listen("a") as receiver:
        log.hub.reconnected()

        assert await receiver.recv() == Wake("a", True)


async def test_a_reconnect_ends_a_wait_and_stands_for_the_wakes_before_it(log: Log, store: Store) -> None:
    async with store.listen("a") as receiver:
        waiting = asyncio.ensure_future(receiver.recv())
        await turn()
        log.hub.reconnected()
        assert await waiting == Wake("a", True)

        await store.notify("a")
        log.hub.reconnected()

        assert await receiver.recv() == Wake("a", True)
        assert await receiver.try_recv() is None


async def test_cancelling_a_recv_at_any_point_loses_no_wake(store: Store) -> None:
    async with store.listen("a") as receiver:
        for turns in range(6):
            task = asyncio.ensure_future(receiver.recv())
            await turn(turns)
            await store.notify("a")
            task.cancel()
            await asyncio.wait((task,))
            if task.cancelled():
                assert await receiver.try_recv() == Wake("a", False)
            assert await receiver.try_recv() is None


async def test_a_closed_receiver_gives_none_to_recv_and_closed_to_the_others(store: Store) -> None:
    receiver = await store.listen("a")
    waiting = asyncio.ensure_future(receiver.recv())
    await store.notify("a")
    await store.notify("a")
    assert await waiting == Wake("a", False)
    late = asyncio.ensure_future(receiver.recv_timeout(60))
    await turn()
    assert (await late) == Wake("a", False)
    last = asyncio.ensure_future(receiver.recv_timeout(60))
    await turn()

    await receiver.aclose()
    await receiver.aclose()

    with pytest.raises(Closed):
        await last
    assert [await receiver.recv(), await receiver.recv()] == [None, None]
    with pytest.raises(Closed):
        await receiver.try_recv()
    with pytest.raises(Closed):
        await receiver.recv_timeout(1)
    with pytest.raises(InvalidArgument):
        await receiver.recv_timeout(float("nan"))
    assert [wake async for wake in receiver] == []


async def test_a_second_task_in_recv_is_refused_and_the_first_goes_on(store: Store) -> None:
    async with store.listen("a") as receiver:
        first = asyncio.ensure_future(receiver.recv())
        await turn()

        for second in (receiver.recv, receiver.try_recv):
            with pytest.raises(InvalidArgument):
                await second()
        await store.notify("a")

        assert await first == Wake("a", False)


async def test_receivers_end_when_the_engine_can_hear_nothing_any_more(
    log: Log, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    async with store.listen("a") as receiver, store.stream("orders").subscribe() as events:
        waits = [asyncio.ensure_future(receiver.recv()), asyncio.ensure_future(events.recv())]
        await turn()
        log.hub.fail(DatabaseError("watcher died"))

        assert await asyncio.gather(*waits) == [None, None]
        for call in (receiver.try_recv, events.try_recv):
            with pytest.raises(Closed) as caught:
                await call()
            assert isinstance(caught.value.__cause__, DatabaseError)
        assert caplog.text.count("watcher died") == 2
        async with store.listen("a") as again:
            await store.notify("a")
            assert await again.recv() == Wake("a", False)


async def test_a_look_finds_that_the_engine_can_hear_nothing_any_more(log: Log, store: Store) -> None:
    async with store.listen("a") as receiver, store.stream("orders").subscribe() as events:
        log.hub.fail(DatabaseError("watcher died"))

        for call in (receiver.try_recv, events.try_recv):
            with pytest.raises(Closed) as caught:
                await call()
            assert isinstance(caught.value.__cause__, DatabaseError)
        assert await events.recv() is None


async def test_the_stores_end_ends_its_receivers(store: Store) -> None:
    receiver = await store.listen("a")
    events = await store.stream("orders").subscribe(after=0)
    waits = [asyncio.ensure_future(receiver.recv()), asyncio.ensure_future(events.recv())]
    await turn()

    closing = asyncio.ensure_future(store.aclose())

    assert await asyncio.gather(*waits) == [None, None]
    assert await receiver.recv() is None
    assert await events.recv_page() == []
    with pytest.raises(Closed):
        await events.try_recv()
    await closing


async def test_a_hub_that_has_ended_refuses_new_watches(log: Log) -> None:
    await log.aclose()

    with pytest.raises(Closed):
        log.hub.watch(STREAM)


async def test_a_receiver_is_refused_in_another_event_loop(store: Store) -> None:
    async with store.listen("a") as receiver, store.stream("orders").subscribe() as events:
        for receive in (receiver.recv, receiver.try_recv, events.recv, events.try_recv):

            async def elsewhere(receive: Callable[[], Awaitable[object]] = receive) -> None:
                async with asyncio.timeout(HUNG):
                    with pytest.raises(InvalidArgument, match="event loop"):
                        await receive()

            await asyncio.to_thread(asyncio.run, elsewhere())


async def test_a_dropped_receiver_warns_and_hears_no_more(log: Log, store: Store) -> None:
    for opening, topic in (
        (store.listen("a"), Topic(TopicKind.CHANNEL, "a")),
        (store.stream("orders").subscribe(), STREAM),
    ):
        held: list[object] = [await opening]
        gone = weakref.ref(held[0])
        assert log.hub.is_watched(topic)

        with pytest.warns(ResourceWarning, match="never closed"):
            held.clear()
        await turn()

        assert gone() is None
        assert not log.hub.is_watched(topic)


async def test_an_opening_is_used_once(store: Store) -> None:
    opening = store.listen("a")
    async with opening:
        with pytest.raises(InvalidArgument):
            await opening


# ---------------------------------------------------------------- events


async def test_a_subscription_gives_the_backlog_and_then_what_is_published(log: Log, store: Store) -> None:
    stream = store.stream("orders")
    log.commit(*range(1_203))
    async with stream.subscribe(after=0) as events:
        got = [await events.recv() for _ in range(1_203)]
        waiting = asyncio.ensure_future(events.recv())
        await turn()
        await stream.publish(1_203)
        got.append(await waiting)

        assert [event.offset for event in got if event is not None] == list(range(1, 1_205))
        assert await events.try_recv() is None


async def test_a_subscription_starts_where_it_was_told(log: Log, store: Store) -> None:
    log.commit(*range(5))
    log.offsets["mailer"] = 3
    stream = store.stream("orders")

    starts = []
    for opening in (
        stream.subscribe("mailer"),
        stream.subscribe("mailer", after=1),
        stream.subscribe("unknown"),
        stream.subscribe(after=-7),
    ):
        async with opening as events:
            starts.append([event.offset for event in await events.recv_page()])
    async with stream.subscribe() as events:
        assert await events.try_recv() is None
        await stream.publish(1)
        starts.append([event.offset for event in await events.recv_page()])

    assert starts == [[4, 5], [2, 3, 4, 5], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [6]]


async def test_a_receiver_holds_one_page_and_hands_it_out_in_parts(log: Log, store: Store) -> None:
    log.commit(*range(PAGE + 3))
    async with store.stream("orders").subscribe(after=0) as events:
        assert [event.offset for event in await events.recv_page(7)] == list(range(1, 8))
        assert await events.recv_page(0) == []
        assert await events.recv_page(-1) == []
        assert log.reads == [0]
        assert len(await events.recv_page(10_000)) == PAGE - 7
        assert [event.offset for event in await events.recv_page()] == [PAGE + 1, PAGE + 2, PAGE + 3]
        assert log.reads == [0, PAGE]


async def test_a_page_of_one_holds_it_and_one_of_none_waits_for_nothing(log: Log, store: Store) -> None:
    log.commit(1)
    async with store.stream("orders").subscribe(after=0) as events:
        assert [event.offset for event in await events.recv_page(1)] == [1]
        none = asyncio.ensure_future(events.recv_page(0))
        await turn()
        assert none.done()
        assert none.result() == []


async def test_cancelling_a_recv_at_any_point_loses_no_event(log: Log, store: Store) -> None:
    got: list[int] = []
    async with store.stream("orders").subscribe(after=0) as events:
        for at in range(40):
            task = asyncio.ensure_future(events.recv())
            await turn(at % 5)
            log.gate = asyncio.Event() if at % 3 == 0 else None
            log.commit(at)
            await turn(at % 4)
            task.cancel()
            await asyncio.wait((task,))
            if not task.cancelled() and (event := task.result()) is not None:
                got.append(event.offset)
            log.gate = None
        while (event := await events.try_recv()) is not None:
            got.append(event.offset)

    assert got == list(range(1, 41))


async def test_an_event_committed_while_the_page_is_read_is_not_missed(log: Log, store: Store) -> None:
    async with store.stream("orders").subscribe() as events:
        log.gate = asyncio.Event()
        waiting = asyncio.ensure_future(events.recv())
        await turn()
        log.commit(1)
        log.gate.set()
        event = await waiting

        assert event is not None
        assert event.payload == 1


async def test_a_lost_wake_is_made_good_by_the_poll(log: Log) -> None:
    async def connect() -> Engine:
        return cast(Engine, log)  # the areas that this test uses

    async with asyncio.timeout(HUNG), Store(connect, name="log", poll_interval=0.01) as store:
        for traits in (Traits(), Traits(batches=True)):
            log.traits = traits
            async with store.stream("orders").subscribe() as events:
                waiting = asyncio.ensure_future(events.recv())
                await turn()
                log.commit(1, wake=False)

                assert await waiting is not None


async def test_a_failing_read_leaves_the_receiver_where_it_was(log: Log, store: Store) -> None:
    log.commit(1, 2)
    async with store.stream("orders").subscribe(after=0) as events:
        log.error = DatabaseError("disk is gone")
        for call in (events.recv, events.recv_page, events.try_recv):
            with pytest.raises(DatabaseError):
                await call()
        log.error = None

        assert [event.offset for event in await events.recv_page()] == [1, 2]


async def test_a_close_drops_the_page_and_ends_a_recv_that_reads(log: Log, store: Store) -> None:
    log.commit(1, 2)
    events = await store.stream("orders").subscribe(after=0)
    assert await events.recv() is not None
    await events.aclose()
    assert await events.recv() is None

    events = await store.stream("orders").subscribe(after=0)
    log.gate = asyncio.Event()
    waiting = asyncio.ensure_future(events.recv_page())
    await turn()
    await events.aclose()
    log.gate.set()

    assert await waiting == []
    assert [event async for event in events] == []


async def test_a_save_moves_the_position_of_the_subscriptions_consumer(log: Log, store: Store) -> None:
    log.commit(1, 2)
    stream = store.stream("orders")
    async with stream.subscribe("mailer") as events, stream.subscribe(after=0) as nameless:
        event = await events.recv()
        assert event is not None
        assert log.offsets == {}

        await events.save(event)

        assert await stream.get_offset("mailer") == 1
        with pytest.raises(InvalidArgument):
            await nameless.save(event)
        with pytest.raises(InvalidArgument):
            await events.save("1")  # type: ignore[arg-type]  # the case
        with pytest.raises(InvalidArgument):
            await events.save(event, tx=7)  # type: ignore[arg-type]  # the case


async def test_a_subscription_that_cannot_find_its_start_leaves_no_watch(log: Log, store: Store) -> None:
    async def cut(stream: str) -> int:
        raise DatabaseError("server gone")

    log.read_head = cut  # type: ignore[method-assign]  # this fake's fault
    with pytest.raises(DatabaseError):
        await store.stream("orders").subscribe()

    assert not log.hub.is_watched(STREAM)


# ---------------------------------------------------------------- publishing


async def test_a_batch_is_checked_whole_names_first_before_anything_is_stored(log: Log, store: Store) -> None:
    stream = store.stream("orders")
    assert await stream.publish_batch([1, 2], keys=["a", None]) == [1, 2]
    assert await stream.publish_batch(iter([3])) == [3]
    assert await stream.publish_batch([]) == []

    with pytest.raises(InvalidName):
        await stream.publish(object(), key=" ")
    with pytest.raises(InvalidName):
        await stream.publish_batch([object()], keys=[""])
    with pytest.raises(CodecError):
        await stream.publish_batch([1, float("nan")])
    for payloads in ("12", b"12", {"a": 1}, 7):
        with pytest.raises(InvalidArgument):
            await stream.publish_batch(payloads)  # type: ignore[arg-type]  # the case
    with pytest.raises(InvalidArgument):
        await stream.publish_batch([1, 2], keys=["a"])
    with pytest.raises(InvalidArgument):
        await stream.publish_batch([1], key="a", keys=["a"])

    assert len(log.events) == 3


async def test_reads_are_total_over_offsets_and_limits(log: Log, store: Store) -> None:
    log.commit(1, 2, 3)
    stream = store.stream("orders")

    assert [event.offset for event in await stream.read_since(-(2**63))] == [1, 2, 3]
    assert await stream.read_since(2**63 - 1) == []
    assert await stream.read_since(0, 0) == []
    assert await stream.read_since(0, -(2**63)) == []
    assert [event.offset for event in await stream.read_from_consumer("mailer", 2)] == [1, 2]
    with pytest.raises(InvalidArgument):
        await stream.read_since(2**63)
    with pytest.raises(InvalidArgument):
        await stream.read_since(0, True)
    with pytest.raises(InvalidName):
        await stream.read_from_consumer("", 1.5)  # type: ignore[arg-type]  # names come first
