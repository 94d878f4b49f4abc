"""A join of SQLAlchemy's that was cancelled, refused, or whose store was closed: what had not begun has not."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from engines import opened, rows
from hanging import HUNG
from jobs import new_job
from sqlalchemy import URL, event, inspect, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from alkstore.errors import Closed, InvalidArgument
from alkstore_sqlite import SqliteStore
from alkstore_sqlite.engine import SqliteEngine

every_kind = pytest.mark.parametrize("kind", [AsyncConnection, AsyncSession])


class Base(DeclarativeBase):
    """Of the application's tables."""


class Note(Base):
    __tablename__ = "note"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


@pytest.fixture
async def engine(path: Path) -> AsyncIterator[SqliteEngine]:
    async with opened(path) as engine:
        yield engine


@pytest.fixture(params=["the driver begins", "SQLAlchemy begins"])
async def alchemy(path: Path, request: pytest.FixtureRequest) -> AsyncIterator[AsyncEngine]:
    made = create_async_engine(URL.create("sqlite+aiosqlite", database=str(path)))
    if request.param == "SQLAlchemy begins":
        event.listen(made.sync_engine, "connect", _leave_beginning_to_us)
        event.listen(made.sync_engine, "begin", _begin)
    async with made.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield made
    await made.dispose()


def _leave_beginning_to_us(connection: Any, _: object) -> None:
    connection.isolation_level = None


def _begin(connection: Any) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def held(alchemy: AsyncEngine, kind: type) -> Any:
    return AsyncSession(alchemy) if kind is AsyncSession else alchemy.connect()


async def is_free(engine: SqliteEngine, given: Any) -> None:
    """See that it has not begun, can, and holds nobody back."""
    assert not given.in_transaction()
    async with asyncio.timeout(HUNG):
        await engine.insert_jobs([new_job()])
    async with given.begin():
        assert await given.scalar(text("SELECT 1")) == 1


async def cut(engine: SqliteEngine, given: object, turns: int, again: int | None) -> bool:
    """Cancel a join after so many turns of the loop, and perhaps once more so many later; False if it was done by then."""
    joining = asyncio.ensure_future(engine.begin(given))
    for _ in range(turns):
        await asyncio.sleep(0)
    if not joining.cancel():
        await (await joining).rollback()
        return False
    for _ in range(again or 0):
        await asyncio.sleep(0)
    if again is not None:
        joining.cancel()
    async with asyncio.timeout(HUNG):
        await asyncio.wait((joining,))
    assert joining.cancelled()
    return True


# ---------------------------------------------------------------- callers who have gone


@pytest.mark.parametrize("again", [None, 0, 1, 3, 10])
@every_kind
async def test_a_join_that_is_cancelled_anywhere_has_not_begun(
    engine: SqliteEngine, alchemy: AsyncEngine, kind: type, again: int | None
) -> None:
    for turns in count():
        async with held(alchemy, kind) as given:
            is_cut = await cut(engine, given, turns, again)
            await is_free(engine, given)
        if not is_cut:
            break


async def test_a_session_that_had_begun_before_a_cancelled_join_stays_in_its_transaction(
    engine: SqliteEngine, alchemy: AsyncEngine, path: Path
) -> None:
    for turns in count(1):
        async with AsyncSession(alchemy) as session:
            session.add(Note(id=turns))
            await session.flush()
            is_cut = await cut(engine, session, turns, None)
            assert session.in_transaction()
            await session.commit()
        if not is_cut:
            break

    assert rows(path, "SELECT id FROM note ORDER BY id") == list(range(1, turns + 1))


# ---------------------------------------------------------------- callers who are refused


@every_kind
async def test_a_join_that_is_refused_has_not_begun(
    engine: SqliteEngine, alchemy: AsyncEngine, path: Path, kind: type
) -> None:
    async with opened(path.with_name("other.db")) as other, held(alchemy, kind) as given:
        with pytest.raises(InvalidArgument, match="join a connection to the same file"):
            await other.begin(given)

        await is_free(engine, given)


async def test_a_session_that_is_refused_keeps_what_it_has_read(alchemy: AsyncEngine, path: Path) -> None:
    async with (
        opened(path.with_name("other.db")) as other,
        AsyncSession(alchemy, expire_on_commit=False) as session,
    ):
        note = Note(id=1)
        session.add(note)
        await session.commit()
        with pytest.raises(InvalidArgument):
            await other.begin(session)

        assert not session.in_transaction()
        assert not inspect(note).expired


# ---------------------------------------------------------------- stores that are closed


@pytest.mark.parametrize("turns", [1, 2, 3, 5])
@every_kind
async def test_a_join_whose_store_is_closed_meanwhile_has_not_begun(
    engine: SqliteEngine, alchemy: AsyncEngine, path: Path, kind: type, turns: int
) -> None:
    store = await SqliteStore(path)
    async with held(alchemy, kind) as given:
        joining = asyncio.ensure_future(store.join(given).__aenter__())
        for _ in range(turns):
            await asyncio.sleep(0)
        await store.aclose()
        with pytest.raises(Closed):
            await joining

        await is_free(engine, given)
