"""Riding the application's own transaction: the same statements, on the application's connection.

What is done here lands with the caller's commit, and whoever waits for it is woken then: by the watcher, in this process as
in every other, since SQLite tells nobody else of a commit.
"""

import asyncio
import inspect
import os
import sqlite3
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar, cast

import aiosqlite

from alkstore.errors import Closed, InvalidArgument, show
from alkstore_sqlite.connection import Row, Statement, Steps, Tells, bind, run_statement
from alkstore_sqlite.errors import translated
from alkstore_sqlite.hop import Operation
from alkstore_sqlite.transaction import Operations
from alkstore_sqlite.writer import Writer

__all__ = ["LEGACY", "LISTING", "Beginning", "JoinedTransaction", "check_listed", "hand_over"]

T = TypeVar("T")

LEGACY: Final = -1
"""`sqlite3.LEGACY_TRANSACTION_CONTROL`, which Python 3.11 has no name for because it knows nothing else."""

LISTING: Final = Statement("PRAGMA database_list")

_HOW: Final = "an aiosqlite connection, or a SQLAlchemy AsyncConnection or AsyncSession on sqlite+aiosqlite"


class _Alchemy(Protocol):
    """What is used of SQLAlchemy's AsyncConnection, and of the AsyncSession that gives one."""

    async def connection(self) -> Any: ...

    async def get_raw_connection(self) -> Any: ...

    def get_transaction(self) -> Any: ...

    def in_transaction(self) -> bool: ...

    async def begin(self) -> Any: ...


class JoinedTransaction(Operations):
    """The caller's transaction, as long as it lasts. Make it by `begin`."""

    def __init__(
        self,
        given: object,
        connection: aiosqlite.Connection,
        writer: Writer,
        label: str,
        beginning: "Beginning | None",
    ) -> None:
        self.label = label
        self._given = given
        self._connection = connection
        self._writer = writer
        self._root = _root_of(given)
        self._beginning = beginning
        self._has_begun = False
        self._is_left = False

    @classmethod
    async def begin(cls, connection: object, writer: Writer, label: str) -> "JoinedTransaction":
        """Find the driver's connection, make it begin if it begins by itself, and see that it is in a transaction.

        Failed or cancelled, it leaves the connection as it was.

        Raises:
            InvalidArgument: It cannot be joined, and why.
            DatabaseError: Somebody else had the write lock for too long.
        """
        if _is_alchemy(connection) and hasattr(connection, "registry"):
            # Its session is often that of the task that asks, and the task that begins is not the caller's: another session
            # would be joined, which nobody ever commits.
            raise InvalidArgument(
                "session is a scoped one: join the session that it stands for, join(session())"
            )
        has_begun = _has_yet_to_begin(connection)
        try:
            if has_begun and not _is_session(connection):
                # Otherwise its commit would find nothing to commit, and what was written behind its back would be lost.
                # A session begins when it is asked for its connection.
                await cast(_Alchemy, connection).begin()
            joined = await cls._ride(connection, writer, label)
        except BaseException:
            if has_begun:
                await _leave(connection)
            raise
        joined._has_begun = has_begun
        return joined

    @classmethod
    async def _ride(cls, connection: object, writer: Writer, label: str) -> "JoinedTransaction":
        driver = await _driver(connection)
        path = writer.link.path
        if driver is writer.link.connection:
            raise InvalidArgument("connection is the store's own; use the transaction that gave it")
        await _check_file(driver, path)
        beginning = None
        if not driver.in_transaction:
            if driver.isolation_level is None or await _autocommit(driver) != LEGACY:
                raise InvalidArgument(
                    "connection is in no transaction and commits every statement by itself; "
                    "execute BEGIN IMMEDIATE on it before joining"
                )
            beginning = Beginning()
            with translated(path):
                await _begin(driver, beginning)
        return cls(connection, driver, writer, label, beginning)

    @property
    def is_open(self) -> bool:
        # Once and for all: what was Closed must not come to life again with the caller's next transaction.
        self._is_left = (
            self._is_left
            or not _is_in_transaction(self._connection)
            or self._root is not _root_of(self._given)
        )
        return not self._is_left

    @property
    def connection(self) -> object:
        return self._connection

    async def _do(self, operation: Operation[T]) -> T:
        if not self.is_open:
            raise Closed("transaction")
        connection = self._connection
        if _is_session(self._given):
            # A session sends the SAVEPOINT of begin_nested() when it is next asked for its connection, and not before.
            await cast(_Alchemy, self._given).connection()
        with translated(self._writer.link.path):
            await _run(connection, "SAVEPOINT alkstore")
            try:
                change = await _perform(connection, operation(self._writer.clock.now()))
            except BaseException:
                if connection.in_transaction:
                    await _run(connection, "ROLLBACK TO alkstore")
                    await _run(connection, "RELEASE alkstore")
                raise
            await _run(connection, "RELEASE alkstore")
        # Nobody is woken here: the commit is the caller's, and the watcher sees it.
        return change.result

    async def commit(self) -> None:
        raise InvalidArgument("commit of a joined transaction is its owner's; call it on your connection")

    async def rollback(self) -> None:
        """End what `begin` made begin, and no more: the rest is its owner's. For a store that is closed meanwhile."""
        if self.is_open:
            self.abandon()
            if self._has_begun:
                await _leave(self._given)

    def abandon(self) -> None:
        self._is_left = True
        if self._beginning is not None:  # the store was closed, and nobody was given this
            hand_over(_undo(self._connection, self._beginning))


