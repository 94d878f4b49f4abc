"""The prefixes of a stream: every reader sees the beginning of one and the same order, which no publish contradicts.

Calls are ``publish`` (given: its keys, each used once; answer: their offsets). What a reader saw, and what is there at the
end, are lists of (offset, key).
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from alkstore_contract_suite.histories.call import Call

__all__ = ["faults"]

Seen = Sequence[tuple[int, str]]


def faults(history: Sequence[Call], readers: Mapping[str, Seen], log: Seen) -> list[str]:
    """Say everything that cannot be; nothing if it all can.

    Args:
        readers: What each reader saw, from the beginning of the stream on.
        log: The whole stream, read when nobody publishes any more.
    """
    found = [*_orders(log), *_contents(history, log), *_times(history)]
    for reader, seen in readers.items():
        found += _prefix(reader, seen, log)
    return found


def _orders(log: Seen) -> Iterator[str]:
    for (one, _), (other, key) in itertools.pairwise(log):
        if one >= other:
            yield f"event {key!r} stands at {other}, after one at {one}"


def _contents(history: Sequence[Call], log: Seen) -> Iterator[str]:
    stands = {key: offset for offset, key in log}
    tried = {key for call in history for key in call.given}
    yield from (f"event {key!r} was never published" for key in sorted({*stands} - tried))
    times = Counter(key for _, key in log)
    yield from (f"event {key!r} is there {count} times" for key, count in times.items() if count > 1)
    for call in history:
        there = [key in stands for key in call.given]
        if call.is_known:
            for key, offset in zip(call.given, call.answer, strict=True):
                if stands.get(key) != offset:
                    yield f"event {key!r} was acknowledged at {offset} and stands at {stands.get(key)}"
        elif any(there) and not all(there):
            yield f"of the batch {call.given!r} a part was published"


def _times(history: Sequence[Call]) -> Iterator[str]:
    known = [call for call in history if call.is_known and call.answer]
    for one, other in itertools.permutations(known, 2):
        if one.ended < other.begun and max(one.answer) >= min(other.answer):
            yield f"{other.given!r} was published after {one.given!r}, and stands before it"


def _prefix(reader: str, seen: Seen, log: Seen) -> Iterator[str]:
    for place, event in enumerate(seen):
        wanted = log[place] if place < len(log) else None
        if event != wanted:
            yield f"{reader} saw {event!r} where the stream has {wanted!r}"
            return
