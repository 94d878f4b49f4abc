"""Where statements run: the schema that they name, and the one way in which every operation sends them.

An operation is an ``async`` function that takes a `Session` first: it neither begins nor commits, so the same one serves
a commit of its own, the store's transactions and a caller's, whatever driver that has. Statements are texts of
``sql/*.sql`` with ``{schema}`` in them; parameters are ``$1``, ``$2``, each with its cast.
"""

import re
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeAlias

from alkstore.errors import InvalidArgument, show

__all__ = ["LONGEST_NAME", "READABLE", "Row", "Schema", "Session", "milliseconds"]

Row: TypeAlias = Sequence[Any]
"""A row's columns by position."""

LONGEST_NAME: Final = 40
"""Bytes. PostgreSQL cuts names at 63, and what is derived from this one must fit too (DUR-10)."""


READABLE: Final = ("read committed", "read uncommitted")
"""Isolation levels in which each statement sees what was committed when it began; to PostgreSQL they are one."""

LONGEST_LOCK_TIMEOUT: Final = 2**31 - 1


def milliseconds(seconds: float) -> int:
    """Give what ``lock_timeout`` takes for so many seconds: to it 0 would be for ever, and it knows 24 days at most."""
    return round(min(max(seconds * 1_000, 1), LONGEST_LOCK_TIMEOUT))


class Schema:
    """The schema that holds everything: its name, and statements that name it.

    Raises:
        InvalidArgument: The name is no text, blank, too long, begins as PostgreSQL's own do, or holds a NUL or a $.
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise InvalidArgument(f"schema must be text, got {show(name)}")
        try:
            size = len(name.encode())
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"schema must be text that UTF-8 can write, got {show(name)}") from error
        if not name.strip() or "\0" in name:
            raise InvalidArgument(f"schema must not be blank or hold a NUL, got {show(name)}")
        if size > LONGEST_NAME:
            raise InvalidArgument(
                f"schema must be at most {LONGEST_NAME} bytes long, got {size}: {show(name)}"
            )
        if "$" in name:
            # It may stand within the body of a function, which ends at the next $$.
            raise InvalidArgument(f"schema must not hold a $, got {show(name)}")
        if name.startswith("pg_") or name == "information_schema":
            raise InvalidArgument(f"schema must not be one of PostgreSQL's own, got {show(name)}")
        self.name = name
        self.identifier: Final = f'"{name.replace(chr(34), chr(34) * 2)}"'
        self.channel: Final = name
        """What LISTEN and NOTIFY name: one for everything in this schema."""
        self._rendered: dict[str, str] = {}
        self._places = {
            "schema": self.identifier,
            "channel": _literal(self.channel),
            "sequence": _literal(f"{self.identifier}.event_offset"),
        }

    def render(self, statement: str) -> str:
        """Put the schema into a statement: ``{schema}`` its quoted name, ``{channel}`` its channel's name as a text,
        ``{sequence}`` its sequence of offsets as a text that casts to regclass.

        Cost: a look into a dictionary; each statement is made once.
        """
        rendered = self._rendered.get(statement)
        if rendered is None:
            # All at once, for the name may hold what looks like another of them.
            rendered = self._rendered[statement] = _PLACE.sub(lambda place: self._places[place[1]], statement)
        return rendered


_PLACE: Final = re.compile(r"\{(schema|channel|sequence)\}")


def _literal(text: str) -> str:
    quoted = text.replace("'", "''")
    # With a backslash in it a plain literal means something else where standard_conforming_strings is off.
    return f" E'{quoted.replace(chr(92), chr(92) * 2)}'" if "\\" in quoted else f"'{quoted}'"


class Session(Protocol):
    """A connection, in whatever transaction it is in; outside of one each statement commits by itself."""

    async def fetch(self, statement: str, *parameters: object) -> Sequence[Row]:
        """Send one statement of ``sql/*.sql`` and give its rows. Cost: one round trip.

        Raises:
            Exception: The driver's own, which whoever gave this session translates.
        """
