import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import asyncpg
import pytest
from hanging import HUNG
from timed import extended, pool_of

from alkstore import DatabaseError, SchemaMismatch
from alkstore.clock import ServerClock
from alkstore.migrations import Migration
from alkstore_pg.contract_server import Server
from alkstore_pg.errors import was_lost
from alkstore_pg.pool import Pool
from alkstore_pg.schema import MIGRATIONS, grants, look, migrate, pending, script
from alkstore_pg.session import Schema, Session
from alkstore_pg.store import PgStore, alkstore_engine
from alkstore_pg.surroundings import Options, prepare

LATEST = len(MIGRATIONS)

ALKSTORE = Schema("alkstore")


@pytest.fixture
async def pool(dsn: str) -> AsyncIterator[Pool]:
    async with pool_of(Options.checked(dsn)) as pool:
        yield pool


async def rows(pool: Pool, statement: str, *parameters: object) -> list[tuple[object, ...]]:
    async def send(on: Session) -> Sequence[Sequence[object]]:
        return await on.fetch(statement, *parameters)

    return [tuple(row) for row in await pool.run(send)]


async def bring(pool: Pool, known: Sequence[Migration] = MIGRATIONS, wait_timeout: float = 10.0) -> int:
    made = await migrate(pool, ALKSTORE, wait_timeout=wait_timeout, random=random.Random(1), known=known)
    return len(made)


async def opened(dsn: str, **options: Any) -> None:
    async with PgStore(dsn, **options) as store:
        await store.queue("mail").enqueue(1)


def step(number: int, *statements: str) -> Migration:
    return Migration(LATEST + number, f"step_{number}", "0" * 64, statements)


# ---------------------------------------------------------------- making it


async def test_ten_who_open_an_empty_database_at_once_make_its_schema_once(dsn: str, pool: Pool) -> None:
    async with asyncio.timeout(HUNG):
        await asyncio.gather(*(opened(dsn) for _ in range(10)))

    listed = await rows(pool, "SELECT version, name, checksum FROM {schema}.migration ORDER BY version")
    assert listed == [(one.version, one.name, one.checksum) for one in MIGRATIONS]
    assert await rows(pool, "SELECT count(*) FROM {schema}.job") == [(10,)]


async def test_a_schema_that_is_up_to_date_is_not_written_to(dsn: str, pool: Pool) -> None:
    await opened(dsn)
    before = await rows(pool, "SELECT xmin::text, * FROM {schema}.migration ORDER BY version")

    await opened(dsn)

    assert await rows(pool, "SELECT xmin::text, * FROM {schema}.migration ORDER BY version") == before


@pytest.mark.parametrize(
    "schema", ["Mixed Case", 'it\'s "q"\\', "{channel}{schema} %s", "é" * 20, "x" * 40, "select"]
)
async def test_any_name_of_a_schema_holds_everything(dsn: str, schema: str) -> None:
    async with PgStore(dsn, schema=schema) as store, PgStore(dsn, schema=f"{schema[:-1]}_") as other:
        queue, heard = store.queue("mail"), await store.listen("news")
        await queue.enqueue(1)
        async with store.begin_tx() as tx:
            await tx.publish("orders", {"id": 1})
            await tx.notify("news")
        async with asyncio.timeout(HUNG):
            assert await heard.recv() is not None

        assert await other.queue("mail").claim_one() is None
        assert await other.streams() == []
        handle = await queue.claim_one()
        assert handle is not None
        assert await handle.ack()
        await heard.aclose()


