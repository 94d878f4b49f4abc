"""The watcher against a real file. A plain connection of this process stands for other processes: SQLite tells no difference."""

import asyncio
import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hanging import HUNG
from watching import commit, made, notify, opened, settled, unhinted, with_log, woken

from alkstore.engine import NewEvent, NewSchedule, NewWake, Signal, Topic, TopicKind
from alkstore_sqlite import lock, schedule, stream, wake
from alkstore_sqlite.connection import Steps, bind, perform
from alkstore_sqlite.inotify import FileHint
from alkstore_sqlite.pace import CHASE
from alkstore_sqlite.watcher import OpenHint

NEWS = Topic(TopicKind.CHANNEL, "news")
LOG = Topic(TopicKind.STREAM, "log")
JOBS = Topic(TopicKind.QUEUE, "jobs")
DOOR = Topic(TopicKind.LOCK, "door")
RULES = Topic(TopicKind.SCHEDULE)

RULE = NewSchedule("r", "@every 1h", 3_600_000_000, None, "jobs", b"1", 0, 1_000_000, 3, 0, None)

JOB = """INSERT INTO alkstore_job (queue, payload, headers, place, priority, run_at, deadline, attempts, max_attempts,
visibility_timeout, base_delay, created_at) VALUES (?1, x'', x'', ?2, ?3, ?4, ?5, 0, 3, 1, 1, 0)"""

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


def enqueue(
    file: sqlite3.Connection, run_at: int, *, place: int = 0, priority: int = 0, queue: str = "jobs"
) -> None:
    file.execute(JOB, bind((queue, place, priority, run_at, run_at if place else None)))


# ---------------------------------------------------------------- hearing others


async def test_every_kind_of_topic_hears_what_others_commit(
    path: Path, file: sqlite3.Connection, open_hint: OpenHint
) -> None:
    wakes = made(path, file, open_hint)
    commits: dict[Topic, Steps[Any]] = {
        NEWS: wake.notify([NewWake("news", None)], 0),
        LOG: stream.append([_event()], 0),
        DOOR: lock.renewing("door", 1, 0)(1),
        RULES: schedule.put(RULE, 0),
    }
    perform(file, lock.take("door", 100, 0))
    watches = {topic: await wakes.watch(topic) for topic in (*commits, JOBS)}
    notify(file, "other")  # a mark that was never read is news the first time
    await settled(wakes)
    for watch in watches.values():
        watch.poll()

    for topic, steps in commits.items():
        commit(file, steps)
        await woken(watches[topic])
        assert [watch.poll() for watch in watches.values()] == [None] * 5
    enqueue(file, 5)
    await woken(watches[JOBS])

    assert [watch.poll() for watch in watches.values()] == [None] * 5
    await wakes.aclose()


async def test_the_first_commit_after_the_thread_has_blocked_is_heard(
    path: Path, file: sqlite3.Connection
) -> None:
    wakes = made(path, file)
    (await wakes.watch(NEWS)).close()
    async with asyncio.timeout(HUNG):
        while wakes._watcher is None or not wakes._watcher._is_resting:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # nothing tells of it

    watch = await wakes.watch(NEWS)
    notify(file)

    await woken(watch)
    await wakes.aclose()


async def test_names_of_any_text_are_heard_and_no_others(path: Path, file: sqlite3.Connection) -> None:
    names = ["1", "a'b\"c\\d", "é", "e\u0301", "😀", "line\nend\x1f", "%s;--", "x" * 255]
    wakes = made(path, file)
    watches = {name: await wakes.watch(Topic(TopicKind.CHANNEL, name)) for name in names}

    for name, watch in watches.items():
        notify(file, name)
        await woken(watch)

    assert [watch.poll() for watch in watches.values()] == [None] * len(names)
    await wakes.aclose()


async def test_other_names_and_rollbacks_wake_nobody(path: Path, file: sqlite3.Connection) -> None:
    wakes = made(path, file)
    watches = [await wakes.watch(topic) for topic in (NEWS, JOBS)]

    notify(file, "other")
    enqueue(file, 5, queue="other")
    file.execute("BEGIN")
    perform(file, wake.notify([NewWake("news", None)], 0))
    enqueue(file, 5)
    file.execute("ROLLBACK")

    assert not await settled(wakes)
    assert [watch.poll() for watch in watches] == [None, None]
    await wakes.aclose()


