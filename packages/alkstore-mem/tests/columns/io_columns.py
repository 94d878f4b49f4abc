"""Columns of engines with I/O, played in memory: what core does only for such engines is held to the same rows.

``mem_io`` awaits around every call and asks to be batched, so claims go through the pump and writes through the batcher.
``mem_shared`` gives every store of a case the same storage, so that rows can be seen from a second store.
"""

import asyncio
import inspect
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import alkstore
from alkstore.engine import Traits
from alkstore.testing import ManualClock
from alkstore_contract_suite.factory import Capability, Supported
from alkstore_contract_suite.in_process import InProcessColumn, MakeStore
from alkstore_contract_suite.registry import Registry
from alkstore_mem.contract import CAPABILITIES, MemColumn
from alkstore_mem.engine import OMITTED, MemEngine, alkstore_engine

TURNS = 2
"""Loop turns before and after each call: enough for others to get between."""


class IoEngine:
    """A mem engine at the end of a wire."""

    traits = Traits(batches=True)

    def __init__(self, inner: MemEngine) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        return _over_the_wire(method) if inspect.iscoroutinefunction(method) else method


class SharedEngine(IoEngine):
    """The same, whose storage outlives each of its stores."""

    async def aclose(self) -> None:
        """Leave the storage to the others."""


def _over_the_wire(method: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        for _ in range(TURNS):
            await asyncio.sleep(0)
        # What was sent is done, whether or not the caller still waits for the answer.
        result = await method(*args, **kwargs)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        return result

    return call


_shared: "WeakKeyDictionary[ManualClock, MemEngine]" = WeakKeyDictionary()


def _make_io(clock: ManualClock, source: random.Random, **options: Any) -> alkstore.Store:
    limit = options.get("wait_timeout", 30)

    async def connect() -> Any:
        return IoEngine(MemEngine(clock, wait_timeout=limit))

    return alkstore.Store(connect, name="mem_io", random=source, **options)


def _make_shared(clock: ManualClock, source: random.Random, **options: Any) -> alkstore.Store:
    async def connect() -> Any:
        return SharedEngine(_shared.setdefault(clock, MemEngine(clock)))

    return alkstore.Store(connect, name="mem_shared", random=source, **options)


def pytest_alkstore_register(registry: Registry) -> None:
    registry.register(_column("mem_io", _make_io, CAPABILITIES, OMITTED))
    shared = {**CAPABILITIES, "multi_process": Supported(), "durable": Supported()}
    registry.register(_column("mem_shared", _make_shared, shared, {}))


def _column(
    name: str, make_store: MakeStore, capabilities: Mapping[str, Capability], omitted: Mapping[str, str]
) -> InProcessColumn:
    said = alkstore_engine()
    registered = replace(
        said,
        capabilities={word: isinstance(capabilities[word], Supported) for word in said.capabilities},
        durable=isinstance(capabilities["durable"], Supported),
        omitted=omitted,
    )
    return MemColumn(
        name,
        version=alkstore.__version__,
        contract="1.0",
        capabilities=capabilities,
        make_store=make_store,
        omitted=omitted,
        registration=lambda: registered,
    )
