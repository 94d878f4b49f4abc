"""What a caller reads of the driver's errors: what to do, in our words, and nothing that is not to be had here."""

from collections.abc import AsyncIterator

import asyncpg
import pytest
from pg_engines import driver_of, job, opened

from alkstore.errors import DatabaseError
from alkstore_pg.engine import PgEngine


@pytest.fixture
async def engine(dsn: str) -> AsyncIterator[PgEngine]:
    async with opened(dsn) as engine:
        yield engine


async def test_a_statement_that_was_forgotten_is_told_of_in_one_line(engine: PgEngine) -> None:
    tx = await engine.begin()
    await tx.insert_jobs([job()])
    await driver_of(tx).execute("DEALLOCATE ALL")

    with pytest.raises(DatabaseError) as caught:
        await tx.insert_jobs([job()])

    assert "\n" in str(caught.value.__cause__), "the driver advises"
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith("where statement_cache_size must be 0")


async def test_a_transaction_that_was_begun_read_only_is_not_taken_for_a_standby_alone(
    engine: PgEngine, dsn: str
) -> None:
    connection = await asyncpg.connect(dsn)
    async with connection.transaction(readonly=True):
        tx = await engine.begin(connection)
        with pytest.raises(
            DatabaseError, match="takes no writes: the transaction was begun read only, or all"
        ):
            await tx.insert_jobs([job()])
    await connection.close()
