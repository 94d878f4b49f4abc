"""Offsets of any size, and streams that came from another server."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest
from streams import LAST, PATIENCE, Streams, streams

from alkstore_pg import stream
from alkstore_pg.contract_server import Server


@pytest.fixture(scope="module")
def database(server: Server) -> Iterator[str]:
    yield server.create_database("test_stream_numbers")
    server.drop_database("test_stream_numbers")


@pytest.fixture
async def world(database: str) -> AsyncIterator[Streams]:
    async with streams(database) as world:
        yield world


# ---------------------------------------------------------------- numbers


@pytest.mark.parametrize("given", [2**31 - 3, 2**32 - 3, 2**40 - 3, 2**62])
async def test_a_floor_is_found_again_whatever_number_it_has(world: Streams, given: int) -> None:
    key = await world.key("s")
    await world.sql("SELECT setval({sequence}, $1::bigint)", given)
    other = await world.session()
    for offset in range(given + 1, given + 19, 3):
        async with other.connection.transaction():
            assert await world.publish("s", on=other) == [offset]
            assert await world.publish("s", "s") == [offset + 1, offset + 2]

            page = await stream.read(world.on, "s", key, offset - 4, LAST)
            assert [record.offset for record in page.events] == list(
                range(max(given, offset - 4) + 1, offset)
            )
            assert page.is_held_back
    assert await world.head("s") == given + 18


async def test_a_floor_is_found_again_four_billion_events_later(world: Streams) -> None:
    await world.publish("s")
    other = await world.session()
    async with other.connection.transaction():
        await world.publish("s", on=other)
        await world.sql("SELECT setval({sequence}, $1::bigint)", 2**32 - 1)
        await world.publish("s")

        assert await world.seen("s") == [1]

    assert await world.seen("s") == [1, 2, 2**32]


async def test_a_sequence_that_caches_values_is_refused(world: Streams) -> None:
    await world.script("ALTER SEQUENCE {schema}.event_offset CACHE 10")
    try:
        await world.publish("s")

        with pytest.raises(asyncpg.RaiseError, match="gave 2 after 10"):
            await world.publish("s")
    finally:
        await world.script("ALTER SEQUENCE {schema}.event_offset CACHE 1")


# ---------------------------------------------------------------- other servers


async def test_offsets_and_positions_go_on_in_a_restored_dump(world: Streams, server: Server) -> None:
    await world.publish("other", "s", "s", "s")
    key = await world.key("s")
    await stream.trim(world.on, key, 2)
    await stream.move(world.on, key, "c", 3, PATIENCE, backwards=False)
    dumped = await asyncio.to_thread(server.dump, world.dsn, world.schema.name)
    copy = await asyncio.to_thread(server.create_database, "test_stream_restored")
    try:
        await asyncio.to_thread(server.restore, copy, dumped)
        restored = Streams(copy, world.schema)
        await restored.open()
        try:
            assert not await stream.catch_up(restored.on)
            assert await restored.seen("s") == [3, 4]
            assert await restored.publish("s") == [5]
            key = await restored.key("s")
            page = await stream.read(restored.on, "s", key, await stream.position(restored.on, key, "c"), 9)
            assert [record.offset for record in page.events] == [4, 5]
        finally:
            await restored.close()
    finally:
        await asyncio.to_thread(server.drop_database, "test_stream_restored")


@pytest.mark.parametrize("trimmed", [False, True])
async def test_a_sequence_that_is_behind_the_rows_catches_up(world: Streams, trimmed: bool) -> None:
    await world.publish("a", "b", "a", "b")
    if trimmed:
        await stream.trim(world.on, await world.key("b"), LAST)
    # What logical replication leaves: every row, and a sequence that nobody has used.
    await world.script("ALTER SEQUENCE {schema}.event_offset RESTART")

    assert await stream.catch_up(world.on)

    assert not await stream.catch_up(world.on)
    assert await world.publish("b") == [5]


async def test_a_new_sequence_is_not_behind(world: Streams) -> None:
    assert not await stream.catch_up(world.on)
    assert await world.publish("s") == [1]


# ---------------------------------------------------------------- who draws


async def test_who_draws_several_offsets_draws_them_while_nobody_else_draws(world: Streams) -> None:
    """All at once, or a floor might fall between two of them: see the batch in test_stream_stress.py."""
    await world.publish("s")
    gate, one, several = await world.session(), await world.session(), await world.session()
    draws = "SELECT pg_advisory_xact_lock%s({schema}.floor_class(0))"
    async with gate.connection.transaction():
        await gate.fetch(draws % "_shared")
        assert await world.publish("s", on=one) == [2]
        append = asyncio.create_task(world.publish("s", "s", on=several))
        await world.blocked(several)
    assert await append == [3, 4]

    async with gate.connection.transaction():
        await gate.fetch(draws % "")
        append = asyncio.create_task(world.publish("s", on=one))
        await world.blocked(one)
    assert await append == [5]


@pytest.mark.parametrize("names", [("s",), ("s", "s")])
async def test_who_cannot_draw_in_time_has_appended_nothing_and_goes_on(
    world: Streams, names: tuple[str, ...]
) -> None:
    gate, on = await world.session(), await world.session()
    world.patience = 1
    await on.connection.execute("SET lock_timeout = '7s'")
    async with gate.connection.transaction(), on.connection.transaction():
        await gate.fetch("SELECT pg_advisory_xact_lock({schema}.floor_class(0))")
        with pytest.raises(asyncpg.LockNotAvailableError):
            async with on.connection.transaction():
                await world.publish(*names, on=on)
        assert await on.connection.fetchval("SHOW lock_timeout") == "7s"
    assert await world.seen("s") == []
    world.patience = PATIENCE
    assert await world.publish(*names, on=on) == list(range(1, len(names) + 1))


async def test_an_open_transaction_keeps_nobody_from_drawing(world: Streams) -> None:
    others = [await world.session() for _ in range(2)]
    async with others[0].connection.transaction(), others[1].connection.transaction():
        assert await world.publish("s", on=others[0]) == [1]
        assert await world.publish("s", "s", on=others[1]) == [2, 3]
        assert await world.publish("s", "s") == [4, 5]
        assert await world.publish("s") == [6]
