"""A migrated schema whose time the test says, and jobs in it by the operations of the engine's queue."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from alkstore import migrations
from alkstore.engine import Claimed, Fail, JobCounts, JobFilter, JobRecord, NewJob, Settle
from alkstore_pg import queue
from alkstore_pg.link import DriverSession
from alkstore_pg.mark import FULL, Answer, Plan
from alkstore_pg.session import Schema

__all__ = ["ALL", "PATIENCE", "Jobs", "jobs", "new_job", "token_of"]

ALL = 2**63 - 1

PATIENCE = 10_000
"""Milliseconds that a test's statement waits for a row."""

_EMPTY = """
DELETE FROM {schema}.job;
DELETE FROM {schema}.dead;
ALTER TABLE {schema}.job ALTER COLUMN id RESTART
"""
"""A TRUNCATE takes three times as long."""

_BLOCKED = """
DO $$ BEGIN
    WHILE NOT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pid = %d) LOOP PERFORM pg_sleep(0.001); END LOOP;
END $$
"""

_TIME = """
CREATE TABLE {schema}.test_now AS SELECT 0::bigint AS instant;
CREATE OR REPLACE FUNCTION {schema}.now() RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE
AS $$ SELECT instant FROM {schema}.test_now $$
"""


def new_job(
    payload: bytes = b"1",
    *,
    name: str = "q",
    priority: int = 0,
    run_at: int | None = None,
    window: int = 100,
    attempts: int = 3,
    expires: int | None = None,
) -> NewJob:
    # Not None: time begins at 0 here, and what is late by a little is late all the same.
    return NewJob(name, payload, b"{}", priority, None, run_at, window, attempts, 7, expires)


def token_of(job: JobRecord) -> int:
    assert job.token is not None
    return job.token


class Jobs:
    """A schema's jobs, each operation at an instant. Make it by `jobs`."""

    def __init__(self, dsn: str, schema: Schema) -> None:
        self.dsn = dsn
        self.schema = schema
        self._connections: list[asyncpg.Connection[asyncpg.Record]] = []

    async def open(self) -> None:
        self.on = await self.session()

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close(timeout=PATIENCE / 1_000)

    async def session(self) -> DriverSession:
        self._connections.append(await asyncpg.connect(self.dsn))
        return DriverSession(self._connections[-1], self.schema)

    async def sql(
        self, statement: str, *parameters: object, on: DriverSession | None = None
    ) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await (on or self.on).fetch(statement, *parameters)]

    async def script(self, statements: str) -> None:
        await self.on.connection.execute(self.schema.render(statements))

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Callable[[], Awaitable[list[str]]]]:
        """Give who tells what was notified since the last time that it was asked."""
        on = await self.session()
        texts: list[str] = []
        await on.connection.add_listener(self.schema.channel, lambda *heard: texts.append(heard[-1]))

        async def heard() -> list[str]:
            await on.fetch("SELECT 1")
            found = texts[:]
            texts.clear()
            return found

        yield heard

    async def at(self, now: int) -> None:
        await self.sql("UPDATE {schema}.test_now SET instant = $1::bigint", now)

    async def enqueue(self, *new: NewJob, now: int = 0, on: DriverSession | None = None) -> list[int]:
        await self.at(now)
        return list(await queue.insert(on or self.on, new, ()))

    async def ask(
        self,
        wanted: int = 1,
        *,
        now: int = 0,
        name: str = "q",
        plan: Plan = FULL,
        on: DriverSession | None = None,
    ) -> Answer:
        """Claim once."""
        await self.at(now)
        return await queue.claim(on or self.on, name, [f"worker {number}" for number in range(wanted)], plan)

    async def claim(
        self, wanted: int = 1, *, now: int = 0, name: str = "q", on: DriverSession | None = None
    ) -> Claimed:
        """Claim until there is an answer."""
        while (claimed := (await self.ask(wanted, now=now, name=name, on=on)).claimed) is None:
            pass
        return claimed

    async def in_order(self, wanted: int, now: int) -> list[bytes]:
        return [job.payload for job in (await self.claim(wanted, now=now)).jobs]

    async def held(self, job: NewJob | None = None, *, now: int = 0) -> JobRecord:
        """Enqueue a job and claim it; nothing else may be in its queue's line."""
        job = new_job() if job is None else job
        (id,) = await self.enqueue(job, now=now)
        (record,) = (await self.claim(now=now, name=job.queue)).jobs
        assert record.id == id
        return record

    async def killed(self, job: NewJob | None = None, *, now: int = 0) -> JobRecord:
        """Enqueue a job, claim it and have it fail."""
        record = await self.held(job, now=now)
        assert await self.settle(Fail(record.queue, record.id, token_of(record), "boom"), now=now) == [now]
        return await self.job_of(record.id, record.queue)

    async def settle(
        self, *settles: Settle, now: int = 0, texts: Sequence[str] = (), on: DriverSession | None = None
    ) -> list[int | None]:
        await self.at(now)
        return list(await queue.settle(on or self.on, settles, texts, PATIENCE))

    async def sweep(self, name: str = "q", *, now: int = 0) -> int:
        await self.at(now)
        return await queue.sweep(lambda operation: operation(self.on), name)

    async def count(self, name: str = "q", *, now: int = 0) -> JobCounts:
        await self.at(now)
        return await queue.count(self.on, name)

    async def find(self, where: JobFilter, name: str = "q") -> list[JobRecord]:
        return await queue.find(self.on, name, where)

    async def job_of(self, id: int, name: str = "q") -> JobRecord:
        (record,) = await self.find(JobFilter(ids=(id,)), name)
        return record

    async def payloads(self, name: str = "q") -> list[bytes]:
        return [record.payload for record in await self.find(JobFilter(limit=ALL), name)]

    async def place_of(self, id: int) -> int:
        ((place,),) = await self.sql("SELECT place FROM {schema}.job WHERE id = $1::bigint", id)
        return int(place)

    async def blocked(self, on: DriverSession, by: DriverSession) -> None:
        """Wait until one session waits for a lock of another one."""
        await by.connection.execute(_BLOCKED % on.connection.get_server_pid())

    async def everything(self) -> list[tuple[Any, ...]]:
        return [
            *await self.sql("SELECT * FROM {schema}.job ORDER BY id"),
            *await self.sql("SELECT * FROM {schema}.dead ORDER BY id"),
        ]


async def rebuild(connection: "asyncpg.Connection[asyncpg.Record]", schema: Schema) -> None:
    """Make a schema and everything in it."""
    await connection.execute(schema.render("CREATE SCHEMA {schema}"))
    for migration in migrations.load("alkstore_pg"):
        for statement in migration.statements:
            await connection.execute(schema.render(statement))


@asynccontextmanager
async def jobs(dsn: str, schema: Schema | None = None) -> AsyncIterator[Jobs]:
    """Have a schema without any job; it is made only once in a database."""
    world = Jobs(dsn, schema or Schema("alkstore"))
    try:
        await world.open()
        connection = world.on.connection
        if await connection.fetchval("SELECT to_regnamespace($1) IS NULL", world.schema.identifier):
            await rebuild(connection, world.schema)
            await world.script(_TIME)
        await world.script(_EMPTY)
        yield world
    finally:
        await world.close()
