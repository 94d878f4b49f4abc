"""Faults that were found in opening, closing and the place of a call, and stay found."""

import asyncio
import gc
import os
import warnings

import pytest
from faulty import FaultyStore

from alkstore import Closed, InvalidArgument, Store
from alkstore.clock import SystemClock
from alkstore.engine import Engine
from alkstore_mem import MemStore
from alkstore_mem.engine import MemEngine


class GatedEngine(MemEngine):
    """An engine whose close lasts until it is let through."""

    def __init__(self, gate: asyncio.Event) -> None:
        super().__init__(SystemClock())
        self._gate = gate
        self.is_closed = False

    async def aclose(self) -> None:
        await self._gate.wait()
        await super().aclose()
        self.is_closed = True


class GatedStore(Store):
    """A store that takes its time to connect and to close."""

    def __init__(self, *, connects: bool = True, closes: bool = True) -> None:
        super().__init__(self._connected, name="gated://")
        self.connecting = asyncio.Event()
        self.closing = asyncio.Event()
        self.engine = GatedEngine(self.closing)
        if connects:
            self.connecting.set()
        if closes:
            self.closing.set()

    async def _connected(self) -> Engine:
        await self.connecting.wait()
        return self.engine


async def test_every_close_returns_only_when_the_store_is_closed() -> None:
    store = await GatedStore(closes=False)
    first = asyncio.create_task(store.aclose())
    await asyncio.sleep(0)

    second = asyncio.create_task(store.aclose())
    for _ in range(10):
        await asyncio.sleep(0)
    was_done = second.done()
    store.closing.set()
    await asyncio.gather(first, second)

    assert (was_done, store.engine.is_closed) == (False, True)


@pytest.mark.parametrize("is_left_open", [True, False])
async def test_a_store_that_is_dropped_unclosed_warns_and_no_other_does(is_left_open: bool) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for drop in (left_open,) if is_left_open else (never_opened, closed):
            await drop()
        gc.collect()

    warned = [str(each.message) for each in told if each.category is ResourceWarning]
    assert ["was never closed" in text for text in warned] == [True] * is_left_open


async def never_opened() -> None:
    _ = MemStore()


async def closed() -> None:
    async with MemStore() as store:
        await store.queue("q").enqueue(1)


async def left_open() -> None:
    store = await MemStore()
    await store.queue("q").enqueue(1)


async def test_a_store_that_is_closed_while_it_opens_does_not_open() -> None:
    store = GatedStore(connects=False)
    opening = asyncio.create_task(enter(store))
    await asyncio.sleep(0)

    await store.aclose()
    store.connecting.set()

    with pytest.raises(Closed):
        await opening
    assert store.engine.is_closed
    with pytest.raises(Closed):
        await store.queues()


async def test_a_call_made_where_no_loop_runs_is_refused_as_one_of_another_loop() -> None:
    async with MemStore() as store:
        calls = [store.queue("q").enqueue(1), store.aclose(), store.queues()]

        def call_without_a_loop() -> list[type[BaseException] | None]:
            return [_error_of(call) for call in calls]

        found = await asyncio.to_thread(call_without_a_loop)

        assert found == [InvalidArgument] * 3


async def test_a_child_forked_within_the_loop_is_told_that_the_store_is_not_its_own() -> None:
    async with MemStore() as store:
        queue = store.queue("q")
        reader, writer = os.pipe()

        child = os.fork()
        if not child:
            try:
                await queue.enqueue(1)
            except InvalidArgument:
                os.write(writer, b"refused")
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            answer = pipe.read()
        await asyncio.to_thread(os.waitpid, child, 0)

        assert answer == b"refused"


async def enter(store: Store) -> None:
    async with store:
        pass


def _error_of(call: object) -> type[BaseException] | None:
    try:
        call.send(None)  # type: ignore[attr-defined]  # a coroutine, driven by hand
    except BaseException as error:
        return type(error)
    return None


async def test_a_store_polls_within_its_interval_and_not_always_after_the_same_time() -> None:
    async with FaultyStore(poll_interval=10) as store:
        pauses = [store._poll_after() for _ in range(100)]

    assert 5 < min(pauses) < max(pauses) <= 10


async def test_a_store_is_opened_once() -> None:
    store = MemStore()
    async with store:
        with pytest.raises(InvalidArgument, match=r"use it, and aclose\(\) it"):
            _ = await store
    with pytest.raises(InvalidArgument, match="make a new one"):
        _ = await store


async def test_a_store_shows_what_it_is_and_whether_it_is_open() -> None:
    async with MemStore() as store:
        shown = repr(store)

    assert (shown, repr(store)) == ("<MemStore mem:// open>", "<MemStore mem:// closed>")
