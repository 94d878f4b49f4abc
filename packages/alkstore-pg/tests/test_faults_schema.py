"""Schemas that are made by many at once, cut short, altered, dropped and made again (DUR-03 to DUR-05)."""

import asyncio
import random
import subprocess
import sys
from contextlib import suppress

import pytest
from broken_network import PATIENCE, begun, outside, trying
from every_operation import OPERATIONS, RUNNERS

from alkstore import DatabaseError
from alkstore_pg.contract_proxy import Link, Proxy
from alkstore_pg.schema import MIGRATIONS
from alkstore_pg.store import PgStore

PROCESSES = 10

STRIDE = 4
"""Of so many statements of the migrations one is cut off in a run."""

# One interpreter that forks: the imports of ten would take as long as all the rest.
OPEN_AT_ONCE = """
import asyncio, os, sys, traceback
from alkstore_pg.store import PgStore

async def main():
    async with PgStore(sys.argv[1]) as store:
        await store.queue("q").enqueue(os.getpid())

def child():
    os.close(go)
    os.read(ready, 1)
    try:
        asyncio.run(main())
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)

ready, go = os.pipe()
children = [os.fork() or child() for _ in range(int(sys.argv[2]))]
os.close(go)
sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
"""

# ---------------------------------------------------------------- making it


async def test_ten_processes_that_open_an_empty_database_at_once_make_its_schema_once(dsn: str) -> None:
    command = [sys.executable, "-c", OPEN_AT_ONCE, dsn, str(PROCESSES)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    async with outside(dsn) as outsider:
        assert await outsider.fetchval("SELECT count(*) FROM alkstore.migration") == len(MIGRATIONS)
        assert await outsider.fetchval("SELECT count(DISTINCT payload) FROM alkstore.job") == PROCESSES


async def test_a_migration_that_is_cut_short_at_any_statement_leaves_nothing(dsn: str) -> None:
    wanted, sent = len(MIGRATIONS), 0

    def cuts(_: Link) -> bool:
        nonlocal sent
        sent += 1
        if sent == cut_at:
            proxy.cut()
        return sent >= cut_at

    async with Proxy(dsn) as proxy, outside(dsn) as outsider:
        # Each run takes other statements.
        for cut_at in range(random.randint(1, STRIDE), 1_000, STRIDE):  # noqa: B007  # `cuts` looks at it
            sent = 0
            proxy.swallow(direction="to_server", only=cuts)
            with suppress(DatabaseError):
                async with PgStore(proxy.dsn(), wait_timeout=1, listen=False):
                    pass
            proxy.swallow(False)
            if not await outsider.fetchval("SELECT to_regnamespace('alkstore') IS NULL"):
                break
        assert cut_at > sum(len(step.statements) for step in MIGRATIONS)
        assert await outsider.fetchval("SELECT count(*) FROM alkstore.migration") == wanted


# ---------------------------------------------------------------- altering it


ADD_COLUMNS = """
DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname = 'alkstore' LOOP
        EXECUTE format('ALTER TABLE %s ADD COLUMN added_%s bigint DEFAULT 7', name, {number});
    END LOOP;
END $$
"""


async def test_columns_added_and_indexes_built_anew_fail_nothing_not_even_in_an_open_transaction(
    dsn: str,
) -> None:
    async with trying(dsn, pool_size=2) as trials:
        await trials.all_happen()  # so that every statement is prepared
        tx, things = await trials.store.begin_tx(), await trials.things("Tx")

        await trials.outsider.execute(ADD_COLUMNS.format(number=1))
        await trials.outsider.execute("REINDEX SCHEMA CONCURRENTLY alkstore")

        name = things.name
        assert [event.payload for event in await tx.read_since(name, 0)] == ["one", "two"]
        assert len(await tx.read_from_consumer(name, "reader")) == 1
        assert await tx.get_job(name, things.ready) is not None
        await tx.ack(things.held)
        await tx.enqueue(name, "new")
        await tx.publish(name, "three")
        building = asyncio.ensure_future(_build_indexes_anew(dsn))
        await tx.enqueue(name, "newer")
        await tx.commit()
        async with asyncio.timeout(PATIENCE):
            await building
        await trials.all_happen()
        assert await trials.outsider.fetch("SELECT 1 FROM pg_index WHERE NOT indisvalid") == []


async def _build_indexes_anew(dsn: str) -> None:
    async with outside(dsn) as other:
        await other.execute("REINDEX SCHEMA CONCURRENTLY alkstore")


# ---------------------------------------------------------------- dropping it


async def test_a_schema_that_is_dropped_fails_everything_and_made_again_nothing(dsn: str) -> None:
    async with trying(dsn) as trials:
        await trials.all_happen()
        names = [name for name in OPERATIONS if name not in (*RUNNERS, "Store.notify", "Store.listen")]
        things = {name: await trials.things(name) for name in names}
        await trials.outsider.execute("DROP SCHEMA alkstore CASCADE")
        for name in names:
            with pytest.raises(DatabaseError, match="missing") as caught:
                await begun(name, things[name])
            assert not caught.value.outcome_unknown, name

        async with PgStore(dsn):
            pass

        await trials.all_happen()


async def test_a_stream_of_a_schema_that_was_made_again_unseen_is_no_other_one(dsn: str) -> None:
    async with PgStore(dsn) as store, outside(dsn) as outsider:
        for name in ("a", "b"):
            await store.stream(name).publish(name)
            await store.stream(name).save_offset("me", 1)
        await outsider.execute("DROP SCHEMA alkstore CASCADE")
        async with PgStore(dsn) as other:
            for name in ("b", "a"):
                await other.stream(name).publish(f"other {name}")

            for name in ("a", "b"):
                stream = store.stream(name)
                assert [event.payload for event in await stream.read_since(0)] == [f"other {name}"]
                offset = await stream.publish(name)
                assert await stream.head() == offset
                await stream.save_offset("me", offset)
                found = [event.payload for event in await other.stream(name).read_since(0)]
                assert found == [f"other {name}", name]
                assert await other.stream(name).consumers() == {"me": offset}
