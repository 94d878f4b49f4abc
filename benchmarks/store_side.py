"""A store as a side of the benchmarks, through its public interface, on whatever engine it is."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from harness import PAYLOAD

from alkstore import EventReceiver, Queue, Store, Stream
from alkstore.worker import Worker, handle

__all__ = ["NAME", "StoreSide"]

NAME = "bench"
AT_ONCE, PREFETCH = 100, 20
"""Of the worker: what `worker.py` found to be the fastest on every engine, or near to it."""


class StoreSide:
    """Who inherits opens the store."""

    payload: object = PAYLOAD
    _store: Store
    _queue: Queue
    _stream: Stream

    def _use(self, store: Store) -> None:
        self._store, self._queue, self._stream = store, store.queue(NAME), store.stream(NAME)
        self._life = AsyncExitStack()
        self._events: EventReceiver | None = None

    async def close(self) -> None:
        await self._life.aclose()
        await self._store.aclose()

    async def enqueue(self) -> int:
        return await self._queue.enqueue(self.payload)

    async def enqueue_many(self, count: int) -> list[int]:
        return await self._queue.enqueue_batch([self.payload] * count)

    async def claim_and_ack(self) -> None:
        handle = await self._queue.claim_one()
        assert handle is not None
        assert await handle.ack()

    async def claim_and_ack_many(self, count: int) -> None:
        handles = await self._queue.claim_batch(count)
        assert len(handles) == count
        assert all(await asyncio.gather(*(handle.ack() for handle in handles)))

    async def publish(self) -> int:
        return await self._stream.publish(self.payload)

    async def publish_many(self, count: int) -> list[int]:
        return await self._stream.publish_batch([self.payload] * count)

    async def replay(self, count: int) -> None:
        """Go on with what was read before, or begin with the first event."""
        if self._events is None:
            self._events = await self._life.enter_async_context(self._stream.subscribe(after=0))
        while count > 0:
            page = await self._events.recv_page(count)
            assert page
            for event in page:
                assert event.payload is not None
            count -= len(page)

    async def lock(self) -> None:
        lock = await self._store.try_lock(NAME, 30)
        assert lock is not None
        assert await lock.release()

    async def work(self, count: int) -> None:
        assert await self.drain() >= count

    async def drain(self) -> int:
        """Work off what waits, beside other processes or alone."""
        worker = Worker(self._store, {NAME: handle(_work, concurrency=AT_ONCE)}, prefetch=PREFETCH)
        return (await worker.run_until_idle()).done


def _use(value: object) -> None:
    assert value is not None


async def _work(payload: dict[str, Any]) -> None:
    _use(payload)
