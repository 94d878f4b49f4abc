"""What SQLite tells of a file's state, and when that is a finding."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from alkstore.errors import DatabaseError
from alkstore_sqlite import SqliteStore
from alkstore_sqlite.examining import examine


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


async def test_a_file_that_is_well_has_facts_and_no_findings(path: Path) -> None:
    async with SqliteStore(path) as store:
        await store.queue("q").enqueue(1)
        diagnosis = await examine(str(path))

    assert diagnosis.facts["journal-mode"] == "wal"
    assert diagnosis.facts["wal-pages-held"] == 0
    assert diagnosis.findings == ()
    assert diagnosis.clock_offset is None


async def test_a_reader_that_holds_a_large_wal_file_is_found(path: Path) -> None:
    async with SqliteStore(path, durability="process") as store:
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM alkstore_job").fetchone()
            for _ in range(9):
                await store.queue("q").enqueue_batch(["x" * 1_000_000] * 8)
            (finding,) = (await examine(str(path))).findings

    assert (finding.name, finding.is_problem) == ("wal", True)
    assert "a reader holds" in finding.text


async def test_free_pages_are_found_once_they_are_most_of_the_file(path: Path) -> None:
    async with SqliteStore(path, durability="process"):
        pass
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE big AS SELECT zeroblob(70000000) AS bytes")
        connection.execute("DROP TABLE big")

    (finding,) = (await examine(str(path))).findings

    assert (finding.name, finding.is_problem) == ("bloat", False)


def test_what_is_no_database_cannot_be_examined(path: Path) -> None:
    path.write_bytes(b"no database " * 100)

    with pytest.raises(DatabaseError):
        asyncio.run(examine(str(path)))
