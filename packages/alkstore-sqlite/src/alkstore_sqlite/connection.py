"""What runs in the driver's thread: a whole program of statements in one hop, committed as one.

State model. An operation is a generator: it yields statements and is sent their rows. So the same function runs in the
writer's thread, within an open transaction, and, statement by statement, on a connection of the caller's. A *program* is
what one hop carries: aiosqlite hands it to `Connection.set_trace_callback` as if it were a callback, which is public and
costs one change of threads however many statements it runs.
"""

import asyncio
import enum
import operator
import random
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeAlias, TypeVar

from alkstore.engine import Topic
from alkstore.errors import Closed
from alkstore_sqlite.errors import is_busy
from alkstore_sqlite.place import Place
from alkstore_sqlite.trigger import Heedful

__all__ = [
    "TRUST",
    "Change",
    "Connection",
    "Errand",
    "Patience",
    "Program",
    "Row",
    "Single",
    "Statement",
    "Steps",
    "Tells",
    "Wait",
    "Woken",
    "bind",
    "make_change",
    "make_statement",
    "perform",
    "run_statement",
]

T = TypeVar("T")

TRUST: Final = 0.001
"""Seconds for which a look at a file's place counts: one at every commit would be a tenth of what a small one costs."""

SHORTEST_PAUSE: Final = 0.000_1
LONGEST_PAUSE: Final = 0.005
"""Seconds between two tries at a lock that another process holds: a look costs 10 µs and a change of threads."""

BEGIN: Final = "BEGIN IMMEDIATE -- alkstore"
"""With a text of its own: who writes BEGIN IMMEDIATE himself would be given this one, compiled, and not be heard of."""

IS_STRICT: Final = (3, 12, 0) <= sys.version_info < (3, 12, 4)
"""Whether the driver takes ``?1`` for a named parameter, and warns if it comes in a sequence. Mended in Python 3.12.4."""

Row: TypeAlias = tuple[Any, ...]


class Tells(enum.Enum):
    """What a statement answers: its rows, or one row of the number of rows that it changed, or of the last id given.

    RETURNING would tell the latter two, but at the price of a temporary table a statement, several times the statement's.
    EACH is for many rows of parameters: one row of the number of rows that each of them changed, in turn.
    """

    ROWS = "rows"
    COUNT = "count"
    ID = "id"
    EACH = "each"


class Statement(NamedTuple):
    """One statement and its parameters.

    Attributes:
        is_many: The parameters are many rows; it tells the number of rows changed, if not EACH.
        tells: What it answers.
    """

    sql: str
    parameters: Sequence[Any] = ()
    is_many: bool = False
    tells: Tells = Tells.ROWS


make_statement: Final[Callable[[type[Statement], tuple[object, ...]], Statement]] = tuple.__new__
"""A statement from all its fields in their order: half of the time that the named tuple's own constructor takes."""

Steps: TypeAlias = Generator[Statement, list[Row], T]
"""An operation: yields statements, is sent their rows, and returns what it found or did."""


class Woken(NamedTuple):
    """A topic to wake once this has landed; ``mark`` is where its mark in storage stands then, if it has one."""

    topic: Topic
    mark: int | None = None


class Change(NamedTuple, Generic[T]):
    """What a writing operation gives: its result, and whom to wake."""

    result: T
    woken: Sequence[Woken] = ()


make_change: Final[Callable[[type[Change[Any]], tuple[object, Sequence[Woken]]], Change[Any]]] = tuple.__new__
"""The same of a change."""


class Single(Generic[T]):
    """An operation of exactly one statement. By itself it commits by itself, and then it is spared being a generator."""

    __slots__ = ()
    sql: ClassVar[str]
    tells: ClassVar[Tells]
    """COUNT or ID."""

    def parameters(self, now: int) -> Row:
        """Give the statement's parameters."""
        raise NotImplementedError

    def conclude(self, answer: int, now: int) -> Change[T]:
        """Give what the statement's answer means."""
        raise NotImplementedError

    def __call__(self, now: int) -> Steps[Change[T]]:
        """Give its steps, for among others, and for within a transaction."""
        ((answer,),) = yield make_statement(Statement, (self.sql, self.parameters(now), False, self.tells))
        return self.conclude(answer, now)

    def run(self, connection: sqlite3.Connection, now: int) -> Change[T]:
        """Run it on a connection of ours, in its thread."""
        row = self.parameters(now)
        cursor = connection.execute(self.sql, bind(row) if IS_STRICT else row)
        return self.conclude(cursor.rowcount if self.tells is COUNT else cursor.lastrowid or 0, now)


