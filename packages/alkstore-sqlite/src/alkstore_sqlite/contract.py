"""The column of the sqlite engine in the contract suite."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, cast
from weakref import WeakKeyDictionary

import aiosqlite

import alkstore
from alkstore import Store, Tx
from alkstore.migrations import load
from alkstore_contract_suite.factory import Business, Capability, Fault, Supported, Unsupported
from alkstore_contract_suite.registry import Registrar
from alkstore_contract_suite.single_file import SingleFileColumn, SingleFileFactory
from alkstore_sqlite import contract_faults
from alkstore_sqlite.connection import Connection, Patience, Wait
from alkstore_sqlite.contract_faults import outsider
from alkstore_sqlite.engine import OMITTED, SqliteEngine, SqliteStore, alkstore_engine
from alkstore_sqlite.schema import migrate

if TYPE_CHECKING:
    from alkstore_contract_suite.rows._joining import Application

__all__ = ["CAPABILITIES", "SqliteFactory", "register"]

CAPABILITIES: Final[Mapping[str, Capability]] = {
    "durable": Supported(),
    "multi_process": Supported(),
    "sql": Supported(),
    "listen": Supported(),
    "joins": Supported(),
    "watcher": Supported(),
    "migrations": Supported(),
    "reconnects": Unsupported("the file is read directly: there is no connection that could be lost"),
    "notify_limit": Unsupported("a notify payload has no limit"),
    "server": Unsupported("there is no server: now is the clock of each process"),
    "schema": Unsupported("a file has no schemas"),
    "poll_only": Unsupported("there is no polling-only mode: the watcher needs nothing but the file"),
}

_NO_SERVER: Final = "there is no server, and no connection to one"

_IMPOSSIBLE: Final = {
    Fault.SERVER_RESTART: _NO_SERVER,
    Fault.LISTENER_LOST: _NO_SERVER,
    Fault.LISTENER_SILENT: _NO_SERVER,
    Fault.WAKES_LOST: "wakes are read from the file, so there is nothing on its way that could be lost",
}

_Break: TypeAlias = Callable[[Path, Store], AbstractAsyncContextManager[None]]

_FAULTS: Final[Mapping[Fault, _Break]] = {
    Fault.COMMIT_FAILS: contract_faults.commit_fails,
    Fault.STORAGE_FULL: contract_faults.storage_full,
    Fault.READ_ONLY: contract_faults.read_only,
    Fault.STORAGE_AWAY: contract_faults.storage_away,
    Fault.WATCHER_DIES: contract_faults.watcher_dies,
}

_TEMPLATE: Final = """
CREATE TABLE business (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE business_whole (id INTEGER PRIMARY KEY);
CREATE TABLE business_part (whole INTEGER NOT NULL REFERENCES business_whole DEFERRABLE INITIALLY DEFERRED);
"""
"""What the application had in its file before alkstore came."""

LOOK_AGAIN: Final = 0.001
"""Seconds of real time between two looks at something that tells nobody when it changes."""

QUICK_TURNS: Final = 50
"""Turns of the loop in which an ordinary hop to a thread ends."""

ENOUGH_LOOKS: Final = 5
"""Looks in a row at a lock that is held, after which it is a transaction's and no longer one commit's."""


HOP_MILLISECONDS: Final = 100
"""Real time for which a hop has the write lock at most; who has it for longer is an open transaction."""


def register(registry: Registrar) -> None:
    """Register the column; the entry point ``alkstore.contract_engines`` names this function."""
    registry.register(
        SingleFileColumn(
            "sqlite",
            version=alkstore.__version__,
            contract="1.0",
            capabilities=CAPABILITIES,
            factory=SqliteFactory,
            omitted=OMITTED,
            registration=alkstore_engine,
            storage=f"SQLite {sqlite3.sqlite_version}",
        )
    )


class SqliteFactory(SingleFileFactory):
    """Stores on one file, and everything else that lives in it."""

    def __init__(self, folder: Path, seed: str) -> None:
        super().__init__(folder, seed)
        self._moves: WeakKeyDictionary[Store, int] = WeakKeyDictionary()

    def make_store(self, **options: Any) -> Store:
        return SqliteStore(self.path, clock=self.clock, random=self.random, **options)

    async def settle(self) -> None:
        # What ended before now is not what a look is repeated for.
        for store in self._stores:
            self._moves[store] = _engine_of(store).moves
        await super().settle()

    async def settled(self, store: Store) -> bool:
        engine = _engine_of(store)
        turns, looks = 0, 0
        while engine.is_at_work and looks < ENOUGH_LOOKS:
            await asyncio.sleep(0 if turns < QUICK_TURNS else LOOK_AGAIN)
            turns += 1
            looks = looks + 1 if turns > QUICK_TURNS and engine.is_held_up and self._is_locked() else 0
        before = self._moves.get(store)
        # A look costs a change of threads, so it waits for a round in which nothing else moved any more.
        if engine.moves == before:
            await engine.look()
        self._moves[store] = engine.moves
        return engine.moves != before

    def _is_locked(self) -> bool:
        try:
            with outsider(self.path) as connection:
                connection.execute("PRAGMA busy_timeout = 0")
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("ROLLBACK")
        except sqlite3.OperationalError:  # locked, or away
            return True
        return False

    @contextmanager
    def still(self) -> Iterator[None]:
        # Without the write lock a writer may begin the -wal file anew between two reads of a copy: old frames would then be
        # replayed over a newer database. A checkpoint may go on: it writes what the -wal file holds, and will hold.
        with outsider(self.path) as connection:
            connection.execute(f"PRAGMA busy_timeout = {HOP_MILLISECONDS}")
            # A transaction that is open has the lock itself, and writes nothing while the event loop stands still.
            with suppress(sqlite3.OperationalError):
                connection.execute("BEGIN IMMEDIATE")
            yield

    @classmethod
    def make_template(cls, path: Path) -> bool:
        with closing(sqlite3.connect(path, factory=Connection, isolation_level=None)) as connection:
            # Or each case would set the mode and make the tables again; how a file comes to have them, blank storage shows.
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(_TEMPLATE)
            migrate(connection, 0, Patience(Wait(0)))
        return True

    def fault(self, kind: Fault, store: Store) -> AbstractAsyncContextManager[None] | Unsupported:
        if kind in _IMPOSSIBLE:
            return Unsupported(_IMPOSSIBLE[kind])
        return _FAULTS[kind](self.path, store)

    def business(self) -> Business:
        return _Business(self)

    def applications(self) -> Sequence["Application"]:
        # Here alone, so that the column runs where SQLAlchemy, an extra, is not installed.
        from alkstore_sqlite import contract_joins

        return [kind(self.path) for kind in contract_joins.APPLICATIONS]

    async def foreign_schema(self, newer: bool) -> None:
        known = load("alkstore_sqlite")
        if newer:
            with outsider(self.path) as connection:
                connection.execute(
                    "INSERT INTO alkstore_migration (version, name, checksum, applied_at) VALUES (?, ?, ?, ?)",
                    (len(known) + 1, "from_the_future", "", 0),
                )
        elif len(known) > 1:
            raise RuntimeError("there is an older schema version now: write the file as version 1 left it")

    def outside(self, channel: str) -> AsyncIterator[bytes]:
        return _Outside(self.path, channel)

    async def footprint(self) -> int:
        """Count the rows of alkstore's tables, notifications apart (DUR-13)."""
        with outsider(self.path) as connection:
            tables = connection.execute(
                "SELECT name FROM sqlite_schema WHERE type = 'table' AND name GLOB 'alkstore_*'"
            ).fetchall()
            return sum(
                int(connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0])
                for (name,) in tables
                if name != "alkstore_notification"
            )

    async def sound(self) -> str | None:
        """Say what SQLite finds wrong with the file."""
        with outsider(self.path) as connection:
            found = [row[0] for row in connection.execute("PRAGMA integrity_check")]
            found += [f"foreign key: {row}" for row in connection.execute("PRAGMA foreign_key_check")]
        return None if found == ["ok"] else "; ".join(found)


