"""Engines whose locks are held too long, too short, twice or by the wrong one, and blocks that do not notice."""

import asyncio
from typing import Any

from mutant import Patch, mutant

from alkstore import Lock
from alkstore import lock as locking
from alkstore.engine import Taken, Topic, TopicKind
from alkstore.numbers import MAX_INSTANT
from alkstore.renewal import Renewal
from alkstore_mem.engine import MemEngine
from alkstore_mem.lock import _Lease

AGES = 10**15
"""Microseconds: some thirty years."""


class Looking(MemEngine):
    """An honest engine whose faulty children look at leases and change them behind its back."""

    def now(self) -> int:
        return self._state.clock.now()

    def lease(self, name: str) -> _Lease:
        return self._locks._leases.get(name, _Lease(0, None))

    def is_live(self, name: str, fence: int) -> bool:
        return self._locks.is_live(name, fence)

    def put(self, name: str, fence: int, expires_at: int | None) -> None:
        self._locks._leases[name] = _Lease(fence, expires_at)


# ---------------------------------------------------------------- taking


@mutant("lock-reentrant", kills=("LOCK-01", "LOCK-06"), wide="whatever excludes by a lock, leadership too")
class LockReentrant(Looking):
    async def take_lock(self, name: str, ttl: int) -> Taken:
        taken = await super().take_lock(name, ttl)
        return taken if taken.fence is not None else Taken(self.lease(name).fence, taken.expires_at)


@mutant("lock-check-then-take", kills=("LOCK-01", "LOCK-06"))
class LockCheckThenTake(Looking):
    async def take_lock(self, name: str, ttl: int) -> Taken:
        lease = self.lease(name)
        was_held = self.is_live(name, lease.fence)
        await asyncio.sleep(0)
        if was_held:
            return Taken(None, lease.expires_at or 0)
        self.put(name, self.lease(name).fence, None)
        return await super().take_lock(name, ttl)


@mutant("ttl-ignored", kills=("LOCK-02", "LOCK-07"), wide="whatever waits for a lock to end")
class TtlIgnored(Looking):
    async def take_lock(self, name: str, ttl: int) -> Taken:
        return await super().take_lock(name, AGES)


@mutant("held-at-its-expiry-instant", kills="LOCK-02", wide="rows stop at the very end of a lock")
class HeldAtItsExpiryInstant(Looking):
    async def take_lock(self, name: str, ttl: int) -> Taken:
        lease = self.lease(name)
        if lease.expires_at == self.now():
            return Taken(None, lease.expires_at)
        return await super().take_lock(name, ttl)


@mutant("fence-restarts", kills="LOCK-05", wide="fences tell holders apart, leaders too")
class FenceRestarts(Looking):
    async def take_lock(self, name: str, ttl: int) -> Taken:
        if not self.is_live(name, self.lease(name).fence):
            self.put(name, 0, None)
        return await super().take_lock(name, ttl)


@mutant("lapse-wakes-nobody", kills="LOCK-06")
class LapseWakesNobody(Looking):
    async def take_lock(self, name: str, ttl: int) -> Taken:
        taken = await super().take_lock(name, ttl)
        return taken if taken.fence is not None else Taken(None, MAX_INSTANT)


# ---------------------------------------------------------------- renewing and releasing


@mutant("renew-adds-to-the-old-end", kills="LOCK-02")
class RenewAddsToTheOldEnd(Looking):
    async def renew_lock(self, name: str, fence: int, ttl: int) -> int | None:
        left = (self.lease(name).expires_at or 0) - self.now()
        return await super().renew_lock(name, fence, ttl + left if ttl and left > 0 else ttl)


@mutant("renew-does-nothing", kills="LOCK-02")
class RenewDoesNothing(Looking):
    async def renew_lock(self, name: str, fence: int, ttl: int) -> int | None:
        if ttl and self.is_live(name, fence):
            return self.now() + ttl
        return await super().renew_lock(name, fence, ttl)


@mutant("renew-of-an-expired-lock", kills="LOCK-03")
class RenewOfAnExpiredLock(Looking):
    async def renew_lock(self, name: str, fence: int, ttl: int) -> int | None:
        lease = self.lease(name)
        if ttl and lease.fence == fence and lease.expires_at is not None:
            self.put(name, fence, self.now() + ttl)
        return await super().renew_lock(name, fence, ttl)


@mutant("renew-ignores-owner", kills="LOCK-03")
class RenewIgnoresOwner(Looking):
    async def renew_lock(self, name: str, fence: int, ttl: int) -> int | None:
        return await super().renew_lock(name, self.lease(name).fence if ttl else fence, ttl)


@mutant("release-ignores-owner", kills="LOCK-03")
class ReleaseIgnoresOwner(Looking):
    async def renew_lock(self, name: str, fence: int, ttl: int) -> int | None:
        return await super().renew_lock(name, fence if ttl else self.lease(name).fence, ttl)


@mutant(
    "release-frees-nothing", kills="LOCK-04", wide="whatever takes a lock after another one, leadership too"
)
class ReleaseFreesNothing(Looking):
    async def renew_lock(self, name: str, fence: int, ttl: int) -> int | None:
        if not ttl:
            return self.now() if self.is_live(name, fence) else None
        return await super().renew_lock(name, fence, ttl)


@mutant("release-twice", kills="LOCK-04")
def release_twice(patch: Patch) -> None:
    patch.attribute(Lock, "_check", lambda lock, operation: lock._store._check(operation, None, write=True))


class Deaf(Looking):
    """Renews while nobody hears of the lock's topic."""

    async def renew_deaf(self, name: str, fence: int, ttl: int) -> int | None:
        topic, watches = Topic(TopicKind.LOCK, name), self._state.hub._watches
        hearing = watches.pop(topic, None)
        try:
            return await super().renew_lock(name, fence, ttl)
        finally:
            if hearing is not None:
                watches[topic] = hearing


@mutant("release-wakes-nobody", kills="LOCK-06")
class ReleaseWakesNobody(Deaf):
    async def renew_lock(self, name: str, fence: int, ttl: int) -> int | None:
        return await (super().renew_lock if ttl else self.renew_deaf)(name, fence, ttl)


@mutant("shortened-lease-wakes-nobody", kills="LOCK-06")
class ShortenedLeaseWakesNobody(Deaf):
    async def renew_lock(self, name: str, fence: int, ttl: int) -> int | None:
        return await (self.renew_deaf if ttl else super().renew_lock)(name, fence, ttl)


# ---------------------------------------------------------------- blocks and waits


class _NoRenewal(Renewal):
    async def __aenter__(self) -> None:
        """Begin nothing."""

    async def __aexit__(self, *_: object) -> None:
        """End nothing."""


@mutant("block-renews-nothing", kills="LOCK-06")
def block_renews_nothing(patch: Patch) -> None:
    patch.attribute(locking, "Renewal", _NoRenewal)


@mutant("lost-lock-goes-unnoticed", kills="LOCK-06")
def lost_lock_goes_unnoticed(patch: Patch) -> None:
    def lose(renewal: Renewal) -> None:
        """Tell nobody."""

    patch.attribute(Renewal, "_lose", lose)


@mutant("cancelled-wait-keeps-the-lock", kills="LOCK-06")
def cancelled_wait_keeps_the_lock(patch: Patch) -> None:
    async def take(store: Any, name: str, ttl: int) -> Taken:
        taken: Taken = await store._engine.take_lock(name, ttl)
        await asyncio.sleep(0)
        return taken

    patch.attribute(locking, "take", take)
