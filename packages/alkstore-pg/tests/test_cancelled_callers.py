"""What a task does that has been cancelled and cleans up: it is told as everybody is."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import asyncpg
import pytest
from hanging import HUNG
from jumping import jumping, skip
from pg_engines import opened, outside, until

from alkstore.errors import Closed, DatabaseError
from alkstore_pg.contract_proxy import Link as ProxyLink
from alkstore_pg.contract_proxy import Proxy
from alkstore_pg.link import SLACK, Link, Traffic
from alkstore_pg.session import Schema

T = TypeVar("T")

PATIENCE = 10.0


async def cleaning_up(work: Callable[[], Awaitable[T]]) -> "asyncio.Task[T]":
    """Begin some work in a task that has been cancelled."""
    at_hand = asyncio.Event()

    async def run() -> T:
        try:
            at_hand.set()
            await asyncio.Event().wait()
            raise AssertionError("nobody sets it")
        except asyncio.CancelledError:
            return await work()

    task = asyncio.create_task(run())
    await at_hand.wait()
    task.cancel()
    return task


async def until_sent(proxy: Proxy) -> None:
    def has_sent(link: ProxyLink) -> bool:
        return link.has_sent(b"pg_sleep")

    async with asyncio.timeout(HUNG):
        while not any(map(has_sent, proxy.links)):  # noqa: ASYNC110  # the proxy tells nobody
            await asyncio.sleep(0)


@jumping
async def test_a_write_of_a_clean_up_that_got_no_answer_may_have_landed(dsn: str) -> None:
    async with Proxy(dsn) as proxy:
        link = Link(
            lambda: asyncpg.connect(proxy.dsn()), Schema("alkstore"), wait_timeout=PATIENCE, traffic=Traffic()
        )
        write = await cleaning_up(lambda: link.run(lambda on: on.fetch("SELECT pg_sleep(3600)")))
        await until_sent(proxy)
        await skip(PATIENCE + SLACK)

        with pytest.raises(DatabaseError, match="no answer within") as caught:
            await write
        assert caught.value.outcome_unknown
        await link.close()


async def test_a_clean_up_that_waits_for_a_connection_is_ended_by_the_close() -> None:
    async def dial() -> "asyncpg.Connection[asyncpg.Record]":
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    link = Link(dial, Schema("alkstore"), wait_timeout=PATIENCE, traffic=Traffic())
    waiting = await cleaning_up(lambda: link.run(lambda on: on.fetch("SELECT 1")))
    for _ in range(3):
        await asyncio.sleep(0)

    await link.close()

    with pytest.raises(Closed):
        await waiting
    assert waiting.cancelling() == 1


async def test_a_clean_up_that_waits_for_a_row_is_ended_by_the_rollback(dsn: str) -> None:
    async with opened(dsn) as engine, outside(dsn) as outsider:
        holder, tx = await engine.begin(), await engine.begin()
        await holder.read_offset("s", "c", hold=True)
        waiting = await cleaning_up(lambda: tx.read_offset("s", "c", hold=True))
        sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        await until(lambda: outsider.connection.fetchval(sql), 1)

        async with asyncio.timeout(HUNG):
            await tx.rollback()

        with pytest.raises(Closed):
            await waiting
        await holder.rollback()
