"""What an engine's author supplies: a column, its backend, and a factory of stores whose time the suite moves.

A *column* is cheap to make and does no I/O. Its *backend* (a server, a directory, nothing) lives for a whole run, in an
event loop of its own, so it must hold nothing that is bound to a loop. A *scope* is empty storage for one case, and
gives the *factory* that the case uses; both live in that case's own event loop. Everything is matched by shape;
`alkstore_contract_suite.in_process` has a ready backend and factory for engines that live in the caller's process.
"""

import enum
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeAlias, runtime_checkable

from alkstore import Store, Tx
from alkstore.hookspecs import EngineRegistration

__all__ = [
    "Available",
    "Backend",
    "Business",
    "Capability",
    "ClockMode",
    "Crash",
    "Disturbed",
    "EngineColumn",
    "Fault",
    "Inspected",
    "Missing",
    "Planned",
    "Registered",
    "Remote",
    "Shares",
    "StorageEnded",
    "StoreFactory",
    "Stored",
    "Supported",
    "Unsupported",
]


@dataclass(frozen=True, slots=True)
class Supported:
    """The engine has it, so every row that needs it is required."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """The engine cannot have it; the report shows why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Planned:
    """The engine will have it; the report shows what is planned."""

    what: str


Capability: TypeAlias = Supported | Unsupported | Planned


@dataclass(frozen=True, slots=True)
class Available:
    """The column can run here."""


@dataclass(frozen=True, slots=True)
class Missing:
    """The column cannot run here; ``advice`` says what to set or to install."""

    advice: str


class ClockMode(enum.Enum):
    """Where the engine's *now* comes from, for the report."""

    INJECTED = "injected"
    SERVER = "server"
    SHIFTED = "shifted"


class Crash(enum.Enum):
    """How a store dies without a close."""

    DROP = "drop"
    KILL = "kill"


class Fault(enum.Enum):
    """What can go wrong with storage while a store is open."""

    COMMIT_FAILS = "commit fails"
    STORAGE_AWAY = "storage away"
    STORAGE_FULL = "storage full"
    READ_ONLY = "read only"
    SERVER_RESTART = "server restart"
    LISTENER_LOST = "listener lost"
    LISTENER_SILENT = "listener silent"
    WATCHER_DIES = "watcher dies"
    WAKES_LOST = "wakes lost"


class Remote(Protocol):
    """A recipe that can be pickled: gives, in another process, a factory on the same storage.

    A function at the top level of a module that can be imported by its name, or a `functools.partial` of one. It is
    called once in a child, opens and empties nothing, and its factory's clock belongs to that process: the suite sets
    it with `StoreFactory.advance`. Importing its module must start no thread and open no file: that is done in the
    process that the children are forked from.
    """

    def __call__(self, process: str, /) -> "StoreFactory":
        """Give the factory of the process of this name, ``"p1"``, ``"p2"``, …: names for different randomness."""


class Business(Protocol):
    """The caller's own data beside alkstore's, written by the caller's own SQL."""

    async def write(self, tx: Tx, key: str, value: str) -> None:
        """Write through the connection of an open transaction."""

    async def read(self, key: str) -> str | None:
        """Read what is committed; None if nothing is."""

    async def end(self, tx: Tx, *, commit: bool) -> None:
        """Send a COMMIT or ROLLBACK through the connection of an open transaction, past alkstore."""


