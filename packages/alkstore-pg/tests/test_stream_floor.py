"""What a reader of a stream may see while transactions are open."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from hanging import HUNG
from streams import LAST, PATIENCE, Streams, streams

from alkstore_pg import stream
from alkstore_pg.contract_server import Server
from alkstore_pg.session import Schema
from alkstore_pg.stream import Page


@pytest.fixture(scope="module")
def database(server: Server) -> Iterator[str]:
    yield server.create_database("test_stream_floor")
    server.drop_database("test_stream_floor")


@pytest.fixture
async def world(database: str) -> AsyncIterator[Streams]:
    async with streams(database) as world:
        yield world


# ---------------------------------------------------------------- open transactions


async def test_an_open_transaction_holds_back_what_came_after_it(world: Streams) -> None:
    await world.publish("s")
    other = await world.session()
    async with other.connection.transaction():
        assert await world.publish("s", on=other) == [2]
        assert not (await world.page("s")).is_held_back
        assert await world.publish("s") == [3]

        page = await world.page("s")
        assert ([record.offset for record in page.events], page.is_held_back) == ([1], True)
        assert await world.head("s") == 1

    page = await world.page("s")
    assert ([record.offset for record in page.events], page.is_held_back) == ([1, 2, 3], False)
    assert await world.head("s") == 3


async def test_a_full_page_says_nothing_of_what_is_held_back(world: Streams) -> None:
    await world.publish("s", "s")
    other = await world.session()
    async with other.connection.transaction():
        await world.publish("s", on=other)
        await world.publish("s")

        key = await world.key("s")
        pages = [await stream.read(world.on, "s", key, after, 2) for after in (0, 1, 2, 3, LAST)]

    assert [page.is_held_back for page in pages] == [False, True, True, True, False]
    assert [len(page.events) for page in pages] == [2, 1, 0, 0, 0]


async def test_a_rollback_frees_what_it_held_back(world: Streams) -> None:
    other = await world.session()
    transaction = other.connection.transaction()
    await transaction.start()
    await world.publish("s", on=other)
    await world.publish("s")
    assert await world.seen("s") == []

    await transaction.rollback()

    assert await world.seen("s") == [2]


async def test_an_end_of_the_session_frees_what_it_held_back(world: Streams) -> None:
    other = await world.session()
    await other.connection.transaction().start()
    await world.publish("s", on=other)
    await world.publish("s")

    await other.connection.close()

    async with asyncio.timeout(HUNG):
        while await world.seen("s") != [2]:
            await world.sql("SELECT 1 FROM pg_sleep(0.001)")


async def test_the_oldest_of_the_open_transactions_decides(world: Streams) -> None:
    first, second = await world.session(), await world.session()
    async with second.connection.transaction():
        async with first.connection.transaction():
            await world.publish("s", on=first)
            await world.publish("s")
            await world.publish("s", on=second)
            await world.publish("s")
            assert await world.seen("s") == []
        assert await world.seen("s") == [1, 2]
    assert await world.seen("s") == [1, 2, 3, 4]


async def test_streams_and_schemas_do_not_hold_back_each_other(world: Streams, database: str) -> None:
    async with streams(database, Schema('An "other" schema\\, it\'s')) as elsewhere:
        await elsewhere.publish("s")
        other = await world.session()
        async with other.connection.transaction():
            await world.publish("s", on=other)
            await world.publish("t")
            await elsewhere.publish("s")

            assert await world.seen("t") == [1]
            assert await elsewhere.seen("s") == [1, 2]


async def test_an_append_to_several_streams_holds_back_each_of_them(world: Streams) -> None:
    other = await world.session()
    async with other.connection.transaction():
        await world.publish("b", "a", on=other)
        await world.publish("a", "b", "c")

        assert [await world.seen(name) for name in "abc"] == [[], [], [3]]

    assert [await world.seen(name) for name in "abc"] == [[2, 3], [1, 4], [3]]


async def test_a_commit_to_very_many_streams_takes_one_lock_which_holds_back_all_of_them(
    world: Streams,
) -> None:
    names = [f"s{n}" for n in range(200)]
    await world.keys.made([*names, "other"])
    other = await world.session()
    async with other.connection.transaction():
        await world.publish(*names, on=other)
        await world.publish(*names, "other")

        assert await world.sql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 1
        assert [await world.seen(name) for name in (names[0], names[-1], "other")] == [[], [], []]

    assert [await world.seen(name) for name in (names[0], names[-1], "other")] == [
        [1, 201],
        [200, 400],
        [401],
    ]


async def test_a_transaction_that_goes_on_locks_each_of_very_many_streams(world: Streams) -> None:
    names = [f"s{n}" for n in range(200)]
    await world.keys.made([*names, "other"])
    other = await world.session()
    async with other.connection.transaction():
        await world.publish(*names, on=other, floors={})
        await world.publish(*names, "other")

        assert [await world.seen(name) for name in (names[0], names[-1], "other")] == [[], [], [401]]


async def test_a_long_transaction_on_other_tables_holds_back_nothing(world: Streams) -> None:
    await world.key("s")
    other = await world.session()
    async with other.connection.transaction(isolation="repeatable_read"):
        await world.sql("UPDATE {schema}.stream SET base = base", on=other)
        await world.publish("s")

        assert await world.seen("s") == [1]


async def test_a_prepared_transaction_holds_back_what_came_after_it(world: Streams) -> None:
    await world.on.connection.execute("BEGIN")
    await world.publish("s")
    await world.on.connection.execute("PREPARE TRANSACTION 'alkstore'")
    try:
        await world.publish("s")

        assert await world.seen("s") == []
        # Not one's own either, though it was prepared in this very session.
        assert await world.seen("s", own=True) == []
    finally:
        await world.on.connection.execute("COMMIT PREPARED 'alkstore'")
    assert await world.seen("s") == [1, 2]


async def test_a_transaction_has_ended_once_others_see_what_it_wrote(world: Streams) -> None:
    """Its locks go a moment later, which no test can make longer; a reader may not be held back by them (TX-01)."""
    other = await world.session()

    async def ended(transaction: int) -> bool:
        ((has_ended,),) = await world.on.fetch(f"SELECT {{schema}}.has_ended('{transaction}'::xid)")
        return bool(has_ended)

    for end in ("COMMIT", "ROLLBACK"):
        await other.connection.execute("BEGIN")
        whole = await other.connection.fetchval("SELECT pg_current_xact_id()::xid::text::bigint")
        await other.connection.execute("SAVEPOINT s; CREATE TEMPORARY TABLE t (a int)")
        part = await other.connection.fetchval("SELECT xmin::text::bigint FROM pg_class WHERE relname = 't'")
        await other.connection.execute("RELEASE s")
        assert part != whole
        assert [await ended(whole), await ended(part)] == [False, False]
        await other.connection.execute(f"DROP TABLE t; {end}")
        assert [await ended(whole), await ended(part)] == [True, True]


_HOLD = "SELECT pg_advisory_xact_lock_shared({schema}.floor_class($1), $2)"

# What a reader does between two looks waits for the lock 7.
_SLEEP = """
CREATE SCHEMA sleeping;
CREATE FUNCTION sleeping.pg_sleep(double precision) RETURNS void LANGUAGE plpgsql
AS $$ BEGIN PERFORM pg_advisory_lock_shared(7), pg_advisory_unlock_shared(7); END $$;
"""


@asynccontextmanager
async def letting_go(world: Streams) -> AsyncIterator[None]:
    """Have a floor below what is in "s", whose transaction's number is gone already, as in the midst of a COMMIT."""
    await world.publish("s", "s")
    other = await world.session()
    async with other.connection.transaction():
        await other.fetch(_HOLD, (await world.key("s")).id, 1)
        yield


