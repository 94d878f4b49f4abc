"""Triggers of the application's on our tables: a statement that fires one must not commit by itself.

RAISE(FAIL) in a trigger, and INSERT OR FAIL, leave what the statement has changed so far, and where no transaction is open
SQLite commits that. Within one it is undone with the operation. Any program may make a trigger between two statements of ours,
and to ask for it before each would cost what a statement by itself spares. So the compiler is listened to: it tells of every
trigger that it puts into a statement, and compiles anew what it compiled before the schema changed.

It tells of a BEGIN too. Where no transaction is open, that is the caller's of one that he has ended by himself: what is done in
the one that he left is not to ride on the next.
"""

import sqlite3
from collections.abc import Callable
from typing import Any, Final

__all__ = ["Heedful"]

ON_OURS: Final = """
SELECT EXISTS (
    SELECT 1 FROM sqlite_schema WHERE type = 'trigger' AND LOWER(tbl_name) GLOB 'alkstore_*'
    UNION ALL
    SELECT 1 FROM sqlite_temp_schema WHERE type = 'trigger' AND LOWER(tbl_name) GLOB 'alkstore_*'
)
"""
"""A trigger's table is called as its author called it. LIKE would leave it to a PRAGMA of his whether that is the same."""


_BEGINNINGS: Final = frozenset({sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_SAVEPOINT})


class Heedful(sqlite3.Connection):
    """A connection that knows of triggers and beginnings, once `heed` was called."""

    is_alone = False
    """Whether what runs is a statement of ours that commits by itself: it is refused if it fires a trigger."""
    is_begun_anew = False
    """Whether a transaction was begun since ours ended, or for ours."""
    _saw_trigger = False
    _authorizer: Callable[..., int] | None = None
    """The application's own, if the caller of a transaction has set one."""

    def heed(self) -> None:
        """Listen to the compiler from now on. It compiles anew what it has compiled."""
        super().set_authorizer(self._look)

    def set_authorizer(self, authorizer_callback: Callable[..., int] | None) -> None:
        self._authorizer = authorizer_callback
        super().set_authorizer(self._look)

    def commits_each(self) -> bool:
        """Whether a statement may commit by itself: not so while a caller of a transaction has left one open, or a mode set,
        or while our tables have a trigger.
        """
        return self.isolation_level is None and not self.in_transaction and not self.has_triggers()

    def has_triggers(self) -> bool:
        """Whether our tables have a trigger that a statement of ours may have been compiled with."""
        if not self._saw_trigger:
            return False
        # What was seen may be the application's on a table of its own, or a view: then it is forgotten.
        cursor = self.cursor()
        cursor.row_factory = None  # whatever the caller of a transaction has left on the connection
        try:
            ((self._saw_trigger,),) = cursor.execute(ON_OURS)
        except sqlite3.Error:
            return True  # locked, or refused: who does not know begins a transaction, which waits for it, or tells
        return bool(self._saw_trigger)

    def _look(self, *arguments: Any) -> int:
        answer = sqlite3.SQLITE_OK if self._authorizer is None else self._authorizer(*arguments)
        action, _, _, _, source = arguments
        # Not heard of is a SAVEPOINT that has run within a transaction, and runs again, to the letter, where none is open.
        if action in _BEGINNINGS and not self.in_transaction:
            self.is_begun_anew = True
        if source is None or answer != sqlite3.SQLITE_OK:
            return answer
        self._saw_trigger = True
        return sqlite3.SQLITE_DENY if self.is_alone else sqlite3.SQLITE_OK
