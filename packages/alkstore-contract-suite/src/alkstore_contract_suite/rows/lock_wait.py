"""Row LOCK-06: waiting for a lock, and holding it while a block runs."""

import asyncio
from datetime import timedelta

from alkstore import Closed, Lock, LockLost, LockTimeout, Store
from alkstore_contract_suite.context import MICRO, Context
from alkstore_contract_suite.factory import Fault
from alkstore_contract_suite.racing import Step, Worker
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._lock import refused, taken
from alkstore_contract_suite.rows._receiving import broken

SECOND = ("plain", "second")


class Body:
    """The block of a lock, in a task of its own, open until it is told to end."""

    def __init__(
        self, ctx: Context, store: Store, name: str, ttl: float, timeout: float | None = None
    ) -> None:
        self.end = asyncio.Event()
        self.is_inside = False
        self.was_cancelled = 0
        self.task = ctx.start(self._run(ctx, store, name, ttl, timeout))

    async def _run(
        self, ctx: Context, store: Store, name: str, ttl: float, timeout: float | None
    ) -> tuple[str, bool]:
        async with store.lock(name, ttl, timeout=timeout) as lock:
            self.is_inside = True
            try:
                await self.end.wait()
            except asyncio.CancelledError:
                self.was_cancelled += 1
                raise
            held = lock.held
        return lock.name, held