async def test_a_reader_waits_for_a_transaction_in_the_midst_of_letting_go(world: Streams) -> None:
    reader, gate = await world.session(), await world.session()
    await world.script(_SLEEP)
    await reader.connection.execute("SET search_path = sleeping, pg_catalog")
    await gate.connection.execute("SELECT pg_advisory_lock(7)")
    async with letting_go(world):
        look = asyncio.create_task(world.page("s", reader))
        await world.blocked(reader)
    await gate.connection.execute("SELECT pg_advisory_unlock(7)")

    page = await look

    assert ([record.offset for record in page.events], page.is_held_back) == ([1, 2], False)


async def test_a_floor_whose_transaction_has_no_number_counts_in_the_end(world: Streams) -> None:
    """Nothing of alkstore's makes one; to wait for it for ever would be worse, and to pass over it might lose an event."""
    async with letting_go(world):
        page = await world.page("s")

    assert ([record.offset for record in page.events], page.is_held_back) == ([1], True)


async def test_a_transaction_is_numbered_before_it_has_a_floor(world: Streams) -> None:
    await world.publish("s")
    gate, other = await world.session(), await world.session()
    pid = other.connection.get_server_pid()
    async with gate.connection.transaction():
        await gate.fetch(_HOLD.replace("_shared", ""), (await world.key("s")).id, 1)
        append = asyncio.create_task(world.publish("s", on=other))
        await world.blocked(other)

        locks = "SELECT locktype FROM pg_locks WHERE pid = $1 AND granted AND locktype <> 'virtualxid'"
        assert {"transactionid"} <= {kind for (kind,) in await world.on.fetch(locks, pid)}
    assert await append == [2]


