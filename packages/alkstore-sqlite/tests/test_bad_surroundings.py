"""A store among bad surroundings: each is a clear error, nothing acknowledged is lost, and it goes on afterwards."""

import asyncio
import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import aiosqlite
import pytest
from hanging import HUNG

import alkstore
from alkstore.errors import DatabaseError, InvalidArgument
from alkstore_sqlite.engine import SqliteStore
from alkstore_sqlite.errors import FileReplaced

BIG = "x" * 300_000


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Have the system refuse to let any file of this process grow over a size, as a full disk or a quota would."""
    old, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (old, most))


def damage(path: Path) -> None:
    """Write over every page but the first."""
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(4096)
        file.write(b"\xff" * (size - 4096))


async def set_pragma(store: alkstore.Store, pragma: str) -> None:
    async with store.begin_tx() as tx:
        connection = tx.connection
        assert isinstance(connection, aiosqlite.Connection)
        await connection.execute_fetchall(f"PRAGMA {pragma}")


# ---------------------------------------------------------------- at the opening


async def test_a_missing_folder_is_an_error_and_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match="no' does not exist; create it"):
        _ = await SqliteStore(tmp_path / "no" / "a.db")

    assert os.listdir(tmp_path) == []


async def test_a_foreign_file_is_an_error_and_keeps_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.write_text("precious text, " * 1_000)
    before = path.read_bytes()

    with pytest.raises(DatabaseError, match="is no SQLite database") as caught:
        _ = await SqliteStore(path)

    assert isinstance(caught.value.__cause__, sqlite3.DatabaseError)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.db"]


async def test_an_empty_file_and_one_of_another_application_are_welcome(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    with closing(sqlite3.connect(tmp_path / "business.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA application_id = 7")
        connection.execute("PRAGMA user_version = 8")
        connection.execute("CREATE TABLE business (id INTEGER)")
        connection.execute("INSERT INTO business VALUES (1)")

    for name in ("empty.db", "business.db"):
        async with SqliteStore(tmp_path / name) as store:
            await store.queue("mail").enqueue(1)

    with closing(sqlite3.connect(tmp_path / "business.db")) as connection:
        ids = [
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
        ]
        assert ids == [7, 8]
        assert connection.execute("SELECT id FROM business").fetchall() == [(1,)]


async def test_a_file_that_stays_locked_is_an_error_with_the_time_waited(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE business (id INTEGER)")
        connection.execute("BEGIN EXCLUSIVE")

        with pytest.raises(DatabaseError, match="was locked by another connection"):
            _ = await SqliteStore(tmp_path / "a.db", wait_timeout=0.05)
        connection.execute("ROLLBACK")

        async with SqliteStore(tmp_path / "a.db") as store:
            assert await store.queue("mail").enqueue(1) == 1


async def test_a_url_of_a_file_opens_it(tmp_path: Path) -> None:
    path = tmp_path / "what? #100%.db"

    async with alkstore.open(f"sqlite:///{tmp_path}/what%3F%20%23100%25.db") as store:
        await store.queue("mail").enqueue(1)

    assert path.exists()


# ---------------------------------------------------------------- under a live store


async def test_a_quota_fails_a_write_and_the_store_goes_on_afterwards(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "a.db") as store:
        mail = store.queue("mail")
        first = await mail.enqueue("first")

        with largest_file(200_000), pytest.raises(DatabaseError, match=r"a\.db") as caught:
            await mail.enqueue(BIG)
        last = await mail.enqueue("last")

        assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
        payloads = {job.id: job.payload for job in await mail.list()}
        assert (payloads[first], payloads[last]) == ("first", "last")


async def test_a_file_as_large_as_it_may_be_fails_a_write_and_the_store_goes_on(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "a.db") as store:
        mail = store.queue("mail")
        first = await mail.enqueue("first")
        await set_pragma(store, "max_page_count = 1")  # SQLite takes the pages that it has by now

        with pytest.raises(DatabaseError, match="max_page_count") as caught:
            await mail.enqueue(BIG)
        await set_pragma(store, "max_page_count = 1000000")
        last = await mail.enqueue("last")

        assert not caught.value.outcome_unknown
        assert [job.id for job in await mail.list()] == [first, last]


async def test_a_file_that_was_moved_is_an_error_until_it_is_back(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "a.db") as store:
        mail = store.queue("mail")
        await mail.enqueue("first")
        (tmp_path / "a.db").rename(tmp_path / "away.db")

        async def write_until_it_is_seen() -> None:
            for _ in range(10_000):  # a look at the file's place counts for a millisecond
                await mail.enqueue("first")

        with pytest.raises(FileReplaced, match="put it back"):
            await write_until_it_is_seen()
        with pytest.raises(FileReplaced, match="put it back"):
            await mail.enqueue("lost")
        with pytest.raises(FileReplaced, match="put it back"):
            await mail.stats()
        assert not (tmp_path / "a.db").exists()
        (tmp_path / "away.db").rename(tmp_path / "a.db")
        await mail.enqueue("last")

        payloads = [job.payload for job in await mail.list(limit=20_000)]
        assert payloads == ["first"] * (len(payloads) - 1) + ["last"]


async def test_a_damaged_page_is_an_error_and_a_mended_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with SqliteStore(path) as store:
        await store.queue("mail").enqueue(BIG)
    sound = path.read_bytes()
    damage(path)

    with pytest.raises(DatabaseError, match="is damaged") as caught:
        async with SqliteStore(path) as store:
            await store.queue("mail").enqueue(1)
    path.write_bytes(sound)

    assert isinstance(caught.value.__cause__, sqlite3.DatabaseError)
    async with SqliteStore(path) as store:
        assert [job.payload for job in await store.queue("mail").list()] == [BIG]


async def test_a_trigger_of_the_application_fails_its_row_alone(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "a.db") as store:
        mail = store.queue("mail")
        await mail.enqueue(0)
        with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
            connection.execute(
                "CREATE TRIGGER guard BEFORE INSERT ON alkstore_job WHEN NEW.priority = 7 "
                "BEGIN SELECT RAISE(ABORT, 'no sevens'); END"
            )

        results = await asyncio.gather(
            *(mail.enqueue(number, priority=number) for number in range(5, 9)), return_exceptions=True
        )

        assert [type(result).__name__ for result in results] == ["int", "int", "DatabaseError", "int"]
        assert "refused a row ('no sevens')" in str(results[2])


# ---------------------------------------------------------------- forks

FORK = """
import asyncio, gc, os, sys
from alkstore.errors import InvalidArgument
from alkstore_sqlite.engine import SqliteStore