def _engine_of(store: Store) -> SqliteEngine:
    return cast(SqliteEngine, store._engine)


class _Business:
    """A table of the application."""

    def __init__(self, factory: SqliteFactory) -> None:
        self._factory = factory

    async def write(self, tx: Tx, key: str, value: str) -> None:
        await _run(tx, "INSERT INTO business (key, value) VALUES (?, ?)", (key, value))

    async def read(self, key: str) -> str | None:
        with outsider(self._factory.path) as connection:
            row = connection.execute("SELECT value FROM business WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    async def end(self, tx: Tx, *, commit: bool) -> None:
        await _run(tx, "COMMIT" if commit else "ROLLBACK")


async def _run(tx: Tx, sql: str, parameters: Sequence[str] = ()) -> None:
    async with cast(aiosqlite.Connection, tx.connection).execute(sql, parameters):
        pass


class _Outside:
    """A program in any language that follows the notification table."""

    def __init__(self, path: Path, channel: str) -> None:
        self._path = path
        self._channel = channel
        self._last: int | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while True:
            with outsider(self._path) as connection:
                if self._last is None:
                    (self._last,) = connection.execute(
                        "SELECT coalesce(max(id), 0) FROM alkstore_notification"
                    ).fetchone()
                row = connection.execute(
                    "SELECT id, payload FROM alkstore_notification WHERE channel = ? AND id > ? ORDER BY id LIMIT 1",
                    (self._channel, self._last),
                ).fetchone()
            if row is not None:
                self._last = row[0]
                return str(row[1] or "").encode()
            await asyncio.sleep(LOOK_AGAIN)
