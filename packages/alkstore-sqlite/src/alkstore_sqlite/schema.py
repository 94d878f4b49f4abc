"""The tables of a file: made, and brought up to date, by whoever opens it first."""

import sqlite3
from typing import Final

from alkstore import migrations
from alkstore_sqlite.connection import Connection, Patience, bind

__all__ = ["MIGRATIONS", "migrate"]

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


def _applied(connection: sqlite3.Connection) -> dict[int, str]:
    if not connection.execute(_IS_THERE).fetchall():
        return {}
    return dict(connection.execute(_APPLIED).fetchall())
