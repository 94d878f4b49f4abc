"""Every entry point that takes a number, a duration or an instant, as data."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple, TypeAlias

from alkstore import EnqueueOpts, JobHandle, Lock, Store, Tx
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.rows._entry_points import SPEC
from alkstore_contract_suite.rows._queue import take

__all__ = [
    "BAD_DURATIONS",
    "BAD_INSTANTS",
    "BAD_INTEGERS",
    "ENQUEUED",
    "EXTENTS",
    "INTEGERS",
    "LEASES",
    "MAX",
    "MIN",
    "STAMPED",
    "TX_ENQUEUED",
    "TX_EXTENTS",
    "TX_INTEGERS",
    "Bench",
    "Direct",
    "InTx",
    "Stamping",
    "TxStamping",
    "bench",
]

MIN: Final = -(2**63)
MAX: Final = 2**63 - 1

NAIVE: Final = datetime(2026, 1, 1)  # noqa: DTZ001  # one without a zone is what must be refused
NO_NUMBER: Final[tuple[Any, ...]] = (
    float("nan"),
    float("inf"),
    float("-inf"),
    True,
    False,
    "5",
    b"5",
    [5],
    Decimal(5),
    1j,
)
OUTSIDE: Final[tuple[Any, ...]] = (MAX + 1, MIN - 1, 10**400)
BAD_DURATIONS: Final[tuple[Any, ...]] = (*NO_NUMBER, *OUTSIDE, datetime(2026, 1, 1, tzinfo=UTC), object())
BAD_INTEGERS: Final[tuple[Any, ...]] = (*NO_NUMBER, *OUTSIDE, 1.0, 1.5, timedelta(1))
BAD_INSTANTS: Final[tuple[Any, ...]] = (
    5,
    5.0,
    True,
    "2026-01-01T00:00:00Z",
    NAIVE,
    date(2026, 1, 1),
    timedelta(1),
)


class Bench(NamedTuple):
    """Something to call each entry point on: a held claim, a held lock."""

    store: Store
    handle: JobHandle
    lock: Lock


Direct: TypeAlias = Callable[[Bench, Any], Awaitable[object]]
InTx: TypeAlias = Callable[[Tx, Any], Awaitable[object]]
Stamping: TypeAlias = Callable[[Bench, dict[str, Any]], Awaitable[object]]
TxStamping: TypeAlias = Callable[[Tx, dict[str, Any]], Awaitable[object]]


async def bench(ctx: Context) -> Bench:
    """Claim a job and take a lock, both for an hour."""
    queue = ctx.store.queue("held", visibility_timeout=3_600)
    await queue.enqueue("held")
    lock = await ctx.store.try_lock("held", 3_600)
    assert lock is not None, "a fresh lock is free"
    return Bench(ctx.store, await take(ctx, queue), lock)


async def _handle_of_queue(b: Bench, options: dict[str, Any]) -> None:
    b.store.queue("q", **options)


async def _each(b: Bench, options: dict[str, Any]) -> object:
    return await b.store.queue("q").enqueue_batch([1, 2], each=[EnqueueOpts(), EnqueueOpts(**options)])


async def _tx_each(tx: Tx, options: dict[str, Any]) -> object:
    return await tx.enqueue_batch("q", [1, 2], each=[EnqueueOpts(), EnqueueOpts(**options)])


ENQUEUED: Final[Mapping[str, Stamping]] = {
    "Queue.enqueue": lambda b, o: b.store.queue("q").enqueue(1, **o),
    "Queue.enqueue_batch": lambda b, o: b.store.queue("q").enqueue_batch([1], **o),
    "EnqueueOpts": _each,
    "Outbox.enqueue": lambda b, o: b.store.outbox("o").enqueue(1, **o),
}
"""What takes delay, run_at, priority and the stamps."""

STAMPED: Final[Mapping[str, Stamping]] = {
    **ENQUEUED,
    "Store.queue": _handle_of_queue,
    "Store.schedule": lambda b, o: b.store.schedule("s", SPEC, "q", 1, **o),
}
"""What takes the stamps."""

TX_ENQUEUED: Final[Mapping[str, TxStamping]] = {
    "Tx.enqueue": lambda tx, o: tx.enqueue("q", 1, **o),
    "Tx.enqueue_batch": lambda tx, o: tx.enqueue_batch("q", [1], **o),
    "Tx.enqueue_batch each": _tx_each,
    "Tx.outbox_enqueue": lambda tx, o: tx.outbox_enqueue("o", 1, **o),
}


async def _lock(b: Bench, ttl: Any) -> None:
    async with b.store.lock("free", ttl, timeout=0):
        return


LEASES: Final[Mapping[str, Direct]] = {
    "Store.try_lock ttl": lambda b, v: b.store.try_lock("free", v),
    "Store.lock ttl": _lock,
    "Lock.renew ttl": lambda b, v: b.lock.renew(v),
    "JobHandle.heartbeat window": lambda b, v: b.handle.heartbeat(v),
}
"""What takes a duration that must be positive, the stamps apart."""


async def _recv_page(b: Bench, limit: Any) -> object:
    async with b.store.stream("st").subscribe("c") as events:
        return await events.recv_page(limit)


EXTENTS: Final[Mapping[str, Direct]] = {
    "Queue.claim_batch n": lambda b, v: b.store.queue("q").claim_batch(v),
    "Queue.list limit": lambda b, v: b.store.queue("q").list(limit=v),
    "Stream.read_since limit": lambda b, v: b.store.stream("st").read_since(0, v),
    "Stream.read_from_consumer limit": lambda b, v: b.store.stream("st").read_from_consumer("c", v),
}
TX_EXTENTS: Final[Mapping[str, InTx]] = {
    "Tx.read_since limit": lambda tx, v: tx.read_since("st", 0, v),
    "Tx.read_from_consumer limit": lambda tx, v: tx.read_from_consumer("st", "c", v),
}


async def _subscribe(b: Bench, after: Any) -> None:
    async with b.store.stream("st").subscribe("c", after=after):
        return


INTEGERS: Final[Mapping[str, Direct]] = {
    **EXTENTS,
    "EventReceiver.recv_page limit": _recv_page,
    "Queue.list after": lambda b, v: b.store.queue("q").list(after=v),
    "Stream.read_since offset": lambda b, v: b.store.stream("st").read_since(v),
    "Stream.save_offset": lambda b, v: b.store.stream("st").save_offset("c", v),
    "Stream.reset_offset": lambda b, v: b.store.stream("st").reset_offset("c", v),
    "Stream.subscribe after": _subscribe,
    "Stream.trim_to": lambda b, v: b.store.stream("st").trim_to(v),
}
TX_INTEGERS: Final[Mapping[str, InTx]] = {
    **TX_EXTENTS,
    "Tx.read_since offset": lambda tx, v: tx.read_since("st", v),
    "Tx.save_offset": lambda tx, v: tx.save_offset("st", "c", v),
    "Tx.save_offset after": lambda tx, v: tx.save_offset("st", "c", 1, after=v),
}
