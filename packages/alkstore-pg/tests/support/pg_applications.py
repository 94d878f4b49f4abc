"""The libraries whose transactions are joined, each as its users hold it."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import asyncpg
import psycopg
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

__all__ = ["LIBRARIES", "Application", "Make", "alchemy", "asyncpg_block", "asyncpg_by_hand", "psycopg_plain"]


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