class Beginning:
    """A BEGIN IMMEDIATE of ours on a connection of the caller's, and its end if nobody is given the transaction.

    It would begin at its first write. A read before that would spoil it as soon as somebody else commits.
    """

    _connection: sqlite3.Connection | None = None
    _changes = 0

    def begin(self, connection: sqlite3.Connection) -> None:
        """Send it, in the connection's thread."""
        connection.execute("BEGIN IMMEDIATE")
        self._connection, self._changes = connection, connection.total_changes

    def undo(self) -> None:
        """End what has begun, in the same thread; not if somebody has written in it, who will commit that."""
        connection, self._connection = self._connection, None
        with suppress(sqlite3.Error):
            if connection is not None and connection.total_changes == self._changes:
                connection.rollback()


async def _begin(connection: aiosqlite.Connection, beginning: Beginning) -> None:
    try:
        await connection._execute(beginning.begin, connection._conn)  # type: ignore[no-untyped-call]  # as in `_autocommit`
    except asyncio.CancelledError:
        # It runs on, and would keep the write lock for ever.
        hand_over(_undo(connection, beginning))
        raise


async def _undo(connection: aiosqlite.Connection, beginning: Beginning) -> None:
    with suppress(ValueError):  # closed, which ends it as well
        await connection._execute(beginning.undo)  # type: ignore[no-untyped-call]  # as in `_autocommit`


def hand_over(call: Coroutine[Any, Any, object]) -> None:
    """Have something done in a thread behind what it was handed before, and before anything that it is handed from now on.

    Nobody waits for it: not for a lock that another process has, nor through the next cancellation. A task would hand it
    over in its turn, behind the caller's next statement.
    """
    with suppress(StopIteration):
        call.send(None)
    call.close()


def _is_alchemy(given: object) -> bool:
    """Whether the caller has SQLAlchemy's AsyncConnection or AsyncSession; asked without importing what he may not have.

    Its synchronous ones have methods of the same names, which cannot be awaited.
    """
    if not any(base.__module__.partition(".")[0] == "sqlalchemy" for base in type(given).__mro__):
        return False
    methods = (getattr(type(given), name, None) for name in ("get_raw_connection", "connection"))
    return any(map(inspect.iscoroutinefunction, methods))


def _is_session(given: object) -> bool:
    return _is_alchemy(given) and not hasattr(given, "get_raw_connection")


def _root_of(given: object) -> object:
    """Give the caller's transaction, where his library has an object for it."""
    if not _is_alchemy(given):
        return None
    # The asynchronous faces make a new object at every question.
    inner = getattr(given, "sync_session", None) or getattr(given, "sync_connection", None)
    return None if inner is None else cast(_Alchemy, inner).get_transaction()


def _has_yet_to_begin(given: object) -> bool:
    """Whether it is SQLAlchemy's and in no transaction, so that to join it makes it begin."""
    if not _is_alchemy(given) or not hasattr(given, "in_transaction"):
        return False
    return not cast(_Alchemy, given).in_transaction()


