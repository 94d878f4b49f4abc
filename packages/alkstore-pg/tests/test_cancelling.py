import asyncio
import random
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

import asyncpg
import pytest
from hanging import HUNG

from alkstore.migrations import Migration
from alkstore_pg import cancelling, contract_dsn
from alkstore_pg.contract_pooler import Pooler, pgbouncer_available
from alkstore_pg.contract_proxy import Link, Proxy
from alkstore_pg.contract_server import Server
from alkstore_pg.link import OwnConnection, Traffic
from alkstore_pg.pool import Pool
from alkstore_pg.schema import migrate
from alkstore_pg.session import Schema

ASLEEP = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"

ENDED = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = $1"

needs_pooler = pytest.mark.skipif(pgbouncer_available() is not None, reason=str(pgbouncer_available()))

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
    """Begin what takes long; gives it once it is sent."""
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


async def test_an_answer_that_never_comes_is_not_waited_for_for_long_and_leaves_nothing(dsn: str) -> None:
    async with Proxy(dsn) as proxy:
        proxy.swallow(direction="to_client", only=cancels)
        connection = await connected(proxy.dsn())
        sleeping = await begun(connection)
        sleeping.cancel()
        await until_sent(proxy, cancels)
        connection.terminate()
        with suppress(asyncio.CancelledError):
            await sleeping

        async with asyncio.timeout(HUNG):
            await cancelling.settled()

        assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_request_is_sent_though_its_connection_ends_before_it_has_begun(dsn: str) -> None:
    connection = await connected(dsn)

    async def sleep() -> None:
        try:
            await connection.execute("SELECT pg_sleep(100)")
        finally:
            connection.terminate()

    sleeping = asyncio.create_task(sleep())
    await until_asleep(dsn, 1)
    sleeping.cancel()
    with suppress(asyncio.CancelledError):
        await sleeping
    await cancelling.settled()

    assert connection.is_closed()
    await until_asleep(dsn, 0)


@needs_pooler
async def test_a_migration_that_is_cancelled_does_not_go_on_behind_a_pooler(server: Server, dsn: str) -> None:
    slow = [Migration(1, "slow", "of no file", ("SELECT pg_sleep(100)",))]
    schema = Schema("alkstore")
    with Pooler.start(server) as pooler:
        through = pooler.dsn(contract_dsn.database(dsn))
        pool = Pool(lambda: connected(through), schema, size=1, wait_timeout=HUNG, traffic=Traffic())
        migrating = asyncio.create_task(
            migrate(pool, schema, wait_timeout=HUNG, random=random.Random(0), known=slow)
        )
        await until_asleep(dsn, 1)

        migrating.cancel()
        with suppress(asyncio.CancelledError):
            await migrating

        await until_asleep(dsn, 0)
        await pool.close()


async def until_asleep(dsn: str, count: int) -> None:
    outsider = await asyncpg.connect(dsn)
    async with asyncio.timeout(HUNG):
        while await outsider.fetchval(ASLEEP) != count:
            pass
    await outsider.close()


def test_loops_of_other_threads_come_and_go_meanwhile() -> None:
    over = threading.Event()

    def come_and_go() -> None:
        async def one() -> None:
            waits = {asyncio.ensure_future(asyncio.sleep(0)) for _ in range(50)}
            cancelling.see_through(waits)
            await cancelling.settled()

        while not over.is_set():
            asyncio.run(one())

    before, others = sys.getswitchinterval(), [threading.Thread(target=come_and_go) for _ in range(3)]
    sys.setswitchinterval(1e-6)
    try:
        for other in others:
            other.start()
        for _ in range(500):
            asyncio.run(cancelling.settled())
    finally:
        over.set()
        for other in others:
            other.join()
        sys.setswitchinterval(before)


def test_a_loop_that_is_closed_leaves_nothing() -> None:
    async def leave() -> None:
        cancelling.see_through({asyncio.ensure_future(asyncio.Event().wait())})

    loop = asyncio.new_event_loop()
    task = loop.create_task(leave())
    loop.run_until_complete(task)
    left = [each for each in cancelling._under_way if each.get_loop() is loop]
    loop.close()

    cancelling.see_through(set())

    assert left
    assert not cancelling._under_way & set(left)


@needs_pooler
async def test_a_pooler_survives_clients_that_leave_in_the_midst_of_cancelling(
    server: Server, dsn: str
) -> None:
    through = contract_dsn.database(dsn)
    with Pooler.start(server) as pooler:
        for number in range(20 * TURNS):
            connection = await connected(pooler.dsn(through))
            sleeping = await begun(connection)
            sleeping.cancel()
            for _ in range(number % TURNS):
                await asyncio.sleep(0)
            connection.terminate()
            with suppress(asyncio.CancelledError):
                await sleeping
        await cancelling.settled()

        assert "FATAL" not in pooler.log()
        await (await connected(pooler.dsn(through))).close()
    # It sends no request for a client that has gone, so some sleep on.
    await asyncio.to_thread(server.execute, ENDED, through)
