"""A ready column for an engine over a server: one that each test process starts for itself, or that is there already.

An author derives three things. From ``OwnServer``, if the machine has the program, a server in a folder of its own: how it is
started, and how one sees that it lets clients in. From `ServerFactory` how a store is made, how the server's clock is set,
how its storage is emptied, and how a store is cut off; and what is under way in one, for ``settle``. Hand both to
`ServerColumn`. Whatever is the same for every server is here: a scope's storage begins empty, time moves at both ends, stores
of this process come to rest, other processes find the same storage and leave the server's clock alone.

The server's *now* comes from one place that the column replaces: a function in the schema, a line of a script. In the stores
`SuiteClock` stands where the engine has `alkstore.clock.ServerClock`.
"""

import asyncio
import functools
import random
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, asynccontextmanager
from typing import Any, ClassVar, Final, Generic, Protocol, TypeAlias, TypeVar

from alkstore import Store
from alkstore.calls import Calls
from alkstore.hookspecs import EngineRegistration
from alkstore.listener import Listener
from alkstore.numbers import duration, shift, to_datetime
from alkstore.testing import ManualClock
from alkstore_contract_suite.factory import (
    Available,
    Backend,
    Capability,
    ClockMode,
    Crash,
    Fault,
    Missing,
    Remote,
    StorageEnded,
    StoreFactory,
    Unsupported,
)
from alkstore_contract_suite.own_server import OwnServer
from alkstore_contract_suite.stores import MadeStores

__all__ = [
    "Break",
    "Place",
    "ServerBackend",
    "ServerColumn",
    "ServerFactory",
    "SuiteClock",
    "moves_of",
    "rest_of",
]

T = TypeVar("T")

MOST_ROUNDS: Final = 1_000
"""Rounds of looking after which stores that still do something wake each other for ever."""

LOOK_AGAIN: Final = 0.001
"""Seconds of real time between two looks at something that tells nobody when it changes."""


class SuiteClock(ManualClock):
    """The server's clock as a process knows it, while the suite moves both."""

    async def learn(self, answer: Awaitable[T], told: Callable[[T], int | None]) -> T:
        """Await an answer, and learn nothing of it: the suite tells."""
        return await answer


class Place(Protocol):
    """A server for one run's cases, as far as the suite deals with it; ``OwnServer`` is one."""

    @property
    def url(self) -> str:
        """What stores are opened with, in whatever process."""


P = TypeVar("P", bound=Place)


class ServerFactory(MadeStores, Generic[P]):
    """Opens stores on one server, whose time it moves.

    Args:
        url: Where the server is.
        seed: What the stores' randomness comes from.
        server: What can be stopped and copied to; None in a child process, which neither moves the server's time nor breaks it.

    Attributes:
        clock: What every store of this process reads.
        random: What every store of this process draws from.
        way: What other processes open the storage with: by another way than ``url`` within ``disturbances``, if there are any.
        kept: What is let go of when the scope ends, for whatever a case opened beside its stores.
        faults: How each fault is brought about, for those that can be.
    """

    faults: ClassVar[Mapping[Fault, "Break"]] = {}
    clock: SuiteClock

    def __init__(self, url: str, seed: str, server: P | None = None) -> None:
        super().__init__()
        self.url = self.way = url
        self.server = server
        self.clock = SuiteClock()
        self.random = random.Random(seed)
        self.kept = ExitStack()
        self._seed = seed

    # ---------------------------------------------------------------- what an author supplies

    @abstractmethod
    def make_store(self, **options: Any) -> Store:
        """Make an unopened store on ``url``, `clock` and `random`, with options that every engine has."""

    @abstractmethod
    async def set_clock(self, now: int) -> None:
        """Set the server's now, in microseconds; nothing where the server is away, it is told when it comes back.

        What a killed process has sent belongs to before the jump: ask the server for an answer first.
        """

    @abstractmethod
    async def empty(self) -> None:
        """Make the storage as it is before any store was ever opened on it."""

    @abstractmethod
    async def cut(self, store: Store) -> None:
        """Let nothing get through to the server any more that a store does, its close neither."""

    @abstractmethod
    def moves(self, store: Store) -> tuple[int, ...]:
        """Give figures that change with whatever a store does or hears; `moves_of` gives those of core's parts."""

    @abstractmethod
    async def rest(self, store: Store) -> None:
        """Return when a store has nothing under way and has heard what was committed; `rest_of` does so for core's parts.

        Count what the connection waits for, not what a caller does: rows hold a task back in the midst of a method.
        """

    # ---------------------------------------------------------------- stores

    async def crash(self, store: Store, kind: Crash) -> None:
        """Cut a store off, as the network or the end of its process does; what it then does itself nobody sees."""
        await self.cut(store)
        await store.aclose()

    async def blank(self) -> None:
        await self.empty()
        await self.set_clock(self.clock.now())

    def close(self) -> None:
        """Let go of what was kept."""
        self.kept.close()

    # ---------------------------------------------------------------- time

    async def advance(self, seconds: float) -> None:
        to = shift(self.clock.now(), duration(seconds, "seconds"))
        # A child's own: the server's time was moved by the case before it tells its children.
        if self.server is not None:
            await self.set_clock(to)
        await self.clock.set(to_datetime(to))
        await self.settle()

    async def settle(self) -> None:
        for _ in range(MOST_ROUNDS):
            before = self._moves()
            await self.clock.settle()
            for store in self.open_stores:
                await self.rest(store)
            await self.clock.settle()
            if self._moves() == before:
                return
        raise RuntimeError(f"stores on {self.url} did not come to rest in {MOST_ROUNDS} rounds of looking")

    @property
    def open_stores(self) -> list[Store]:
        """The stores of this process that are open."""
        return [store for store in self._stores if store._state == "open"]

    def _moves(self) -> dict[int, tuple[int, ...]]:
        return {id(store): self.moves(store) for store in self.open_stores}

    # ---------------------------------------------------------------- what not every engine has

    def remote(self) -> Remote | None:
        return functools.partial(_elsewhere, type(self), self.way, self._seed)

    def fault(self, kind: Fault, store: Store) -> AbstractAsyncContextManager[None] | Unsupported:
        if kind not in self.faults:
            return Unsupported(f"the column does not say how {kind.value!r} is brought about")
        return self.faults[kind](self, store)


