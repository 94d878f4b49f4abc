"""Transactions of the store's own, with the application's own SQL and threads beside them."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import aiosqlite
import pytest
from engines import held_up, locked, opened, rest, rows
from hanging import HUNG
from jobs import new_job

from alkstore.engine import (
    Ack,
    EngineTransaction,
    JobFilter,
    JobState,
    NewEvent,
    NewWake,
    OffsetSave,
    Topic,
    TopicKind,
)
from alkstore.errors import Closed, DatabaseError
from alkstore.testing import ManualClock
from alkstore_sqlite import SqliteStore
from alkstore_sqlite.engine import SqliteEngine

EVENTS = "SELECT payload FROM alkstore_event ORDER BY stream, offset"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


def driver_of(tx: EngineTransaction) -> aiosqlite.Connection:
    return cast(aiosqlite.Connection, tx.connection)


def execute(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute(sql)


def event(payload: bytes) -> NewEvent:
    return NewEvent("s", None, payload, b"{}")


# ---------------------------------------------------------------- an operation is whole or not at all


def refuse(path: Path, table: str, how: str = "ABORT") -> None:
    """Have a trigger of the application's refuse whatever holds a 3."""
    execute(
        path,
        f"CREATE TRIGGER guard AFTER INSERT ON {table} WHEN NEW.payload = CAST('3' AS BLOB) "
        f"BEGIN SELECT RAISE({how}, 'no threes'); END",
    )


async def write(tx: EngineTransaction, table: str, *payloads: bytes) -> None:
    if table == "alkstore_job":
        await tx.insert_jobs([new_job(payload) for payload in payloads])
    else:
        await tx.append_events([event(payload) for payload in payloads])


@pytest.mark.parametrize("table", ["alkstore_job", "alkstore_event"])
@pytest.mark.parametrize("how", ["ABORT", "FAIL"])
async def test_the_third_row_of_a_batch_that_is_refused_takes_the_batch_along_and_nothing_else(
    path: Path, how: str, table: str
) -> None:
    async with opened(path) as engine:
        refuse(path, table, how)
        tx = await engine.begin()
        await write(tx, table, b"before")

        with pytest.raises(DatabaseError, match="no threes"):
            await write(tx, table, b"1", b"2", b"3", b"4")

        assert tx.is_open
        await write(tx, table, b"after")
        await tx.commit()
        assert rows(path, f"SELECT payload FROM {table} ORDER BY rowid") == [b"before", b"after"]
        assert await engine.read_head("s") in (0, 2)


async def test_a_refused_batch_leaves_nothing_if_its_statement_has_fired_the_trigger_before(
    path: Path,
) -> None:
    async with opened(path) as engine:
        refuse(path, "alkstore_job", "FAIL")
        tx = await engine.begin()
        await write(tx, "alkstore_job", b"1", b"2")

        with pytest.raises(DatabaseError, match="no threes"):
            await write(tx, "alkstore_job", b"4", b"3")

        await tx.commit()
        assert rows(path, "SELECT payload FROM alkstore_job ORDER BY rowid") == [b"1", b"2"]


async def test_wakes_of_an_operation_that_failed_are_not_heard_at_the_commit(path: Path) -> None:
    async with opened(path) as engine:
        watches = [await engine.watch(Topic(TopicKind.QUEUE, name)) for name in ("failed", "landed")]
        refuse(path, "alkstore_job")
        tx = await engine.begin()
        with pytest.raises(DatabaseError):
            await tx.insert_jobs([new_job(b"3", name="failed")])
        await tx.insert_jobs([new_job(b"4", name="landed")])
        assert [watch.poll() for watch in watches] == [None, None]

        await tx.commit()

        assert [watch.poll() is not None for watch in watches] == [False, True]


