"""Inserts of many jobs: nine by one statement where they are alike, and each with what is its own where they are not."""

import sqlite3
from collections.abc import Callable, Sequence

import pytest
from jobs import new_job

from alkstore.engine import AlikeJobs, NewJob, Topic, TopicKind
from alkstore_sqlite import queue
from alkstore_sqlite.connection import Woken, perform


def wake_of(*names: str) -> list[Woken]:
    return [Woken(Topic(TopicKind.QUEUE, name)) for name in names]


def numbered(count: int) -> list[bytes]:
    return [str(number).encode() for number in range(count)]


def stored(connection: sqlite3.Connection) -> list[tuple[object, ...]]:
    """Every job as it was to be inserted, in the order of ids."""
    return connection.execute(
        "SELECT id, queue, payload, headers, priority, run_at, expires_at, max_attempts, visibility_timeout, base_delay,"
        " created_at, scheduled_for, place, attempts FROM alkstore_job ORDER BY id"
    ).fetchall()


@pytest.mark.parametrize("count", [1, 2, 9, 10, 11, 18, 19, 20, 100])
@pytest.mark.parametrize(
    "form", [list, tuple, lambda jobs: AlikeJobs(jobs[0], [job.payload for job in jobs])]
)
def test_jobs_that_are_alike_are_stored_each_with_its_payload(
    connection: sqlite3.Connection, count: int, form: Callable[[list[NewJob]], Sequence[NewJob]]
) -> None:
    jobs = [NewJob("q", each, b'{"a":"b"}', -3, None, 50, 100, 4, 7, 60) for each in numbered(count)]

    change = perform(connection, queue.insert(form(jobs), 10))

    assert list(change.result) == list(range(1, count + 1))
    assert list(change.woken) == wake_of("q")
    assert stored(connection) == [
        (id, "q", each, b'{"a":"b"}', -3, 50, 70, 4, 100, 7, 10, None, 0, 0)
        for id, each in enumerate(numbered(count), 1)
    ]


def test_jobs_of_several_kinds_are_stored_each_with_what_is_its_own(connection: sqlite3.Connection) -> None:
    kinds = [("q", 0, None), ("p", 0, None), ("q", 1, None), ("q", 0, 5), ("q", 0, 0)]
    drawn = [(kinds[at * at % 7 % 5], each) for at, each in enumerate(numbered(100))]
    jobs = [new_job(each, name=name, priority=priority) for (name, priority, _), each in drawn]

    change = perform(connection, queue.insert(jobs, 10, [boundary for (*_, boundary), _ in drawn]))

    assert list(change.result) == list(range(1, 101))
    assert list(change.woken) == wake_of("q", "p")
    assert [(row[1], row[4], row[11], row[2]) for row in stored(connection)] == [
        (*kind, each) for kind, each in drawn
    ]
