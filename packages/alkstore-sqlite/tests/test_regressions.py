"""Faults that were found in this engine, and stay found."""

import asyncio
import gc
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Literal, TypeAlias, cast, get_args

import aiosqlite
import pytest
from hanging import HUNG

from alkstore import Closed, DatabaseError, InvalidArgument, Tx
from alkstore.clock import SystemClock
from alkstore_sqlite import SqliteStore
from alkstore_sqlite.engine import SqliteEngine
from alkstore_sqlite.link import CLOSE_LIMIT, Link
from alkstore_sqlite.queue import BURIED_BY_A_CLAIM, TIDIED_BY_A_CLAIM
from alkstore_sqlite.surroundings import prepare_reader

COUNTS_FOR_LONG = (
    "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 100000) SELECT count(*) FROM n"
)

Level: TypeAlias = Literal["DEFERRED", "IMMEDIATE", "EXCLUSIVE"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    async with SqliteStore(path, wait_timeout=2, durability="process") as store:
        yield store


def connection_of(tx: Tx) -> aiosqlite.Connection:
    return cast(aiosqlite.Connection, tx.connection)


def rows(path: Path, sql: str = "SELECT payload FROM alkstore_job ORDER BY id") -> list[object]:
    """What another program sees: what was committed."""
    with closing(sqlite3.connect(path)) as other:
        return [row[0] for row in other.execute(sql)]


# ---------------------------------------------------------------- what a caller did to the connection of a transaction


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
async def test_nothing_lands_behind_the_callers_own_end_that_is_still_on_its_way(
    store: SqliteStore, path: Path, end: str
) -> None:
    async with store.begin_tx() as tx:
        own = [asyncio.ensure_future(connection_of(tx).execute(sql)) for sql in (COUNTS_FOR_LONG, end)]
        await asyncio.sleep(0)  # handed over, and neither has run
        with pytest.raises(Closed):
            await tx.enqueue("mail", 1)
        await asyncio.gather(*own)

    assert rows(path) == []


@pytest.mark.parametrize("level", get_args(Level))
async def test_a_write_is_committed_after_a_caller_made_the_driver_begin_by_itself(
    store: SqliteStore, path: Path, level: Level
) -> None:
    async with store.begin_tx() as tx:
        connection_of(tx).isolation_level = level

    await store.queue("q").enqueue(1)

    assert rows(path) == [b"1"]


async def test_a_write_is_committed_after_a_caller_began_on_a_connection_that_he_kept(
    store: SqliteStore, path: Path
) -> None:
    async with store.begin_tx() as tx:
        kept = connection_of(tx)
    await kept.execute("BEGIN IMMEDIATE")

    await store.queue("q").enqueue(1)

    assert rows(path) == [b"1"]


async def test_a_store_goes_on_in_silence_after_a_caller_closed_its_connection(store: SqliteStore) -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    tx = await store.begin_tx()
    await connection_of(tx).close()
    with pytest.raises(Closed):
        await tx.enqueue("q", 1)
    del tx

    await store.queue("q").enqueue(2)

    gc.collect()
    assert [job.payload for job in await store.queue("q").list()] == [2]
    assert complaints == []


# ---------------------------------------------------------------- errors within a shared commit


@pytest.mark.parametrize("verb", ["ABORT", "FAIL", "ROLLBACK"])
async def test_a_row_that_a_trigger_refuses_takes_no_other_along(
    store: SqliteStore, path: Path, verb: str
) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute(
            "CREATE TRIGGER picky BEFORE INSERT ON alkstore_job WHEN NEW.payload = CAST('13' AS BLOB) "
            f"BEGIN SELECT RAISE({verb}, 'unlucky'); END"
        )
    queue = store.queue("q")

    # The first one has the writer for itself, the others meet behind it.
    answers = await asyncio.gather(
        store.notify("c"),
        queue.enqueue(13),
        store.stream("s").publish(1),
        store.stream("s").save_offset("me", 1),
        queue.enqueue(14),
        return_exceptions=True,
    )

    errors = [answer for answer in answers if isinstance(answer, Exception)]
    assert errors == [answers[1]]
    assert isinstance(errors[0], DatabaseError)
    assert "unlucky" in str(errors[0])
    assert rows(path) == [b"14"]
    assert rows(path, "SELECT wakes FROM alkstore_channel") == [1]
    assert rows(path, "SELECT head FROM alkstore_stream") == [1]
    assert rows(path, "SELECT offset FROM alkstore_position") == [1]


async def test_a_row_that_finds_no_room_takes_no_other_along(store: SqliteStore, path: Path) -> None:
    queue = store.queue("q")
    async with store.begin_tx() as tx:
        pages = await (await connection_of(tx).execute("PRAGMA page_count")).fetchone()
        assert pages is not None
        await (await connection_of(tx).execute(f"PRAGMA max_page_count = {pages[0] + 50}")).close()

    answers = await asyncio.gather(
        store.notify("c"),
        store.stream("t").save_offset("me", 1),
        queue.enqueue("x" * 1_000_000),
        store.stream("s").publish(1),
        store.stream("s").save_offset("me", 1),
        return_exceptions=True,
    )

    errors = [answer for answer in answers if isinstance(answer, DatabaseError)]
    assert errors == [answers[2]]
    assert "no room left" in str(errors[0])
    assert not errors[0].outcome_unknown
    assert rows(path, "SELECT head FROM alkstore_stream WHERE name = 's'") == [1]


# ---------------------------------------------------------------- claims


async def test_a_claim_that_takes_several_commits_still_buries_a_thousand_at_most(
    store: SqliteStore, path: Path
) -> None:
    copy = (
        "INSERT INTO alkstore_job (queue, payload, headers, place, priority, run_at, attempts, max_attempts, "
        "visibility_timeout, base_delay, deadline, token, created_at) "
        "WITH RECURSIVE n (n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM n WHERE n < ?2) "
        "SELECT 'q', CAST('1' AS BLOB), CAST('{}' AS BLOB), ?1, 0, 0, 1, ?3, 300000000, 0, 1, n, 0 FROM n"
    )
    with closing(sqlite3.connect(path)) as other, other:
        other.execute(copy, {"1": 1, "2": TIDIED_BY_A_CLAIM + 1, "3": 2})
        other.execute(copy, {"1": 2, "2": 3 * BURIED_BY_A_CLAIM, "3": 1})
    queue = store.queue("q")

    assert await queue.claim_one() is not None

    assert (await queue.stats()).dead == BURIED_BY_A_CLAIM


# ---------------------------------------------------------------- joins


async def test_no_connection_through_a_hard_link_is_joined(store: SqliteStore, path: Path) -> None:
    link = path.with_name("link.db")
    link.hardlink_to(path)
    async with aiosqlite.connect(link) as connection:
        with pytest.raises(InvalidArgument, match="same file"):
            await store.join(connection).__aenter__()

    assert not link.with_name("link.db-wal").exists()


async def test_no_connection_whose_file_is_gone_is_joined(store: SqliteStore, tmp_path: Path) -> None:
    async with aiosqlite.connect(tmp_path / "gone.db") as connection:
        (tmp_path / "gone.db").unlink()

        with pytest.raises(InvalidArgument, match="same file"):
            await store.join(connection).__aenter__()


async def test_a_connection_through_a_symbolic_link_is_joined(store: SqliteStore, path: Path) -> None:
    link = path.with_name("link.db")
    link.symlink_to(path)
    async with aiosqlite.connect(link) as connection:
        async with store.join(connection) as tx:
            await tx.enqueue("q", 1)
        await connection.commit()

    assert rows(path) == [b"1"]


async def test_a_joined_transaction_that_was_closed_does_not_ride_the_next_one(
    store: SqliteStore, path: Path
) -> None:
    async with aiosqlite.connect(path) as connection:
        tx = await store.join(connection)
        await connection.commit()
        with pytest.raises(Closed):
            await tx.enqueue("q", 1)
        await connection.execute("BEGIN")

        with pytest.raises(Closed):
            await tx.enqueue("q", 2)


# ---------------------------------------------------------------- waiting


LIMIT = 0.2
CROWD = 300
"""So many that one after the other they would wait for twice as long as a test may hang."""


async def test_a_crowd_behind_a_transaction_waits_once_and_does_nothing(path: Path) -> None:
    async with SqliteStore(path, wait_timeout=LIMIT) as store, store.begin_tx():
        queue = store.queue("q")
        writes = [asyncio.ensure_future(queue.enqueue(number)) for number in range(CROWD)]

        async with asyncio.timeout(HUNG):
            answers = await asyncio.gather(*writes, return_exceptions=True)

        assert {type(answer) for answer in answers} == {DatabaseError}
    assert rows(path) == []


async def test_a_crowd_behind_another_process_waits_once_and_does_nothing(path: Path) -> None:
    async with SqliteStore(path, wait_timeout=LIMIT) as store:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            writes = [store.queue("q").enqueue(number) for number in range(CROWD)]

            async with asyncio.timeout(HUNG):
                answers = await asyncio.gather(*writes, return_exceptions=True)

        assert {type(answer) for answer in answers} == {DatabaseError}
        assert await store.queue("q").list() == []


# ---------------------------------------------------------------- the end


async def test_a_connection_that_two_close_at_once_is_closed_for_both(path: Path) -> None:
    link = await Link.open(str(path), prepare_reader)

    async with asyncio.timeout(HUNG):
        await asyncio.gather(*(link.close(2 * HUNG) for _ in range(2)))


async def test_a_close_is_not_held_up_by_a_begin_that_waits_for_another_process(path: Path) -> None:
    engine = await SqliteEngine.open(str(path), SystemClock(), wait_timeout=2 * HUNG, durability="process")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        begin = asyncio.ensure_future(engine.begin())
        async with asyncio.timeout(HUNG):
            while not engine.is_held_up:  # noqa: ASYNC110  # the thread tells nobody
                await asyncio.sleep(0)
        begin.cancel()
        await asyncio.wait((begin,))

        async with asyncio.timeout(CLOSE_LIMIT):  # not to its end
            await engine.aclose()

    assert not engine.is_at_work


async def test_an_opening_that_is_cancelled_waits_for_nobody(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("CREATE TABLE person (name TEXT)")
        other.execute("BEGIN EXCLUSIVE")
        threads = set(threading.enumerate())
        opening = asyncio.ensure_future(SqliteStore(path, wait_timeout=2 * HUNG).__aenter__())
        await asyncio.wait((opening,), timeout=0.05)
        opening.cancel()

        async with asyncio.timeout(HUNG):
            await asyncio.wait((opening,))

        assert opening.cancelled()
        assert set(threading.enumerate()) <= threads  # one of a test before may end meanwhile