async def test_readers_wait_for_nobody(world: Streams) -> None:
    await world.publish("s", "s")
    other = await world.session()
    async with other.connection.transaction():
        await world.publish("s", on=other)
        await stream.hold_position(other, await world.key("s"), "c", PATIENCE)
        await world.script("SET lock_timeout = '1ms'")

        assert await world.seen("s") == [1, 2]
        assert await world.head("s") == 2
        assert await stream.position(world.on, await world.key("s"), "c") == 0
        assert await stream.names(world.on) == ["s"]


async def test_an_advisory_lock_of_another_kind_is_not_taken_for_a_floor(world: Streams) -> None:
    await world.publish("s", "s")
    other = await world.session()
    async with other.connection.transaction():
        # As one number: objsubid tells it from ours, which has the same two halves.
        await other.connection.execute(
            world.schema.render(
                "SELECT pg_advisory_xact_lock_shared(({schema}.floor_class(1)::bigint << 32) | 1)"
            )
        )

        assert await world.seen("s") == [1, 2]


# ---------------------------------------------------------------- between two steps

_PAUSE = """
CREATE SCHEMA IF NOT EXISTS pausing;
CREATE OR REPLACE FUNCTION pausing.pause() RETURNS SETOF pg_catalog.pg_locks LANGUAGE plpgsql
AS $$ BEGIN PERFORM pg_advisory_lock_shared(7), pg_advisory_unlock_shared(7); END $$;
CREATE OR REPLACE VIEW pausing.pg_locks AS SELECT * FROM %s UNION ALL SELECT * FROM %s;
"""


@asynccontextmanager
async def looking(world: Streams, *steps: str) -> AsyncIterator["asyncio.Task[Page]"]:
    """Have a reader of "s" that pauses beside its look for locks; it goes on behind the block."""
    await world.script(_PAUSE % steps)
    reader, gate = await world.session(), await world.session()
    await gate.connection.execute("SELECT pg_advisory_lock(7)")
    await reader.connection.execute("SET search_path = pausing, pg_catalog")
    look = asyncio.create_task(world.page("s", reader))
    await world.blocked(reader)
    yield look
    await gate.connection.execute("SELECT pg_advisory_unlock(7)")
    await look


async def test_a_reader_stops_below_what_was_drawn_after_its_look_for_open_transactions(
    world: Streams,
) -> None:
    await world.publish("s")
    other = await world.session()
    async with other.connection.transaction():
        async with looking(world, "pg_catalog.pg_locks", "pausing.pause()") as look:
            await world.publish("s", on=other)
            await world.publish("s")
        assert [record.offset for record in look.result().events] == [1]
    assert await world.seen("s") == [1, 2, 3]


async def test_a_reader_sees_what_was_committed_before_its_look_for_open_transactions(world: Streams) -> None:
    other = await world.session()
    transaction = other.connection.transaction()
    await transaction.start()
    await world.publish("s", on=other)
    await world.publish("s")

    async with looking(world, "pausing.pause()", "pg_catalog.pg_locks") as look:
        await transaction.commit()

    assert [record.offset for record in look.result().events] == [1, 2]


async def test_a_floor_above_what_a_reader_knew_of_hides_nothing(world: Streams) -> None:
    await world.publish("s")
    other = await world.session()
    async with other.connection.transaction():
        async with looking(world, "pausing.pause()", "pg_catalog.pg_locks") as look:
            await world.publish("s")
            await world.publish("s", on=other)
        assert [record.offset for record in look.result().events] == [1]


