"""Leases: a name, who holds it and until when. The fence of a name outlives its holders.

State model. The mark of a lock is its end, 0 while it is free. Every change tells its mark, and those who wait are woken
only where that is sooner than what they were told before: nobody is woken because somebody else holds on.
"""

from typing import Final

from alkstore import statements
from alkstore.engine import LockRecord, Taken, Topic, TopicKind
from alkstore.numbers import shift
from alkstore_sqlite.connection import Change, Statement, Steps, Tells, Woken

__all__ = ["held", "is_live", "renew", "take"]

FREE: Final = 0
"""The mark of a lock that nobody holds."""

_SQL: Final = statements.load("alkstore_sqlite", "lock")


def take(name: str, ttl: int, now: int) -> Steps[Change[Taken]]:
    """Take a free or lapsed lock until now + ``ttl``, with a fence above every earlier one of this name."""
    end = shift(now, ttl)
    ((is_taken,),) = yield Statement(_SQL["take"], (name, end, now), tells=Tells.COUNT)
    ((fence, end),) = yield Statement(_SQL["find"], (name,))
    if not is_taken:
        return Change(Taken(None, end))
    # Without this mark a release that follows would be no news to who last heard that the lock was free.
    return Change(Taken(fence, end), (_woken(name, end),))


def renew(name: str, fence: int, ttl: int, now: int) -> Steps[Change[int | None]]:
    """Move the end of a live lease to now + ``ttl``; ``ttl`` 0 frees it. None if this fence is not live."""
    end = shift(now, ttl)
    lease = (name, fence, now, end if ttl else None)
    ((is_live,),) = yield Statement(_SQL["renew"], lease, tells=Tells.COUNT)
    if not is_live:
        return Change(None)
    return Change(end, (_woken(name, end if ttl else FREE),))


def held(now: int) -> Steps[list[LockRecord]]:
    """Give the locks held now, sorted by name."""
    return sorted([LockRecord(*row) for row in (yield Statement(_SQL["held"], (now,)))])


def is_live(name: str, fence: int, now: int) -> Steps[bool]:
    """Whether this fence holds the name now."""
    return bool((yield Statement(_SQL["is_live"], (name, fence, now))))


def _woken(name: str, mark: int) -> Woken:
    return Woken(Topic(TopicKind.LOCK, name), mark)
