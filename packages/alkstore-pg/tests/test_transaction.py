"""Transactions of the store's own, with the application's own SQL beside them, and others that they wait for."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import asyncpg
import pytest
from hanging import HUNG
from pg_engines import Outsider, driver_of, event, free_connections, job, opened, outside, until

from alkstore.engine import Ack, EngineTransaction, JobFilter, NewWake, OffsetSave, Signal, Topic, TopicKind
from alkstore.errors import Closed, DatabaseError, InvalidArgument
from alkstore_pg.engine import PgEngine

BUSINESS = "CREATE TABLE business (key text PRIMARY KEY, value text)"


@pytest.fixture
async def engine(dsn: str) -> AsyncIterator[PgEngine]:
    async with opened(dsn) as engine:
        yield engine


@pytest.fixture
async def outsider(dsn: str, engine: PgEngine) -> AsyncIterator[Outsider]:
    async with outside(dsn) as outsider:
        await outsider.connection.execute(BUSINESS)
        yield outsider


# ---------------------------------------------------------------- all of it, or none of it


async def test_a_transaction_lands_whole_with_its_commit_or_leaves_no_trace(
    engine: PgEngine, outsider: Outsider
) -> None:
    for keep in (False, True):
        await engine.insert_jobs([job(b"claimed", "claims")])
        claimed = (await engine.claim_jobs("claims", ["w"])).jobs[0]
        tx = await engine.begin()
        assert len(await tx.insert_jobs([job(b"1"), job(b"2")])) == 2
        await tx.append_events([event(b"1"), event(b"2")])
        await driver_of(tx).execute("INSERT INTO business VALUES ('a', 'b')")
        assert await tx.settle_jobs([Ack("claims", claimed.id, claimed.token or 0)]) != [None]
        assert await tx.save_offset("s", "c", 7, None) == OffsetSave(0, True)
        assert [found.payload for found in await tx.find_jobs("q", JobFilter())] == [b"1", b"2"]
        assert [found.payload for found in await tx.read_events("s", 0, 10)] == [b"1", b"2"]
        assert await tx.read_offset("s", "c", hold=False) == 7
        assert await outsider.jobs() == [b"claimed"]
        await (tx.commit() if keep else tx.rollback())

        assert await outsider.jobs() == ([b"1", b"2"] if keep else [b"claimed"])
        assert await outsider.events() == ([b"1", b"2"] if keep else [])
        assert await outsider.connection.fetchval("SELECT count(*) FROM business") == keep
        assert await engine.read_offsets("s") == ({"c": 7} if keep else {})
        assert not tx.is_open
        with pytest.raises(Closed):
            await tx.insert_jobs([job()])
        with pytest.raises(Closed):
            await tx.commit()
        await tx.rollback()
        if not keep:
            assert await engine.settle_jobs([Ack("claims", claimed.id, claimed.token or 0)]) != [None]

    assert await free_connections(engine) == 4


async def test_wakes_come_with_the_commit_alone(engine: PgEngine) -> None:
    topics = [Topic(TopicKind.QUEUE, "q"), Topic(TopicKind.STREAM, "s"), Topic(TopicKind.CHANNEL, "c")]
    watches = [await engine.watch(topic) for topic in topics]
    for keep in (False, True):
        tx = await engine.begin()
        await tx.insert_jobs([job()])
        await tx.append_events([event()])
        await tx.notify([NewWake("c", None)])
        assert [watch.poll() for watch in watches] == [None, None, None]
        await (tx.commit() if keep else tx.rollback())
        await engine.wakes.hear()

        # A rollback frees the readers that it held back.
        wanted = [Signal.WOKEN, Signal.WOKEN, Signal.WOKEN] if keep else [None, Signal.WOKEN, None]
        assert [watch.poll() for watch in watches] == wanted


async def test_other_stores_are_told_of_a_rollback_that_held_their_readers_back(
    engine: PgEngine, dsn: str
) -> None:
    async with opened(dsn) as other:
        await engine.append_events([event(b"before")])
        watch = await other.watch(Topic(TopicKind.STREAM, "s"))
        tx = await engine.begin()
        await tx.append_events([event(b"lost")])
        await engine.append_events([event(b"after")])
        await engine.wakes.hear()
        await other.wakes.hear()
        watch.poll()
        assert [found.payload for found in await other.read_events("s", 0, 10)] == [b"before"]

        await tx.rollback()

        async with asyncio.timeout(HUNG):
            await watch.wait()
        assert [found.payload for found in await other.read_events("s", 0, 10)] == [b"before", b"after"]


# ---------------------------------------------------------------- the application's own SQL


@pytest.mark.parametrize("word", ["COMMIT", "ROLLBACK"])
async def test_an_end_that_the_application_sends_itself_ends_it_for_good(
    engine: PgEngine, outsider: Outsider, word: str
) -> None:
    tx = await engine.begin()
    await tx.insert_jobs([job()])
    driver = driver_of(tx)
    await driver.execute(word)
    assert not tx.is_open
    await driver.execute("BEGIN")

    with pytest.raises(Closed):
        await tx.insert_jobs([job()])
    tx.abandon()

    await until(lambda: free_connections(engine), 4)
    assert await outsider.jobs() == ([b"1"] if word == "COMMIT" else [])
    assert await outsider.states() == []


@pytest.mark.parametrize("word", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("method", ["execute", "fetch", "fetchrow", "fetchval"])
async def test_an_end_is_not_hidden_by_what_the_application_begins_at_once(
    engine: PgEngine, outsider: Outsider, method: str, word: str
) -> None:
    tx = await engine.begin()
    await tx.insert_jobs([job()])
    driver = driver_of(tx)
    await getattr(driver, method)(word)
    await driver.execute("BEGIN")

    with pytest.raises(Closed):
        await tx.insert_jobs([job()])
    tx.abandon()

    await until(lambda: free_connections(engine), 4)
    assert await outsider.jobs() == ([b"1"] if word == "COMMIT" else [])
    assert await outsider.states() == []


async def test_a_commit_of_the_applications_own_wakes_whom_it_concerns(engine: PgEngine) -> None:
    watch = await engine.watch(Topic(TopicKind.QUEUE, "q"))
    tx = await engine.begin()
    await tx.insert_jobs([job()])
    await driver_of(tx).execute("COMMIT")
    tx.abandon()

    async with asyncio.timeout(HUNG):
        assert await watch.wait() is Signal.WOKEN


async def test_a_transaction_of_the_drivers_own_is_a_savepoint(engine: PgEngine, outsider: Outsider) -> None:
    tx = await engine.begin()
    driver = driver_of(tx)
    await tx.insert_jobs([job(b"before")])
    with suppress(KeyError):
        async with driver.transaction():
            await tx.insert_jobs([job(b"lost")])
            await tx.append_events([event(b"lost")])
            raise KeyError
    with suppress(asyncpg.UniqueViolationError):
        async with driver.transaction():
            await driver.execute("INSERT INTO business VALUES ('a', 'b'), ('a', 'c')")
    await tx.append_events([event(b"after")])
    await tx.commit()

    assert (await outsider.jobs(), await outsider.events()) == ([b"before"], [b"after"])


async def test_a_commit_of_what_the_applications_sql_has_spoilt_is_an_error(
    engine: PgEngine, outsider: Outsider
) -> None:
    tx = await engine.begin()
    await tx.insert_jobs([job()])
    with pytest.raises(asyncpg.UniqueViolationError):
        await driver_of(tx).execute("INSERT INTO business VALUES ('a', 'b'), ('a', 'c')")

    with pytest.raises(DatabaseError, match="has failed before") as raised:
        await tx.commit()

    assert isinstance(raised.value.__cause__, asyncpg.InFailedSQLTransactionError)
    assert not raised.value.outcome_unknown
    assert not tx.is_open
    assert await outsider.jobs() == []
    assert await free_connections(engine) == 4


async def test_a_statement_after_the_applications_failed_one_ends_it(
    engine: PgEngine, outsider: Outsider
) -> None:
    tx = await engine.begin()
    with pytest.raises(asyncpg.UniqueViolationError):
        await driver_of(tx).execute("INSERT INTO business VALUES ('a', 'b'), ('a', 'c')")

    with pytest.raises(DatabaseError, match="has failed before"):
        await tx.insert_jobs([job()])

    assert not tx.is_open
    assert await outsider.states() == []


async def test_a_constraint_that_is_looked_at_in_the_commit_leaves_nothing(
    engine: PgEngine, outsider: Outsider
) -> None:
    await outsider.connection.execute(
        "CREATE TABLE part (key text REFERENCES business DEFERRABLE INITIALLY DEFERRED)"
    )
    tx = await engine.begin()
    await tx.insert_jobs([job()])
    await driver_of(tx).execute("INSERT INTO part VALUES ('nowhere')")

    with pytest.raises(DatabaseError, match="foreign key") as raised:
        await tx.commit()

    assert not raised.value.outcome_unknown
    assert await outsider.jobs() == []
    assert await free_connections(engine) == 4


async def test_what_the_application_set_for_its_session_is_gone_with_the_transaction(
    engine: PgEngine, dsn: str
) -> None:
    async with opened(dsn, pool_size=1) as engine:
        tx = await engine.begin()
        await driver_of(tx).execute("SET search_path = nowhere; SELECT pg_advisory_lock(7)")
        await tx.commit()
        tx = await engine.begin()

        assert await driver_of(tx).fetchval("SHOW search_path") != "nowhere"
        assert await driver_of(tx).fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0
        await tx.rollback()


async def test_the_applications_connection_is_of_no_use_after_the_end(engine: PgEngine) -> None:
    tx = await engine.begin()
    driver = driver_of(tx)
    statement = await driver.prepare("SELECT 1")
    await tx.commit()

    with pytest.raises(asyncpg.InterfaceError):
        await driver.execute("SELECT 1")
    with pytest.raises(asyncpg.InterfaceError, match="released"):
        await statement.fetch()
    with pytest.raises(Closed):
        _ = tx.connection


async def test_a_connection_that_is_in_use_refuses_an_operation_and_the_transaction_goes_on(
    engine: PgEngine, outsider: Outsider
) -> None:
    tx = await engine.begin()
    busy = asyncio.ensure_future(driver_of(tx).execute("SELECT pg_sleep(0.2)"))
    await asyncio.sleep(0)
    with pytest.raises(DatabaseError, match="in progress"):
        await tx.insert_jobs([job(b"no")])
    await busy
    await tx.insert_jobs([job(b"yes")])
    await tx.commit()

    assert await outsider.jobs() == [b"yes"]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_streams_are_not_read_in_another_isolation_level(engine: PgEngine, level: str) -> None:
    await engine.append_events([event()])
    tx = await engine.begin()
    await driver_of(tx).execute(f"SET TRANSACTION ISOLATION LEVEL {level}")

    with pytest.raises(InvalidArgument, match=f"this one is {level}"):
        await tx.read_events("s", 0, 10)
    with pytest.raises(InvalidArgument, match=f"this one is {level}"):
        await tx.read_offset("s", "c", hold=True)

    await tx.append_events([event()])
    await tx.commit()
    assert len(await engine.read_events("s", 0, 10)) == 2


# ---------------------------------------------------------------- waiting for others


async def test_what_waits_for_another_ends_within_the_timeout_and_is_rolled_back(
    dsn: str, engine: PgEngine, outsider: Outsider
) -> None:
    async with opened(dsn, wait_timeout=0.1) as hasty:
        tx = await engine.begin()
        await tx.read_offset("s", "c", hold=True)
        other = await hasty.begin()
        await other.insert_jobs([job()])

        with pytest.raises(DatabaseError, match="wait_timeout") as raised:
            await other.save_offset("s", "c", 1, None)

        assert not raised.value.outcome_unknown
        assert not other.is_open
        await tx.save_offset("s", "c", 2, 0)
        await tx.commit()
        assert await outsider.jobs() == []
        assert await free_connections(hasty) == 4


async def test_a_deadlock_rolls_one_back_and_the_other_lands(engine: PgEngine, outsider: Outsider) -> None:
    ones = [await engine.begin(), await engine.begin()]
    for tx, mine in zip(ones, ("a", "b"), strict=True):
        await tx.save_offset(mine, "c", 1, None)

    async def cross(tx: EngineTransaction, name: str) -> None:
        await tx.save_offset(name, "c", 1, None)
        await tx.commit()

    ends = await asyncio.gather(cross(ones[0], "b"), cross(ones[1], "a"), return_exceptions=True)

    causes = [error.__cause__ for error in ends if isinstance(error, DatabaseError)]
    assert [type(cause) for cause in causes] == [asyncpg.DeadlockDetectedError]
    assert not any(tx.is_open for tx in ones)
    assert len(await engine.read_offsets("a")) == len(await engine.read_offsets("b")) == 1
    assert await free_connections(engine) == 4


async def test_a_store_of_one_connection_makes_streams_within_its_transaction(dsn: str) -> None:
    async with opened(dsn, pool_size=1) as engine, outside(dsn) as outsider:
        tx = await engine.begin()
        async with asyncio.timeout(HUNG):
            await tx.append_events([event(stream="new")])
            await tx.commit()

        assert await outsider.events() == [b"1"]


async def test_who_finds_no_free_connection_is_told_so(dsn: str) -> None:
    async with opened(dsn, pool_size=1, wait_timeout=0.1) as engine:
        tx = await engine.begin()
        with pytest.raises(DatabaseError, match="no connection was free"):
            await engine.begin()
        await tx.rollback()
        await (await engine.begin()).rollback()


# ---------------------------------------------------------------- what a commit costs


async def test_others_hear_of_each_of_two_transactions_in_a_row(dsn: str, engine: PgEngine) -> None:
    async with opened(dsn) as there:
        watch = await there.wakes.watch(Topic(TopicKind.QUEUE, "q"))
        for _ in range(2):
            tx = await engine.begin()
            await tx.insert_jobs([job()])
            await tx.commit()
            await engine.wakes.hear()
            await there.wakes.hear()

            assert watch.poll() is Signal.WOKEN
        watch.close()


async def test_a_commit_of_what_the_callers_own_sql_made_fail_says_that_nothing_landed(
    engine: PgEngine, outsider: Outsider
) -> None:
    tx = await engine.begin()
    await tx.insert_jobs([job()])
    with suppress(asyncpg.PostgresError):
        await driver_of(tx).execute("SELECT 1 / 0")

    with pytest.raises(DatabaseError, match="has failed before") as raised:
        await tx.commit()

    assert not raised.value.outcome_unknown
    assert await outsider.jobs() == []
    assert await free_connections(engine) == 4
    assert await outsider.states() == []


async def test_what_a_caller_left_in_the_session_is_undone_soon_after_the_commit(
    engine: PgEngine, outsider: Outsider
) -> None:
    tx = await engine.begin()
    await driver_of(tx).execute("SELECT pg_advisory_lock(7)")
    await tx.commit()

    async def is_held() -> bool:
        sql = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 7"
        return bool(await outsider.connection.fetchval(sql))

    await until(is_held, False)
