"""The accounts of a queue: what was put in, given out and settled, whoever did it, adds up.

Calls are ``enqueue`` (given: its keys, each used once; answer: their ids), ``claim`` (answer: a list of (id, key,
attempt)), ``ack`` and ``release`` (given: (id, attempt); answer: whether it landed), and ``lapse``, by which every claim
that is held ends. At the end whatever was held has lapsed, and all that could be claimed was.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence

from alkstore_contract_suite.histories.call import Call

__all__ = ["faults"]


def faults(history: Sequence[Call], left: Collection[str]) -> list[str]:
    """Say everything that does not add up; nothing if it all does.

    Args:
        left: Keys of the jobs that were in the queue at the end, dead ones too.
    """
    checks = (
        _lost,
        _invented,
        _stored_twice,
        _in_part,
        _held_twice,
        _acked_twice,
        _after_its_ack,
    )
    return [fault for check in checks for fault in check(history, left)]


def _of(history: Sequence[Call], do: str) -> list[Call]:
    return [call for call in history if call.do == do]


def _claimed(history: Sequence[Call]) -> list[tuple[Call, int, str, int]]:
    return [(call, *job) for call in _of(history, "claim") if call.is_known for job in call.answer]


def _lost(history: Sequence[Call], left: Collection[str]) -> Iterator[str]:
    seen = {key for _, _, key, _ in _claimed(history)} | {*left}
    for call in _of(history, "enqueue"):
        if call.is_known:
            yield from (
                f"job {key!r} was acknowledged and never given out" for key in call.given if key not in seen
            )


def _invented(history: Sequence[Call], left: Collection[str]) -> Iterator[str]:
    tried = {key for call in _of(history, "enqueue") for key in call.given}
    seen = {key for _, _, key, _ in _claimed(history)} | {*left}
    yield from (f"job {key!r} was never enqueued" for key in sorted(seen - tried))


def _stored_twice(history: Sequence[Call], left: Collection[str]) -> Iterator[str]:
    ids: dict[str, set[int]] = defaultdict(set)
    for _, id, key, _ in _claimed(history):
        ids[key].add(id)
    for call in _of(history, "enqueue"):
        if call.is_known:
            for key, id in zip(call.given, call.answer, strict=True):
                ids[key].add(id)
    twice = {key for key, found in ids.items() if len(found) > 1}
    twice |= {key for key, count in Counter(left).items() if count > 1}
    yield from (f"job {key!r} was enqueued once and stored twice" for key in sorted(twice))


def _in_part(history: Sequence[Call], left: Collection[str]) -> Iterator[str]:
    seen = {key for _, _, key, _ in _claimed(history)} | {*left}
    for call in _of(history, "enqueue"):
        there = [key in seen for key in call.given]
        if any(there) and not all(there):
            yield f"of the batch {call.given!r} a part was stored"


def _held_twice(history: Sequence[Call], left: Collection[str]) -> Iterator[str]:
    claims: dict[int, list[Call]] = defaultdict(list)
    # By their ends: who gave a job back had its own answer before, and the next one's came after.
    for call, id, _, _ in sorted(_claimed(history), key=lambda each: each[0].ended):
        claims[id].append(call)
    for id, found in claims.items():
        for one, other in itertools.pairwise(found):
            if not any(_frees(call, id, one, other) for call in history):
                yield f"job {id} was given to {other.process} while {one.process} held it"


def _frees(call: Call, id: int, one: Call, other: Call) -> bool:
    """Whether a call may have ended one claim of a job before another one took it."""
    is_ours = call.do == "lapse" or (
        call.do == "release" and call.given[0] == id and call.answer is not False
    )
    return is_ours and call.ended >= one.begun and call.begun <= other.ended


def _acked_twice(history: Sequence[Call], left: Collection[str]) -> Iterator[str]:
    landed = Counter(call.given[0] for call in _of(history, "ack") if call.answer is True)
    yield from (f"job {id} was acked {count} times" for id, count in landed.items() if count > 1)


def _after_its_ack(history: Sequence[Call], left: Collection[str]) -> Iterator[str]:
    acked = {call.given[0]: call.ended for call in _of(history, "ack") if call.answer is True}
    keys = {id: key for _, id, key, _ in _claimed(history)}
    for call, id, key, _ in _claimed(history):
        if id in acked and call.begun > acked[id]:
            yield f"job {key!r} was given out after its ack"
    yield from (f"job {keys[id]!r} was there after its ack" for id in acked if keys.get(id) in left)
