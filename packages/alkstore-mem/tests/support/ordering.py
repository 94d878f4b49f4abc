"""An application that takes orders: its tables, its database, and what it finds in a store."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import ForeignKey, event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from alkstore import Store


class Base(DeclarativeBase):
    """The application's tables."""


class Order(Base):
    __tablename__ = "order_"

    id: Mapped[int] = mapped_column(primary_key=True)


class Part(Base):
    __tablename__ = "part"

    id: Mapped[int] = mapped_column(primary_key=True)
    order: Mapped[int] = mapped_column(ForeignKey("order_.id", deferrable=True, initially="DEFERRED"))


@asynccontextmanager
async def database(url: str = "sqlite+aiosqlite://", **options: str) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(url, **options)

    def connected(connection: object, _: object) -> None:
        connection.isolation_level = None  # type: ignore[attr-defined]  # SQLAlchemy's face of aiosqlite's
        cursor = connection.cursor()  # type: ignore[attr-defined]
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.close()

    event.listen(engine.sync_engine, "connect", connected)
    event.listen(engine.sync_engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    try:
        yield engine
    finally:
        await engine.dispose()


async def payloads(store: Store, queue: str = "q") -> list[object]:
    return [job.payload for job in await store.queue(queue).list()]


async def events(store: Store) -> list[object]:
    return [event.payload for event in await store.stream("s").read_since(0)]
