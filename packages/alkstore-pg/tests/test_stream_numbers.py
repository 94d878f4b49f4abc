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
