"""A ready column for an engine that lives in the caller's process and keeps nothing beyond one store."""

import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from typing import Any, Final, TypeAlias

from alkstore import Store
from alkstore.hookspecs import EngineRegistration
from alkstore.testing import ManualClock
from alkstore_contract_suite.factory import (
    Available,
    Backend,
    Business,
    Capability,
    ClockMode,
    Crash,
    Fault,
    Remote,
    StoreFactory,
    Unsupported,
)

__all__ = ["InProcessBackend", "InProcessColumn", "InProcessFactory", "MakeStore"]

MakeStore: TypeAlias = Callable[..., Store]
"""Gives an unopened store: called with a `ManualClock`, a `random.Random`, and options that every engine has."""

NO_STORAGE: Final = Unsupported("the engine has no storage beyond the process")


class InProcessFactory:
    """Opens stores on one manual clock; each has storage of its own, which ends with it."""

    def __init__(self, make_store: MakeStore, source: random.Random) -> None:
        self.clock = ManualClock()
        self._make_store = make_store
        self._random = source

    async def open(self, instance: str = "a") -> Store:
        return await self._make_store(self.clock, self._random)

    async def open_with(self, **options: Any) -> Store:
        return await self._make_store(self.clock, self._random, **options)

    async def reopen(self, store: Store) -> Store:
        await store.aclose()
        return await self.open()

    async def crash(self, store: Store, kind: Crash) -> None:
        raise RuntimeError(
            "a store in this process cannot die without it; rows that crash one need 'durable'"
        )

    async def advance(self, seconds: float) -> None:
        await self.clock.advance(seconds)

    async def now(self) -> datetime:
        return self.clock.datetime

    async def settle(self) -> None:
        await self.clock.settle()

    async def blank(self) -> None:
        """Every store begins with storage of its own."""

    def remote(self) -> Remote | None:
        return None

    def fault(self, kind: Fault, store: Store) -> AbstractAsyncContextManager[None] | Unsupported:
        return NO_STORAGE

    def business(self) -> Business | None:
        return None

    async def foreign_schema(self, newer: bool) -> None:
        raise RuntimeError("there is no storage to prepare; rows about schemas need 'schema'")

    async def dump_restore(self) -> StoreFactory | None:
        return None

    def outside(self, channel: str) -> AsyncIterator[bytes] | None:
        return None


class InProcessBackend:
    """Nothing is shared: every scope is a new factory."""

    def __init__(self, make_store: MakeStore) -> None:
        self._make_store = make_store

    @asynccontextmanager
    async def scope(self, case: str) -> AsyncIterator[StoreFactory]:
        yield InProcessFactory(self._make_store, random.Random(case))


class InProcessColumn:
    """The column: a name, what the engine has, and how a store is made.

    Args:
        name: What ``--alk-engine`` calls it.
        version: Of the engine's distribution.
        contract: The version of the contract that the engine was built for.
        capabilities: Something for every word of `row.CAPABILITIES`.
        make_store: Gives an unopened store on a clock, a random source and keyword options.
        omitted: Ids of rows that the engine cannot express, each with a reason.
        registration: The hook ``alkstore_engine``; without it nobody can see whether it says what the column says (VER-02).
    """

    clock = ClockMode.INJECTED

    def __init__(
        self,
        name: str,
        *,
        version: str,
        contract: str,
        capabilities: Mapping[str, Capability],
        make_store: MakeStore,
        omitted: Mapping[str, str] | None = None,
        registration: Callable[[], EngineRegistration] | None = None,
    ) -> None:
        self.name = name
        self.version = version
        self.contract = contract
        self.capabilities = capabilities
        self.omitted = omitted or {}
        self._registration = registration
        self._make_store = make_store

    def available(self) -> Available:
        return Available()

    def registration(self) -> EngineRegistration | None:
        return self._registration() if self._registration is not None else None

    @asynccontextmanager
    async def backend(self, worker: str) -> AsyncIterator[Backend]:
        yield InProcessBackend(self._make_store)
