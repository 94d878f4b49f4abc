"""``alkstore work --prometheus``: what a worker's process shows, and to whom."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from hanging import HUNG
from prometheus_client.parser import text_string_to_metric_families

import alkstore
from alkstore.cli import UNREACHABLE, USAGE
from alkstore.cli.command import command

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="ends processes by signals")

APP = """
from alkstore.prometheus import Metrics
from alkstore.worker import Worker

async def note(value: int) -> None:
    pass

def make(store):
    return Worker(store, {"q": note})

"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    (tmp_path / "app_of_metrics.py").write_text(APP, "utf-8")
    return f"sqlite:///{tmp_path / 'app.db'}"


@contextmanager
def working(folder: Path, url: str, *words: str) -> Iterator["subprocess.Popen[str]"]:
    line = [sys.executable, "-m", "alkstore", "work", "app_of_metrics:make", "--url", url, *words]
    process = subprocess.Popen(line, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    with process:
        try:
            yield process
        finally:
            process.kill()


def address(process: "subprocess.Popen[str]") -> str:
    assert process.stderr is not None
    while (found := re.search(r"metrics: (http\S+)", line := process.stderr.readline())) is None:
        assert line, "the worker ended"
    return found[1]


def scrape(where: str) -> dict[tuple[str, ...], float]:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(where, timeout=HUNG) as answer:
        text = answer.read().decode()
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def fill(url: str) -> None:
    async with alkstore.open(url) as store:
        await store.queue("q").enqueue_batch(range(3))
        await store.queue("other").enqueue(1)


def test_a_worker_shows_what_it_did_and_what_there_is(tmp_path: Path, url: str) -> None:
    asyncio.run(fill(url))

    with working(tmp_path, url, "--prometheus", "0") as process:
        where = address(process)
        deadline = time.monotonic() + HUNG
        while (found := scrape(where)).get(("alkstore_jobs_settled_total", "queue", "done", "q")) != 3:
            assert time.monotonic() < deadline
        process.send_signal(signal.SIGTERM)
        assert process.wait(HUNG) == 0

    assert where.startswith("http://127.0.0.1:")
    assert found["alkstore_queue_jobs", "queue", "other", "ready"] == 1
    assert found["alkstore_scrape_success",] == 1
    assert ("process_cpu_seconds_total" in {name for name, *_ in found}) == os.path.exists("/proc/self/stat")


@pytest.mark.parametrize("wrong", ["http", "localhost", "1:70000", "-1"])
def test_an_address_is_a_port_with_or_without_a_host(wrong: str, url: str) -> None:
    result = CliRunner().invoke(
        command, ["work", "q", "--exec", "true", "--url", url, f"--prometheus={wrong}"]
    )

    assert result.exit_code == USAGE
    assert "is no address: PORT, or HOST:PORT" in result.stderr


def test_an_address_that_is_taken_is_said_so(tmp_path: Path, url: str) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        working(tmp_path, url, "--prometheus", str(other.getsockname()[1])) as process,
    ):
        _, told = process.communicate(timeout=HUNG)

    assert process.returncode == UNREACHABLE
    assert "--prometheus 127.0.0.1:" in told
    assert "in use" in told


def test_a_module_that_counts_by_itself_is_told_to_serve_that(tmp_path: Path, url: str) -> None:
    line = [
        sys.executable,
        "-c",
        "import app_of_metrics, sys; app_of_metrics.Metrics(); from alkstore.cli import main; main()",
    ]
    done = subprocess.run(
        [*line, "work", "app_of_metrics:make", "--url", url, "--prometheus", "0"],
        cwd=tmp_path, capture_output=True, text=True, timeout=HUNG, check=False,
    )  # fmt: skip

    assert done.returncode == USAGE
    assert "has an alkstore.prometheus.Metrics of its own" in done.stderr
