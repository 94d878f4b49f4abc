"""``alkstore work --exec``: a program is the handler, and its exit status decides."""

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hanging import HUNG

import alkstore
from alkstore import Job, JobState

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="runs sh, and ends processes by signals")

TELL = """
import json, os, sys
names = ["QUEUE", "JOB_ID", "ATTEMPT", "MAX_ATTEMPTS", "HEADERS"]
print(json.dumps([json.load(sys.stdin), *(os.environ["ALKSTORE_" + name] for name in names)]))
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'app.db'}"


def line(url: str, program: str, *words: str) -> list[str]:
    return [sys.executable, "-m", "alkstore", "work", "q", "--url", url, "--exec", program, *words]


def work(url: str, program: str, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        line(url, program, "--until-idle", *words), capture_output=True, text=True, check=False, timeout=HUNG
    )


def shell(script: str) -> str:
    return f"sh -c {shlex.quote(script)}"


async def fill(url: str, *payloads: object, **stamps: Any) -> None:
    async with alkstore.open(url) as store:
        await store.queue("q").enqueue_batch(payloads, **stamps)


def jobs(url: str) -> list[Job]:
    async def read() -> list[Job]:
        async with alkstore.open(url) as store:
            return await store.queue("q").list()

    return asyncio.run(read())


def test_a_program_gets_the_payload_on_its_input_and_the_rest_in_its_environment(url: str) -> None:
    asyncio.run(fill(url, {"to": "ä"}, headers={"tenant": "t\n1"}, max_attempts=4))

    result = work(url, f"{sys.executable} -c {shlex.quote(TELL)}")

    assert result.returncode == 0
    told, counts = result.stdout.splitlines()
    *rest, headers = json.loads(told)
    assert rest == [{"to": "ä"}, "q", "1", "1", "4"]
    assert json.loads(headers) == {"tenant": "t\n1"}
    assert counts == "done 1, retried 0, dead 0, released 0, lost 0"


@pytest.mark.parametrize(
    ("script", "state", "error"),
    [
        ("exit 75", JobState.PENDING, "exit status 75"),
        ("echo busy >&2; exit 1", JobState.PENDING, "exit status 1: busy"),
        ("kill -9 $$", JobState.PENDING, "killed by SIGKILL"),
        ("echo of no use >&2; exit 65", JobState.DEAD, "exit status 65: of no use"),
    ],
)
def test_the_exit_status_decides(url: str, script: str, state: JobState, error: str) -> None:
    asyncio.run(fill(url, 1))

    result = work(url, shell(script))

    assert result.returncode == 1
    (job,) = jobs(url)
    assert (job.state, job.attempts, job.retry_error or job.last_error) == (state, 1, error)


def test_what_a_program_prints_stays_apart_from_records(url: str) -> None:
    asyncio.run(fill(url, 1, 2))

    result = work(url, shell("echo out; echo err >&2"), "--json", "--concurrency", "2")

    assert json.loads(result.stdout)["done"] == 2
    assert result.stderr.count("out\n") == result.stderr.count("err\n") == 2


def test_a_program_need_not_read_its_input_and_what_it_leaves_running_holds_nobody_up(
    url: str, tmp_path: Path
) -> None:
    asyncio.run(fill(url, "x" * 1_000_000))
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    result = work(url, shell(f"(read x < {gate}) >/dev/null & exit 0"))
    gate.write_text("end\n", "utf-8")  # waits for its reader, which is still there

    assert result.returncode == 0
    assert jobs(url) == []


def test_a_program_that_takes_too_long_is_ended_with_its_children(url: str) -> None:
    asyncio.run(fill(url, 1))

    result = work(url, shell("sleep 60 & sleep 60; echo woke"), "--timeout", "100ms")

    assert result.returncode == 1
    assert "woke" not in result.stdout
    (job,) = jobs(url)
    assert job.retry_error == "the handler did not end within its timeout of 0.1 s"


@pytest.mark.parametrize(
    "script", ["cat; echo begun; exec sleep 60", "trap '' TERM; cat; echo begun; sleep 60"]
)
def test_a_stop_gives_programs_their_grace_and_then_ends_them(url: str, script: str) -> None:
    asyncio.run(fill(url, 1))
    env = {name: value for name, value in os.environ.items() if name != "PYTHONASYNCIODEBUG"}
    with subprocess.Popen(
        line(url, shell(script), "--grace", "0.1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGTERM)
        # It ends when the last process that has inherited it is gone: nothing is left running.
        rest = process.stdout.read()

    assert (process.returncode, rest) == (0, "done 0, retried 0, dead 0, released 1, lost 0\n")
    (job,) = jobs(url)
    assert (job.state, job.attempts) == (JobState.PENDING, 0)


def test_a_program_that_ends_within_the_grace_has_done_its_job(url: str, tmp_path: Path) -> None:
    asyncio.run(fill(url, 1, 2))
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with subprocess.Popen(
        line(url, shell(f"echo begun; read x < {gate}")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGTERM)
        while "stops; running handlers have 30 s" not in process.stderr.readline():
            assert process.poll() is None
        gate.write_text("end\n", "utf-8")
        rest = process.stdout.read()
        process.stderr.read()

    assert (process.returncode, rest) == (0, "done 1, retried 0, dead 0, released 0, lost 0\n")
    assert [(job.payload, job.attempts) for job in jobs(url)] == [(2, 0)]
