"""Riding a plain thread's transaction: the same programs, run on its connection by the thread itself."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, TypeVar

from alkstore.errors import Closed, InvalidArgument, show
from alkstore.plain import Library, PlainConnection, library_of
from alkstore_sqlite.connection import Change, Steps, run_statement
from alkstore_sqlite.errors import translated
from alkstore_sqlite.hop import Operation
from alkstore_sqlite.join import LEGACY, LISTING, Beginning, JoinedTransaction, check_listed, hand_over
from alkstore_sqlite.transaction import Operations, sheltered
from alkstore_sqlite.writer import Writer

__all__ = ["PlainTransaction", "begin_joined"]

T = TypeVar("T")

_HOW: Final = (
    "a sqlite3 connection, Django's connection, or a SQLAlchemy Connection or Session on sqlite+pysqlite"
)


async def begin_joined(
    connection: object, writer: Writer, label: str
) -> "JoinedTransaction | PlainTransaction":
    """Ride a caller's transaction, whichever kind of thread it belongs to; raises as both of them do."""
    if isinstance(connection, PlainConnection):
        return await PlainTransaction.begin(connection, writer, label)
    return await JoinedTransaction.begin(connection, writer, label)


class PlainTransaction(Operations):
    """The caller's transaction, as long as it lasts. Make it by `begin`."""

    def __init__(
        self,
        plain: PlainConnection,
        library: Library,
        driver: sqlite3.Connection,
        writer: Writer,
        label: str,
        beginning: Beginning,
    ) -> None:
        self.label = label
        self._plain = plain
        self._library = library
        self._driver = driver
        self._writer = writer
        self._root = library.root
        self._beginning = beginning
        self._is_left = False

    @classmethod
    async def begin(cls, plain: PlainConnection, writer: Writer, label: str) -> "PlainTransaction":
        """Find the driver's connection, make it begin if it begins by itself, and see that it is in a transaction.

        Raises:
            InvalidArgument: It cannot be joined, and why.
            DatabaseError: Somebody else had the write lock for too long.
        """
        library = library_of(plain.given)
        if library is None:
            raise InvalidArgument(f"this engine joins, from a plain thread, {_HOW}, got {show(plain.given)}")
        beginning = Beginning()
        with translated(writer.link.path):
            try:
                return await plain.thread.run(lambda: cls._ride(plain, library, writer, label, beginning))
            except asyncio.CancelledError:
                hand_over(_take_back(plain, library, beginning))  # the thread runs on
                raise

    @classmethod
    def _ride(
        cls, plain: PlainConnection, library: Library, writer: Writer, label: str, beginning: Beginning
    ) -> "PlainTransaction":
        try:
            driver = library.enter()
            if not isinstance(driver, sqlite3.Connection):
                raise InvalidArgument(f"this engine joins, from a plain thread, {_HOW}, got {show(driver)}")
            with _as_ours(driver):
                _check(driver, writer.link.path, beginning)
            return cls(plain, library, driver, writer, label, beginning)
        except BaseException:
            _leave(library, beginning)
            raise

    @property
    def is_open(self) -> bool:
        # Once and for all: what was Closed must not come to life again with the caller's next transaction.
        self._is_left = (
            self._is_left or not _is_in_transaction(self._driver) or self._root is not self._library.root
        )
        return not self._is_left

    @property
    def connection(self) -> object:
        return self._plain.given

    async def _do(self, operation: Operation[T]) -> T:
        if not self.is_open:
            raise Closed("transaction")
        writer = self._writer
        with translated(writer.link.path):
            change = await self._plain.thread.run(lambda: self._perform(operation(writer.clock.now())))
        # Nobody is woken here: the commit is the caller's, and the watcher sees it.
        return change.result

    def _perform(self, steps: Steps[Change[T]]) -> Change[T]:
        self._library.prepare()
        with _as_ours(self._driver):
            return sheltered(self._driver, steps)

    async def commit(self) -> None:
        raise InvalidArgument("commit of a joined transaction is its owner's; call it on your connection")

    async def rollback(self) -> None:
        self._is_left = True

    def abandon(self) -> None:
        self._is_left = True
        # The store was closed, and nobody was given this.
        hand_over(_take_back(self._plain, self._library, self._beginning))


async def _take_back(plain: PlainConnection, library: Library, beginning: Beginning) -> None:
    with suppress(Closed):  # the thread has gone on
        await plain.thread.run(lambda: _leave(library, beginning))


def _leave(library: Library, beginning: Beginning) -> None:
    beginning.undo()
    library.leave()


def _check(driver: sqlite3.Connection, path: str, beginning: Beginning) -> None:
    try:
        listed = run_statement(driver, LISTING)
    except sqlite3.ProgrammingError as error:  # closed, or another thread's
        raise InvalidArgument(f"connection cannot be joined: {error}") from error
    check_listed(listed, path)
    if driver.in_transaction:
        return
    if driver.isolation_level is None or getattr(driver, "autocommit", LEGACY) != LEGACY:
        raise InvalidArgument(
            "connection is in no transaction and commits every statement by itself; "
            "execute BEGIN IMMEDIATE on it before joining"
        )
    beginning.begin(driver)


@contextmanager
def _as_ours(driver: sqlite3.Connection) -> Iterator[None]:
    """Have rows come as plain tuples of plain values, whatever the caller has set up for his own."""
    row_factory, text_factory = driver.row_factory, driver.text_factory
    driver.row_factory, driver.text_factory = None, str
    try:
        yield
    finally:
        driver.row_factory, driver.text_factory = row_factory, text_factory


def _is_in_transaction(driver: sqlite3.Connection) -> bool:
    try:
        return driver.in_transaction
    except sqlite3.ProgrammingError:  # closed
        return False
