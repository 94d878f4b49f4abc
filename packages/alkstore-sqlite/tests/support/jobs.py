"""Jobs by the operations of the engine's queue, on a plain connection: rows as they come to stand, not as made up."""

import sqlite3
from collections.abc import Sequence

from alkstore.engine import Claimed, Fail, JobFilter, JobRecord, NewJob, Settle
from alkstore_sqlite import queue
from alkstore_sqlite.connection import perform

__all__ = ["claim", "enqueue", "held", "job_of", "killed", "new_job", "payloads", "place_of", "settle"]

ALL = 2**63 - 1


def new_job(
    payload: bytes = b"1",
    *,
    name: str = "q",
    priority: int = 0,
    run_at: int | None = None,
    window: int = 100,
    attempts: int = 3,
    expires: int | None = None,
) -> NewJob:
    return NewJob(name, payload, b"{}", priority, None, run_at, window, attempts, 7, expires)


def enqueue(connection: sqlite3.Connection, *jobs: NewJob, now: int = 0) -> list[int]:
    return list(perform(connection, queue.insert(jobs, now)).result)


def claim(connection: sqlite3.Connection, wanted: int = 1, *, now: int = 0, name: str = "q") -> Claimed:
    """Claim until there is an answer."""
    while True:
        workers = [f"worker {number}" for number in range(wanted)]
        claimed = perform(connection, queue.claim(name, workers, now)).result
        if claimed is not None:
            return claimed


def held(connection: sqlite3.Connection, job: NewJob | None = None, *, now: int = 0) -> JobRecord:
    """Enqueue a job and claim it; nothing else may be in its queue's line."""
    ids = enqueue(connection, new_job() if job is None else job, now=now)
    (record,) = claim(connection, now=now, name="q" if job is None else job.queue).jobs
    assert record.id == ids[0]
    return record


def killed(connection: sqlite3.Connection, job: NewJob | None = None, *, now: int = 0) -> JobRecord:
    """Enqueue a job, claim it and have it fail."""
    record = held(connection, job, now=now)
    assert record.token is not None
    assert settle(connection, Fail(record.queue, record.id, record.token, "boom"), now=now) == [now]
    return job_of(connection, record.id, record.queue)


def settle(connection: sqlite3.Connection, *settles: Settle, now: int = 0) -> Sequence[int | None]:
    return perform(connection, queue.settle(settles, now)).result


def job_of(connection: sqlite3.Connection, id: int, name: str = "q") -> JobRecord:
    (record,) = perform(connection, queue.find(name, JobFilter(ids=(id,))))
    return record


def payloads(connection: sqlite3.Connection, name: str = "q") -> list[bytes]:
    return [record.payload for record in perform(connection, queue.find(name, JobFilter(limit=ALL)))]


def place_of(connection: sqlite3.Connection, id: int) -> int:
    ((place,),) = connection.execute("SELECT place FROM alkstore_job WHERE id = ?", (id,)).fetchall()
    return int(place)
