"""Leases: a name, who holds it and until when. The fence of a name outlives its holders."""

from collections.abc import Sequence
from typing import Final

from alkstore import statements
from alkstore.engine import LockRecord, Taken, Topic, TopicKind
from alkstore.numbers import MAX_INSTANT
from alkstore_pg.session import Session
from alkstore_pg.wake import Woken

__all__ = ["held", "renew", "renewed_at", "take", "taken_at", "woken_by"]

_SQL: Final = statements.load("alkstore_pg", "lock")


def woken_by(name: str) -> Sequence[Woken]:
    """Say whom an end that comes sooner concerns."""
    return (Woken(Topic(TopicKind.LOCK, name)),)


def taken_at(taken: Taken, ttl: int) -> int | None:
    """Give the instant at which a lock was taken; None if that is not known."""
    return None if taken.fence is None else renewed_at(taken.expires_at, ttl)


def renewed_at(end: int | None, ttl: int) -> int | None:
    """Give the instant from which a lease was given until ``end``; None if that is not known.

    Who renews sleeps until an instant that he was given: by a clock that was not told of a step of the server's it would
    be long past, and the lease be given up for lost, or renewed without a pause.
    """
    return None if end is None or end >= MAX_INSTANT else end - ttl


async def take(on: Session, name: str, ttl: int, patience: int) -> Taken:
    """Take a free or lapsed lock until now + ``ttl``, with a fence above every earlier one of this name."""
    ((fence, end),) = await on.fetch(_SQL["take"], name, ttl, patience)
    return Taken(fence, end)


async def renew(
    on: Session, name: str, fence: int, ttl: int, texts: Sequence[str], patience: int
) -> int | None:
    """Move the end of a live lease to now + ``ttl``; ``ttl`` 0 frees it. None if this fence is not live.

    Others are told only if the end comes sooner: nobody is woken because somebody else holds on.
    """
    ((end,),) = await on.fetch(_SQL["renew"], name, fence, ttl, texts, patience)
    until: int | None = end
    return until


async def held(on: Session) -> list[LockRecord]:
    """Give the locks held now, sorted by name."""
    return [LockRecord(*row) for row in await on.fetch(_SQL["held"])]
