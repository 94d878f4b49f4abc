"""Hops: one change of threads, in which several operations take the write lock once and land in one commit."""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from alkstore.clock import Clock
from alkstore.errors import AlkstoreError, DatabaseError
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
from alkstore_sqlite.errors import is_broken, is_busy, is_refused, translate

__all__ = ["Hop", "Operation", "Work", "told"]

T = TypeVar("T")

Operation = Callable[[int], Steps[Change[T]]]
"""Gives the steps of a change, once *now* is known: it is read after the write lock was got, never before a wait."""


class Work(Generic[T]):
    """One operation on its way: what came of it, and when it had the write lock."""

    # No slots: what is the same for nearly all of them costs each of them nothing.
    _result: T
    since = 0.0
    """time.monotonic() when it came to stand in line; 0 if it found the writer idle."""
    is_put_off = False
    """Whether its hop ended before it was its turn, for the sake of one that had waited for longer."""
    done: asyncio.Future[None] | None = None
    error: Exception | None = None
    woken: Sequence[Woken] = ()
    began: float | None = None
    """time.monotonic() when the write lock was got: everything committed before is seen."""

    def __init__(
        self, operation: Operation[T], undo: Callable[[T], object] | None = None, *, is_single: bool = False
    ) -> None:
        """Prepare.

        Args:
            operation: What is to be done.
            undo: Called with the result if nobody is there to take it.
            is_single: It is one statement at most, which answers no rows, so it can commit by itself, without a BEGIN and
                a COMMIT around it.
        """
        self.operation = operation
        self.undo = undo
        self.is_single = is_single

    def take_back(self) -> None:
        """Undo what landed for somebody who has gone. Once, however often it is called."""
        undo, self.undo = self.undo, None
        if undo is not None and self.error is None:
            undo(self._result)

    def result(self) -> T:
        """Give what came of it.

        Raises:
            DatabaseError: It failed, and why.
        """
        if self.error is not None:
            raise self.error
        return self._result


class Hop(Errand):
    """The program of several operations and one commit."""

    _since: float | None = None
    """time.monotonic() from which it waits for others."""
    _is_committing = False

    def __init__(self, works: Sequence[Work[Any]], path: str, clock: Clock, wait: Wait) -> None:
        self._works = works
        self._path = path
        self._clock = clock
        self._wait = wait

    def run(self, connection: Connection) -> None:
        work = self._works[0]
        if work.is_single and len(self._works) == 1 and self._do_alone(connection, work):
            self.finish()
        else:
            super().run(connection)

    def _do_alone(self, connection: Connection, work: Work[Any]) -> bool:
        """Do what is one statement, which commits by itself; False if it cannot now, and nothing was done."""
        # Of Python as little as can be: in this thread it costs twice as much, since what it touches comes from another
        # processor and goes back there.
        try:
            if not connection.commits_each():
                return False
            connection.check_place()
            self._is_committing = connection.is_alone = True
            now, operation = self._clock.now(), work.operation
            if isinstance(operation, Single):
                work._result, work.woken = operation.run(connection, now)
            else:
                work._result, work.woken = perform(connection, operation(now))
        except sqlite3.DatabaseError as error:
            # Wait for the lock, and read the clock again; or have undone what a trigger leaves.
            if is_busy(error) or is_refused(error):
                self._is_committing = False
                return False
            self.failed(error)
        except Exception as error:  # as any errand's
            self.failed(error)
        finally:
            connection.is_alone = False
        return True

    def work(self, connection: Connection) -> None:
        self._since = self._works[0].since or time.monotonic()
        try:
            self._land(connection, self._works)
        except sqlite3.Error as error:
            if len(self._works) == 1:
                raise
            if is_busy(error):
                self._put_off(error)
                return
            if not self._took_others_along(error):
                raise
            for work in self._works:
                self._land_alone(connection, work)

    def _land(self, connection: Connection, works: Sequence[Work[Any]]) -> None:
        connection.begin(self._wait_for_others)
        began, now = time.monotonic(), self._clock.now()
        try:
            if len(works) == 1:
                work = works[0]
                if self._heir is not None and work.undo is not None:
                    # What it takes now would only be given back, and meanwhile be missed by whoever asks for it next.
                    raise DatabaseError("its caller has gone before it got the write lock; nothing was done")
                work.began = began
                work._result, work.woken = perform(connection, work.operation(now))
            else:
                for work in works:
                    work.began = began
                    self._perform(connection, work, now)
            self._is_committing = True
            connection.execute("COMMIT")
        except BaseException:
            connection.roll_back()
            raise

    def _wait_for_others(self, attempt: Callable[[], object]) -> None:
        Patience(self._wait, self._since, self.has_heir).call(attempt)

    def _put_off(self, error: sqlite3.Error) -> None:
        """Fail who has waited for another process for long enough; the others have part of their time left."""
        now = time.monotonic()
        for work in self._works:
            work.is_put_off = work is not self._works[0] and now - work.since < self._wait.limit
            if not work.is_put_off:
                work.error = self._told(error)

    def _took_others_along(self, error: sqlite3.Error) -> bool:
        """Whether nothing landed, perhaps for the sake of one: its size, or a trigger that says RAISE(ROLLBACK)."""
        if is_broken(error):
            return False
        return not self._is_committing or getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL

    def _land_alone(self, connection: Connection, work: Work[Any]) -> None:
        self._is_committing, work.error, work.woken = False, None, ()
        try:
            self._land(connection, (work,))
        except Exception as error:  # its own: the others are not to hear of it
            work.error, work.woken = self._told(error), ()

    def _perform(self, connection: Connection, work: Work[Any], now: int) -> None:
        connection.run_sql("SAVEPOINT alkstore")
        try:
            work._result, work.woken = perform(connection, work.operation(now))
        except Exception as error:
            if not connection.in_transaction:  # SQLite gave up the whole of it: a full disk, say
                raise
            work.error = self._told(error)
            connection.run_sql("ROLLBACK TO alkstore")
        connection.run_sql("RELEASE alkstore")

    def failed(self, error: Exception) -> None:
        for work in self._works:
            work.woken = ()
            if work.error is None:
                work.error = self._told(error)

    def _told(self, error: Exception) -> Exception:
        waited = None if self._since is None else time.monotonic() - self._since
        return told(error, self._path, committing=self._is_committing, waited=waited)


def told(error: Exception, path: str, *, committing: bool = False, waited: float | None = None) -> Exception:
    """Give what a caller is told of an error: one of ours as it is, each caller his own, the driver's translated."""
    if isinstance(error, AlkstoreError):
        return error._twin()
    ours = translate(error, path, committing=committing, waited=waited)
    ours.__cause__ = error
    return ours
