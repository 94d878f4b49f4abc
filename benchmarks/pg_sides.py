"""The sides of `pg_peers.py`: a store, the bare driver doing the same statements, pgqueuer, and procrastinate.

The bare side reads its statements from the engine's own files, has its tables made by the engine's migrations, and encodes
and checks payloads by `alkstore.payload.encode`. It has no names to check, no line to stand in, no wakes and no handles,
and one connection.

The peers are driven by their public interfaces in the way that their own documentation recommends, in the configuration
that was the fastest here: pgqueuer on asyncpg, one connection for its queue manager and for single calls, its pool driver
with 8 connections for a crowd, and its autovacuum settings; procrastinate with a pool of 1 to 8, deleting what is done
(as alkstore and pgqueuer do), not listening while it works off what waits. Neither is a dependency of any package.
"""

import asyncio
import importlib
import json
import logging
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any, ClassVar, Final, Protocol, Self, TypeAlias, cast

import asyncpg
from harness import PAYLOAD
from store_side import NAME, StoreSide
from workloads import JOINS

from alkstore import JobHandle, Tx, statements
from alkstore.payload import decode, encode
from alkstore_pg import PgStore
from alkstore_pg.session import Schema

__all__ = ["Bare", "Ours", "Pgqueuer", "PgqueuerPool", "PgqueuerUnlogged", "Procrastinate", "Side"]

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

OWN_TABLE: Final = "CREATE TABLE IF NOT EXISTS person (name text NOT NULL)"
OWN_ROW: Final = "INSERT INTO person VALUES ($1)"
"""What an application keeps beside the store."""
PAGE: Final = 500
TTL: Final = 30_000_000
WORKER: Final = "bench:1:0000"
WINDOW, ATTEMPTS, BASE_DELAY = 300_000_000, 3, 5_000_000
PATIENCE: Final = 30_000
TOLD: Final = ["l5:bench~0123456789abcdef"]
"""What the store tells others of a lock that it frees."""
POOL: Final = 8
"""Connections for a crowd: with 4, 16 and 32 the peers were slower on two cores."""


class Side(Protocol):
    """What is timed. `process` takes jobs by ``size``, runs a trivial handler for each, and acks it. Two publish, too."""

    async def open(self, dsn: str, setting: str = "") -> Self: ...

    async def close(self) -> None: ...

    async def enqueue(self) -> object: ...

    async def enqueue_many(self, count: int) -> object: ...

    async def process(self, count: int, size: int) -> None: ...


async def handle(payload: object) -> None:
    """Do a job's work."""
    assert payload is not None


# ---------------------------------------------------------------- alkstore


