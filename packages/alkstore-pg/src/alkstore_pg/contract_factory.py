"""What a case of the contract suite gets: stores in one schema of a database, whose time it moves."""

import asyncio
import functools
import random
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, cast

from alkstore import Store
from alkstore.engine import TopicKind
from alkstore.numbers import duration, shift, to_datetime
from alkstore_contract_suite.factory import Business, Crash, Fault, Remote, StoreFactory, Unsupported
from alkstore_pg import contract_application as application
from alkstore_pg import contract_faults as faults
from alkstore_pg import contract_storage as storage
from alkstore_pg.contract_disturbance import Disturbances, disturbed
from alkstore_pg.contract_outsider import Outsider
from alkstore_pg.contract_server import Server
from alkstore_pg.contract_sessions import Sessions
from alkstore_pg.contract_store import SuiteClock, SuiteStore, cancelling, engine_of
from alkstore_pg.engine import PgEngine
from alkstore_pg.session import Session

if TYPE_CHECKING:
    from alkstore_contract_suite.rows._joining import Application

__all__ = ["PgFactory", "Place"]

MOST_ROUNDS: Final = 1_000
"""Rounds of looking after which stores that still do something wake each other for ever."""

MOST_POLLS: Final = 3
"""Polls within which what one store writes is news to another; a runner renews its lease at every one."""

QUICK_TURNS: Final = 50
"""Turns of the loop in which an ordinary round trip ends."""

LOOK_AGAIN: Final = 0.001
"""Seconds of real time between two looks at something that tells nobody when it changes."""

ENOUGH_LOOKS: Final = 5
"""Looks in a row at a store's work that waits for locks or connections, after which those are an open transaction's."""

MANY_LOOKS: Final = 20
"""Looks in a row at work of which nobody knows what it waits for: for the machine, or the case lets it stand still."""

MORE_LOOKS: Final = 100
"""The same where a connection is being made, or waits in a pooler: the server does not show that."""

LONGEST_HEARING: Final = 5.0
"""Seconds of real time for what a listener is to hear, longer than its check of a new connection; where its server is away
it hears nothing."""

MOST_LOOKS: Final = 2_000
"""Looks at statements that the server has in hand, each of which ends by itself, if only the machine has time for it."""

LAST_LOOKS: Final = 100
"""Looks at the sessions of a store that was cut off, after which the server is told to end them."""


@dataclass(frozen=True)
class Place:
    """Where a case's storage is, for whatever process."""

    dsn: str
    """What stores are opened with."""
    direct: str
    """A superuser's way to the same database, past any pooler."""
    schema: str
    options: dict[str, Any] = field(default_factory=dict)
    """What the column opens every store with."""
    engine: type[PgEngine] = PgEngine

    @property
    def is_pooled(self) -> bool:
        return self.dsn != self.direct


