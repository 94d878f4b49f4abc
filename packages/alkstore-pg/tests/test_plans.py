"""What is done often finds its rows by its index among many, whatever the planner knew when the plan was made."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import pytest
from queues import PATIENCE, Jobs, jobs, new_job, token_of

from alkstore.engine import (
    Ack,
    Cancel,
    Fail,
    Heartbeat,
    JobFilter,
    JobRecord,
    JobState,
    Redrive,
    Release,
    Retry,
    Settle,
)
from alkstore_pg import queue
from alkstore_pg.contract_server import Server
from alkstore_pg.link import DriverSession
from alkstore_pg.mark import FULL, Plan
from alkstore_pg.session import Session

EACH: Final = 20_000
"""Rows of each kind."""

PAGES: Final = 300
"""Pages that an operation on up to ten jobs may touch: a level of an index is one, and so is every row that is met."""

NOW: Final = 10**9
LATE: Final = 10**12
LATER: Final = 10**13

FILL: Final = """
INSERT INTO {schema}.job (
    queue, payload, headers, place, priority, run_at, expires_at, attempts, max_attempts, visibility_timeout, base_delay,
    worker_id, deadline, token, created_at
)
SELECT
    CASE WHEN $2::bigint > 1 THEN 'q' || n % $2::bigint ELSE 'q' END, '1', '{}', $3::smallint, n % 3, $4::bigint + n,
    $5::bigint + n, 1, 3, 100, 1, CASE WHEN $6::bigint IS NOT NULL THEN 'w' END, $6::bigint + n,
    CASE WHEN $6::bigint IS NOT NULL THEN n END, 0
FROM generate_series(1, $1::bigint) AS n
"""

BURY: Final = """
INSERT INTO {schema}.dead (
    queue, id, payload, headers, priority, run_at, attempts, max_attempts, visibility_timeout, base_delay, created_at,
    died_at, last_error
)
SELECT
    CASE WHEN $2::bigint > 1 THEN 'q' || n % $2::bigint ELSE 'q' END, -n, '1', '{}', 0, 0, 1, 3, 100, 1, 0, n, 'boom'