class Ours(StoreSide):
    """The store, through its public interface."""

    async def open(self, dsn: str, setting: str = "") -> Self:
        self._use(await PgStore(dsn))
        async with self._store.begin_tx() as tx:
            await _own(tx).execute(OWN_TABLE)
        return self

    async def process(self, count: int, size: int) -> None:
        if size == 1:
            for _ in range(count):
                job = await self._queue.claim_one()
                assert job is not None
                await _work(job)
            return
        # While one of them waits for its acks, the other one's jobs are claimed.
        batches = iter(range(-(-count // size)))
        done = await asyncio.gather(*(self._work_off(batches, size) for _ in range(2)))
        assert sum(done) == count

    async def _work_off(self, batches: Iterator[int], size: int) -> int:
        done = 0
        for _ in batches:  # the two share it
            jobs = await self._queue.claim_batch(size)
            await asyncio.gather(*(_work(job) for job in jobs))
            done += len(jobs)
        return done

    async def transact(self) -> None:
        async with self._store.begin_tx() as tx:
            await _own(tx).execute(OWN_ROW, "ada")
            await tx.enqueue(NAME, self.payload)


async def _work(job: JobHandle) -> None:
    await handle(job.job.payload)
    assert await job.ack()


def _own(tx: Tx) -> Connection:
    return cast(Connection, tx.connection)


# ---------------------------------------------------------------- the bare driver


class Bare:
    """asyncpg on one connection; a crowd's calls follow each other."""

    payload: object = PAYLOAD

    async def open(self, dsn: str, setting: str = "") -> Self:
        async with PgStore(dsn) as store:  # its tables
            await store.stream(NAME).publish(None)
        self._db: Connection = await asyncpg.connect(dsn)
        self._turn = asyncio.Lock()
        schema = Schema("alkstore")
        self._sql = {
            area: {name: schema.render(text) for name, text in statements.load("alkstore_pg", area).items()}
            for area in ("queue", "stream", "lock")
        }
        ((_, self._id, self._base, self._home),) = await self._db.fetch(self._sql["stream"]["find"], [NAME])
        await self._db.execute(OWN_TABLE)
        self._last = 1  # behind the event that made the stream
        return self

    async def close(self) -> None:
        await self._db.close()

    async def _fetch(self, area: str, name: str, *parameters: object) -> list[asyncpg.Record]:
        async with self._turn:
            rows: list[asyncpg.Record] = await self._db.fetch(self._sql[area][name], *parameters)
            return rows

    async def enqueue(self) -> object:
        rest = (b"{}", 0, WINDOW, ATTEMPTS, BASE_DELAY)
        ((id,),) = await self._fetch("queue", "insert_ready", NAME, encode(self.payload), *rest)
        return id

    async def enqueue_many(self, count: int) -> object:
        rest: Sequence[object] = (b"{}", 0, None, None, WINDOW, ATTEMPTS, BASE_DELAY, None, [])
        payloads = [encode(self.payload) for _ in range(count)]
        ((ids, _),) = await self._fetch("queue", "insert_alike", NAME, payloads, *rest)
        return ids

    async def process(self, count: int, size: int) -> None:
        for _ in range(0, count, size):
            ticket = random.getrandbits(63)
            rows = await self._fetch("queue", "claim", NAME, [WORKER], size, ticket, [], [], None)
            ids = sorted(row[0] for row in rows[:-1])
            if size == 1:
                for row in rows[:-1]:
                    await handle(decode(row[1]))
            else:
                await asyncio.gather(*(handle(decode(row[1])) for row in rows[:-1]))
            tokens = [ticket ^ id for id in ids]
            ((_, gone),) = await self._fetch("queue", "ack", NAME, ids, tokens, [], PATIENCE)
            assert len(gone) == len(ids)

    async def publish(self) -> object:
        return await self.publish_many(1)

    async def publish_many(self, count: int) -> object:
        payloads = [encode(self.payload) for _ in range(count)]
        nothing, headers = [None] * count, [b"{}"] * count
        stream = ([self._id], [self._base], [None], [1] * count)
        ((_, drawn),) = await self._fetch(
            "stream", "append", *stream, nothing, payloads, headers, [], self._home, 30_000
        )
        return [value - self._base for value in drawn]

    async def claim_and_ack(self) -> None:
        await self.process(1, 1)

    async def replay(self, count: int) -> None:
        while count > 0:
            where = (self._id, self._base, self._home, self._last, min(count, PAGE), False)
            rows = await self._fetch("stream", "read", *where)
            for row in rows:
                assert decode(row[2]) is not None
            self._last = rows[-1][0]
            count -= len(rows)

    async def lock(self) -> None:
        ((fence, _),) = await self._fetch("lock", "take", NAME, TTL, PATIENCE)
        ((freed,),) = await self._fetch("lock", "renew", NAME, fence, 0, TOLD, PATIENCE)
        assert freed is not None

    async def transact(self) -> None:
        async with self._db.transaction():
            await self._db.execute(OWN_ROW, "ada")
            await self.enqueue()


# ---------------------------------------------------------------- pgqueuer


class Pgqueuer:
    """pgqueuer with every table logged, its default."""

    payload: object = PAYLOAD
    durability: ClassVar = "durable"

    async def open(self, dsn: str, setting: str = "") -> Self:
        module, queries, drivers, settings = (
            importlib.import_module(name)
            for name in ("pgqueuer", "pgqueuer.queries", "pgqueuer.db", "pgqueuer.domain.settings")
        )
        logging.getLogger("pgqueuer").setLevel(logging.WARNING)
        self._make, self._driver = module.PgQueuer, drivers.AsyncpgDriver
        self._db = await asyncpg.connect(dsn)
        self._pool = await asyncpg.create_pool(dsn, min_size=POOL, max_size=POOL)
        self._queries: Any = queries.Queries(self._driver(self._db))
        self._crowd: Any = queries.Queries(drivers.AsyncpgPoolDriver(self._pool))
        if setting != JOINS:
            await self._queries.install()
            await self._queries.optimize_autovacuum()
        if self.durability != "durable":
            self._queries.qbe.settings.durability = settings.Durability(self.durability)
            await self._queries.alter_durability()
        self._calls = 0
        await self._db.execute(OWN_TABLE)
        return self

    async def close(self) -> None:
        await self._pool.close()
        await self._db.close()

    async def enqueue(self) -> object:
        self._calls += 1
        try:
            # One call at a time has a connection to itself; the pool's costs a second round trip.
            queries = self._queries if self._calls == 1 else self._crowd
            return await queries.enqueue(NAME, _json(self.payload))
        finally:
            self._calls -= 1

    async def enqueue_many(self, count: int) -> object:
        return await self._queries.enqueue(
            [NAME] * count, [_json(self.payload) for _ in range(count)], [0] * count
        )

    async def process(self, count: int, size: int) -> None:
        left = count
        manager = self._make(self._driver(self._db))

        async def entry(job: Any) -> None:
            nonlocal left
            await handle(json.loads(job.payload))
            left -= 1
            if left == 0:
                manager.shutdown.set()  # it ends when all that it has taken is done and logged

        manager.entrypoint(NAME)(entry)
        await manager.run(batch_size=size)
        assert left <= 0  # where more wait it may have taken some of those

    async def work(self, count: int) -> None:
        await self.process(count, PAGE)

    async def drain(self) -> None:
        """Work off what waits, beside other processes."""
        manager = self._make(self._driver(self._db))

        async def entry(job: Any) -> None:
            await handle(json.loads(job.payload))

        manager.entrypoint(NAME)(entry)
        await manager.run(
            batch_size=PAGE, mode=importlib.import_module("pgqueuer.types").QueueExecutionMode.drain
        )

    async def hear(self, heard: Callable[[Any], bool]) -> None:
        """Wait for jobs, and tell each one's payload until that is enough."""
        manager = self._make(self._driver(self._db))

        async def entry(job: Any) -> None:
            if heard(json.loads(job.payload)):
                manager.shutdown.set()

        manager.entrypoint(NAME)(entry)
        await manager.run()

    async def transact(self) -> None:
        async with self._db.transaction():
            await self._db.execute(OWN_ROW, "ada")
            await self._queries.enqueue(NAME, _json(self.payload))


class PgqueuerPool(Pgqueuer):
    """pgqueuer with its pool for single calls too, as the figures of the bar were taken: a second round trip for each."""

    async def enqueue(self) -> object:
        return await self._crowd.enqueue(NAME, _json(self.payload))


class PgqueuerUnlogged(Pgqueuer):
    """pgqueuer with its log and its statistics unlogged: they are lost with the server, and jobs are not."""

    durability = "balanced"


def _json(payload: object) -> bytes:
    return json.dumps(payload, separators=(",", ":")).encode()


# ---------------------------------------------------------------- procrastinate


class Procrastinate:
    """procrastinate on psycopg 3, its own connector for programs with asyncio."""

    payload: dict[str, Any] = PAYLOAD

    async def open(self, dsn: str, setting: str = "") -> Self:
        module = importlib.import_module("procrastinate")
        logging.getLogger("procrastinate").setLevel(logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            connector = module.PsycopgConnector(conninfo=dsn, min_size=1, max_size=POOL)
            self._app: Any = module.App(connector=connector)
        self._done, self._enough = 0, asyncio.Event()
        self._heard: Callable[[Any], bool] | None = None

        async def task(**payload: Any) -> None:
            await handle(payload)
            self._done += 1
            if self._heard is not None and self._heard(payload):
                self._enough.set()

        self._task: Any = self._app.task(name=NAME, queue=NAME)(task)
        self._life = AsyncExitStack()
        await self._life.enter_async_context(self._app.open_async())
        if setting != JOINS:
            await self._app.schema_manager.apply_schema_async()
        return self

    async def close(self) -> None:
        await self._life.aclose()

    async def enqueue(self) -> object:
        return await self._task.defer_async(**self.payload)

    async def enqueue_many(self, count: int) -> object:
        return await self._task.batch_defer_async(*[self.payload] * count)

    async def process(self, count: int, size: int) -> None:
        before = self._done
        await self._drain(size)
        assert self._done - before == count

    async def _drain(self, size: int) -> None:
        await self._app.run_worker_async(
            queues=[NAME],
            wait=False,
            concurrency=size,
            delete_jobs="always",
            listen_notify=False,
            install_signal_handlers=False,
        )

    async def work(self, count: int) -> None:
        await self.process(count, POOL)

    async def drain(self) -> None:
        """Work off what waits, beside other processes."""
        await self._drain(POOL)

    async def hear(self, heard: Callable[[Any], bool]) -> None:
        """Wait for jobs, and tell each one's payload until that is enough."""
        self._heard = heard
        worker = asyncio.create_task(
            self._app.run_worker_async(queues=[NAME], delete_jobs="always", install_signal_handlers=False)
        )
        await self._enough.wait()
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