class PgFactory:
    """Stores in one schema, and everything else that lives beside it.

    Args:
        place: Where that is.
        seed: What the stores' randomness comes from.
        outsider: The suite's own connection to the database.
        server: What can be restarted and copied to; None in a child process, which does neither.
        sessions: What closed stores leave to those that are opened after them; None where each begins its own.

    Attributes:
        clock: What every store of this process reads.
        is_spoilt: Whether the schema is no longer as a store makes it.
    """

    def __init__(
        self,
        place: Place,
        seed: str,
        outsider: Outsider,
        server: Server | None = None,
        sessions: Sessions | None = None,
    ) -> None:
        self.place = place
        self._way = place
        self.outsider = outsider
        self.server = server
        self.sessions = sessions
        self.clock = SuiteClock()
        self.random = random.Random(seed)
        self.is_spoilt = False
        self._seed = seed
        # Weak, or a store that a row dropped would never be collected.
        self._stores: weakref.WeakSet[SuiteStore] = weakref.WeakSet()
        self._moves: weakref.WeakKeyDictionary[SuiteStore, tuple[int, int, int]] = weakref.WeakKeyDictionary()
        self._stuck: weakref.WeakKeyDictionary[SuiteStore, tuple[int, int, bool]] = (
            weakref.WeakKeyDictionary()
        )
        self._kept = ExitStack()
        # A child's own: the server's time was moved by the case before it tells its children.
        self._moves_server = server is not None
        self._tamed = {place.schema}

    def close(self) -> None:
        """Let go of what listens outside, and of what was copied elsewhere."""
        self._kept.close()

    # ---------------------------------------------------------------- stores

    async def open(self, instance: str = "a") -> Store:
        return await self.open_with()

    async def open_with(self, **options: Any) -> Store:
        # The column's own come last: a row that trusts in wakes alone has stores poll once an hour.
        chosen = {"schema": self.place.schema, **options, **self.place.options}
        store = SuiteStore(
            self.place.dsn,
            clock=self.clock,
            engine=self.place.engine,
            host=weakref.ref(self),
            sessions=self.sessions,
            random=self.random,
            **chosen,
        )
        _ = await store
        self._stores.add(store)
        return store

    def opened(self, schema: str) -> None:
        """Let a schema that is new to us have the suite's clock, before a store uses it."""
        if schema not in self._tamed:
            self.outsider.tame(schema)
            self._tamed.add(schema)

    async def reopen(self, store: Store) -> Store:
        await store.aclose()
        return await self.open()

    async def crash(self, store: Store, kind: Crash) -> None:
        """Cut a store off, as the network or the end of its process does; what it then does itself nobody sees."""
        cord = cast(SuiteStore, store).cord
        pids = [] if self.place.is_pooled else cord.pids()
        if kind is Crash.DROP:
            self.outsider.terminate(pids)
        cord.cut()
        await self._ended(pids)
        await store.aclose()

    async def _ended(self, pids: Sequence[int]) -> None:
        """Wait until these sessions are gone; without any, a pooler's: until nobody works."""
        for _ in range(LAST_LOOKS):
            left = self.outsider.alive(pids) if pids else self.outsider.working()
            if not left:
                return
            await asyncio.sleep(LOOK_AGAIN)
        # One waits for a lock, and would only see afterwards that nobody waits for it.
        self.outsider.terminate(pids)

    async def blank(self) -> None:
        """Leave no schema at all."""
        self.is_spoilt = True
        self.outsider.drop([self.place.schema])
        self._tamed.clear()

    # ---------------------------------------------------------------- time

    async def advance(self, seconds: float) -> None:
        to = shift(self.clock.now(), duration(seconds, "seconds"))
        if self._moves_server:
            await self._end_of_statements()
            self.outsider.set_clock(to)
        await self.clock.set(to_datetime(to))
        await self.settle()

    async def _end_of_statements(self) -> None:
        """Wait until the server has nothing in hand that goes on: what a killed process sent belongs to before the jump."""
        for _ in range(MOST_LOOKS):
            if self.outsider.is_away or not self.outsider.progress()[1]:
                return
            await asyncio.sleep(LOOK_AGAIN)

    async def now(self) -> datetime:
        return self.clock.datetime

    async def settle(self) -> None:
        await self._come_to_rest()
        # Nothing tells stores that only poll, so it is as if each of them polled now.
        for _ in range(MOST_POLLS if self._polls and not self.outsider.is_away else 0):
            before = self.outsider.writes()
            for store in self._open_stores:
                _poll(store)
            await self._come_to_rest()
            if self.outsider.writes() == before:
                return

    @property
    def _polls(self) -> bool:
        return self.place.options.get("listen") is False

    @property
    def _open_stores(self) -> list[SuiteStore]:
        return [store for store in self._stores if engine_of(store) is not None]

    async def _come_to_rest(self) -> None:
        # What ended before now is not what a look is repeated for.
        for store in self._open_stores:
            self._moves[store] = _moves_of(store)
        for _ in range(MOST_ROUNDS):
            await self.clock.settle()
            moved = await asyncio.gather(*(self._moved(store) for store in self._open_stores))
            if not any(moved):
                return
        raise RuntimeError(f"stores in {self.place.schema} did not come to rest in {MOST_ROUNDS} rounds")

    async def _moved(self, store: SuiteStore) -> bool:
        """Wait until a store has done what it has in hand, and has heard what others did; whether anything came of it."""
        engine = engine_of(store)
        if engine is None:
            return False
        await self._end_of_work(store, engine)
        before = self._moves.get(store)
        # To hear costs a round trip, so it waits for a round in which nothing else moved any more.
        if _moves_of(store) == before and not self.outsider.is_away:
            await faults.bounded(engine.wakes.hear(), LONGEST_HEARING)
            # Who waited for the same has not begun yet what comes after.
            await self.clock.settle()
        self._moves[store] = _moves_of(store)
        return self._moves[store] != before

    async def _end_of_work(self, store: SuiteStore, engine: PgEngine) -> None:
        for link in cancelling(engine):
            await faults.bounded(link.run(_nothing, reads=True), LONGEST_HEARING)
        traffic, is_hidden = engine.traffic, self.place.is_pooled
        turns = looks = 0
        while traffic.in_hand:
            await asyncio.sleep(0 if turns < QUICK_TURNS else LOOK_AGAIN)
            turns += 1
            if turns <= QUICK_TURNS:
                continue
            is_held, is_at_work = self._progress(engine)
            looks = 0 if is_at_work else looks + 1
            state = traffic.in_hand, traffic.done, is_held
            if looks and self._stuck.get(store) == state:
                return  # as the last time: most likely a task that the case lets stand still
            if looks >= (
                ENOUGH_LOOKS if is_held else MORE_LOOKS if is_hidden or store.cord.dials else MANY_LOOKS
            ):
                self._stuck[store] = state
                return

    def _progress(self, engine: PgEngine) -> tuple[bool, bool]:
        """Say whether anything waits for somebody's end, and whether anything goes on."""
        if self.outsider.is_away:
            return True, False
        is_held, is_at_work = self.outsider.progress()
        return is_held or len(engine._pool.lent) >= engine._options.pool_size, is_at_work

    # ---------------------------------------------------------------- what not every engine has

    def remote(self) -> Remote:
        return functools.partial(_elsewhere, self._way, self._seed)

    @asynccontextmanager
    async def disturbances(self) -> AsyncIterator[Disturbances]:
        """Let processes that begin within the block reach the server through a proxy."""
        self._forget()
        async with disturbed(self) as (self._way, happens):
            try:
                yield happens
            finally:
                self._way = self.place
                self._forget()

    def fault(self, kind: Fault, store: Store) -> AbstractAsyncContextManager[None] | Unsupported:
        broken = faults.fault(kind, self, cast(SuiteStore, store))
        return broken if isinstance(broken, Unsupported) else self._forgetting(broken)

    @asynccontextmanager
    async def _forgetting(self, broken: AbstractAsyncContextManager[None]) -> AsyncIterator[None]:
        # Sessions that began before are not like those that would begin within, nor these like those that begin after.
        self._forget()
        try:
            async with broken:
                self._forget()
                yield
        finally:
            self._forget()

    def _forget(self) -> None:
        if self.sessions is not None:
            self.sessions.forget()

    def business(self) -> Business:
        return application.Table(self.outsider)

    def applications(self) -> Sequence["Application"]:
        # Here alone, so that the column runs where SQLAlchemy, an extra, is not installed.
        from alkstore_pg import contract_joins

        return [kind(self.place, self.outsider) for kind in contract_joins.APPLICATIONS]

    async def foreign_schema(self, newer: bool) -> None:
        self.is_spoilt = True
        storage.age(self.outsider, self.place.schema, newer=newer)

    async def alter(self) -> None:
        """Add columns and build indexes anew, as an administrator may while stores are open (DUR-05)."""
        self.is_spoilt = True
        await asyncio.to_thread(storage.touch, Outsider(self.place.direct), self.place.schema)

    async def dump_restore(self) -> StoreFactory | None:
        assert self.server is not None
        place = self.place
        server = await asyncio.to_thread(storage.copied, self.server, place.direct, place.schema)
        if server is None:
            return None
        self._kept.callback(server.close)
        options = {name: value for name, value in place.options.items() if name != "listener_dsn"}
        there = Place(server.dsn, server.dsn, place.schema, options, place.engine)
        outsider = Outsider(server.dsn)
        self._kept.callback(outsider.close)
        outsider.furnish()
        other = PgFactory(there, self._seed, outsider, server)
        await other.advance((self.clock.datetime - other.clock.datetime).total_seconds())
        return other

    def outside(self, channel: str) -> AsyncIterator[bytes]:
        listener = application.Outside(self.place.direct, self.place.schema, channel)
        self._kept.callback(listener.close)
        return listener

    async def footprint(self) -> int:
        """Count the rows of alkstore's tables (DUR-13)."""
        return storage.count(self.outsider, self.place.schema)

    async def sound(self) -> str | None:
        """Say what the server finds wrong with the schema."""
        return storage.examine(self.outsider, self.place.schema)


async def _nothing(on: Session) -> None:
    await on.fetch("SELECT 1")


def _moves_of(store: SuiteStore) -> tuple[int, int, int]:
    engine = engine_of(store)
    return (
        (engine.traffic.in_hand, engine.traffic.done, engine.wakes.heard) if engine is not None else (0, 0, 0)
    )


def _poll(store: SuiteStore) -> None:
    engine = engine_of(store)
    if engine is not None:
        for topic in engine.wakes.hub.topics():
            if topic.kind is not TopicKind.CLOCK:
                engine.wakes.hub.wake(topic)


def _elsewhere(place: Place, seed: str, process: str) -> StoreFactory:
    return PgFactory(place, f"{seed}/{process}", Outsider(place.direct))