class StoreFactory(Protocol):
    """Opens stores on the storage of one case, and moves the time that they see."""

    async def open(self, instance: str = "a") -> Store:
        """Open a store with connections of its own on this scope's storage. The suite closes it.

        An engine without ``multi_process`` gives a store of its own storage, on the same clock.
        """

    async def open_with(self, **options: Any) -> Store:
        """Open a store as `open` does, with options that every engine has; the row closes it."""

    async def reopen(self, store: Store) -> Store:
        """Close a store, and open another one on what it left."""

    async def crash(self, store: Store, kind: Crash) -> None:
        """End a store without any of the work of a close."""

    async def advance(self, seconds: float) -> None:
        """Move now by exactly so much, which may be negative; between calls time stands still.

        Returns when every open store of this process has looked at its waits again. Stores of child processes have
        factories of their own, whose time the suite moves next.
        """

    async def now(self) -> datetime:
        """Give now as the stores see it, aware, in UTC, to the microsecond."""

    async def settle(self) -> None:
        """Return when everything that can be delivered to a store of this process at this instant has been.

        That includes what other processes had committed before the call, but not what an open transaction holds back.
        """

    async def blank(self) -> None:
        """Make the storage as it is before any store was ever opened on it; none is open now."""

    def remote(self) -> Remote | None:
        """Give what another process needs; None without ``multi_process``."""

    def fault(self, kind: Fault, store: Store) -> AbstractAsyncContextManager[None] | Unsupported:
        """Break a store's storage for the length of a block, or say why that cannot happen here."""

    def business(self) -> Business | None:
        """Give the caller's own data; None without ``sql``."""

    async def foreign_schema(self, newer: bool) -> None:
        """Leave the storage as a newer, or as the oldest supported, schema version would have written it."""

    async def dump_restore(self) -> "StoreFactory | None":
        """Copy the storage into another server, and give a factory on the copy; None where there is no such thing."""

    def outside(self, channel: str) -> AsyncIterator[bytes] | None:
        """Give the notify payloads that somebody who is not alkstore sees; None if nobody else can listen."""


@runtime_checkable
class Inspected(Protocol):
    """A factory that can look at the soundness of its storage, past alkstore; an extra of a `StoreFactory`."""

    async def sound(self) -> str | None:
        """Say what is wrong with the storage; None if nothing is."""


@runtime_checkable
class Disturbed(Protocol):
    """A factory whose storage can fail under processes that work on it, and come back; an extra of a `StoreFactory`."""

    def disturbances(self) -> AbstractAsyncContextManager[Mapping[str, Callable[[], Awaitable[None]]]]:
        """Let processes that begin within the block reach the storage by a way on which it can be made to fail.

        Gives by name, ``"server restart"`` and ``"network cut"`` as far as they can be had, what lets that happen once.
        """


class StorageEnded(Exception):
    """What a scope raises at its end if the storage itself has ended within it: more than anything else that was seen."""


class Backend(Protocol):
    """What all the cases of one run share."""

    def scope(self, case: str) -> AbstractAsyncContextManager[StoreFactory]:
        """Give empty storage for one case; ``case`` is unique in the run and also names the case's randomness.

        Its end raises `StorageEnded` if the storage is not there any more, and nobody of the suite has ended it.
        """


class EngineColumn(Protocol):
    """An engine as the suite sees it. Rows: VER-02."""

    @property
    def name(self) -> str:
        """What ``--alk-engine`` calls it."""

    @property
    def version(self) -> str:
        """The version of the engine's distribution."""

    @property
    def contract(self) -> str:
        """The version of the contract that the engine was built for."""

    @property
    def capabilities(self) -> Mapping[str, Capability]:
        """Every word of `row.CAPABILITIES`; the suite refuses a column that leaves one out."""

    @property
    def omitted(self) -> Mapping[str, str]:
        """Ids of rows that the engine cannot express at all, each with a reason."""

    @property
    def clock(self) -> ClockMode:
        """Where *now* comes from."""

    def available(self) -> Available | Missing:
        """Say whether the column can run on this machine. Quick, no I/O beyond looking."""

    def backend(self, worker: str) -> AbstractAsyncContextManager[Backend]:
        """Start what the cases share; ``worker`` tells parallel test processes apart."""


@runtime_checkable
class Registered(Protocol):
    """A column that gives what the engine's distribution says of itself; an extra of an `EngineColumn`. Rows: VER-02."""

    def registration(self) -> EngineRegistration | None:
        """Give what the hook ``alkstore_engine`` gives, for stores opened as this column opens them; None if it is not known."""


@runtime_checkable
class Shares(Protocol):
    """A column whose backends have something in common that is dear: a server, or a folder that a new one is copied from."""

    def shared(self) -> AbstractContextManager[object]:
        """Start it, once a run; every `EngineColumn.backend` comes later, most often in forks of this process.

        What it leaves in the column is there for all of them. It may leave processes behind, but no thread and no event loop,
        which no fork survives; whatever it started ends with the block.
        """


@runtime_checkable
class Stored(Protocol):
    """A column that says what its stores are kept in; an extra of an `EngineColumn`."""

    def storage(self) -> str:
        """Say it with its version, ``"PostgreSQL 16"``: reports of several versions stand side by side.

        It is asked at the end of a run, whether any case was run or not, so it starts nothing.
        """
