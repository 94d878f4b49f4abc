"""The peers on SQLite, each by its public interface, as its documentation says, in the configuration that is fastest here.

Their calls are synchronous and end before they return. So there are two readings of each: called where they stand, which is
the fastest and keeps the event loop from everybody else for as long as the file is locked or the disk is slow, and "in a
thread", one thread of its own, as a program with an event loop has to call them, and as aiosqlite calls SQLite. "power" is synchronous FULL; "process" is NORMAL, but for huey,
whose switch knows FULL and OFF only and gets OFF: less than alkstore promises, and faster.

huey keeps no claim: what is dequeued is gone, and a crash loses it. It has nothing to enqueue many by.
litequeue keeps what is done until it is pruned; it has one transaction for many puts, and nothing to claim many by.
persist-queue keeps what is acked until it is cleared, and has nothing to do many by; its own switch has no synchronous, so
that is set on its connection.
honker, where it can be imported: many enqueues share one of its transactions, what is claimed by 100 is acked by a list.
"""

import asyncio
import importlib
import json
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Self

from harness import PAYLOAD
from sqlite_sides import OWN_ROW, OWN_TABLE, Durability

__all__ = ["PEERS", "THREADED", "Honker", "Huey", "Litequeue", "PersistQueue"]

WORKER: Final = "worker-1"
PRUNED: Final = 1_000
"""Jobs done until the peers that keep them are told to forget them."""
WORKERS: Final = 1
"""Threads of huey's consumer: its own default."""
PATIENCE: Final = 300.0
SYNCHRONOUS: Final[dict[Durability, str]] = {"process": "NORMAL", "power": "FULL"}


class Huey:
    """SqliteHuey with its default cache and journal (WAL)."""

    payload: object = PAYLOAD

    async def open(self, path: Path, durability: Durability) -> Self:
        logging.getLogger("huey").setLevel(logging.WARNING)
        module = importlib.import_module("huey")
        # No results: a task that gives None stores none either way.
        self._huey: Any = module.SqliteHuey(
            "bench", filename=str(path), fsync=durability == "power", results=False
        )
        self._done, self._left = threading.Event(), 0

        def task(payload: object) -> None:
            assert payload is not None
            self._left -= 1
            if self._left == 0:
                self._done.set()

        self._task: Any = self._huey.task()(task)
        return self

    async def close(self) -> None:
        self._huey.storage.close()

    async def enqueue(self) -> object:
        return self._task(self.payload)

    async def enqueue_many(self, count: int) -> object:
        return [self._task(self.payload) for _ in range(count)]

    async def claim_and_ack(self) -> None:
        task = self._huey.dequeue()
        assert task is not None

    async def claim_and_ack_many(self, count: int) -> None:
        for _ in range(count):
            await self.claim_and_ack()

    async def work(self, count: int) -> None:
        self._left = count
        self._done.clear()
        consumer = self._huey.create_consumer(
            workers=WORKERS, periodic=False, initial_delay=0.01, check_worker_health=False
        )
        consumer.start()
        assert self._done.wait(PATIENCE)
        consumer.stop(graceful=True)

    async def lock(self) -> None:
        with self._huey.lock_task("bench"):
            pass


class Litequeue:
    """litequeue on a connection of its own; it sets NORMAL itself."""

    payload: object = PAYLOAD

    async def open(self, path: Path, durability: Durability) -> Self:
        self._queue: Any = importlib.import_module("litequeue").LiteQueue(path)
        self._queue.conn.execute(f"PRAGMA synchronous = {SYNCHRONOUS[durability]}")
        self._queue.conn.execute(OWN_TABLE)
        self._kept = 0
        return self

    async def close(self) -> None:
        self._queue.conn.close()

    async def enqueue(self) -> object:
        return self._queue.put(json.dumps(self.payload))

    async def enqueue_many(self, count: int) -> object:
        with self._queue.transaction():
            return [self._queue.put(json.dumps(self.payload)) for _ in range(count)]

    async def claim_and_ack(self) -> None:
        await self.claim_and_ack_many(1)

    async def claim_and_ack_many(self, count: int) -> None:
        taken = [self._queue.pop() for _ in range(count)]
        for message in taken:
            json.loads(message.data)
        with self._queue.transaction():
            for message in taken:
                self._queue.done(message.message_id)
        self._kept += count
        if self._kept >= PRUNED:
            self._queue.prune()
            self._kept = 0

    async def transact(self) -> None:
        with self._queue.transaction():
            self._queue.conn.execute(OWN_ROW, ["ada"])
            self._queue.put(json.dumps(self.payload))