FROM generate_series(1, $1::bigint) AS n
"""

KINDS: Final[Sequence[tuple[int, int, int | None, int | None]]] = (
    (0, LATE, None, None),  # delayed
    (0, LATE, LATER, None),  # delayed, to expire after that
    (1, 0, None, LATE),  # held
    (2, 0, LATE, LATE),  # held for the last time, to expire
    (3, 0, 0, None),  # aside
)
"""What the many rows are: place, run_at, expires_at, deadline."""

WAITING: Final = (0, 0, LATE, None)

Operation = Callable[[Session], Awaitable[object]]


class Counting(DriverSession):
    """Counts the pages that statements touch, those within functions too."""

    pages = 0

    async def fetch(self, statement: str, *parameters: object) -> Sequence[Sequence[Any]]:
        transaction = self.connection.transaction()
        await transaction.start()
        ((plan,),) = await super().fetch(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", *parameters)
        await transaction.rollback()
        top = json.loads(plan)[0]["Plan"]
        self.pages += top["Shared Hit Blocks"] + top["Shared Read Blocks"]
        return await super().fetch(statement, *parameters)


def operations(held: Sequence[JobRecord]) -> dict[str, Operation]:
    """What is done often, in an order in which all of it finds what it needs; ``held`` are nine claimed jobs."""
    claims = [(job.queue, job.id, token_of(job)) for job in held]
    ids = tuple(job.id for job in held)
    mixed: list[Settle] = [
        Retry(*claims[4], 0, "e"),
        Fail(*claims[5], "boom"),
        Release(*claims[6]),
        Heartbeat(*claims[7], LATE),
        Ack(*claims[8]),
    ]
    return {
        "insert": lambda on: queue.insert(on, [new_job(priority=9)], ()),
        "insert and wake": lambda on: queue.insert(on, [new_job(priority=9)], ["q1:q"]),
        "insert alike": lambda on: queue.insert(on, [new_job(priority=9)] * 2, ()),
        "insert mixed": lambda on: queue.insert(on, [new_job(priority=9), new_job(priority=8)], ()),
        "claim one": lambda on: queue.claim(on, "q", ["w"], FULL),
        "claim some": lambda on: queue.claim(on, "q", ["w"] * 3, FULL),
        "claim for several workers": lambda on: queue.claim(on, "q", ["v", "w"], FULL),
        "claim from marks": lambda on: queue.claim(on, "q", ["w"], Plan([9, 0, -1], [0, 0, 0], NOW - 1)),
        "ack one": lambda on: queue.settle(on, [Ack(*claims[0])], (), PATIENCE),
        "ack several": lambda on: queue.settle(on, [Ack(*claim) for claim in claims[1:4]], (), PATIENCE),
        "settle": lambda on: queue.settle(on, mixed, (), PATIENCE),
        "redrive": lambda on: queue.settle(on, [Redrive("q", ids[5])], (), PATIENCE),
        "cancel": lambda on: queue.settle(on, [Cancel("q", id) for id in ids[4:7]], (), PATIENCE),
        "find": lambda on: queue.find(on, "q", JobFilter(after=ids[0], limit=5)),
        "find pending": lambda on: queue.find(
            on, "q", JobFilter(state=JobState.PENDING, after=ids[0], limit=5)
        ),
        "find dead": lambda on: queue.find(on, "q", JobFilter(state=JobState.DEAD, after=-5, limit=5)),
        "find by ids": lambda on: queue.find(on, "q", JobFilter(ids=(-1, *ids))),
        "purge": lambda on: queue.purge(on, "q", NOW - 5),
        "names": queue.names,
    }


IN_A_QUEUE_OF_ITS_OWN: Final[dict[str, Operation]] = {
    "claim what is not there": lambda on: queue.claim(on, "q", ["w"] * 10, FULL),
    "sweep": lambda on: queue.sweep(lambda operation: operation(on), "q"),
}
"""What reads all of some kind in a queue, and nothing of any other one."""

WITH_STATISTICS: Final[dict[str, Operation]] = {
    "find processing": lambda on: queue.find(on, "q", JobFilter(state=JobState.PROCESSING)),
    "count": lambda on: queue.count(on, "q"),
}
"""What may read the whole table until autovacuum has counted it: people ask for it, no worker does."""


async def held_by(q: Jobs, on: Session) -> Sequence[JobRecord]:
    await queue.insert(on, [new_job(priority=9, window=LATE)] * 9, ())
    claimed = (await queue.claim(on, "q", ["w"] * 9, FULL)).claimed
    assert claimed is not None
    return claimed.jobs


@pytest.fixture(scope="module")
def database(server: Server) -> Iterator[str]:
    yield server.create_database("test_plans")
    server.drop_database("test_plans")


@pytest.fixture
async def q(database: str) -> AsyncIterator[Jobs]:
    """A schema that nobody vacuums or analyses, and a session that planned everything when next to nothing was there."""
    async with jobs(database) as world:
        await world.script(
            "TRUNCATE {schema}.job, {schema}.dead;"
            "ALTER TABLE {schema}.job SET (autovacuum_enabled = off);"
            "ALTER TABLE {schema}.dead SET (autovacuum_enabled = off)"
        )
        await world.at(NOW)
        for _ in range(7):
            done = operations(await held_by(world, world.on)) | IN_A_QUEUE_OF_ITS_OWN | WITH_STATISTICS
            for operation in done.values():
                await operation(world.on)
        await world.sql("DELETE FROM {schema}.job")
        yield world


async def pages_of(q: Jobs, done: Mapping[str, Operation]) -> Mapping[str, int]:
    pages = {}
    for name, operation in done.items():
        on = Counting(q.on.connection, q.schema)
        await operation(on)
        pages[name] = on.pages
    return pages


@pytest.mark.parametrize("is_analysed", [False, True], ids=["stale", "analysed"])
@pytest.mark.parametrize("queues", [1, 400])
@pytest.mark.parametrize("is_waiting", [False, True], ids=["none waiting", "waiting"])
async def test_what_is_done_often_touches_few_pages_among_many_rows(
    q: Jobs, is_waiting: bool, queues: int, is_analysed: bool
) -> None:
    for kind in (*KINDS, WAITING)[: len(KINDS) + is_waiting]:
        await q.sql(FILL, EACH, queues, *kind)
    await q.sql(BURY, EACH, queues)
    if is_analysed:
        await q.script("ANALYZE {schema}.job; ANALYZE {schema}.dead")
    done = operations(await held_by(q, q.on))
    if queues > 1:
        done |= IN_A_QUEUE_OF_ITS_OWN | (WITH_STATISTICS if is_analysed else {})
        del done["names"]  # it meets one row of each

    pages = await pages_of(q, done)

    assert {name: count for name, count in pages.items() if count > PAGES} == {}


async def test_a_job_is_found_by_its_id_though_the_plan_is_of_when_it_was_alone(database: str) -> None:
    async with jobs(database) as world:
        await world.script("TRUNCATE {schema}.job; ALTER TABLE {schema}.job SET (autovacuum_enabled = off)")
        ((job_id,),) = await world.sql(
            "INSERT INTO {schema}.job (queue, payload, headers, priority, run_at, max_attempts, visibility_timeout, "
            "base_delay, created_at) VALUES ('q', '1', '{}', 0, 0, 1, 1, 1, 0) RETURNING id"
        )
        await world.script("ANALYZE {schema}.job")
        found: dict[str, Operation] = {
            "find by id": lambda on: queue.find(on, "q", JobFilter(ids=(job_id,), limit=1))
        }
        for _ in range(7):
            await found["find by id"](world.on)
        await world.sql(FILL, 10 * EACH, 1, *WAITING)

        pages = await pages_of(world, found)

        assert pages["find by id"] <= PAGES
