"""What the driver raises, as `DatabaseError` that says what to do; asyncpg's, psycopg's and SQLAlchemy's alike.

Nothing of a DSN but host, port, database and user is ever part of a text: a password must not reach a log.
"""

from typing import Final

import asyncpg

from alkstore.errors import DatabaseError

__all__ = ["DRIVER", "cut_off", "is_repeatable", "silent", "translate", "was_lost"]

# InternalClientError is what a connection says of which the server took leave in the very turn in which it is used.
DRIVER: Final[tuple[type[BaseException], ...]] = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
)
"""Everything that asyncpg raises."""

_SHARED: Final = (
    "as behind a pooler that shares connections between transactions: open with statement_cache_size=0"
)

_ADVICE: Final = {
    "55P03": "others held what it needs for longer than wait_timeout",
    "40P01": "it was chosen to break a deadlock; try again",
    "40001": "it conflicted with another transaction; try again",
    "25P02": "the transaction has failed before; roll it back",
    "25006": "the server takes no writes: the transaction was begun read only, or all are, since it is a standby or set so; "
    "connect to the primary then",
    "53300": "the server has no connection left; raise max_connections, or lower pool_size",
    "53100": "the server's disk is full",
    "57014": "the server cancelled it: statement_timeout, or somebody's pg_cancel_backend",
    "57P03": "the server is starting, stopping or recovering; try again when it is up",
    "26000": "it was prepared and forgotten, by a DEALLOCATE, or behind a pooler, where statement_cache_size must be 0",
    "28P01": "the password is wrong, or none was given: see the DSN, PGPASSWORD and the password file",
    "28000": "the server lets nobody in this way: see its pg_hba.conf, and the role",
    "3D000": "make the database first",
    "42501": "the role lacks a privilege; alkstore migrate --sql --grant-to prints what it needs to use the schema, "
    "and who migrates owns the schema or may create it",
    "42P05": _SHARED,
    "3F000": "the schema is missing; run alkstore migrate",
    "42P01": "a table is missing; run alkstore migrate",
    "42883": "a function is missing; run alkstore migrate",
}

_ADVISED: Final = frozenset({"42P05", "26000"})
"""The driver advises too, in nine lines: to its own pool and its own functions, which are not to be had here."""

_UNDONE: Final = frozenset({"40P01", "40001", "57P05", "26000"})
"""The server undid all of it for another transaction's sake, had ended an idle connection before it read it, or did not
know the prepared statement that it was to execute."""

_ENDED: Final = frozenset({"57P01", "57P02", "57P05", "08000", "08003", "08006", "26000"})
"""The server ended the connection, or has forgotten what the driver prepared on it and will never prepare again."""


def sqlstate(error: BaseException) -> str | None:
    """Give the five characters by which PostgreSQL classes an error; psycopg and asyncpg name the attribute alike.

    Of a connection that was closed the driver knows more than that, if the server said why: that is its error's cause.
    """
    for found in (
        (error.__cause__, error) if isinstance(error, asyncpg.ConnectionDoesNotExistError) else (error,)
    ):
        state = getattr(found, "sqlstate", None)
        if isinstance(state, str):
            return state
    return None


def is_repeatable(error: BaseException) -> bool:
    """Whether nothing of the statement landed and sending it again may go well."""
    return sqlstate(error) in _UNDONE or _was_refused(error)


def _was_refused(error: BaseException) -> bool:
    """Whether the driver sent nothing, on a connection that it knows to be of no use any more.

    It says that it cannot switch to a state when it has read the server's farewell and not yet the connection's end.
    """
    if isinstance(error, asyncpg.InternalClientError):
        return str(error).startswith("cannot switch to state")
    # What it says of a value that cannot be sent is a ValueError too, and that value no connection can send.
    return isinstance(error, asyncpg.InterfaceError) and not isinstance(error, ValueError)


def was_lost(error: BaseException) -> bool:
    """Whether the connection is gone."""
    if isinstance(
        error, asyncpg.InterfaceError
    ):  # what it says of a value that cannot be sent is a ValueError too
        return not isinstance(error, ValueError)
    return sqlstate(error) in _ENDED or isinstance(
        error, (OSError, asyncpg.ConnectionDoesNotExistError, asyncpg.InternalClientError)
    )


def translate(error: BaseException, *, writes: bool) -> DatabaseError:
    """Make the error that a caller sees; raise it ``from`` the driver's. ``writes``: it may have changed something."""
    state = sqlstate(error)
    said = str(error).strip() or type(error).__name__
    advice = _ADVICE.get(state or "")
    if state in _ADVISED:
        said = said.partition("\n")[0]
    if isinstance(error, asyncpg.InterfaceError) and said.endswith("released back to the pool"):
        # The driver says so of every connection that it has taken apart, whoever ended it, and whether there is a pool.
        said = "the server or the network ended the connection"
    made = DatabaseError(f"postgresql: {said}" + (f"; {advice}" if advice else ""))
    was_cut = was_lost(error) or isinstance(error, TimeoutError)
    made.outcome_unknown = writes and was_cut and not is_repeatable(error)
    made._is_held_back = state == "55P03" or isinstance(error, TimeoutError)
    return made


def cut_off(error: BaseException, *, writes: bool) -> DatabaseError:
    """Make the error of an operation that the end of its store may have cut short; as `translate` otherwise."""
    if sqlstate(error) != "57014":
        return translate(error, writes=writes)
    return DatabaseError(
        "postgresql: the store was closed before the server had done this; nothing of it landed"
    )


def silent(seconds: float, *, writes: bool) -> DatabaseError:
    """Make the error of an operation that got no answer, or whose turn did not come, for so long."""
    made = DatabaseError(
        f"postgresql: no answer within {seconds:g} s; the server is busy or cannot be reached, or wait_timeout is too short"
    )
    made.outcome_unknown = writes
    made._is_held_back = True
    return made
