"""Steps that the rows about transactions share."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from alkstore import JobHandle, Store, Tx
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.rows._queue import take

__all__ = ["EVERYTHING", "NOTHING", "TX_OPERATIONS", "Seen", "begun", "look", "prepare", "write_everything"]


class Seen(NamedTuple):
    """What of a transaction that wrote everything is to be seen."""

    jobs: int
    entries: int
    events: int
    position: int
    acked: bool


NOTHING: Final = Seen(0, 0, 0, 0, False)
EVERYTHING: Final = Seen(3, 1, 3, 1, True)

InTx: TypeAlias = Callable[[Tx], Awaitable[object]]


async def prepare(ctx: Context, store: Store) -> JobHandle:
    """Hold a claim that the transaction will ack, and give its handle."""
    await store.queue("held", visibility_timeout=3_600).enqueue("held")
    return await take(ctx, store.queue("held"))


async def write_everything(tx: Tx, handle: JobHandle | None = None) -> None:
    """Use every write of a transaction once."""
    await tx.enqueue("jobs", 1)
    await tx.enqueue_batch("jobs", [2, 3])
    await tx.outbox_enqueue("entries", 1)
    await tx.publish("events", 1)
    await tx.publish_batch("events", [2, 3])
    await tx.notify("channel", {"id": 1})
    await tx.save_offset("events", "consumer", 1)
    if handle is not None:
        await tx.ack(handle)


async def look(store: Store) -> Seen:
    """Look from outside."""
    stream = store.stream("events")
    return Seen(
        len(await store.queue("jobs").list()),
        len(await store.outbox("entries").jobs.list()),
        len(await stream.read_since(0)),
        await stream.get_offset("consumer"),
        await store.queue("held").list() == [],
    )


async def begun(store: Store) -> Tx:
    """Begin a transaction, for a task that is to wait for it."""
    return await store.begin_tx()


TX_OPERATIONS: Final[Mapping[str, InTx]] = {
    "enqueue": lambda tx: tx.enqueue("jobs", 1),
    "enqueue_batch": lambda tx: tx.enqueue_batch("jobs", [1]),
    "outbox_enqueue": lambda tx: tx.outbox_enqueue("entries", 1),
    "publish": lambda tx: tx.publish("events", 1),
    "publish_batch": lambda tx: tx.publish_batch("events", [1]),
    "notify": lambda tx: tx.notify("channel"),
    "save_offset": lambda tx: tx.save_offset("events", "consumer", 1),
    "get_offset": lambda tx: tx.get_offset("events", "consumer"),
    "read_since": lambda tx: tx.read_since("events", 0),
    "read_from_consumer": lambda tx: tx.read_from_consumer("events", "consumer"),
    "get_job": lambda tx: tx.get_job("jobs", 1),
    "commit": lambda tx: tx.commit(),
    "rollback": lambda tx: tx.rollback(),
}
"""Every operation of a transaction but ack, which needs a claim."""
