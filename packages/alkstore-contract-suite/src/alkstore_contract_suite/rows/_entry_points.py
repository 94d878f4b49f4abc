"""Every entry point that takes a name, as data: what one of them refuses, all of them refuse."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

from alkstore import EnqueueOpts, StopToken, Store, Tx

__all__ = [
    "DIRECT_HEADER",
    "DIRECT_LOCAL",
    "DIRECT_SHARED",
    "LISTENING",
    "SPEC",
    "TX_HEADER",
    "TX_LOCAL",
    "TX_SHARED",
    "Direct",
    "InTx",
]

SPEC: Final = "@every 1h"

Direct: TypeAlias = Callable[[Store, Any], Awaitable[object]]
InTx: TypeAlias = Callable[[Tx, Any], Awaitable[object]]


def _plain(call: Callable[[Store, Any], object]) -> Direct:
    async def run(store: Store, name: Any) -> object:
        return call(store, name)

    return run


def _entered(call: Callable[[Store, Any], Any]) -> Direct:
    async def run(store: Store, name: Any) -> object:
        async with call(store, name):
            return None

    return run


def _acquired(call: Callable[[Store, Any], Awaitable[Any]]) -> Direct:
    async def run(store: Store, name: Any) -> object:
        lock = await call(store, name)
        return lock is not None and await lock.release()

    return run


async def _iterate_claims(store: Store, worker_id: Any) -> None:
    stop = StopToken()
    stop.cancel()
    async for handle in store.queue("entry-claims").claims(stop=stop, worker_id=worker_id):
        await handle.release()


async def _handle_nothing(_: object) -> None:
    """Handle a job that these queues never hold."""


LISTENING: Final[Mapping[str, Direct]] = {"Store.listen": _entered(lambda s, n: s.listen(n))}
"""What an engine may lack: rows in which it is to go well need ``listen``."""

DIRECT_SHARED: Final[Mapping[str, Direct]] = {
    "Store.queue": _plain(lambda s, n: s.queue(n)),
    "Store.stream": _plain(lambda s, n: s.stream(n)),
    "Store.outbox": _plain(lambda s, n: s.outbox(n)),
    "Store.notify": lambda s, n: s.notify(n),
    **LISTENING,
    "Store.try_lock": _acquired(lambda s, n: s.try_lock(n, 5)),
    "Store.lock": _entered(lambda s, n: s.lock(n, 5)),
    "Store.schedule": lambda s, n: s.schedule(n, SPEC, "entry", 1),
    "Store.schedule, queue": lambda s, n: s.schedule("entry", SPEC, n, 1),
    "Store.unschedule": lambda s, n: s.unschedule(n),
}

TX_SHARED: Final[Mapping[str, InTx]] = {
    "Tx.enqueue": lambda tx, n: tx.enqueue(n, 1),
    "Tx.enqueue_batch": lambda tx, n: tx.enqueue_batch(n, [1]),
    "Tx.outbox_enqueue": lambda tx, n: tx.outbox_enqueue(n, 1),
    "Tx.publish": lambda tx, n: tx.publish(n, 1),
    "Tx.publish_batch": lambda tx, n: tx.publish_batch(n, [1]),
    "Tx.notify": lambda tx, n: tx.notify(n),
    "Tx.get_offset": lambda tx, n: tx.get_offset(n, "entry"),
    "Tx.read_from_consumer": lambda tx, n: tx.read_from_consumer(n, "entry"),
    "Tx.read_since": lambda tx, n: tx.read_since(n, 0),
    "Tx.save_offset": lambda tx, n: tx.save_offset(n, "entry", 1),
    "Tx.get_job": lambda tx, n: tx.get_job(n, 1),
}

DIRECT_LOCAL: Final[Mapping[str, Direct]] = {
    "Stream.publish key": lambda s, n: s.stream("entry").publish(1, key=n),
    "Stream.publish_batch key": lambda s, n: s.stream("entry").publish_batch([1], key=n),
    "Stream.publish_batch keys": lambda s, n: s.stream("entry").publish_batch([1], keys=[n]),
    "Stream.read_from_consumer": lambda s, n: s.stream("entry").read_from_consumer(n),
    "Stream.save_offset": lambda s, n: s.stream("entry").save_offset(n, 1),
    "Stream.reset_offset": lambda s, n: s.stream("entry").reset_offset(n, 1),
    "Stream.get_offset": lambda s, n: s.stream("entry").get_offset(n),
    "Stream.subscribe": _entered(lambda s, n: s.stream("entry").subscribe(n)),
    "Queue.claim_one worker": lambda s, n: s.queue("entry-claims").claim_one(worker_id=n),
    "Queue.claim_batch worker": lambda s, n: s.queue("entry-claims").claim_batch(1, worker_id=n),
    "Queue.claim worker": lambda s, n: s.queue("entry-claims").claim(timeout=0, worker_id=n),
    "Queue.claims worker": _iterate_claims,
    "Queue.run_once worker": lambda s, n: s.queue("entry-claims").run_once(_handle_nothing, worker_id=n),
    "Outbox.run_once worker": lambda s, n: s.outbox("entry-claims").run_once(_handle_nothing, worker_id=n),
}

TX_LOCAL: Final[Mapping[str, InTx]] = {
    "Tx.publish key": lambda tx, n: tx.publish("entry", 1, key=n),
    "Tx.publish_batch key": lambda tx, n: tx.publish_batch("entry", [1], key=n),
    "Tx.publish_batch keys": lambda tx, n: tx.publish_batch("entry", [1], keys=[n]),
    "Tx.get_offset consumer": lambda tx, n: tx.get_offset("entry", n),
    "Tx.read_from_consumer consumer": lambda tx, n: tx.read_from_consumer("entry", n),
    "Tx.save_offset consumer": lambda tx, n: tx.save_offset("entry", n, 2),
}

DIRECT_HEADER: Final[Mapping[str, Direct]] = {
    "Queue.enqueue header": lambda s, n: s.queue("entry").enqueue(1, headers={n: "v"}),
    "Queue.enqueue_batch header": lambda s, n: s.queue("entry").enqueue_batch([1], headers={n: "v"}),
    "EnqueueOpts header": lambda s, n: s.queue("entry").enqueue_batch(
        [1, 2], each=[EnqueueOpts(), EnqueueOpts(headers={n: "v"})]
    ),
    "Outbox.enqueue header": lambda s, n: s.outbox("entry").enqueue(1, headers={n: "v"}),
    "Stream.publish header": lambda s, n: s.stream("entry").publish(1, headers={n: "v"}),
}

TX_HEADER: Final[Mapping[str, InTx]] = {
    "Tx.enqueue header": lambda tx, n: tx.enqueue("entry", 1, headers={n: "v"}),
    "Tx.enqueue_batch header": lambda tx, n: tx.enqueue_batch("entry", [1], headers={n: "v"}),
    "Tx.outbox_enqueue header": lambda tx, n: tx.outbox_enqueue("entry", 1, headers={n: "v"}),
    "Tx.publish header": lambda tx, n: tx.publish("entry", 1, headers={n: "v"}),
}
