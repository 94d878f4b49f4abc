"""What SQLite and its driver raise, told as a `DatabaseError`: what happened, to which file, and what to do."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from alkstore.errors import AlkstoreError, DatabaseError, show

__all__ = ["FileReplaced", "is_broken", "is_busy", "is_refused", "is_stale", "translate", "translated"]

CLOSED: Final = -1
"""Stands for a connection that is closed already, for which the driver has no code but two kinds of text."""

OUTSIDE: Final = -2
"""Stands for the operating system's own error in a look at the file."""

_CLOSED_TEXTS: Final = frozenset({"no active connection", "connection closed"})
"""aiosqlite's ValueErrors."""

_TEXTS: Final = {
    sqlite3.SQLITE_BUSY: "database file {file} was locked by another connection{waited}; "
    "end its transactions sooner, or raise wait_timeout",
    sqlite3.SQLITE_BUSY_RECOVERY: "database file {file} was being recovered by another process{waited}; try again",
    sqlite3.SQLITE_BUSY_SNAPSHOT: "transaction on database file {file} read before it wrote, and another commit landed "
    "in between, so it can only read on; begin it with BEGIN IMMEDIATE",
    sqlite3.SQLITE_LOCKED: "table in database file {file} is in use by another statement of the same connection; "
    "fetch all of its rows before writing",
    sqlite3.SQLITE_FULL: "no room left for database file {file}: the disk is full, or the file has as many pages as "
    "max_page_count allows; make room, or raise that limit",
    sqlite3.SQLITE_READONLY: "database file {file} cannot be written: the file, its -wal and -shm files or its file "
    "system are read-only for this process; grant it write access",
    sqlite3.SQLITE_READONLY_DIRECTORY: "folder of database file {file} is read-only for this process, and SQLite keeps "
    "files beside the database; grant it write access",
    sqlite3.SQLITE_READONLY_CANTINIT: "-shm file of database file {file} cannot be written; "
    "grant this process write access to it and to the folder",
    sqlite3.SQLITE_READONLY_CANTLOCK: "-shm file of database file {file} is read-only for this process; "
    "grant it write access",
    sqlite3.SQLITE_READONLY_RECOVERY: "database file {file} needs recovery after a crash, and this process may only "
    "read it; grant it write access",
    sqlite3.SQLITE_READONLY_ROLLBACK: "database file {file} has a journal to roll back, and this process may only "
    "read it; grant it write access",
    sqlite3.SQLITE_READONLY_DBMOVED: "database file {file} was moved or removed while it was open; "
    "put it back, or open the store where it is now",
    sqlite3.SQLITE_PERM: "database file {file} may not be used by this process; grant it read and write access",
    sqlite3.SQLITE_CANTOPEN: "database file {file}, or its -wal or -shm file, cannot be opened: it is missing, this "
    "process lacks access to it or to its folder, or has too many files open",
    sqlite3.SQLITE_CANTOPEN_ISDIR: "database file {file} is a folder; give the path of a file",
    sqlite3.SQLITE_NOTADB: "file {file} is no SQLite database, is encrypted, or has a damaged header; "
    "give another path, or restore the file from a backup",
    sqlite3.SQLITE_CORRUPT: "database file {file} is damaged; stop writing to it, and restore it from a backup "
    "or by the sqlite3 shell's .recover",
    sqlite3.SQLITE_CORRUPT_INDEX: "index in database file {file} is damaged; rebuild it with REINDEX",
    sqlite3.SQLITE_IOERR: "reading or writing database file {file} failed ({name}); look at the disk, at its file "
    "system, and at this process' limits",
    sqlite3.SQLITE_IOERR_WRITE: "writing database file {file} failed; look at the disk, "
    "and at the largest file that this process and the file system allow",
    sqlite3.SQLITE_IOERR_NOMEM: "memory ran out while database file {file} was read or written; "
    "free some, or use smaller batches",
    sqlite3.SQLITE_TOOBIG: "value is too big for database file {file}; store large data elsewhere, and its place here",
    sqlite3.SQLITE_NOMEM: "memory ran out in a statement on database file {file}; free some, or use smaller batches",
    sqlite3.SQLITE_INTERRUPT: "statement on database file {file} was interrupted, and nothing of it was done",
    sqlite3.SQLITE_CONSTRAINT: "database file {file} refused a row ({said}): a trigger, check or index that the "
    "application put on alkstore's tables is in its way",
    sqlite3.SQLITE_ERROR: "statement on database file {file} failed ({said}); "
    "alkstore's tables may have been changed or dropped by hand",
    sqlite3.SQLITE_SCHEMA: "tables of database file {file} were changed while a statement ran; try again",
    sqlite3.SQLITE_PROTOCOL: "too many processes raced to lock database file {file}; try again",
    sqlite3.SQLITE_AUTH: "statement on database file {file} was refused ({said}) by an authorizer that the application "
    "put on its connection; let it use alkstore's tables",
    CLOSED: "connection to database file {file} is closed ({said})",
    OUTSIDE: "database file {file} cannot be looked at ({said}); see that it is there, and that this process may use it",
}
"""By extended result code, else by its primary one. Source: https://sqlite.org/rescode.html"""

_ANY_TEXT: Final = "statement on database file {file} failed ({name}: {said})"

STALE: Final = sqlite3.SQLITE_BUSY_SNAPSHOT

