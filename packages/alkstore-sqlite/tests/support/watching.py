"""What tests of the watcher share: a file with a log, what other processes commit, and looks that are waited for."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from hanging import HUNG

from alkstore.engine import NewWake, Signal, Watch
from alkstore.testing import ManualClock
from alkstore_sqlite import wake
from alkstore_sqlite.connection import Steps, perform
from alkstore_sqlite.inotify import FileHint
from alkstore_sqlite.place import Place
from alkstore_sqlite.schema import MIGRATIONS
from alkstore_sqlite.wake import Wakes
from alkstore_sqlite.watcher import OpenHint

__all__ = ["commit", "made", "notify", "opened", "settled", "unhinted", "with_log", "woken"]


def unhinted(_: str) -> FileHint | None:
    """Let the watcher poll."""
    return None


def opened(path: Path) -> sqlite3.Connection:
    """Open the file as another process would."""
    return sqlite3.connect(path, isolation_level=None)


@contextmanager
def with_log(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a file with alkstore's tables and a write-ahead log."""
    with closing(opened(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("BEGIN")
        for migration in MIGRATIONS:
            for statement in migration.statements:
                connection.execute(statement)
        connection.execute("COMMIT")
        yield connection


def made(path: Path, file: sqlite3.Connection, open_hint: OpenHint = FileHint.open) -> Wakes:
    """Make the wakes of a store on the file, which need not be there."""

    async def baseline(channel: str) -> int:
        return perform(file, wake.read_channel(channel))

    place = Place.of(str(path)) if path.exists() else Place(str(path), 0, 0)
    return Wakes(place, ManualClock(), baseline, open_hint=open_hint)


def commit(file: sqlite3.Connection, steps: Steps[Any]) -> None:
    """Commit an operation as another process would."""
    file.execute("BEGIN IMMEDIATE")
    perform(file, steps)
    file.execute("COMMIT")


def notify(file: sqlite3.Connection, channel: str = "news") -> None:
    """Notify a channel as another process would."""
    commit(file, wake.notify([NewWake(channel, None)], 0))


async def woken(watch: Watch) -> None:
    """Wait for a wake."""
    async with asyncio.timeout(HUNG):
        assert await watch.wait() is Signal.WOKEN


async def settled(wakes: Wakes) -> bool:
    """Whether one more look wakes anybody."""
    async with asyncio.timeout(HUNG):
        return await wakes.look()
