"""Joins that are cut short, by their caller or by the store's close: the connection is its owner's at once, and as it was."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count

import psycopg
import pytest
from hanging import HUNG
from pg_applications import LIBRARIES, alchemy
from pg_engines import job, opened, outside
from sqlalchemy import inspect, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from alkstore.errors import Closed, DatabaseError
from alkstore_pg import PgStore
from alkstore_pg.engine import PgEngine

KINDS = [AsyncConnection, AsyncSession]


@pytest.fixture
async def engine(dsn: str) -> AsyncIterator[PgEngine]:
    async with opened(dsn, wait_timeout=5) as engine:
        yield engine


async def cut(engine: PgEngine, given: object, turns: int, again: int | None) -> bool:
    """Cancel a join after so many turns of the loop, and perhaps once more so many later; False if it was done by then."""
    joining = asyncio.ensure_future(engine.begin(given))
    for _ in range(turns):
        await asyncio.sleep(0)
    if not joining.cancel():
        (await joining).abandon()
        return False
    for _ in range(again or 0):
        await asyncio.sleep(0)
    if again is not None:
        joining.cancel()
    async with asyncio.timeout(HUNG):
        await asyncio.wait((joining,))
    assert joining.cancelled()
    return True


async def psycopgs(engine: PgEngine, dsn: str, again: int | None) -> None:
    connection = await psycopg.AsyncConnection.connect(dsn)
    for turns in count():
        if connection.closed:  # psycopg ends one whose cancelling was cancelled
            connection = await psycopg.AsyncConnection.connect(dsn)
        if not await cut(engine, connection, turns, again):
            break
        assert connection.closed or connection.info.transaction_status.name == "IDLE"
    await connection.close()


@pytest.mark.parametrize("again", [None, 0, 1, 2, 5, 20])
async def test_psycopg_is_left_idle_whenever_it_is_cut(engine: PgEngine, dsn: str, again: int | None) -> None:
    await psycopgs(engine, dsn, again)


async def alchemys(engine: PgEngine, database: AsyncEngine, kind: type, again: int | None) -> None:
    for turns in count():
        async with kind(database) if kind is AsyncSession else database.connect() as given:
            if not await cut(engine, given, turns, again):
                break
            assert not given.in_transaction()
            assert await given.scalar(text("SELECT 1")) == 1
            await given.rollback()


@pytest.mark.parametrize("again", [None, 0, 3, 20])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_sqlalchemy_has_not_begun_whenever_it_is_cut(
    engine: PgEngine, dsn: str, driver: str, kind: type, again: int | None
) -> None:
    async with alchemy(dsn, driver) as database:
        await alchemys(engine, database, kind, again)


@pytest.mark.parametrize("name", [name for name in LIBRARIES if "asyncpg, " in name])
async def test_asyncpgs_block_is_its_owners_to_end_whenever_it_is_cut(
    engine: PgEngine, dsn: str, name: str
) -> None:
    for turns in count():
        async with LIBRARIES[name](dsn) as app:
            if not await cut(engine, app.given, turns, None):
                break
            await app.rollback()


class Base(DeclarativeBase):
    """Of the application's tables."""


class Note(Base):
    __tablename__ = "note"
    id: Mapped[int] = mapped_column(primary_key=True)


async def test_a_session_that_is_refused_has_not_begun_and_keeps_what_it_has_read(
    engine: PgEngine, dsn: str
) -> None:
    async with alchemy(dsn, "asyncpg") as database, opened(dsn, schema="other") as other:
        async with database.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        async with AsyncSession(database, expire_on_commit=False) as session:
            note = Note(id=1)
            session.add(note)
            await session.commit()
            async with outside(dsn) as outsider:
                await outsider.connection.execute("DROP SCHEMA other CASCADE")
            with pytest.raises(DatabaseError, match="missing"):
                await other.begin(session)

            assert not session.in_transaction()
            assert not inspect(note).expired


async def test_what_was_cut_can_be_joined_again(engine: PgEngine, dsn: str) -> None:
    async with LIBRARIES["psycopg"](dsn) as app:
        assert await cut(engine, app.given, 3, None)
        tx = await engine.begin(app.given)
        await tx.insert_jobs([job(b"1")])
        await app.commit()


# ---------------------------------------------------------------- stores that are closed

TURNS = [1, 2, 3, 5]
"""Turns of the loop after which a join waits for the server still."""


async def close_behind(dsn: str, given: object, turns: int) -> None:
    """Close a store so many turns of the loop after it began to join."""
    store = await PgStore(dsn)
    joining = asyncio.ensure_future(store.join(given).__aenter__())
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(HUNG):
        await store.aclose()
    with pytest.raises(Closed):
        await joining


@pytest.mark.parametrize("turns", TURNS)
async def test_psycopg_is_left_idle_by_a_join_whose_store_is_closed_meanwhile(dsn: str, turns: int) -> None:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        await close_behind(dsn, connection, turns)

        assert connection.info.transaction_status.name == "IDLE"


@pytest.mark.parametrize("turns", TURNS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_sqlalchemy_has_not_begun_by_a_join_whose_store_is_closed_meanwhile(
    dsn: str, driver: str, kind: type, turns: int
) -> None:
    async with (
        alchemy(dsn, driver) as database,
        kind(database) if kind is AsyncSession else database.connect() as given,
    ):
        await close_behind(dsn, given, turns)

        assert not given.in_transaction()
        async with given.begin():
            assert await given.scalar(text("SELECT 1")) == 1


@pytest.mark.parametrize("name", LIBRARIES)
async def test_what_the_caller_had_done_before_such_a_join_lands_with_his_commit(dsn: str, name: str) -> None:
    async with LIBRARIES[name](dsn) as app:
        await app.run("CREATE TABLE business ()")
        await close_behind(dsn, app.given, 2)
        await app.commit()

    async with outside(dsn) as outsider:
        assert await outsider.connection.fetch("SELECT FROM business") == []
