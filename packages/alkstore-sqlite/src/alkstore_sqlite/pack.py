"""Many payloads in one parameter: one statement stores them all, and commits by itself.

A statement of many rows of parameters takes the interpreter's lock back for every row, and binds every column of each; a
list of JSON would have to hold the payloads as text, which a file in UTF-16 stores otherwise. So the payloads go joined,
and beside them a JSON array, for SQLite's ``json_each``, of where each of them is.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

__all__ = ["fits", "pack", "pack_by_id", "portions"]

LARGEST: Final = 1 << 26
"""Bytes that are joined at most: they stand in memory twice, and SQLite takes a gigabyte in one parameter."""

_LENGTH_BITS: Final = 32
"""A place is one integer: the position of the first byte, from 1, above its length."""


def fits(payloads: Sequence[bytes]) -> bool:
    """Whether one parameter may hold them."""
    return sum(map(len, payloads)) <= LARGEST


def pack(payloads: Sequence[bytes]) -> tuple[bytes, str]:
    """Give payloads joined, and their places as a JSON array."""
    return b"".join(payloads), str(_places(payloads))


def pack_by_id(pairs: Sequence[tuple[int, bytes]]) -> tuple[bytes, str]:
    """Give payloads joined, and their places as a JSON object by the id of each."""
    payloads = [payload for _, payload in pairs]
    places = zip(pairs, _places(payloads), strict=True)
    return b"".join(payloads), "{" + ",".join([f'"{id}":{place}' for (id, _), place in places]) + "}"


def portions(pairs: Iterable[tuple[int, bytes]]) -> list[list[tuple[int, bytes]]]:
    """Cut pairs of an id and a payload into runs that one parameter may hold, of one pair at least."""
    cut: list[list[tuple[int, bytes]]] = []
    size = LARGEST
    for pair in pairs:
        size += len(pair[1])
        if size > LARGEST:
            cut.append([])
            size = len(pair[1])
        cut[-1].append(pair)
    return cut


def _places(payloads: Sequence[bytes]) -> list[int]:
    lengths = list(map(len, payloads))
    starts = accumulate(lengths, initial=1)
    return [start << _LENGTH_BITS | length for start, length in zip(starts, lengths, strict=False)]
