"""Who begins, by the mode of the caller's connection."""

import sqlite3
from pathlib import Path
from typing import Any

import aiosqlite
import pytest

import alkstore
from alkstore.errors import InvalidArgument

HAS_AUTOCOMMIT = pytest.mark.skipif(
    not hasattr(sqlite3, "LEGACY_TRANSACTION_CONTROL"), reason="Python 3.12 has brought autocommit"
)


async def test_a_connection_that_begins_by_itself_is_made_to_begin_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with alkstore.open(f"sqlite:///{path}") as store, aiosqlite.connect(path) as connection:
        async with store.join(connection) as tx:
            await tx.enqueue("mail", "first")
        await connection.commit()

        assert [job.payload for job in await store.queue("mail").list()] == ["first"]


@pytest.mark.parametrize(
    "mode", [{"isolation_level": None}, pytest.param({"autocommit": True}, marks=HAS_AUTOCOMMIT)], ids=str
)
async def test_a_connection_that_commits_each_statement_is_joined_only_once_it_has_begun(
    tmp_path: Path, mode: dict[str, Any]
) -> None:
    path = tmp_path / "a.db"
    async with alkstore.open(f"sqlite:///{path}") as store, aiosqlite.connect(path, **mode) as connection:
        with pytest.raises(InvalidArgument, match="commits every statement by itself"):
            async with store.join(connection):
                raise AssertionError("a connection that would commit each statement was joined")
        await connection.execute("BEGIN IMMEDIATE")
        async with store.join(connection) as tx:
            await tx.enqueue("mail", "first")
        await connection.execute("COMMIT")

        assert [job.payload for job in await store.queue("mail").list()] == ["first"]


@HAS_AUTOCOMMIT
async def test_a_connection_that_is_always_in_a_transaction_is_joined_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    mode: dict[str, Any] = {"autocommit": False}
    async with alkstore.open(f"sqlite:///{path}") as store, aiosqlite.connect(path, **mode) as connection:
        async with store.join(connection) as tx:
            await tx.enqueue("mail", "first")
        await connection.commit()

        assert [job.payload for job in await store.queue("mail").list()] == ["first"]