async def test_a_trigger_that_ends_the_whole_transaction_ends_it(path: Path) -> None:
    async with opened(path) as engine:
        refuse(path, "alkstore_job", "ROLLBACK")
        tx = await engine.begin()
        await tx.insert_jobs([new_job(b"before")])

        with pytest.raises(DatabaseError, match="no threes"):
            await tx.insert_jobs([new_job(b"3")])

        assert not tx.is_open
        with pytest.raises(Closed):
            await tx.insert_jobs([new_job(b"after")])
        with pytest.raises(Closed):
            await tx.commit()
        await tx.rollback()
        await engine.insert_jobs([new_job(b"later")])
        assert rows(path) == [b"later"]


async def test_a_commit_that_is_refused_leaves_nothing_and_frees_the_writer(path: Path) -> None:
    async with opened(path) as engine:
        execute(
            path,
            "CREATE TABLE mine (id INTEGER PRIMARY KEY, whole REFERENCES mine DEFERRABLE INITIALLY DEFERRED)",
        )
        tx = await engine.begin()
        driver = driver_of(tx)
        await tx.rollback()
        await driver.execute_fetchall("PRAGMA foreign_keys = ON")  # which has no effect within a transaction
        watch = await engine.watch(Topic(TopicKind.QUEUE, "q"))
        tx = await engine.begin()
        await tx.insert_jobs([new_job(b"lost")])
        await driver.execute_fetchall("INSERT INTO mine (whole) VALUES (7)")

        with pytest.raises(DatabaseError, match="FOREIGN KEY") as caught:
            await tx.commit()

        assert (tx.is_open, caught.value.outcome_unknown, watch.poll()) == (False, False, None)
        with locked(path):  # it is free at once, for other processes too
            pass
        await engine.insert_jobs([new_job(b"later")])
        assert rows(path) == [b"later"]


# ---------------------------------------------------------------- what is seen


async def test_what_is_done_is_seen_within_and_by_nobody_else_before_the_commit(path: Path) -> None:
    async with opened(path) as engine:
        await engine.insert_jobs([new_job(b"claimed", priority=1)])
        (claimed,) = (await engine.claim_jobs("q", ["me"])).jobs
        assert claimed.token is not None
        tx = await engine.begin()

        await tx.insert_jobs([new_job(b"new")])
        await tx.append_events([event(b"1"), event(b"2")])
        await tx.notify([NewWake("c", b"1")])
        assert await tx.settle_jobs([Ack("q", claimed.id, claimed.token)]) == [engine._clock.now()]
        assert await tx.read_offset("s", "me", hold=True) == 0
        assert await tx.save_offset("s", "me", 2, 0) == OffsetSave(0, True)

        assert [job.payload for job in await tx.find_jobs("q", JobFilter())] == [b"new"]
        assert [found.offset for found in await tx.read_events("s", 0, 9)] == [1, 2]
        assert await tx.read_offset("s", "me", hold=False) == 2
        assert [job.payload for job in await engine.find_jobs("q", JobFilter())] == [b"claimed"]
        assert await engine.read_head("s") == 0
        await tx.commit()
        assert [job.payload for job in await engine.find_jobs("q", JobFilter())] == [b"new"]
        assert await engine.read_offsets("s") == {"me": 2}
        assert rows(path, "SELECT payload FROM alkstore_notification") == ["1"]


async def test_a_rollback_leaves_no_trace_and_gives_the_same_offsets_again(path: Path) -> None:
    async with opened(path) as engine:
        tx = await engine.begin()
        assert await tx.append_events([event(b"lost")]) == [1]
        await tx.insert_jobs([new_job(b"lost")])
        await tx.rollback()

        assert await engine.append_events([event(b"1")]) == [1]
        assert (rows(path), rows(path, EVENTS)) == ([], [b"1"])


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_what_has_ended_does_not_end_the_next_one(path: Path, end: str) -> None:
    async with opened(path) as engine:
        first = await engine.begin()
        await getattr(first, end)()
        second = await engine.begin()
        await second.insert_jobs([new_job(b"second")])

        await first.rollback()
        first.abandon()
        await rest(engine)
        with pytest.raises(Closed):
            await first.commit()

        await second.commit()
        assert rows(path) == [b"second"]


