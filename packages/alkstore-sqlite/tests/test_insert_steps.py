"""Inserts of many jobs: all by one statement where they are alike, and each with what is its own where they are not."""

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from jobs import new_job

from alkstore.engine import AlikeJobs, NewJob, Topic, TopicKind
from alkstore_sqlite import pack, queue
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


@pytest.mark.parametrize("count", [1, 2, 3, 100])
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


def test_payloads_too_large_for_one_parameter_are_stored_in_portions(connection: sqlite3.Connection) -> None:
    payloads = [bytes([65 + at]) * (pack.LARGEST // 2 + 1) for at in range(3)]
    jobs = AlikeJobs(NewJob("q", b"", b"{}", 0, None, None, 1, 3, 5, None), payloads)

    assert queue.together(jobs) is None
    change = perform(connection, queue.insert(jobs, 10))

    assert list(change.result) == [1, 2, 3]
    assert [row[2] for row in stored(connection)] == payloads


def test_a_payload_larger_than_a_portion_is_a_portion() -> None:
    large = b"x" * (pack.LARGEST + 1)

    assert pack.portions([(1, b"a"), (2, large), (3, b"b"), (4, b"c")]) == [
        [(1, b"a")],
        [(2, large)],
        [(3, b"b"), (4, b"c")],
    ]


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16"])
def test_payloads_that_are_joined_come_back_byte_for_byte_in_a_file_of_any_encoding(
    tmp_path: Path, encoding: str
) -> None:
    payloads = [b"", b"\x00", '"é🐍\\n"'.encode(), b"[]", b"\xff\xfe", b"1"]
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        connection.execute(f"PRAGMA encoding = '{encoding}'")
        connection.execute("CREATE TABLE stored (id INTEGER PRIMARY KEY, payload BLOB NOT NULL) STRICT")
        joined, places = pack.pack(payloads)
        connection.execute(
            "INSERT INTO stored (payload) SELECT SUBSTR(?, value >> 32, value & 4294967295) FROM JSON_EACH(?)",
            (joined, places),
        )
        assert [
            payload for (payload,) in connection.execute("SELECT payload FROM stored ORDER BY id")
        ] == payloads