@row(
    "LOCK-06",
    text="lock() waits for a held lock, and a release lets it in.",
    oracle="the waiter before and after the release; the lock while and after its block",
    modes=SECOND,
    kills=("release-wakes-nobody",),
)
async def a_release_lets_the_waiter_in(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("report")
    holder = await taken(ctx, other, name, 3600)
    body = Body(ctx, mine, name, 30)
    await ctx.idle(body.task, "a waiter waits while the lock is held")
    ctx.expect(body.is_inside, False, "a waiter waits while the lock is held")
    ctx.expect(await holder.release(), True, "the holder releases")
    await ctx.settle()
    ctx.expect(body.is_inside, True, "a release lets the waiter in")
    await refused(ctx, other, name, "whoever is in its block holds the lock")
    body.end.set()
    found = await ctx.soon(body.task, "a block ends")
    ctx.expect(found, (name, True), "the block had the lock until its end")
    await taken(ctx, other, name, 5, "leaving the block frees the lock")


@row(
    "LOCK-06",
    text="A lapse lets the waiter in, at the instant of the end and not before.",
    oracle="the waiter around the instant at which the holder's ttl ends, and after a renewal moved it",
    modes=("boundary", "second"),
    kills=("lapse-wakes-nobody",),
)
async def a_lapse_lets_the_waiter_in(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("report")
    holder = await taken(ctx, other, name, 10)
    body = Body(ctx, mine, name, 30)
    await ctx.advance(4)
    ctx.expect(await holder.renew(10), True, "a live lock is renewed")
    await ctx.advance(10 - MICRO)
    await ctx.idle(body.task, "a renewed lock is waited for until its new end")
    ctx.expect(body.is_inside, False, "a waiter is not let in before the lapse")
    await ctx.advance(MICRO)
    await ctx.settle()
    ctx.expect(body.is_inside, True, "a lapse lets the waiter in")
    ctx.expect(await holder.renew(10), False, "the lapsed holder has lost it")
    body.end.set()
    await ctx.soon(body.task, "a block ends")


@row(
    "LOCK-06",
    text="A lease that a renewal shortened lets the waiter in at its new end.",
    oracle="the waiter around the new end, with the old one an hour ahead",
    modes=("boundary", "second"),
    kills=("shortened-lease-wakes-nobody",),
    hints="wake whoever waits for a lock when its end moves nearer",
)
async def a_shortened_lease_lets_the_waiter_in(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("report")
    holder = await taken(ctx, other, name, 3600)
    body = Body(ctx, mine, name, 30)
    await ctx.idle(body.task, "a waiter waits while the lock is held")
    ctx.expect(await holder.renew(2), True, "a renewal may shorten the window")
    await ctx.advance(2 - MICRO)
    await ctx.settle()
    ctx.expect(body.is_inside, False, "a waiter is not let in before the lapse")
    await ctx.advance(MICRO)
    await ctx.settle()
    ctx.expect(body.is_inside, True, "a shortened lease lets the waiter in at its new end")
    body.end.set()
    await ctx.soon(body.task, "a block ends")


@row(
    "LOCK-06",
    text="The lock is not re-entrant, and a timeout <= 0 is one try: LockTimeout, nothing held.",
    oracle="tries from within the block; then a free lock with the same timeouts as control",
    modes=SECOND,
    kills=("lock-reentrant",),
)
async def a_lock_is_not_reentrant(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("report")
    async with mine.lock(name, 30) as lock:
        for store in (mine, other):
            for timeout in (0, -1, 0.002):
                again = store.lock(name, 30, timeout=timeout)
                async with ctx.refuses(LockTimeout, "a lock is not re-entrant") as caught, again:
                    ctx.note("let in")
                ctx.that(isinstance(caught.error, TimeoutError), "LockTimeout is a TimeoutError")
        ctx.expect(await lock.renew(30), True, "a refused try takes nothing from the holder")
    for timeout in (0, -1, 5):
        async with other.lock(name, 30, timeout=timeout):
            await refused(ctx, mine, name, "a free lock is given with any timeout")
    ctx.expect(await mine.locks(), [], "nothing is held after the blocks")


@row(
    "LOCK-06",
    text="While the block runs the lock is renewed at a third of the ttl, in the storage's time.",
    oracle="the end of the lease after each third, and that it is not renewed earlier",
    modes=("boundary", "second"),
    kills=("block-renews-nothing",),
)
async def a_block_renews_its_lock(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("report")
    body = Body(ctx, mine, name, 30)
    await ctx.settle()
    for _ in range(8):
        began = (await other.locks())[0].expires_at
        await ctx.advance(10 - MICRO)
        ctx.expect((await other.locks())[0].expires_at, began, "a lock is not renewed before a third")
        await ctx.advance(MICRO)
        await ctx.settle()
        moved = (await other.locks())[0].expires_at - began
        ctx.expect(moved.total_seconds(), 10.0, "a block renews its lock at a third of the ttl")
    await ctx.advance(20 - MICRO)
    await ctx.settle()
    await refused(ctx, other, name, "a jump short of the end is survived")
    body.end.set()
    ctx.expect(await ctx.soon(body.task, "a block ends"), (name, True), "a renewed lock is never lost")
    ctx.expect(body.was_cancelled, 0, "a block that holds its lock is not cancelled")
    await taken(ctx, other, name, 5, "leaving the block frees the lock")


@row(
    "LOCK-06",
    text="If the lock is lost the block's task is cancelled once, and leaving raises LockLost in its place.",
    oracle="the block after a jump over its ttl, with and without another who took the lock",
    modes=SECOND,
    kills=("lost-lock-goes-unnoticed",),
)
async def a_lost_lock_ends_its_block(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("report")
    body = Body(ctx, mine, name, 30)
    await ctx.settle()
    await ctx.advance(30)
    async with ctx.refuses(LockLost, "leaving the block of a lost lock is LockLost") as caught:
        await ctx.soon(body.task, "the loss ends the block")
    ctx.expect(caught.error.name, name, "LockLost carries the name")
    ctx.expect(body.was_cancelled, 1, "the loss cancels the block once")
    ctx.expect(body.task.cancelled() or body.task.cancelling() > 0, False, "the cancellation is taken back")
    await taken(ctx, other, name, 5, "a lost lock is free")


@row(
    "LOCK-06",
    text="The block's own exception, and a cancellation from outside, win over LockLost; either frees the lock.",
    oracle="what leaves each block, lost or not; the lock afterwards",
    modes=SECOND,
)
async def what_the_block_raises_wins(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()

    async def fail(name: str, lose: bool) -> None:
        async with mine.lock(name, 30):
            try:
                if lose:
                    await asyncio.Event().wait()
            finally:
                raise ZeroDivisionError

    for lose in (False, True):
        name = ctx.name("report")
        failing = ctx.start(fail(name, lose))
        await ctx.settle()
        await ctx.advance(30 if lose else 0)
        async with ctx.refuses(ZeroDivisionError, "the block's own exception wins"):
            await ctx.soon(failing, "the block ends")
        await taken(ctx, other, name, 5, "a failed block leaves the lock free")
    name = ctx.name("report")
    body = Body(ctx, mine, name, 30)
    await ctx.settle()
    body.task.cancel()
    await ctx.soon(asyncio.wait((body.task,)), "a cancelled block ends")
    ctx.expect(body.task.cancelled(), True, "a cancellation from outside propagates")
    await taken(ctx, other, name, 5, "a cancelled block leaves the lock free")


@row(
    "LOCK-06",
    text="Awaited instead of entered, lock() waits and acquires, but renews nothing and cancels nobody.",
    oracle="the lock around its ttl, and the task that awaited it",
    modes=("boundary", "second"),
)
async def an_awaited_lock_renews_nothing(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("report")
    holder = await taken(ctx, other, name, 3600)
    go_on = asyncio.Event()

    async def work() -> tuple[bool, bool]:
        lock = await mine.lock(name, 9)
        await go_on.wait()
        return await lock.renew(9), await lock.release()

    working = ctx.start(work())
    await ctx.idle(working, "an awaited lock waits for its holder")
    await holder.release()
    await ctx.settle()
    await ctx.advance(9 - MICRO)
    await refused(ctx, other, name, "an awaited lock is held for its ttl")
    await ctx.advance(MICRO)
    ctx.still_waiting(working, "an awaited lock cancels nobody")
    await taken(ctx, other, name, 5, "an awaited lock is not renewed")
    go_on.set()
    found = await ctx.soon(working, "the task goes on")
    ctx.expect(found, (False, False), "an awaited lock was lost at its ttl")


@row(
    "LOCK-06",
    text="However many wait, one is in its block at a time, and each gets its turn.",
    oracle="eight workers on two stores that enter three times each, half of them by single tries",
    modes=("concurrent", "second"),
    kills=("lock-check-then-take",),
)
async def one_is_in_its_block_at_a_time(ctx: Context) -> None:
    stores = [ctx.store, await ctx.turn()]
    name = ctx.name("report")
    inside: list[int] = []

    def worker(at: int) -> Worker[int]:
        async def enter(step: Step) -> int:
            turns = 0
            while turns < 3:
                # Half of them wait, the others try again and again: no line that waiters form may be all that parts them.
                try:
                    async with stores[at % 2].lock(name, 30, timeout=None if at < 4 else 0):
                        inside.append(at)
                        ctx.expect(inside, [at], "one is in its block at a time")
                        await step()
                        ctx.expect(inside, [at], "one is in its block at a time")
                        inside.clear()
                    turns += 1
                except LockTimeout:
                    ctx.expect(at >= 4, True, "without a timeout lock() waits for ever")
                await step()
            return at

        return enter

    await ctx.soon(ctx.race_workers([worker(at) for at in range(8)]), "each waiter gets its turn")


@row(
    "LOCK-06",
    text="A wait that is cancelled or times out holds nothing and disturbs nobody.",
    oracle="waits cancelled at every turn of a release; the lock is then free for the next",
    modes=("plain", "concurrent", "second"),
    kills=("cancelled-wait-keeps-the-lock",),
)
async def a_cancelled_wait_holds_nothing(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("report")
    for turns in range(14):
        holder = await taken(ctx, other, name, 3600)
        waiter = ctx.start(_awaited(mine, name))
        timed = Body(ctx, mine, name, 3600, timeout=0.001)
        await ctx.settle()
        ctx.expect(await holder.release(), True, "the holder releases")
        for _ in range(turns):
            await ctx.hold(0)
        waiter.cancel()
        timed.task.cancel()
        await ctx.soon(asyncio.wait((waiter, timed.task)), "a cancelled wait ends")
        await ctx.settle()
        if not waiter.cancelled():
            ctx.expect(await waiter.result().release(), True, "a wait that returned has the lock")
        lock = await taken(ctx, other, name, 5, "a cancelled wait holds nothing")
        await lock.release()


async def _awaited(store: Store, name: str) -> Lock:
    return await store.lock(name, 3600)


@row(
    "LOCK-06",
    text="When the store closes a waiting lock() is Closed.",
    oracle="the waiter through the close",
)
async def a_close_ends_a_waiting_lock(ctx: Context) -> None:
    name = ctx.name("report")
    await taken(ctx, ctx.store, name, 3600)
    waiter = ctx.start(_awaited(ctx.store, name))
    await ctx.idle(waiter, "a waiter waits while the lock is held")
    await ctx.store.aclose()
    async with ctx.refuses(Closed, "a waiting lock() is Closed when its store closes"):
        await ctx.soon(waiter, "the store's close ends every wait")


@row(
    "LOCK-06",
    text="A lock is lost as well if no renewal succeeded until its ttl after the last good one began.",
    oracle="a block whose storage is away for its ttl, and one for which it comes back in time",
    needs=("durable",),
)
async def a_lock_that_cannot_be_renewed_is_lost(ctx: Context) -> None:
    for lost in (False, True):
        name = ctx.name("report")
        body = Body(ctx, ctx.store, name, 30)
        await ctx.settle()
        async with broken(ctx, Fault.STORAGE_AWAY, ctx.store):
            await ctx.advance(15)
            for _ in range(20):
                await ctx.hold(0.003)
            ctx.still_waiting(body.task, "a failing renewal is tried again while the lock is held")
            if lost:
                await ctx.advance(15)
                async with ctx.refuses(LockLost, "a lock that cannot be renewed is lost"):
                    await ctx.soon(body.task, "the loss ends the block")
        if not lost:
            for _ in range(800):
                if (await ctx.store.locks())[0].expires_at > await ctx.now() + timedelta(seconds=29):
                    break
                await ctx.hold(0.003)
            body.end.set()
            found = await ctx.soon(body.task, "a block ends")
            ctx.expect(found, (name, True), "a renewal that came in time keeps the lock")