Break: TypeAlias = Callable[[Any, Store], AbstractAsyncContextManager[None]]
"""Breaks a store's storage for the length of a block; called with the factory, which an author has derived, and the store."""


def _elsewhere(
    factory: Callable[[str, str], StoreFactory], url: str, seed: str, process: str
) -> StoreFactory:
    return factory(url, f"{seed}/{process}")


def moves_of(calls: Calls, listener: Listener) -> tuple[int, int, int]:
    """Give the figures of an engine that takes core's parts."""
    return calls.in_hand, calls.done, listener.heard


async def rest_of(calls: Calls, listener: Listener) -> None:
    """Wait until an engine that takes core's parts has nothing under way and has heard what was committed."""
    while calls.in_hand:  # noqa: ASYNC110  # an engine needs no event for it but for this
        await asyncio.sleep(LOOK_AGAIN)
    await listener.hear()


class ServerBackend(Generic[P]):
    """One server, whose storage is emptied before each case."""

    def __init__(self, server: P, factory: "MakeFactory[P]") -> None:
        self._server = server
        self._factory = factory

    @asynccontextmanager
    async def scope(self, case: str) -> AsyncIterator[StoreFactory]:
        factory = self._factory(self._server.url, case, self._server)
        try:
            await factory.blank()
            yield factory
        finally:
            factory.close()
            told = self._server.revive() if isinstance(self._server, OwnServer) else None
            if told is not None:
                raise StorageEnded(f"the server ended by itself, and was started again; its log: {told!r}")


MakeFactory: TypeAlias = Callable[[str, str, P], ServerFactory[P]]


class ServerColumn(Generic[P]):
    """The column: a name, what the engine has, the server and the factory.

    Args:
        name: What ``--alk-engine`` calls it.
        version: Of the engine's distribution.
        contract: The version of the contract that the engine was built for.
        capabilities: Something for every word of `row.CAPABILITIES`.
        server: Starts a server for the length of a block, or leads to one; called once in each test process, so two of
            them must not fight for a port or a name.
        factory: The author's class.
        available: None if there is such a server on this machine; else what to install or to set.
        omitted: Ids of rows that the engine cannot express, each with a reason.
        registration: The hook ``alkstore_engine``; without it nobody can see whether it says what the column says (VER-02).
        storage: What the server is, with its version, for the report.
    """

    clock = ClockMode.SERVER

    def __init__(
        self,
        name: str,
        *,
        version: str,
        contract: str,
        capabilities: Mapping[str, Capability],
        server: Callable[[], AbstractContextManager[P]],
        factory: "MakeFactory[P]",
        available: Callable[[], str | None],
        omitted: Mapping[str, str] | None = None,
        registration: Callable[[], EngineRegistration] | None = None,
        storage: Callable[[], str] = str,
    ) -> None:
        self.name = name
        self.version = version
        self.contract = contract
        self.capabilities = capabilities
        self.omitted = omitted or {}
        self.storage = storage
        self._available = available
        self._server = server
        self._factory = factory
        self._registration = registration

    def available(self) -> Available | Missing:
        advice = self._available()
        return Available() if advice is None else Missing(advice)

    def registration(self) -> EngineRegistration | None:
        return self._registration() if self._registration is not None else None

    @asynccontextmanager
    async def backend(self, worker: str) -> AsyncIterator[Backend]:
        with self._server() as server:
            yield ServerBackend(server, self._factory)