class Program:
    """Runs in the driver's thread, where it may wait for the file without holding up the event loop."""

    def run(self, connection: "Connection") -> None:
        """Do it. What it raises reaches whoever awaits the hop."""
        raise NotImplementedError


class Connection(Heedful):
    """A connection that runs programs; everything else, the caller's own SQL too, is as in `sqlite3`.

    ``place`` is where its file was when it was opened, `Place.check` finds out when another one stands there.
    """

    place: Place | None = None
    ran = 0
    """Programs that have run."""
    _trusted_until = 0.0

    def set_trace_callback(self, callback: Any, /) -> None:
        # Not `execute`, around which aiosqlite has a context manager, a cursor and a fetch, in the loop and in the thread.
        if not isinstance(callback, Program):
            super().set_trace_callback(callback)
            return
        try:
            callback.run(self)
        finally:
            self.ran += 1

    def run_sql(self, sql: str) -> None:
        """Run a statement that answers nothing."""
        self.execute(sql)

    def begin(self, wait_for: Callable[[Callable[[], object]], object]) -> None:
        """Take the write lock; ``wait_for`` tries it for as long as another process is waited for.

        Raises:
            FileReplaced: What is written now would be lost.
        """
        # A caller of a transaction that has ended kept its connection, and left one open.
        if self.in_transaction:
            self.roll_back()
        if self.is_begun_anew:  # the caller's BEGIN would not be compiled the next time, and not be heard of
            self.heed()
        self.check_place()
        try:
            self.execute(BEGIN)
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            wait_for(lambda: self.run_sql(BEGIN))
        self.is_begun_anew = False

    def check_place(self) -> None:
        """Refuse to go on in a file that is not the one at its path any more."""
        now = time.monotonic()
        if now >= self._trusted_until and self.place is not None:
            self.place.check()
            self._trusted_until = now + TRUST

    def roll_back(self) -> None:
        """End a transaction if there is one; what fails here must not hide the error that led here."""
        if self.in_transaction:
            with suppress(sqlite3.Error):
                self.execute("ROLLBACK")


class Wait:
    """How long anybody in a store waits for another process, in a driver's thread: so many seconds, or until the close."""

    __slots__ = ("abort", "is_held_up", "limit")

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.abort = threading.Event()
        self.is_held_up = False
        """Whether the last try found the lock in other hands, and the next one has not come yet."""


