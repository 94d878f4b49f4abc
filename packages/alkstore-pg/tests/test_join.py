"""Riding an application's transaction: which connections ride, and what the application does with them meanwhile."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

import asyncpg
import psycopg
import pytest
from pg_engines import Outsider, event, job, opened, outside
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session as SyncSession

from alkstore.engine import Ack, JobFilter, NewWake, OffsetSave, Signal, Topic, TopicKind
from alkstore.errors import Closed, DatabaseError, InvalidArgument
from alkstore_pg.engine import PgEngine

BUSINESS = "CREATE TABLE business (key text PRIMARY KEY, value text)"


@pytest.fixture
async def engine(dsn: str) -> AsyncIterator[PgEngine]:
    async with opened(dsn, wait_timeout=5) as engine:
        yield engine


@pytest.fixture
async def outsider(dsn: str, engine: PgEngine) -> AsyncIterator[Outsider]:
    async with outside(dsn) as outsider:
        await outsider.connection.execute(BUSINESS)
        yield outsider


# ---------------------------------------------------------------- the libraries, each as its users hold it


class Application:
    """A transaction of one library's."""

    def __init__(
        self,
        given: object,
        run: Callable[[str], Any],
        savepoint: Callable[[], AbstractAsyncContextManager[Any]],
        commit: Callable[[], Any],
        rollback: Callable[[], Any],
    ) -> None:
        self.given = given
        self.run = run
        self.savepoint = savepoint
        self.commit = commit
        self.rollback = rollback


def of_asyncpg(connection: Any) -> Application:
    async def end(word: str) -> None:
        await connection.execute(word)

    @asynccontextmanager
    async def savepoint() -> AsyncIterator[None]:
        await connection.execute("SAVEPOINT a")
        try:
            yield
        except BaseException:
            await connection.execute("ROLLBACK TO a")
            raise

    return Application(
        connection, connection.execute, savepoint, lambda: end("COMMIT"), lambda: end("ROLLBACK")
    )


@asynccontextmanager
async def asyncpg_by_hand(dsn: str) -> AsyncIterator[Application]:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("BEGIN")
        yield of_asyncpg(connection)
    finally:
        await connection.close()


@asynccontextmanager
async def asyncpg_block(dsn: str) -> AsyncIterator[Application]:
    connection = await asyncpg.connect(dsn)
    try:
        transaction = connection.transaction()
        await transaction.start()
        yield Application(
            connection, connection.execute, connection.transaction, transaction.commit, transaction.rollback
        )
    finally:
        await connection.close()


@asynccontextmanager
async def asyncpg_pooled(dsn: str) -> AsyncIterator[Application]:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        yield Application(
            connection, connection.execute, connection.transaction, transaction.commit, transaction.rollback
        )


@asynccontextmanager
async def psycopg_plain(dsn: str) -> AsyncIterator[Application]:
    async with await psycopg.AsyncConnection.connect(dsn, row_factory=psycopg.rows.dict_row) as connection:
        yield Application(
            connection, connection.execute, connection.transaction, connection.commit, connection.rollback
        )


@asynccontextmanager
async def psycopg_block(dsn: str) -> AsyncIterator[Application]:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute("BEGIN")

        async def end(word: str) -> None:
            await connection.execute(word)

        yield Application(
            connection,
            connection.execute,
            connection.transaction,
            lambda: end("COMMIT"),
            lambda: end("ROLLBACK"),
        )


@asynccontextmanager
async def alchemy(dsn: str, driver: str, **options: Any) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(dsn.replace("postgresql://", f"postgresql+{driver}://"), **options)
    try:
        yield engine
    finally:
        await engine.dispose()


@asynccontextmanager
async def alchemy_connection(dsn: str, driver: str) -> AsyncIterator[Application]:
    async with alchemy(dsn, driver) as engine, engine.connect() as connection:
        yield Application(
            connection,
            connection.exec_driver_sql,
            connection.begin_nested,
            connection.commit,
            connection.rollback,
        )


@asynccontextmanager
async def alchemy_session(dsn: str, driver: str) -> AsyncIterator[Application]:
    async with alchemy(dsn, driver) as engine, AsyncSession(engine) as session:
        yield Application(
            session,
            lambda sql: session.execute(text(sql)),
            session.begin_nested,
            session.commit,
            session.rollback,
        )


Make = Callable[[str], AbstractAsyncContextManager[Application]]

LIBRARIES: dict[str, Make] = {
    "asyncpg, BEGIN by hand": asyncpg_by_hand,
    "asyncpg, transaction()": asyncpg_block,
    "asyncpg, from a pool": asyncpg_pooled,
    "psycopg": psycopg_plain,
    "psycopg, autocommit and BEGIN": psycopg_block,
    "AsyncConnection on asyncpg": lambda dsn: alchemy_connection(dsn, "asyncpg"),
    "AsyncConnection on psycopg": lambda dsn: alchemy_connection(dsn, "psycopg"),
    "AsyncSession on asyncpg": lambda dsn: alchemy_session(dsn, "asyncpg"),
    "AsyncSession on psycopg": lambda dsn: alchemy_session(dsn, "psycopg"),
}

every_library = pytest.mark.parametrize("make", LIBRARIES.values(), ids=LIBRARIES)


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

    async with asyncio.timeout(5):
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


# ---------------------------------------------------------------- which connections ride


@pytest.mark.parametrize(
    "given", [7, "a", object(), sqlite3.Row, AsyncSession, asyncpg.Connection, psycopg.AsyncConnection]
)
async def test_what_is_no_connection_is_refused_by_name(engine: PgEngine, given: object) -> None:
    with pytest.raises(InvalidArgument, match="this engine joins an asyncpg connection, a psycopg"):
        await engine.begin(given)


