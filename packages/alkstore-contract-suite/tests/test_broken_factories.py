"""A factory that is wrong makes the harness untrustworthy, whatever the engine is."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from itertools import count

import pytest

from alkstore import Store
from alkstore.testing import ManualClock
from alkstore_contract_suite import rows
from alkstore_contract_suite.backends import Backends
from alkstore_contract_suite.factory import Backend
from alkstore_contract_suite.in_process import InProcessColumn, InProcessFactory
from alkstore_contract_suite.plan import Selection
from alkstore_contract_suite.session import Session
from alkstore_contract_suite.verdict import Verdict
from alkstore_mem.contract import CAPABILITIES, make_store


class Honest(InProcessFactory):
    """Mem's own."""


class StandsStill(InProcessFactory):
    async def advance(self, seconds: float) -> None:
        """Forgets to."""


class MovesNowAlone(InProcessFactory):
    """Says that time moved, and the stores see nothing of it."""

    said = timedelta()

    async def advance(self, seconds: float) -> None:
        self.said += timedelta(seconds=seconds)

    async def now(self) -> datetime:
        return await super().now() + self.said


class RoundsToSeconds(InProcessFactory):
    async def advance(self, seconds: float) -> None:
        await super().advance(round(seconds))


class NeverBackwards(InProcessFactory):
    async def advance(self, seconds: float) -> None:
        await super().advance(max(seconds, 0))


class ReturnsAtOnce(InProcessFactory):
    """Moves time without waiting for whoever waits for it."""

    async def advance(self, seconds: float) -> None:
        self._moving = asyncio.ensure_future(super().advance(seconds))
        await asyncio.sleep(0)


class SettlesNothing(InProcessFactory):
    async def settle(self) -> None:
        """Forgets to."""


class RunningClock(ManualClock):
    def __init__(self) -> None:
        super().__init__()
        self._ticks = count()

    def now(self) -> int:
        return super().now() + next(self._ticks)


class RunsByItself(InProcessFactory):
    def __init__(self, make: object, source: random.Random) -> None:
        super().__init__(make_store, source)
        self.clock = RunningClock()


class AnotherClock(InProcessFactory):
    """Gives its stores a clock that it does not move."""

    async def open(self, instance: str = "a") -> Store:
        return await make_store(ManualClock(), self._random)


class LeavesThingsBehind(InProcessFactory):
    async def open(self, instance: str = "a") -> Store:
        store = await super().open(instance)
        await store.queue("left").enqueue("from an earlier case")
        return store


class Column(InProcessColumn):
    def __init__(self, factory: type[InProcessFactory]) -> None:
        super().__init__("mem", version="0", contract="1.0", capabilities=CAPABILITIES, make_store=make_store)
        self._factory = factory

    @asynccontextmanager
    async def backend(self, worker: str) -> AsyncIterator[Backend]:
        yield self

    @asynccontextmanager
    async def scope(self, case: str) -> AsyncIterator[InProcessFactory]:
        yield self._factory(make_store, random.Random(case))


def verdict_on(factory: type[InProcessFactory]) -> tuple[Verdict, Sequence[str]]:
    """Run the rows about factories; gives the verdict and the rows that failed."""
    backends = Backends("test")
    known = [row for row in rows.registered() if row.is_factory]
    session = Session([Column(factory)], known, backends, selection=Selection(), seed=None, expectations={})
    for case in session.wanted:
        session.record(case.id, session.run(case))
    backends.close()
    result = session.result().engines[0]
    return result.verdict, [cell.row for cell in result.cells if cell.status == "FAIL"]


def test_the_factory_of_mem_is_trusted() -> None:
    assert verdict_on(Honest) == (Verdict.INCOMPLETE, [])


@pytest.mark.parametrize(
    ("factory", "row"),
    [
        (StandsStill, "FACTORY-01"),
        (RoundsToSeconds, "FACTORY-01"),
        (NeverBackwards, "FACTORY-01"),
        (RunsByItself, "FACTORY-02"),
        (AnotherClock, "FACTORY-03"),
        (MovesNowAlone, "FACTORY-03"),
        (LeavesThingsBehind, "FACTORY-04"),
        (SettlesNothing, "FACTORY-08"),
        (ReturnsAtOnce, "FACTORY-09"),
    ],
)
def test_a_broken_factory_makes_the_harness_untrustworthy(factory: type[InProcessFactory], row: str) -> None:
    verdict, failed = verdict_on(factory)

    assert verdict is Verdict.NOT_TRUSTWORTHY
    assert row in failed
