"""TX-03 and TX-04: how a transaction ends, and that it has ended."""

import asyncio
import gc
import warnings
from typing import Any

from alkstore import Closed, HandleConsumed, InvalidArgument, StopToken, Tx
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._accepting import accepts
from alkstore_contract_suite.rows._queue import take
from alkstore_contract_suite.rows._transaction import (
    EVERYTHING,
    NOTHING,
    TX_OPERATIONS,
    begun,
    look,
    prepare,
    write_everything,
)


@row(
    "TX-03",
    text="async with: a clean exit commits; an exception or a cancellation rolls back and propagates.",
    oracle="everything or nothing afterwards, and the very exception",
    modes=("plain", "second"),
    kills=("exception-commits", "rolled-back-job-stays", "outbox-row-survives-rollback"),
)
async def the_end_of_the_block_decides(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    handle = await prepare(ctx, mine)
    error = ValueError("the body's own")
    async with (
        ctx.refuses(ValueError, "an exception of the body propagates") as caught,
        mine.begin_tx() as tx,
    ):
        await write_everything(tx, handle)
        raise error
    ctx.that(caught.error is error, "it is the very exception")
    ctx.expect(await look(other), NOTHING, "an exception rolls back")

    async def body() -> None:
        async with mine.begin_tx() as tx:
            await write_everything(tx, handle)
            await StopToken().wait()

    task = ctx.start(body())
    await ctx.settle()
    task.cancel()
    await asyncio.wait([task])
    ctx.that(task.cancelled(), "a cancellation propagates")
    ctx.expect(await look(other), NOTHING, "a cancellation rolls back")
    async with mine.begin_tx() as tx:
        await write_everything(tx, handle)
    ctx.expect(await look(other), EVERYTHING, "a clean exit commits")


@row(
    "TX-03",
    text="A body that ended the transaction itself is left at that.",
    oracle="commit in the body stays though the body fails later; rollback in the body stays though it ends well",
    kills=("exit-after-commit-fails",),
)
async def a_body_may_end_it_itself(ctx: Context) -> None:
    store = ctx.store
    with accepts(ctx, "a body that rolled back itself ends well"):
        async with store.begin_tx() as tx:
            await tx.enqueue("jobs", "rolled back")
            await tx.rollback()
    async with ctx.refuses(ValueError, "the body's exception propagates"), store.begin_tx() as tx:
        await tx.enqueue("jobs", "committed")
        await tx.commit()
        raise ValueError("later")
    with accepts(ctx, "a body that committed itself ends well"):
        async with store.begin_tx() as tx:
            await tx.commit()
    payloads = [job.payload for job in await store.queue("jobs").list()]
    ctx.expect(payloads, ["committed"], "the body's own end of the transaction stands")


@row(
    "TX-03",
    text="rollback leaves no trace, and the store stays usable.",
    oracle="nothing seen, nobody woken, the claim live, the handle open; then everything lands in a new one",
    modes=("plain", "second"),
    needs=("listen",),
    kills=("rolled-back-job-stays", "outbox-row-survives-rollback", "rolled-back-ack-stays"),
)
async def a_rollback_leaves_no_trace(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    handle = await prepare(ctx, mine)
    async with other.listen("channel") as wakes, other.stream("events").subscribe() as events:
        waiting = ctx.start(other.queue("jobs").claim())
        await ctx.settle()
        for _ in range(3):
            tx = await mine.begin_tx()
            await write_everything(tx, handle)
            async with ctx.refuses(HandleConsumed, "a handle acked in an open transaction is used up"):
                await tx.ack(handle)
            await tx.rollback()
            ctx.expect(await look(other), NOTHING, "a rollback leaves no trace")
            lists = (await other.queues(), await other.streams(), await other.outboxes())
            ctx.expect(lists, (["held"], [], []), "a rollback leaves no name")
        await ctx.idle(waiting, "a rollback wakes nobody")
        ctx.expect(
            (await wakes.try_recv(), await events.try_recv()), (None, None), "a rollback notifies nobody"
        )
        ctx.expect(await handle.heartbeat(), True, "a rollback leaves the claim as it was")
        async with mine.begin_tx() as tx:
            await write_everything(tx, handle)
        got = await ctx.soon(waiting, "the next commit wakes the waiting claim")
        ctx.expect(got and got.job.payload, 1, "the next transaction lands")
        ctx.expect(await look(other), EVERYTHING, "the next transaction lands")


@row(
    "TX-03",
    text="A tx collected without an end leaves no trace, says so, and the store stays usable.",
    oracle="a ResourceWarning, nothing seen, the claim live, and a new transaction on the same positions lands",
    kills=("a-dropped-tx-holds-on",),
)
async def a_dropped_transaction_leaves_no_trace(ctx: Context) -> None:
    store = ctx.store
    handle = await prepare(ctx, store)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            tx: Tx | None = await store.begin_tx()
            assert tx is not None
            await ctx.soon(
                tx.read_from_consumer("events", "consumer"), "nothing is held by a dropped transaction"
            )
            await write_everything(tx, handle)
            tx = None
            gc.collect()
            await ctx.settle()
    told = [each for each in caught if issubclass(each.category, ResourceWarning)]
    ctx.expect(len(told), 3, "a transaction that nobody ended is told of")
    ctx.expect(await look(store), NOTHING, "a transaction that nobody ended leaves no trace")
    async with store.begin_tx() as again:
        page = await ctx.soon(again.read_from_consumer("events", "consumer"), "nothing is held any more")
        ctx.expect(page, [], "nothing is held any more")
        await write_everything(again, handle)
    ctx.expect(await look(store), EVERYTHING, "the next transaction lands")


@row(
    "TX-03",
    text="A transaction that was open when its store ended leaves no trace.",
    oracle="nothing seen in the next store, and the lapsed claim comes again",
    modes=("reopen", "crash-drop", "crash-kill"),
)
async def a_transaction_cut_off_leaves_no_trace(ctx: Context) -> None:
    handle = await prepare(ctx, ctx.store)
    tx = await ctx.store.begin_tx()
    await write_everything(tx, handle)
    store = await ctx.turn()
    ctx.expect(await look(store), NOTHING, "a transaction cut off leaves no trace")
    await ctx.advance(3_600)
    ctx.expect((await take(ctx, store.queue("held"))).job.attempts, 2, "the claim lapses as any other")


@row(
    "TX-04",
    text="Any operation on a tx that has ended is Closed.",
    oracle="every operation, after commit, after rollback, after the block, and nothing changed",
    kills=("ended-tx-still-writes",),
)
async def every_operation_on_an_ended_transaction_is_closed(ctx: Context) -> None:
    store = ctx.store
    handle = await prepare(ctx, store)
    committed = await store.begin_tx()
    await committed.commit()
    rolled_back = await store.begin_tx()
    await rolled_back.rollback()
    async with store.begin_tx() as left:
        await left.notify("channel")
    for how, tx in {"commit": committed, "rollback": rolled_back, "its block": left}.items():
        for label, call in TX_OPERATIONS.items():
            async with ctx.refuses(Closed, f"{label} after {how} is Closed"):
                await call(tx)
        async with ctx.refuses(Closed, f"ack after {how} is Closed"):
            await tx.ack(handle)
    ctx.expect(await look(store), NOTHING, "an operation on an ended transaction does nothing")
    ctx.expect(await handle.ack(), True, "a refused ack leaves the handle open")


@row(
    "TX-04",
    text="Two tasks inside one tx at once is InvalidArgument, not corruption.",
    oracle="as many jobs as calls that succeeded, each once",
    modes=("concurrent",),
)
async def two_tasks_in_one_transaction_corrupt_nothing(ctx: Context) -> None:
    store = ctx.store
    async with store.begin_tx() as tx:

        async def write(number: int) -> int | None:
            try:
                await tx.enqueue("jobs", number)
            except InvalidArgument:
                return None
            return number

        landed = [each for each in await ctx.race(*map(write, range(20))) if each is not None]
        await tx.enqueue("jobs", 20)
    payloads: list[Any] = [job.payload for job in await store.queue("jobs").list()]
    ctx.expect(sorted(payloads), [*landed, 20], "each call landed once, or was refused")
    ctx.that(landed, "at least one of the tasks got through")


@row(
    "TX-04",
    text="While one task waits inside a tx another one is refused.",
    oracle="InvalidArgument at once; the waiting call ends well and the transaction lands",
    modes=("concurrent",),
    kills=("two-tasks-in-one-tx",),
)
async def a_second_task_in_a_transaction_is_refused(ctx: Context) -> None:
    store = ctx.store
    first = await store.begin_tx()
    await first.read_from_consumer("events", "consumer")
    opening = ctx.start(begun(store))
    await ctx.settle()
    if not opening.done():  # one writer at a time: nobody is ever inside a second transaction
        await first.rollback()
        await (await ctx.soon(opening, "the second transaction begins after the first")).rollback()
        return
    second = opening.result()
    waiting = ctx.start(_read_position(second))
    await ctx.idle(waiting, "a position that another transaction holds is waited for")
    async with ctx.refuses(InvalidArgument, "a second task inside a transaction is refused"):
        await second.enqueue("jobs", "refused")
    async with ctx.refuses(InvalidArgument, "a second task may not commit it either"):
        await second.commit()
    await first.commit()
    with accepts(ctx, "the call that waited ends well"):
        await ctx.soon(waiting, "the call that waited ends well")
        await second.enqueue("jobs", "landed")
        await second.commit()
    payloads = [job.payload for job in await store.queue("jobs").list()]
    ctx.expect(payloads, ["landed"], "what was refused did nothing, and the rest landed")


async def _read_position(tx: Tx) -> object:
    return await tx.read_from_consumer("events", "consumer")