class Patience:
    """What is left of a wait to one program, begun at a time.monotonic(); nothing once its caller has gone."""

    __slots__ = ("_has_gone", "_since", "_wait")

    def __init__(
        self, wait: Wait, since: float | None = None, has_gone: Callable[[], bool] | None = None
    ) -> None:
        self._wait = wait
        self._since = time.monotonic() if since is None else since
        self._has_gone = has_gone

    @property
    def waited(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._since

    def call(self, attempt: Callable[[], T]) -> T:
        """Try until the file is free.

        Raises:
            sqlite3.OperationalError: It was not, for so long, or until nobody wanted it any more.
            Closed: The store was closed meanwhile.
        """
        pause = SHORTEST_PAUSE
        try:
            while True:
                try:
                    return attempt()
                except sqlite3.OperationalError as error:
                    left = self._wait.limit - self.waited
                    if not is_busy(error) or left <= 0:
                        raise
                    # In the same thread all that comes later waits behind this.
                    if self._has_gone is not None and self._has_gone():
                        raise
                self._wait.is_held_up = True
                # The jitter keeps processes that wait together from asking together.
                if self._wait.abort.wait(min(pause * (0.5 + random.random()), left)):
                    raise Closed("store")
                pause = min(pause * 1.5, LONGEST_PAUSE)
        finally:
            self._wait.is_held_up = False


class Errand(Program):
    """A program with somebody who waits for it, or who has gone: then an heir is told that it has run."""

    # No slots and no __init__: what is the same for nearly all of them costs each of them nothing.
    _is_finished = False
    _heir: Callable[[], object] | None = None
    _loop: asyncio.AbstractEventLoop | None = None

    def run(self, connection: Connection) -> None:
        # Rows come as plain tuples of plain values here, whatever the caller of a transaction has set up for his own.
        row_factory, text_factory = connection.row_factory, connection.text_factory
        is_changed = row_factory is not None or text_factory is not str
        if is_changed:
            connection.row_factory, connection.text_factory = None, str
        try:
            self.work(connection)
        except Exception as error:  # whatever it is: a caller waits for it, and the thread serves others too
            self.failed(error)
        finally:
            if is_changed:
                connection.row_factory, connection.text_factory = row_factory, text_factory
            self.finish()

    def has_heir(self) -> bool:
        """Whether its caller has gone."""
        return self._heir is not None

    def finish(self) -> None:
        """Let who has come to wait for it know that it has run."""
        self._is_finished = True
        loop = self._loop
        if self._heir is not None and loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._heir)

    def work(self, connection: Connection) -> None:
        """Do it, in the driver's thread."""
        raise NotImplementedError

    def failed(self, error: Exception) -> None:
        """Keep an error for whoever waits."""
        raise NotImplementedError

    def leave_to(self, heir: Callable[[], object]) -> None:
        """Have somebody called in the loop, once or twice, when this has run: its caller was cancelled, it runs on."""
        self._loop = asyncio.get_running_loop()
        self._heir = heir
        if self._is_finished:
            heir()


# An enum's member costs a metaclass call at every access in Python 3.11.
ROWS: Final = Tells.ROWS
COUNT: Final = Tells.COUNT
EACH: Final = Tells.EACH


def perform(connection: sqlite3.Connection, steps: Steps[T]) -> T:
    """Run an operation to its end on a connection of ours, in its thread; errors are raised where it yielded."""
    try:
        statement = next(steps)
        while True:
            sql, parameters, is_many, tells = statement
            try:
                if is_many or IS_STRICT:
                    rows = run_statement(connection, statement)
                else:  # as `run_statement`, without a call of it
                    cursor = connection.execute(sql, parameters)
                    if tells is ROWS:
                        rows = cursor.fetchall()
                    else:
                        rows = [(cursor.rowcount if tells is COUNT else cursor.lastrowid,)]
            except sqlite3.Error as error:
                statement = steps.throw(error)
            else:
                statement = steps.send(rows)
    except StopIteration as stop:
        result: T = stop.value
        return result


def run_statement(connection: sqlite3.Connection, statement: Statement) -> list[Row]:
    """Run one statement, and give its answer."""
    sql, parameters, is_many, tells = statement
    if is_many:
        rows = [bind(row) for row in parameters] if IS_STRICT else parameters
        if tells is EACH:
            return _run_each(connection, sql, rows)
        return [(connection.executemany(sql, rows).rowcount,)]
    cursor = connection.execute(sql, bind(parameters) if IS_STRICT else parameters)
    if tells is ROWS:
        return cursor.fetchall()
    return [(cursor.rowcount if tells is COUNT else cursor.lastrowid,)]


def _run_each(connection: sqlite3.Connection, sql: str, rows: Iterable[Any]) -> list[Row]:
    totals = [connection.total_changes]

    def looked_after() -> Iterator[Any]:
        # The driver asks for a row when it has run the statement with the one before.
        for row in rows:
            yield row
            totals.append(connection.total_changes)

    connection.executemany(sql, looked_after())
    return [tuple(map(operator.sub, totals[1:], totals))]


def bind(parameters: Sequence[Any]) -> Any:
    """Give parameters in the form in which this Python takes those of ``?1``."""
    return {str(number): value for number, value in enumerate(parameters, 1)} if IS_STRICT else parameters