@pytest.mark.parametrize("path", ["''", "evil", "evil, public"])
async def test_no_search_path_changes_what_is_meant(dsn: str, pool: Pool, path: str) -> None:
    await rows(pool, "CREATE SCHEMA evil")
    await rows(pool, "CREATE TABLE evil.job (trap int)")
    await rows(pool, "CREATE TABLE evil.migration (trap int)")
    for name in ("now", "statement_timestamp"):
        await rows(
            pool,
            f"CREATE FUNCTION evil.{name}() RETURNS timestamptz LANGUAGE sql AS 'SELECT NULL::timestamptz WHERE 1 / 0 = 1'",
        )

    async with PgStore(extended(dsn, f"search_path={path}")) as store:
        await store.queue("mail").enqueue(1)
        assert await store.queue("mail").claim_one() is not None
        await store.stream("orders").publish(1)
        assert await store.try_lock("nightly", 10) is not None

    assert await rows(pool, "SELECT count(*) FROM evil.job") == [(0,)]


# ---------------------------------------------------------------- what stands in the way


async def test_a_newer_schema_is_a_mismatch_and_stays_untouched(dsn: str, pool: Pool) -> None:
    await opened(dsn)
    await rows(pool, "INSERT INTO {schema}.migration VALUES ($1, 'future', 'x', 0)", LATEST + 1)
    before = await rows(pool, "SELECT xmin::text, * FROM {schema}.migration ORDER BY version")

    with pytest.raises(SchemaMismatch) as caught:
        await opened(dsn)

    assert (caught.value.found, caught.value.known) == (LATEST + 1, LATEST)
    assert await rows(pool, "SELECT xmin::text, * FROM {schema}.migration ORDER BY version") == before


async def test_an_older_schema_is_brought_up_to_date_and_keeps_its_data(dsn: str, pool: Pool) -> None:
    await opened(dsn)

    assert await bring(pool, [*MIGRATIONS, step(1, "ALTER TABLE {schema}.job ADD COLUMN extra bigint")]) == 1

    assert await rows(pool, "SELECT count(*), count(extra) FROM {schema}.job") == [(1, 0)]


async def test_a_migration_that_fails_leaves_nothing_behind(pool: Pool) -> None:
    with pytest.raises(DatabaseError, match="division by zero"):
        await bring(pool, [*MIGRATIONS, step(1, "SELECT 1 / 0")])

    assert await rows(pool, "SELECT FROM pg_namespace WHERE nspname = 'alkstore'") == []
    assert await bring(pool) == LATEST


async def waiter(pool: Pool, kind: str) -> int:
    """Give the backend that waits for a lock, once there is one."""
    statement = "SELECT pid FROM pg_locks WHERE NOT granted AND locktype = $1"
    async with asyncio.timeout(HUNG):
        while not (found := await rows(pool, statement, kind)):
            pass
    return int(str(found[0][0]))


async def test_whoever_is_killed_in_the_middle_leaves_nothing_and_the_next_one_does_it(pool: Pool) -> None:
    await bring(pool)
    more = [
        *MIGRATIONS,
        step(1, "CREATE TABLE {schema}.more (n int)", "ALTER TABLE {schema}.job ADD COLUMN n int"),
    ]
    reader = await pool.lend()
    async with reader.connection.transaction():
        await reader.connection.fetch("SELECT FROM alkstore.job")
        task = asyncio.create_task(bring(pool, more))
        await rows(pool, "SELECT pg_terminate_backend($1)", await waiter(pool, "relation"))
        with pytest.raises(DatabaseError) as caught:
            await task
    pool.take_back(reader)

    assert caught.value.__cause__ is not None
    assert was_lost(caught.value.__cause__)
    assert await rows(pool, "SELECT to_regclass('alkstore.more')") == [(None,)]
    assert await bring(pool, more) == 1


async def test_a_session_that_found_nothing_learns_what_was_made_while_it_waited(
    dsn: str, pool: Pool
) -> None:
    found = await pool.run(lambda on: look(on, ALKSTORE))
    async with pool_of(Options.checked(dsn)) as own:
        maker = await own.lend()
        await maker.connection.execute(script(ALKSTORE, found, MIGRATIONS).removesuffix("COMMIT;\n\n"))
        task = asyncio.create_task(bring(pool))  # on the session that has looked
        await waiter(own, "advisory")
        await maker.connection.execute("COMMIT")
        own.take_back(maker)

    async with asyncio.timeout(HUNG):
        assert await task == 0