async def test_what_cannot_be_awaited_is_refused(engine: PgEngine, dsn: str) -> None:
    database = create_engine(dsn.replace("postgresql://", "postgresql+psycopg://"))
    try:
        with (
            database.connect() as connection,
            SyncSession(database) as session,
            psycopg.connect(dsn) as plain,
        ):
            for given in (database, connection, session, plain):
                with pytest.raises(InvalidArgument, match="this engine joins"):
                    await engine.begin(given)
    finally:
        database.dispose()


async def test_another_database_library_below_sqlalchemy_is_refused(engine: PgEngine) -> None:
    database = create_async_engine("sqlite+aiosqlite://")
    async with AsyncSession(database) as session:
        with pytest.raises(InvalidArgument, match="this engine joins"):
            await engine.begin(session)
    await database.dispose()


async def test_an_idle_connection_is_refused(engine: PgEngine, dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    with pytest.raises(InvalidArgument, match="in no transaction"):
        await engine.begin(connection)
    await connection.close()
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as plain:
        with pytest.raises(InvalidArgument, match="commits every statement by itself"):
            await engine.begin(plain)
    for driver in ("asyncpg", "psycopg"):
        async with alchemy(dsn, driver, isolation_level="AUTOCOMMIT") as database:
            async with AsyncSession(database) as session:
                with pytest.raises(InvalidArgument, match="in no transaction"):
                    await engine.begin(session)
            async with database.connect() as alchemys:
                with pytest.raises(InvalidArgument, match="in no transaction"):
                    await engine.begin(alchemys)
                assert not alchemys.in_transaction()


async def test_a_scoped_session_is_refused_for_the_session_that_it_stands_for(
    engine: PgEngine, dsn: str
) -> None:
    async with alchemy(dsn, "asyncpg") as database:
        scoped = async_scoped_session(async_sessionmaker(database), scopefunc=asyncio.current_task)
        with pytest.raises(InvalidArgument, match=r"join\(session\(\)\)"):
            await engine.begin(scoped)


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_session_that_does_not_begin_by_itself_is_refused(
    engine: PgEngine, dsn: str, driver: str
) -> None:
    async with alchemy(dsn, driver) as database, AsyncSession(database, autobegin=False) as session:
        with pytest.raises(InvalidArgument, match="cannot be joined"):
            await engine.begin(session)


async def test_a_connection_that_was_closed_or_given_back_is_refused(engine: PgEngine, dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.close()
    async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool:
        pooled = await pool.acquire()
        await pool.release(pooled)
    plain = await psycopg.AsyncConnection.connect(dsn)
    await plain.close()
    async with alchemy(dsn, "asyncpg") as database:
        alchemys = await database.connect()
        await alchemys.close()
    for given in (connection, pooled, plain, alchemys):
        with pytest.raises(InvalidArgument):
            await engine.begin(given)


async def test_a_pipeline_is_refused(engine: PgEngine, dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn) as connection, connection.pipeline():
        with pytest.raises(InvalidArgument, match="pipeline"):
            await engine.begin(connection)


async def test_a_connection_in_another_encoding_is_refused(engine: PgEngine, dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, client_encoding="LATIN1") as connection:
        with pytest.raises(InvalidArgument, match="client_encoding"):
            await engine.begin(connection)


async def test_the_stores_own_connection_is_refused(engine: PgEngine) -> None:
    tx = await engine.begin()
    with pytest.raises(InvalidArgument, match="the store's own"):
        await engine.begin(tx.connection)
    await tx.insert_jobs([job()])
    await tx.commit()


async def test_another_database_and_another_schema_are_refused_and_stay_usable(
    engine: PgEngine, outsider: Outsider, dsn: str
) -> None:
    for name in ("template1", "with_schema"):
        if name == "with_schema":
            await outsider.connection.execute("DROP DATABASE IF EXISTS with_schema")
            await outsider.connection.execute("CREATE DATABASE with_schema")
        other = await asyncpg.connect(dsn, database=name)
        await other.execute("BEGIN")
        if name == "with_schema":
            await other.execute("CREATE SCHEMA alkstore")
        with pytest.raises(InvalidArgument, match="another database") as raised:
            await engine.begin(other)
        assert ("missing" in str(raised.value)) == (name == "template1")
        await other.execute("ROLLBACK")
        await other.close()
    await outsider.connection.execute("DROP DATABASE with_schema")


async def test_a_role_that_may_not_use_the_schema_is_refused(
    engine: PgEngine, outsider: Outsider, dsn: str
) -> None:
    await outsider.connection.execute("DROP ROLE IF EXISTS nobody_special")
    await outsider.connection.execute("CREATE ROLE nobody_special")
    connection = await asyncpg.connect(dsn)
    async with connection.transaction():
        await connection.execute("SET LOCAL ROLE nobody_special")
        with pytest.raises(InvalidArgument, match="may not use schema 'alkstore'"):
            await engine.begin(connection)
        assert await connection.fetchval("SELECT 1") == 1
    await connection.close()
    await outsider.connection.execute("DROP ROLE nobody_special")


async def test_a_known_connection_costs_no_round_trip(engine: PgEngine, dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    sent: list[str] = []
    async with connection.transaction():
        await engine.begin(connection)
    async with connection.transaction():
        with connection.query_logger(lambda query: sent.append(query.query)):
            await engine.begin(connection)
            await asyncio.sleep(0)
    await connection.close()

    assert sent == []


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
    from alkstore_pg import join

    async with asyncpg_by_hand(dsn) as app:
        await engine.begin(app.given)
    join._PLACES[engine].own[-1] = 0

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
