"""What goes on until it is told to end, and what a terminal gets that a pipe does not."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hanging import HUNG

import alkstore
from alkstore import JobState

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs signals and pseudo-terminals")

BEGUN: "list[subprocess.Popen[str]]" = []


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """Leave nothing running, however a test ends."""
    yield
    while BEGUN:
        with BEGUN.pop() as process:
            process.kill()


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path / 'app.db'}"
    monkeypatch.setenv("ALKSTORE_URL", url)
    monkeypatch.delenv("PYTHONASYNCIODEBUG", raising=False)
    return url


def begin(*words: str) -> "subprocess.Popen[str]":
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        line = [sys.executable, "-m", "alkstore", *words]
        pipe = subprocess.PIPE
        BEGUN.append(subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=pipe, text=True))
        return BEGUN[-1]
    finally:
        signal.signal(signal.SIGINT, before)


def on_terminal(*words: str, **environment: str) -> tuple[int, str]:
    """Run it on a terminal; give its exit code and all that came there."""
    import pty

    ours, theirs = pty.openpty()
    env = os.environ | {"TERM": "xterm", "COLUMNS": "120"} | environment
    line = [sys.executable, "-m", "alkstore", *words]
    told = b""
    with subprocess.Popen(line, stdin=theirs, stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        while chunk := _read(ours):
            told += chunk
    os.close(ours)
    return process.returncode, told.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # Linux says so that nobody has it open any more
        return b""


def end(process: "subprocess.Popen[str]") -> tuple[int, str]:
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=HUNG)
    return process.returncode, err


async def fill(url: str) -> None:
    async with alkstore.open(url) as store:
        await store.queue("q").enqueue(1)
        await store.stream("s").publish({"n": 1})


async def test_watched_queues_are_counted_again_and_again(url: str) -> None:
    await fill(url)
    process = begin("queues", "--watch", "10ms", "--json")
    assert process.stdout is not None
    first = json.loads(await asyncio.to_thread(process.stdout.readline))
    async with alkstore.open(url) as store:
        await store.queue("q").enqueue(2)
    ready = first["ready"]
    while ready == 1:
        ready = json.loads(await asyncio.to_thread(process.stdout.readline))["ready"]

    assert ready == 2
    assert await asyncio.to_thread(end, process) == (130, "stopped by Ctrl-C\n")


async def test_a_consumer_that_follows_a_stream_goes_on_after_the_last_line_that_it_printed(url: str) -> None:
    await fill(url)
    words = ("tail", "s", "--consumer", "c", "--json")
    process = begin(*words)
    assert process.stdout is not None
    first = json.loads(await asyncio.to_thread(process.stdout.readline))
    async with alkstore.open(url) as store:
        await store.stream("s").publish({"n": 2})
        second = json.loads(await asyncio.to_thread(process.stdout.readline))
        ended = await asyncio.to_thread(end, process)
        await store.stream("s").publish({"n": 3})
    again = begin(*words, "--limit", "1")
    last, _ = await asyncio.to_thread(again.communicate)

    assert [first["payload"], second["payload"]] == [{"n": 1}, {"n": 2}]
    assert ended == (130, "stopped by Ctrl-C\n")
    # The signal may have come before the position was saved: then the second one comes again.
    assert json.loads(last)["offset"] in (2, 3)


async def test_a_worker_that_is_stopped_before_it_is_idle_gives_back_what_it_has(url: str) -> None:
    await fill(url)
    process = begin("work", "q", "--exec", "sh -c 'echo begun; exec sleep 60'", "--until-idle")
    assert process.stdout is not None
    assert await asyncio.to_thread(process.stdout.readline) == "begun\n"
    code, err = await asyncio.to_thread(end, process)

    assert code == 130
    assert err.endswith("stopped by Ctrl-C\n")
    async with alkstore.open(url) as store:
        assert [(job.state, job.attempts) for job in await store.queue("q").list()] == [(JobState.PENDING, 0)]


def test_a_terminal_gets_a_progress_bar_and_colours_and_no_color_takes_them_away(
    url: str, tmp_path: Path
) -> None:
    lines = tmp_path / "lines"
    lines.write_text("1\n" * 10, "utf-8")

    code, told = on_terminal("enqueue", "q", str(lines))
    _, coloured = on_terminal("doctor", "--oldest", "-1")
    _, plain = on_terminal("doctor", "--oldest", "-1", NO_COLOR="1")

    assert code == 0
    assert "10 jobs" in told
    assert "enqueuing" in told
    assert "enqueued 10 jobs in " in told
    assert "\x1b[1;31mproblem:" in coloured
    assert "\x1b[1;31m" not in plain
    assert "problem: queue 'q'" in plain.replace("\x1b[1m", "").replace("\x1b[0m", "")