def refused(call):
    try:
        call()
    except InvalidArgument as error:
        return str(error)
    raise SystemExit("not refused")

async def reopen():
    _ = await SqliteStore("a.db")

def child(store):
    assert "another store" in refused(lambda: store.queue("mail").enqueue(2).send(None))
    assert "forked" in refused(lambda: asyncio.run(reopen()))
    gc.collect()
    return 0

async def main():
    async with SqliteStore("a.db") as store:
        mail = store.queue("mail")
        async with store.begin_tx() as tx:
            await tx.enqueue(mail, 1)
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    code = child(store)
                finally:
                    os._exit(code)
            assert os.waitpid(pid, 0)[1] == 0, "the child failed"
        await mail.enqueue(3)
        print([job.payload for job in await mail.list()])

asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks on this platform")
def test_a_forked_child_is_refused_and_leaves_the_open_transaction_alone(tmp_path: Path) -> None:
    ignored = (
        "This process",  # is multi-threaded: the fork beside the driver's threads is what is tested here
        "Binding ",  # Python 3.12.0 to 3.12.3 take ?1 for the name of a parameter
    )
    warnings = ["-Werror", *(f"-Wignore:{text}:DeprecationWarning" for text in ignored)]

    run = subprocess.run(
        [sys.executable, *warnings, "-c", FORK], cwd=tmp_path, capture_output=True, text=True, timeout=HUNG
    )

    assert (run.stdout, run.stderr) == ("[1, 3]\n", "")
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_private_database_is_refused_before_anything_is_opened() -> None:
    for path in ("", ":memory:", "file::memory:?cache=shared"):
        with pytest.raises(InvalidArgument, match="mem://"):
            _ = SqliteStore(path)
