"""Sixteen writers and a reader; the long run of it stands in docs/decisions/0022-floor-lock.md."""

from collections.abc import AsyncIterator

import pytest
from publishers import publish_at_once
from streams import Streams, streams

SECONDS = 2.0
ENOUGH = 100


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
