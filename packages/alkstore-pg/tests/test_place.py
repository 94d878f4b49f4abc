"""Joins behind a pooler that has no connection left: they wait for none of the store's own."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from hanging import HUNG
from pg_engines import job, outside, until

from alkstore_pg import PgStore, contract_dsn
from alkstore_pg.contract_pooler import Pooler, pgbouncer_available
from alkstore_pg.contract_server import Server

SIZE = 2

pytestmark = pytest.mark.skipif(pgbouncer_available() is not None, reason=str(pgbouncer_available()))


@pytest.fixture
def pooled(server: Server, dsn: str) -> Iterator[str]:
    with Pooler.start(server, default_pool_size=SIZE) as pooler:
        yield pooler.dsn(contract_dsn.database(dsn))


@pytest.fixture
async def store(pooled: str) -> AsyncIterator[Any]:
    async with PgStore(pooled, statement_cache_size=0, listen=False, wait_timeout=HUNG) as store:
        yield store


@asynccontextmanager
async def begun(pooled: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(pooled, statement_cache_size=0)
    try:
        async with connection.transaction():
            await connection.execute("SELECT 1")  # behind a pooler it begins when the server has
            yield connection
    finally:
        await connection.close()


async def test_first_joins_that_have_every_connection_of_a_pooler_go_through(
    store: Any, pooled: str, dsn: str
) -> None:
    at_hand = asyncio.Barrier(SIZE)

    async def work(number: int) -> None:
        async with begun(pooled) as connection:
            await at_hand.wait()
            async with store.join(connection) as tx:
                await tx.enqueue("q", number)
            await at_hand.wait()

    async with asyncio.timeout(HUNG / 2):
        await asyncio.gather(*map(work, range(SIZE)))

    async with outside(dsn) as outsider:
        assert sorted(await outsider.jobs()) == [b"0", b"1"]


async def test_streams_that_are_there_are_met_by_the_connection_that_was_joined(
    store: Any, pooled: str, dsn: str
) -> None:
    async with PgStore(dsn, listen=False) as before:
        await before.stream("s").publish("before")

    async with begun(pooled) as first, begun(pooled), asyncio.timeout(HUNG / 2), store.join(first) as tx:
        assert [event.payload for event in await tx.read_since("s", 0)] == ["before"]
        await tx.publish("s", "within")

    assert [event.payload for event in await store.stream("s").read_since(0)] == ["before", "within"]


async def test_after_a_restart_the_first_who_lets_go_lets_the_others_through(store: Any, pooled: str) -> None:
    engine = store._engine
    engine.places.own = [*engine.places.own[:-1], 0]  # as before a restart

    async def asks() -> bool:
        return engine.places._asking is not None

    async with begun(pooled) as staying:
        async with begun(pooled) as going:
            first = asyncio.ensure_future(engine.begin(going))
            await until(asks)
            asking = engine.places._asking
            second = asyncio.ensure_future(engine.begin(staying))
            first.cancel()
            await asyncio.wait((first,))
            assert engine.places._asking is asking
            assert not asking.done()

        async with asyncio.timeout(HUNG / 2):
            tx = await second
            await tx.insert_jobs([job()])
