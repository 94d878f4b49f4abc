"""A ready column for an engine that keeps everything in one file, which every process on the machine may open.

An author derives a factory that makes a store on a path, and adds what the engine has: faults, the caller's own SQL. A scope
is a folder of its own with that one file in it. A crash is a copy: the files as they are at that instant, with the journals
beside them, are what a kill leaves behind. They go into a fresh folder, where the next store is opened; the old store ends
on files that nobody looks at any more.
"""

import asyncio
import functools
import os
import random
import shutil
import tempfile
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

from alkstore import Closed, Store
from alkstore.hookspecs import EngineRegistration
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
    StoreFactory,
    Unsupported,
)
from alkstore_contract_suite.stores import MadeStores

__all__ = ["MakeFactory", "SingleFileBackend", "SingleFileColumn", "SingleFileFactory"]

FILE: Final = "alkstore.db"

SHARED: Final = "-shm"
"""How the file ends, as SQLite names it, by which processes that run at the same time agree."""

MEMORY: Final = "/dev/shm"
"""Where Linux keeps files in memory: a run commits some 100,000 times, and a sync costs nothing there."""

LEAST_ROOM: Final = 512 * 1024 * 1024
"""Free bytes that a run needs at least; containers often have 64 MiB in memory."""

MOST_ROUNDS: Final = 1_000
"""Rounds of looking after which stores that still do something wake each other for ever."""


class SingleFileFactory(MadeStores):
    """Opens stores on one file and one manual clock.

    Args:
        folder: Where the file is, or will be made; absolute.
        seed: What the stores' randomness comes from.

    Attributes:
        clock: What every store of this process reads.
        random: What every store of this process draws from.
    """

    def __init__(self, folder: Path, seed: str) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.random = random.Random(seed)
        self._folder = self._first = folder
        self._seed = seed
        self._crashes = 0

    # ---------------------------------------------------------------- what an author supplies

    @abstractmethod
    def make_store(self, **options: Any) -> Store:
        """Make an unopened store on `path`, `clock` and `random`, with options that every engine has."""

    async def settled(self, store: Store) -> bool:
        """Wait until the threads of a store have done what they have in hand; True if anything came of it, or of what they
        have done since this was asked last.

        What stands in line behind somebody's open transaction is not waited for. Whoever looks for other processes'
        commits has looked again. A store that is closed has nothing in hand. An engine without threads needs none of it.
        """
        return False

    def still(self) -> AbstractContextManager[object]:
        """Keep the files consistent with each other while they are copied one after the other."""
        return nullcontext()

    @classmethod
    def make_template(cls, path: Path) -> bool:
        """Write the file that every scope begins with a copy of; False if a scope begins without one."""
        return False

    # ---------------------------------------------------------------- stores

    @property
    def path(self) -> Path:
        """The file; another one after a crash."""
        return self._folder / FILE

    async def crash(self, store: Store, kind: Crash) -> None:
        """Go on with a copy of the files as they are now; only then is the old store closed, out of sight.

        After KILL everything is there that a killed process leaves. After DROP the file by which processes that run at the
        same time agree is gone as well, as after the machine went down or the file was moved.
        """
        for other in list(self._stores):
            if other is not store and await _is_open(other):
                raise RuntimeError(
                    "a crash takes its whole process along; close the scope's other stores before"
                )
        self._crashes += 1
        after = self._first.with_name(f"{self._first.name}-after-{self._crashes}")
        with self.still():
            # Nothing of the event loop runs meanwhile. To close what was opened here drops this process's locks on the
            # old files: nobody has them but the old store, which is not used again.
            _copy(self._folder, after, kind)
        self._folder = after
        await store.aclose()

    async def blank(self) -> None:
        """Leave no file at all, the template's neither."""
        for file in self._folder.iterdir():
            file.unlink()

    # ---------------------------------------------------------------- time

    async def advance(self, seconds: float) -> None:
        await self.clock.advance(seconds)
        await self.settle()

    async def settle(self) -> None:
        for _ in range(MOST_ROUNDS):
            await self.clock.settle()
            moved = await asyncio.gather(*(self.settled(store) for store in list(self._stores)))
            if not any(moved):
                return
        raise RuntimeError(f"stores on {self.path} did not come to rest in {MOST_ROUNDS} rounds of looking")

    # ---------------------------------------------------------------- what not every engine has

    def remote(self) -> Remote | None:
        return functools.partial(_elsewhere, type(self), self._folder, self._seed)

    def fault(self, kind: Fault, store: Store) -> AbstractAsyncContextManager[None] | Unsupported:
        return Unsupported(f"the column does not say how {kind.value!r} is brought about")


