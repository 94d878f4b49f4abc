"""How a broken engine is declared: a class that is wrong in one way, or a patch of core for the mutant's run only.

    @mutant("ack-ignores-token", kills="Q-09")
    class AckIgnoresToken(MemEngine):
        async def settle_jobs(self, settles): ...

    @mutant("prefix-unchecked-on-listen", kills="NAME-02")
    def broken(patch):
        patch.attribute(Store, "listen", replacement)

A class is called as ``MemEngine`` is, so it may also be any callable that gives an engine. The column under the fault
is mem's own: same capabilities, same modes. An engine derived from ``SqliteEngine`` gets the column of sqlite instead,
for faults that several processes show, and one derived from ``PgEngine`` that of PostgreSQL, for faults that a server
shows: its column is ``pg``, or what the class names as ``column``. A class on a file may name capabilities that sqlite has
not as ``claims_to_have``, for rows that it is to fail.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Final, TypeVar, cast

from alkstore import Store
from alkstore.testing import ManualClock
from alkstore_contract_suite import CONTRACT_VERSION, broken
from alkstore_contract_suite.broken import MOST_ROWS
from alkstore_contract_suite.factory import EngineColumn, Remote, Supported, Unsupported
from alkstore_contract_suite.in_process import InProcessColumn, MakeStore
from alkstore_contract_suite.single_file import SingleFileColumn, SingleFileFactory
from alkstore_mem import engine as mem_engine
from alkstore_mem.contract import CAPABILITIES
from alkstore_mem.engine import OMITTED, MemEngine
from alkstore_pg.contract import DIRECT, POLL, PgColumn
from alkstore_pg.contract_factory import Place
from alkstore_pg.contract_server import Server
from alkstore_pg.engine import PgEngine
from alkstore_sqlite.contract import CAPABILITIES as FILE_CAPABILITIES
from alkstore_sqlite.contract import SqliteFactory
from alkstore_sqlite.engine import OMITTED as FILE_OMITTED
from alkstore_sqlite.engine import SqliteEngine, SqliteStore

__all__ = ["HONEST", "Patch", "file_factory", "mutant", "placed", "registered"]

T = TypeVar("T")

_MUTANTS: "dict[str, Mutant]" = {}


class Patch:
    """Replaces attributes until the mutant's run ends. Planting faults is the one reason to patch our own code."""

    def __init__(self, undo: ExitStack) -> None:
        self._undo = undo

    def attribute(self, owner: object, name: str, replacement: object) -> None:
        """Replace an attribute of a module, a class or an object; the original must exist."""
        is_own = name in vars(owner)
        original = vars(owner)[name] if is_own else getattr(owner, name)
        setattr(owner, name, replacement)
        if is_own:
            self._undo.callback(setattr, owner, name, original)
        else:
            self._undo.callback(delattr, owner, name)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted fault, the rows that must find it, and why many others may find it too."""

    name: str
    kills: Sequence[str]
    planted: Callable[..., Any]
    wide: str = ""

    @contextmanager
    def column(self) -> Iterator[EngineColumn]:
        """Give a column with the fault in it, for the length of a block."""
        with ExitStack() as undo:
            if isinstance(self.planted, type) and issubclass(self.planted, SqliteEngine):
                yield _file_column(self.name, self.planted, self.kills)
            elif isinstance(self.planted, type) and issubclass(self.planted, PgEngine):
                yield _server_column(self.name, self.planted)
            elif isinstance(self.planted, type):
                yield _column(self.name, _make_store(self.planted))
            else:
                self.planted(Patch(undo))
                yield _column(self.name, _make_store(MemEngine))


HONEST: Final = Mutant("honest", (), MemEngine)
"""Nothing is planted in it."""


def mutant(name: str, *, kills: str | Sequence[str], wide: str = "") -> Callable[[T], T]:
    """Declare a class or a patching function as the mutant of this name."""

    def declare(planted: T) -> T:
        if name in _MUTANTS:
            raise ValueError(f"mutant {name!r} is declared twice")
        rows = (kills,) if isinstance(kills, str) else tuple(kills)
        if not 1 <= len(rows) <= MOST_ROWS:
            raise ValueError(f"mutant {name!r} must be killed by 1 to {MOST_ROWS} rows, got {rows!r}")
        if not callable(planted):
            raise TypeError(f"mutant {name!r} must be a class or a function of a Patch")
        _MUTANTS[name] = Mutant(name, rows, planted, wide)
        return planted

    return declare


def registered() -> Sequence[Mutant]:
    """Give every mutant that was imported, in the order of declaration."""
    return list(_MUTANTS.values())


def _make_store(engine: Callable[..., Any]) -> MakeStore:
    def make(clock: ManualClock, source: random.Random, **options: Any) -> Store:
        async def connect() -> Any:
            return engine(clock, wait_timeout=store._wait_timeout)

        store = Store(connect, name="broken", random=source, **options)
        return store

    return make


def _column(name: str, make_store: MakeStore) -> InProcessColumn:
    return InProcessColumn(
        name.replace("-", "_"),
        version="broken on purpose",
        contract=CONTRACT_VERSION,
        # Joins are tried with applications, which mem's own factory has and this one has not.
        capabilities={**CAPABILITIES, "joins": Unsupported("the faults of joins are planted on a file")},
        make_store=make_store,
        omitted=OMITTED,
        registration=lambda: mem_engine.alkstore_engine(),  # looked up late: it may be what is broken
    )


def _file_column(name: str, engine: type[SqliteEngine], kills: Sequence[str]) -> SingleFileColumn:
    return SingleFileColumn(
        name.replace("-", "_"),
        version="broken on purpose",
        contract=CONTRACT_VERSION,
        capabilities={
            **FILE_CAPABILITIES,
            **dict.fromkeys(getattr(engine, "claims_to_have", ()), Supported()),
        },
        factory=file_factory(engine),
        # A row that is for a server may be tried on a file all the same, if the fault can be planted there.
        omitted={row: why for row, why in FILE_OMITTED.items() if row not in kills},
    )


def _server_column(name: str, engine: type[PgEngine]) -> PgColumn:
    kind = POLL if getattr(engine, "column", "") == POLL.name else DIRECT
    return _ServerColumn(replace(kind, name=name.replace("-", "_"), engine=engine))


class _ServerColumn(PgColumn):
    def _place(self, server: Server, database: str, stack: AsyncExitStack) -> Place:
        return placed(self._kind.engine, _but_engine(super()._place(server, database, stack)))


class _Place(Place):
    """Where a broken engine is, for children too."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Mutants are loaded by path, so that a pickle could not name them.
        stem = self.engine.__module__.removeprefix(broken.MODULES)
        return broken.planted, (stem, self.engine.__name__, placed.__name__, _but_engine(self))


