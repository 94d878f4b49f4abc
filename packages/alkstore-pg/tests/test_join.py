"""Riding an application's transaction: what lands with it, and what becomes of it meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import asyncpg
import pytest
from hanging import HUNG
from pg_applications import (
    LIBRARIES,
    Make,
    alchemy,
    asyncpg_block,
    asyncpg_by_hand,
    psycopg_plain,
)
from pg_engines import Outsider, event, job, opened, outside
from sqlalchemy.ext.asyncio import (
    AsyncSession,
)

from alkstore.engine import Ack, JobFilter, NewWake, OffsetSave, Signal, Topic, TopicKind
from alkstore.errors import Closed, DatabaseError, InvalidArgument
from alkstore_pg.engine import PgEngine

BUSINESS = "CREATE TABLE business (key text PRIMARY KEY, value text)"

every_library = pytest.mark.parametrize("make", LIBRARIES.values(), ids=LIBRARIES)


@pytest.fixture
async def engine(dsn: str) -> AsyncIterator[PgEngine]:
    async with opened(dsn, wait_timeout=5) as engine:
        yield engine


@pytest.fixture
async def outsider(dsn: str, engine: PgEngine) -> AsyncIterator[Outsider]:
    async with outside(dsn) as outsider:
        await outsider.connection.execute(BUSINESS)
        yield outsider


# ---------------------------------------------------------------- it lands with the application's commit


@every_library
async def test_everything_lands_with_the_applications_commit_or_leaves_no_trace(
    engine: PgEngine, outsider: Outsider, dsn: str, make: Make
) -> None:
    for keep in (False, True):
        await engine.insert_jobs([job(b"claimed", "claims")])
        claimed = (await engine.claim_jobs("claims", ["w"])).jobs[0]
        async with make(dsn) as app:
            tx = await engine.begin(app.given)
            await app.run("INSERT INTO business VALUES ('a', 'b')")
            assert len(await tx.insert_jobs([job(b"\0", "käse"), job(b"2", "käse")])) == 2
            await tx.append_events([event(b"1"), event(b"2"), event(b"3", "another")])
            assert await tx.settle_jobs([Ack("claims", claimed.id, claimed.token or 0)]) != [None]
            assert await tx.read_offset("s", "c", hold=True) == 0
            assert await tx.save_offset("s", "c", 7, 0) == OffsetSave(0, True)
            await tx.notify([NewWake("channel", b'"payload"'), NewWake("empty", None)])
            assert [found.payload for found in await tx.find_jobs("käse", JobFilter())] == [b"\0", b"2"]
            assert [found.payload for found in await tx.read_events("s", 0, 10)] == [b"1", b"2"]
            assert await tx.read_offset("s", "c", hold=False) == 7
            assert await outsider.jobs() == [b"claimed"]
            assert tx.is_open
            await (app.commit() if keep else app.rollback())

            assert not tx.is_open
            with pytest.raises(Closed):
                await tx.insert_jobs([job()])
        assert await outsider.jobs() == ([b"\0", b"2"] if keep else [b"claimed"])
        assert await outsider.events() == ([b"3", b"1", b"2"] if keep else [])
        assert await outsider.connection.fetchval("SELECT count(*) FROM business") == keep
        assert await engine.read_offsets("s") == ({"c": 7} if keep else {})
        if not keep:
            await engine.settle_jobs([Ack("claims", claimed.id, claimed.token or 0)])


@every_library
async def test_a_savepoint_takes_its_part_along(
    engine: PgEngine, outsider: Outsider, dsn: str, make: Make
) -> None:
    watches = [await engine.watch(Topic(TopicKind.CHANNEL, name)) for name in ("lost", "kept")]
    async with make(dsn) as app:
        tx = await engine.begin(app.given)
        await tx.append_events([event(b"before")])
        try:
            async with app.savepoint():
                await tx.insert_jobs([job(b"lost")])
                await tx.append_events([event(b"lost")])
                await tx.notify([NewWake("lost", None)])
                raise KeyError
        except KeyError:
            pass
        await tx.append_events([event(b"after")])
        await tx.insert_jobs([job(b"kept")])
        await tx.notify([NewWake("kept", None)])
        assert tx.is_open
        await engine.wakes.hear()
        assert [watch.poll() for watch in watches] == [None, None]
        await app.commit()

    await engine.wakes.hear()
    assert [watch.poll() for watch in watches] == [None, Signal.WOKEN]
    assert await outsider.jobs() == [b"kept"]
    assert await outsider.events() == [b"before", b"after"]


@every_library
async def test_the_applications_commit_wakes_this_process_too(
    engine: PgEngine, outsider: Outsider, dsn: str, make: Make
) -> None:
    topics = [Topic(TopicKind.QUEUE, "q"), Topic(TopicKind.STREAM, "s")]
    watches = [await engine.watch(topic) for topic in topics]
    async with make(dsn) as app:
        tx = await engine.begin(app.given)
        await tx.insert_jobs([job()])
        await tx.append_events([event()])
        await engine.wakes.hear()
        assert [watch.poll() for watch in watches] == [None, None]
        await app.commit()

    async with asyncio.timeout(HUNG):
        assert [await watch.wait() for watch in watches] == [Signal.WOKEN] * 2


@pytest.mark.parametrize(
    "name", [name for name in LIBRARIES if "transaction()" not in name and "pool" not in name]
)
async def test_what_was_closed_does_not_come_to_life_with_the_next_transaction(
    engine: PgEngine, outsider: Outsider, dsn: str, name: str
) -> None:
    async with LIBRARIES[name](dsn) as app:
        tx = await engine.begin(app.given)
        await tx.insert_jobs([job(b"1")])
        await app.commit()
        assert not tx.is_open
        if "BEGIN" in name:
            await app.run("BEGIN")
        await app.run("SELECT 1")

        with pytest.raises(Closed):
            await tx.insert_jobs([job(b"2")])
        await app.rollback()

    assert await outsider.jobs() == [b"1"]


@pytest.mark.parametrize("name", ["AsyncConnection on asyncpg", "AsyncSession on psycopg"])
async def test_sqlalchemys_next_transaction_is_told_from_the_first_though_nobody_asked_between(
    engine: PgEngine, outsider: Outsider, dsn: str, name: str
) -> None:
    async with LIBRARIES[name](dsn) as app:
        tx = await engine.begin(app.given)
        await app.commit()
        await app.run("SELECT 1")

        assert not tx.is_open


async def test_asyncpgs_next_transaction_is_told_from_the_first_though_nobody_asked_between(
    engine: PgEngine, dsn: str
) -> None:
    connection = await asyncpg.connect(dsn)
    async with connection.transaction():
        tx = await engine.begin(connection)
    async with connection.transaction():
        assert not tx.is_open
    await connection.close()


@every_library
async def test_a_transaction_that_has_failed_is_an_error_with_its_cause(
    engine: PgEngine, outsider: Outsider, dsn: str, make: Make
) -> None:
    async with make(dsn) as app:
        tx = await engine.begin(app.given)
        with pytest.raises(Exception, match="nowhere"):
            await app.run("SELECT * FROM nowhere")

        with pytest.raises(DatabaseError, match="has failed before") as raised:
            await tx.insert_jobs([job()])
        assert type(raised.value.__cause__).__module__.startswith(("asyncpg", "psycopg"))
        await app.rollback()

    assert await outsider.jobs() == []


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_streams_are_read_in_read_committed_alone_and_the_transaction_goes_on(
    engine: PgEngine, outsider: Outsider, dsn: str, driver: str, level: str
) -> None:
    async with (
        alchemy(dsn, driver, isolation_level=level) as database,
        AsyncSession(database) as session,
    ):
        tx = await engine.begin(session)
        for refused in (tx.read_events("s", 0, 1), tx.read_offset("s", "c", hold=True)):
            with pytest.raises(InvalidArgument, match=f"this one is {level}"):
                await refused
        await tx.append_events([event()])
        assert await tx.read_offset("s", "c", hold=False) == 0
        await session.commit()

    assert await outsider.events() == [b"1"]


# ---------------------------------------------------------------- what happens meanwhile


@every_library
async def test_the_end_of_a_join_is_the_applications(engine: PgEngine, dsn: str, make: Make) -> None:
    async with make(dsn) as app:
        tx = await engine.begin(app.given)
        with pytest.raises(InvalidArgument, match="commit of a joined transaction"):
            await tx.commit()
        assert tx.is_open
        tx.abandon()
        assert not tx.is_open
        await app.rollback()


async def test_what_waits_for_another_ends_within_the_timeout(dsn: str, engine: PgEngine) -> None:
    async with opened(dsn, wait_timeout=0.1) as hasty, asyncpg_by_hand(dsn) as app:
        holder = await engine.begin()
        await holder.read_offset("s", "c", hold=True)
        tx = await hasty.begin(app.given)
        with pytest.raises(DatabaseError, match="wait_timeout"):
            await tx.read_offset("s", "c", hold=True)
        await holder.rollback()


async def test_an_application_that_waits_at_a_row_of_ours_is_told_by_its_own_timeout_again(
    engine: PgEngine, dsn: str
) -> None:
    async with asyncpg_by_hand(dsn) as app:
        await app.run("SET lock_timeout = '1234ms'")
        tx = await engine.begin(app.given)
        await tx.read_offset("s", "c", hold=True)
        await tx.save_offset("s", "c", 1, 0)

        assert await cast(Any, app.given).fetchval("SHOW lock_timeout") == "1234ms"


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_connection_that_dies_is_an_error_with_its_cause(
    engine: PgEngine, outsider: Outsider, dsn: str, driver: str
) -> None:
    async with LIBRARIES["asyncpg, BEGIN by hand" if driver == "asyncpg" else "psycopg"](dsn) as app:
        tx = await engine.begin(app.given)
        sql = "SELECT pid FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()"
        pid = await outsider.connection.fetchval(sql)
        await outsider.connection.execute(f"SELECT pg_terminate_backend({pid})")

        with pytest.raises((DatabaseError, Closed)):
            await tx.insert_jobs([job()])
        assert not tx.is_open


async def test_a_server_that_was_restarted_is_still_the_same_place(engine: PgEngine, dsn: str) -> None:
    engine.places.own = [*engine.places.own[:-1], 0]

    async with asyncpg_by_hand(dsn) as app:
        assert (await engine.begin(app.given)).is_open


async def test_a_cancelled_operation_leaves_the_connection_to_its_owner(engine: PgEngine, dsn: str) -> None:
    holder = await engine.begin()
    await holder.read_offset("s", "c", hold=True)
    for make in (asyncpg_block, psycopg_plain):
        async with make(dsn) as app:
            tx = await engine.begin(app.given)
            task = asyncio.ensure_future(tx.read_offset("s", "c", hold=True))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await app.rollback()
    await holder.rollback()
