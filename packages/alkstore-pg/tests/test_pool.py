import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest
from hanging import HUNG
from jumping import jumping, skip

from alkstore import Closed, DatabaseError
from alkstore_pg.link import SLACK, OwnConnection, Traffic
from alkstore_pg.pool import LONGEST_IDLE, Pool
from alkstore_pg.session import Schema, Session

PATIENCE = 10 * HUNG
"""Seconds that a pool waits; what is to come at once hangs long before."""


def opened(dsn: str, *, size: int = 2, wait_timeout: float = PATIENCE) -> Pool:
    return Pool(
        lambda: asyncpg.connect(dsn, connection_class=OwnConnection),
        Schema("alkstore"),
        size=size,
        wait_timeout=wait_timeout,
        traffic=Traffic(),
    )


@pytest.fixture
async def pool(dsn: str) -> AsyncIterator[Pool]:
    pool = opened(dsn)
    yield pool
    await pool.close()


async def pid(on: Session) -> int:
    return int((await on.fetch("SELECT pg_backend_pid()"))[0][0])


async def test_as_many_operations_run_at_once_as_there_are_connections(pool: Pool) -> None:
    barrier = asyncio.Barrier(2)

    async def meet(on: Session) -> int:
        await barrier.wait()
        return await pid(on)

    async with asyncio.timeout(HUNG):
        assert len(set(await asyncio.gather(pool.run(meet), pool.run(meet)))) == 2


async def test_who_has_a_connection_lent_may_wait_for_what_needs_another(pool: Pool) -> None:
    lent = [await pool.lend(), await pool.lend()]
    async with asyncio.timeout(HUNG):
        assert await pool.run(pid) == await pool.run(pid)
    for each in lent:
        pool.take_back(each)


async def test_a_turn_that_came_to_nothing_is_given_to_the_next(dsn: str) -> None:
    answers: list[object] = [OSError("away"), OSError("away")]

    async def dial() -> "asyncpg.Connection[asyncpg.Record]":
        if answers:
            raise answers.pop()  # type: ignore[misc]
        return await asyncpg.connect(dsn)

    pool = Pool(dial, Schema("alkstore"), size=1, wait_timeout=PATIENCE, traffic=Traffic())
    for _ in range(2):
        with pytest.raises(DatabaseError, match="away"):
            await pool.lend()
    async with asyncio.timeout(HUNG):
        pool.take_back(await pool.lend())
    await pool.close()


async def test_who_gets_no_connection_in_time_is_told_how_many_there_are(dsn: str) -> None:
    pool = opened(dsn, size=1, wait_timeout=0.01)
    lent = await pool.lend()
    with pytest.raises(
        DatabaseError, match=r"no connection was free .*1 are in use; raise pool_size"
    ) as caught:
        await pool.lend()
    assert caught.value._is_held_back
    assert not caught.value.outcome_unknown
    pool.take_back(lent)
    await pool.close()


async def test_what_a_borrower_changed_is_undone(dsn: str) -> None:
    pool = opened(dsn, size=1)
    lent = await pool.lend()
    await lent.connection.execute("SET statement_timeout = 7; CREATE TEMP TABLE mine (); LISTEN hello")
    pool.take_back(lent, reset=True)

    async def look(on: Session) -> tuple[object, ...]:
        return tuple((await on.fetch("SELECT current_setting('statement_timeout')"))[0])

    assert await pool.run(look) == ("0",)
    await pool.close()


@pytest.mark.parametrize("change", ["SET ROLE", "SET SESSION AUTHORIZATION"])
async def test_a_role_that_a_borrower_took_on_is_his_alone(dsn: str, change: str) -> None:
    pool = opened(dsn, size=1)
    lent = await pool.lend()
    before = await lent.connection.fetchval("SELECT current_user")
    await lent.connection.execute(f"{change} pg_monitor")
    pool.take_back(lent, reset=True)
    lent = await pool.lend()
    assert await lent.connection.fetchval("SELECT current_user") == before
    pool.take_back(lent)
    await pool.close()


async def test_a_temporary_table_of_one_borrower_is_in_nobody_elses_way(dsn: str) -> None:
    pool = opened(dsn, size=1)
    for _ in range(2):
        lent = await pool.lend()
        await lent.connection.execute("CREATE TEMP TABLE mine ()")
        pool.take_back(lent, reset=True)
    await pool.close()


async def test_statements_that_a_borrower_made_the_server_forget_are_prepared_anew(dsn: str) -> None:
    pool = opened(dsn, size=1)
    lent = await pool.lend()
    await pid(lent)
    await lent.connection.execute("DEALLOCATE ALL")
    pool.take_back(lent, reset=True)
    assert await pool.run(pid)
    await pool.close()


async def test_a_connection_that_was_lost_is_made_anew(dsn: str) -> None:
    pool = opened(dsn, size=1)
    before = await pool.run(pid)
    lent = await pool.lend()
    lent.connection.terminate()
    pool.take_back(lent, reset=True)
    assert await pool.run(pid) != before
    await pool.close()


