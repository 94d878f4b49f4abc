"""Every operation over a network that loses answers, falls silent, is slow, or is away (DUR-05, DUR-11)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import pytest_asyncio
from broken_network import PATIENCE, Trials, begun, trying
from every_operation import OPERATIONS, Things

from alkstore_pg.contract_proxy import Link, Proxy, listening
from alkstore_pg.contract_server import Server

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def place(server: Server) -> str:
    return server.create_database("test faults network")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def proxy(place: str) -> AsyncIterator[Proxy]:
    async with Proxy(place) as proxy:
        yield proxy


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def trials(place: str, proxy: Proxy) -> AsyncIterator[Trials]:
    async with trying(place, proxy.dsn(), wait_timeout=5) as trials:
        yield trials


ANSWERS = (1, 2, 4, 7, 12, 20, 35, 60, 100)


class Fuse:
    """Cuts every connection when the server has answered so often, and lets the last answer be lost.

    Not the listener's: it would be lost so often here that it would pause for seconds.
    """

    def __init__(self, proxy: Proxy, answers: int) -> None:
        self.left = answers
        self._proxy = proxy

    def __call__(self, link: Link) -> bool:
        if listening(link):
            return False
        self.left -= 1
        if self.left == 0:
            self._proxy.cut(lambda link: not listening(link))
        return self.left == 0


@contextmanager
def cut_after(proxy: Proxy, answers: int) -> Iterator[Fuse]:
    fuse = Fuse(proxy, answers)
    proxy.swallow(direction="to_client", only=fuse)
    try:
        yield fuse
    finally:
        proxy.swallow(False)


@pytest.mark.parametrize("name", OPERATIONS)
async def test_an_operation_any_of_whose_answers_is_lost_has_happened_or_has_not(
    trials: Trials, proxy: Proxy, name: str
) -> None:
    for answers in ANSWERS:
        things = await trials.things(name)
        with cut_after(proxy, answers) as fuse:
            running = begun(name, things)
            problem = await trials.end_of(name, things, running)
        assert problem is None, f"after {answers} answers"
        if fuse.left > 0:
            return
    raise AssertionError("it has no end")


async def together(
    trials: Trials, broken: Callable[[], object] = lambda: None
) -> "dict[str, tuple[Things, asyncio.Future[Any]]]":
    """Break something, and begin every operation at once."""
    for name in OPERATIONS:
        _ = await trials.reference(name)  # first: what fires schedules fires all that are due
    made = {name: await trials.things(name) for name in OPERATIONS}
    broken()
    return {name: (things, begun(name, things)) for name, things in made.items()}


async def problems_of(trials: Trials, running: "dict[str, tuple[Things, asyncio.Future[Any]]]") -> list[str]:
    found = [await trials.end_of(name, *each) for name, each in running.items()]
    return [problem for problem in found if problem is not None]


async def test_in_a_silent_network_everything_ends_and_afterwards_everything_goes_on(place: str) -> None:
    async with (
        Proxy(place) as proxy,
        trying(place, proxy.dsn(), wait_timeout=0.2, probe_interval=0.5) as trials,
        asyncio.timeout(2 * PATIENCE),
    ):
        async with trials.store.listen("before"):  # so that there is a listener that does not hear
            running = await together(trials, proxy.swallow)
            assert await problems_of(trials, running) == []
            proxy.swallow(False)
        left = list(OPERATIONS)
        while left:
            things = await trials.things(left[-1])
            one = begun(left[-1], things)
            assert await trials.end_of(left[-1], things, one) is None
            if one.exception() is None:
                left.pop()


async def test_in_a_slow_network_everything_happens(trials: Trials, proxy: Proxy) -> None:
    proxy.delay(0.01)
    running = await together(trials)
    assert await problems_of(trials, running) == []
    proxy.delay(0)

    errors = {name: one.exception() for name, (_, one) in running.items()}
    assert errors == dict.fromkeys(OPERATIONS)


async def test_cuts_in_the_midst_of_everything_leave_nothing_half_done(trials: Trials, proxy: Proxy) -> None:
    for answers in (2, 15):
        with cut_after(proxy, answers) as fuse:
            running = await together(trials)
            assert await problems_of(trials, running) == []
        assert fuse.left <= 0
