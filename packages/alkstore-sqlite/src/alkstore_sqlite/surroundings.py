"""What must be right around a database file before it is opened, and what each connection to it is set to.

Nothing here opens the file, and nothing makes one: to close a file that SQLite has open too would drop the whole process'
locks on it (POSIX locks belong to the process), so files are looked at by their names only.
"""

import ctypes
import errno
import os
import re
import sqlite3
import stat
import weakref
from typing import Final, Literal, TypeAlias
from urllib.parse import quote, unquote

from alkstore.errors import DatabaseError, InvalidArgument, show
from alkstore.opening import is_private_sqlite
from alkstore_sqlite import network
from alkstore_sqlite.connection import Connection

__all__ = [
    "Durability",
    "check_durability",
    "check_path",
    "check_place",
    "check_version",
    "connect_arguments",
    "guard",
    "path_of_url",
    "prepare_reader",
    "prepare_writer",
]

Durability: TypeAlias = Literal["power", "process"]
"""What acknowledged writes survive: the loss of power, or the end of the process only."""

OLDEST: Final = (3, 40, 0)
"""SQLite's floor: what Python's oldest supported builds bundle, and what this engine is tested on."""

JOURNAL_BYTES: Final = 16 * 1024 * 1024
"""A -wal file over this is cut after its checkpoint; four times what SQLite lets it grow to in ordinary traffic."""

_IS_WINDOWS: Final = os.name == "nt"

_ELSEWHERE: Final = "a store in memory is mem:// (package alkstore-mem)"

# ---------------------------------------------------------------- names of a file


def check_path(path: object) -> str:
    """Give the absolute path of a database file, so that a later change of the working folder changes nothing.

    Args:
        path: ``str`` or ``os.PathLike`` of text; the file need not be there.

    Raises:
        InvalidArgument: It is no path, has no file behind it (``:memory:``), is a URL, or leads to a folder.
    """
    text = _text_of(path)
    if not text.strip() or text.strip().lower() == ":memory:" or is_private_sqlite(text):
        raise InvalidArgument(
            f"path names a SQLite database without a file, got {show(text)}; {_ELSEWHERE}, a file has a path"
        )
    if re.match(r"file:|sqlite(\+\w+)?://", text, re.IGNORECASE):
        raise InvalidArgument(
            f"path must be a plain path, got the URL {show(_without_query(text))}; alkstore.open() takes sqlite:///path"
        )
    _refuse_unstorable(text)
    if text.endswith(_SEPARATORS) or os.path.isdir(text):
        raise InvalidArgument(f"path must lead to a file, got the folder {show(text)}")
    return _absolute(text)


_SEPARATORS: Final = tuple(separator for separator in (os.sep, os.altsep) if separator)


def _text_of(path: object) -> str:
    if isinstance(path, (str, os.PathLike)):
        text = os.fspath(path)
        if isinstance(text, str):
            return text
        path = text
    raise InvalidArgument(f"path must be text or an os.PathLike of text, got {type(path).__name__}")


