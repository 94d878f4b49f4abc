"""What runs in the driver's thread: a whole program of statements in one hop, committed as one.

State model. An operation is a generator: it yields statements and is sent their rows. So the same function runs in the
writer's thread, within an open transaction, and, statement by statement, on a connection of the caller's. A *program* is
what one hop carries: aiosqlite hands it to `Connection.execute` as if it were SQL, which is public and costs one change
of threads however many statements it runs.
"""

import sqlite3
from collections.abc import Generator, Iterable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeAlias, TypeVar

import aiosqlite

from alkstore.engine import Topic

__all__ = ["Change", "Connection", "Program", "Row", "Statement", "Steps", "Woken", "hop", "perform"]

T = TypeVar("T")

Row: TypeAlias = tuple[Any, ...]


class Statement(NamedTuple):
    """One statement and its parameters; with ``is_many`` they are many rows, and there is no answer."""

    sql: str
    parameters: Sequence[Any] = ()
    is_many: bool = False


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


class Program(Protocol):
    """Runs in the driver's thread, where it may wait for the file without holding up the event loop."""

    def run(self, connection: "Connection") -> None:
        """Do it. What it raises is raised by `hop`."""


class Connection(sqlite3.Connection):
    """A connection that runs programs; everything else, the caller's own SQL too, is as in `sqlite3`."""

    def execute(self, sql: Any, parameters: Any = (), /) -> Any:
        if isinstance(sql, str):
            return super().execute(sql, parameters)
        sql.run(self)
        return NOTHING


class _Nothing:
    """What aiosqlite fetches after a program: programs keep their results themselves."""

    def fetchall(self) -> Iterable[sqlite3.Row]:
        return ()



NOTHING = _Nothing()


async def hop(connection: aiosqlite.Connection, program: Program) -> None:
    """Run a program in the connection's thread."""
    await connection.execute_fetchall(program, ())  # type: ignore[arg-type]  # passed on to our own execute


def perform(connection: sqlite3.Connection, steps: Steps[T]) -> T:
    """Run an operation to its end on a connection of ours, in its thread."""
    execute = connection.execute
    rows: list[Row] | None = None
    try:
        while True:
            # None starts a generator, whatever its type says of what it is sent.
            statement = steps.send(rows)  # type: ignore[arg-type]
            if statement.is_many:
                connection.executemany(statement.sql, statement.parameters)
                rows = []
            else:
                rows = execute(statement.sql, statement.parameters).fetchall()
    except StopIteration as stop:
        result: T = stop.value
        return result
