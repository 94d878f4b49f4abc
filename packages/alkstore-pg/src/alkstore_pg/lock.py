"""Leases: a name, who holds it and until when. The fence of a name outlives its holders."""

from collections.abc import Sequence
from typing import Final

from alkstore import statements
from alkstore.engine import LockRecord, Taken, Topic, TopicKind
from alkstore_pg.session import Session
from alkstore_pg.wake import Woken

__all__ = ["held", "renew", "take", "woken_by"]

_SQL: Final = statements.load("alkstore_pg", "lock")


def woken_by(name: str) -> Sequence[Woken]:
    """Say whom an end that comes sooner concerns."""
    return (Woken(Topic(TopicKind.LOCK, name)),)


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
