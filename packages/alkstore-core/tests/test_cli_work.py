"""``alkstore work``: workers in processes of their own, and how each of them ends."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hanging import HUNG

import alkstore
from alkstore import JobState
from alkstore.cli.command import command

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="ends processes by signals")

APP = """
import asyncio, contextlib, sqlite3
import alkstore
from alkstore import Job, Store
from alkstore.worker import Fail, Worker

async def note(job: Job, store: Store) -> None:
    await store.stream("seen").publish([job.payload, job.attempts])

async def hang(job: Job, store: Store) -> None:
    await note(job, store)
    await asyncio.Event().wait()

def noting(store):
    return Worker(store, {"q": note})

def hanging(store):
    return Worker(store, {"q": hang}, grace=0.1)

async def later(store):
    return noting(store)

@contextlib.asynccontextmanager
async def within(store):
    yield noting(store)
    await store.stream("seen").publish("left")

def failing(store):
    return Worker(store, {"q": lambda: Fail("no use")})

async def lose() -> None:
    with contextlib.closing(sqlite3.connect(URL.removeprefix("sqlite:///"))) as database, database:
        database.execute("DELETE FROM alkstore_job")  # as one whose claim lapsed, and whom another one finished

def losing(store):
    return Worker(store, {"q": lose})

def broken(store):
    return Worker(store, {"q": leave})

class Enough(BaseException):
    pass

async def leave() -> None:
    raise Enough

own = Worker(alkstore.open(URL), {"q": note})
number = 7
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'app.db'}"


