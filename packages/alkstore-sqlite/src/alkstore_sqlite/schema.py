"""The tables of a file: made, and brought up to date, by whoever opens it first."""

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Final

from alkstore import migrations
from alkstore.migrations import Migration
from alkstore_sqlite.connection import Connection, Patience, bind
from alkstore_sqlite.errors import translate
from alkstore_sqlite.surroundings import connect_arguments

__all__ = ["MIGRATIONS", "migrate", "pending", "script"]

MIGRATIONS: Final = migrations.load("alkstore_sqlite")

_IS_THERE: Final = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'alkstore_migration'"
_APPLIED: Final = "SELECT version, checksum FROM alkstore_migration"
_TABLE: Final = """CREATE TABLE alkstore_migration (
    version INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied_at INTEGER NOT NULL
) STRICT"""
_NOTE: Final = "INSERT INTO alkstore_migration (version, name, checksum, applied_at) VALUES (?1, ?2, ?3, ?4)"


def migrate(connection: Connection, now: int, patience: Patience) -> None:
    """Bring a file's tables up to date in one transaction; one that is up to date is only read.

    Raises:
        SchemaMismatch: A newer version of alkstore wrote it.
        DatabaseError: It has other tables than this version made.
    """
    if not patience.call(lambda: migrations.plan(MIGRATIONS, _applied(connection))):
        return
    patience.call(lambda: connection.run_sql("BEGIN IMMEDIATE"))
    try:
        # Somebody else may have done it while we waited for the lock.
        for migration in migrations.plan(MIGRATIONS, _applied(connection)):
            if migration.version == 1:
                connection.run_sql(_TABLE)
            for statement in migration.statements:
                connection.run_sql(statement)
            connection.execute(_NOTE, bind((migration.version, migration.name, migration.checksum, now)))
        connection.run_sql("COMMIT")
    except BaseException:
        connection.roll_back()
        raise


def pending(path: str) -> Sequence[Migration]:
    """Say what a file still lacks, everything if it is not there; it is not made. Blocks.

    Raises:
        SchemaMismatch: A newer version of alkstore wrote it.
        DatabaseError: It cannot be read, or has other tables than this version made.
    """
    if not os.path.exists(path):
        return MIGRATIONS
    database, is_uri = connect_arguments(path, create=False)
    try:
        with closing(sqlite3.connect(database, uri=is_uri)) as connection:
            return migrations.plan(MIGRATIONS, _applied(connection))
    except sqlite3.Error as error:
        raise translate(error, path) from error


def script(lacking: Sequence[Migration]) -> str:
    """Write what `migrate` would do for sqlite3's command line; empty if there is nothing to do."""
    if not lacking:
        return ""
    steps = ["BEGIN IMMEDIATE"]
    for migration in lacking:
        steps += [_TABLE] if migration.version == 1 else []
        steps += migration.statements
        values = f"{migration.version}, '{migration.name}', '{migration.checksum}', strftime('%s', 'now') * 1000000"
        steps.append(
            f"INSERT INTO alkstore_migration (version, name, checksum, applied_at) VALUES ({values})"
        )
    return "".join(f"{step};\n\n" for step in (*steps, "COMMIT"))


def _applied(connection: sqlite3.Connection) -> dict[int, str]:
    if not connection.execute(_IS_THERE).fetchall():
        return {}
    return dict(connection.execute(_APPLIED).fetchall())
