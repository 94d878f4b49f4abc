"""Engines on real files, and what other programs see of these files and do to them."""

import asyncio
import sqlite3
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Final

from hanging import HUNG

from alkstore.testing import ManualClock
from alkstore_sqlite.engine import SqliteEngine

__all__ = ["commits", "held_up", "locked", "opened", "rest", "rows"]

PATIENCE: Final = 10.0
"""Seconds after which a test that waits for a thread has failed."""


@asynccontextmanager
async def opened(
    path: Path, *, wait_timeout: float = PATIENCE, clock: ManualClock | None = None
) -> AsyncIterator[SqliteEngine]:
    """Open an engine that does not wait for the disk."""
    clock = ManualClock() if clock is None else clock
    engine = await SqliteEngine.open(str(path), clock, wait_timeout=wait_timeout, durability="process")
    try:
        yield engine
    finally:
        await engine.aclose()


def rows(path: Path, sql: str = "SELECT payload FROM alkstore_job ORDER BY id") -> list[object]:
    """Give the first column of what another program reads: of what was committed."""
    with closing(sqlite3.connect(path)) as other:
        return [row[0] for row in other.execute(sql)]


@contextmanager
def locked(path: Path, patience: float = PATIENCE) -> Iterator[sqlite3.Connection]:
    """Hold the write lock as another process would; ``ROLLBACK`` on what it gives frees it before the end."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=patience)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield other


def commits(path: Path) -> int:
    """Count the commits in the -wal file: the frames that say how many pages the file has after them.

    Source: https://sqlite.org/fileformat2.html#the_write_ahead_log
    """
    log = path.with_name(f"{path.name}-wal").read_bytes()
    if not log:
        return 0
    size, salts = struct.unpack_from(">I", log, 8)[0], log[16:24]
    frames = [log[at : at + 24] for at in range(32, len(log), 24 + size)]
    return sum(frame[4:8] != bytes(4) for frame in frames if frame[8:16] == salts)


async def rest(engine: SqliteEngine) -> None:
    """Let everything come to its end that nobody awaits: a hop whose caller has gone, and what it gives back."""
    async with asyncio.timeout(HUNG):
        quiet = 0
        while quiet < 3:
            await asyncio.sleep(0)
            quiet = 0 if engine.is_at_work or engine._writer._chores or engine._writer._line else quiet + 1


async def held_up(engine: SqliteEngine) -> None:
    """Wait until the thread has found the write lock in other hands."""
    async with asyncio.timeout(HUNG):
        while not engine.is_held_up:  # noqa: ASYNC110  # a thread's state has no event
            await asyncio.sleep(0)