async def test_the_place_of_one_that_was_lost_is_given_to_who_waits(dsn: str) -> None:
    pool = opened(dsn, size=1)
    lent, barrier = await pool.lend(), asyncio.Barrier(2)

    async def hold(_: Session) -> None:
        await barrier.wait()
        await barrier.wait()

    holding = asyncio.ensure_future(pool.run(hold))
    await barrier.wait()  # both places are taken
    waiting = [asyncio.ensure_future(pool.run(pid)) for _ in range(2)]
    await asyncio.sleep(0)

    lent.connection.terminate()
    pool.take_back(lent)

    async with asyncio.timeout(HUNG):
        assert len(set(await asyncio.gather(*waiting))) == 1
        await barrier.wait()
        await holding
    await pool.close()


async def test_a_cancelled_operation_costs_no_connection(dsn: str) -> None:
    pool = opened(dsn, size=1)
    before = await pool.run(pid)
    begun = asyncio.Event()

    async def sleep_for_ever(on: Session) -> None:
        begun.set()
        await on.fetch("SELECT pg_sleep(3600)")

    operation = asyncio.ensure_future(pool.run(sleep_for_ever))
    await begun.wait()
    operation.cancel()
    with pytest.raises(asyncio.CancelledError):
        await operation
    lent = await pool.lend()  # the other place
    async with asyncio.timeout(HUNG):
        assert await pool.run(pid) == before
    pool.take_back(lent)
    await pool.close()


@jumping
async def test_connections_that_nobody_uses_for_long_are_ended(dsn: str) -> None:
    pool = opened(dsn)
    one, other = await pool.lend(), await pool.lend()
    pool.take_back(one)
    await skip(LONGEST_IDLE * 0.6)
    pool.take_back(other)

    await skip(LONGEST_IDLE * 0.6)
    assert (one.connection.is_closed(), other.connection.is_closed()) == (True, False)
    await skip(LONGEST_IDLE * 0.6)
    assert other.connection.is_closed()
    assert not pool.is_connected

    assert await pool.run(pid)
    await pool.close()


@jumping
async def test_each_operation_has_all_of_its_time_and_no_more(dsn: str) -> None:
    pool = opened(dsn)
    limit = PATIENCE + SLACK

    async def wait(on: Session) -> None:
        await on.fetch("SELECT pg_sleep(3600)")

    await asyncio.gather(pool.run(pid), pool.run(pid))
    first = asyncio.ensure_future(pool.run(wait))
    await skip(0)
    await skip(limit * 0.6)
    second = asyncio.ensure_future(pool.run(wait))
    await skip(0)
    await skip(limit * 0.6)
    assert (first.done(), second.done()) == (True, False)
    await skip(limit * 0.6)

    for operation in (first, second):
        with pytest.raises(DatabaseError, match=f"no answer within {limit:g} s") as caught:
            await operation
        assert caught.value.outcome_unknown
    assert await pool.run(pid)
    await pool.close()


async def test_a_server_that_cannot_be_reached_is_a_database_error(server: object) -> None:
    pool = opened("postgresql://nobody@127.0.0.1:1/none")
    with pytest.raises(DatabaseError) as caught:
        await pool.run(pid)
    assert not caught.value.outcome_unknown
    await pool.close()


async def test_cancelled_waits_leave_the_pool_whole(dsn: str) -> None:
    pool = opened(dsn, size=1)
    held = await pool.lend()
    waits = [asyncio.create_task(pool.run(pid)) for _ in range(50)]
    await asyncio.sleep(0)
    for wait in waits[::2]:
        wait.cancel()
    pool.take_back(held)
    for at, wait in enumerate(waits):
        if at % 2:
            assert await wait
        else:
            with pytest.raises(asyncio.CancelledError):
                await wait
    async with asyncio.timeout(HUNG):
        pool.take_back(await pool.lend())
    await pool.close()


async def test_the_end_ends_who_waits_for_a_connection(dsn: str) -> None:
    pool = opened(dsn, size=1)
    held = await pool.lend()
    wait = asyncio.create_task(pool.lend())
    await asyncio.sleep(0)
    await pool.close()
    with pytest.raises(Closed):
        await wait
    with pytest.raises(Closed):
        await pool.lend()
    pool.take_back(held, reset=True)
    with pytest.raises(asyncpg.InterfaceError):
        await held.connection.fetch("SELECT 1")


async def test_a_read_that_the_end_cut_off_is_not_made_again_on_a_connection_that_was_free(dsn: str) -> None:
    pool = opened(dsn)
    barrier = asyncio.Barrier(2)
    attempts = []

    async def meet(_: Session) -> None:
        await barrier.wait()

    async def read(on: Session) -> None:
        attempts.append(on)
        await on.fetch("SELECT pg_sleep(3600)")

    async with asyncio.timeout(HUNG):
        await asyncio.gather(pool.run(meet), pool.run(meet))
        reading = asyncio.ensure_future(pool.run(read, reads=True))
        while not attempts:  # noqa: ASYNC110  # the pool tells nobody
            await asyncio.sleep(0)

        await pool.close()

        with pytest.raises(Closed):
            await reading
    assert len(attempts) == 1
