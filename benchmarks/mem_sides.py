"""The sides in memory: a store, a bare skeleton of dictionaries and heaps that encodes and checks the same way, and
`asyncio.Queue`, which keeps no claims, no order but its own, no delays, and the very objects that it was given.
"""

import asyncio
import heapq
import time
from typing import Any, NamedTuple, Self

from harness import PAYLOAD
from store_side import StoreSide

from alkstore.payload import decode, encode
from alkstore_mem import MemStore

__all__ = ["AsyncioQueue", "Ours", "Skeleton"]


class Ours(StoreSide):
    """The store, through its public interface."""

    async def open(self, place: object, setting: str) -> Self:
        self._use(await MemStore())
        return self


class Row(NamedTuple):
    """What the skeleton keeps of a job."""

    id: int
    payload: bytes
    priority: int
    run_at: int
    attempts: int


class Skeleton:
    """Dictionaries and heaps: the least that claims in order of priority and time need, with nothing that waits or wakes."""

    payload: object = PAYLOAD

    async def open(self, place: object, setting: str) -> Self:
        self._rows: dict[int, Row] = {}
        self._ready: list[tuple[int, int, int]] = []
        self._held: dict[int, tuple[Row, int]] = {}
        self._deadlines: list[tuple[int, int]] = []
        self._events: list[bytes] = []
        self._last = self._read = 0
        return self

    async def close(self) -> None:
        self._rows.clear()

    async def enqueue(self) -> int:
        self._last += 1
        row = Row(self._last, encode(self.payload), 0, time.time_ns() // 1_000, 0)
        self._rows[row.id] = row
        heapq.heappush(self._ready, (-row.priority, row.run_at, row.id))
        return row.id

    async def enqueue_many(self, count: int) -> list[int]:
        return [await self.enqueue() for _ in range(count)]

    async def claim(self) -> tuple[Row, Any]:
        _, _, id = heapq.heappop(self._ready)
        row, deadline = self._rows[id], time.time_ns() // 1_000 + 300_000_000
        self._held[id] = (row, deadline)
        heapq.heappush(self._deadlines, (deadline, id))
        return row, decode(row.payload)

    def ack(self, row: Row) -> None:
        del self._held[row.id], self._rows[row.id]
        while self._deadlines and self._deadlines[0][1] not in self._held:
            heapq.heappop(self._deadlines)

    async def claim_and_ack(self) -> None:
        row, _ = await self.claim()
        self.ack(row)

    async def claim_and_ack_many(self, count: int) -> None:
        for row, _ in [await self.claim() for _ in range(count)]:
            self.ack(row)

    async def publish(self) -> int:
        self._events.append(encode(self.payload))
        return len(self._events)

    async def publish_many(self, count: int) -> list[int]:
        return [await self.publish() for _ in range(count)]

    async def replay(self, count: int) -> None:
        for event in self._events[self._read : self._read + count]:
            assert decode(event) is not None
        self._read += count


class AsyncioQueue:
    """`asyncio.Queue`, with ``task_done`` for an ack."""

    payload: object = PAYLOAD

    async def open(self, place: object, setting: str) -> Self:
        self._queue: asyncio.Queue[object] = asyncio.Queue()
        return self

    async def close(self) -> None:
        pass

    async def enqueue(self) -> None:
        await self._queue.put(self.payload)

    async def enqueue_many(self, count: int) -> None:
        for _ in range(count):
            self._queue.put_nowait(self.payload)

    async def claim_and_ack(self) -> None:
        await self._queue.get()
        self._queue.task_done()

    async def claim_and_ack_many(self, count: int) -> None:
        for _ in range(count):
            await self.claim_and_ack()
