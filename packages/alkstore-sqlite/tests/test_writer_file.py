"""What the writer does when its connection, or the file at its place, is of no use any more."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiosqlite
import pytest
from engines import held_up, locked, opened, rows
from hanging import HUNG
from jobs import new_job

from alkstore.engine import JobFilter
from alkstore.errors import DatabaseError
from alkstore_sqlite.engine import SqliteEngine
from alkstore_sqlite.errors import FileReplaced


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


async def insert(engine: SqliteEngine, payload: bytes = b"1") -> int:
    (id,) = await engine.insert_jobs([new_job(payload)])
    return id


# ---------------------------------------------------------------- connections that are of no use any more


async def test_a_connection_that_was_closed_is_opened_again(path: Path) -> None:
    async with opened(path) as engine:
        tx = await engine.begin()
        connection = tx.connection
        await tx.rollback()
        await connection.close()  # type: ignore[attr-defined]

        answers = await asyncio.gather(*(insert(engine, b"%d" % n) for n in range(3)), return_exceptions=True)

        assert [type(answer) for answer in answers] == [DatabaseError, int, int]
        assert "is closed" in str(answers[0])
        assert rows(path) == [b"1", b"2"]


async def test_a_transaction_after_a_connection_was_closed_begins_on_a_new_one(path: Path) -> None:
    async with opened(path) as engine:
        tx = await engine.begin()
        connection = tx.connection
        await tx.rollback()
        await connection.close()  # type: ignore[attr-defined]

        with pytest.raises(DatabaseError):
            await engine.begin()
        tx = await engine.begin()
        await tx.insert_jobs([new_job()])
        await tx.commit()

        assert tx.is_open is False
        assert rows(path) == [b"1"]


@pytest.mark.parametrize(
    "operation",
    [
        lambda engine: insert(engine),
        lambda engine: asyncio.gather(*(insert(engine) for _ in range(3))),
        lambda engine: engine.insert_jobs([new_job()] * 2),
        lambda engine: engine.claim_jobs("q", ["me"]),
        lambda engine: engine.begin(),
    ],
    ids=["insert", "insert_at_once", "insert_two", "claim", "begin"],
)
async def test_rows_that_the_caller_of_a_transaction_left_half_read_are_in_nobodys_way(
    path: Path, operation: Callable[[SqliteEngine], Awaitable[object]]
) -> None:
    async with opened(path) as engine:
        await engine.insert_jobs([new_job(b"x" * 5000)] * 3)
        tx = await engine.begin()
        connection = tx.connection
        assert isinstance(connection, aiosqlite.Connection)
        cursor = await connection.execute("SELECT payload FROM alkstore_job")
        await cursor.fetchone()
        await tx.commit()
        async with opened(path) as other:
            await insert(other)

        await operation(engine)

        del cursor  # not before


# ---------------------------------------------------------------- the file at its place


def content_of(path: Path) -> bytes:
    return path.read_bytes()


async def refused(call: Callable[[], Awaitable[object]]) -> None:
    """Call until it is refused, which is within moments: a look at the file's place counts for one."""
    async with asyncio.timeout(HUNG):
        with pytest.raises(FileReplaced, match="was removed, moved or replaced"):  # noqa: PT012
            while True:
                await call()


async def test_a_file_that_is_back_goes_on_with_the_same_connection(path: Path) -> None:
    async with opened(path) as engine:
        tx = await engine.begin()
        connection = tx.connection
        await tx.rollback()
        os.rename(path, path.with_name("away.db"))
        await refused(lambda: insert(engine, b"perhaps"))
        os.rename(path.with_name("away.db"), path)

        await insert(engine, b"back")

        tx = await engine.begin()
        assert tx.connection is connection
        await tx.rollback()
        assert {*rows(path)} - {b"perhaps"} == {b"back"}


@pytest.mark.parametrize("has_read", [False, True])
async def test_a_file_that_was_replaced_is_refused_for_ever_and_the_other_one_left_alone(
    path: Path, has_read: bool
) -> None:
    another = path.with_name("another.db")
    async with opened(another) as engine:
        await insert(engine, b"another's")
    content = content_of(another)
    async with opened(path) as engine:
        await insert(engine)
        if has_read:
            await engine.find_jobs("q", JobFilter())
        os.replace(another, path)

        for call in (
            lambda: insert(engine),
            lambda: engine.insert_jobs([new_job()] * 2),
            lambda: engine.find_jobs("q", JobFilter()),
            lambda: engine.claim_jobs("q", ["me"]),
        ):
            await refused(call)
            with pytest.raises(FileReplaced):
                await call()
        with pytest.raises(FileReplaced):
            await engine.begin()
        with pytest.raises(FileReplaced):
            await insert(engine)

        assert content_of(path) == content
    assert content_of(path) == content


# ---------------------------------------------------------------- a file that another process holds


async def test_who_came_later_into_a_shared_hop_has_his_own_time_to_wait(path: Path) -> None:
    async def refused(engine: SqliteEngine) -> float:
        begun = time.monotonic()
        with pytest.raises(DatabaseError):
            await insert(engine)
        return time.monotonic() - begun

    async with opened(path, wait_timeout=0.4) as engine:
        with locked(path):
            first = asyncio.ensure_future(refused(engine))
            await held_up(engine)
            second = asyncio.ensure_future(refused(engine))
            await asyncio.wait((first,), timeout=0.3)
            third = asyncio.ensure_future(refused(engine))

            await asyncio.wait((second,))
            assert not third.done()  # as in the hop that it shared with the second, or both in the next one
            waited = await asyncio.gather(first, second, third)

        assert min(waited) >= 0.4
        assert rows(path) == []
