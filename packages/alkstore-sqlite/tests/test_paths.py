import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from alkstore.errors import InvalidArgument
from alkstore_sqlite.surroundings import check_path, connect_arguments, path_of_url


def open_file(path: Path, *, create: bool = True) -> sqlite3.Connection:
    database, uri = connect_arguments(str(path), create=create)
    return sqlite3.connect(database, uri=uri)


# ---------------------------------------------------------------- paths


def test_a_relative_path_is_resolved_at_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = check_path("./sub/../a.db")

    monkeypatch.chdir("/")

    assert path == str(tmp_path / "a.db")
    assert check_path(path) == path


def test_a_path_through_a_link_and_back_leads_where_the_system_says(tmp_path: Path) -> None:
    (tmp_path / "deep" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "inner")

    assert check_path(f"{tmp_path}/link/../a.db") == str(tmp_path / "deep" / "a.db")


def test_a_path_object_is_as_good_as_text(tmp_path: Path) -> None:
    assert check_path(tmp_path / "a.db") == str(tmp_path / "a.db")


@pytest.mark.parametrize(
    "path",
    [
        "",
        " ",
        ":memory:",
        ":MEMORY:",
        Path(":memory:"),
        "file:",
        "file::memory:",
        "file::memory:?cache=shared",
        "file:app.db?mode=memory",
        "file:app.db?mode=memory&cache=shared",
        "file:/app?vfs=memdb",
        "sqlite://",
        "sqlite:///:memory:",
    ],
    ids=repr,
)
def test_a_private_database_is_refused_and_the_text_names_mem(path: object) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_path(path)

    assert "mem://" in str(caught.value)
    assert "alkstore-mem" in str(caught.value)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("file:app.db", "plain path"),
        ("FILE:/srv/app.db", "plain path"),
        ("sqlite:///app.db", "alkstore.open()"),
        ("sqlite+aiosqlite:////srv/app.db?key=s3cret", "alkstore.open()"),
        ("a\0b", "NUL"),
        ("a\ud800.db", "UTF-8"),
        (b"app.db", "got bytes"),
        (None, "got NoneType"),
        (7, "got int"),
        ("/", "folder"),
        (".", "folder"),
        ("app.db/", "folder"),
    ],
    ids=repr,
)
def test_a_path_without_a_file_behind_it_is_refused(path: object, words: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_path(path)

    assert words in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_relative_path_is_refused_where_the_working_folder_is_gone(tmp_path: Path) -> None:
    code = (
        "import os; from alkstore_sqlite.surroundings import check_path\n"
        "os.rmdir(os.getcwd())\n"
        "print(check_path('/a.db'))\n"
        "check_path('a.db')"
    )

    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)

    assert run.stdout == "/a.db\n"
    assert "path must be absolute while the working folder is gone, got 'a.db'" in run.stderr


# ---------------------------------------------------------------- URLs


@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+aiosqlite"])
@pytest.mark.parametrize(
    ("rest", "path"),
    [
        ("app.db", "app.db"),
        ("sub/app.db", "sub/app.db"),
        ("/srv/app.db", "/srv/app.db"),
        ("/srv/what%3F%20%23100%25.db", "/srv/what? #100%.db"),
        ("/srv/%C3%A9%E2%98%83.db", "/srv/é☃.db"),
        ("/srv/é☃.db", "/srv/é☃.db"),
        ("/srv/a+b&c=d;e.db", "/srv/a+b&c=d;e.db"),
        ("/srv/a@b.db", "/srv/a@b.db"),
        ("memory", "memory"),
        ("/a/:memory:", "/a/:memory:"),
    ],
)
def test_a_url_names_a_path(scheme: str, rest: str, path: str) -> None:
    assert path_of_url(f"{scheme}:///{rest}") == os.path.join(os.getcwd(), path)


def test_a_url_of_a_drive_may_have_three_or_four_slashes() -> None:
    for url in ("sqlite:///C:/srv/app.db", "sqlite:////C:/srv/app.db"):
        assert path_of_url(url, is_windows=True) == os.path.join(os.getcwd(), "C:/srv/app.db")


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///",
        "sqlite:///%20",
        "sqlite://app.db",
        "sqlite:///:memory:",
        "sqlite:///%3Amemory%3a",
        "sqlite:///app.db?mode=memory",
        "sqlite:///file::memory:?uri=true",
        "sqlite+aiosqlite://",
        "sqlite+aiosqlite:///:memory:",
    ],
)
def test_a_url_of_a_private_database_is_refused_and_the_text_names_mem(url: str) -> None:
    with pytest.raises(InvalidArgument, match="mem://"):
        path_of_url(url)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite:///app.db?key=s3cret", "query string"),
        ("sqlite:///app.db?", "query string"),
        ("sqlite:///app.db#s3cret", "fragment"),
        ("sqlite://host/app.db", "no host"),
        ("sqlite://ada:s3cret@/app.db", "no host, user or password"),
        ("sqlite://ada:s3cret@host/app.db", "no host, user or password"),
        ("sqlite:///100%.db", "%25"),
        ("sqlite:///100%2.db", "%25"),
        ("sqlite:///%ff.db", "percent-encoded UTF-8"),
        ("sqlite:///a%00b", "NUL"),
        ("sqlite:///file:app.db", "plain path"),
        ("sqlite:////", "folder"),
        ("sqlite:///sub/", "folder"),
    ],
)
def test_a_url_with_more_than_a_path_is_refused_without_showing_a_secret(url: str, words: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        path_of_url(url)

    assert words in str(caught.value)
    assert "s3cret" not in str(caught.value)


# ---------------------------------------------------------------- what the driver is given


@pytest.mark.parametrize(
    "name", ["a b.db", "q?.db", "h#.db", "50%.db", "%41.db", "é☃.db", "a&b=c;d.db", "a'\"\\b.db"]
)
def test_every_name_of_a_file_reaches_sqlite_as_it_is(tmp_path: Path, name: str) -> None:
    with closing(open_file(tmp_path / name)) as connection:
        connection.execute("CREATE TABLE job (id INTEGER)")

    assert os.listdir(tmp_path) == [name]


def test_a_lost_file_is_not_made_again(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        open_file(tmp_path / "a.db", create=False)

    assert os.listdir(tmp_path) == []


def test_a_path_that_begins_with_two_slashes_is_no_host(tmp_path: Path) -> None:
    with closing(open_file(Path(f"/{tmp_path}/a.db"))) as connection:
        connection.execute("CREATE TABLE job (id INTEGER)")

    assert os.listdir(tmp_path) == ["a.db"]
