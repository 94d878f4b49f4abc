"""The benchmarks on SQLite."""

import asyncio
import importlib
import importlib.metadata
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from axes import backlog, dead, payload
from figure import Figure
from memory import memory
from sqlite_queues import PEERS, THREADED
from sqlite_scaling import FILL
from sqlite_sides import Bare, Ours
from stage import OURS, Amount, Stage, Target, rates
from store_side import NAME
from wakes import foreign, wakes
from workloads import (
    BATCH,
    CLAIMED,
    TASKS,
    Work,
    claim,
    claim_by_batch,
    enqueue,
    enqueue_at_once,
    enqueue_by_batch,
    fill,
    fill_stream,
    lock,
    pass_through,
    publish,
    publish_by_batch,
    replay,
    stay,
    transact,
    work,
)

from alkstore.payload import encode

__all__ = ["PARTS", "SIDES", "facts", "stage"]

BARE: Final = "bare driver"


def _installed() -> Mapping[str, type]:
    found: dict[str, type] = {OURS: Ours, BARE: Bare}
    for name, kind in (PEERS | THREADED).items():
        try:
            importlib.import_module(name.partition(",")[0].replace("-", ""))
        except ImportError:
            continue
        found[name] = kind
    return found


SIDES: Final = _installed()
ALL: Final = (OURS, BARE, *PEERS)
SINGLE: Final = (*ALL, *THREADED)
MANY: Final = tuple(name for name in ALL if name != "persist-queue")  # it has nothing to do many by
STREAMS: Final = (OURS, BARE, "honker")
BOTH: Final = (OURS, BARE)

WORKS: Final = (
    Work("enqueue one by one", enqueue, SINGLE, 10),
    Work("64 tasks enqueue", enqueue_at_once, SINGLE, TASKS),
    Work("enqueue by 1,000", enqueue_by_batch, MANY, BATCH),
    Work("claim+ack one by one", claim, SINGLE, 10, fill),
    Work("claim+ack by 100", claim_by_batch, MANY, CLAIMED, fill),
    Work("worker", work, (OURS, "huey"), BATCH, fill, seconds=0.3),
    Work("publish one by one", publish, STREAMS, 10),
    Work("publish by 1,000", publish_by_batch, STREAMS, BATCH),
    Work("replay", replay, BOTH, BATCH, fill_stream, seconds=0.3),
    Work("lock, release", lock, (OURS, BARE, "huey"), 10),
    Work("a row and a job in one transaction", transact, (OURS, BARE, "litequeue"), 10),
    Work("enqueue, claim, ack", pass_through, ALL, 1, part="payload"),
    Work("enqueue, claim, ack", stay, ALL, 10, part="backlog"),
)
PARTS: Final[Mapping[str, Callable[[Stage, Amount], list[Figure]]]] = {
    "rates": rates,
    "backlog": backlog,
    "dead": dead,
    "payload": payload,
    "wakes": wakes,
    "foreign": foreign,
    "memory": memory,
}
PROCESSOR: Final = 0
"""All sides stay on this one while they take turns: their threads wait for each other anyway. Where a change of threads may
wake another processor it costs from nothing to 150 µs, as the kernel chooses: more than what is to be compared."""

PORTION: Final = 1_000_000
"""Rows of one commit: all of 10⁷ in one would make a journal of gigabytes."""

EVENTS: Final = """
INSERT INTO alkstore_event (stream, offset, key, payload, headers, created_at)
WITH RECURSIVE row (number) AS (SELECT ?2 UNION ALL SELECT number + 1 FROM row WHERE number + 1 <= ?3)
SELECT ?1, number, NULL, ?4, CAST('{}' AS BLOB), ?5 FROM row
"""


def _connected(path: Path) -> "closing[sqlite3.Connection]":
    connection = sqlite3.connect(path, isolation_level=None, timeout=60)
    connection.execute("PRAGMA synchronous = OFF")
    return closing(connection)


def _add_rows(path: Path, kind: str, count: int) -> None:
    now, is_dead = time.time_ns() // 1_000, kind == "dead"
    with _connected(path) as connection:
        for start in range(0, count, PORTION):
            values = (min(PORTION, count - start), NAME, encode({"to": "ada@example.org", "n": 7}))
            connection.execute(FILL, (*values, 4 if is_dead else 0, 0, 1, now, None, now))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _add_events(path: Path, count: int) -> None:
    asyncio.run(_make(path))
    with _connected(path) as connection:
        connection.execute("INSERT INTO alkstore_stream (name, head) VALUES (?, ?)", (NAME, count))
        ((stream,),) = connection.execute("SELECT id FROM alkstore_stream WHERE name = ?", (NAME,))
        for start in range(0, count, PORTION):
            last, now = min(start + PORTION, count), time.time_ns() // 1_000
            payload = encode({"to": "ada@example.org", "n": 7})
            connection.execute(EVENTS, (stream, start + 1, last, payload, now))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


async def _make(path: Path) -> None:
    async with _target(path, "process").open():
        pass  # its tables


def _target(path: Any, setting: str) -> Target:
    return Target(f"sqlite:///{path}", {"durability": setting})


def stage(sides: Mapping[str, type], folder: Path) -> Stage:
    """Give the stage with some sides, on files of a folder."""

    @contextmanager
    def place() -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=folder, prefix="alkstore-bench-") as made:
            yield Path(made) / "bench.db"

    settings = {"process": "NORMAL", "power": "FULL"}
    fewer = {BARE: 5, "huey": 5, "litequeue": 5, "persist-queue": 4, "honker": 5}
    return Stage("sqlite", settings, sides, WORKS, place, _target, _add_rows, _add_events, fewer, PROCESSOR)


def facts() -> dict[str, str]:
    """Tell the software."""
    told = {"sqlite": sqlite3.sqlite_version}
    for name in ("aiosqlite", *(name for name in PEERS if name in SIDES)):
        told[name] = importlib.metadata.version(name)
    return told
