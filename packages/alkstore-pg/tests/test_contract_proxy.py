import asyncio
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest
from hanging import HUNG

from alkstore_pg.contract_proxy import Link, Proxy, listening
from alkstore_pg.contract_server import Server, available

pytestmark = pytest.mark.skipif(available(own=True) is not None, reason=str(available(own=True)))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server.start(own=True) as server:
        yield server


@pytest.fixture(params=["socket", "tcp"])
async def proxy(server: Server, request: pytest.FixtureRequest) -> AsyncIterator[Proxy]:
    async with (
        asyncio.timeout(HUNG),
        Proxy(server.dsn if request.param == "socket" else server.tcp_dsn) as proxy,
    ):
        yield proxy
    assert proxy.connections == 0


def first(link: Link) -> bool:
    return link.order == 0


def is_lost(connection: asyncpg.Connection) -> asyncio.Event:
    lost = asyncio.Event()
    connection.add_termination_listener(lambda _: lost.set())
    return lost


async def test_what_passes_is_whole_however_large(proxy: Proxy) -> None:
    connection = await asyncpg.connect(proxy.dsn())
    data = bytes(range(256)) * 40_000

    assert await connection.fetchval("SELECT $1::bytea || $1::bytea", data) == data + data
    assert proxy.connections == 1

    await connection.close()


async def test_a_cut_resets_every_client_and_lets_new_ones_in(proxy: Proxy) -> None:
    clients = [await asyncpg.connect(proxy.dsn()) for _ in range(3)]
    lost = [is_lost(client) for client in clients]

    assert proxy.cut() == 3

    for each in lost:
        await each.wait()
    with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError)):
        await clients[0].fetchval("SELECT 1")
    again = await asyncpg.connect(proxy.dsn())
    assert await again.fetchval("SELECT 1") == 1
    await again.close()


async def test_a_cut_ends_the_session_on_the_server_too(proxy: Proxy, server: Server) -> None:
    direct = await asyncpg.connect(server.dsn)
    client = await asyncpg.connect(proxy.dsn())
    await client.execute("SELECT pg_advisory_lock(7)")

    proxy.cut()

    await direct.execute("SELECT pg_advisory_lock(7)")
    await direct.close()


async def test_only_listeners_are_cut_when_only_they_are_picked(proxy: Proxy) -> None:
    worker, listener = [await asyncpg.connect(proxy.dsn()) for _ in range(2)]
    await worker.execute("UNLISTEN *")
    await listener.add_listener("news", lambda *_: None)
    lost = is_lost(listener)

    assert proxy.cut(listening) == 1

    await lost.wait()
    assert await worker.fetchval("SELECT 1") == 1
    await worker.close()


async def test_refused_clients_are_reset_until_they_are_let_in_again(proxy: Proxy) -> None:
    before = await asyncpg.connect(proxy.dsn())
    proxy.refuse()

    with pytest.raises((asyncpg.PostgresConnectionError, OSError)):
        await asyncpg.connect(proxy.dsn())
    assert await before.fetchval("SELECT 1") == 1

    proxy.refuse(False)
    after = await asyncpg.connect(proxy.dsn())
    await after.close()
    await before.close()


async def test_a_delay_holds_answers_back_and_keeps_their_order(proxy: Proxy) -> None:
    quick, slow = [await asyncpg.connect(proxy.dsn()) for _ in range(2)]
    loop = asyncio.get_running_loop()
    proxy.delay(0.05, lambda link: link.order == 1)
    begin = loop.time()

    rows = asyncio.ensure_future(slow.fetch("SELECT value FROM generate_series(1, 50000) AS value"))
    await quick.fetchval("SELECT 1")
    proxy.delay(0)

    assert [row[0] for row in await rows] == list(range(1, 50_001))
    assert loop.time() - begin >= 0.05
    await quick.close()
    await slow.close()


async def test_what_is_swallowed_reaches_nobody_and_nobody_is_told(proxy: Proxy) -> None:
    silent, spared = [await asyncpg.connect(proxy.dsn()) for _ in range(2)]
    proxy.swallow(only=first)

    with pytest.raises(TimeoutError):
        await silent.fetchval("SELECT 1", timeout=0.05)

    assert not silent.is_closed()
    assert await spared.fetchval("SELECT 1") == 1
    silent.terminate()
    await spared.close()


async def test_a_statement_whose_answer_is_swallowed_is_still_run(proxy: Proxy, server: Server) -> None:
    direct, client = await asyncpg.connect(server.dsn), await asyncpg.connect(proxy.dsn())
    heard = asyncio.Event()
    await direct.add_listener("run", lambda *_: heard.set())
    proxy.swallow(direction="to_client")

    asked = asyncio.ensure_future(client.execute("NOTIFY run"))
    await heard.wait()

    assert not asked.done()
    proxy.cut()
    with pytest.raises((asyncpg.PostgresConnectionError, OSError)):
        await asked
    await direct.close()


async def test_a_server_that_is_away_looks_like_a_reset() -> None:
    async with Proxy("postgresql://somebody@127.0.0.1:1/nothing") as proxy:
        with pytest.raises((asyncpg.PostgresConnectionError, OSError)):
            await asyncpg.connect(proxy.dsn(), timeout=5)
