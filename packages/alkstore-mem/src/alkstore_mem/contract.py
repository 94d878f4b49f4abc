"""The column of the mem engine in the contract suite."""

import random
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import alkstore
from alkstore.testing import ManualClock
from alkstore_contract_suite.factory import Backend, Capability, StoreFactory, Supported, Unsupported
from alkstore_contract_suite.in_process import InProcessColumn, InProcessFactory, MakeStore
from alkstore_contract_suite.registry import Registrar
from alkstore_mem import MemStore
from alkstore_mem.engine import OMITTED, alkstore_engine

if TYPE_CHECKING:
    from alkstore_contract_suite.rows._joining import Application

__all__ = ["CAPABILITIES", "MemColumn", "make_store", "register"]

JOINS: Final[Capability] = (
    Unsupported("WebAssembly has no greenlet, without which SQLAlchemy has no AsyncSession")
    if sys.platform == "emscripten"
    else Supported()
)

CAPABILITIES: Final[Mapping[str, Capability]] = {
    "listen": Supported(),
    "joins": JOINS,
    "durable": Unsupported("everything ends with the store"),
    "multi_process": Unsupported("a store is seen by its own process and by nothing else"),
    "sql": Unsupported("there is no database"),
    "reconnects": Unsupported("there is no connection that could be lost"),
    "notify_limit": Unsupported("a notify payload has no limit"),
    "schema": Unsupported("there are no tables"),
    "server": Unsupported("there is no server"),
    "watcher": Unsupported("no watcher is needed: whoever commits wakes whoever waits"),
    "poll_only": Unsupported("nothing is polled"),
    "migrations": Unsupported("there are no tables"),
}


def register(registry: Registrar) -> None:
    """Register the column; the entry point ``alkstore.contract_engines`` names this function."""
    registry.register(
        MemColumn(
            "mem",
            version=alkstore.__version__,
            contract="1.0",
            capabilities=CAPABILITIES,
            make_store=make_store,
            omitted=OMITTED,
            registration=alkstore_engine,
        )
    )


class MemColumn(InProcessColumn):
    """The column of an engine that joins SQLAlchemy's sessions as mem does."""

    @asynccontextmanager
    async def backend(self, worker: str) -> AsyncIterator[Backend]:
        yield _Backend(self._make_store)


class _Backend:
    def __init__(self, make_store: MakeStore) -> None:
        self._make_store = make_store

    @asynccontextmanager
    async def scope(self, case: str) -> AsyncIterator[StoreFactory]:
        # The applications' databases are files. Most cases have none, and leave nothing but an empty folder to remove.
        with tempfile.TemporaryDirectory(prefix="alkstore-mem-") as folder:
            yield _Factory(self._make_store, random.Random(case), Path(folder))


class _Factory(InProcessFactory):
    def __init__(self, make_store: MakeStore, source: random.Random, folder: Path) -> None:
        super().__init__(make_store, source)
        self._folder = folder

    def applications(self) -> Sequence["Application"]:
        # Here alone, so that the column runs where SQLAlchemy, an extra, is not installed.
        from alkstore_mem import contract_joins

        return [kind(self._folder) for kind in contract_joins.APPLICATIONS]


def make_store(clock: ManualClock, source: random.Random, **options: Any) -> alkstore.Store:
    """Make an unopened store on a clock and a random source."""
    return MemStore(clock=clock, random=source, **options)
