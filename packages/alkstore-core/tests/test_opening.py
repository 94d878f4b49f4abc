import logging
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from alkstore import _plugins
from alkstore.errors import InvalidArgument
from alkstore.opening import is_private_sqlite, read_url
from alkstore.opening import open as open_store

ENGINES = """
from alkstore.hookspecs import EngineRegistration, hookimpl

@hookimpl
def alkstore_engine():
    return [
        EngineRegistration(
            schemes=("ledger",), open=lambda url, options: (url, dict(options)), package="ledger-engine",
            contract_version="1.0", durable=True, options=frozenset({"pages"}),
        ),
        EngineRegistration(
            schemes=("fleeting",), open=lambda url, options: (url, dict(options)), package="ledger-engine",
            contract_version="1.0", durable=False,
        ),
    ][{index}]
"""


@pytest.fixture(autouse=True)
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    points = []
    for index, module in enumerate(("ledger_lasting", "ledger_fleeting")):
        (tmp_path / f"{module}.py").write_text(ENGINES.replace("{index}", str(index)))
        points.append(f"{module} = {module}")
    folder = tmp_path / "ledger_engine-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: ledger-engine\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[alkstore]\n" + "\n".join(points) + "\n")
    _plugins._installed.cache_clear()
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]
    _plugins._installed.cache_clear()


def refusal(url: object, **options: object) -> str:
    with pytest.raises(InvalidArgument) as caught:
        _ = open_store(url, **options)  # type: ignore[arg-type]  # a wrong type is one of the cases
    return str(caught.value)


def test_the_engine_of_the_scheme_gets_the_url_and_the_options() -> None:
    opened = open_store("ledger://books/7", pages=3, worker_id="w")

    assert opened == ("ledger://books/7", {"pages": 3, "worker_id": "w"})  # type: ignore[comparison-overlap]  # a fake engine


def test_the_case_of_the_scheme_does_not_matter_and_that_of_the_rest_stays() -> None:
    assert open_store("LEDGER://Books") == ("ledger://Books", {})  # type: ignore[comparison-overlap]  # a fake engine


def test_an_unknown_option_is_refused_by_name_beside_the_known_ones() -> None:
    message = refusal("ledger://books", page=3)

    assert "'page'" in message
    for known in ("pages", "worker_id", "wait_timeout", "poll_interval", "random"):
        assert known in message


def test_opening_an_engine_that_keeps_nothing_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "alkstore"):
        _ = open_store("ledger://books")
        assert caplog.records == []
        _ = open_store("fleeting://")

    assert [(record.name, record.levelname) for record in caplog.records] == [("alkstore", "WARNING")]
    assert "fleeting://" in caplog.text


@pytest.mark.parametrize(
    "url",
    [
        ":memory:",
        "%3Amemory%3A",
        "file::memory:",
        "file::memory:?cache=shared",
        "file:anything?mode=memory&cache=shared",
        "sqlite:",
        "sqlite://",
        "sqlite:///",
        "sqlite:///?timeout=5",
        "sqlite:///%20",
        "SQLite://",
        "sqlite::memory:",
        "sqlite://:memory:",
        "sqlite:///:memory:",
        "sqlite:///:MEMORY:",
        "sqlite:///:memory:?cache=shared",
        "sqlite:///%3Amemory%3A",
        "sqlite:///%3amemory:",
        "sqlite:///file::memory:?uri=true",
        "sqlite:///file:?uri=true",
        "sqlite:///app.db?mode=memory",
        "sqlite:///app.db?cache=shared&MODE=Memory",
        "sqlite:///app.db?%6dode=memory",
        "sqlite:///file:app.db?mode=memory&uri=true",
        "sqlite:///file:/app?vfs=memdb",
        "sqlite+aiosqlite://",
        "sqlite+aiosqlite:///",
        "sqlite+aiosqlite:///:memory:",
        "sqlite+aiosqlite:///app.db?mode=memory",
        "sqlite://app.db",
    ],
)
def test_every_spelling_of_a_private_sqlite_database_is_refused_and_names_mem(url: str) -> None:
    message = refusal(url)

    assert "mem://" in message
    assert "alkstore-mem" in message


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///app.db",
        "sqlite:////tmp/app.db",
        "sqlite+aiosqlite:////tmp/app.db",
        "sqlite:///memory",
        "sqlite:///mode=memory.db",
        "sqlite:///a/:memory:",
        "sqlite:///app.db?mode=memoryless",
    ],
)
def test_a_file_of_sqlite_is_not_taken_for_a_private_database(url: str) -> None:
    assert not is_private_sqlite(url)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:s3cret@db/app",
        "redis://ada:s3cret@db/app?password=s3cret",
        "redis://:s3cret",
        "ada:s3cret@db",
        "host=db password=s3cret",
        "sqlite://ada:s3cret@/:memory:",
        "sqlite:///:memory:?key=s3cret",
        "://s3cret@db",
    ],
)
def test_a_password_never_appears_in_a_message(url: str) -> None:
    assert "s3cret" not in refusal(url, nonsense=1)


@pytest.mark.parametrize("url", [None, 7, b"ledger://books", Path("app.db")])
def test_a_url_that_is_no_text_is_refused(url: object) -> None:
    assert type(url).__name__ in refusal(url)


@pytest.mark.parametrize("url", ["", "  "])
def test_an_empty_url_is_called_empty(url: str) -> None:
    assert "url is empty" in refusal(url)


@pytest.mark.parametrize(
    "url", ["app.db", "ledger", "ledger:books", "://books", "1edger://books", "/tmp/app.db"]
)
def test_a_url_without_a_scheme_is_refused(url: str) -> None:
    assert "scheme" in refusal(url)


def parsed(url: str) -> str:
    if "port" in url:
        raise ValueError(f"cannot be read: {url}")
    return url.upper()


def test_the_url_of_a_server_is_read_by_its_driver_and_shown_without_the_password() -> None:
    read = read_url("toy://user:s3cret@localhost:1/0?tls=1", parsed, "toy://host")

    assert read == ("TOY://USER:S3CRET@LOCALHOST:1/0?TLS=1", "toy://localhost:1/0")


@pytest.mark.parametrize(
    "url",
    [
        "toy://user:s3cret@localhost:port",  # its driver shows it in its error
        "toy://user:s3cret/@localhost",
        "toy://user:s3cret#@localhost",
        "toy://user@s3cret:x@localhost/0",
        "toy://[s3cret@localhost",
        b"toy://user:s3cret@localhost",
    ],
)
def test_a_url_of_a_server_that_can_be_misread_is_refused_without_being_shown(url: object) -> None:
    with pytest.raises(InvalidArgument, match="url must be text such as 'toy://host'") as caught:
        read_url(url, parsed, "toy://host")

    assert "s3cret" not in "".join(traceback.format_exception(caught.value))
