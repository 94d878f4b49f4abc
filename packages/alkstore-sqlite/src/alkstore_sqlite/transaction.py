"""Transactions: the writer is theirs alone until they end, so everything in them is seen by nobody else before."""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from alkstore.engine import Ack, EventRecord, JobFilter, JobRecord, NewEvent, NewJob, NewWake, OffsetSave
from alkstore.errors import Closed
from alkstore_sqlite import queue as _queue
from alkstore_sqlite import stream as _stream
from alkstore_sqlite import wake as _wake
from alkstore_sqlite.connection import (
    Change,
    Connection,
    Errand,
    Patience,
    Single,
    Steps,
    Wait,
    Woken,
    perform,
)
from alkstore_sqlite.errors import is_broken, is_refused, is_stale
from alkstore_sqlite.hop import Operation, told
from alkstore_sqlite.link import Link
from alkstore_sqlite.writer import Writer

__all__ = ["Operations", "SqliteTransaction", "sheltered"]

T = TypeVar("T")


class Operations:
    """What can be done within a transaction, however its statements reach the file."""

    async def _do(self, operation: Operation[T]) -> T:
        raise NotImplementedError

    async def _look(self, operation: Callable[[], Steps[T]]) -> T:
        return await self._do(lambda _: _changing_nothing(operation()))

    async def insert_jobs(self, jobs: Sequence[NewJob]) -> Sequence[int]:
        return await self._do(_queue.inserting(jobs))

    async def find_jobs(self, queue: str, where: JobFilter) -> Sequence[JobRecord]:
        return await self._look(lambda: _queue.find(queue, where))

    async def settle_jobs(self, settles: Sequence[Ack]) -> Sequence[int | None]:
        return await self._do(_queue.settling(settles))

    async def append_events(self, events: Sequence[NewEvent]) -> Sequence[int]:
        return await self._do(lambda now: _stream.append(events, now))

    async def read_events(self, stream: str, after: int, limit: int) -> Sequence[EventRecord]:
        return await self._look(lambda: _stream.read(stream, after, limit))

    async def read_offset(self, stream: str, consumer: str, *, hold: bool) -> int:
        if hold:
            return await self._do(lambda _: _stream.hold_position(stream, consumer))
        return await self._look(lambda: _stream.position(stream, consumer))

    async def save_offset(self, stream: str, consumer: str, offset: int, expected: int | None) -> OffsetSave:
        return await self._do(lambda _: _stream.save(stream, consumer, offset, expected))

    async def notify(self, wakes: Sequence[NewWake]) -> None:
        await self._do(lambda now: _wake.notify(wakes, now))


def _changing_nothing(steps: Steps[T]) -> Steps[Change[T]]:
    return Change((yield from steps))


class _Part(Errand, Generic[T]):
    """One step of a transaction."""

    _result: T

    def __init__(self, step: Callable[[Connection], T], path: str, *, is_committing: bool = False) -> None:
        self._step = step
        self._path = path
        self._is_committing = is_committing
        self.error: Exception | None = None

    def work(self, connection: Connection) -> None:
        self._result = self._step(connection)

    def failed(self, error: Exception) -> None:
        self.error = told(error, self._path, committing=self._is_committing)

    def result(self) -> T:
        if self.error is not None:
            raise self.error
        return self._result


class _Beginning(_Part[None]):
    """The first step, which takes the write lock."""

    _result = None

    def __init__(self, wait: Wait, since: float, path: str) -> None:
        self._wait = wait
        self._since = since
        self._path = path
        self.error = None

    @property
    def is_stale(self) -> bool:
        """Whether it has to be taken on another connection."""
        return self.error is not None and is_stale(self.error)

    def work(self, connection: Connection) -> None:
        connection.begin(self._wait_for_others)

    def _wait_for_others(self, attempt: Callable[[], object]) -> None:
        Patience(self._wait, self._since, self.has_heir).call(attempt)

    def failed(self, error: Exception) -> None:
        self.error = told(error, self._path, waited=time.monotonic() - self._since)


