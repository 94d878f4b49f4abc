"""Rows Q-07, Q-17, Q-24 and Q-26 in several processes: nothing is given twice, and nothing is lost with a process."""

import asyncio
import random
from typing import Final

from alkstore import Store
from alkstore_contract_suite.child import tell
from alkstore_contract_suite.context import MICRO, Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._process import give_way, overlapped, taken
from alkstore_contract_suite.rows._queue import drain, take, take_nothing

WINDOW: Final = 30
MOST: Final = 18
"""Jobs that one of six workers handles at most, of 120."""
JOBS: Final = 240


async def _drained(store: Store, name: str, size: int) -> list[tuple[int, bool]]:
    """Claim by so many and ack until nothing is ready; gives each job's id and whether its ack landed."""
    queue = store.queue(name)
    done = []
    while handles := await queue.claim_batch(size):
        done += [(handle.job.id, await handle.ack()) for handle in handles]
        await give_way()
    return done


@row(
    "Q-07",
    text="Workers in several processes never hold one row together, and every row is claimed.",
    oracle="the ids that three processes claimed and acked, by one, three and seven, are those enqueued, each once",
    modes=("process",),
    kills=("claim-gives-two-processes-one-job",),
)
async def processes_never_hold_one_row_together(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = ctx.store.queue(name)
    ids = await queue.enqueue_batch(range(JOBS))
    children = await ctx.processes(3)
    found = await ctx.race(
        *(child.run(_drained, name, size) for child, size in zip(children, (1, 3, 7), strict=True))
    )
    ctx.expect(
        sorted(id for part in found for id, _ in part),
        ids,
        "no row is held by two processes, every row is claimed",
    )
    ctx.expect(
        {landed for part in found for _, landed in part}, {True}, "every claim is live when it is acked"
    )
    ctx.expect(await queue.list(), [], "an acked row is gone for every process")
    overlapped(ctx, [[id for id, _ in part] for part in found])


async def _hold_jobs(store: Store, name: str, count: int) -> None:
    """Claim so many, ack the first, tell of all, and never end."""
    handles = await taken(store, name, count)
    tell((await handles[0].ack(), [handle.job.id for handle in handles]))
    await asyncio.Event().wait()


@row(
    "Q-24",
    text="What a killed worker held comes back after its window, and not before.",
    oracle="claims in another process before the window's end, one microsecond before, and at it",
    modes=("process",),
    depends=("Q-08",),
)
async def a_killed_workers_jobs_come_back_after_their_window(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = ctx.store.queue(name, visibility_timeout=WINDOW)
    ids = await queue.enqueue_batch(range(5))
    worker = await ctx.process()
    _ = worker.start(_hold_jobs, name, 4)
    told = await ctx.soon(worker.hear(), "another process claims")
    ctx.expect(told, (True, ids[:4]), "another process claims in order, and acks")
    await worker.kill()
    ctx.expect(await drain(queue), ids[4:], "what a killed worker held stays held, what it acked is gone")
    await ctx.advance(WINDOW - MICRO)
    await take_nothing(ctx, queue, "what a killed worker held stays held to its window's end")
    await ctx.advance(MICRO)
    again = await queue.claim_batch(9)
    ctx.expect(
        [(handle.job.id, handle.job.attempts) for handle in again],
        [*((id, 2) for id in ids[1:4]), (ids[4], 2)],
        "what a killed worker held comes back at its window's end",
    )
    ctx.expect([await handle.ack() for handle in again], [True] * 4, "and is acked by another worker")


async def _work_and_tell(store: Store, name: str) -> None:
    """Claim and ack one after the other, and tell of each step when it has answered; then wait to be killed.

    Not without an end: one that is killed late on a busy machine would leave nothing to the others.
    """
    queue = store.queue(name)
    for _ in range(MOST):
        handle = await queue.claim()
        if handle is not None:
            tell(("claimed", handle.job.id))
            if await handle.ack():
                tell(("acked", handle.job.id))
    await asyncio.Event().wait()


@row(
    "Q-24",
    text="A worker may be killed at any point: no committed row is lost, and none comes back after its ack.",
    oracle="what six workers told before they were killed at random, and what a seventh found",
    modes=("process",),
)
async def a_worker_may_be_killed_at_any_point(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = ctx.store.queue(name, visibility_timeout=WINDOW, max_attempts=99)
    ids = await queue.enqueue_batch(range(120))
    acked: set[int] = set()
    begun: set[int] = set()
    for worker in await ctx.processes(6):
        _ = worker.start(_work_and_tell, name)
        told = [await ctx.soon(worker.hear(), "a worker works") for _ in range(ctx.random.randrange(4, 24))]
        await worker.kill()
        told += worker.heard()
        again = acked.intersection(id for _, id in told)
        ctx.expect(again, set(), "what was acked before a kill is never given again")
        acked.update(id for word, id in told if word == "acked")
        begun.update(id for _, id in told)
        await ctx.advance(WINDOW)
    rest = await _drained(ctx.store, name, 50)
    ctx.expect({landed for _, landed in rest}, {True}, "what killed workers left can be claimed and acked")
    left = {id for id, _ in rest}
    ctx.expect(left & acked, set(), "what was acked before a kill is never given again")
    # A worker that was killed before it told of its ack may or may not have acked; everything else is known.
    ctx.expect(set(ids) - left - begun, set(), "no row is lost with a worker")
    ctx.expect(await queue.list(), [], "each row is in the end acked")


async def _mingle(store: Store, name: str, seed: str, rounds: int) -> list[int]:
    """Claim, settle and sweep in no order; gives the ids of what was acked."""
    draw = random.Random(seed)
    queue = store.queue(name)
    acked = []
    for _ in range(rounds):
        handles = await queue.claim_batch(draw.randrange(1, 6))
        for handle in handles:
            how = draw.choice(("ack", "ack", "retry", "fail", "release", "heartbeat"))
            if how == "ack" and await handle.ack():
                acked.append(handle.job.id)
            elif how == "retry":
                await handle.retry(delay=0)
            elif how in ("fail", "release", "heartbeat"):
                await getattr(handle, how)()
        await queue.sweep_expired()
        await give_way()
    return acked


@row(
    "Q-26",
    text="No deadlock, lock timeout or serialization failure surfaces from processes that claim, settle and sweep.",
    oracle="no error; each row was acked by one process or is still there, never both",
    modes=("process",),
)
async def no_conflict_of_processes_surfaces(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = ctx.store.queue(name, max_attempts=50)
    ids = [*await queue.enqueue_batch(range(150)), *await queue.enqueue_batch(range(50), expires=0)]
    children = await ctx.processes(3)
    parts = await ctx.race(*(child.run(_mingle, name, f"{ctx.random.random()}", 25) for child in children))
    acked = [id for part in parts for id in part]
    left = [job.id for job in await queue.list(limit=5_000)]
    ctx.expect(sorted([*acked, *left]), ids, "a row is acked by one process, or still there")
    overlapped(ctx, parts)


async def _sweep(store: Store, name: str, times: int) -> int:
    return sum([await store.queue(name).sweep_expired() for _ in range(times)])


@row(
    "Q-17",
    text="Concurrent sweeps of several processes count each row once.",
    oracle="the sum of what they counted",
    modes=("process",),
)
async def sweeps_of_several_processes_count_each_row_once(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = ctx.store.queue(name)
    await queue.enqueue_batch(range(300), expires=1)
    live = await queue.enqueue("live")
    children = await ctx.processes(3)
    await ctx.advance(1)
    counted = await ctx.race(*(child.run(_sweep, name, 3) for child in children))
    ctx.expect(sum(counted), 300, "each row is counted by one sweep")
    ctx.expect((await queue.stats()).dead, 300, "and is dead")
    ctx.expect((await take(ctx, queue)).job.id, live, "a row that did not expire is left alone")
