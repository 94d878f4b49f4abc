"""A session that goes from one store to the next is as new: a case would find there what another has left."""

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import asyncpg
import pytest
from hanging import HUNG

from alkstore_pg.contract_server import Server
from alkstore_pg.contract_sessions import Returning, Sessions


@pytest.fixture
def sessions(dsn: str) -> Iterator[Sessions]:
    made = Sessions(dsn, patience=HUNG)
    yield made
    made.close()


async def connected(sessions: Sessions, dsn: str) -> Returning:
    async def dial(at: str) -> Returning:
        return await asyncpg.connect(at, connection_class=Returning)

    found = await sessions.connection(dsn, dial)
    assert isinstance(found, Returning)
    return found


@asynccontextmanager
async def used(sessions: Sessions, dsn: str) -> AsyncIterator[Returning]:
    """Give a connection that goes back."""
    connection = await connected(sessions, dsn)
    yield connection
    connection.origin = sessions
    await connection.close()


async def test_a_session_goes_on_under_the_next_connection(sessions: Sessions, dsn: str) -> None:
    async with used(sessions, dsn) as first:
        pid = await first.fetchval("SELECT pg_backend_pid()")
        told = first.get_settings().server_version
    assert first.is_closed()

    async with used(sessions, dsn) as second:
        assert await second.fetchval("SELECT pg_backend_pid()") == second.get_server_pid() == pid
        assert second.get_settings().server_version == told
        with pytest.raises(asyncpg.QueryCanceledError):
            await second.fetch("SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(10)")


async def test_it_goes_on_in_another_loop(sessions: Sessions, dsn: str) -> None:
    def pid() -> int:
        async def asked() -> int:
            async with used(sessions, dsn) as connection:
                return int(await connection.fetchval("SELECT pg_backend_pid()"))

        return asyncio.run(asked())

    assert await asyncio.to_thread(pid) == await asyncio.to_thread(pid)


async def test_a_statement_of_it_can_be_cancelled(sessions: Sessions, dsn: str) -> None:
    async with used(sessions, dsn):
        pass
    async with used(sessions, dsn) as connection:
        with pytest.raises(TimeoutError):
            await connection.fetch("SELECT pg_sleep(30)", timeout=0.05)
        async with asyncio.timeout(HUNG):
            assert await connection.fetchval("SELECT 1") == 1


async def test_a_dial_that_is_given_up_leaves_nothing_open(sessions: Sessions, dsn: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for turns in range(12):
            async with used(sessions, dsn):
                pass
            dialling = asyncio.ensure_future(connected(sessions, dsn))
            for _ in range(turns):
                await asyncio.sleep(0)
            dialling.cancel()
            await asyncio.wait((dialling,))
            if not dialling.cancelled():
                await dialling.result().close()
        gc.collect()
    assert [str(each.message) for each in caught] == []


async def test_nothing_that_a_session_can_hold_is_left_in_it(sessions: Sessions, dsn: str) -> None:
    async with used(sessions, dsn) as first:
        await first.execute(
            "CREATE ROLE somebody; CREATE TEMP TABLE ours (); SET work_mem = '7MB'; SET ROLE somebody"
        )
        await first.execute("SELECT pg_advisory_lock(1); PREPARE mine AS SELECT 1; LISTEN here")
        pid = first.get_server_pid()

    async with used(sessions, dsn) as second:
        assert second.get_server_pid() == pid
        assert await second.fetchval("SELECT current_user = session_user")
        assert await second.fetchval("SHOW work_mem") != "7MB"
        assert await second.fetchval("SELECT to_regclass('pg_temp.ours')") is None
        for left in ("pg_locks WHERE locktype = 'advisory'", "pg_listening_channels()"):
            assert await second.fetchval(f"SELECT count(*) FROM {left}") == 0
        assert await second.fetchval("SELECT count(*) FROM pg_prepared_statements WHERE name = 'mine'") == 0


async def test_what_was_notified_meanwhile_comes_to_nobody(sessions: Sessions, dsn: str) -> None:
    async with used(sessions, dsn) as first:
        await first.execute("LISTEN here; NOTIFY here, 'unread'")
    heard: list[object] = []
    async with used(sessions, dsn) as second:
        await second.add_listener("here", lambda *told: heard.append(told[-1]))
        await second.execute("NOTIFY here, 'read'")
        assert heard == ["read"]


async def test_a_session_in_a_transaction_ends(server: Server, sessions: Sessions, dsn: str) -> None:
    async with used(sessions, dsn) as first:
        await first.execute("BEGIN")
        pid = first.get_server_pid()
    async with used(sessions, dsn) as second:
        assert second.get_server_pid() != pid


async def test_a_session_at_work_is_waited_for_by_nobody(sessions: Sessions, dsn: str) -> None:
    connection = await connected(sessions, dsn)
    connection.origin = sessions
    working = asyncio.ensure_future(connection.fetch("SELECT pg_sleep(30)"))
    async with used(sessions, dsn) as looking:
        at_work = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
        looks = (await looking.fetchval(at_work) for _ in range(1_000))
        assert 1 in [look async for look in looks]
    await connection.close()
    with pytest.raises(asyncpg.PostgresError):
        await working

    time = asyncio.get_running_loop().time
    begun = time()
    async with used(sessions, dsn), used(sessions, dsn):
        pass
    assert time() - begun < HUNG


async def test_a_session_that_the_server_ended_is_given_to_nobody(
    server: Server, sessions: Sessions, dsn: str
) -> None:
    async with used(sessions, dsn) as first:
        pid = first.get_server_pid()
    await asyncio.to_thread(server.execute, "SELECT pg_terminate_backend($1, 5000)", pid)
    async with used(sessions, dsn) as second:
        assert await second.fetchval("SELECT 1") == 1
        assert second.get_server_pid() != pid


async def test_what_is_forgotten_ends(server: Server, sessions: Sessions, dsn: str) -> None:
    async with used(sessions, dsn) as first:
        pid = first.get_server_pid()
    sessions.forget()
    async with used(sessions, dsn) as second:
        assert second.get_server_pid() != pid


async def test_a_connection_to_somewhere_else_is_made_there(
    server: Server, sessions: Sessions, dsn: str
) -> None:
    async with used(sessions, dsn):
        pass
    async with used(sessions, server.dsn) as elsewhere:
        assert await elsewhere.fetchval("SELECT current_database()") == "postgres"