# ---------------------------------------------------------------- the application's own SQL


async def test_the_applications_own_sql_lands_with_the_transaction(path: Path) -> None:
    async with opened(path) as engine:
        execute(path, "CREATE TABLE mine (value TEXT)")
        for value, end in (("lost", "rollback"), ("kept", "commit")):
            tx = await engine.begin()
            await driver_of(tx).execute("INSERT INTO mine (value) VALUES (?)", (value,))
            await tx.insert_jobs([new_job(value.encode())])
            await getattr(tx, end)()

        assert (rows(path), rows(path, "SELECT value FROM mine")) == ([b"kept"], ["kept"])


@pytest.mark.parametrize("sql", ["COMMIT", "ROLLBACK"])
async def test_a_transaction_that_the_application_ended_by_its_own_sql_is_closed_and_the_writer_free(
    path: Path, sql: str
) -> None:
    async with SqliteStore(path, clock=ManualClock(), wait_timeout=5, durability="process") as store:
        async with store.begin_tx() as tx:
            await tx.enqueue("q", 1)
            await tx.connection.execute(sql)
            with pytest.raises(Closed):
                await tx.enqueue("q", 2)

        await store.queue("q").enqueue(3)

        assert rows(path) == [*([b"1"] if sql == "COMMIT" else []), b"3"]


@pytest.mark.parametrize("begin", ["BEGIN", "BEGIN IMMEDIATE", "SAVEPOINT another"])
async def test_what_the_application_begins_by_its_own_sql_is_another_transaction(
    path: Path, begin: str
) -> None:
    async with SqliteStore(path, clock=ManualClock(), wait_timeout=5, durability="process") as store:
        for number in range(3):
            async with store.begin_tx() as tx:
                connection = tx.connection
                await tx.enqueue("q", number)
                await connection.execute("COMMIT")
                await connection.execute(begin)
                for call in (tx.enqueue("q", "stray"), tx.publish("s", "stray"), tx.commit()):
                    with pytest.raises(Closed):
                        await call

            async with store.begin_tx() as tx:
                await tx.connection.execute("SAVEPOINT mine")
                await tx.enqueue("q", "kept")
                await tx.connection.execute("RELEASE mine")

        assert rows(path) == [b"0", b'"kept"', b"1", b'"kept"', b"2", b'"kept"']


class Odd:
    """A row as nobody expects it."""

    def __init__(self, cursor: sqlite3.Cursor, row: tuple[object, ...]) -> None:
        self.row = row


def shout(text: bytes) -> str:
    return text.decode().upper() + "!"


@pytest.mark.parametrize("text_factory", [bytes, bytearray, shout])
async def test_what_the_application_made_of_its_rows_stays_its_own(
    path: Path, text_factory: Callable[[bytes], object]
) -> None:
    async with opened(path) as engine:
        tx = await engine.begin()
        driver = driver_of(tx)
        driver.row_factory, driver.text_factory = cast(Any, Odd), cast(Any, text_factory)

        await tx.insert_jobs([new_job(b"1"), new_job(b"2")])
        assert await tx.append_events([event(b"1")]) == [1]
        assert await tx.save_offset("s", "me", 1, None) == OffsetSave(0, True)
        (first, _) = await tx.find_jobs("q", JobFilter())

        (found,) = await driver.execute_fetchall("SELECT queue FROM alkstore_job LIMIT 1")
        assert isinstance(found, Odd)
        assert found.row == (text_factory(b"q"),)
        assert (driver.row_factory, driver.text_factory) == (Odd, text_factory)
        assert (first.queue, first.payload, first.state) == ("q", b"1", JobState.PENDING)
        await tx.commit()

        # The connection goes on to serve everybody.
        (job,) = (await engine.claim_jobs("q", ["me"])).jobs
        assert (job.queue, job.worker_id) == ("q", "me")
        assert (await engine.take_lock("l", 5)).fence == 1