async def test_a_claim_that_saw_a_job_is_not_woken_for_it_by_the_watcher(
    path: Path, file: sqlite3.Connection
) -> None:
    wakes = made(path, file)
    watch = await wakes.watch(JOBS)
    wakes.claim_begins("jobs")

    enqueue(file, 5)
    assert not await settled(wakes)
    wakes.claim_ended("jobs", float("inf"), None, True)

    assert watch.poll() is None
    await wakes.aclose()


async def test_a_job_that_a_claim_did_not_see_wakes_when_the_claim_has_ended(
    path: Path, file: sqlite3.Connection
) -> None:
    wakes = made(path, file)
    watch = await wakes.watch(JOBS)
    wakes.claim_begins("jobs")

    enqueue(file, 5)
    await settled(wakes)
    wakes.claim_ended("jobs", 0.0, None, True)

    assert watch.poll() is Signal.WOKEN
    await wakes.aclose()


async def test_a_delayed_job_wakes_only_where_it_comes_sooner_than_was_told(
    path: Path, file: sqlite3.Connection
) -> None:
    wakes = made(path, file)
    watch = await wakes.watch(JOBS)
    wakes.claim_begins("jobs")
    wakes.claim_ended("jobs", 0.0, 50, True)

    enqueue(file, 60)
    enqueue(file, 50, place=1)
    assert not await settled(wakes)
    enqueue(file, 40, priority=-1)
    await woken(watch)

    await wakes.aclose()


# ---------------------------------------------------------------- when it looks


@LINUX
async def test_hints_that_do_not_come_are_found_out_and_no_longer_relied_on(
    path: Path, file: sqlite3.Connection, tmp_path: Path
) -> None:
    silent = tmp_path / "silent"
    silent.write_bytes(b"")
    hint = FileHint.open(str(silent))
    assert hint is not None
    wakes = made(path, file, lambda _: hint)
    watch = await wakes.watch(NEWS)
    for _ in range(
        len(CHASE) + 2
    ):  # then it expects nothing any more, and only its safety look finds what comes
        await settled(wakes)

    notify(file)
    await woken(watch)

    await settled(wakes)
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(hint.fileno())
    notify(file)
    await woken(watch)
    await wakes.aclose()


@LINUX
def test_a_hint_follows_its_file_through_removal_and_return(tmp_path: Path) -> None:
    path = tmp_path / "log"
    hint = FileHint.open(str(path))
    assert hint is not None
    with closing(hint):
        assert not hint.follow()
        assert not hint.is_following

        path.write_bytes(b"1")
        assert hint.follow()
        assert not hint.drain()
        path.write_bytes(b"2")
        assert hint.drain()
        assert hint.is_following
        assert not hint.follow()

        path.unlink()
        path.write_bytes(b"3")
        assert hint.drain()
        assert not hint.is_following
        assert hint.follow()
        hint.drain()
        path.write_bytes(b"4")
        assert hint.drain()


async def test_a_file_that_somebody_holds_alone_is_looked_at_when_it_is_free(
    path: Path, file: sqlite3.Connection
) -> None:
    file.close()
    with closing(opened(path)) as alone:
        alone.execute("PRAGMA locking_mode = EXCLUSIVE")
        notify(alone, "other")
        wakes = made(path, alone)
        watch = await wakes.watch(NEWS)
        await settled(wakes)
        notify(alone)
        assert not await settled(wakes)
        assert watch.poll() is None

    await woken(watch)
    await wakes.aclose()


async def test_an_idle_watcher_writes_nothing(path: Path, file: sqlite3.Connection) -> None:
    wakes = made(path, file)
    notify(file)
    await wakes.watch(NEWS)
    await settled(wakes)
    before = [
        (name.name, name.stat().st_size, name.stat().st_mtime_ns) for name in sorted(path.parent.iterdir())
    ]

    for _ in range(20):
        await settled(wakes)

    after = [
        (name.name, name.stat().st_size, name.stat().st_mtime_ns) for name in sorted(path.parent.iterdir())
    ]
    assert [entry for entry in after if not entry[0].endswith("-shm")] == [
        entry for entry in before if not entry[0].endswith("-shm")
    ]
    await wakes.aclose()


def _event() -> NewEvent:
    return NewEvent("log", None, b"1", b"{}")
