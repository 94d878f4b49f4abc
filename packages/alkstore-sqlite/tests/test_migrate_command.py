"""``alkstore migrate`` on files, and the command's own refusals."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from alkstore.cli.command import command
from alkstore_sqlite import SqliteStore
from alkstore_sqlite.schema import MIGRATIONS

LATEST = MIGRATIONS[-1]


def run(*words: str) -> Result:
    return CliRunner().invoke(command, ["migrate", *words])


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'app.db'}"


def test_a_file_is_made_and_then_left_alone(url: str, tmp_path: Path) -> None:
    first, second = run(url), run(url)

    assert (first.exit_code, second.exit_code) == (0, 0)
    assert f"applied {LATEST.version:04} {LATEST.name}\n" in first.stdout
    assert second.stdout == "up to date, there was nothing to do\n"


def test_the_script_does_what_opening_does_and_printing_it_does_nothing(url: str, tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    printed = run(url, "--sql")
    assert not path.exists()

    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(printed.stdout)
    again = run(url, "--sql")
    assert (again.stdout, again.stderr) == ("", "up to date, there is nothing to run\n")
    asyncio.run(use(path))


async def use(path: Path) -> None:
    async with SqliteStore(path) as store:
        assert await store.queue("mail").enqueue(1) == 1


def test_a_newer_file_is_refused_in_one_line(url: str, tmp_path: Path) -> None:
    run(url)
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection, connection:
        connection.execute("INSERT INTO alkstore_migration VALUES (99, 'future', 'x', 0)")

    for words in ((url,), (url, "--sql")):
        refused = run(*words)
        assert refused.exit_code == 1
        assert refused.stderr == (
            f"Error: storage has schema version 99, this engine knows up to {len(MIGRATIONS)}; upgrade alkstore\n"
        )


def test_a_file_that_is_no_database_is_refused_in_one_line(url: str, tmp_path: Path) -> None:
    (tmp_path / "app.db").write_bytes(b"no database " * 100)

    for words in ((url,), (url, "--sql")):
        refused = run(*words)
        assert refused.exit_code == 1
        assert refused.stderr.startswith("Error: ")
        assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("mem://",), "mem:// has no schema that could be brought up to date"),
        (("mem://", "--sql"), "mem:// has no schema that could be brought up to date"),
        (("sqlite:///app.db", "--schema", "jobs"), "sqlite:// has no option 'schema'"),
        (("sqlite:///app.db", "--sql", "--grant-to", "ada"), "a file has no roles"),
        (("sqlite:///app.db", "--grant-to", "ada"), "--grant-to prints SQL"),
        (("nothing",), "url must begin with a scheme"),
        (("sqlite://",), "url names a SQLite database without a file"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_made(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    refused = run(*words)

    assert refused.exit_code in (1, 2)
    assert said in refused.stderr
    assert list(tmp_path.iterdir()) == []