async def test_a_savepoint_of_the_applications_takes_our_operations_along(path: Path) -> None:
    async with opened(path) as engine:
        tx = await engine.begin()
        driver = driver_of(tx)
        await tx.insert_jobs([new_job(b"before")])
        await driver.execute("SAVEPOINT alkstore")  # even of the name that ours have
        await tx.insert_jobs([new_job(b"within")])
        await driver.execute("ROLLBACK TO alkstore")
        await tx.insert_jobs([new_job(b"after")])
        await driver.execute("RELEASE alkstore")
        await tx.commit()

        assert rows(path) == [b"before", b"after"]


# ---------------------------------------------------------------- transactions that nobody ends


async def test_a_transaction_that_another_thread_lets_go_of_is_undone_and_the_writer_free(path: Path) -> None:
    async with opened(path) as engine:
        tx = await engine.begin()
        await tx.insert_jobs([new_job(b"lost")])
        behind = asyncio.ensure_future(engine.insert_jobs([new_job(b"behind")]))

        thread = threading.Thread(target=tx.abandon)
        thread.start()
        thread.join()
        tx.abandon()

        async with asyncio.timeout(HUNG):
            await behind
        await rest(engine)
        with pytest.raises(Closed):
            await tx.insert_jobs([new_job(b"late")])
        assert rows(path) == [b"behind"]


def test_a_transaction_that_outlives_its_loop_may_be_let_go_of(path: Path) -> None:
    async def leave() -> EngineTransaction:
        async with opened(path) as engine:
            tx = await engine.begin()
            await tx.insert_jobs([new_job(b"lost")])
            return tx

    left = asyncio.run(leave())

    left.abandon()
    assert rows(path) == []


async def test_a_beginning_that_is_cancelled_in_the_thread_is_undone(path: Path) -> None:
    async with opened(path) as engine:
        with locked(path) as other:
            beginning = asyncio.ensure_future(engine.begin())
            await held_up(engine)
            beginning.cancel()
            await asyncio.wait((beginning,))
            behind = asyncio.ensure_future(engine.insert_jobs([new_job(b"behind")]))
            other.execute("ROLLBACK")

            async with asyncio.timeout(HUNG):
                await behind
        await rest(engine)
        with locked(path):  # nothing was left open
            pass

        assert beginning.cancelled()
        assert rows(path) == [b"behind"]


@pytest.mark.parametrize("turns", range(1, 12))
async def test_a_commit_that_is_cancelled_lands_whole_or_not_at_all_and_frees_the_writer(
    path: Path, turns: int
) -> None:
    async with opened(path) as engine:
        tx = await engine.begin()
        await tx.insert_jobs([new_job(b"1"), new_job(b"2")])
        watch = await engine.watch(Topic(TopicKind.QUEUE, "q"))
        committing = asyncio.ensure_future(tx.commit())
        for _ in range(turns):
            await asyncio.sleep(0)
        committing.cancel()
        await asyncio.wait((committing,))

        async with asyncio.timeout(HUNG):
            await engine.insert_jobs([new_job(b"behind", name="other")])

        await rest(engine)
        landed = rows(path) == [b"1", b"2", b"behind"]
        assert landed or rows(path) == [b"behind"]
        assert (watch.poll() is not None) == landed
        assert not tx.is_open


async def test_a_close_undoes_what_is_open(path: Path) -> None:
    engine = await SqliteEngine.open(str(path), ManualClock(), wait_timeout=5, durability="process")
    tx = await engine.begin()
    await tx.insert_jobs([new_job(b"lost")])

    await engine.aclose()

    assert not tx.is_open
    assert rows(path) == []
