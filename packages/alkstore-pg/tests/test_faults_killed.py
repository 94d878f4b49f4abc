"""Every operation while the server ends the sessions that serve it (DUR-05, DUR-11)."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from broken_network import (
    PATIENCE,
    Trials,
    backends,
    begun,
    everything_locked,
    outside,
    terminate,
    trying,
    until_waiting,
)
from every_operation import OPERATIONS, Outside
from waking import listener_pids

from alkstore_pg.contract_server import Server
from alkstore_pg.store import PgStore

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def place(server: Server) -> str:
    return server.create_database("test faults killed")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def trials(place: str) -> AsyncIterator[Trials]:
    async with trying(place, wait_timeout=5) as trials:
        yield trials


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def locker(place: str) -> AsyncIterator[Outside]:
    async with outside(place) as connection:
        yield connection


@pytest.mark.parametrize("name", OPERATIONS)
async def test_an_operation_whose_session_is_ended_has_happened_or_has_not(
    trials: Trials, locker: Outside, name: str
) -> None:
    things = await trials.things(name)

    async with everything_locked(locker):
        running = begun(name, things)
        await terminate(trials.outsider, await until_waiting(trials.outsider, running))

    assert await trials.end_of(name, things, running) is None
    await trials.store.queue("next").enqueue(1)
    assert await trials.store.queue("next").claim_one()


@pytest.mark.parametrize("name", OPERATIONS)
async def test_an_operation_after_every_session_was_ended_happens(trials: Trials, name: str) -> None:
    things, outsider = await trials.things(name), trials.outsider
    # Not the one that listens: it is killed so often here that it would pause for seconds.
    listening = await listener_pids(outsider)
    await terminate(outsider, [pid for pid in await backends(outsider) if pid not in listening])

    running = begun(name, things)

    assert await trials.end_of(name, things, running) is None
    assert running.exception() is None


async def test_who_begins_to_listen_when_the_listeners_session_was_ended_hears(place: str) -> None:
    async with PgStore(place) as store, outside(place) as outsider, asyncio.timeout(PATIENCE):
        await (await store.listen("before")).aclose()
        await terminate(outsider, await listener_pids(outsider))

        async with store.listen("after") as wakes:
            await store.notify("after")
            assert await wakes.recv() is not None