class SqliteTransaction(Operations):
    """A transaction of the store's own, on its writer. Make it by `begin`."""

    def __init__(self, writer: Writer, label: str) -> None:
        self.label = label
        self._writer = writer
        self._link: Link | None = None
        self._loop = asyncio.get_running_loop()
        self._is_ended = False
        self._woken: list[Woken] = []

    @classmethod
    async def begin(cls, writer: Writer, label: str) -> "SqliteTransaction":
        """Wait for the writer and for SQLite's write lock.

        Raises:
            DatabaseError: Somebody else had one of them for too long.
        """
        transaction, part = cls(writer, label), None
        since = time.monotonic()
        await writer.lend(transaction)
        try:
            while part is None or part.is_stale:
                link = transaction._link = await writer.usable()
                part = _Beginning(writer.wait, since, link.path)
                await transaction._hop(link, part)
            part.result()
        except BaseException as error:
            if isinstance(error, Exception) and is_broken(error):
                writer.broke()
            if part is not None:
                part.leave_to(lambda: None)  # or all that comes later would wait with it
            # A cancelled hop runs on: what it began is to end behind it.
            writer.start(transaction._undo())
            raise
        return transaction

    @property
    def is_open(self) -> bool:
        return not self._is_ended and self._link is not None and self._link.is_in_transaction

    @property
    def connection(self) -> object:
        return self._opened().connection

    def _opened(self) -> Link:
        if self._link is None or not self.is_open:
            raise Closed("transaction")
        return self._link

    # ------------------------------------------------------------ operations

    async def _do(self, operation: Operation[T]) -> T:
        link = self._link
        if link is None or self._is_ended:
            raise Closed("transaction")
        clock = self._writer.clock
        part = _Part(lambda connection: _undivided(connection, operation, clock.now()), link.path)
        await self._hop(link, part)
        change = part.result()
        self._woken += change.woken
        return change.result

    async def _hop(self, link: Link, part: _Part[T]) -> None:
        try:
            await link.hop(part)
        except (ValueError, sqlite3.Error) as error:
            raise told(error, link.path) from error
        finally:
            if part.error is not None and is_broken(part.error):
                self._writer.broke()

    # ------------------------------------------------------------ the end

    async def commit(self) -> None:
        link = self._opened()
        part = _Part(_commit, link.path, is_committing=True)
        try:
            await self._hop(link, part)
        except asyncio.CancelledError:
            part.leave_to(lambda: self._landed(part))
            raise
        finally:
            self._free()
        self._landed(part)
        part.result()

    def _landed(self, part: _Part[None]) -> None:
        woken, self._woken = self._woken, []
        if part.error is None:
            self._writer.landed(woken)

    async def rollback(self) -> None:
        if not self._is_ended:
            await self._undo()

    def abandon(self) -> None:
        if not self._is_ended and not self._loop.is_closed():
            # Perhaps the collector, in any thread and in the middle of any statement.
            self._loop.call_soon_threadsafe(self._let_go)

    def _let_go(self) -> None:
        if not self._is_ended:
            self._writer.start(self._undo())

    async def _undo(self) -> None:
        self._is_ended = True
        try:
            if self._link is not None:
                await self._hop(self._link, _Part(Connection.roll_back, self._link.path))
        except BaseException:
            self._writer.broke()  # closing it rolls back
            raise
        finally:
            self._free()

    def _free(self) -> None:
        self._is_ended = True
        self._writer.take_back(self)


def _undivided(connection: Connection, operation: Operation[T], now: int) -> Change[T]:
    # The caller's own SQL has ended it: nothing is to land beside it, nor with his next one.
    if not connection.in_transaction or connection.is_begun_anew:
        raise Closed("transaction")
    if isinstance(operation, Single) and not connection.has_triggers():
        # One statement is whole or not at all by itself, unless it fires a trigger.
        connection.is_alone = True
        try:
            return operation.run(connection, now)
        except sqlite3.DatabaseError as error:
            if not is_refused(error):
                raise
        finally:
            connection.is_alone = False
    return sheltered(connection, operation(now))


def sheltered(connection: sqlite3.Connection, steps: Steps[T]) -> T:
    """Perform an operation whole or not at all, within a transaction that goes on either way."""
    connection.execute("SAVEPOINT alkstore")
    try:
        result = perform(connection, steps)
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK TO alkstore")
            connection.execute("RELEASE alkstore")
        raise
    connection.execute("RELEASE alkstore")
    return result


def _commit(connection: Connection) -> None:
    try:
        connection.run_sql("COMMIT")
    except BaseException:
        connection.roll_back()
        raise
