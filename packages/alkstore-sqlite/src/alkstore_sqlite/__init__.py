"""alkstore in one SQLite file: many processes, beside the application's own tables."""

from alkstore_sqlite.engine import SqliteStore

__all__ = ["SqliteStore"]
