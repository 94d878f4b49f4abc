"""How transactions of the store's own end: cancelled, forgotten, closed with their store, cut off from their server."""

import asyncio
import threading
import warnings
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import asyncpg
import pytest
from hanging import HUNG
from pg_engines import Outsider, driver_of, event, free_connections, job, opened, outside, until

from alkstore.engine import EngineTransaction, Signal, Topic, TopicKind
from alkstore.errors import Closed, DatabaseError
from alkstore_pg import PgStore
from alkstore_pg.engine import PgEngine

BUSINESS = "CREATE TABLE business (key text PRIMARY KEY, value text)"


@pytest.fixture
async def engine(dsn: str) -> AsyncIterator[PgEngine]:
    async with opened(dsn) as engine:
        yield engine


@pytest.fixture
async def outsider(dsn: str, engine: PgEngine) -> AsyncIterator[Outsider]:
    async with outside(dsn) as outsider:
        await outsider.connection.execute(BUSINESS)
        yield outsider


# ---------------------------------------------------------------- cancelled, abandoned, closed


async def blocked(engine: PgEngine, tx: EngineTransaction, outsider: Outsider) -> "asyncio.Task[Any]":
    """Begin an operation that waits for a position that another transaction holds."""
    task = asyncio.ensure_future(tx.read_offset("s", "c", hold=True))
    await until_waiting(outsider)
    return task


async def until_waiting(outsider: Outsider) -> None:
    async def waits() -> bool:
        sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        return bool(await outsider.connection.fetchval(sql))

    await until(waits)


async def committing(tx: EngineTransaction, outsider: Outsider) -> "asyncio.Task[None]":
    """Begin a commit that ends when the outsider unlocks 7: deferred triggers run in the COMMIT."""
    await outsider.connection.execute("""
        CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON business DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION wait();
        SELECT pg_advisory_lock(7)
    """)
    await driver_of(tx).execute("INSERT INTO business VALUES ('a', 'b')")
    task = asyncio.ensure_future(tx.commit())
    await until_waiting(outsider)
    return task


async def backends(engine: PgEngine) -> set[int]:
    """Which serve what the pool can lend."""
    lent = [await engine._pool.lend() for _ in range(4)]
    for on in lent:
        engine._pool.take_back(on)
    return {on.connection.get_server_pid() for on in lent}


async def test_a_cancelled_operation_frees_everything_at_the_rollback(
    engine: PgEngine, outsider: Outsider
) -> None:
    holder = await engine.begin()
    await holder.read_offset("s", "c", hold=True)
    tx = await engine.begin()
    await tx.insert_jobs([job()])
    task = await blocked(engine, tx, outsider)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await tx.rollback()

    assert await outsider.states() == ["idle in transaction"]
    await holder.rollback()
    assert await free_connections(engine) == 4


async def test_a_commit_after_a_cancelled_operation_never_lands_half(
    engine: PgEngine, outsider: Outsider
) -> None:
    holder = await engine.begin()
    await holder.read_offset("s", "c", hold=True)
    tx = await engine.begin()
    await tx.insert_jobs([job()])
    task = await blocked(engine, tx, outsider)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    with pytest.raises(DatabaseError, match="has failed before"):
        await tx.commit()

    assert await outsider.jobs() == []
    await holder.rollback()


async def test_a_cancelled_commit_lands_whole_and_gives_its_connection_back(
    engine: PgEngine, outsider: Outsider
) -> None:
    for turns in range(6):
        tx = await engine.begin()
        await tx.insert_jobs([job()])
        task = asyncio.ensure_future(tx.commit())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await tx.rollback()
        await until(outsider.states, [])

    assert await free_connections(engine) == 4
    assert set(await outsider.jobs()) <= {b"1"}


@pytest.mark.parametrize("rolls_back", [False, True])
async def test_a_commit_that_is_cancelled_on_its_way_lands_and_wakes_whom_it_concerns(
    engine: PgEngine, outsider: Outsider, rolls_back: bool
) -> None:
    watch = await engine.watch(Topic(TopicKind.QUEUE, "q"))
    tx = await engine.begin()
    await tx.insert_jobs([job()])
    backend = driver_of(tx).get_server_pid()
    task = await committing(tx, outsider)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    tx.abandon()
    undoing = asyncio.ensure_future(tx.rollback() if rolls_back else asyncio.sleep(0))
    for _ in range(10):
        await asyncio.sleep(0)
    assert undoing.done() is not rolls_back
    assert await outsider.connection.fetchval("SELECT pg_advisory_unlock(7)")

    async with asyncio.timeout(HUNG):
        await undoing
        assert await watch.wait() is Signal.WOKEN
        assert backend in await backends(engine)
    assert await outsider.jobs() == [b"1"]


@pytest.mark.parametrize("thread", [False, True])
async def test_one_that_was_forgotten_is_rolled_back(
    dsn: str, engine: PgEngine, outsider: Outsider, thread: bool
) -> None:
    tx = await engine.begin()
    await tx.insert_jobs([job()])
    if thread:
        other = threading.Thread(target=tx.abandon)
        other.start()
        other.join()
    else:
        tx.abandon()

    assert not tx.is_open
    await until(outsider.states, [])
    assert await outsider.jobs() == []
    assert await free_connections(engine) == 4


async def test_one_that_is_collected_warns_and_is_rolled_back(dsn: str) -> None:
    async with PgStore(dsn) as store, outside(dsn) as outsider:
        begun = [await store.begin_tx()]
        await begun[0].enqueue("q", 1)
        with pytest.warns(ResourceWarning, match="never ended"):
            begun.clear()

        await until(outsider.states, [])
        assert await outsider.jobs() == []
        async with store.begin_tx() as tx:
            await tx.enqueue("q", 2)
        assert await outsider.jobs() == [b"2"]


