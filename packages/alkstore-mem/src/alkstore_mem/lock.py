"""Leases: a name, who holds it and until when. The fence of a name outlives its holders."""

from typing import NamedTuple

from alkstore.engine import LockRecord, Taken, Topic, TopicKind
from alkstore.numbers import shift
from alkstore_mem.state import State

__all__ = ["Locks"]


class _Lease(NamedTuple):
    fence: int
    expires_at: int | None
    """None once it was released; the fence stays, or the next holder's would not be above it."""


class Locks:
    """Every named lock of one store."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._leases: dict[str, _Lease] = {}

    def take(self, name: str, ttl: int) -> Taken:
        now = self._state.clock.now()
        lease = self._leases.get(name, _Lease(0, None))
        if lease.expires_at is not None and now < lease.expires_at:
            return Taken(None, lease.expires_at)
        taken = Taken(lease.fence + 1, shift(now, ttl))
        self._leases[name] = _Lease(lease.fence + 1, taken.expires_at)
        return taken

    def renew(self, name: str, fence: int, ttl: int) -> int | None:
        if not self.is_live(name, fence):
            return None
        end = shift(self._state.clock.now(), ttl)
        is_sooner = end < (self._leases[name].expires_at or end)
        self._leases[name] = _Lease(fence, end if ttl else None)
        if is_sooner:  # freed, or shortened: those who wait were told of a later end
            self._state.hub.wake(Topic(TopicKind.LOCK, name))
        return end

    def held(self) -> list[LockRecord]:
        return [
            LockRecord(name, lease.fence, lease.expires_at)
            for name, lease in sorted(self._leases.items())
            if lease.expires_at is not None and self.is_live(name, lease.fence)
        ]

    def is_live(self, name: str, fence: int) -> bool:
        """Whether this fence holds the name now."""
        lease = self._leases.get(name)
        if lease is None or lease.fence != fence or lease.expires_at is None:
            return False
        return self._state.clock.now() < lease.expires_at
