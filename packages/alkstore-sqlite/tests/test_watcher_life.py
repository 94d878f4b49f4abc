"""How the watcher lives and dies, against a real file."""

import asyncio
import gc
import os
import sqlite3
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hanging import HUNG
from watching import made, notify, settled, unhinted, with_log, woken

from alkstore.engine import Signal, Topic, TopicKind
from alkstore.errors import DatabaseError
from alkstore_sqlite.errors import FileReplaced
from alkstore_sqlite.inotify import FileHint
from alkstore_sqlite.watcher import OpenHint

NEWS = Topic(TopicKind.CHANNEL, "news")
JOBS = Topic(TopicKind.QUEUE, "jobs")


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="there are no hints on this platform")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


@pytest.fixture
def file(path: Path) -> Iterator[sqlite3.Connection]:
    with with_log(path) as connection:
        yield connection


@pytest.fixture(params=[pytest.param(FileHint.open, marks=LINUX), unhinted], ids=["hints", "polls"])
def open_hint(request: pytest.FixtureRequest) -> OpenHint:
    hint: OpenHint = request.param
    return hint


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "alkstore-watcher"]


async def test_its_death_ends_every_watch_and_the_next_one_starts_another(
    path: Path, file: sqlite3.Connection, open_hint: OpenHint
) -> None:
    wakes = made(path, file, open_hint)
    watches = [await wakes.watch(topic) for topic in (NEWS, JOBS)]

    wakes.kill_watcher()

    for watch in watches:
        with pytest.raises(DatabaseError, match="what waits next starts another") as caught:
            async with asyncio.timeout(HUNG):
                await watch.wait()
        assert isinstance(caught.value.__cause__, RuntimeError)
    assert threads() == []
    watch = await wakes.watch(NEWS)
    notify(file)
    await woken(watch)
    await wakes.aclose()


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be removed there")
@pytest.mark.parametrize("is_replaced", [False, True])
async def test_a_file_that_was_removed_or_replaced_is_noticed(
    path: Path, file: sqlite3.Connection, is_replaced: bool
) -> None:
    wakes = made(path, file)
    watch = await wakes.watch(JOBS)
    await settled(wakes)

    _remove(path, is_replaced=is_replaced)

    with pytest.raises(FileReplaced):
        async with asyncio.timeout(HUNG):
            await watch.wait()
    await wakes.aclose()


async def test_a_file_that_cannot_be_opened_ends_the_watch_with_the_reason(
    path: Path, file: sqlite3.Connection
) -> None:
    wakes = made(path.parent / "missing.db", file)
    watch = await wakes.watch(JOBS)

    with pytest.raises(DatabaseError, match="was removed"):
        async with asyncio.timeout(HUNG):
            await watch.wait()
    assert not (path.parent / "missing.db").exists()
    await wakes.aclose()


async def test_a_damaged_file_ends_the_watch_with_the_reason(path: Path, file: sqlite3.Connection) -> None:
    wakes = made(path, file)
    watch = await wakes.watch(JOBS)
    await settled(wakes)

    file.execute("DROP TABLE alkstore_job")

    with pytest.raises(DatabaseError, match="dropped by hand") as caught:
        async with asyncio.timeout(HUNG):
            await watch.wait()
    assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
    await wakes.aclose()


async def test_a_close_leaves_no_thread_and_no_descriptor(
    path: Path, file: sqlite3.Connection, open_hint: OpenHint
) -> None:
    async def life() -> int:
        wakes = made(path, file, open_hint)
        watch = await wakes.watch(NEWS)
        await settled(wakes)
        await wakes.aclose()
        assert watch.poll() is Signal.CLOSED
        assert threads() == []
        return _descriptors()

    # SQLite keeps one descriptor for the next connection while another one has locks on the file.
    before = await life()
    assert [await life() for _ in range(5)] == [before] * 5


async def test_many_watches_leave_threads_descriptors_and_memory_flat(
    path: Path, file: sqlite3.Connection
) -> None:
    wakes = made(path, file)

    async def round_of(count: int) -> None:
        kinds = [kind for kind in TopicKind if kind is not TopicKind.CLOCK]
        for number in range(count):
            (await wakes.watch(Topic(kinds[number % len(kinds)], f"n{number}"))).close()

    await round_of(500)
    await wakes.watch(NEWS)
    await settled(wakes)
    before = _descriptors()
    tracemalloc.start()
    try:
        await round_of(1_000)
        await settled(wakes)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()

    assert grown < 100_000
    assert (threads(), _descriptors()) == (["alkstore-watcher"], before)
    await wakes.aclose()


PROGRAM = """
import asyncio, os, sys
from alkstore.engine import Topic, TopicKind
from alkstore.testing import ManualClock
from alkstore_sqlite.place import Place
from alkstore_sqlite.wake import Wakes

async def baseline(channel):
    return 0

async def main():
    global wakes, watch
    wakes = Wakes(Place.of(sys.argv[1]), ManualClock(), baseline)
    watch = await wakes.watch(Topic(TopicKind.CHANNEL, "news"))
    await wakes.look()
    assert watch.poll() is None
"""


def run(path: Path, code: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", PROGRAM + code, str(path)],
        capture_output=True,
        text=True,
        timeout=HUNG,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "end",
    ["asyncio.run(main())", "loop = asyncio.new_event_loop()\nloop.run_until_complete(main())\nloop.close()"],
)
def test_a_program_that_ends_without_a_close_ends_at_once_and_quietly(
    path: Path, file: sqlite3.Connection, end: str
) -> None:
    assert run(path, f"{end}\nprint('ok')") == (0, "ok\n", "")


FORK = """
import warnings
asyncio.run(main())
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # Python's own, of forks beside threads
    child = os.fork()
if child == 0:
    import gc
    del wakes, watch
    gc.collect()
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
assert wakes._watcher._thread.is_alive()
print("ok")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks on this platform")
def test_a_forked_child_leaves_the_watcher_alone(path: Path, file: sqlite3.Connection) -> None:
    assert run(path, FORK) == (0, "ok\n", "")


def _remove(path: Path, *, is_replaced: bool) -> None:
    path.unlink()
    if is_replaced:
        path.write_bytes(b"")


def _descriptors() -> int:
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0
