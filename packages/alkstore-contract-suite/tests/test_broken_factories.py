"""A factory that is wrong makes the harness untrustworthy, whatever the engine is."""

import asyncio
import functools
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, nullcontext
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path

import pytest

from alkstore import Store
from alkstore.testing import ManualClock
from alkstore_contract_suite import rows
from alkstore_contract_suite.backends import Backends
from alkstore_contract_suite.factory import (
    Backend,
    Business,
    Capability,
    Crash,
    EngineColumn,
    Fault,
    Remote,
    Unsupported,
)
from alkstore_contract_suite.in_process import InProcessColumn, InProcessFactory
from alkstore_contract_suite.outcome import Status
from alkstore_contract_suite.plan import Selection
from alkstore_contract_suite.session import Session
from alkstore_contract_suite.single_file import SingleFileColumn
from alkstore_contract_suite.verdict import Verdict
from alkstore_mem.contract import CAPABILITIES, make_store
from alkstore_sqlite.contract import CAPABILITIES as ON_A_FILE
from alkstore_sqlite.contract import SqliteFactory


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


class OnAFile(SqliteFactory):
    """Sqlite's own."""


class TheSameObject(OnAFile):
    _only: Store | None = None

    async def open(self, instance: str = "a") -> Store:
        self._only = self._only or await super().open(instance)
        return self._only


class AnotherFile(OnAFile):
    """Gives a second store storage of its own."""

    async def open(self, instance: str = "a") -> Store:
        return await (super().open() if instance == "a" else OnAFile(elsewhere(self), self._seed).open())


class ReopensNothing(OnAFile):
    async def reopen(self, store: Store) -> Store:
        return store


class ReopensBesideIt(OnAFile):
    """Closes nothing."""

    async def reopen(self, store: Store) -> Store:
        return await self.open()


class ForgetsOnReopen(OnAFile):
    async def reopen(self, store: Store) -> Store:
        await store.aclose()
        return await OnAFile(elsewhere(self), self._seed).open()


class ClosesInsteadOfCrashing(OnAFile):
    async def crash(self, store: Store, kind: Crash) -> None:
        await store.aclose()


class HasNoDataOfItsOwn(OnAFile):
    def business(self) -> Business:
        return None  # type: ignore[return-value]  # what is wrong here


class HasNoRecipe(OnAFile):
    def remote(self) -> Remote | None:
        return None


class ChildrenElsewhere(OnAFile):
    def remote(self) -> Remote | None:
        return functools.partial(SqliteFactory, elsewhere(self))


class BreaksWhatIsNotThere(OnAFile):
    def fault(self, kind: Fault, store: Store) -> AbstractAsyncContextManager[None] | Unsupported:
        return nullcontext()


class CountsNothing(OnAFile):
    """Has no `footprint`."""

    def __getattribute__(self, name: str) -> object:
        if name == "footprint":
            raise AttributeError(name)
        return super().__getattribute__(name)


def elsewhere(factory: OnAFile) -> Path:
    """Give a folder for another file, which ends with the scope."""
    other = factory.path.parent.with_name(f"{factory.path.parent.name}-other")
    other.mkdir(exist_ok=True)
    return other


def in_process(factory: type[InProcessFactory]) -> EngineColumn:
    return Column(factory)


def on_a_file(
    factory: type[SqliteFactory], capabilities: Mapping[str, Capability] = ON_A_FILE
) -> EngineColumn:
    return SingleFileColumn("sqlite", version="0", contract="1.0", capabilities=capabilities, factory=factory)


def verdict_on(column: EngineColumn) -> tuple[Verdict, Mapping[str, str]]:
    """Run the rows about factories; gives the verdict, and by row the promise that an assertion named."""
    known = [row for row in rows.registered() if row.is_factory]
    with closing(Backends("test")) as backends:
        session = Session([column], known, backends, selection=Selection(), seed=None, expectations={})
        for case in session.wanted:
            session.record(case.id, session.run(case))
    result = session.result().engines[0]
    failed = [cell for cell in result.cells if cell.status == "FAIL"]
    return result.verdict, {cell.row: cell.outcome.promise for cell in failed}


@pytest.mark.parametrize("column", [in_process(Honest), on_a_file(OnAFile)], ids=["mem", "sqlite"])
def test_the_factory_of_an_engine_is_trusted(column: EngineColumn) -> None:
    assert verdict_on(column) == (Verdict.INCOMPLETE, {})


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
    verdict, failed = verdict_on(in_process(factory))

    assert verdict is Verdict.NOT_TRUSTWORTHY
    assert failed[row]


@pytest.mark.parametrize(
    ("factory", "row"),
    [
        (TheSameObject, "FACTORY-05"),
        (AnotherFile, "FACTORY-05"),
        (ReopensNothing, "FACTORY-06"),
        (ReopensBesideIt, "FACTORY-06"),
        (ForgetsOnReopen, "FACTORY-06"),
        (ClosesInsteadOfCrashing, "FACTORY-07"),
        (HasNoDataOfItsOwn, "FACTORY-10"),
        (HasNoRecipe, "FACTORY-10"),
        (ChildrenElsewhere, "FACTORY-11"),
    ],
)
def test_a_broken_factory_on_storage_makes_the_harness_untrustworthy(
    factory: type[SqliteFactory], row: str
) -> None:
    verdict, failed = verdict_on(on_a_file(factory))

    assert verdict is Verdict.NOT_TRUSTWORTHY
    assert failed[row]


@pytest.mark.parametrize(
    ("factory", "word"),
    [
        (OnAFile, "sql"),
        (OnAFile, "listen"),
        (OnAFile, "multi_process"),
        (OnAFile, "watcher"),
        (BreaksWhatIsNotThere, "reconnects"),
        (BreaksWhatIsNotThere, "server"),
    ],
)
def test_a_capability_that_is_kept_quiet_makes_the_harness_untrustworthy(
    factory: type[SqliteFactory], word: str
) -> None:
    quiet = {**ON_A_FILE, word: Unsupported("not a word of it")}

    verdict, failed = verdict_on(on_a_file(factory, quiet))

    assert verdict is Verdict.NOT_TRUSTWORTHY
    assert failed["FACTORY-12"]


def test_what_nobody_counts_is_not_said_to_be_flat() -> None:
    known = [row for row in rows.registered() if row.id == "DUR-13"]
    column = on_a_file(CountsNothing)
    with closing(Backends("test")) as backends:
        session = Session([column], known, backends, selection=Selection(), seed=None, expectations={})
        found = {(outcome.status, outcome.reason) for outcome in map(session.run, session.wanted)}

    advice = "the factory of an engine with 'durable' must have footprint()"
    assert found == {(Status.INCONCLUSIVE, advice)}


def test_every_row_about_factories_is_failed_by_a_broken_one() -> None:
    text = Path(__file__).read_text("utf-8")
    ids = {row.id for row in rows.registered() if row.is_factory}

    assert sorted(id for id in ids if f', "{id}")' not in text and f'failed["{id}"]' not in text) == []
