"""Sixteen writers and a reader; the long run of it stands in docs/decisions/0022-floor-lock.md."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from publishers import publish_at_once
from streams import Streams, streams

SECONDS = 2.0
ENOUGH = 100

BATCH = 20_000
OTHERS = 15
ROUNDS = 3


@pytest.fixture
async def world(dsn: str) -> AsyncIterator[Streams]:
    async with streams(dsn) as world:
        yield world


async def test_a_reader_beside_many_open_transactions_passes_over_no_event(world: Streams) -> None:
    outcome = await publish_at_once(
        world, lambda outcome, seconds: seconds > SECONDS and outcome.events > ENOUGH
    )

    assert (outcome.missed, outcome.invented, outcome.disordered) == (0, 0, 0)
    assert outcome.seen == {name: sorted(offsets) for name, offsets in outcome.committed.items()}


async def test_what_could_be_read_once_can_be_read_from_then_on(world: Streams) -> None:
    outcome = await publish_at_once(
        world, lambda _, seconds: seconds > SECONDS / 2, savepoints=False, heads=True
    )

    assert (outcome.missed, outcome.heads_fell) == (0, 0)


async def test_a_batch_is_read_whole_whoever_begins_to_publish_while_it_is_appended(world: Streams) -> None:
    """In the midst of a long append nobody may find a floor: he would hide the rest of it until his transaction ends."""
    others, reader = [await world.session() for _ in range(OTHERS)], await world.session()
    await world.publish("s")
    for round_ in range(ROUNDS):
        batch = asyncio.create_task(world.publish(*["s"] * BATCH))
        while not await reader.fetch("SELECT FROM pg_locks WHERE locktype = 'advisory'"):
            pass
        for other in others:
            await other.connection.execute("BEGIN")
            await world.publish("s", on=other)
        appended = set(await batch)

        # The oldest of those who are still open says how much may be read.
        for other in others:
            assert len(appended & {*await world.seen("s", reader)}) in (0, BATCH), f"in round {round_}"
            await other.connection.execute("ROLLBACK")
        assert appended <= {*await world.seen("s", reader)}
        await world.script("TRUNCATE {schema}.event")
