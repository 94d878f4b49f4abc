"""What only SQLite can tell of a file's state: its size, its free pages, and whether the -wal file can be emptied."""

import asyncio
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Final

from alkstore.diagnosis import Diagnosis, Finding
from alkstore_sqlite.errors import translate
from alkstore_sqlite.surroundings import connect_arguments

__all__ = ["examine"]

LARGE_WAL: Final = 64 * 1024 * 1024
"""Bytes. In ordinary traffic SQLite lets a -wal file grow to 4 MiB."""

LARGE_FREE: Final = 64 * 1024 * 1024
"""Bytes of free pages that are worth giving back, if they are also half of the file."""


async def examine(path: str) -> Diagnosis:
    """Look at a file; raises `DatabaseError` where that cannot be.

    Cost: a few pragmas, and a checkpoint that waits for nobody.
    """
    return await asyncio.to_thread(_examine, path)


def _examine(path: str) -> Diagnosis:
    database, is_uri = connect_arguments(path, create=False)
    try:
        with closing(sqlite3.connect(database, uri=is_uri, isolation_level=None)) as connection:
            mode = _one(connection, "PRAGMA journal_mode")
            pages, free, size = (
                int(_one(connection, f"PRAGMA {name}"))
                for name in ("page_count", "freelist_count", "page_size")
            )
            # Passive: it waits for no reader and no writer, and holds none up.
            _, in_wal, moved = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            wal = _size(f"{path}-wal")
    except sqlite3.Error as error:
        raise translate(error, path) from error
    facts: dict[str, str | int | float | None] = {
        "sqlite": sqlite3.sqlite_version,
        "journal-mode": mode,
        "file-bytes": pages * size,
        "free-bytes": free * size,
        "wal-bytes": wal,
        "wal-pages-held": max(in_wal - moved, 0),
    }
    return Diagnosis(facts, tuple(_findings(mode, pages * size, free * size, wal, max(in_wal - moved, 0))))


def _findings(mode: str, size: int, free: int, wal: int, held: int) -> Iterator[Finding]:
    if mode.lower() != "wal":
        yield Finding(
            "journal-mode",
            f"the file is in journal mode {mode!r}, so readers and writers hold each other up",
            "somebody has set it back: leave that out, and open a store, which sets it to wal again",
        )
    if wal > LARGE_WAL:
        reason = f"a reader holds {held:,} of its pages" if held else "it is cut after the next checkpoint"
        yield Finding(
            "wal",
            f"the -wal file has {wal:,} bytes; {reason}",
            "end what keeps a transaction open (a shell, a backup, a report); reads become slower with each page",
            is_problem=held > 0,
        )
    if free > LARGE_FREE and free * 2 > size:
        yield Finding(
            "bloat",
            f"{free:,} of the file's {size:,} bytes are free pages",
            "they are used again; to give them back to the disk, run VACUUM while nobody works",
            is_problem=False,
        )


def _one(connection: sqlite3.Connection, statement: str) -> str:
    return str(connection.execute(statement).fetchone()[0])


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
