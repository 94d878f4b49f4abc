"""Receivers of a store on a server, which has the next page read while the application works on the one before."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from hanging import HUNG

from alkstore.engine import Engine, EventRecord, Traits
from alkstore.errors import DatabaseError
from alkstore.store import Store
from alkstore.stream import PAGE, EventReceiver
from alkstore.testing import ManualClock
from alkstore_mem.engine import MemEngine


class Server(MemEngine):
    """Its reads wait at a gate and fail when they are told to."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.reads: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: DatabaseError | None = None

    @property
    def traits(self) -> Traits:
        return Traits(batches=True, reads_apart=True)

    async def read_events(self, stream: str, after: int, limit: int) -> Sequence[EventRecord]:
        self.reads.append(after)
        found = await super().read_events(stream, after, limit)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return found


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def store(server: Server) -> AsyncIterator[Store]:
    async def connect() -> Engine:
        return server

    async with Store(connect, name="server", poll_interval=3_600) as store, asyncio.timeout(HUNG):
        yield store


async def publish(store: Store, count: int) -> None:
    await store.stream("orders").publish_batch(range(count))


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def first_page(events: EventReceiver, server: Server) -> None:
    """Take the first page, and have the next one wait at the gate."""
    page = asyncio.ensure_future(events.recv_page())
    while not server.reads:  # noqa: ASYNC110  # the engine tells nobody
        await asyncio.sleep(0)
    server.gate.clear()
    await page


async def test_the_next_page_is_read_while_the_application_works(store: Store, server: Server) -> None:
    await publish(store, PAGE + 10)
    async with store.stream("orders").subscribe(after=0) as events:
        first = await events.recv_page()

        assert server.reads == [0, PAGE]
        assert [event.payload for event in first] == list(range(PAGE))
        assert [event.payload for event in await events.recv_page()] == list(range(PAGE, PAGE + 10))
        assert server.reads == [0, PAGE]


async def test_nothing_is_read_ahead_while_events_are_held_or_behind_a_page_that_is_not_full(
    store: Store, server: Server
) -> None:
    await publish(store, PAGE + 10)
    async with store.stream("orders").subscribe(after=0) as events:
        await events.recv()
        await events.recv_page(PAGE - 2)
        assert server.reads == [0]
        await events.recv()
        await events.recv_page()

    assert server.reads == [0, PAGE]


@pytest.mark.parametrize("behind", [0, 7])
async def test_what_is_committed_after_a_page_was_read_ahead_comes_next(store: Store, behind: int) -> None:
    await publish(store, PAGE + behind)
    async with store.stream("orders").subscribe(after=0) as events:
        await events.recv_page()
        await store.stream("orders").publish("late")

        seen = [await events.try_recv(), *[await events.recv() for _ in range(behind)]]

        assert [event and event.payload for event in seen] == [*range(PAGE, PAGE + behind), "late"]
        assert await events.try_recv() is None


async def test_a_page_that_could_not_be_read_ahead_is_read_when_it_is_asked_for(
    store: Store, server: Server
) -> None:
    await publish(store, PAGE + 1)
    async with store.stream("orders").subscribe(after=0) as events:
        await first_page(events, server)
        server.error = DatabaseError("restarted")
        server.gate.set()
        await turn()
        server.error = None

        assert [event.offset for event in await events.recv_page()] == [PAGE + 1]
        assert server.reads == [0, PAGE, PAGE]


async def test_cancelling_a_recv_page_in_any_turn_loses_and_doubles_no_event(store: Store) -> None:
    await publish(store, 4 * PAGE)
    async with store.stream("orders").subscribe(after=0) as events:
        seen: list[int] = []
        for turns in range(12):
            asking = asyncio.ensure_future(events.recv_page())
            for _ in range(turns % 4):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait((asking,))
            if not asking.cancelled():
                seen += [event.offset for event in asking.result()]
        while len(seen) < 4 * PAGE:
            seen += [event.offset for event in await events.recv_page()]

    assert seen == list(range(1, 4 * PAGE + 1))


async def test_a_page_that_a_cancelled_call_leaves_is_all_that_is_held(store: Store, server: Server) -> None:
    await publish(store, PAGE + 1)
    async with store.stream("orders").subscribe(after=0) as events:
        asking = asyncio.ensure_future(events.recv_page())
        before = asyncio.all_tasks()
        while asyncio.all_tasks() == before:  # noqa: ASYNC110  # until the next page is about to be read
            await asyncio.sleep(0)
        server.gate.clear()
        asking.cancel()
        await turn()

        assert asking.cancelled()
        assert asyncio.all_tasks() < before
        server.gate.set()
        assert len(await events.recv_page()) == PAGE


async def test_a_cancelled_wait_for_a_page_leaves_it_to_the_next_call(store: Store, server: Server) -> None:
    await publish(store, PAGE + 1)
    async with store.stream("orders").subscribe(after=0) as events:
        await first_page(events, server)
        waiting = asyncio.ensure_future(events.recv())
        await turn()
        waiting.cancel()
        await asyncio.wait((waiting,))
        server.gate.set()

        event = await events.recv()

        assert event is not None
        assert event.offset == PAGE + 1
        assert server.reads == [0, PAGE]


async def test_a_receiver_that_closes_ends_what_it_reads_ahead(store: Store, server: Server) -> None:
    await publish(store, PAGE + 1)
    events = await store.stream("orders").subscribe(after=0)
    await first_page(events, server)
    before = asyncio.all_tasks()

    await events.aclose()
    await turn()

    assert asyncio.all_tasks() < before
    assert await events.recv_page() == []


@pytest.mark.parametrize("error", [None, DatabaseError("server gone")])
async def test_who_closes_a_receiver_that_waits_for_the_next_page_has_nothing_more_read(
    store: Store, server: Server, error: DatabaseError | None
) -> None:
    await publish(store, PAGE + 10)
    async with store.stream("orders").subscribe(after=0) as events:
        await first_page(events, server)
        waiting = asyncio.ensure_future(events.recv())
        await turn()
        server.error = error

        await events.aclose()

        server.gate.set()
        assert await waiting is None
        assert server.reads == [0, PAGE]


async def test_a_read_that_fails_after_the_close_is_no_news(store: Store, server: Server) -> None:
    await publish(store, 1)
    async with store.stream("orders").subscribe(after=0) as events:
        server.gate.clear()
        waiting = asyncio.ensure_future(events.recv())
        await turn()
        server.error = DatabaseError("server gone")

        await events.aclose()

        server.gate.set()
        assert await waiting is None
