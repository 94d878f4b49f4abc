"""The benchmarks on PostgreSQL; ``engine_pg_parts.py`` has what is measured there alone."""

import asyncio
import importlib.metadata
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import asyncpg
from axes import backlog, dead, payload
from engine_pg_parts import connections, processes, snapshot
from figure import Figure
from memory import memory
from pg_scaling import BURY, FILL
from pg_server import database
from pg_server import facts as server_facts
from pg_sides import Bare, Ours, Pgqueuer, PgqueuerPool, Procrastinate
from stage import OURS, Amount, Stage, Target, rates
from store_side import NAME
from wakes import foreign, wakes
from workloads import (
    BATCH,
    TASKS,
    Work,
    enqueue,
    enqueue_at_once,
    enqueue_by_batch,
    fill,
    fill_stream,
    lock,
    pass_through,
    process,
    process_by_batch,
    process_by_page,
    publish,
    publish_at_once,
    publish_by_batch,
    replay,
    transact,
    work,
)

from alkstore.payload import encode
from alkstore_pg.contract_server import Server

__all__ = ["PARTS", "SIDES", "facts", "stage"]

BARE: Final = "bare driver"
PEERS: Final[Mapping[str, type]] = {
    "pgqueuer": Pgqueuer,
    "pgqueuer, pool": PgqueuerPool,
    "procrastinate": Procrastinate,
}


def _installed() -> Mapping[str, type]:
    found: dict[str, type] = {OURS: Ours, BARE: Bare}
    for name, kind in PEERS.items():
        try:
            importlib.metadata.version(name.partition(",")[0])
        except importlib.metadata.PackageNotFoundError:
            continue
        found[name] = kind
    return found


SIDES: Final = _installed()
QUEUES: Final = (OURS, BARE, "pgqueuer", "procrastinate")
BOTH: Final = (OURS, BARE)
LONG: Final = 0.5
"""Seconds of a slice with workers, which have a start and an end of their own."""

WORKS: Final = (
    Work("enqueue one by one", enqueue, (OURS, BARE, *PEERS), 10),
    Work("64 tasks enqueue", enqueue_at_once, QUEUES, TASKS),
    Work("enqueue by 1,000", enqueue_by_batch, QUEUES, BATCH),
    Work("claim, run, ack one by one", process, QUEUES, 10, fill, seconds=0.3),
    Work("claim, run, ack by 100", process_by_batch, QUEUES, 100, fill, seconds=LONG),
    Work("claim, run, ack by 500", process_by_page, QUEUES, 500, fill, seconds=LONG),
    Work("worker", work, (OURS, "pgqueuer", "procrastinate"), 500, fill, seconds=LONG),
    Work("publish one by one", publish, BOTH, 10),
    Work("64 tasks publish", publish_at_once, BOTH, TASKS),
    Work("publish by 1,000", publish_by_batch, BOTH, BATCH),
    Work("replay", replay, BOTH, BATCH, fill_stream, seconds=0.3),
    Work("lock, release", lock, BOTH, 10),
    Work("a row and a job in one transaction", transact, (OURS, BARE, "pgqueuer"), 10),
    Work("enqueue, claim, ack", pass_through, BOTH, 1, part="payload"),
    Work("claim, run, ack by 100", process_by_batch, (OURS, BARE, "pgqueuer"), 100, fill, "backlog", 0.4),
)
PARTS: Final[Mapping[str, Callable[[Stage, Amount], list[Figure]]]] = {
    "rates": rates,
    "backlog": backlog,
    "dead": dead,
    "snapshot": snapshot,
    "payload": payload,
    "connections": connections,
    "processes": processes,
    "wakes": wakes,
    "foreign": foreign,
    "memory": memory,
}
PATIENCE: Final = 600

EVENTS: Final = """
INSERT INTO alkstore.event (stream, "offset", key, payload, headers, created_at)
SELECT s.id, n, NULL, $2::bytea, '{}', alkstore.now()
FROM alkstore.stream AS s, generate_series(2, $3::bigint) AS n
WHERE s.name = $1::text
"""
RAISE: Final = """
SELECT setval('alkstore.event_offset', s.base + $2::bigint) FROM alkstore.stream AS s WHERE s.name = $1::text
"""


async def _make(dsn: str) -> None:
    async with _target(dsn, "").open() as store:
        await store.stream(NAME).publish({"to": "ada@example.org", "n": 7})


async def _execute(dsn: str, *statements: tuple[object, ...]) -> None:
    connection: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(dsn)
    for text, *values in statements:
        await connection.execute(str(text), *values, timeout=PATIENCE)
    await connection.close()


def _add_rows(dsn: str, kind: str, count: int) -> None:
    payload = encode({"to": "ada@example.org", "n": 7})
    if kind == "dead":
        adding: tuple[object, ...] = (
            BURY.replace("-n,", "-n - (SELECT COUNT(*) FROM alkstore.dead),"),
            count,
            NAME,
            payload,
        )
    else:
        adding = (FILL, count, NAME, payload, 0, 1, 0, None)
    asyncio.run(_execute(dsn, adding, ("VACUUM ANALYZE",)))


def _add_events(dsn: str, count: int) -> None:
    asyncio.run(_make(dsn))
    payload = encode({"to": "ada@example.org", "n": 7})
    asyncio.run(_execute(dsn, (EVENTS, NAME, payload, count), (RAISE, NAME, count), ("VACUUM ANALYZE",)))


def _target(dsn: Any, setting: str) -> Target:
    return Target(dsn, {})


def stage(sides: Mapping[str, type], server: Server) -> Stage:
    """Give the stage with some sides, on databases of a server."""

    @contextmanager
    def place() -> Iterator[str]:
        with database(server) as dsn:
            yield dsn

    fewer = {BARE: 5, "pgqueuer": 6}  # by their own interfaces ten millions take minutes
    return Stage("pg", {"": ""}, sides, WORKS, place, _target, _add_rows, _add_events, fewer)


def facts(server: Server) -> dict[str, str]:
    """Tell the software."""
    names = {name.partition(",")[0] for name in SIDES if name in PEERS}
    return {**server_facts(server), **{name: importlib.metadata.version(name) for name in sorted(names)}}
