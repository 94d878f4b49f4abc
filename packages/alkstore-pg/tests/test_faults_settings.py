"""What a role's settings and privileges, a small pool and a standby do to every operation (DUR-05)."""

import asyncio
from collections.abc import Iterator

import pytest
from broken_network import PATIENCE, backends, begun, everything_locked, gone, outside, trying
from every_operation import OPERATIONS, RUNNERS

from alkstore import DatabaseError
from alkstore_pg.contract_dsn import database, on_database
from alkstore_pg.contract_proxy import Proxy
from alkstore_pg.contract_server import Server, available
from alkstore_pg.store import PgStore

ROLE = "role of test faults"

WITHOUT_TABLES = ("Store.notify", "Store.listen")

ON_A_LINK = (*WITHOUT_TABLES, "Queue.enqueue", "Queue.enqueue_batch", "Outbox.enqueue")


@pytest.fixture
def role_dsn(server: Server, dsn: str) -> Iterator[str]:
    """The database as a role that may do everything, until it is told otherwise."""
    server.execute(f'CREATE ROLE "{ROLE}" LOGIN SUPERUSER')
    yield on_database(dsn, database(dsn), role=ROLE)
    server.execute(f'REASSIGN OWNED BY "{ROLE}" TO CURRENT_USER', database=database(dsn))
    server.execute(f'DROP OWNED BY "{ROLE}"', database=database(dsn))
    server.execute(f'DROP ROLE "{ROLE}"')


# ---------------------------------------------------------------- settings of the role


async def test_a_statement_timeout_ends_what_waits_and_nothing_of_it_is_done(
    server: Server, dsn: str, role_dsn: str
) -> None:
    server.execute(f"ALTER ROLE \"{ROLE}\" SET statement_timeout = '150ms'")
    async with trying(dsn, role_dsn) as trials, outside(dsn) as locker:
        things = {name: await trials.things(name) for name in OPERATIONS}
        async with everything_locked(locker):
            running = {name: begun(name, each) for name, each in things.items()}
            _ = await asyncio.wait(running.values(), timeout=PATIENCE)
        for name, each in things.items():
            assert await trials.end_of(name, each, running[name]) is None
            error = running[name].exception()
            if name not in (*WITHOUT_TABLES, *RUNNERS):
                assert isinstance(error, DatabaseError), name
                assert (error.outcome_unknown, "statement_timeout" in str(error)) == (False, True), name
        assert await trials.store.queue("q").enqueue(1)


@pytest.mark.parametrize("setting", ["idle_in_transaction_session_timeout", "transaction_timeout"])
async def test_a_transaction_that_the_server_has_ended_says_so(
    server: Server, dsn: str, role_dsn: str, setting: str
) -> None:
    if setting == "transaction_timeout" and server.version < 17:
        pytest.skip("a setting of PostgreSQL 17")
    async with PgStore(dsn):
        server.execute(f"ALTER ROLE \"{ROLE}\" SET {setting} = '30ms'")
    async with PgStore(role_dsn) as store, outside(dsn) as outsider:
        await store.queue("q").enqueue("before")

        async def work() -> None:
            async with store.begin_tx() as tx:
                await tx.enqueue("q", "within")
                await gone(outsider, await backends(outsider, "state = 'idle in transaction'"))

        with pytest.raises(DatabaseError):
            await work()
        assert [job.payload for job in await store.queue("q").list()] == ["before"]


async def test_a_session_that_was_idle_for_too_long_costs_no_operation(
    server: Server, dsn: str, role_dsn: str
) -> None:
    async with PgStore(dsn):
        server.execute(f"ALTER ROLE \"{ROLE}\" SET idle_session_timeout = '12ms'")
    async with PgStore(role_dsn, listen=False) as store:
        queue = store.queue("q")
        for number in range(25):
            # Each pause ends a little later, some in the very moment in which the server takes leave.
            await asyncio.sleep(0.011 + number / 12_000)
            await queue.enqueue(number)
            handle = await queue.claim_one()
            assert handle is not None
            assert (handle.job.payload, await handle.ack()) == (number, True)
            async with store.begin_tx() as tx:
                await tx.publish("s", number)
        events = [event.payload for event in await store.stream("s").read_since(0)]
        assert events == list(range(25))