_CLASS = """
CREATE OR REPLACE FUNCTION {schema}.floor_class(stream bigint) RETURNS integer LANGUAGE sql VOLATILE
AS $$ SELECT CASE WHEN last_value < %d THEN nextval({sequence})::integer * 0 ELSE 0 END FROM {schema}.event_offset $$
"""


@pytest.mark.parametrize(("drawn_by_others", "floor"), [(4, 4), (1_000, 10)])
async def test_a_floor_is_what_was_given_when_its_lock_was_there(
    dsn: str, drawn_by_others: int, floor: int
) -> None:
    floors: dict[int, int] = {}
    async with streams(dsn) as world:
        await world.publish("s")
        # Somebody draws while the lock is taken. A floor below what can be read already would hide it again.
        await world.script(_CLASS % drawn_by_others)
        async with world.on.connection.transaction():
            (offset,) = await world.publish("s", floors=floors)

            locks = await world.sql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
    assert (locks, floors) == (1, {1: floor})
    assert offset > floor


# ---------------------------------------------------------------- within a transaction


async def test_a_transaction_sees_its_own_events_up_to_the_first_that_another_may_still_fill(
    world: Streams,
) -> None:
    mine, other = await world.session(), await world.session()
    async with mine.connection.transaction():
        await world.publish("s", on=mine)
        await world.publish("s")
        assert await world.seen("s", mine, own=True) == [1, 2]

        async with other.connection.transaction():
            await world.publish("s", on=other)
            await world.publish("s", on=mine)
            assert await world.seen("s", mine, own=True) == [1, 2]

        assert await world.seen("s", mine, own=True) == [1, 2, 3, 4]
        assert await world.seen("s") == []


async def test_a_savepoint_that_is_rolled_back_takes_no_floor_along_that_is_still_needed(
    world: Streams,
) -> None:
    mine = await world.session()
    floors: dict[int, int] = {}
    async with mine.connection.transaction():
        savepoint = mine.connection.transaction()
        await savepoint.start()
        await world.publish("s", on=mine, floors=floors)
        await savepoint.rollback()
        await world.publish("s")
        assert await world.seen("s") == [2]

        await world.publish("s", on=mine, floors=floors)
        await world.publish("s")
        assert 4 not in await world.seen("s")

    assert await world.seen("s") == [2, 3, 4]


async def test_a_transaction_that_appends_often_holds_one_lock_a_stream(world: Streams) -> None:
    mine = await world.session()
    floors: dict[int, int] = {}
    async with mine.connection.transaction():
        for name in "ststst":
            await world.publish("other")
            await world.publish(name, on=mine, floors=floors)

        assert await world.sql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 2
        assert floors == {(await world.key("s")).id: 1, (await world.key("t")).id: 3}


async def test_a_transaction_of_any_level_appends_to_a_stream_that_it_cannot_see(world: Streams) -> None:
    mine = await world.session()
    async with mine.connection.transaction(isolation="serializable"):
        await mine.connection.fetch("SELECT 1")
        await world.publish("old")

        assert await world.publish("new", on=mine) == [1]
        assert await stream.isolation(mine) == "serializable"
        await stream.move(mine, await world.key("new"), "c", 1, PATIENCE, backwards=False)

    assert await world.seen("new") == [1]


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_a_stream_is_not_read_where_every_statement_sees_the_same(
    world: Streams, isolation: Any
) -> None:
    await world.publish("s")
    transaction = world.on.connection.transaction(isolation=isolation)
    await transaction.start()

    with pytest.raises(asyncpg.InvalidTransactionStateError, match="READ COMMITTED"):
        await world.seen("s")

    await transaction.rollback()


async def test_two_transactions_publish_to_each_others_streams_without_waiting(world: Streams) -> None:
    first, second = await world.session(), await world.session()
    async with first.connection.transaction(), second.connection.transaction():
        await world.publish("a", on=first)
        await world.publish("b", on=second)
        await world.publish("b", on=first)
        await world.publish("a", on=second)

    assert (await world.seen("a"), await world.seen("b")) == ([1, 4], [1, 2])