async def _leave(given: object) -> None:
    """Have SQLAlchemy roll back what it began for us, to its end: cut short, it would go on beside whoever uses it next."""
    leaving = asyncio.ensure_future(_end(given))
    cancelled: asyncio.CancelledError | None = None
    while not leaving.done():
        try:
            await asyncio.wait((leaving,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


async def _end(given: Any) -> None:
    with suppress(Exception):  # the first error is the one to tell
        if _is_session(given):
            # A rollback of the session's would have its objects read anew, which is not ours to ask for.
            await given.run_sync(_end_of_session)
        else:
            await given.rollback()


def _end_of_session(session: Any) -> None:
    if (transaction := session.get_transaction()) is not None:
        transaction.close()


async def _driver(given: object) -> aiosqlite.Connection:
    """Give the aiosqlite connection under what the caller has."""
    connection = given
    if _is_alchemy(given):
        if _is_session(given) and hasattr(given, "connection"):
            connection = await cast(_Alchemy, given).connection()
        if hasattr(connection, "get_raw_connection"):
            raw = await cast(_Alchemy, connection).get_raw_connection()
            connection = raw.driver_connection
    if not isinstance(connection, aiosqlite.Connection):
        raise InvalidArgument(f"this engine joins {_HOW}, got {show(given)}")
    return connection


async def _check_file(connection: aiosqlite.Connection, path: str) -> None:
    try:
        listed = await _fetch(connection, LISTING)
    except (ValueError, sqlite3.ProgrammingError) as error:
        raise InvalidArgument(f"connection cannot be joined: {error}; open it first") from error
    check_listed(listed, path)


def check_listed(listed: Sequence[Row], path: str) -> None:
    """See by the databases of a connection (`LISTING`) that it is to the store's file.

    Raises:
        InvalidArgument: It is not.
    """
    files = [_text(row[2]) for row in listed if _text(row[1]) == "main"]
    if not files or not files[0]:
        raise InvalidArgument(
            f"connection is to a private database, this store is on {show(path)}; connect to that file"
        )
    if not _is_same_file(files[0], path):
        raise InvalidArgument(
            f"connection is to {show(files[0])}, this store is on {show(path)}; join a connection to the same file"
        )


def _is_same_file(one: str, other: str) -> bool:
    one, other = os.path.realpath(one), os.path.realpath(other)
    if one == other:
        return True
    try:
        # A folder can be mounted twice. But through two hard links a file has two logs, and each of them damages it.
        return os.path.samefile(one, other) and os.path.samefile(f"{one}-wal", f"{other}-wal")
    except OSError:
        return False


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")


def _is_in_transaction(connection: aiosqlite.Connection) -> bool:
    try:
        return connection.in_transaction
    except (ValueError, sqlite3.ProgrammingError):  # closed
        return False


async def _autocommit(connection: aiosqlite.Connection) -> object:
    # Python 3.12's own mode, of which aiosqlite tells nothing, and which can be read in the connection's thread alone: by
    # the way that all of aiosqlite's methods take, which is not typed.
    mode: object = await connection._execute(getattr, connection._conn, "autocommit", LEGACY)  # type: ignore[no-untyped-call]
    return mode


async def _perform(connection: aiosqlite.Connection, steps: Steps[T]) -> T:
    try:
        statement = next(steps)
        while True:
            try:
                rows = await _fetch(connection, statement)
            except sqlite3.Error as error:
                statement = steps.throw(error)
            else:
                statement = steps.send(rows)
    except StopIteration as stop:
        result: T = stop.value
        return result


async def _run(connection: aiosqlite.Connection, sql: str) -> None:
    await (await connection.execute(sql)).close()


async def _fetch(connection: aiosqlite.Connection, statement: Statement) -> list[Row]:
    # In one piece: a cursor with rows left, in the traceback of who was cancelled, keeps a connection that its owner has
    # closed from ending, and with it the write lock.
    rows: list[Row] = await connection._execute(_answer, connection._conn, statement)  # type: ignore[no-untyped-call]  # as in `_autocommit`
    return rows


def _answer(connection: sqlite3.Connection, statement: Statement) -> list[Row]:
    """Run a statement in the connection's thread; rows come as plain tuples of plain values, whatever its owner has set up."""
    if statement.is_many or statement.tells is not Tells.ROWS:
        return run_statement(connection, statement)
    text_factory = connection.text_factory
    if text_factory is not str:
        connection.text_factory = str
    try:
        cursor = connection.execute(statement.sql, bind(statement.parameters))
        cursor.row_factory = None
        return cursor.fetchall()
    finally:
        if text_factory is not str:
            connection.text_factory = text_factory
