"""A plain connection with alkstore's tables, and what SQLite would do for the statements of an operation."""

import re
import sqlite3
from pathlib import Path
from typing import Any

from alkstore_sqlite.connection import Row, Steps, bind, run_statement
from alkstore_sqlite.schema import MIGRATIONS

__all__ = ["plan", "plan_of", "with_tables"]


def with_tables(path: str | Path = ":memory:", *, encoding: str = "UTF-8") -> sqlite3.Connection:
    """Open a file of an application's, in SQLite's own journal mode, and make the tables in it."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=0)
    connection.execute(f"PRAGMA encoding = '{encoding}'")
    for migration in MIGRATIONS:
        for statement in migration.statements:
            connection.execute(statement)
    return connection


def plan_of(connection: sqlite3.Connection, sql: str) -> list[str]:
    """Give the lines of a statement's plan, which its parameters have no say in."""
    last = max((int(number) for number in re.findall(r"\?([0-9]+)", sql)), default=0)
    looked = connection.execute(f"EXPLAIN QUERY PLAN {sql}", bind((None,) * last))
    return [row[3] for row in looked]


def plan(connection: sqlite3.Connection, steps: Steps[Any]) -> list[str]:
    """Do an operation, and give the plans of all its statements."""
    details: list[str] = []
    rows: list[Row] | None = None
    while True:
        try:
            statement = steps.send(rows)  # type: ignore[arg-type]
        except StopIteration:
            return details
        details += plan_of(connection, statement.sql)
        rows = run_statement(connection, statement)