async def _is_open(store: Store) -> bool:
    try:
        await store.queues()
    except Closed:
        return False
    return True


def _copy(before: Path, after: Path, kind: Crash) -> None:
    after.mkdir()
    files = {file.name: file for file in before.iterdir()}
    shared = [name for name in files if name.endswith(SHARED)]
    # The locks are on the shared memory, and gone once it was opened and closed here: it comes last.
    for name in [*sorted(files.keys() - shared), *(shared if kind is Crash.KILL else ())]:
        shutil.copyfile(files[name], after / name)


def _elsewhere(
    factory: "Callable[[Path, str], StoreFactory]", folder: Path, seed: str, process: str
) -> StoreFactory:
    return factory(folder, f"{seed}/{process}")


MakeFactory = type[SingleFileFactory]


class SingleFileBackend:
    """A folder in which every scope has one of its own."""

    def __init__(self, folder: Path, factory: MakeFactory) -> None:
        self._folder = folder.absolute()
        self._factory = factory
        self._scopes = 0
        template = folder / "template"
        self._template = template if factory.make_template(template) else None

    @asynccontextmanager
    async def scope(self, case: str) -> AsyncIterator[StoreFactory]:
        self._scopes += 1
        folder = self._folder / f"scope-{self._scopes}"
        folder.mkdir()
        if self._template is not None:
            shutil.copyfile(self._template, folder / FILE)
        try:
            yield self._factory(folder, case)
        finally:
            _remove(self._folder.glob(f"{folder.name}*"))


def _remove(folders: Iterable[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)  # what a child process still holds goes with the backend


class SingleFileColumn:
    """The column: a name, what the engine has, and the factory.

    Args:
        name: What ``--alk-engine`` calls it.
        version: Of the engine's distribution.
        contract: The version of the contract that the engine was built for.
        capabilities: Something for every word of `row.CAPABILITIES`.
        factory: The author's class.
        omitted: Ids of rows that the engine cannot express, each with a reason.
        registration: The hook ``alkstore_engine``; without it nobody can see whether it says what the column says (VER-02).
        available: Says whether the engine can run here; it always can by default.
        storage: What the file is one of, with its version, for the report.
    """

    clock = ClockMode.INJECTED

    def __init__(
        self,
        name: str,
        *,
        version: str,
        contract: str,
        capabilities: Mapping[str, Capability],
        factory: MakeFactory,
        omitted: Mapping[str, str] | None = None,
        registration: Callable[[], EngineRegistration] | None = None,
        available: Callable[[], Available | Missing] = Available,
        storage: str = "",
    ) -> None:
        self.name = name
        self.version = version
        self.contract = contract
        self.capabilities = capabilities
        self.omitted = omitted or {}
        self._registration = registration
        self.available = available
        self._factory = factory
        self._storage = storage

    def storage(self) -> str:
        return self._storage

    def registration(self) -> EngineRegistration | None:
        return self._registration() if self._registration is not None else None

    @asynccontextmanager
    async def backend(self, worker: str) -> AsyncIterator[Backend]:
        prefix = f"alkstore-{self.name}-{worker}-"
        with tempfile.TemporaryDirectory(prefix=prefix, dir=_memory()) as folder:
            yield SingleFileBackend(Path(folder), self._factory)


def _memory() -> str | None:
    """Give the folder in memory; None, and the machine's temporary one is taken, if there is none or TMPDIR says where."""
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK | os.X_OK):
        return None
    return MEMORY if shutil.disk_usage(MEMORY).free >= LEAST_ROOM else None
