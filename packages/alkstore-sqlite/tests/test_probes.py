"""What the watcher reads of each kind of topic."""

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

import pytest

from alkstore.engine import NewEvent, NewSchedule, NewWake
from alkstore_sqlite import lock, schedule, stream, wake
from alkstore_sqlite.connection import Steps, bind, perform

RULE = NewSchedule("r", "@every 1h", 3_600_000_000, None, "jobs", b"1", 0, 1_000_000, 3, 0, None)

JOB = """INSERT INTO alkstore_job (queue, payload, headers, place, priority, run_at, deadline, attempts, max_attempts,
visibility_timeout, base_delay, created_at) VALUES (?1, x'', x'', ?2, ?3, ?4, ?5, 0, 3, 1, 1, 0)"""


def commit(connection: sqlite3.Connection, steps: Steps[Any]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    perform(connection, steps)
    connection.execute("COMMIT")


def notify(connection: sqlite3.Connection, channel: str = "news") -> None:
    commit(connection, wake.notify([NewWake(channel, None)], 0))


def enqueue(
    connection: sqlite3.Connection, run_at: int, *, place: int = 0, priority: int = 0, queue: str = "jobs"
) -> None:
    connection.execute(JOB, bind((queue, place, priority, run_at, run_at if place else None)))


def probed(connection: sqlite3.Connection, probe: str, names: Sequence[str]) -> list[list[int]]:
    ((marks,),) = connection.execute(wake._SQL[probe], bind((json.dumps(names),))).fetchall()
    found: list[list[int]] = json.loads(marks)
    return sorted(found)


def test_a_queue_is_due_when_its_first_row_of_any_priority_is_or_its_first_claim_lapses(
    connection: sqlite3.Connection,
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
        enqueue(connection, run_at, place=place, priority=priority, queue=queue)

    assert probed(connection, "probe_queues", ["b", "a", "c", "none"]) == [[0, 10], [1, 30]]


def test_every_other_probe_answers_for_every_name(connection: sqlite3.Connection) -> None:
    notify(connection)
    perform(connection, stream.append([_event()] * 3, 0))
    perform(connection, lock.take("door", 9, 1))
    perform(connection, schedule.put(RULE, 0))

    assert probed(connection, "probe_channels", ["x", "news"]) == [[0, 0], [1, 1]]
    assert probed(connection, "probe_streams", ["log", "x"]) == [[0, 3], [1, 0]]
    assert probed(connection, "probe_locks", ["door", "x"]) == [[0, 10, 1], [1, 0, 0]]
    assert probed(connection, "probe_schedules", [""]) == [[0, 1, 1]]


@pytest.mark.parametrize("probe", ["probe_channels", "probe_streams", "probe_queues", "probe_locks"])
def test_a_probe_scans_no_table(connection: sqlite3.Connection, probe: str) -> None:
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {wake._SQL[probe]}", bind(("[]",)))]

    scans = [step for step in plan if step.startswith("SCAN")]
    assert all("VIRTUAL TABLE" in step or "level" in step or "subquery" in step for step in scans), plan
    for step in plan:
        if "alkstore_job" in step or "SEARCH job" in step:
            assert "alkstore_job_line (queue=?" in step or "alkstore_job_held (queue=? AND place=?" in step, (
                step
            )


def _event() -> NewEvent:
    return NewEvent("log", None, b"1", b"{}")
