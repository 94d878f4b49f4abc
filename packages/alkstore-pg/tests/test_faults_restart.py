"""A server that crashes and comes back under load, and one that lets nobody in (DUR-01, DUR-05)."""

import asyncio
import itertools
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from typing import TypeVar

import asyncpg
import pytest
from broken_network import PATIENCE, backends, begun, outside, terminate, trying
from every_operation import OPERATIONS, RUNNERS

from alkstore import DatabaseError, Lock, Store
from alkstore.engine import TopicKind
from alkstore_pg.contract_server import Server, available
from alkstore_pg.engine import PgEngine
from alkstore_pg.store import PgStore

T = TypeVar("T")

SLOTS = 20


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    if (advice := available(own=True)) is not None:
        pytest.skip(advice)
    with Server.start(own=True, settings={"max_connections": str(SLOTS)}) as server:
        yield server


@pytest.fixture
async def store(own_server: Server) -> AsyncIterator[PgStore]:
    async with PgStore(own_server.dsn, wait_timeout=5, pool_size=4) as store:
        yield store


async def again(work: Callable[[], Awaitable[T]]) -> T:
    """Do something until the server lets it be done."""
    while True:
        try:
            return await work()
        except DatabaseError:
            await asyncio.sleep(0.005)


class Load:
    """Everybody works, and writes down what he was told."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.acked: set[str] = set()
        self.denied: set[str] = set()
        self.handled: defaultdict[str, set[int]] = defaultdict(set)
        self.received: list[str] = []
        self.keys = (f"{how} {number}" for number in itertools.count() for how in ("single", "whole"))
        self.is_over = False

    async def produce(self) -> None:
        queue = self.store.queue("jobs", visibility_timeout=0.5, max_attempts=100)
        for key in self.keys:
            if self.is_over:
                return
            try:
                if key.startswith("single"):
                    await queue.enqueue(key)
                else:
                    async with self.store.begin_tx() as tx:
                        await tx.enqueue(queue, key)
                        await tx.publish("events", key)
                self.acked.add(key)
            except DatabaseError as error:
                if not error.outcome_unknown:
                    self.denied.add(key)
                await asyncio.sleep(0.005)

    async def work(self) -> None:
        claims = self.store.queue("jobs").claims()
        while True:
            handle = await again(lambda: anext(claims))
            self.handled[handle.job.payload_as(str)].add(handle.job.id)
            await again(handle.ack)

    async def receive(self) -> None:
        async with self.store.stream("events").subscribe(after=0) as events:
            while event := await again(events.recv):
                self.received.append(event.payload_as(str))

    async def more(self, count: int = 100) -> None:
        """Wait until so much more was acknowledged."""
        enough = len(self.acked) + count
        async with asyncio.timeout(PATIENCE):
            while len(self.acked) < enough:  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.005)

    async def come_to_an_end(self, events: Sequence[str]) -> None:
        """Wait until everything was handled and received."""
        async with asyncio.timeout(PATIENCE):
            while not self.acked | set(events) <= self.handled.keys() or len(self.received) < len(events):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_what_was_acknowledged_is_there_after_crashes_and_everybody_goes_on(
    own_server: Server, store: PgStore
) -> None:
    load = Load(store)
    async with asyncio.TaskGroup() as group:
        producing = [group.create_task(load.produce()) for _ in range(4)]
        others = [group.create_task(work()) for work in (load.work, load.work, load.receive)]
        for _ in range(2):
            await load.more()
            await asyncio.to_thread(own_server.restart, "immediate")
        await load.more()
        load.is_over = True
        await asyncio.wait(producing)
        events = [event.payload_as(str) for event in await store.stream("events").read_since(0, 100_000)]
        await load.come_to_an_end(events)
        for task in others:
            task.cancel()

    assert load.handled.keys() & load.denied == set()
    assert [key for key, ids in load.handled.items() if len(ids) > 1] == []
    assert load.received == events
    assert [key for key, count in Counter(events).items() if count > 1] == []
    assert set(events) == {key for key in load.handled if key.startswith("whole")}


async def test_waits_that_began_before_a_crash_end_as_they_would_have(
    own_server: Server, store: PgStore
) -> None:
    held = await store.try_lock("held", 60)
    assert held is not None
    async with store.listen("news") as wakes, store.stream("log").subscribe() as events:
        claim = asyncio.create_task(again(store.queue("waited for").claim))
        event = asyncio.create_task(again(events.recv))
        lock = asyncio.create_task(again(lambda: _take(store)))
        await until_watched(store, TopicKind.QUEUE, TopicKind.STREAM, TopicKind.LOCK)
        await asyncio.to_thread(own_server.restart, "immediate")

        assert (await again(lambda: wakes.recv())) is not None  # some may have been lost
        async with PgStore(own_server.dsn) as other, asyncio.timeout(PATIENCE):
            await other.queue("waited for").enqueue("job")
            await other.stream("log").publish("event")
            await again(held.release)
            handle, found = await claim, await event
            assert handle is not None
            assert found is not None
            assert (handle.job.payload, found.payload) == ("job", "event")
            assert await (await lock).release()


async def _take(store: Store) -> Lock:
    return await store.lock("held")


async def until_watched(store: PgStore, *kinds: TopicKind) -> None:
    engine = store._engine
    assert isinstance(engine, PgEngine)
    async with asyncio.timeout(PATIENCE):
        while not set(kinds) <= {topic.kind for topic in engine.wakes.hub.topics()}:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_where_no_connection_is_left_everything_fails_for_sure_and_then_goes_on(
    own_server: Server,
) -> None:
    database = own_server.create_database("full")
    async with AsyncExitStack() as stack:
        trials = await stack.enter_async_context(trying(database, wait_timeout=0.5))
        names = [name for name in OPERATIONS if name not in (*RUNNERS, "Store.join")]
        made = {name: (await trials.reference(name), await trials.things(name))[1] for name in names}
        await terminate(trials.outsider, await backends(trials.outsider))
        async with AsyncExitStack() as fillers:
            with suppress(asyncpg.TooManyConnectionsError):
                while True:
                    _ = await fillers.enter_async_context(outside(database))
            with pytest.raises(DatabaseError, match="raise max_connections"):
                _ = await PgStore(database, wait_timeout=0.5)
            for name in names:
                running = begun(name, made[name])
                assert await trials.end_of(name, made[name], running) is None
                error = running.exception()
                assert isinstance(error, DatabaseError), name
                assert not error.outcome_unknown, name
        names.remove("Store.listen")  # the listener pauses for up to 5 s
        for name in names:
            running = begun(name, made[name])
            assert await trials.end_of(name, made[name], running) is None
            assert running.exception() is None, name