async def test_the_stores_close_ends_an_operation_that_waits(
    dsn: str, engine: PgEngine, outsider: Outsider
) -> None:
    holder = await engine.begin()
    await holder.read_offset("s", "c", hold=True)
    async with opened(dsn) as other:
        tx = await other.begin()
        task = await blocked(other, tx, outsider)
        async with asyncio.timeout(2):
            await tx.rollback()

        with pytest.raises(Closed):
            await task
        assert await outsider.states() == ["idle in transaction"]
    await holder.rollback()


async def test_two_rollbacks_at_once_cut_an_operation_off_once(engine: PgEngine, outsider: Outsider) -> None:
    holder = await engine.begin()
    await holder.read_offset("s", "c", hold=True)
    tx = await engine.begin()
    task = await blocked(engine, tx, outsider)

    async with asyncio.timeout(HUNG):
        await asyncio.gather(tx.rollback(), tx.rollback())

    with pytest.raises(Closed):
        await task
    assert task.cancelling() == 0
    await holder.rollback()
    assert await free_connections(engine) == 4


async def test_a_listener_that_was_left_costs_no_connection_where_warnings_are_errors(
    engine: PgEngine,
) -> None:
    watch = await engine.watch(Topic(TopicKind.QUEUE, "q"))
    tx = await engine.begin()
    await tx.insert_jobs([job()])
    await driver_of(tx).add_listener("c", print)
    with warnings.catch_warnings():
        warnings.simplefilter("error", asyncpg.InterfaceWarning)
        with pytest.raises(asyncpg.InterfaceWarning):
            await tx.commit()

    async with asyncio.timeout(HUNG):
        assert await watch.wait() is Signal.WOKEN
        assert await free_connections(engine) == 4


async def test_a_store_that_closes_rolls_back_what_is_open(dsn: str) -> None:
    async with outside(dsn) as outsider:
        store = await PgStore(dsn)
        tx = await store.begin_tx()
        await tx.enqueue("q", 1)
        async with asyncio.timeout(4):
            await store.aclose()

        with pytest.raises(Closed):
            await tx.enqueue("q", 2)
        assert await outsider.jobs() == []
        await until(outsider.states, [])


async def test_a_thousand_cancellations_leave_the_pool_whole(dsn: str, outsider: Outsider) -> None:
    async with opened(dsn, pool_size=3, wait_timeout=5) as engine:

        async def work(turns: int) -> None:
            tx = await engine.begin()
            try:
                await tx.insert_jobs([job()])
                await tx.append_events([event()])
                await tx.commit()
            except BaseException:
                await asyncio.shield(tx.rollback())
                raise

        async def cancelled(turns: int) -> None:
            task = asyncio.ensure_future(work(turns))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

        for round in range(20):
            await asyncio.gather(*(cancelled(round * 5 + turns) for turns in range(10)))

        await until(outsider.states, [])
        assert await free_connections(engine) == 3
        jobs, events = await outsider.jobs(), await outsider.events()
        assert len(jobs) == len(events)


# ---------------------------------------------------------------- the server goes away


async def test_a_connection_that_dies_within_ends_it(engine: PgEngine, outsider: Outsider) -> None:
    tx = await engine.begin()
    await tx.insert_jobs([job()])
    await outsider.connection.execute(f"SELECT pg_terminate_backend({driver_of(tx).get_server_pid()})")

    with pytest.raises(DatabaseError) as raised:
        await tx.insert_jobs([job()])

    assert raised.value.__cause__ is not None
    assert not tx.is_open
    assert await free_connections(engine) == 4
    assert await outsider.jobs() == []


async def test_a_commit_whose_connection_dies_may_have_landed(engine: PgEngine, outsider: Outsider) -> None:
    # Deferred triggers run in the COMMIT, so this one is on its way while the backend is ended.
    await outsider.connection.execute("""
        CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER die AFTER INSERT ON business DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION die()
    """)
    tx = await engine.begin()
    await driver_of(tx).execute("INSERT INTO business VALUES ('a', 'b')")

    with pytest.raises(DatabaseError) as raised:
        await tx.commit()

    assert raised.value.outcome_unknown
    assert not tx.is_open
    assert await free_connections(engine) == 4


async def test_a_beginning_on_a_connection_that_died_meanwhile_takes_another(
    engine: PgEngine, outsider: Outsider
) -> None:
    for _ in range(2):
        tx = await engine.begin()
        pid = driver_of(tx).get_server_pid()
        await tx.rollback()
        await outsider.connection.execute(f"SELECT pg_terminate_backend({pid})")
        tx = await engine.begin()
        await tx.rollback()


async def test_a_beginning_on_a_connection_that_dies_as_it_is_handed_over_takes_another(dsn: str) -> None:
    async with opened(dsn, pool_size=2) as engine, asyncio.timeout(HUNG):
        pool, barrier, over = engine._pool, asyncio.Barrier(3), asyncio.Event()

        async def occupy(_: object) -> None:
            await barrier.wait()
            await over.wait()

        lent = await pool.lend()
        others = [asyncio.ensure_future(pool.run(occupy)) for _ in range(2)]
        await barrier.wait()
        beginning = asyncio.ensure_future(engine.begin())
        await asyncio.sleep(0)
        assert not beginning.done()
        pool.take_back(lent)
        lent.connection.terminate()

        tx = await beginning
        assert len(await tx.insert_jobs([job()])) == 1
        await tx.rollback()
        over.set()
        await asyncio.gather(*others)
        assert await free_connections(engine) == 2
