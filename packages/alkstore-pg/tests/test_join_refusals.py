"""Riding an application's transaction: which connections ride, and which are refused before any SQL."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator

import asyncpg
import psycopg
import pytest
from pg_applications import (
    alchemy,
)
from pg_engines import Outsider, job, opened, outside
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session as SyncSession

from alkstore.errors import InvalidArgument
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
