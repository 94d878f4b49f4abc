"""``alkstore dashboard``: to whom it listens, and how it ends."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.response import addinfourl

import pytest
from click.testing import CliRunner, Result
from hanging import HUNG

import alkstore
from alkstore.cli import UNREACHABLE, USAGE
from alkstore.cli.command import command

needs_signals = pytest.mark.skipif(sys.platform == "win32", reason="ends processes by signals")

TOKEN = "a secret of enough letters"


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'app.db'}"
    asyncio.run(fill(url))
    return url


async def fill(url: str) -> None:
    async with alkstore.open(url) as store:
        await store.queue("mail").enqueue_batch(range(7))


def run(*words: str) -> Result:
    return CliRunner().invoke(command, ["dashboard", *words])


@contextmanager
def serving(url: str, *words: str, **environment: str) -> Iterator[tuple["subprocess.Popen[str]", str, str]]:
    """Give the process, the address that it told, and the line that told it."""
    line = [sys.executable, "-m", "alkstore", "dashboard", "--port", "0", *words]
    env = os.environ | {"ALKSTORE_URL": url} | environment
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            assert process.stderr is not None
            told = process.stderr.readline()
            found = re.search(r"dashboard: (http://\S+)", told)
            assert found is not None, told + process.stderr.read()
            yield process, found[1], told
        finally:
            process.kill()


def ask(address: str, **headers: str) -> addinfourl:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    answer: addinfourl = direct.open(urllib.request.Request(address, headers=headers), timeout=HUNG)
    return answer


@needs_signals
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_this_machine_and_ends_at_once_though_somebody_looks(
    url: str, number: signal.Signals
) -> None:
    with serving(url) as (process, address, told):
        page = ask(address).read().decode()
        live = ask(address, Accept="text/event-stream")
        first = live.read(20)
        process.send_signal(number)
        _, rest = process.communicate(timeout=HUNG)

    assert address.startswith("http://127.0.0.1:")
    assert "(read-only; --write allows changes)" in told
    assert ">7</td>" in page
    assert first.startswith(b"retry: ")
    assert (process.returncode, rest) == (0, "")


@needs_signals
def test_beyond_this_machine_it_asks_for_the_token(url: str) -> None:
    with serving(url, "--host", "0.0.0.0", "--write", ALKSTORE_DASHBOARD_TOKEN=TOKEN) as (_, address, told):
        page = ask(address.replace("0.0.0.0", "127.0.0.1")).read().decode()

    assert told.endswith("/ (it asks for the token)\n")
    assert TOKEN not in told
    assert 'type="password"' in page
    assert "mail" not in page


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_beyond_this_machine_it_needs_a_token(url: str, host: str) -> None:
    result = run("--url", url, "--host", host)

    assert result.exit_code == USAGE
    assert "set ALKSTORE_DASHBOARD_TOKEN to a secret of at least 16 characters, such as " in result.stderr


def test_what_cannot_be_served_is_said(url: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = run("--url", url, "--port", str(other.getsockname()[1]))
    empty = run("--url", f"sqlite:///{tmp_path / 'none.db'}")
    short = run("--url", url, "--token", "hunter2")
    wrong = run("--url", url, "--port", "0", "--allow-host", "ops.example.org:80")

    assert (taken.exit_code, empty.exit_code) == (UNREACHABLE, UNREACHABLE)
    assert "cannot listen on 127.0.0.1:" in taken.stderr
    assert not (tmp_path / "none.db").exists()
    assert (short.exit_code, wrong.exit_code) == (USAGE, USAGE)
    assert "hunter2" not in short.stderr
    assert "without a port" in wrong.stderr


def test_a_missing_extra_is_named(url: str) -> None:
    without = "import sys; sys.modules['jinja2'] = None; from alkstore.cli import main; main()"
    line = [sys.executable, "-c", without, "dashboard", "--url", url]
    done = subprocess.run(line, capture_output=True, text=True, timeout=HUNG, check=False)

    assert done.returncode == USAGE
    assert "pip install 'alkstore-core[dashboard]'" in done.stderr
