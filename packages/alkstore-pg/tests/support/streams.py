"""A migrated schema, sessions on it, and the few words that tests of streams need."""

import asyncio
from collections.abc import AsyncIterator, MutableMapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncpg

from alkstore import migrations
from alkstore.engine import NewEvent
from alkstore_pg import stream
from alkstore_pg.link import DriverSession, Operation
from alkstore_pg.session import Schema
from alkstore_pg.stream import Page, StreamKey, StreamKeys

__all__ = ["FIRST", "LAST", "PATIENCE", "Streams", "event", "rebuild", "streams"]

T = TypeVar("T")

FIRST, LAST = -(2**63), 2**63 - 1

PATIENCE = 10_000
"""Milliseconds that a test's statement waits for a row."""

_EMPTY = """
TRUNCATE {schema}.event, {schema}.stream, {schema}.position RESTART IDENTITY;
ALTER SEQUENCE {schema}.event_offset RESTART
"""

_BLOCKED = """
DO $$ BEGIN
    WHILE NOT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pid = %d) LOOP PERFORM pg_sleep(0.001); END LOOP;
END $$
"""


def event(stream: str, payload: bytes = b"1", key: str | None = None) -> NewEvent:
    return NewEvent(stream, key, payload, b"{}")


class _Alone:
    """Runs operations on a connection of its own, one by one."""

    def __init__(self, on: DriverSession) -> None:
        self._on = on
        self._line = asyncio.Lock()
        self.count = 0

    async def run(self, operation: Operation[T], *, reads: bool = False) -> T:
        async with self._line:
            self.count += 1
            return await operation(self._on)


class Streams:
    """A schema's streams; every operation takes a session, the first by default. Make it by `streams`."""

    def __init__(self, dsn: str, schema: Schema) -> None:
        self.dsn = dsn
        self.schema = schema
        self.patience = PATIENCE
        self._connections: list[asyncpg.Connection[asyncpg.Record]] = []

    async def open(self) -> None:
        self.on = await self.session()
        self.runner = _Alone(await self.session())
        self.keys = StreamKeys(self.runner)

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close(timeout=PATIENCE / 1_000)

    async def session(self) -> DriverSession:
        self._connections.append(await asyncpg.connect(self.dsn))
        return DriverSession(self._connections[-1], self.schema)

    async def sql(self, statement: str, *parameters: object, on: DriverSession | None = None) -> Any:
        """Give the first value of the first row of a statement with ``{schema}`` in it."""
        rows = await (on or self.on).fetch(statement, *parameters)
        return rows[0][0] if rows else None

    async def script(self, statements: str) -> None:
        await self.on.connection.execute(self.schema.render(statements))

    async def key(self, name: str) -> StreamKey:
        return (await self.keys.made({name}))[name]

    async def publish(
        self,
        *names: str,
        on: DriverSession | None = None,
        floors: MutableMapping[int, int] | None = None,
    ) -> Sequence[int]:
        events = [event(name) for name in names]
        return await stream.append(
            on or self.on, events, await self.keys.made(set(names)), (), self.patience, floors
        )

    async def page(self, name: str, on: DriverSession | None = None, *, own: bool = False) -> Page:
        return await stream.read(on or self.on, name, await self.key(name), FIRST, LAST, own=own)

    async def seen(self, name: str, on: DriverSession | None = None, *, own: bool = False) -> list[int]:
        return [record.offset for record in (await self.page(name, on, own=own)).events]

    async def head(self, name: str) -> int:
        return await stream.head(self.on, await self.key(name))

    async def blocked(self, on: DriverSession) -> None:
        """Wait until a session waits for a lock."""
        await self.on.connection.execute(_BLOCKED % on.connection.get_server_pid())


async def rebuild(connection: "asyncpg.Connection[asyncpg.Record]", schema: Schema) -> None:
    """Make a schema and everything in it."""
    await connection.execute(schema.render("CREATE SCHEMA {schema}"))
    for migration in migrations.load("alkstore_pg"):
        for statement in migration.statements:
            await connection.execute(schema.render(statement))


@asynccontextmanager
async def streams(dsn: str, schema: Schema | None = None) -> AsyncIterator[Streams]:
    """Have a schema without any stream; it is made only once in a database."""
    world = Streams(dsn, schema or Schema("alkstore"))
    try:
        await world.open()
        connection = world.on.connection
        if await connection.fetchval("SELECT to_regnamespace($1) IS NULL", world.schema.identifier):
            await rebuild(connection, world.schema)
        await world.script(_EMPTY)
        yield world
    finally:
        await world.close()
