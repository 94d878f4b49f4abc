"""The types of the arrays that statements take and give, told to the driver before it asks for them.

asyncpg knows PostgreSQL's own scalars by heart and asks each connection's server for everything else, arrays of those
scalars too. That costs the server some 7 ms for the first statement with such a type, twice as much as to connect.
"""

from contextlib import suppress
from typing import Any, Final

import asyncpg

__all__ = ["teach"]

_TYPES: Final = {1001: ("bytea", 17), 1007: ("int4", 23), 1009: ("text", 25), 1016: ("int8", 20)}
"""Array, element's name, element: these numbers are the same in every version of PostgreSQL."""

_ROWS: Final = [
    {
        "oid": array,
        "ns": "pg_catalog",
        "name": f"_{name}",
        "kind": b"b",
        "basetype": None,
        "elemtype": element,
        "elemtype_name": name,
        "elemdelim": ",",
        "range_subtype": None,
        "attrtypoids": None,
        "attrnames": None,
    }
    for array, (name, element) in _TYPES.items()
]
"""What the driver's own question for types would give."""


def teach(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    """Tell a connection of them. Not public: a driver that has no such method any more asks as it always did."""
    inside: Any = connection
    with suppress(AttributeError, KeyError):
        inside._protocol.get_settings().register_data_types(_ROWS)
