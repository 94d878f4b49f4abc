"""Steps that the lock rows share."""

from datetime import datetime, timedelta

from alkstore import Lock, Store
from alkstore_contract_suite.context import Context


async def taken(
    ctx: Context, store: Store, name: str, ttl: float, promise: str = "a free lock is given"
) -> Lock:
    """Take a lock that must be free."""
    lock = await store.try_lock(name, ttl)
    ctx.that(lock is not None, promise, observed="held" if lock is None else lock)
    assert lock is not None
    return lock


async def refused(ctx: Context, store: Store, name: str, promise: str) -> None:
    """Try a lock that must be held; what is held stays as it is."""
    lock = await store.try_lock(name, 3600)
    ctx.expect(lock, None, promise)


def after(instant: datetime, seconds: float) -> datetime:
    """Give the instant so many seconds later."""
    return instant + timedelta(seconds=seconds)
