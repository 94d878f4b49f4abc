"""Everything that a store does, to be cancelled in whatever moment, on whatever engine."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from alkstore import AlkstoreError, JobHandle, StopToken, Store

Operation: TypeAlias = Callable[[Store], Awaitable[object]]


def soon(call: Callable[[], object], turns: int) -> None:
    """Call after so many turns of the loop."""
    loop = asyncio.get_running_loop()
    loop.call_soon(soon, call, turns - 1) if turns else call()


async def enqueue(store: Store) -> None:
    await store.queue("other").enqueue(1)


async def claim(store: Store) -> None:
    await store.queue("q").claim()


async def claim_one(store: Store) -> None:
    await store.queue("q").claim_one()


async def claim_and_handle(store: Store) -> None:
    async for handle in store.queue("q").claims():
        async with handle:
            await asyncio.sleep(0)
        return


async def run_once(store: Store) -> None:
    async def handle_it(handle: JobHandle) -> None:
        async with handle.hold():
            await asyncio.sleep(0)

    await store.queue("q").run_once(handle_it)


async def listen(store: Store) -> None:
    async with store.listen("c") as receiver:
        await store.notify("c")
        await receiver.recv()


async def subscribe(store: Store) -> None:
    async with store.stream("s").subscribe("me", after=0) as receiver:
        event = await receiver.recv()
        assert event is not None
        await receiver.save(event)


async def lock(store: Store) -> None:
    async with store.lock("l"):
        await asyncio.sleep(0)


async def lock_in_time(store: Store) -> None:
    async with store.lock("l", timeout=60):
        await asyncio.sleep(0)


async def transaction(store: Store) -> None:
    async with store.begin_tx() as tx:
        await tx.enqueue("other", 1)
        await tx.publish("other", 1)
        await tx.read_from_consumer("s", "me")


async def rolled_back(store: Store) -> None:
    tx = await store.begin_tx()
    try:
        await tx.read_from_consumer("s", "me")
    finally:
        await tx.rollback()


async def acked_in_a_transaction(store: Store) -> None:
    handle = await store.queue("q").claim()
    assert handle is not None
    async with handle, store.begin_tx() as tx:
        await tx.ack(handle)


async def run_schedules(store: Store, turns: int = 40) -> None:
    stop = StopToken()
    soon(stop.cancel, turns)
    await store.run_schedules(stop)


async def supervise_schedules(store: Store, turns: int = 40) -> None:
    stop = StopToken()
    soon(stop.cancel, turns)
    await store.supervise_schedules(stop)


async def run_outbox(store: Store) -> None:
    stop = StopToken()

    async def deliver(handle: JobHandle) -> None:
        stop.cancel()

    await store.outbox("o").run(deliver, stop=stop, concurrency=2)


OPERATIONS: list[Operation] = [
    enqueue, claim, claim_one, claim_and_handle, run_once, listen, subscribe, lock, lock_in_time, transaction,
    rolled_back, acked_in_a_transaction, run_schedules, supervise_schedules, run_outbox,
]  # fmt: skip


async def prepare(store: Store) -> None:
    """Give a store what the operations need once."""
    await store.stream("s").publish(1)
    await store.schedule("x", "@every 1h", "other", 1)


async def supply(store: Store) -> None:
    """Give a store what each of the operations uses up."""
    await store.queue("q").enqueue(1)
    await store.outbox("o").enqueue(1)


async def cancel(running: "asyncio.Future[object]", times: int = 1) -> None:
    """Cancel an operation in so many consecutive turns, and see that it ends, without any error but ours."""
    for _ in range(times):
        running.cancel()
        await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await asyncio.wait((running,))
    if not running.cancelled():
        error = running.exception()
        assert error is None or isinstance(error, AlkstoreError), repr(error)
        del error


def left_in(store: Store) -> list[object]:
    """Give what a store has under way, which is nothing once everything has ended."""
    return [
        *store._pumps,
        *(task.get_coro() for task in store._tasks),
        *store._watches,
        *store._inside.left(),
        *range(store._open_transactions),
    ]
