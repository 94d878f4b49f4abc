"""The fixtures as an application's own tests meet them, with the settings that it has."""

import subprocess
from pathlib import Path
from typing import Protocol

import pytest


class Author(Protocol):
    path: Path

    def pytest(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]": ...


REMINDER = """
import pytest

async def reminder(store, store_factory):
    reminders = store.queue("reminders")
    await reminders.enqueue("tea", delay=3_600)
    await store_factory.advance(3_599)
    assert await reminders.claim_one() is None
    await store_factory.advance(1)
    assert (await reminders.claim_one()).job.payload == "tea"
"""

UNMARKED = """
async def test_a_reminder(store, store_factory):
    await reminder(store, store_factory)
"""

IN_EVERY_LOOP = """
@pytest.mark.asyncio
async def test_of_its_own_loop(store, store_factory):
    await reminder(store, store_factory)

@pytest.mark.asyncio(loop_scope="module")
async def test_of_the_modules_loop(store, store_factory):
    await reminder(store, store_factory)

@pytest.mark.asyncio(loop_scope="session")
async def test_of_the_sessions_loop(store, store_factory):
    await reminder(store, store_factory)

@pytest.mark.asyncio(loop_scope="class")
class TestOfAClass:
    async def test_of_the_classs_loop(self, store, store_factory):
        await reminder(store, store_factory)

def test_of_no_loop(store):
    assert store.queue("q").name == "q"
"""

OF_ANYIO = """
@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.mark.anyio
async def test_of_anyios_loop(store, store_factory):
    await reminder(store, store_factory)
"""

AWAY = """
from alkstore_contract_suite.factory import Missing
from alkstore_contract_suite.in_process import InProcessColumn
from alkstore_contract_suite.row import CAPABILITIES
from alkstore_contract_suite.factory import Unsupported

class Column(InProcessColumn):
    def available(self):
        return Missing("set TOY_DSN")

def pytest_alkstore_register(registry):
    capabilities = {word: Unsupported("not here") for word in CAPABILITIES}
    registry.register(Column("toy", version="0", contract="1.0", capabilities=capabilities, make_store=None))
"""


@pytest.fixture
def application(author: Author) -> Author:
    """A folder with tests that want a store on mem and sqlite, on each in a loop of their own."""
    (author.path / "conftest.py").unlink()
    write(author, UNMARKED)
    configure(author)
    return author


def write(author: Author, tests: str) -> None:
    (author.path / "test_application.py").write_text(REMINDER + tests, "utf-8")


def configure(author: Author, **settings: str) -> None:
    usual = {"asyncio_mode": "auto", "asyncio_default_fixture_loop_scope": "function"}
    lines = {**usual, "alk_engines": "mem sqlite", **settings}
    text = "\n".join(f"{name} = {value}" for name, value in lines.items())
    (author.path / "pytest.ini").write_text(f"[pytest]\n{text}\n", "utf-8")


def test_one_line_names_the_engines_that_every_test_runs_on(application: Author) -> None:
    told = application.pytest("-v")

    assert told.returncode == 0, told.stdout + told.stderr
    assert "test_a_reminder[mem] PASSED" in told.stdout
    assert "test_a_reminder[sqlite] PASSED" in told.stdout
    assert "2 passed" in told.stdout


def test_the_command_line_goes_before_the_setting(application: Author) -> None:
    told = application.pytest("-v", "--alk-engine", "sqlite")

    assert told.returncode == 0, told.stdout + told.stderr
    assert "test_a_reminder[sqlite] PASSED" in told.stdout
    assert "1 passed" in told.stdout


@pytest.mark.parametrize(("fixtures", "tests"), [("function", "session"), ("module", "function")])
def test_a_store_is_of_the_loop_of_its_test_whatever_loop_fixtures_have(
    application: Author, fixtures: str, tests: str
) -> None:
    write(application, IN_EVERY_LOOP)
    configure(
        application,
        alk_engines="mem",
        asyncio_mode="strict",
        asyncio_default_fixture_loop_scope=fixtures,
        asyncio_default_test_loop_scope=tests,
    )

    told = application.pytest()

    assert told.returncode == 0, told.stdout + told.stderr
    assert "5 passed" in told.stdout


@pytest.mark.parametrize("arguments", [(), ("-p", "no:asyncio", "-c", "none.ini")])
def test_tests_of_anyios_plugin_get_a_store_with_pytest_asyncio_beside_and_without(
    application: Author, arguments: tuple[str, ...]
) -> None:
    write(application, OF_ANYIO)
    configure(application, asyncio_mode="strict")
    (application.path / "none.ini").write_text("[pytest]\nalk_engines = mem sqlite\n", "utf-8")

    told = application.pytest(*arguments)

    assert told.returncode == 0, told.stdout + told.stderr
    assert "2 passed" in told.stdout


def test_without_a_plugin_that_has_a_loop_it_is_said_what_to_load(application: Author) -> None:
    write(application, "def test_of_no_loop(store): pass\n")
    (application.path / "pytest.ini").unlink()

    told = application.pytest(
        "-p", "alkstore_contract_suite.plugin", "--alk-engine", "mem", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"
    )

    assert told.returncode == 1
    assert "load pytest-asyncio (-p pytest_asyncio.plugin" in told.stdout


def test_an_engine_that_is_not_installed_is_an_error_that_says_what_to_do(application: Author) -> None:
    configure(application, alk_engines="mem nobody")

    told = application.pytest()

    assert told.returncode == pytest.ExitCode.INTERRUPTED
    assert "no engine 'nobody' is registered (registered: mem, " in told.stdout
    assert "columns.py" not in told.stdout


def test_a_named_engine_that_cannot_run_here_is_an_error_with_its_advice(application: Author) -> None:
    (application.path / "conftest.py").write_text(AWAY, "utf-8")
    configure(application, alk_engines="toy")

    told = application.pytest()

    assert told.returncode == pytest.ExitCode.INTERRUPTED
    assert "engine 'toy' cannot run here: set TOY_DSN" in told.stdout


def test_an_engine_that_cannot_run_here_is_skipped_when_that_was_allowed(application: Author) -> None:
    (application.path / "conftest.py").write_text(AWAY, "utf-8")
    configure(application, alk_engines="mem toy")

    told = application.pytest("-rs", "--alk-allow-missing")

    assert told.returncode == 0, told.stdout + told.stderr
    assert "1 passed, 1 skipped" in told.stdout
    assert "set TOY_DSN" in told.stdout
