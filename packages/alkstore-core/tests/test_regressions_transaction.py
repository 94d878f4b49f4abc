"""Faults that were found in transactions, and stay found."""

import asyncio

import pytest

from alkstore import Closed, InsideTransaction, InvalidArgument, OffsetConflict
from alkstore_mem import MemStore


async def test_a_block_that_ends_while_another_task_is_inside_leaves_nothing_open() -> None:
    async with MemStore() as store:
        first = await store.begin_tx()
        await first.read_from_consumer("s", "c")
        inside: list[asyncio.Task[object]] = []

        async def leave_a_task_inside() -> None:
            async with store.begin_tx() as tx:
                await tx.publish("s", "never")
                inside.append(asyncio.create_task(tx.read_from_consumer("s", "c")))
                await asyncio.sleep(0)

        with pytest.raises(InvalidArgument, match="another task"):
            await asyncio.create_task(leave_a_task_inside())
        with pytest.raises(Closed):
            await inside[0]
        await first.publish("s", "seen")
        await first.commit()

        assert [event.payload for event in await store.stream("s").read_since(0)] == ["seen"]


async def test_a_block_whose_transaction_the_stores_close_rolled_back_does_not_end_as_if_it_had_committed() -> (
    None
):
    store = await MemStore()
    is_inside = asyncio.Event()
    may_leave = asyncio.Event()

    async def write() -> None:
        async with store.begin_tx() as tx:
            await tx.enqueue("q", "lost")
            is_inside.set()
            await may_leave.wait()

    writer = asyncio.create_task(write())
    await is_inside.wait()
    await store.aclose()
    may_leave.set()

    with pytest.raises(Closed):
        await writer


async def test_a_transaction_is_refused_in_another_event_loop() -> None:
    async with MemStore() as store, store.begin_tx() as tx:

        async def elsewhere() -> None:
            with pytest.raises(InvalidArgument, match="event loop"):
                await tx.enqueue("q", 1)

        await asyncio.to_thread(asyncio.run, elsewhere())


async def test_a_look_at_a_position_holds_nobody_up() -> None:
    async with MemStore(wait_timeout=0.001) as store, store.begin_tx() as looking:
        assert await looking.get_offset("s", "c") == 0

        async def save() -> None:
            async with store.begin_tx() as tx:
                await tx.save_offset("s", "c", 1)

        await asyncio.create_task(save())

        assert await looking.get_offset("s", "c") == 1


async def test_only_a_claim_of_the_same_store_is_acked_in_a_transaction() -> None:
    async with MemStore() as store, MemStore() as other, store.begin_tx() as tx:
        await other.queue("q").enqueue(1)
        for handle in ("1", None, await other.queue("q").claim_one()):
            with pytest.raises(InvalidArgument, match="job handle of this store"):
                await tx.ack(handle)  # type: ignore[arg-type]


async def test_a_transaction_refuses_the_handles_of_another_store() -> None:
    async with MemStore() as store, MemStore() as other, store.begin_tx() as tx:
        for operation in (
            tx.publish(other.stream("s"), 1),
            tx.read_since(other.stream("s"), 0),
            tx.outbox_enqueue(other.outbox("o"), 1),
        ):
            with pytest.raises(InvalidArgument, match="belongs to another store"):
                await operation
        await tx.publish(store.stream("s"), 2)
        await tx.outbox_enqueue(store.outbox("o"), 2)


async def test_a_position_is_saved_only_from_where_the_transaction_saw_it() -> None:
    async with MemStore() as store:
        stream = store.stream("s")
        async with store.begin_tx() as tx:
            await tx.get_offset(stream, "c")
            await asyncio.create_task(stream.save_offset("c", 5))

            with pytest.raises(OffsetConflict):
                await tx.save_offset(stream, "c", 7)

        assert await stream.get_offset("c") == 5


async def test_a_task_in_a_transaction_is_refused_however_many_others_are_in_one() -> None:
    async with MemStore() as store:
        together = asyncio.Barrier(3)

        async def write() -> None:
            async with store.begin_tx():
                await together.wait()
                with pytest.raises(InsideTransaction):
                    await store.queue("q").enqueue(1)
                await together.wait()

        await asyncio.gather(*(write() for _ in range(3)))

        assert await store.queue("q").list() == []