def _refuse_unstorable(text: str) -> None:
    if "\0" in text:
        raise InvalidArgument(f"path must not contain NUL, got {show(text)}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"path must be text that UTF-8 can encode, got {show(text)}") from None


def _absolute(text: str) -> str:
    if _IS_WINDOWS:
        return os.path.abspath(text)
    try:
        joined = text if os.path.isabs(text) else os.path.join(os.getcwd(), text)
    except FileNotFoundError:
        raise InvalidArgument(
            f"path must be absolute while the working folder is gone, got {show(text)}"
        ) from None
    # Behind a link "a/.." is not what it looks like: only the file system can tell where it leads.
    return os.path.realpath(joined) if ".." in text.split(os.sep) else os.path.normpath(joined)


def path_of_url(url: str, *, is_windows: bool = _IS_WINDOWS) -> str:
    """Give the absolute path that ``sqlite:///relative``, ``sqlite:////absolute`` or ``sqlite+aiosqlite:`` names.

    The path is percent-decoded, so that every file can be named: ``%3F`` is a question mark, ``%25`` a percent sign.

    Raises:
        InvalidArgument: There is more than a path in it, or no file behind it.
    """
    scheme, _, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    shown = show(f"{scheme}://{authority.rpartition('@')[2]}{slash}{_without_query(path)}")
    if is_private_sqlite(url):
        raise InvalidArgument(
            f"url names a SQLite database without a file, got {shown}; {_ELSEWHERE}, a file is sqlite:///path"
        )
    if authority:
        raise InvalidArgument(
            f"url must have no host, user or password, for a file needs none; use {scheme}:///path"
        )
    for mark, what, code in (("?", "query string", "%3F"), ("#", "fragment", "%23")):
        if mark in path:
            raise InvalidArgument(
                f"url must have no {what} behind {shown}; options are arguments of alkstore.open(), "
                f"and a {mark!r} in the name of a file is {code}"
            )
    decoded = _decoded(path, shown)
    # sqlite:////C:/app.db: whoever writes every absolute path with four slashes means the drive.
    return check_path(decoded[1:] if is_windows and re.match(r"/[A-Za-z]:", decoded) else decoded)


def _decoded(path: str, shown: str) -> str:
    if re.search(r"%(?![0-9A-Fa-f]{2})", path):
        raise InvalidArgument(f"url must write a percent sign in the name of a file as %25, got {shown}")
    try:
        return unquote(path, errors="strict")
    except UnicodeDecodeError:
        raise InvalidArgument(f"url must hold percent-encoded UTF-8, got {shown}") from None


def _without_query(text: str) -> str:
    """Cut what may hold a password."""
    return re.split(r"[?#]", text, maxsplit=1)[0]


def connect_arguments(path: str, *, create: bool) -> tuple[str, bool]:
    """Give ``database`` and ``uri`` for the driver. Without ``create`` a missing file is an error, not an empty database:
    a store whose file is lost must not go on in a new one.
    """
    location = path.replace(os.sep, "/")
    root = "" if location.startswith("/") else "/"  # Windows: file:///C:/app.db
    return f"file://{root}{quote(location)}?mode={'rwc' if create else 'rw'}", True


# ---------------------------------------------------------------- where it stands


def check_version(found: tuple[int, ...] = sqlite3.sqlite_version_info) -> None:
    """Refuse a SQLite that is older than the floor.

    Raises:
        InvalidArgument: It is.
    """
    if found < OLDEST:
        raise InvalidArgument(
            f"SQLite must be {_dotted(OLDEST)} or newer, this Python has {_dotted(found)}; use a newer build of Python"
        )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)