async def test_a_role_that_lost_its_privileges_does_nothing_and_goes_on_once_it_has_them(
    server: Server, dsn: str, role_dsn: str
) -> None:
    where = database(dsn)
    async with trying(dsn, role_dsn) as trials:
        assert await trials.store.queues() == []
        server.execute(f'ALTER ROLE "{ROLE}" NOSUPERUSER')
        server.execute(f'GRANT USAGE ON SCHEMA alkstore TO "{ROLE}"', database=where)
        errors = await trials.none_is_unknown([name for name in OPERATIONS if name not in RUNNERS])
        for name, error in errors.items():
            if name not in WITHOUT_TABLES:
                assert isinstance(error, DatabaseError), name
                assert "lacks a privilege" in str(error), name
        for kind in ("TABLES", "SEQUENCES"):
            server.execute(f'GRANT ALL ON ALL {kind} IN SCHEMA alkstore TO "{ROLE}"', database=where)
        await trials.all_happen()


# ---------------------------------------------------------------- a small pool


async def test_where_all_connections_are_lent_no_other_transaction_begins_until_one_ends(dsn: str) -> None:
    async with trying(dsn, pool_size=1, wait_timeout=0.3) as trials:
        tx = await trials.store.begin_tx()
        errors = await trials.none_is_unknown([name for name in OPERATIONS if name not in RUNNERS])
        refused = {name: str(error) for name, error in errors.items() if error is not None}
        assert refused.keys() >= {"Store.begin_tx", "Tx", "Tx.rollback"}
        assert [text for text in refused.values() if "no connection was free" not in text] == []
        assert "raise pool_size, or end transactions sooner" in refused["Tx"]
        await tx.rollback()
        await trials.all_happen()


# ---------------------------------------------------------------- a standby


@pytest.fixture
def standby(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Server]]:
    if (advice := available(own=True)) is not None:
        pytest.skip(advice)
    with (
        Server.start(own=True, settings={"wal_level": "replica"}) as primary,
        Server.standby_of(primary) as standby,
    ):
        yield primary, standby


async def replayed(primary: Server, standby: Server) -> None:
    """Wait until the standby has all that the primary has."""
    (position,) = primary.execute("SELECT pg_current_wal_lsn()::text")[0]
    async with outside(standby.dsn) as looking, asyncio.timeout(PATIENCE):
        while not await looking.fetchval("SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", position):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_a_standby_takes_no_writes_and_a_store_that_meets_one_goes_on_when_it_is_the_primary(
    standby: tuple[Server, Server],
) -> None:
    primary, other = standby
    async with Proxy(primary.dsn) as proxy, PgStore(proxy.dsn(), wait_timeout=2) as store:
        await store.queue("q").enqueue("before")
        await store.stream("s").publish("before")
        await replayed(primary, other)
        proxy.lead_to(other.dsn)
        proxy.cut()
        with pytest.raises(DatabaseError, match="it is a standby"):
            _ = await PgStore(other.dsn)
        for write in (
            lambda: store.queue("q").enqueue("never"),
            lambda: store.queue("q").claim(),
            lambda: store.stream("s").publish("never"),
            lambda: store.try_lock("l", 60),
            lambda: store.schedule("s", "@every 1s", "q", None),
            lambda: store.notify("c"),
        ):
            with pytest.raises(DatabaseError, match=r"recovery|read-only|standby") as caught:
                await write()
            assert not caught.value.outcome_unknown
        assert [job.payload for job in await store.queue("q").list()] == ["before"]

        other.execute("SELECT pg_promote()")

        await store.queue("q").enqueue("after")
        await store.stream("s").publish("after")
        assert [event.payload for event in await store.stream("s").read_since(0)] == ["before", "after"]
        async with store.begin_tx() as tx:
            await tx.publish("s", "at last")
        assert await store.try_lock("l", 60)