@pytest.fixture
def app(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module in the working folder."""
    name = f"app_{abs(hash(str(tmp_path))):x}"
    (tmp_path / f"{name}.py").write_text(f"URL = {url!r}\n{APP}", "utf-8")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    yield name
    sys.path[:] = before
    sys.modules.pop(name, None)


def work(*words: str) -> Result:
    return CliRunner().invoke(command, ["work", *words])


BEGUN: "list[subprocess.Popen[bytes]]" = []


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """Leave nothing running, however a test ends."""
    yield
    while BEGUN:
        with BEGUN.pop() as process:
            process.kill()


def begin(*words: str) -> "subprocess.Popen[bytes]":
    line = [sys.executable, "-m", "alkstore", "work", *words]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONASYNCIODEBUG"}
    # A shell's background job ignores SIGINT, and its children would too.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        BEGUN.append(subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env))
        return BEGUN[-1]
    finally:
        signal.signal(signal.SIGINT, before)


async def fill(url: str, count: int = 3, **stamps: Any) -> None:
    async with alkstore.open(url) as store:
        await store.queue("q").enqueue_batch(range(count), **stamps)


async def seen(url: str) -> list[Any]:
    async with alkstore.open(url) as store:
        return [event.payload for event in await store.stream("seen").read_since(0, 10_000)]


async def attempts(url: str) -> list[tuple[JobState, int]]:
    async with alkstore.open(url) as store:
        return [(job.state, job.attempts) for job in await store.queue("q").list()]


@pytest.mark.parametrize("name", ["noting", "later", "within"])
def test_a_function_gets_the_store_and_gives_the_worker(app: str, url: str, name: str) -> None:
    asyncio.run(fill(url))

    result = work(f"{app}:{name}", "--url", url, "--until-idle", "--json")

    assert result.exit_code == 0
    assert json.loads(result.stdout) == {"done": 3, "retried": 0, "dead": 0, "released": 0, "lost": 0}
    assert sorted(event for event in asyncio.run(seen(url)) if event != "left") == [[0, 1], [1, 1], [2, 1]]
    assert ("left" in asyncio.run(seen(url))) == (name == "within")


def test_a_worker_opens_its_own_store_whatever_the_environment_says(
    app: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALKSTORE_URL", "sqlite:///other.db")
    monkeypatch.setenv("ALKSTORE_OPTIONS", "wait_timeout=5")
    asyncio.run(fill(url))

    result = work(f"{app}:own", "--until-idle")

    assert result.exit_code == 0
    assert result.stdout == "done 3, retried 0, dead 0, released 0, lost 0\n"


def test_jobs_that_die_are_an_exit_code_where_the_end_is_waited_for(app: str, url: str) -> None:
    asyncio.run(fill(url, 1))

    result = work(f"{app}:failing", "--url", url, "--until-idle", "--log-level", "error")

    assert result.exit_code == 1
    assert result.stdout == "done 0, retried 0, dead 1, released 0, lost 0\n"


def test_a_claim_that_was_lost_is_an_exit_code_where_the_end_is_waited_for(app: str, url: str) -> None:
    asyncio.run(fill(url, 1))

    result = work(f"{app}:losing", "--url", url, "--until-idle", "--log-level", "error")

    assert result.stdout == "done 0, retried 0, dead 0, released 0, lost 1\n"
    assert result.exit_code == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "is no MODULE:WORKER; to run a program for each job of a queue: --exec"),
        (["nowhere:worker"], "there is no module 'nowhere'"),
        (["{app}:missing"], "has no 'missing'"),
        (["{app}:number"], "must be an alkstore.worker.Worker or give one, got 7"),
        (["{app}:noting"], "takes a store: give --url, or set ALKSTORE_URL"),
        (["{app}:own", "--url", "mem://"], "has a store of its own"),
        (["{app}:own", "--until-idle", "--option", "statement_cache_size=0"], "has a store of its own"),
        (["{app}:own", "--until-idle", "--option", "bogus"], "--option takes NAME=VALUE"),
        (["{app}:own", "--grace", "5"], "--grace goes with --exec"),
        (["q", "--exec", "true"], "q takes a store"),
        (["q", "--exec", "'"], "cannot be split into words"),
        (["q", "--exec", "no-such-program-here"], "names no program that could be run"),
    ],
)
def test_what_cannot_be_worked_on_is_a_matter_of_usage(
    app: str, words: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ALKSTORE_URL", raising=False)

    result = work(*(word.format(app=app) for word in words))

    assert result.exit_code == 2
    assert said in result.stderr


def test_a_storage_that_cannot_be_opened_is_an_exit_code_of_its_own(app: str) -> None:
    result = work(f"{app}:noting", "--url", "sqlite:///no/such/folder/app.db")

    assert result.exit_code == 3
    assert result.stderr.endswith("does not exist; create it\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_gives_back_what_does_not_end_within_the_grace(
    app: str, url: str, number: signal.Signals
) -> None:
    await fill(url, 1)
    async with alkstore.open(url) as store, store.stream("seen").subscribe(after=0) as events:
        with begin(f"{app}:hanging", "--url", url) as process:
            async with asyncio.timeout(HUNG):
                event = await events.recv()
            process.send_signal(number)
            out, _ = await asyncio.to_thread(process.communicate)

    assert event is not None
    assert event.payload == [0, 1]
    assert (process.returncode, out) == (0, b"done 0, retried 0, dead 0, released 1, lost 0\n")
    assert await attempts(url) == [(JobState.PENDING, 0)]


async def test_every_job_is_done_though_two_workers_are_killed_and_one_is_stopped(app: str, url: str) -> None:
    count = 500
    words = (f"{app}:noting", "--url", url)
    async with alkstore.open(url) as store, store.stream("seen").subscribe(after=0) as events:
        # Long enough for who lives to renew on a busy machine too, and no longer: what the killed ones had is waited for.
        await store.queue("q", visibility_timeout=5).enqueue_batch(range(count))
        processes = [begin(*words) for _ in range(3)]
        found: list[Any] = []
        async with asyncio.timeout(3 * HUNG):  # five processes, one after the other in part
            for process in processes:
                await asyncio.to_thread(at_work, process)
            while len(found) < 100:
                found += [event.payload for event in await events.recv_page()]
            for process, number in zip(processes, (9, 9, signal.SIGTERM), strict=True):
                process.send_signal(number)
            ends = [await asyncio.to_thread(process.communicate) for process in processes]
            again = begin(*words)
            await asyncio.to_thread(
                at_work, again
            )  # the others may have left it nothing, and it may not listen yet
            while len({payload for payload, _ in found}) < count:
                found += [event.payload for event in await events.recv_page()]
            # What the killed ones had noted and not acked is noted already, and is handed out once more all the same.
            while (left := await store.queue("q").stats()).ready or left.processing:
                pass
            again.terminate()
            await asyncio.to_thread(again.communicate)

    assert [process.returncode for process in (*processes, again)] == [-9, -9, 0, 0]
    assert b"lost 0" in ends[2][0]
    assert {payload for payload, _ in found} == set(range(count))
    assert (left.ready, left.delayed, left.dead) == (0, 0, 0)
    # Only what the killed ones had in hand is done twice: ten at once, each.
    assert sum(Counter(payload for payload, _ in found).values()) - count <= 20


def at_work(process: "subprocess.Popen[bytes]") -> None:
    assert process.stderr is not None
    while b"is at work on" not in process.stderr.readline():
        assert process.poll() is None


async def test_what_gets_through_every_handler_ends_a_worker_and_its_job_is_tried_again(
    app: str, url: str
) -> None:
    await fill(url, 1)
    with begin(f"{app}:broken", "--url", url) as process:
        _, said = await asyncio.to_thread(process.communicate)

    assert process.returncode == 1
    assert b"Enough" in said
    assert await attempts(url) == [(JobState.PENDING, 1)]
