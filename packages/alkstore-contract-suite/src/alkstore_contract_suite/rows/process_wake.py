"""Rows WAKE-01 to WAKE-05 across processes."""

import asyncio
import random
from typing import Final

from alkstore import Store
from alkstore_contract_suite.child import hear, hold, tell
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._receiving import pending, woken

COMMITS: Final = 150


async def _notify(store: Store, channel: str, times: int = 1) -> None:
    for _ in range(times):
        await store.notify(channel)


async def _hear_one(store: Store, channel: str, silent: str) -> tuple[str | None, str | None]:
    """Listen on two channels with two receivers each, wait for both of the first; gives their channel and the others'."""
    async with store.listen(channel) as first, store.listen(channel) as second, store.listen(silent) as other:
        tell("listening")
        wakes = [await first.recv(), await second.recv()]
        quiet = await other.try_recv()
        channels = {wake.channel if wake else None for wake in wakes}
        return channels.pop(), quiet.channel if quiet else None


@row(
    "WAKE-01",
    text="A notify wakes every open receiver on its channel, in this process and in every other.",
    oracle="two receivers in each of three processes, for a notify of each of the three",
    modes=("process",),
    needs=("listen",),
    kills=("no-wake-across-processes",),
)
async def a_notify_wakes_receivers_in_every_process(ctx: Context) -> None:
    children = await ctx.processes(2)
    for number in range(3):
        channel, silent = ctx.name("heard"), ctx.name("silent")
        tasks = [child.start(_hear_one, channel, silent) for child in children]
        async with ctx.store.listen(channel) as mine:
            for child in children:
                await ctx.soon(child.hear(), "a process can listen")
            for task in tasks:
                await ctx.idle(task, "nobody is woken before the notify")
            if number < len(children):
                await children[number].run(_notify, channel)
            else:
                await ctx.store.notify(channel)
            await woken(ctx, mine, channel, "a notify of any process wakes the receiver in this one")
            for task in tasks:
                found = await ctx.soon(task, "a notify of any process wakes the receivers in every other")
                ctx.expect(found, (channel, None), "only receivers of its channel are woken")


@row(
    "WAKE-02",
    text="Neither another channel's notify nor an earlier one wakes a receiver, whatever process it came from.",
    oracle="try_recv after everything was delivered; then a notify that does come",
    modes=("process",),
    needs=("listen",),
)
async def neither_other_channels_nor_earlier_notifies_wake(ctx: Context) -> None:
    channel = ctx.name("channel")
    child = await ctx.process()
    for _ in range(10):
        await child.run(_notify, channel)
        async with ctx.store.listen(channel) as receiver:
            ctx.expect(await pending(ctx, receiver), 0, "a notify acknowledged before listen wakes nobody")
            await child.run(_notify, f"{channel} other")
            ctx.expect(await pending(ctx, receiver), 0, "a notify on another channel wakes nobody")
            await child.run(_notify, channel)
            ctx.that(await pending(ctx, receiver), "a notify of another process after listen wakes")


@row(
    "WAKE-03",
    text="N notifies of another process while the receiver does not read are between 1 and N wakes.",
    oracle="how many there are, and that there are no more",
    modes=("process",),
    needs=("listen",),
)
async def notifies_of_another_process_are_at_least_one_wake(ctx: Context) -> None:
    child = await ctx.process()
    async with ctx.store.listen("channel") as receiver:
        await child.run(_notify, "channel", 20)
        ctx.among(await pending(ctx, receiver), range(1, 21), "N notifies are between 1 and N wakes")
        ctx.expect(await pending(ctx, receiver), 0, "no notify, no wake")


async def _follow(store: Store, stream: str, channel: str, count: int) -> list[int]:
    """Read what is new after each wake, now and then slowly; gives the offsets."""
    draw = random.Random(channel)
    seen: list[int] = []
    async with store.listen(channel) as receiver:
        tell("listening")
        while len(seen) < count:
            await receiver.recv()
            if draw.random() < 0.2:
                await hold(draw.uniform(0, 0.003))
            last = seen[-1] if seen else 0
            seen += [event.offset for event in await store.stream(stream).read_since(last, 5_000)]
    return seen


async def _publish_and_notify(store: Store, stream: str, channel: str, count: int) -> None:
    draw = random.Random(stream)
    for number in range(count):
        if draw.random() < 0.1:
            await hold(draw.uniform(0, 0.003))
        async with store.begin_tx() as tx:
            await tx.publish(stream, number)
            await tx.notify(channel)


@row(
    "WAKE-04",
    text="No wake is lost: after a commit with a notify the next recv returns, and the commit's data is there.",
    oracle="readers in two processes that read only after a wake see every event of two processes' commits",
    modes=("process",),
    needs=("listen",),
)
async def no_wake_of_another_process_is_lost(ctx: Context) -> None:
    stream, channel = ctx.name("log"), ctx.name("channel")
    children = await ctx.processes(4)
    readers = [child.start(_follow, stream, channel, 2 * COMMITS) for child in children[:2]]
    for child in children[:2]:
        await ctx.soon(child.hear(), "a process can listen")
    writers = [child.start(_publish_and_notify, stream, channel, COMMITS) for child in children[2:]]
    wanted = [await ctx.soon(reader, "no wake is lost: a reader sees the last event") for reader in readers]
    await asyncio.gather(*writers)
    events = [event.offset for event in await ctx.store.stream(stream).read_since(0, 5_000)]
    ctx.expect(wanted, [events, events], "each reader saw every event once and in order")


async def _notify_in_tx(store: Store) -> None:
    """Publish and notify in a transaction, and end it as the case says."""
    async with store.begin_tx() as tx:
        await tx.publish("log", "news")
        await tx.notify("channel")
        tell("notified")
        if await hear() == "roll back":
            await tx.rollback()


@row(
    "WAKE-05",
    text="Tx.notify wakes no other process before the commit, nor after a rollback or a kill; then with the data.",
    oracle="a receiver while another process's transaction is open, after its rollback, its kill, its commit",
    modes=("process",),
    needs=("listen",),
)
async def a_notify_in_a_transaction_wakes_other_processes_at_the_commit(ctx: Context) -> None:
    log = ctx.store.stream("log")
    async with ctx.store.listen("channel") as receiver:
        for end in ("roll back", "kill", "commit"):
            child = await ctx.process()
            task = child.start(_notify_in_tx)
            await ctx.soon(child.hear(), "a transaction can notify")
            ctx.expect(await pending(ctx, receiver), 0, "nothing wakes before the commit")
            if end == "kill":
                await child.kill()
            else:
                child.tell(end)
                await ctx.soon(task, f"the transaction ends: {end}")
            if end == "commit":
                await woken(ctx, receiver, "channel", "a commit wakes other processes")
                found = [event.payload for event in await log.read_since(0)]
                ctx.expect(found, ["news"], "the woken reader sees the committed data")
            else:
                ctx.expect(await pending(ctx, receiver), 0, f"{end}: nothing wakes")
                ctx.expect(await log.head(), 0, f"{end}: nothing is left")
