"""Leases: a name, who holds it and until when. The fence of a name outlives its holders.

State model. The mark of a lock is its end, 0 while it is free. Every change tells its mark, and those who wait are woken
only where that is sooner than what they were told before: nobody is woken because somebody else holds on.
"""

from functools import lru_cache
from typing import Final

from alkstore import statements
from alkstore.engine import LockRecord, Taken, Topic, TopicKind
from alkstore.numbers import shift
from alkstore_sqlite.connection import (
    Change,
    Row,
    Single,
    Statement,
    Steps,
    Tells,
    Woken,
    make_change,
    make_statement,
)
from alkstore_sqlite.hop import Operation

__all__ = ["held", "is_live", "renewing", "take"]

FREE: Final = 0
"""The mark of a lock that nobody holds."""

_SQL: Final = statements.load("alkstore_sqlite", "lock")

TAKE: Final = _SQL["take"]
FIND: Final = _SQL["find"]

# An enum's member costs a metaclass call at every access in Python 3.11.
ROWS, COUNT = Tells.ROWS, Tells.COUNT


def take(name: str, ttl: int, now: int) -> Steps[Change[Taken]]:
    """Take a free or lapsed lock until now + ``ttl``, with a fence above every earlier one of this name."""
    end = shift(now, ttl)
    ((is_taken,),) = yield make_statement(Statement, (TAKE, (name, end, now), False, COUNT))
    ((fence, end),) = yield make_statement(Statement, (FIND, (name,), False, ROWS))
    if not is_taken:
        return make_change(Change, (Taken(None, end), ()))
    # Without this mark a release that follows would be no news to who last heard that the lock was free.
    return make_change(Change, (Taken(fence, end), (Woken(_topic(name), end),)))


def renewing(name: str, fence: int, ttl: int) -> Operation[int | None]:
    """Give what moves the end of a live lease to now + ``ttl``; ``ttl`` 0 frees it. None if this fence is not live."""
    return _Renew(name, fence, ttl)


def held(now: int) -> Steps[list[LockRecord]]:
    """Give the locks held now, sorted by name."""
    return sorted([LockRecord(*row) for row in (yield Statement(_SQL["held"], (now,)))])


def is_live(name: str, fence: int, now: int) -> Steps[bool]:
    """Whether this fence holds the name now."""
    return bool((yield Statement(_SQL["is_live"], (name, fence, now))))


class _Renew(Single[int | None]):
    __slots__ = ("_fence", "_name", "_ttl")
    sql, tells = _SQL["renew"], COUNT

    def __init__(self, name: str, fence: int, ttl: int) -> None:
        self._name = name
        self._fence = fence
        self._ttl = ttl

    def parameters(self, now: int) -> Row:
        return self._name, self._fence, now, shift(now, self._ttl) if self._ttl else None

    def conclude(self, answer: int, now: int) -> Change[int | None]:
        if not answer:
            return make_change(Change, (None, ()))
        end = shift(now, self._ttl)
        return make_change(Change, (end, (Woken(_topic(self._name), end if self._ttl else FREE),)))


@lru_cache(maxsize=256)
def _topic(name: str) -> Topic:
    return Topic(TopicKind.LOCK, name)
