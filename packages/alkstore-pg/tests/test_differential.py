"""Two engines are given the same calls in the same order, and must give the same answers: what mem keeps in plain objects
is the oracle for what two stores keep in one schema, and remember of it. The server's clock steps forward and back.
"""

import weakref
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Final

import pytest
from differential import compare
from sides import MovableClock, Side

from alkstore import Store
from alkstore.numbers import duration, shift, to_datetime
from alkstore.testing import ManualClock, seeded
from alkstore_mem import MemStore
from alkstore_pg.contract_outsider import Outsider
from alkstore_pg.contract_server import Server
from alkstore_pg.contract_store import SuiteClock, SuiteStore, engine_of
from alkstore_pg.engine import PgEngine

SCHEMA: Final = 'Mixed "Case"'

CALLS: Final = 220
"""Calls of a sequence; to open two stores takes as long as a hundred."""


class ServersClock(SuiteClock):
    """What the stores know of the server's clock, which is moved first: they never see it ahead of the server's."""

    def __init__(self, outsider: Outsider) -> None:
        super().__init__()
        self._outsider = outsider
        outsider.set_clock(self._now)

    async def advance(self, by: float | timedelta) -> None:
        to = shift(self._now, duration(by, "by"))
        self._outsider.set_clock(to)
        await self.set(to_datetime(to))


class PgSide(Side):
    def __init__(self, stores: Sequence[Store], clock: MovableClock) -> None:
        super().__init__(stores, clock, has_gaps=True, writes_beside=True)

    async def has_heard(self) -> None:
        for store in self.stores:
            engine = engine_of(store)
            assert engine is not None
            await engine.wakes.hear()


class Database:
    """One database for every sequence; its schema is made by the first store, and emptied for each that follows."""

    def __init__(self, dsn: str) -> None:
        self.outsider = Outsider(dsn)
        self.outsider.furnish()
        self._is_made = False

    def opened(self, schema: str) -> None:
        if not self._is_made:
            self.outsider.tame(schema)
            self.outsider.learn_to_empty(schema)
            self._is_made = True

    @asynccontextmanager
    async def side(self, seed: int) -> AsyncIterator[Side]:
        if self._is_made:
            self.outsider.empty()
        clock, random = ServersClock(self.outsider), seeded(seed)
        async with AsyncExitStack() as stack:
            stores = [
                SuiteStore(
                    self.outsider.dsn,
                    clock=clock,
                    engine=PgEngine,
                    host=weakref.ref(self),
                    schema=SCHEMA,
                    random=random,
                    worker_id="w",
                )
                for _ in range(2)
            ]
            yield PgSide([await stack.enter_async_context(store) for store in stores], clock)


@pytest.fixture(scope="module")
def database(server: Server) -> Iterator[Database]:
    name = "test_differential"
    database = Database(server.create_database(name, encoding="UTF8", template="template0"))
    yield database
    database.outsider.close()
    server.drop_database(name)


@pytest.mark.parametrize("seed", range(8))
async def test_the_same_calls_give_the_same_answers_on_mem_and_on_a_server(
    database: Database, seed: int
) -> None:
    clock = ManualClock()
    mem = MemStore(clock=clock, random=seeded(seed), worker_id="w")
    oracle = Side([mem], clock, has_gaps=True, writes_beside=True)
    async with mem, database.side(seed) as pg:
        await compare([oracle, pg], seed, CALLS)
