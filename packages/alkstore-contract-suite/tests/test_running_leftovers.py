"""What a case left to the garbage collector is freed before the next one, out of reach of other people's loops."""

import asyncio
import gc
import random
from collections.abc import Iterator

import pytest

from alkstore import Store
from alkstore.testing import ManualClock
from alkstore_contract_suite import rows
from alkstore_contract_suite.in_process import InProcessBackend
from alkstore_contract_suite.outcome import Status
from alkstore_contract_suite.plan import Case
from alkstore_contract_suite.running import run
from alkstore_mem.contract import make_store


class Asking:
    """Garbage in a cycle, that asks for the current loop when it is collected, as aiosqlite's connections do."""

    def __init__(self, told: list[object]) -> None:
        self._told = told
        self._myself = self

    def __del__(self) -> None:
        try:
            self._told.append(asyncio.get_event_loop())
        except RuntimeError:
            self._told.append(None)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that is the current one of this thread, and that nobody runs; nothing is collected unasked."""
    gc.disable()
    mine = asyncio.new_event_loop()
    asyncio.set_event_loop(mine)
    try:
        yield mine
    finally:
        asyncio.set_event_loop(None)
        mine.close()
        gc.enable()


def test_what_is_collected_after_a_case_finds_no_loop_to_ask(loop: asyncio.AbstractEventLoop) -> None:
    told: list[object] = []

    def make(clock: ManualClock, source: random.Random) -> Store:
        Asking(told)
        return make_store(clock, source)

    row = next(each for each in rows.registered() if each.id == "Q-01")

    outcome = run(InProcessBackend(make), Case(row, "mem", "plain"), seed=0)

    assert outcome.status is Status.PASS
    assert set(told) == {None}
    assert asyncio.get_event_loop() is loop
