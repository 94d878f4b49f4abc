"""One connection of ours to the file, and the thread behind it: hops, and an end that nothing can hold up."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Self

import aiosqlite

from alkstore.batching import unanswered
from alkstore.errors import DatabaseError, show
from alkstore_sqlite.connection import Connection, Program
from alkstore_sqlite.errors import translated
from alkstore_sqlite.place import Place
from alkstore_sqlite.surroundings import connect_arguments, guard

__all__ = ["CLOSE_LIMIT", "LAST_CALL", "Link"]

STATEMENTS: Final = 256
"""Prepared statements that a connection keeps: all of ours."""

LAST_CALL: Final = 1.0
"""Seconds that a statement has to end once it was interrupted; then it is left."""

CLOSE_LIMIT: Final = 5.0
"""Seconds that a call has to end by itself when the store is closed, unless core is in more of a hurry (DUR-06)."""


class Link:
    """An open connection. Make it by `open`."""

    def __init__(self, connection: aiosqlite.Connection, path: str) -> None:
        self.connection = connection
        self.path = path
        self._loop = asyncio.get_running_loop()
        self._inside: set[asyncio.Task[Any]] = set()
        self._cut: dict[asyncio.Task[Any], int] = {}
        """Tasks that were cancelled from here, and how often they had been before: one may be cleaning up after that."""
        self._closing: asyncio.Future[None] | None = None
        self._handed = 0
        self._raw: Connection | None = None

    @property
    def place(self) -> Place:
        """Where the file was when it was opened."""
        assert self._raw is not None
        assert self._raw.place is not None
        return self._raw.place

    @property
    def is_in_transaction(self) -> bool:
        """Whether ours is open on it; no if it was closed. Asked in any thread, it is asked of no thread."""
        try:
            return self._raw is not None and self._raw.in_transaction and not self._raw.is_begun_anew
        except sqlite3.ProgrammingError:
            return False

    @property
    def hops(self) -> int:
        """Hops that have ended."""
        return 0 if self._raw is None else self._raw.ran

    @property
    def is_at_work(self) -> bool:
        """Whether the thread has something in hand, if only for somebody who was cancelled."""
        return self.hops != self._handed

    @classmethod
    async def open(
        cls,
        path: str,
        prepare: Callable[[Connection], None],
        place: Place | None = None,
        give_up: Callable[[], object] | None = None,
    ) -> Self:
        """Open the file.

        Args:
            prepare: Runs on the new connection, in its thread.
            place: Where the file was when the store opened it; without one it is made if it is not there.
            give_up: Ends what ``prepare`` waits for, once nobody waits for that.

        Raises:
            DatabaseError: It cannot be opened, and why.
            FileReplaced: Another one stands there now. Opened, the -wal file beside it would be played into it.
        """
        if place is not None:
            place.check()
        database, uri = connect_arguments(path, create=place is None)
        connection = aiosqlite.connect(
            database,
            uri=uri,
            factory=Connection,
            isolation_level=None,
            timeout=0,
            cached_statements=STATEMENTS,
        )
        # A program that ends without closing its store must end: the thread would be waited for at exit.
        connection._thread.daemon = True
        link = cls(connection, path)
        with translated(path):
            try:
                _ = await connection
            except RuntimeError as error:  # the system gives this process no more threads
                raise DatabaseError(
                    f"database file {show(path)} cannot be opened: {error}; end other threads, and try again"
                ) from error
            try:
                await link.hop(_Preparing(prepare, place, link))
            except BaseException:
                if give_up is not None:
                    give_up()
                await link.close()
                raise
        return link

    async def hop(self, program: Program) -> None:
        """Run a program in the connection's thread; it goes on to its end even if this call is cancelled.

        Raises:
            DatabaseError: The store was closed before the driver answered; the outcome is unknown.
        """
        task = asyncio.current_task(self._loop)
        assert task is not None
        self._inside.add(task)
        try:
            hopping = self.connection.set_trace_callback(program)  # type: ignore[arg-type]  # the connection tells them apart
            self._handed += 1
            await hopping
        except asyncio.CancelledError:
            if task in self._cut and task.uncancel() == self._cut.pop(task):
                raise unanswered() from None
            raise
        except ValueError:  # closed: it was never handed over
            self._handed -= 1
            raise
        finally:
            self._inside.discard(task)

    async def close(self, patience: float = LAST_CALL) -> None:
        """Close the connection after what was handed to it. What does not end in so many seconds, or by a cancellation
        of this, is cut off.

        May be called by several: the driver would not answer a second close that it got before it answered the first.
        """
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        try:
            await asyncio.wait((self._closing,), timeout=patience)
        finally:
            if not self._closing.done():
                await self._cut_off(self._closing)

    async def _cut_off(self, closing: asyncio.Future[None]) -> None:
        with suppress(ValueError, sqlite3.Error):  # closed in this very moment
            await self.connection.interrupt()
        await asyncio.wait((closing,), timeout=LAST_CALL)
        if not closing.done():
            closing.cancel()
            for task in self._inside:
                self._cut[task] = task.cancelling()
                task.cancel()

    async def _close(self) -> None:
        with suppress(
            ValueError, sqlite3.Error
        ):  # closed by the caller of a transaction, or of no use any more
            await self.connection.close()
            # It has answered and has nothing left to do, but counts as a thread until it has really ended.
            self.connection._thread.join(LAST_CALL)


class _Preparing(Program):
    """The first program of a connection."""

    def __init__(self, prepare: Callable[[Connection], None], place: Place | None, link: Link) -> None:
        self._prepare = prepare
        self._place = place
        self._link = link

    def run(self, connection: Connection) -> None:
        guard(connection)
        self._link._raw = connection
        connection.place = self._place or Place.of(self._link.path)
        connection.place.check()
        self._prepare(connection)
