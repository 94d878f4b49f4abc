"""Engines on a database of their own, and what a test sees of it past them."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import asyncpg
from hanging import HUNG

from alkstore.clock import ServerClock
from alkstore.engine import EngineTransaction, NewEvent, NewJob
from alkstore_pg.engine import PgEngine
from alkstore_pg.surroundings import Options

__all__ = ["Outsider", "driver_of", "event", "free_connections", "job", "opened", "outside", "until"]


@asynccontextmanager
async def opened(
    dsn: str, *, schema: str = "alkstore", pool_size: int = 4, wait_timeout: float = 10.0
) -> AsyncIterator[PgEngine]:
    options = Options.checked(dsn, schema=schema, pool_size=pool_size, random=random.Random(1))
    engine = await PgEngine.open(options.waiting(wait_timeout), ServerClock())
    try:
        yield engine
    finally:
        async with asyncio.timeout(HUNG):
            await engine.aclose()


def job(payload: bytes = b"1", queue: str = "q") -> NewJob:
    return NewJob(
        queue=queue,
        payload=payload,
        headers=b"{}",
        priority=0,
        delay=0,
        run_at=None,
        expires=None,
        visibility_timeout=60_000_000,
        max_attempts=3,
        base_delay=0,
    )


def event(payload: bytes = b"1", stream: str = "s") -> NewEvent:
    return NewEvent(stream, None, payload, b"{}")


class Outsider:
    """A connection of the test's own."""

    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        self.connection = connection

    async def jobs(self) -> list[bytes]:
        return [row[0] for row in await self.connection.fetch("SELECT payload FROM alkstore.job ORDER BY id")]

    async def events(self) -> list[bytes]:
        sql = 'SELECT payload FROM alkstore.event ORDER BY stream, "offset"'
        return [row[0] for row in await self.connection.fetch(sql)]

    async def states(self) -> list[str]:
        """What alkstore's other connections are doing that are not idle."""
        sql = (
            "SELECT state FROM pg_stat_activity WHERE datname = current_database() AND state <> 'idle' "
            "AND application_name = 'alkstore'"
        )
        return [row[0] for row in await self.connection.fetch(sql)]


@asynccontextmanager
async def outside(dsn: str) -> AsyncIterator[Outsider]:
    connection = await asyncpg.connect(dsn)
    try:
        yield Outsider(connection)
    finally:
        await connection.close()


async def until(look: Callable[[], Any], wanted: object = True) -> None:
    """Look again and again, until what is seen is what is wanted."""
    async with asyncio.timeout(HUNG):
        while (seen := await look()) != wanted:
            assert not isinstance(seen, Sequence) or len(seen) < 1_000
            await asyncio.sleep(0.01)


def driver_of(tx: EngineTransaction) -> "asyncpg.Connection[asyncpg.Record]":
    return cast("asyncpg.Connection[asyncpg.Record]", tx.connection)


async def free_connections(engine: PgEngine) -> int:
    """Take every connection that the pool can give, and give them back."""
    lent = [await engine._pool.lend() for _ in range(engine._options.pool_size)]
    for on in lent:
        assert not on.connection.is_in_transaction()
        engine._pool.take_back(on)
    return len(lent)
