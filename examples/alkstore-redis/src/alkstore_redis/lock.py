"""Leases: a name, who holds it and until when."""

from collections.abc import Sequence

from alkstore.engine import LockRecord, Taken
from alkstore_redis.state import Area, found, number, text

__all__ = ["Locks"]


class Locks(Area):
    """Everything about named locks."""

    async def take_lock(self, name: str, ttl: int) -> Taken:
        fence, expires_at = await self._state.run("take_lock", name, text(ttl))
        return Taken(found(fence), number(expires_at))

    async def renew_lock(self, name: str, fence: int, ttl: int) -> int | None:
        end = await self._state.run("renew_lock", name, text(fence), text(ttl))
        return found(end)

    async def list_locks(self) -> Sequence[LockRecord]:
        held = await self._state.run("list_locks")
        return sorted(LockRecord(name, number(fence), number(end)) for name, fence, end in held)
