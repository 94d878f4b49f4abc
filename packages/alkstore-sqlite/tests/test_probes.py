"""What the watcher reads of each kind of topic."""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from alkstore.engine import NewEvent, NewSchedule, NewWake
from alkstore_sqlite import lock, schedule, stream, wake
from alkstore_sqlite.connection import Steps, perform
from alkstore_sqlite.schema import MIGRATIONS

RULE = NewSchedule("r", "@every 1h", 3_600_000_000, None, "jobs", b"1", 0, 1_000_000, 3, 0, None)

JOB = """INSERT INTO alkstore_job (queue, payload, headers, place, priority, run_at, deadline, attempts, max_attempts,
visibility_timeout, base_delay, created_at) VALUES (?1, x'', x'', ?2, ?3, ?4, ?5, 0, 3, 1, 1, 0)"""


def opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


@pytest.fixture
def file(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(opened(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("BEGIN")
        for migration in MIGRATIONS:
            for statement in migration.statements:
                connection.execute(statement)
        connection.execute("COMMIT")
        yield connection


def commit(file: sqlite3.Connection, steps: Steps[Any]) -> None:
    file.execute("BEGIN IMMEDIATE")
    perform(file, steps)
    file.execute("COMMIT")


def notify(file: sqlite3.Connection, channel: str = "news") -> None:
    commit(file, wake.notify([NewWake(channel, None)], 0))


def enqueue(
    file: sqlite3.Connection, run_at: int, *, place: int = 0, priority: int = 0, queue: str = "jobs"
) -> None:
    file.execute(JOB, (queue, place, priority, run_at, run_at if place else None))


def probed(file: sqlite3.Connection, probe: str, names: Sequence[str]) -> list[list[int]]:
    ((marks,),) = file.execute(wake._SQL[probe], (json.dumps(names),)).fetchall()
    found: list[list[int]] = json.loads(marks)
    return sorted(found)


def test_a_queue_is_due_when_its_first_row_of_any_priority_is_or_its_first_claim_lapses(
    file: sqlite3.Connection,
) -> None:
    for queue, place, priority, run_at in (
        ("a", 0, 5, 70),
        ("a", 0, 2, 40),
        ("a", 0, 2, 30),
        ("a", 0, -3, 90),
        ("b", 0, 0, 20),
        ("b", 1, 0, 10),
        ("c", 2, 0, 1),
        ("c", 3, 0, 2),
        ("c", 4, 0, 3),
    ):
        enqueue(file, run_at, place=place, priority=priority, queue=queue)

    assert probed(file, "probe_queues", ["b", "a", "c", "none"]) == [[0, 10], [1, 30]]


def test_every_other_probe_answers_for_every_name(file: sqlite3.Connection) -> None:
    notify(file)
    perform(file, stream.append([_event()] * 3, 0))
    perform(file, lock.take("door", 9, 1))
    perform(file, schedule.put(RULE, 0))

    assert probed(file, "probe_channels", ["x", "news"]) == [[0, 0], [1, 1]]
    assert probed(file, "probe_streams", ["log", "x"]) == [[0, 3], [1, 0]]
    assert probed(file, "probe_locks", ["door", "x"]) == [[0, 10, 1], [1, 0, 0]]
    assert probed(file, "probe_schedules", [""]) == [[0, 1, 1]]


@pytest.mark.parametrize("probe", ["probe_channels", "probe_streams", "probe_queues", "probe_locks"])
def test_a_probe_scans_no_table(file: sqlite3.Connection, probe: str) -> None:
    plan = [row[3] for row in file.execute(f"EXPLAIN QUERY PLAN {wake._SQL[probe]}", ("[]",))]

    scans = [step for step in plan if step.startswith("SCAN")]
    assert all("VIRTUAL TABLE" in step or "level" in step or "subquery" in step for step in scans), plan
    for step in plan:
        if "alkstore_job" in step or "SEARCH job" in step:
            assert "alkstore_job_line (queue=?" in step or "alkstore_job_held (queue=? AND place=?" in step, (
                step
            )


def _event() -> NewEvent:
    return NewEvent("log", None, b"1", b"{}")