def check_place(path: str) -> None:
    """Look at a database file and its folder before it is opened. Blocks for a few looks at the file system.

    An empty file is as good as none, and a database with tables of others is welcome. What can only be found by reading
    the file (it is no database, or a damaged one) is SQLite's own error at the first statement.

    Raises:
        InvalidArgument: It can never be used from here: not a file, on a network file system, or open in the process
            that this one was forked from.
        DatabaseError: It cannot be used as things stand, and why; the system's error is the cause.
    """
    reason = network.reason(os.path.realpath(path))
    if reason is not None:
        raise InvalidArgument(
            f"database file {show(path)} is on {reason}, where SQLite's locks and shared memory do not hold; "
            "put it on a disk of this machine"
        )
    _check_folder(path)
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise DatabaseError(f"database file {show(path)} cannot be looked at: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        raise InvalidArgument(f"path must lead to an ordinary file, got {show(path)}")
    if (found.st_dev, found.st_ino) in _inherited:
        raise InvalidArgument(
            f"database file {show(path)} was open in the process that this one was forked from, and SQLite's locks do "
            "not hold in both; open the store after the fork only, or start the process anew (spawn, subprocess)"
        )
    if not _may(path, os.R_OK | os.W_OK):
        raise _refused(
            path, f"database file {show(path)} is read-only for this process; grant it write access"
        )


def _check_folder(path: str) -> None:
    folder = os.path.dirname(os.path.realpath(path))
    try:
        is_folder = stat.S_ISDIR(os.stat(folder).st_mode)
    except FileNotFoundError as error:
        raise DatabaseError(f"folder {show(folder)} does not exist; create it") from error
    except OSError as error:
        raise DatabaseError(f"folder {show(folder)} cannot be looked at: {error.strerror}") from error
    if not is_folder:
        raise InvalidArgument(f"path must lead through folders, but {show(folder)} is none")
    if not _may(folder, os.W_OK | os.X_OK):
        raise _refused(
            folder,
            f"folder {show(folder)} is read-only for this process, and SQLite keeps files beside the database; "
            "grant it write access",
        )


def _may(path: str, mode: int) -> bool:
    """Whether this process may, as whom it acts: the user who started it is another where rights were given up."""
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _refused(path: str, text: str) -> DatabaseError:
    error = DatabaseError(text)
    error.__cause__ = PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    return error


# ---------------------------------------------------------------- a connection's settings


def check_durability(value: object) -> Durability:
    """Give the option as it is.

    Raises:
        InvalidArgument: There is no such durability.
    """
    if value == "power":
        return "power"
    if value == "process":
        return "process"
    raise InvalidArgument(f"durability must be 'power' or 'process', got {show(value)}")


_EVERY: Final = (
    # Who waits for another process looks at his own limit between two tries; SQLite's wait could not be ended.
    "PRAGMA busy_timeout = 0",
)

_WRITER: Final = (
    # One huge transaction would leave a -wal file of its size for ever.
    f"PRAGMA journal_size_limit = {JOURNAL_BYTES}",
    # A checkpoint that macOS keeps in the drive's cache can be lost after the -wal file was begun anew: a damaged file.
    "PRAGMA checkpoint_fullfsync = ON",
)

_SYNCHRONOUS: Final = {
    "power": (
        # A sync at each commit: what was acknowledged is on the disk.
        "PRAGMA synchronous = FULL",
        # fsync alone leaves it in the drive's cache on macOS. Means nothing elsewhere.
        "PRAGMA fullfsync = ON",
    ),
    # Syncs at checkpoints only: a loss of power takes back the last commits, and never damages the file.
    "process": ("PRAGMA synchronous = NORMAL", "PRAGMA fullfsync = OFF"),
}


def prepare_writer(connection: sqlite3.Connection, durability: Durability) -> None:
    """Set up a connection that writes. Runs in the driver's thread, outside a transaction; may be repeated.

    Everything else stays as SQLite has it. Foreign keys, triggers and such are the application's: alkstore's tables have
    none, and a transaction's own SQL must meet what the application's other connections meet.

    Raises:
        DatabaseError: The file cannot have a write-ahead log.
        sqlite3.Error: It is no database, or is held by another process (`is_busy`: try again).
    """
    for pragma in _EVERY:
        connection.execute(pragma)
    # Readers never wait for a writer, and a commit is one sync. Kept in the file, for every program that opens it.
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise DatabaseError(
            f"database file {show(_file_of(connection))} cannot have a write-ahead log, its journal mode stays {mode!r}; "
            "put it on a disk of this machine, and let SQLite have shared memory there"
        )
    for pragma in (*_WRITER, *_SYNCHRONOUS[durability]):
        connection.execute(pragma)


def prepare_reader(connection: sqlite3.Connection) -> None:
    """Set up a connection that only reads. Runs in the driver's thread; touches no file."""
    for pragma in _EVERY:
        connection.execute(pragma)
    # A statement that writes is refused, whatever went wrong above; opened read-only it could not recover a -wal file.
    connection.execute("PRAGMA query_only = ON")


def _file_of(connection: sqlite3.Connection) -> str:
    return str(connection.execute("PRAGMA database_list").fetchone()[2])


# ---------------------------------------------------------------- forks

_live: Final[weakref.WeakSet[Connection]] = weakref.WeakSet()
_inherited: Final[set[tuple[int, int]]] = set()
"""Device and inode of the files that were open when this process was forked off.

Reasons from unix locks: SQLite counts a process' locks per inode in memory. The child has a copy of the count and none of
the locks, so its own new connection would take the file for locked already, lock nothing, and others would cut the -wal
file under it.
"""


def guard(connection: Connection) -> None:
    """Keep a forked child from closing a connection, which it would do when it ends, at the latest.

    A close rolls back, and so clears the shared index of a transaction that is open in the parent: its file then looks
    damaged. Rows: DUR-07.
    """
    _live.add(connection)


def _leave_alone() -> None:
    """In a forked child: let nothing ever drop the parent's connections, not even the interpreter's end."""
    for connection in list(_live):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
        if connection.place is not None and _is_open(connection):
            _inherited.add((connection.place.device, connection.place.inode))


def _is_open(connection: Connection) -> bool:
    try:
        connection.in_transaction  # noqa: B018  # the one question that any thread may ask
    except sqlite3.ProgrammingError:
        return False
    return True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_alone)
