"""A trigger of the application's fails an operation whole, also one that is a single statement and commits by itself."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from engines import rows

from alkstore import DatabaseError
from alkstore_sqlite import SqliteStore
from alkstore_sqlite.connection import Connection


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    async with SqliteStore(path, durability="process") as store:
        # Compiled before there is any trigger.
        await store.queue("q").enqueue_batch([0, 0])
        await (await store.queue("q").claim_batch(2))[0].ack()
        yield store


def refusal(kind: str, how: str = "FAIL", temp: str = "", table: str = "alkstore_job") -> str:
    """Give what makes a trigger that refuses whatever holds a 3."""
    row = "OLD" if "DELETE" in kind else "NEW"
    return (
        f"CREATE {temp} TRIGGER guard {kind} ON {table} WHEN {row}.payload = CAST('3' AS BLOB) "
        f"BEGIN SELECT RAISE({how}, 'no threes'); END"
    )


def execute(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute(sql)
        other.commit()


def jobs(path: Path) -> list[object]:
    return [payload for payload in rows(path) if payload != b"0"]


@pytest.mark.parametrize("how", ["FAIL", "ABORT", "ROLLBACK"])
@pytest.mark.parametrize("kind", ["BEFORE INSERT", "AFTER INSERT"])
async def test_a_batch_with_a_row_that_is_refused_leaves_none(
    store: SqliteStore, path: Path, kind: str, how: str
) -> None:
    execute(path, refusal(kind, how))

    for _ in range(2):
        with pytest.raises(DatabaseError, match="no threes"):
            await store.queue("q").enqueue_batch([1, 2, 3, 4])

    await store.queue("q").enqueue_batch([5, 6])
    assert jobs(path) == [b"5", b"6"]


@pytest.mark.parametrize("temp", ["", "TEMP"])
async def test_a_trigger_is_known_whatever_the_case_that_its_author_wrote_our_table_in(
    store: SqliteStore, path: Path, temp: str
) -> None:
    async with store.begin_tx() as tx:
        await tx.connection.execute_fetchall(refusal("AFTER INSERT", temp=temp, table="ALKSTORE_JOB"))

    for _ in range(3):  # the first one is right by luck: it is compiled with the trigger
        with pytest.raises(DatabaseError, match="no threes"):
            await store.queue("q").enqueue_batch([1, 2, 3, 4])

    assert jobs(path) == []


async def test_a_job_that_is_refused_when_it_is_there_is_not_there(store: SqliteStore, path: Path) -> None:
    execute(path, refusal("AFTER INSERT"))

    with pytest.raises(DatabaseError, match="no threes"):
        await store.queue("q").enqueue(3)

    assert jobs(path) == []


async def test_a_row_that_is_refused_has_none_of_its_siblings_land_twice(
    store: SqliteStore, path: Path
) -> None:
    execute(path, refusal("AFTER INSERT"))
    queue = store.queue("q")

    answers = await asyncio.gather(*map(queue.enqueue, [1, 2, 3, 4]), return_exceptions=True)

    assert [type(answer) for answer in answers] == [int, int, DatabaseError, int]
    assert jobs(path) == [b"1", b"2", b"4"]


async def test_an_ack_that_is_refused_leaves_the_job(store: SqliteStore, path: Path) -> None:
    await store.queue("q").enqueue(3)
    job = await store.queue("q").claim_one()
    assert job is not None
    execute(path, refusal("AFTER DELETE"))

    with pytest.raises(DatabaseError, match="no threes"):
        await job.ack()

    assert jobs(path) == [b"3"]
    execute(path, "DROP TRIGGER guard")
    assert await job.ack()


async def test_a_trigger_that_was_compiled_within_a_transaction_is_known_outside(
    store: SqliteStore, path: Path
) -> None:
    execute(path, refusal("AFTER INSERT"))
    queue = store.queue("q")
    async with store.begin_tx() as tx:
        await tx.enqueue_batch(queue, [1, 2])

    with pytest.raises(DatabaseError, match="no threes"):
        await queue.enqueue_batch([1, 2, 3, 4])

    assert jobs(path) == [b"1", b"2"]


async def test_a_trigger_of_the_connection_alone_is_known_too(store: SqliteStore, path: Path) -> None:
    async with store.begin_tx() as tx:
        await tx.connection.execute_fetchall(refusal("AFTER INSERT", temp="TEMP"))

    with pytest.raises(DatabaseError, match="no threes"):
        await store.queue("q").enqueue_batch([1, 2, 3, 4])

    assert jobs(path) == []


async def test_what_a_trigger_does_lands_with_the_job(store: SqliteStore, path: Path) -> None:
    execute(path, "CREATE TABLE told (payload BLOB)")
    execute(
        path,
        "CREATE TRIGGER tell AFTER INSERT ON alkstore_job BEGIN INSERT INTO told VALUES (NEW.payload); END",
    )

    await store.queue("q").enqueue_batch([1, 2])
    await store.queue("q").enqueue(3)

    assert rows(path, "SELECT payload FROM told") == [b"1", b"2", b"3"]


# ---------------------------------------------------------------- what the compiler tells


@pytest.fixture
def connection(path: Path) -> Iterator[Connection]:
    with closing(sqlite3.connect(path, factory=Connection, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE alkstore_job (payload BLOB)")
        connection.execute("CREATE TABLE mine (payload BLOB)")
        connection.heed()
        yield connection


def write_mine(connection: Connection) -> None:
    connection.execute(
        "CREATE TRIGGER own AFTER INSERT ON mine BEGIN INSERT INTO alkstore_job VALUES (NEW.payload); END"
    )
    connection.execute("INSERT INTO mine VALUES ('3')")


def look_through_a_view(connection: Connection) -> None:
    connection.execute("CREATE VIEW shown AS SELECT payload FROM alkstore_job")
    connection.execute("SELECT * FROM shown")


@pytest.mark.parametrize("statement", [write_mine, look_through_a_view])
def test_what_the_application_compiles_for_itself_is_none_of_our_triggers(
    connection: Connection, statement: Callable[[Connection], None]
) -> None:
    statement(connection)
    was_seen = connection._saw_trigger

    assert (was_seen, connection.commits_each(), connection._saw_trigger) == (True, True, False)


def test_a_trigger_that_is_gone_is_forgotten(connection: Connection) -> None:
    connection.execute(refusal("AFTER INSERT"))
    connection.execute("INSERT INTO alkstore_job VALUES ('4')")
    with_it = connection.commits_each()
    connection.execute("DROP TRIGGER guard")

    assert (with_it, connection.commits_each()) == (False, True)


def test_rows_of_the_callers_own_kind_are_not_in_the_way_of_the_look_for_triggers(
    connection: Connection,
) -> None:
    def by_name(cursor: sqlite3.Cursor, row: tuple[object, ...]) -> dict[str, object]:
        return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}

    connection.row_factory = by_name
    write_mine(connection)

    assert connection.commits_each()


def test_a_look_that_is_refused_leaves_it_to_a_transaction(connection: Connection) -> None:
    def forbid(action: int, table: object, *_: object) -> int:
        return sqlite3.SQLITE_DENY if table == "sqlite_master" else sqlite3.SQLITE_OK

    write_mine(connection)
    connection.set_authorizer(forbid)

    assert not connection.commits_each()


def test_an_authorizer_of_the_applications_is_asked_too(connection: Connection) -> None:
    def forbid(action: int, *_: object) -> int:
        return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_DELETE else sqlite3.SQLITE_OK

    connection.set_authorizer(forbid)
    connection.execute(refusal("AFTER INSERT"))
    connection.execute("INSERT INTO alkstore_job VALUES ('4')")

    assert not connection.commits_each()
    with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
        connection.execute("DELETE FROM alkstore_job")
    connection.set_authorizer(None)
    assert connection.execute("DELETE FROM alkstore_job").rowcount == 1