_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_BUSY_RECOVERY, sqlite3.SQLITE_BUSY_TIMEOUT})

_BREAKING: Final = frozenset(
    {
        CLOSED,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_CORRUPT,  # its cache holds what was read, so a file that was mended would still look damaged
        sqlite3.SQLITE_INTERNAL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_MISUSE,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_READONLY,  # a file once opened for reading stays so, whatever its mode is by now
    }
)
"""Primary codes after which only a new connection can succeed, once the cause has ended."""

_UNSURE: Final = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM})
"""Primary codes with which a COMMIT can fail after its frames were written.

The last frame is followed by a sync and by an entry in the shared index. If one of these fails, a recovery, or the next
writer, decides whether the frames count. A full disk stops before the last frame; a lock is asked for before the first.
"""


class FileReplaced(DatabaseError):
    """The path leads to another file than the open one, or to none: what is written now would be lost.

    The text warns of what SQLite does not notice: the next to open another file there would play the old one's -wal
    file, which still lies beside it, into the new one.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def _text(self) -> str:
        return (
            f"database file {show(self.path)} was removed, moved or replaced while it was open, and nothing was done; "
            "put it back, or close the store and take the old -wal and -shm files away before another file is used there"
        )


def translate(
    error: BaseException, path: str, *, committing: bool = False, waited: float | None = None
) -> DatabaseError:
    """Give the error that a caller is told; whoever raises it chains ``error`` as its cause.

    Args:
        error: The driver's, or any other that came out of the driver's thread.
        path: The database file.
        committing: A COMMIT had been sent: if its frames may be on disk, the outcome is unknown (DUR-11).
        waited: Seconds spent on waiting for another connection; None if nobody counted.
    """
    code = _code_of(error)
    is_unsure = committing and _primary(code) in _UNSURE
    template = _TEXTS.get(code, _TEXTS.get(_primary(code), _ANY_TEXT))
    text = template.format(
        file=show(path),
        said=show(str(error)),
        name=getattr(error, "sqlite_errorname", type(error).__name__),
        waited="" if waited is None else f" for over {waited:.3g} s",
    )
    ours = DatabaseError(f"{text}; the commit may have landed all the same" if is_unsure else text)
    if is_unsure:
        ours.outcome_unknown = True
    ours._is_held_back = waited is not None and code in _BUSY
    return ours


@contextmanager
def translated(path: str, *, committing: bool = False, waited: float | None = None) -> Iterator[None]:
    """Raise what the driver raises within the block as `DatabaseError`; everything else passes as it is.

    Raises:
        DatabaseError: As `translate` says, with the driver's error as its cause.
    """
    try:
        yield
    except (sqlite3.Error, OSError, MemoryError, OverflowError, ValueError) as error:
        if not _is_drivers(error):
            raise
        raise translate(error, path, committing=committing, waited=waited) from error


def is_busy(error: BaseException) -> bool:
    """Whether another connection is in the way, and the same statement may succeed once it has ended.

    Not so a transaction that has read an older state than it wants to write to: it can only be begun anew.
    """
    return _code_of(error) in _BUSY


def is_refused(error: BaseException) -> bool:
    """Whether a statement was not compiled: it would have fired a trigger (`trigger.Heedful`), or the application forbids it."""
    return _code_of(error) == sqlite3.SQLITE_AUTH


def is_broken(error: BaseException) -> bool:
    """Whether its connection is of no use any more and has to be opened again. Takes the driver's error, or ours."""
    # A replaced file breaks nothing: the connection is to the right one, and good once that is put back. Opened anew it
    # would play the old -wal file into the new database.
    code = _code_of(error)
    return not isinstance(error, FileReplaced) and (_primary(code) in _BREAKING or code == STALE)


def is_stale(error: BaseException) -> bool:
    """Whether a transaction has read an older state than it wants to write to. Takes the driver's error, or ours.

    Where none was open, it is a statement that the caller of an earlier one has left half read.
    """
    return _code_of(error) == STALE


def _is_drivers(error: Exception) -> bool:
    """Whether the driver raised it. Not so our own, of which some are ValueErrors or TimeoutErrors too, and a
    caller's timeout.
    """
    if isinstance(error, (AlkstoreError, TimeoutError)):
        return False
    return not isinstance(error, ValueError) or _is_closed(error)


def _is_closed(error: BaseException) -> bool:
    text = str(error).lower()
    if isinstance(error, sqlite3.ProgrammingError):
        return "closed" in text
    return isinstance(error, ValueError) and text in _CLOSED_TEXTS


def _code_of(error: BaseException) -> int:
    """Give SQLite's extended result code, one of ours, or SQLITE_OK where there is none."""
    if isinstance(error, DatabaseError) and error.__cause__ is not None:
        error = error.__cause__
    code = getattr(error, "sqlite_errorcode", None)
    if isinstance(code, int):
        return code
    if _is_closed(error):
        return CLOSED
    # The driver turns the first into Python's own, and finds the second by itself before SQLite sees the value.
    for kind, found in (
        (MemoryError, sqlite3.SQLITE_NOMEM),
        (OverflowError, sqlite3.SQLITE_TOOBIG),
        (OSError, OUTSIDE),
    ):
        if isinstance(error, kind):
            return found
    return sqlite3.SQLITE_OK


def _primary(code: int) -> int:
    return code if code < 0 else code & 0xFF
