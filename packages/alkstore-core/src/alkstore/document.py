"""Records of the seam as documents, for a storage that keeps such, or that is spoken to in JSON.

A document is text, a boolean, or a list or mapping of documents. A record is a mapping from the names of its fields, and
``kind`` the name of its type; bytes, which at the seam are JSON themselves, are text; what is absent is False, since in more
than one language None would be no value of a mapping. How integers look, the engine says: 64 bits fit no float.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

__all__ = ["document", "reader"]


def document(value: Any, number: Callable[[int], object]) -> Any:
    """Give a value of the seam as a document, its integers as ``number`` shows them."""
    match value:
        case bool() | str():
            return value
        case None:
            return False
        case int():
            return number(value)
        case bytes():
            return value.decode()
        case Enum():
            return value.value
        case tuple() if hasattr(value, "_asdict"):
            fields = {name: document(part, number) for name, part in value._asdict().items()}
            return {"kind": type(value).__name__, **fields}
    return [document(part, number) for part in value]


@cache
def reader(kind: Any, number: Callable[[Any], int]) -> Callable[[Any], Any]:
    """Give what reads documents as ``kind``: a record, a type that one of its fields has, or a list or mapping of such.

    What a record's document leaves out is None, or what it is by default; what it has beyond the fields is passed over. An
    empty mapping is an empty list too: not every language tells them apart.
    """
    parts = [reader(part, number) for part in get_args(kind)]
    if kind is int:
        return number
    if kind is bytes:
        return str.encode
    if NoneType in get_args(kind):
        return lambda value: None if value is None or value is False else parts[0](value)
    if get_origin(kind) in (dict, Mapping):
        return lambda value: {name: parts[1](part) for name, part in value.items()}
    if parts:
        return lambda value: [parts[0](part) for part in value]
    if hasattr(kind, "_fields"):
        return _record_reader(kind, number)
    return lambda value: kind(value)


def _record_reader(kind: Any, number: Callable[[Any], int]) -> Callable[[Any], Any]:
    reads = {name: reader(hint, number) for name, hint in get_type_hints(kind).items()}
    needed = [(name, read) for name, read in reads.items() if name not in kind._field_defaults]
    optional = [(name, read) for name, read in reads.items() if name in kind._field_defaults]

    def read_record(value: Mapping[str, Any]) -> Any:
        given = {name: read(value[name]) for name, read in optional if name in value}
        return kind(**{name: read(value.get(name)) for name, read in needed}, **given)

    return read_record
