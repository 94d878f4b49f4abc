import time
from collections.abc import AsyncIterator

import pytest
from pg_engines import Outsider, job, opened, outside

from alkstore.engine import Heartbeat
from alkstore_pg.engine import PgEngine

HOUR = 3_600_000_000
WINDOW = 60_000_000

NOW = """CREATE OR REPLACE FUNCTION alkstore.now() RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE
AS $$ SELECT (extract(epoch FROM pg_catalog.statement_timestamp()) * 1000000)::bigint + {} $$"""


@pytest.fixture
async def engine(dsn: str) -> AsyncIterator[PgEngine]:
    async with opened(dsn) as engine:
        yield engine


@pytest.fixture
async def outsider(dsn: str, engine: PgEngine) -> AsyncIterator[Outsider]:
    async with outside(dsn) as found:
        yield found


async def step(outsider: Outsider, microseconds: int) -> int:
    """Set the server's clock by so much, and give what it says."""
    await outsider.connection.execute(NOW.format(microseconds))
    return time.time_ns() // 1_000 + microseconds


@pytest.mark.parametrize("by", [-HOUR, HOUR])
async def test_who_takes_a_lock_learns_that_the_servers_clock_was_set(
    engine: PgEngine, outsider: Outsider, by: int
) -> None:
    now = await step(outsider, by)
    await engine.take_lock("nightly", WINDOW)
    assert abs(engine.clock.now() - now) < WINDOW


async def test_who_renews_a_lock_learns_that_the_servers_clock_was_set(
    engine: PgEngine, outsider: Outsider
) -> None:
    taken = await engine.take_lock("nightly", WINDOW)
    assert taken.fence is not None
    now = await step(outsider, -HOUR)
    end = await engine.renew_lock("nightly", taken.fence, WINDOW)
    assert end is not None
    assert end > engine.clock.now()
    assert abs(engine.clock.now() - now) < WINDOW


async def test_who_renews_a_claim_learns_that_the_servers_clock_was_set(
    engine: PgEngine, outsider: Outsider
) -> None:
    await engine.insert_jobs([job()])
    (claimed,) = (await engine.claim_jobs("q", ["w"])).jobs
    assert claimed.token is not None
    now = await step(outsider, -HOUR)
    (deadline,) = await engine.settle_jobs([Heartbeat("q", claimed.id, claimed.token, WINDOW)])
    assert deadline is not None
    assert deadline > engine.clock.now()
    assert abs(engine.clock.now() - now) < WINDOW


async def test_an_end_at_the_last_instant_of_the_calendar_tells_no_time(engine: PgEngine) -> None:
    now = time.time_ns() // 1_000
    await engine.take_lock("for ever", 2**63 - 1)
    assert abs(engine.clock.now() - now) < WINDOW