async def test_a_long_transaction_on_a_table_is_waited_for(pool: Pool) -> None:
    await bring(pool)
    more = [*MIGRATIONS, step(1, "ALTER TABLE {schema}.job ADD COLUMN extra bigint")]
    reader = await pool.lend()
    async with reader.connection.transaction():
        await reader.connection.fetch("SELECT FROM alkstore.job")
        task = asyncio.create_task(bring(pool, more))
        await waiter(pool, "relation")

    async with asyncio.timeout(HUNG):
        assert await task == 1
    pool.take_back(reader)


async def test_a_transaction_that_outlasts_wait_timeout_is_told_and_nothing_is_done(pool: Pool) -> None:
    await bring(pool)
    more = [
        *MIGRATIONS,
        step(1, "CREATE TABLE {schema}.more (n int)", "ALTER TABLE {schema}.job ADD COLUMN n int"),
    ]
    reader = await pool.lend()
    async with reader.connection.transaction():
        await reader.connection.fetch("SELECT FROM alkstore.job")

        with pytest.raises(DatabaseError, match="longer than wait_timeout") as caught:
            await bring(pool, more, wait_timeout=0.05)

    pool.take_back(reader)
    assert not caught.value.outcome_unknown
    assert await rows(pool, "SELECT to_regclass('alkstore.more')") == [(None,)]


async def test_a_store_that_may_not_migrate_says_what_is_lacking(dsn: str, pool: Pool) -> None:
    with pytest.raises(DatabaseError, match=f"is missing.*needs version {LATEST}.*run alkstore migrate$"):
        await opened(dsn, migrate=False)
    assert await rows(pool, "SELECT FROM pg_namespace WHERE nspname = 'alkstore'") == []

    await bring(pool)

    await opened(dsn, migrate=False)


# ---------------------------------------------------------------- people with other rights


async def test_the_script_does_what_opening_does(dsn: str, pool: Pool) -> None:
    schema = Schema("Job's")
    connection = await asyncpg.connect(dsn)

    async def text() -> str:
        found = await pool.run(lambda on: look(on, schema))
        async with pool_of(Options.checked(dsn, schema="Job's")) as own:
            return script(schema, found, await own.run(lambda on: pending(on, found)))

    await connection.execute(await text())
    await opened(dsn, schema="Job's", migrate=False)
    assert await text() == ""
    await connection.close()


@pytest.fixture
async def role(dsn: str, server: Server) -> AsyncIterator[str]:
    """The DSN of a role that may only connect; its name needs quotes."""
    database = dsn.partition("?")[0].rpartition("/")[2]
    server.execute("CREATE ROLE \"Shop 'n' Go\" LOGIN")
    yield server.dsn_of(database, role="Shop 'n' Go")
    for name in (database, "postgres"):
        server.execute("DROP OWNED BY \"Shop 'n' Go\"", database=name)
    server.execute("DROP ROLE \"Shop 'n' Go\"")


