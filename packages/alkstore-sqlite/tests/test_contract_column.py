"""The column does to the file what it says: a factory that breaks nothing would make every row about faults pass."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import aclosing, closing
from pathlib import Path

import pytest

from alkstore import DatabaseError, SchemaMismatch, Store
from alkstore_contract_suite.factory import Crash, Fault, Unsupported
from alkstore_contract_suite.single_file import SingleFileBackend
from alkstore_sqlite.contract import SqliteFactory

JOBS = "SELECT count(*) FROM alkstore_job"

FAULTS = {
    Fault.STORAGE_FULL: sqlite3.SQLITE_FULL,
    Fault.READ_ONLY: sqlite3.SQLITE_READONLY,
    Fault.COMMIT_FAILS: sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY,
}


@pytest.fixture
async def factory(tmp_path: Path) -> AsyncIterator[SqliteFactory]:
    async with SingleFileBackend(tmp_path, SqliteFactory).scope("case") as made:
        assert isinstance(made, SqliteFactory)
        yield made


@pytest.fixture
async def store(factory: SqliteFactory) -> AsyncIterator[Store]:
    opened = await factory.open()
    yield opened
    await opened.aclose()


def count(path: Path, sql: str = JOBS) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute(sql).fetchone()[0])


@pytest.mark.parametrize("kind", list(Crash))
async def test_what_a_crash_leaves_is_in_the_log_and_not_in_the_file(
    factory: SqliteFactory, store: Store, tmp_path: Path, kind: Crash
) -> None:
    await store.queue("q").enqueue(1)
    await factory.crash(store, kind)

    left = {file.name: file.stat().st_size for file in factory.path.parent.iterdir()}
    alone = tmp_path / "alone.db"
    alone.write_bytes(factory.path.read_bytes())

    assert left["alkstore.db-wal"] > 0
    assert ("alkstore.db-shm" in left) is (kind is Crash.KILL)
    assert (count(alone), count(factory.path)) == (0, 1)


async def test_a_crash_takes_an_open_transaction_along(factory: SqliteFactory, store: Store) -> None:
    await store.queue("q").enqueue("committed")
    tx = await store.begin_tx()
    await tx.enqueue("q", "x" * 1_000_000)
    await factory.crash(store, Crash.KILL)

    async with aclosing(await factory.open()) as after:
        assert [job.payload for job in await after.queue("q").list()] == ["committed"]
    assert await factory.sound() is None


async def test_a_crash_beside_writers_leaves_a_sound_file(factory: SqliteFactory, store: Store) -> None:
    acknowledged: list[int] = []
    enough = asyncio.Event()

    async def write() -> None:
        while True:
            acknowledged.append(await store.queue("q").enqueue("x" * 10_000))
            if len(acknowledged) == 600:  # past the pages after which SQLite copies the log into the file
                enough.set()

    writing = [asyncio.create_task(write()) for _ in range(3)]
    await enough.wait()
    before = list(acknowledged)
    await factory.crash(store, Crash.KILL)
    await asyncio.wait(writing)

    with closing(sqlite3.connect(factory.path)) as connection:
        found = {row[0] for row in connection.execute("SELECT id FROM alkstore_job")}
    assert set(before) <= found
    assert await factory.sound() is None
    assert not any(task.exception() is None for task in writing)


@pytest.mark.parametrize("kind", list(FAULTS))
async def test_a_fault_stops_writes_for_its_block_and_no_longer(
    factory: SqliteFactory, store: Store, kind: Fault
) -> None:
    fault = factory.fault(kind, store)
    assert not isinstance(fault, Unsupported)

    async with fault:
        with pytest.raises(DatabaseError) as caught:
            await store.queue("q").enqueue("x" * 100_000)

    cause = caught.value.__cause__
    assert isinstance(cause, sqlite3.Error)
    assert cause.sqlite_errorcode == FAULTS[kind]
    await store.queue("q").enqueue("x" * 100_000)
    assert count(factory.path) == 1
    assert count(factory.path, "SELECT count(*) FROM sqlite_schema WHERE type = 'trigger'") == 0


async def test_a_commit_that_is_to_fail_fails_no_sooner(factory: SqliteFactory, store: Store) -> None:
    fault = factory.fault(Fault.COMMIT_FAILS, store)
    assert not isinstance(fault, Unsupported)

    async with fault:
        tx = await store.begin_tx()
        await tx.enqueue("q", 1)
        with pytest.raises(DatabaseError):
            await tx.commit()

    assert count(factory.path) == 0


async def test_storage_that_is_away_is_away_for_reads_and_writes(
    factory: SqliteFactory, store: Store
) -> None:
    await store.queue("q").enqueue(1)
    fault = factory.fault(Fault.STORAGE_AWAY, store)
    assert not isinstance(fault, Unsupported)

    async with fault:
        for call in (store.queue("q").enqueue(2), store.queue("q").list()):
            with pytest.raises(DatabaseError):
                await call

    assert [job.payload for job in await store.queue("q").list()] == [1]


@pytest.mark.parametrize("newer", [True, False])
async def test_a_foreign_schema_is_a_newer_one_or_the_oldest(
    factory: SqliteFactory, store: Store, newer: bool
) -> None:
    await factory.foreign_schema(newer)

    if newer:
        with pytest.raises(SchemaMismatch):
            _ = await factory.open()
    else:
        async with aclosing(await factory.open()) as oldest:
            assert await oldest.queues() == []


async def test_a_damaged_file_is_not_sound(factory: SqliteFactory, store: Store) -> None:
    assert await factory.sound() is None
    await store.queue("q").enqueue(1)
    with closing(sqlite3.connect(factory.path)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("DELETE FROM sqlite_schema WHERE name = 'alkstore_job_queue'")
        connection.commit()

    assert await factory.sound() is not None


async def test_a_footprint_leaves_out_notifications_alone(factory: SqliteFactory, store: Store) -> None:
    empty = await factory.footprint()
    for _ in range(3):
        await store.notify("c")
    await store.queue("q").enqueue(1)

    assert await factory.footprint() - empty == 2  # the channel's counter and the job
