import asyncio
from collections.abc import Callable
from contextlib import suppress

import asyncpg
import pytest
from hanging import HUNG

from alkstore_pg import cancelling
from alkstore_pg.contract_pooler import Pooler, pgbouncer_available
from alkstore_pg.contract_proxy import Link, Proxy
from alkstore_pg.contract_server import Server
from alkstore_pg.link import OwnConnection, Traffic
from alkstore_pg.pool import Pool
from alkstore_pg.session import Schema

TURNS = 12
"""Turns of the loop in which a request to cancel gets from its task to the pooler."""


def cancels(link: Link) -> bool:
    return link.has_sent(rb"\x00\x00\x00\x10\x04\xd2\x16\x2e")


async def connected(dsn: str) -> OwnConnection:
    connection: OwnConnection = await asyncpg.connect(
        dsn, connection_class=OwnConnection, statement_cache_size=0
    )
    return connection


async def begun(connection: OwnConnection) -> "asyncio.Task[str]":
    """Begin what takes long; gives it once it is in the server's hands."""
    sleeping = asyncio.create_task(connection.execute("SELECT pg_sleep(100)"))
    await asyncio.sleep(0)
    return sleeping


async def until_sent(proxy: Proxy, what: Callable[[Link], bool]) -> None:
    async with asyncio.timeout(HUNG):
        while not any(map(what, proxy.links)):  # noqa: ASYNC110  # the proxy tells nobody
            await asyncio.sleep(0)


@pytest.mark.parametrize("how", ["terminated", "closed in vain"])
async def test_a_request_to_cancel_outlives_its_connection(dsn: str, how: str) -> None:
    async with Proxy(dsn) as proxy:
        proxy.swallow(direction="to_client", only=cancels)
        connection = await connected(proxy.dsn())
        sleeping = await begun(connection)
        sleeping.cancel()
        await until_sent(proxy, cancels)

        if how == "terminated":
            connection.terminate()
        else:
            with pytest.raises(TimeoutError):
                await connection.close(timeout=0.01)
        with suppress(asyncio.CancelledError):
            await sleeping
        # Who had gone before this would be known to have gone after it.
        await (await connected(proxy.dsn())).close()

        assert any(map(cancels, proxy.links))
        proxy.cut()
        await cancelling.settled()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_the_end_of_a_pool_waits_for_what_its_connections_have_asked(dsn: str) -> None:
    async with Proxy(dsn) as proxy:
        pool = Pool(
            lambda: connected(proxy.dsn()), Schema("alkstore"), size=2, wait_timeout=HUNG, traffic=Traffic()
        )
        session = await pool.lend()
        sleeping = asyncio.create_task(session.fetch("SELECT pg_sleep(100)"))
        await until_sent(proxy, lambda link: link.has_sent(b"pg_sleep"))
        sleeping.cancel()
        await until_sent(proxy, cancels)
        session.connection.terminate()
        pool.take_back(session)

        await pool.close()

        with suppress(asyncio.CancelledError):
            await sleeping
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_answer_that_never_comes_is_not_waited_for_forever(dsn: str) -> None:
    async with Proxy(dsn) as proxy:
        proxy.swallow(direction="to_client", only=cancels)
        connection = await connected(proxy.dsn())
        sleeping = await begun(connection)
        sleeping.cancel()
        await until_sent(proxy, cancels)
        connection.terminate()

        async with asyncio.timeout(HUNG):
            await cancelling.settled()

        assert any(map(cancels, proxy.links))
        proxy.cut()
        await cancelling.settled()


@pytest.mark.skipif(pgbouncer_available() is not None, reason=str(pgbouncer_available()))
async def test_a_pooler_survives_clients_that_leave_in_the_midst_of_cancelling(server: Server) -> None:
    with Pooler.start(server) as pooler:
        for number in range(20 * TURNS):
            connection = await connected(pooler.dsn("postgres"))
            sleeping = await begun(connection)
            sleeping.cancel()
            for _ in range(number % TURNS):
                await asyncio.sleep(0)
            connection.terminate()
            with suppress(asyncio.CancelledError):
                await sleeping
        await cancelling.settled()

        assert "FATAL" not in pooler.log()
        await (await connected(pooler.dsn("postgres"))).close()
