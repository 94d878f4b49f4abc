"""A migrated schema whose server says what time it is when it is told to."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from hanging import HUNG

from alkstore.clock import ServerClock
from alkstore_pg.link import Traffic
from alkstore_pg.pool import Pool
from alkstore_pg.session import Session
from alkstore_pg.surroundings import Options, prepare

__all__ = ["PATIENCE", "Timed", "Told", "extended", "pool_of", "timed"]

T = TypeVar("T")

PATIENCE = 10_000
"""Milliseconds that a test's statement waits for a row."""

_NOW = """CREATE OR REPLACE FUNCTION {schema}.now() RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE
AS $$ SELECT instant FROM {schema}.test_now $$"""


def extended(dsn: str, settings: str) -> str:
    """Give a DSN with more ``name=value`` in it."""
    return f"{dsn}{'&' if '?' in dsn else '?'}{settings}"


@asynccontextmanager
async def pool_of(options: Options) -> AsyncIterator[Pool]:
    pool = Pool(options.dial, options.schema, size=4, wait_timeout=options.wait_timeout, traffic=Traffic())
    try:
        yield pool
    finally:
        await pool.close()


class Timed:
    """Operations on one schema, each at an instant."""

    def __init__(self, options: Options, pool: Pool) -> None:
        self.options = options
        self.pool = pool

    async def run(self, operation: Callable[[Session], Awaitable[T]], now: int | None = None) -> T:
        if now is not None:
            await self.sql("UPDATE {schema}.test_now SET instant = $1", now)
        async with asyncio.timeout(HUNG):
            return await self.pool.run(operation)

    async def sql(self, statement: str, *parameters: object) -> list[tuple[object, ...]]:
        async def send(on: Session) -> Sequence[Sequence[object]]:
            return await on.fetch(statement, *parameters)

        return [tuple(row) for row in await self.pool.run(send)]

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["Told"]:
        """Hear what is notified on the schema's channel."""
        connection = await self.options.dial_listener()
        told = Told(self)
        await connection.add_listener(self.options.schema.channel, lambda *heard: told.note(heard[-1]))
        try:
            yield told
        finally:
            await connection.close()

    async def whole_scans(
        self, table: str, grow: str, operation: Callable[[Session], Awaitable[object]]
    ) -> dict[str, int]:
        """Give how often an operation walks through the whole of a table, for each where it does.

        Its plans are made while the table is small, and kept when it has grown.
        """
        counts = "SELECT relname::text, seq_scan FROM pg_stat_xact_user_tables WHERE schemaname = $1"
        await self.sql(f"ANALYZE {{schema}}.{table}")
        async with self.transaction() as on:
            await operation(on)
            await on.fetch(grow)
            # What this connection did before is counted in.
            before = {row[0]: row[1] for row in await on.fetch(counts, self.options.schema.name)}
            await operation(on)
            after = {row[0]: row[1] for row in await on.fetch(counts, self.options.schema.name)}
        scans = {name: after[name] - before.get(name, 0) for name in after if name != "test_now"}
        return {name: count for name, count in scans.items() if count}

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Session]:
        on = await self.pool.lend()
        try:
            async with on.connection.transaction():
                yield on
        finally:
            self.pool.take_back(on)


class Told:
    """What a connection that listens has heard."""

    def __init__(self, at: Timed) -> None:
        self._at = at
        self._texts: asyncio.Queue[str] = asyncio.Queue()

    def note(self, text: str) -> None:
        self._texts.put_nowait(text)

    async def texts(self) -> list[str]:
        """Give all that was notified before this call."""
        await self._at.sql("SELECT pg_notify({channel}, 'end')")
        heard: list[str] = []
        async with asyncio.timeout(HUNG):
            while (text := await self._texts.get()) != "end":
                heard.append(text)
        return heard


@asynccontextmanager
async def timed(dsn: str, schema: str = "alkstore") -> AsyncIterator[Timed]:
    options = Options.checked(dsn, schema=schema, random=random.Random(1)).waiting(10.0)
    async with pool_of(options) as pool:
        await prepare(pool, pool, options, ServerClock())
        it = Timed(options, pool)
        await it.sql("CREATE TABLE {schema}.test_now AS SELECT 100::bigint AS instant")
        await it.sql(_NOW)
        yield it
