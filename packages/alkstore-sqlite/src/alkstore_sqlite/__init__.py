"""alkstore in one SQLite file: many processes, beside the application's own tables."""

from alkstore_sqlite.engine import SqliteStore
from alkstore_sqlite.native import SqliteTx

__all__ = ["SqliteStore", "SqliteTx"]