async def granted(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute(grants(ALKSTORE, "Shop 'n' Go"))
    await connection.close()


async def use_everything(dsn: str) -> None:
    async with PgStore(dsn) as store:
        queue, stream = store.queue("mail", max_attempts=1), store.stream("orders")
        first, second, _ = await queue.enqueue_batch([1, 2, 3])
        for outcome in ("ack", "fail", "release"):
            handle = await queue.claim_one()
            assert handle is not None
            assert await getattr(handle, outcome)()
        assert await queue.redrive(second) == 1
        assert await queue.cancel(first) is False
        await queue.sweep_expired()
        await queue.purge_dead(older_than=0)
        offset = await stream.publish(1)
        await stream.save_offset("reader", offset)
        async with store.begin_tx() as tx:
            await tx.enqueue(queue, 4)
            await tx.publish(stream, 2)
            await tx.save_offset(stream, "reader", offset + 1)
        assert await stream.trim_to(offset) == 1
        async with store.lock("nightly", ttl=10):
            pass
        await store.schedule("s", "@every 1s", queue, None)
        await store.tick_schedules()
        assert await store.unschedule("s")
        receiver = await store.listen("news")
        await store.notify("news")
        async with asyncio.timeout(HUNG):
            assert await receiver.recv() is not None
        await receiver.aclose()


async def test_a_role_without_ddl_uses_everything_that_it_was_granted(
    dsn: str, role: str, pool: Pool
) -> None:
    await bring(pool)
    await granted(dsn)

    await use_everything(role)

    assert await rows(pool, "SELECT has_schema_privilege($1, 'alkstore', 'CREATE')", "Shop 'n' Go") == [
        (False,)
    ]


async def test_what_later_migrations_make_is_the_roles_too(dsn: str, role: str, pool: Pool) -> None:
    await bring(pool)
    await granted(dsn)
    await bring(pool, [*MIGRATIONS, step(1, "CREATE TABLE {schema}.more AS SELECT 1 AS n")])

    connection = await asyncpg.connect(role)
    assert await connection.fetchval("UPDATE alkstore.more SET n = 2 RETURNING n") == 2
    await connection.close()


async def test_a_role_without_the_grants_is_told_what_it_lacks(dsn: str, role: str, pool: Pool) -> None:
    with pytest.raises(DatabaseError, match=r"permission denied for database .*lacks a privilege"):
        await opened(role)
    await bring(pool)
    with pytest.raises(DatabaseError, match=r"role \"Shop 'n' Go\" may not use schema 'alkstore'; grant"):
        await opened(role)
    await granted(dsn)
    await rows(pool, "REVOKE INSERT ON {schema}.event FROM \"Shop 'n' Go\"")
    with pytest.raises(DatabaseError, match="may not use table event of schema 'alkstore'"):
        await opened(role)


async def test_the_owner_of_an_empty_schema_needs_no_right_to_make_schemas(role: str, pool: Pool) -> None:
    await rows(pool, "CREATE SCHEMA {schema} AUTHORIZATION \"Shop 'n' Go\"")

    await use_everything(role)


async def test_opening_raises_the_offsets_above_what_is_stored(dsn: str, pool: Pool) -> None:
    async with PgStore(dsn) as store:
        first = await store.stream("orders").publish(1)
    await rows(pool, "SELECT setval({sequence}, 1, false)")

    async with PgStore(dsn) as store:
        assert await store.stream("orders").publish(2) > first


async def test_preparing_twice_on_one_pool_changes_nothing(dsn: str) -> None:
    options = Options.checked(dsn)
    async with pool_of(options) as pool:
        for _ in range(2):
            await prepare(pool, pool, options, ServerClock())


# ---------------------------------------------------------------- the command line


async def test_the_command_makes_a_schema_that_the_application_may_not_make(
    dsn: str, role: str, pool: Pool
) -> None:
    options: dict[str, object] = {"schema": "Job's"}
    hooks = alkstore_engine()
    assert hooks.migrate is not None
    assert hooks.migration_sql is not None
    connection = await asyncpg.connect(dsn)

    printed = await hooks.migration_sql(dsn, options, "Shop 'n' Go")
    assert await rows(pool, "SELECT FROM pg_namespace WHERE nspname = 'Job''s'") == []
    await connection.execute(printed)
    assert await hooks.migrate(dsn, options) == ()
    assert await hooks.migration_sql(role, options, None) == ""
    await opened(role, schema="Job's", migrate=False)

    assert len(await hooks.migrate(dsn, {"schema": "other"})) == LATEST
    await connection.close()
