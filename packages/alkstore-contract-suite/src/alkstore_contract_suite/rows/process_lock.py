"""Rows LOCK-01, LOCK-02, LOCK-05 and LOCK-06 in several processes."""

import asyncio
import random
import time
from typing import Final

from alkstore import Store
from alkstore_contract_suite.child import hold, tell
from alkstore_contract_suite.context import MICRO, Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._lock import refused, taken
from alkstore_contract_suite.rows._process import ALONE, folder, joined, marked, overlapped
from alkstore_contract_suite.rows._stream import rising

TTL: Final = 60.0
ROUNDS: Final = 12

Fences = list[tuple[int, int]]


async def _enter(store: Store, name: str, marks: str, seed: str) -> Fences:
    """Wait for the lock, be alone, and give it back, again and again; gives each fence and when it was got."""
    draw = random.Random(seed)
    got = []
    for _ in range(ROUNDS):
        async with store.lock(name, TTL) as lock, marked(marks, "holder", draw.uniform(0, 0.002)):
            got.append((lock.fence, time.monotonic_ns()))
    return got


async def _try(store: Store, name: str, marks: str, seed: str) -> Fences:
    """Try the lock until it is got, be alone, and give it back, again and again."""
    draw = random.Random(seed)
    got: Fences = []
    while len(got) < ROUNDS:
        lock = await store.try_lock(name, TTL)
        if lock is None:
            await hold(draw.uniform(0, 0.002))
            continue
        async with lock, marked(marks, "holder", draw.uniform(0, 0.002)):
            got.append((lock.fence, time.monotonic_ns()))
        await hold(draw.uniform(0, 0.002))
    return got


@row(
    "LOCK-01",
    text="One process at a time holds a lock, whether it waited or tried.",
    oracle="marks in a folder that each of four processes makes and removes while it holds the lock",
    modes=("process",),
    kills=("two-processes-hold-one-lock",),
)
async def one_process_at_a_time_holds_a_lock(ctx: Context) -> None:
    name = ctx.name("lock")
    children = await ctx.processes(4, poll_interval=ALONE)
    with folder() as marks:
        got = await ctx.soon(
            ctx.race(
                *(
                    child.run(_enter if number % 2 else _try, name, marks, child.name)
                    for number, child in enumerate(children)
                )
            ),
            "every process gets the lock in time",
        )
    ctx.expect([told for child in children for told in child.heard()], [], "a holder is alone")
    # Which of two numbers was read first is known to the machine, across its processes too.
    in_time = [fence for fence, _ in sorted(joined(got), key=lambda each: each[1])]
    ctx.that(rising(in_time), "the fence grows with every acquisition, across processes", observed=in_time)
    ctx.expect(await ctx.store.locks(), [], "a lock that was given back is free for every process")
    overlapped(ctx, [[fence for fence, _ in part] for part in got])


async def _hold_lock(store: Store, name: str, ttl: float) -> None:
    lock = await store.try_lock(name, ttl)
    tell(None if lock is None else lock.fence)
    await asyncio.Event().wait()


async def _wait_for_lock(store: Store, name: str) -> None:
    """Wait for the lock, tell its fence, and keep it."""
    async with store.lock(name, TTL) as lock:
        tell(lock.fence)
        await asyncio.Event().wait()


@row(
    "LOCK-05",
    text="The fence grows with every acquisition, across processes and kills.",
    oracle="the fences of five processes that are killed one after the other, and of this one in between",
    modes=("process",),
    kills=("two-processes-hold-one-lock",),
)
async def the_fence_grows_across_killed_processes(ctx: Context) -> None:
    name = ctx.name("lock")
    fences = []
    for child in await ctx.processes(5):
        _ = child.start(_hold_lock, name, TTL)
        fences.append(await ctx.soon(child.hear(), "a process can take a lock"))
        await child.kill()
        await refused(ctx, ctx.store, name, "a killed holder's lock is held to the end of its ttl")
        await ctx.advance(TTL)
        lock = await taken(ctx, ctx.store, name, TTL, "a killed holder's lock is free at the end of its ttl")
        fences.append(lock.fence)
        await lock.release()
    ctx.expect(fences, sorted(set(fences)), "the fence grows with every acquisition")


@row(
    "LOCK-06",
    text="Whoever waits for a lock is woken by the lapse of a killed process's, at its ttl and not before.",
    oracle="a waiter in another process, one microsecond before and at the end of the ttl",
    modes=("process",),
)
async def the_lapse_of_a_killed_holders_lock_wakes_a_waiter(ctx: Context) -> None:
    name = ctx.name("lock")
    holder, waiter = await ctx.processes(2, poll_interval=ALONE)
    _ = holder.start(_hold_lock, name, 30)
    fence = await ctx.soon(holder.hear(), "a process can take a lock")
    _ = waiter.start(_wait_for_lock, name)
    await ctx.settle()
    await holder.kill()
    await ctx.advance(30 - MICRO)
    ctx.expect(waiter.heard(), [], "a killed holder's lock is held to its ttl")
    await ctx.advance(MICRO)
    later = await ctx.soon(
        waiter.hear(), "the lapse of a killed holder's lock wakes who waits in another process"
    )
    ctx.that(later > fence, "the fence grows across processes", observed=(fence, later))


@row(
    "LOCK-06",
    text="Whoever waits for a lock is woken by a release in any process.",
    oracle="a waiter in another process before and after the release in this one, time standing still",
    modes=("process",),
    kills=("no-wake-across-processes",),
)
async def a_release_in_one_process_wakes_the_waiter_in_another(ctx: Context) -> None:
    name = ctx.name("lock")
    waiter = await ctx.process(poll_interval=ALONE)
    mine = await taken(ctx, ctx.store, name, TTL)
    _ = waiter.start(_wait_for_lock, name)
    await ctx.settle()
    ctx.expect(waiter.heard(), [], "a held lock is waited for")
    ctx.expect(await mine.release(), True, "a held lock can be released")
    later = await ctx.soon(waiter.hear(), "a release wakes who waits in another process")
    ctx.that(later > mine.fence, "the fence grows across processes", observed=(mine.fence, later))
    await refused(ctx, ctx.store, name, "a lock that another process holds is refused at once")
