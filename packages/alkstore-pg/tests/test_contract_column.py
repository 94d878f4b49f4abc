"""The column does to the server what it says: a factory that breaks nothing would make every row about faults pass."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, aclosing
from datetime import timedelta
from typing import cast

import asyncpg
import pytest
from hanging import HUNG

from alkstore import DatabaseError, SchemaMismatch, Store
from alkstore_contract_suite.factory import Backend, Crash, Fault, Missing, Unsupported
from alkstore_pg.contract import BOUNCER, DIRECT, PgColumn
from alkstore_pg.contract_factory import PgFactory
from alkstore_pg.contract_store import SuiteStore

REFUSED = {Fault.STORAGE_FULL: "53100", Fault.READ_ONLY: "25006", Fault.COMMIT_FAILS: "23514"}

TRIGGERS = "SELECT count(*) FROM pg_trigger WHERE tgname = 'broken'"


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    column = PgColumn(DIRECT)
    if isinstance(found := column.available(), Missing):
        pytest.skip(found.advice)
    manager = column.backend("test")
    with asyncio.Runner() as runner:
        yield runner.run(manager.__aenter__())
        runner.run(manager.__aexit__(None, None, None))


@pytest.fixture
async def factory(backend: Backend) -> AsyncIterator[PgFactory]:
    async with backend.scope("case") as made:
        assert isinstance(made, PgFactory)
        yield made


@pytest.fixture
async def store(factory: PgFactory) -> AsyncIterator[Store]:
    opened = await factory.open()
    yield opened
    await opened.aclose()


def fault(factory: PgFactory, store: Store, kind: Fault) -> AbstractAsyncContextManager[None]:
    found = factory.fault(kind, store)
    assert not isinstance(found, Unsupported)
    return found


def jobs(factory: PgFactory) -> int:
    schema = factory.place.schema.replace('"', '""')
    return int(factory.outsider.run(f'SELECT count(*) FROM "{schema}".job')[0][0])


async def test_the_report_names_the_server_and_what_stands_before_it(factory: PgFactory) -> None:
    (row,) = factory.outsider.run("SELECT current_setting('server_version_num')::int4 / 10000")
    version = f"PostgreSQL {row[0]}"

    assert [PgColumn(kind).storage() for kind in (DIRECT, BOUNCER)] == [version, f"{version}, PgBouncer"]


@pytest.mark.parametrize("kind", list(Crash))
async def test_a_crash_leaves_no_session_and_nothing_of_an_open_transaction(
    factory: PgFactory, store: Store, kind: Crash
) -> None:
    await store.queue("q").enqueue("committed")
    tx = await store.begin_tx()
    await tx.enqueue("q", "not committed")
    async with aclosing(await factory.open()) as other:
        theirs, ended = ({*cast(SuiteStore, each).cord.pids()} for each in (other, store))
        await factory.crash(store, kind)

        left = {*factory.outsider.sessions()}
        assert [job.payload for job in await other.queue("q").list()] == ["committed"]
    assert theirs <= left
    assert not ended & left


async def test_what_a_closed_store_leaves_is_the_next_ones_unless_a_fault_came_between(
    factory: PgFactory, store: Store
) -> None:
    await (await store.begin_tx()).rollback()
    pids = {*cast(SuiteStore, store).cord.pids()}
    async with aclosing(await factory.reopen(store)) as other:
        assert {*cast(SuiteStore, other).cord.pids()} < pids
        async with fault(factory, other, Fault.COMMIT_FAILS):
            await other.aclose()
    async with aclosing(await factory.open()) as last:
        assert not pids & {*cast(SuiteStore, last).cord.pids()}


@pytest.mark.parametrize("kind", list(REFUSED))
async def test_a_fault_stops_writes_for_its_block_and_no_longer(
    factory: PgFactory, store: Store, kind: Fault
) -> None:
    async with fault(factory, store, kind):
        with pytest.raises(DatabaseError) as caught:
            await store.queue("q").enqueue("x" * 100_000)

    cause = caught.value.__cause__
    assert isinstance(cause, asyncpg.PostgresError)
    assert cause.sqlstate == REFUSED[kind]
    await store.queue("q").enqueue("x" * 100_000)
    assert jobs(factory) == 1
    assert factory.outsider.run(TRIGGERS) == [(0,)]


async def test_a_commit_that_is_to_fail_fails_no_sooner(factory: PgFactory, store: Store) -> None:
    async with fault(factory, store, Fault.COMMIT_FAILS):
        tx = await store.begin_tx()
        await tx.enqueue("q", 1)
        await tx.publish("s", 1)
        with pytest.raises(DatabaseError):
            await tx.commit()

    assert jobs(factory) == 0


async def test_a_server_that_is_away_is_away_for_reads_and_writes(factory: PgFactory, store: Store) -> None:
    await store.queue("q").enqueue(1)

    async with fault(factory, store, Fault.STORAGE_AWAY):
        await factory.advance(60)
        for call in (store.queue("q").enqueue(2), store.queue("q").list()):
            with pytest.raises(DatabaseError):
                await call

    assert [job.payload for job in await store.queue("q").list()] == [1]
    job = await store.queue("q").get_job(await store.queue("q").enqueue(3))
    assert job is not None
    assert job.created_at == await factory.now()


async def test_a_server_that_restarts_is_another_process(factory: PgFactory, store: Store) -> None:
    since = factory.outsider.run("SELECT pg_postmaster_start_time()")

    async with fault(factory, store, Fault.SERVER_RESTART):
        assert factory.outsider.run("SELECT pg_postmaster_start_time()") != since


async def test_a_listener_that_is_lost_stays_lost_to_the_end_of_the_block(
    factory: PgFactory, store: Store
) -> None:
    cord = cast(SuiteStore, store).cord
    async with store.listen("c") as wakes:
        async with fault(factory, store, Fault.LISTENER_LOST):
            await asyncio.sleep(0.1)  # two attempts to connect
            assert cord.listener is None
        async with asyncio.timeout(HUNG):
            assert await wakes.recv() is not None
        assert cord.listener is not None


async def test_a_wake_that_is_lost_never_comes(factory: PgFactory, store: Store) -> None:
    async with store.listen("c") as wakes:
        async with fault(factory, store, Fault.WAKES_LOST):
            await store.notify("c")
            await factory.settle()
            assert await wakes.try_recv() is None
        await store.notify("c")
        async with asyncio.timeout(HUNG):
            assert await wakes.recv() is not None


async def test_a_silent_listener_has_a_connection_on_which_nothing_comes(
    factory: PgFactory, store: Store
) -> None:
    cord = cast(SuiteStore, store).cord
    async with store.listen("c") as wakes, fault(factory, store, Fault.LISTENER_SILENT):
        silent = cord.listener
        await store.notify("c")
        await asyncio.sleep(0.1)
        assert cord.listener is silent is not None
        assert await wakes.try_recv() is None


async def test_time_is_the_servers_and_moves_once(factory: PgFactory, store: Store) -> None:
    before = await factory.now()
    child = factory.remote()("p1")
    await factory.advance(3_600.000001)
    await child.advance((await factory.now() - await child.now()).total_seconds())

    job = await store.queue("q").get_job(await store.queue("q").enqueue(1))

    assert job is not None
    assert job.created_at - before == timedelta(seconds=3_600, microseconds=1)


@pytest.mark.parametrize("newer", [True, False])
async def test_a_foreign_schema_is_a_newer_one_or_the_oldest(
    factory: PgFactory, store: Store, newer: bool
) -> None:
    await store.queue("q").enqueue(1)
    await factory.foreign_schema(newer)

    if newer:
        with pytest.raises(SchemaMismatch):
            _ = await factory.open()
    else:
        async with aclosing(await factory.open()) as migrated:
            assert [job.payload for job in await migrated.queue("q").list()] == [1]


async def test_blank_storage_has_no_schema_and_gets_the_suites_clock(factory: PgFactory) -> None:
    await factory.blank()
    await factory.advance(5)

    async with aclosing(await factory.open()) as store:
        job = await store.queue("q").get_job(await store.queue("q").enqueue(1))

    assert job is not None
    assert job.created_at == await factory.now()


async def test_a_scope_begins_with_what_the_one_before_did_not_leave(backend: Backend) -> None:
    async with backend.scope("one") as first:
        for schema in ({}, {"schema": "another"}):
            async with aclosing(await first.open_with(**schema)) as store:
                await store.queue("q").enqueue_batch(["x" * 10_000] * 300)
                await store.stream("s").publish(1)
        await first.advance(60)
        await first.blank()

    async with backend.scope("two") as second:
        assert isinstance(second, PgFactory)
        assert await second.footprint() == 0
        assert second.outsider.strangers(second.place.schema) == []
        assert await second.now() < await first.now()


async def test_a_copy_is_on_another_server_and_lives_its_own_life(factory: PgFactory, store: Store) -> None:
    await factory.advance(60)
    await store.queue("q").enqueue(1)

    copy = await factory.dump_restore()

    assert isinstance(copy, PgFactory)
    async with aclosing(await copy.open()) as there:
        job = await there.queue("q").get_job(await there.queue("q").enqueue(2))
        assert job is not None
        assert job.created_at == await factory.now()
    since = "SELECT pg_postmaster_start_time()"
    assert factory.outsider.run(since) != copy.outsider.run(since)
    assert jobs(factory) == 1


async def test_an_event_of_no_stream_is_not_sound(factory: PgFactory, store: Store) -> None:
    await store.stream("s").publish(1)
    assert await factory.sound() is None
    schema = factory.place.schema.replace('"', '""')
    factory.outsider.run(f'DELETE FROM "{schema}".stream')

    assert await factory.sound() == "1 events of no stream"


async def test_an_alteration_changes_every_table(factory: PgFactory, store: Store) -> None:
    await factory.alter()

    added = factory.outsider.run(
        "SELECT count(*) FROM information_schema.columns WHERE column_name = 'added_by_the_administrator'"
    )
    tables = factory.outsider.run(
        "SELECT count(*) FROM information_schema.tables WHERE table_schema = $1 AND table_name <> 'migration'",
        factory.place.schema,
    )
    assert added == tables