class PersistQueue:
    """SQLiteAckQueue with JSON, on one connection, since one thread puts and gets."""

    payload: object = PAYLOAD

    async def open(self, path: Path, durability: Durability) -> Self:
        module = importlib.import_module("persistqueue")
        serializer = importlib.import_module("persistqueue.serializers.json")
        self._queue: Any = module.SQLiteAckQueue(str(path), serializer=serializer)
        self._queue._putter.execute(f"PRAGMA synchronous = {SYNCHRONOUS[durability]}")
        self._kept = 0
        return self

    async def close(self) -> None:
        self._queue.close()
        del self._queue  # it closes once more when it is collected, which must be in this thread

    async def enqueue(self) -> object:
        return self._queue.put(self.payload)

    async def enqueue_many(self, count: int) -> object:
        return [self._queue.put(self.payload) for _ in range(count)]

    async def claim_and_ack(self) -> None:
        item = self._queue.get(block=False, raw=True)
        assert self._queue.ack(id=item["pqid"]) is not None
        self._kept += 1
        if self._kept >= PRUNED:
            self._queue.clear_acked_data(max_delete=PRUNED, keep_latest=0)
            self._kept = 0

    async def claim_and_ack_many(self, count: int) -> None:
        for _ in range(count):
            await self.claim_and_ack()


class Honker:
    """honker with its own settings, which are synchronous NORMAL."""

    payload: object = PAYLOAD

    async def open(self, path: Path, durability: Durability) -> Self:
        self._db: Any = importlib.import_module("honker").open(str(path))
        self._queue = self._db.queue("bench")
        self._stream = self._db.stream("bench")
        return self

    async def close(self) -> None:
        close = getattr(self._db, "close", None)  # older ones close with the last reference
        if close is not None:
            close()
        del self._db, self._queue, self._stream

    async def enqueue(self) -> object:
        return self._queue.enqueue(self.payload)

    async def enqueue_many(self, count: int) -> object:
        with self._db.transaction() as tx:
            return [self._queue.enqueue(self.payload, tx=tx) for _ in range(count)]

    async def claim_and_ack(self) -> None:
        job = self._queue.claim_one(WORKER)
        assert job is not None
        assert job.ack()

    async def claim_and_ack_many(self, count: int) -> None:
        jobs = self._queue.claim_batch(WORKER, count)
        assert len(jobs) == count
        assert self._queue.ack_batch([job.id for job in jobs], WORKER) == count

    async def publish(self) -> object:
        return self._stream.publish(self.payload)

    async def publish_many(self, count: int) -> object:
        with self._db.transaction() as tx:
            return [self._stream.publish(self.payload, tx=tx) for _ in range(count)]


class Threaded:
    """A peer in a thread of its own: each call is a hop there and back."""

    kind: type

    async def open(self, path: Path, durability: Durability) -> Self:
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._side: Any = self.kind()
        await self._hop(self._side.open, path, durability)
        return self

    async def close(self) -> None:
        await self._hop(self._side.close)
        self._thread.shutdown()

    async def _hop(self, method: Callable[..., Coroutine[Any, Any, Any]], *arguments: object) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, _finished, method, arguments)

    async def enqueue(self) -> None:
        await self._hop(self._side.enqueue)

    async def enqueue_many(self, count: int) -> None:
        await self._hop(self._side.enqueue_many, count)

    async def claim_and_ack(self) -> None:
        await self._hop(self._side.claim_and_ack)


def _finished(method: Callable[..., Coroutine[Any, Any, Any]], arguments: tuple[object, ...]) -> None:
    """Run what is a coroutine in form only: it never waits."""
    try:
        method(*arguments).send(None)
    except StopIteration:
        return
    raise RuntimeError("a synchronous peer waited")


class HueyThreaded(Threaded):
    """huey, in a thread."""

    kind = Huey


class LitequeueThreaded(Threaded):
    """litequeue, in a thread."""

    kind = Litequeue


class PersistQueueThreaded(Threaded):
    """persist-queue, in a thread."""

    kind = PersistQueue


THREADED: Final[dict[str, type]] = {
    "huey, in a thread": HueyThreaded,
    "litequeue, in a thread": LitequeueThreaded,
    "persist-queue, in a thread": PersistQueueThreaded,
}
PEERS: Final[dict[str, type]] = {
    "huey": Huey,
    "litequeue": Litequeue,
    "persist-queue": PersistQueue,
    "honker": Honker,
}
"""By the names of their distributions."""