def placed(engine: type[PgEngine], values: Mapping[str, Any]) -> Place:
    """Give the place of a broken engine."""
    return _Place(**values, engine=engine)


def _but_engine(place: Place) -> Mapping[str, Any]:
    return {each.name: getattr(place, each.name) for each in fields(place) if each.name != "engine"}


class _FileFactory(SqliteFactory):
    """Stores with a broken engine, in this process and in those of the children."""

    engine: type[SqliteEngine]

    def make_store(self, **options: Any) -> Store:
        engine = self.engine

        class BrokenStore(SqliteStore):
            async def _open_engine(self) -> Any:
                return await engine.open(
                    self._path, self._clock, wait_timeout=self._wait_timeout, durability=self._durability
                )

        return BrokenStore(self.path, clock=self.clock, random=self.random, **options)

    def remote(self) -> Remote | None:
        # Mutants are loaded by path, so that a pickle could not name them.
        stem = self.engine.__module__.removeprefix(broken.MODULES)
        return partial(broken.elsewhere, stem, self.engine.__name__, self._folder, self._seed)


def file_factory(engine: type[SqliteEngine]) -> type[SingleFileFactory]:
    """Give the class of the factory whose stores have this engine."""
    return cast(type[SingleFileFactory], type("Broken", (_FileFactory,), {"engine": engine}))
