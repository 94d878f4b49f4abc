"""Wakes of stores on one channel, with a link to send by and somebody outside who listens. No table is needed."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
from hanging import HUNG

from alkstore.engine import NewWake, Signal, Watch
from alkstore.testing import ManualClock
from alkstore_pg.link import Link, Traffic
from alkstore_pg.session import Schema
from alkstore_pg.surroundings import Options
from alkstore_pg.wake import Wakes, Woken, notify

__all__ = ["SCHEMA", "Side", "listener_pids", "options_of", "outsider", "pending", "quiet", "side"]

SCHEMA = 'Mixed "Case"'


def options_of(
    dsn: str, *, wait_timeout: float = 10.0, probe_interval: float = 10.0, listen: bool = True
) -> Options:
    options = Options.checked(
        dsn, schema=SCHEMA, probe_interval=probe_interval, listen=listen, random=random.Random(1)
    )
    return options.waiting(wait_timeout)


class Side:
    """One store's wakes."""

    def __init__(self, options: Options, dsn: str) -> None:
        self.options = options
        self.link = Link(
            options_of(dsn).dial, Schema(SCHEMA), wait_timeout=options.wait_timeout, traffic=Traffic()
        )
        self.wakes = Wakes(options, ManualClock(), self.link)

    async def notify(self, *wakes: tuple[str, bytes | None]) -> None:
        await self.link.run(lambda on: notify(on, [NewWake(*each) for each in wakes]))

    async def commit(self, *woken: Woken, debounced: bool = True) -> list[str]:
        """Commit a write that concerns these; gives what it told."""
        with self.wakes.telling(woken, debounced=debounced) as texts:
            await self.say(*texts)
        return texts

    async def say(self, *texts: str) -> None:
        statement = "SELECT pg_notify({channel}, told) FROM unnest($1::text[]) AS told"
        await self.link.run(lambda on: on.fetch(statement, list(texts)))


@asynccontextmanager
async def side(
    dsn: str,
    *,
    through: str | None = None,
    wait_timeout: float = 10.0,
    probe_interval: float = 10.0,
    listen: bool = True,
) -> AsyncIterator[Side]:
    """Give a store's wakes, which listen ``through`` another DSN than the one that it writes to."""
    options = options_of(
        through or dsn, wait_timeout=wait_timeout, probe_interval=probe_interval, listen=listen
    )
    it = Side(options, dsn)
    try:
        yield it
    finally:
        await it.wakes.aclose()
        await it.link.close()


@asynccontextmanager
async def outsider(dsn: str) -> AsyncIterator[list[str]]:
    """Give what is notified on the schema's channel, as it comes."""
    connection = await asyncpg.connect(dsn)
    heard: list[str] = []
    await connection.add_listener(SCHEMA, lambda *told: heard.append(told[-1]))
    try:
        yield heard
    finally:
        await connection.close()


async def listener_pids(connection: "asyncpg.Connection[asyncpg.Record]") -> list[int]:
    """Give the backends that nobody but a listener can be: the last thing that they did was to listen or to look."""
    rows = await connection.fetch(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND application_name = 'alkstore' AND (query LIKE 'LISTEN%' OR query LIKE 'SELECT 1%')"
    )
    return [row[0] for row in rows]


def pending(watch: Watch) -> list[Signal]:
    found = []
    while (signal := watch.poll()) is not None:
        found.append(signal)
        if signal is Signal.CLOSED:
            break
    return found


async def quiet(*sides: Side) -> None:
    """Return when everything has been told and heard."""
    async with asyncio.timeout(HUNG):
        for each in sides:
            await each.wakes.hear()
        for each in sides:
            await each.wakes.hear()
