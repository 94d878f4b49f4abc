"""PgStore used as a user would use it: only type-checked, never run."""

from typing import assert_type

import asyncpg

import alkstore
from alkstore_pg import PgStore, PgTx


async def own_sql(store: PgStore) -> None:
    async with store.begin_tx() as tx:
        assert_type(tx, PgTx)
        assert_type(tx.connection, asyncpg.Connection[asyncpg.Record])
        await tx.connection.execute("INSERT INTO person VALUES ($1)", "ada")
        await tx.enqueue("mail", {"to": "ada"})
    begun = await store.begin_tx()
    assert_type(begun, PgTx)
    await begun.rollback()


async def any_engine(store: alkstore.Store) -> None:
    async with store.begin_tx() as tx:
        assert_type(tx.connection, object)


async def opening() -> None:
    async with PgStore("postgresql:///shop", pool_size=4, migrate=False) as store:
        opened: PgStore = store
        await own_sql(opened)
        await any_engine(opened)
