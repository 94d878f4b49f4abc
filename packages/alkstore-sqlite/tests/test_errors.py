import asyncio
import os
import pickle
import resource
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import aiosqlite
import pytest

from alkstore.errors import Closed, DatabaseError, InvalidArgument
from alkstore_sqlite.errors import FileReplaced, is_broken, is_busy, translate, translated

PATH = "/srv/app.db"

IO_CODES = sorted(code for name, code in vars(sqlite3).items() if name.startswith("SQLITE_IOERR"))


def open_file(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=0)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS job (id INTEGER PRIMARY KEY, payload BLOB CHECK (payload <> x'00'))"
    )
    return connection


def coded(code: int, text: str = "it failed") -> sqlite3.Error:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Have the system refuse to let any file of this process grow over a size, as a quota would."""
    old, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (old, most))


# ---------------------------------------------------------------- real failures


def fail_busy(path: Path) -> None:
    one, other = open_file(path), open_file(path)
    one.execute("BEGIN IMMEDIATE")
    try:
        other.execute("BEGIN IMMEDIATE")
    finally:
        one.close()
        other.close()


def fail_snapshot(path: Path) -> None:
    one, other = open_file(path), open_file(path)
    one.execute("BEGIN")
    one.execute("SELECT * FROM job").fetchall()
    other.execute("INSERT INTO job (payload) VALUES (x'01')")
    try:
        one.execute("INSERT INTO job (payload) VALUES (x'02')")
    finally:
        one.close()
        other.close()


def failing(*statements: str) -> Callable[[Path], None]:
    def fail(path: Path) -> None:
        connection = open_file(path)
        try:
            for statement in statements:
                connection.execute(statement).fetchall()
        finally:
            connection.close()

    return fail


def fail_read_only(path: Path) -> None:
    open_file(path).close()
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        connection.execute("INSERT INTO job (payload) VALUES (x'01')")
    finally:
        connection.close()


def fail_without_file(path: Path) -> None:
    sqlite3.connect(f"file:{path}?mode=rw", uri=True)


def fail_on_text(path: Path) -> None:
    path.write_text("not a database at all, " * 100)
    connection = sqlite3.connect(path)
    try:
        connection.execute("SELECT * FROM job")
    finally:
        connection.close()


def fail_on_damage(path: Path) -> None:
    connection = open_file(path)
    connection.executemany("INSERT INTO job (payload) VALUES (?)", [(b"x" * 2000,)] * 20)
    connection.close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096)
    connection = sqlite3.connect(path)
    try:
        connection.execute("SELECT * FROM job").fetchall()
    finally:
        connection.close()


def fail_at_a_quota(path: Path) -> None:
    connection = open_file(path)
    try:
        with largest_file(64 * 1024):
            connection.execute("INSERT INTO job (payload) VALUES (zeroblob(1000000))")
    finally:
        connection.close()


def fail_on_size(path: Path) -> None:
    connection = open_file(path)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1_000)
    try:
        connection.execute("INSERT INTO job (payload) VALUES (?)", (b"x" * 2_000,))
    finally:
        connection.close()


def fail_on_a_number(path: Path) -> None:
    connection = open_file(path)
    try:
        connection.execute("SELECT ?", (2**64,))
    finally:
        connection.close()


def fail_interrupted(path: Path) -> None:
    connection = open_file(path)
    connection.set_progress_handler(lambda: 1, 1)
    try:
        connection.execute("SELECT * FROM job").fetchall()
    finally:
        connection.close()


def fail_unauthorised(path: Path) -> None:
    connection = open_file(path)
    connection.set_authorizer(lambda *_: sqlite3.SQLITE_DENY)
    try:
        connection.execute("SELECT * FROM job")
    finally:
        connection.close()


def fail_closed(path: Path) -> None:
    connection = open_file(path)
    connection.close()
    connection.execute("SELECT 1")


@pytest.mark.parametrize(
    ("fail", "words"),
    [
        (fail_busy, "was locked by another connection; end its transactions sooner, or raise wait_timeout"),
        (fail_snapshot, "begin it with BEGIN IMMEDIATE"),
        (
            failing("PRAGMA max_page_count = 4", "INSERT INTO job (payload) VALUES (zeroblob(100000))"),
            "max_page_count",
        ),
        (fail_read_only, "cannot be written"),
        (fail_without_file, "cannot be opened"),
        (fail_on_text, "is no SQLite database"),
        (fail_on_damage, "is damaged"),
        (fail_at_a_quota, "the largest file that this process and the file system allow"),
        (fail_on_size, "value is too big"),
        (fail_on_a_number, "value is too big"),
        (fail_interrupted, "was interrupted"),
        (fail_unauthorised, "authorizer"),
        (failing("INSERT INTO job (payload) VALUES (x'00')"), "CHECK constraint failed"),
        (
            failing(
                "CREATE TRIGGER guard BEFORE INSERT ON job BEGIN SELECT RAISE(ABORT, 'not today'); END",
                "INSERT INTO job (payload) VALUES (x'01')",
            ),
            "refused a row ('not today')",
        ),
        (failing("SELECT * FROM work"), "no such table: work"),
        (fail_closed, "is closed"),
    ],
)
def test_a_failure_of_sqlite_is_told_with_its_file_and_what_to_do(
    tmp_path: Path, fail: Callable[[Path], None], words: str
) -> None:
    path = tmp_path / "a.db"

    with pytest.raises(DatabaseError) as caught, translated("a.db"):
        fail(path)

    assert words in str(caught.value)
    assert "'a.db'" in str(caught.value)
    assert caught.value.__cause__ is not None
    assert not caught.value.outcome_unknown


async def test_a_closed_connection_of_the_driver_is_told_as_one(tmp_path: Path) -> None:
    connection = await aiosqlite.connect(tmp_path / "a.db")
    await connection.close()

    for attempt in (lambda: connection.execute_fetchall("SELECT 1"), connection.commit):
        with pytest.raises(DatabaseError, match="is closed") as caught, translated(PATH):
            await attempt()

        assert is_broken(caught.value)


def test_a_commit_that_a_quota_cut_short_is_of_unknown_outcome(tmp_path: Path) -> None:
    connection = open_file(tmp_path / "a.db")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT INTO job (payload) VALUES (zeroblob(1000000))")

    with pytest.raises(DatabaseError) as caught, translated(PATH, committing=True), largest_file(64 * 1024):
        connection.execute("COMMIT")

    assert caught.value.outcome_unknown
    assert str(caught.value).endswith("; the commit may have landed all the same")
    connection.close()


# ---------------------------------------------------------------- the table


@pytest.mark.parametrize(
    "code", [*range(1, 10), *range(11, 27), *IO_CODES, sqlite3.SQLITE_READONLY_DBMOVED, 9_999]
)
def test_every_code_has_a_text_that_names_the_file_and_begins_small(code: int) -> None:
    text = str(translate(coded(code), PATH))

    assert "'/srv/app.db'" in text
    assert text[0] == text[0].lower()
    assert "{" not in text
    assert not text.endswith(".") or text.endswith(".recover")


def test_a_lock_that_did_not_come_free_is_told_with_the_time_waited() -> None:
    error = translate(coded(sqlite3.SQLITE_BUSY), PATH, waited=30.0012)

    assert "was locked by another connection for over 30 s;" in str(error)


@pytest.mark.parametrize("code", IO_CODES)
def test_a_commit_that_failed_on_the_disk_is_of_unknown_outcome(code: int) -> None:
    assert translate(coded(code), PATH, committing=True).outcome_unknown
    assert not translate(coded(code), PATH).outcome_unknown


def test_a_commit_that_ran_out_of_memory_is_of_unknown_outcome() -> None:
    assert translate(MemoryError(), PATH, committing=True).outcome_unknown


@pytest.mark.parametrize(
    "code",
    [
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_BUSY_SNAPSHOT,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CONSTRAINT_CHECK,
        sqlite3.SQLITE_INTERRUPT,
    ],
)
def test_a_commit_that_was_refused_before_it_wrote_has_not_landed(code: int) -> None:
    assert not translate(coded(code), PATH, committing=True).outcome_unknown


def test_what_no_table_knows_is_told_with_its_kind_and_text() -> None:
    assert "(KeyError: \"'x'\")" in str(translate(KeyError("x"), PATH))


def test_a_text_can_be_printed_whatever_path_and_message_hold() -> None:
    error = translate(coded(sqlite3.SQLITE_CONSTRAINT, "{no} \udcff\n" + "x" * 10_000), "/a\udcff{file}/b")

    text = str(error)

    assert text.encode().decode() == text
    assert "\n" not in text
    assert len(text) < 500


def test_an_error_keeps_what_it_says_through_pickle() -> None:
    error = translate(coded(sqlite3.SQLITE_IOERR_FSYNC), PATH, committing=True)
    replaced = FileReplaced(PATH)

    again, replaced_again = pickle.loads(pickle.dumps((error, replaced)))

    assert (str(again), again.outcome_unknown) == (str(error), True)
    assert (str(replaced_again), replaced_again.path) == (str(replaced), PATH)


# ---------------------------------------------------------------- which errors mean what


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (sqlite3.SQLITE_BUSY, True),
        (sqlite3.SQLITE_BUSY_RECOVERY, True),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, False),
        (sqlite3.SQLITE_LOCKED, False),
        (sqlite3.SQLITE_FULL, False),
    ],
)
def test_only_a_lock_of_another_connection_is_worth_waiting_for(code: int, expected: bool) -> None:
    assert is_busy(coded(code)) is expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (sqlite3.SQLITE_IOERR_SHMMAP, True),
        (sqlite3.SQLITE_READONLY, True),
        (sqlite3.SQLITE_READONLY_DBMOVED, True),
        (sqlite3.SQLITE_CANTOPEN, True),
        (sqlite3.SQLITE_NOTADB, True),
        (sqlite3.SQLITE_CORRUPT_INDEX, True),
        (sqlite3.SQLITE_FULL, False),
        (sqlite3.SQLITE_BUSY, False),
        (sqlite3.SQLITE_CONSTRAINT_CHECK, False),
        (sqlite3.SQLITE_INTERRUPT, False),
        (sqlite3.SQLITE_TOOBIG, False),
    ],
)
def test_a_connection_is_opened_again_where_only_a_new_one_can_succeed(code: int, expected: bool) -> None:
    error = coded(code)
    told = translate(error, PATH)
    told.__cause__ = error

    assert is_broken(error) is expected
    assert is_broken(told) is expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FileReplaced(PATH), False),  # the connection is to the right file
        (sqlite3.ProgrammingError("Cannot operate on a closed database."), True),
        (ValueError("no active connection"), True),
        (ValueError("Connection closed"), True),
        (ValueError("something else is closed"), False),
        (MemoryError(), False),
        (DatabaseError("storage was held for over 30 s"), False),
        (Closed("store"), False),
    ],
)
def test_errors_without_a_code_are_judged_by_their_kind(error: Exception, expected: bool) -> None:
    assert is_broken(error) is expected
    assert not is_busy(error)


# ---------------------------------------------------------------- what passes


@pytest.mark.parametrize(
    "error",
    [
        InvalidArgument("an argument of ours"),
        ValueError("a value of somebody else's"),
        FileReplaced(PATH),
        Closed("store"),
        TimeoutError(),
        KeyError("x"),
        asyncio.CancelledError(),
        KeyboardInterrupt(),
    ],
    ids=repr,
)
def test_what_the_driver_did_not_raise_passes_as_it_is(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, translated(PATH):
        raise error

    assert caught.value is error


def test_a_file_that_cannot_be_looked_at_is_a_failure_of_the_database() -> None:
    with pytest.raises(DatabaseError, match="cannot be looked at") as caught, translated(PATH):
        os.stat("/nowhere/at/all")

    assert isinstance(caught.value.__cause__, FileNotFoundError)
