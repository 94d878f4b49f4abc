"""SqliteStore used as a user would use it: only type-checked, never run."""

from typing import assert_type

import aiosqlite

import alkstore
from alkstore_sqlite import SqliteStore, SqliteTx


async def own_sql(store: SqliteStore) -> None:
    async with store.begin_tx() as tx:
        assert_type(tx, SqliteTx)
        connection: aiosqlite.Connection = tx.connection  # awaitable itself, so it must stand for something
        await connection.execute("INSERT INTO person VALUES (?)", ("ada",))
        await tx.enqueue("mail", {"to": "ada"})
    begun = await store.begin_tx()
    assert_type(begun, SqliteTx)
    await begun.rollback()


async def any_engine(store: alkstore.Store) -> None:
    async with store.begin_tx() as tx:
        assert_type(tx.connection, object)


async def opening() -> None:
    async with SqliteStore("app.db") as store:
        opened: SqliteStore = store
        await own_sql(opened)
        await any_engine(opened)
