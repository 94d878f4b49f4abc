"""The listener on a server, and through a network that fails: WAKE-08, STR-13, DUR-05, DUR-08."""

import asyncio
import random
import time
from contextlib import suppress

import asyncpg
import pytest
from hanging import HUNG
from waking import SCHEMA, listener_pids, pending, side

from alkstore.engine import Signal, Topic, TopicKind
from alkstore.errors import Closed, DatabaseError
from alkstore_pg.contract_pooler import Pooler, PoolMode, pgbouncer_available
from alkstore_pg.contract_proxy import Link, Proxy
from alkstore_pg.contract_server import Server
from alkstore_pg.wake import Woken

NEWS = Topic(TopicKind.CHANNEL, "news")
JOBS = Topic(TopicKind.QUEUE, "jobs")
TOPICS = (
    NEWS,
    JOBS,
    Topic(TopicKind.STREAM, "events"),
    Topic(TopicKind.LOCK, "door"),
    Topic(TopicKind.SCHEDULE),
)
RECONNECTED = [Signal.RECONNECTED]

ENDED = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE pid = ANY($1)"


async def test_the_connection_that_listens_is_idle_and_in_no_transaction(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    async with side(dsn) as here, asyncio.timeout(HUNG):
        await here.wakes.watch(NEWS)
        await here.wakes.hear()
        pids = await listener_pids(connection)

        rows = await connection.fetch(
            "SELECT state, xact_start, backend_xmin FROM pg_stat_activity WHERE pid = ANY($1)", pids
        )

        assert [tuple(row) for row in rows] == [("idle", None, None)]
    await connection.close()


async def test_a_listener_that_was_ended_comes_back_and_wakes_everybody(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    async with side(dsn) as here, side(dsn) as there, asyncio.timeout(HUNG):
        watches = [await here.wakes.watch(topic) for topic in TOPICS]
        await here.wakes.hear()
        await connection.fetch(ENDED, await listener_pids(connection))

        assert [await watch.wait() for watch in watches] == RECONNECTED * len(TOPICS)

        await there.notify((NEWS.name, None))
        assert await watches[0].wait() is Signal.WOKEN
        await here.wakes.hear()
        assert [pending(watch) for watch in watches] == [[]] * len(TOPICS)
    await connection.close()


async def test_what_was_notified_while_it_was_down_wakes_by_the_reconnect(dsn: str) -> None:
    async with Proxy(dsn) as proxy, side(dsn, through=proxy.dsn()) as here, side(dsn) as there:
        async with asyncio.timeout(HUNG):
            watch = await here.wakes.watch(NEWS)
            proxy.refuse()
            assert proxy.cut() == 1
            await there.notify((NEWS.name, None))
            proxy.refuse(False)

            assert await watch.wait() is Signal.RECONNECTED

            newer = await here.wakes.watch(NEWS)
            assert (pending(watch), pending(newer)) == ([], [])


async def test_a_network_that_swallows_everything_is_found_by_the_probe(dsn: str) -> None:
    async with (
        Proxy(dsn) as proxy,
        side(dsn, through=proxy.dsn(), probe_interval=0.05) as here,
        side(dsn) as there,
    ):
        async with asyncio.timeout(HUNG):
            watch = await here.wakes.watch(NEWS)
            proxy.swallow(only=lambda link: link.order == 0)
            await there.notify((NEWS.name, None))

            assert await watch.wait() is Signal.RECONNECTED

            await there.notify((NEWS.name, None))
            assert await watch.wait() is Signal.WOKEN


async def test_a_slow_network_is_no_dead_one(dsn: str) -> None:
    async with (
        Proxy(dsn) as proxy,
        side(dsn, through=proxy.dsn(), probe_interval=0.05) as here,
        side(dsn) as there,
    ):
        async with asyncio.timeout(HUNG):
            watch = await here.wakes.watch(NEWS)
            proxy.delay(0.1)
            for _ in range(3):
                await there.notify((NEWS.name, None))
                assert await watch.wait() is Signal.WOKEN


async def test_while_the_server_is_away_waiting_works_and_listening_says_why_it_cannot(dsn: str) -> None:
    async with Proxy(dsn) as proxy, side(dsn, through=proxy.dsn(), wait_timeout=0.2) as here:
        proxy.refuse()
        async with asyncio.timeout(HUNG):
            watches = [await here.wakes.watch(topic) for topic in TOPICS if topic is not NEWS]
            with pytest.raises(DatabaseError, match="cannot listen") as caught:
                await here.wakes.watch(NEWS)
            assert caught.value.__cause__ is not None
            assert not here.wakes.hub.is_watched(NEWS)

            proxy.refuse(False)

            assert [await watch.wait() for watch in watches] == RECONNECTED * len(watches)
            await here.wakes.watch(NEWS)


async def test_a_listener_whose_server_is_away_costs_next_to_nothing(dsn: str) -> None:
    loop = asyncio.get_running_loop()
    async with Proxy(dsn) as proxy, side(dsn, through=proxy.dsn(), wait_timeout=1.0) as here:
        proxy.refuse()
        began, spent = loop.time(), time.process_time()
        with pytest.raises(DatabaseError):
            await here.wakes.watch(NEWS)

        assert time.process_time() - spent < (loop.time() - began) * 0.2


async def test_a_server_that_was_restarted_is_listened_to_again() -> None:
    server = await asyncio.to_thread(Server.start, own=True)
    try:
        async with side(server.dsn) as here, side(server.dsn) as there, asyncio.timeout(HUNG):
            watches = [await here.wakes.watch(topic) for topic in TOPICS]
            await asyncio.to_thread(server.restart, "immediate")

            assert [await watch.wait() for watch in watches] == RECONNECTED * len(TOPICS)

            await here.wakes.hear()
            while True:
                with suppress(DatabaseError):  # its own connection was lost too
                    await there.commit(Woken(JOBS))
                    break
            await there.wakes.hear()
            assert await watches[1].wait() is Signal.WOKEN
    finally:
        await asyncio.to_thread(server.close)


@pytest.mark.parametrize("mode", ["session", "transaction"])
async def test_behind_a_pooler_it_hears_everything_or_says_that_it_cannot(
    server: Server, mode: PoolMode
) -> None:
    if (advice := pgbouncer_available()) is not None:
        pytest.skip(advice)
    pooler = await asyncio.to_thread(Pooler.start, server, pool_mode=mode)
    try:
        dsn = pooler.dsn("postgres")
        async with side(dsn) as here, side(dsn) as there, asyncio.timeout(HUNG):
            if mode == "transaction":
                with pytest.raises(DatabaseError, match="listener_dsn"):
                    await here.wakes.watch(NEWS)
                await here.wakes.watch(JOBS)
            else:
                watch = await here.wakes.watch(NEWS)
                await there.notify((NEWS.name, None))
                assert await watch.wait() is Signal.WOKEN
    finally:
        await asyncio.to_thread(pooler.close)


async def test_a_listener_of_another_database_is_found_out(server: Server, dsn: str) -> None:
    async with side(dsn, through=server.dsn) as here, asyncio.timeout(HUNG):
        with pytest.raises(DatabaseError, match="same database"):
            await here.wakes.watch(NEWS)


async def test_cancelled_watches_leave_nothing_behind(dsn: str) -> None:
    rng = random.Random(5)
    connection = await asyncpg.connect(dsn)
    async with side(dsn) as here, side(dsn) as there, asyncio.timeout(HUNG):
        for round_ in range(200):
            tasks = [asyncio.ensure_future(here.wakes.watch(rng.choice(TOPICS))) for _ in range(5)]
            for _ in range(rng.randrange(5)):
                await asyncio.sleep(0)
            if round_ % 20 == 0:
                await here.wakes.hear()
            for task in tasks:
                task.cancel()
            for made in await asyncio.gather(*tasks, return_exceptions=True):
                if not isinstance(made, BaseException):
                    made.close()

        assert list(here.wakes.hub.topics()) == []
        watch = await here.wakes.watch(NEWS)
        await there.notify((NEWS.name, None))
        assert await watch.wait() is Signal.WOKEN
        assert len(await listener_pids(connection)) == 1
    await connection.close()


async def test_a_loop_that_stood_still_loses_no_connection(dsn: str) -> None:
    async with side(dsn, probe_interval=0.01) as here, asyncio.timeout(HUNG):
        watch = await here.wakes.watch(NEWS)
        hearing = asyncio.ensure_future(here.wakes.hear())
        for _ in range(5):
            await asyncio.sleep(0)  # until it has asked
        # Longer than it waits for an answer: the answer lies in the socket when the loop goes on.
        time.sleep(1.2)  # noqa: ASYNC251
        await hearing
        await here.notify((NEWS.name, None))

        assert await watch.wait() is Signal.WOKEN


async def test_a_close_during_a_query_makes_no_connection_to_cancel_it(dsn: str) -> None:
    made: list[Link] = []

    def note(link: Link) -> bool:
        made.append(link)
        return False

    async with Proxy(dsn) as proxy, asyncio.timeout(HUNG):
        async with side(dsn, through=proxy.dsn()) as here:
            await here.wakes.watch(NEWS)
            proxy.swallow()
            proxy.refuse(only=note)
            hearing = asyncio.ensure_future(here.wakes.hear())
            for _ in range(5):
                await asyncio.sleep(0)
        with pytest.raises(Closed):
            await hearing
    assert made == []


async def test_a_schema_s_name_is_its_channel_to_the_letter(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    async with side(dsn) as here, asyncio.timeout(HUNG):
        watch = await here.wakes.watch(NEWS)
        await connection.execute("SELECT pg_notify($1, 'n4:news')", SCHEMA)
        assert await watch.wait() is Signal.WOKEN
    await connection.close()
