"""Rows WAKE-01 to WAKE-05: what wakes whom, how often, and when."""

import asyncio
import gc
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Final

from alkstore import Wake, WakeReceiver
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.racing import Step
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._receiving import SECOND, next_outside, offsets, pending, woken

MANY: Final = 25


@row(
    "WAKE-01",
    text="A notify wakes every open receiver on that channel, whichever store of the storage it is open on.",
    oracle="three receivers on two stores, a notify on either store",
    modes=SECOND,
    needs=("listen",),
    kills=("first-receiver-takes-the-wake",),
)
async def a_notify_wakes_every_open_receiver(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    channel = ctx.name("news")
    async with (
        mine.listen(channel) as near,
        mine.listen(channel) as twin,
        other.listen(channel) as far,
    ):
        for notifier in (mine, other):
            await notifier.notify(channel, {"id": 1})
            for receiver in (near, twin, far):
                await woken(ctx, receiver, channel, "a notify wakes every open receiver on that channel")
            for receiver in (near, twin, far):
                ctx.expect(await pending(ctx, receiver), 0, "one notify is one wake for each receiver")


@row(
    "WAKE-01",
    text="A receiver that already waits is woken, and goes on hearing after it was woken.",
    oracle="a task in recv before each of five notifies",
    modes=SECOND,
    needs=("listen",),
    kills=("notify-wakes-nobody",),
)
async def a_notify_ends_a_wait(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    channel = ctx.name("news")
    async with mine.listen(channel) as receiver:
        for _ in range(5):
            waiter = ctx.start(receiver.recv())
            await ctx.idle(waiter, "without a notify recv waits")
            await other.notify(channel)
            wake = await ctx.soon(waiter, "a notify ends a recv that waits")
            ctx.expect(wake, Wake(channel), "the wake names its channel")


@row(
    "WAKE-01",
    text="The notify payload is never surfaced: a wake says the channel and nothing else.",
    oracle="the wake of a notify with a payload equals the wake of one without",
    modes=SECOND,
    needs=("listen",),
)
async def a_wake_carries_no_payload(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    channel = ctx.name("news")
    async with mine.listen(channel) as receiver:
        wakes = []
        for payload in (None, {"secret": 1}, "x" * 500):
            await other.notify(channel, payload)
            wakes.append(await ctx.soon(receiver.recv(), "a notify with any payload wakes"))
        ctx.expect(wakes, [Wake(channel, False)] * 3, "a wake says the channel and nothing of the payload")


@row(
    "WAKE-01",
    text="A listener of the database that is not alkstore sees the notify payload; it may be left out.",
    oracle="what somebody outside hears of a direct notify and of a transaction's",
    needs=("sql",),
)
async def an_outside_listener_sees_the_payload(ctx: Context) -> None:
    channel = ctx.name("news")
    heard = ctx.factory.outside(channel)
    if heard is None:
        ctx.skip_inconclusive("the factory has nobody outside who listens")
    for text in ("hello", "it's; 100%", "\N{PARTY POPPER}"):
        for within in (False, True):
            hearing = ctx.start(next_outside(heard))
            await ctx.settle()
            if within:
                async with ctx.store.begin_tx() as tx:
                    await tx.notify(channel, {"text": text})
            else:
                await ctx.store.notify(channel, {"text": text})
            found = await ctx.soon(hearing, "an outside listener hears a notify")
            ctx.that(text.encode() in found, "an outside listener sees the payload", observed=found)


@row(
    "WAKE-02",
    text="Other channels are not woken, nor the channel of a name by a job, an event, a lock or a schedule of that name.",
    oracle="a receiver stays idle through commits elsewhere, then hears its own channel exactly once",
    modes=SECOND,
    needs=("listen",),
    kills=("notify-wakes-all-channels",),
)
async def other_channels_are_not_woken(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    channel, elsewhere = ctx.name("news"), ctx.name("news")
    async with mine.listen(channel) as receiver, mine.listen(elsewhere) as control:
        await other.notify(elsewhere)
        await other.notify(channel + "x")
        await other.queue(channel).enqueue(1)
        await other.stream(channel).publish(1)
        await other.schedule(channel, "@every 1s", channel, 1)
        async with other.lock(channel):
            pass
        await woken(ctx, control, elsewhere, "the channel that was notified is woken")
        ctx.expect(await pending(ctx, receiver), 0, "what is committed elsewhere wakes no channel")
        await other.notify(channel)
        await woken(ctx, receiver, channel, "a channel hears its own notify")
        ctx.expect(await pending(ctx, receiver), 0, "one notify is one wake")


@row(
    "WAKE-02",
    text="A notify that was acknowledged before listen was called does not wake the receiver that it gives.",
    oracle="wakes after notifies on both stores; then one notify as control",
    modes=("plain", "concurrent", "second"),
    needs=("listen",),
    kills=("listen-hears-the-past",),
)
async def an_earlier_notify_does_not_reach_a_later_receiver(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    channel = ctx.name("news")
    for _ in range(MANY):
        await other.notify(channel)
        await mine.notify(channel)
        async with mine.listen(channel) as receiver:
            ctx.expect(await pending(ctx, receiver), 0, "what was notified before listen wakes nobody")
            await other.notify(channel)
            await woken(ctx, receiver, channel, "what is notified after listen wakes")
            ctx.expect(await pending(ctx, receiver), 0, "one notify is one wake")


@row(
    "WAKE-03",
    text="For N notifies in N commits a receiver that does not read gets at least one wake and at most N.",
    oracle="the wakes that are pending after N notifies, and after none",
    modes=SECOND,
    needs=("listen",),
    kills=("notify-wakes-twice",),
)
async def notifies_fold_but_never_multiply(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    channel = ctx.name("news")
    async with mine.listen(channel) as receiver:
        ctx.expect(await pending(ctx, receiver), 0, "no notify, no wake")
        for count in (1, 2, 40):
            for _ in range(count):
                await other.notify(channel)
            found = await pending(ctx, receiver)
            ctx.among(found, range(1, count + 1), f"{count} notifies give 1 to {count} wakes")
            ctx.expect(await pending(ctx, receiver), 0, "no notify, no wake")


@row(
    "WAKE-03",
    text="Several notifies on one channel in one transaction give between one wake and that many.",
    oracle="the wakes after a commit of five notifies on one channel and one on another",
    modes=SECOND,
    needs=("listen",),
)
async def notifies_of_one_transaction_may_fold(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    channel, second = ctx.name("news"), ctx.name("news")
    async with mine.listen(channel) as receiver, mine.listen(second) as control:
        async with other.begin_tx() as tx:
            for number in range(5):
                await tx.notify(channel, number)
            await tx.notify(second)
        found = await pending(ctx, receiver)
        ctx.among(found, range(1, 6), "5 notifies of one transaction give 1 to 5 wakes")
        ctx.expect(await pending(ctx, control), 1, "one notify of a transaction is one wake")


@row(
    "WAKE-04",
    text="If a commit with a notify happens after the last recv returned, the next recv returns.",
    oracle="a consumer that is never in recv when the notify comes",
    modes=("plain", "concurrent", "second"),
    needs=("listen",),
    kills=("wake-lost-between-waits",),
)
async def a_wake_that_comes_between_two_waits_is_kept(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    channel = ctx.name("news")
    async with mine.listen(channel) as receiver:
        for round in range(MANY):
            await other.notify(channel, round)
            if round % 2:
                await ctx.settle()
            await woken(ctx, receiver, channel, "a notify after the last recv ends the next one")
            if await pending(ctx, receiver):
                ctx.fail("one notify is one wake", "nothing pending", "another wake")


@row(
    "WAKE-04",
    text="Wakes and re-reading together miss nothing: a consumer that waits only after it read all sees all.",
    oracle="three publishers that notify after each event, one consumer that re-reads on each wake, in 25 rounds",
    modes=("concurrent", "second"),
    needs=("listen",),
    kills=("wake-lost-between-waits",),
    depends=("STR-03",),
)
async def a_consumer_that_rereads_on_wakes_sees_all(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    channel = ctx.name("news")
    seen: list[int] = []

    async def publish(step: Step) -> None:
        for _ in range(ctx.random.randrange(1, 8)):
            await step()
        await other.stream(channel).publish("news")
        await other.notify(channel)
        await step()

    async def consume(step: Step) -> None:
        target = len(seen) + 3
        while True:
            seen.extend(await offsets(mine.stream(channel), seen[-1] if seen else 0))
            for _ in range(ctx.random.randrange(1, 4)):
                await step()
            if len(seen) >= target:
                return
            await receiver.recv()

    async with mine.listen(channel) as receiver:
        for _ in range(MANY):
            workers = ctx.race_workers([publish, publish, publish, consume])
            await ctx.soon(workers, "a wake that comes while the consumer reads is not lost")
    ctx.expect(seen, await offsets(mine.stream(channel)), "a consumer that re-reads on wakes sees all")


@row(
    "WAKE-04",
    text="A stalled receiver's memory is bounded, and its next recv returns.",
    oracle="memory before and after 200 notifies that 50 receivers do not read",
    modes=("plain",),
    needs=("listen",),
    kills=("stalled-receiver-hoards",),
)
async def a_stalled_receiver_holds_bounded_memory(ctx: Context) -> None:
    channel = ctx.name("news")
    receivers = [await ctx.store.listen(channel) for _ in range(50)]

    async def notify(times: int) -> int:
        for _ in range(times):
            await ctx.store.notify(channel)
        await ctx.settle()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = await notify(20)
        grown = await notify(200) - before
    finally:
        tracemalloc.stop()
    ctx.that(grown < 40_000, "a stalled receiver's memory is bounded", observed=f"{grown} bytes more")
    for receiver in receivers:
        await woken(ctx, receiver, channel, "a stalled receiver is still woken")
        await receiver.aclose()


@row(
    "WAKE-05",
    text="Tx.notify wakes nothing before the commit, and a commit wakes exactly like notify.",
    oracle="a receiver before and after the commit",
    modes=SECOND,
    needs=("listen",),
    kills=("wake-before-commit",),
)
async def a_transaction_wakes_at_its_commit(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    channel = ctx.name("news")
    async with mine.listen(channel) as receiver:
        waiter = ctx.start(receiver.recv())
        async with other.begin_tx() as tx:
            await tx.notify(channel, {"id": 1})
            await tx.publish(channel, "news")
            await ctx.idle(waiter, "an open transaction wakes nobody")
        wake = await ctx.soon(waiter, "a commit wakes whoever waits")
        ctx.expect(wake, Wake(channel), "a commit wakes exactly like notify")
        ctx.expect(await pending(ctx, receiver), 0, "one notify of a transaction is one wake")


async def _roll_back(ctx: Context, channel: str) -> None:
    tx = await ctx.store.begin_tx()
    await tx.notify(channel)
    await tx.rollback()


async def _raise(ctx: Context, channel: str) -> None:
    promise = "an exception leaves the block of a transaction as it is"
    async with ctx.refuses(ZeroDivisionError, promise), ctx.store.begin_tx() as tx:
        await tx.notify(channel)
        raise ZeroDivisionError


async def _cancel(ctx: Context, channel: str) -> None:
    begun = asyncio.Event()

    async def hang() -> None:
        async with ctx.store.begin_tx() as tx:
            await tx.notify(channel)
            begun.set()
            await asyncio.Event().wait()

    task = ctx.start(hang())
    await ctx.soon(begun.wait(), "a transaction can be begun")
    task.cancel()
    await ctx.soon(asyncio.wait((task,)), "a cancelled transaction ends")


ROLLBACKS: Final[dict[str, Callable[[Context, str], Awaitable[None]]]] = {
    "rollback()": _roll_back,
    "an exception": _raise,
    "a cancellation": _cancel,
}


@row(
    "WAKE-05",
    text="A transaction that was rolled back wakes nobody, however it was rolled back.",
    oracle="the wakes after each kind of rollback, and after a notify as control",
    modes=SECOND,
    needs=("listen",),
    kills=("rollback-leaks-a-wake",),
)
async def a_rolled_back_transaction_wakes_nobody(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    channel = ctx.name("news")
    async with mine.listen(channel) as receiver:
        for kind, roll_back in ROLLBACKS.items():
            await roll_back(ctx, channel)
            ctx.expect(await pending(ctx, receiver), 0, f"{kind} leaves no wake behind")
        await other.notify(channel)
        await woken(ctx, receiver, channel, "a notify after the rollbacks wakes")
        ctx.expect(await pending(ctx, receiver), 0, "a rollback leaves no wake to come later")


@row(
    "WAKE-05",
    text="Whoever is woken by a commit sees the committed data.",
    oracle="an event and a job of the transaction, read right after each of the wakes",
    modes=("concurrent", "second"),
    needs=("listen",),
    kills=("wake-before-the-data",),
)
async def the_woken_reader_sees_the_committed_data(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    channel = ctx.name("news")
    seen: list[tuple[int, bool]] = []

    async def read_on_wakes(receiver: WakeReceiver) -> None:
        async for _ in receiver:
            found = await offsets(mine.stream(channel), len(seen))
            claimed = await mine.queue(channel).claim_one()
            seen.append((len(found), claimed is not None))

    async with mine.listen(channel) as receiver:
        reader = ctx.start(read_on_wakes(receiver))
        for round in range(MANY):
            async with other.begin_tx() as tx:
                await tx.notify(channel)
                await tx.publish(channel, round)
                await tx.enqueue(channel, round)
            await ctx.settle()
            ctx.expect(seen[round:], [(1, True)], "whoever is woken by a commit sees its data")
        ctx.still_waiting(reader, "the reader goes on")
