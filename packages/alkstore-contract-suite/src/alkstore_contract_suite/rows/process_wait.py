"""Row Q-21 in several processes: whatever makes a job claimable in one wakes the claim that waits in another."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from alkstore import Store
from alkstore_contract_suite.child import hear, tell
from alkstore_contract_suite.context import MICRO, Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._process import ALONE, claimed, taken

Act = Callable[[], Awaitable[object]]


async def _enqueue(store: Store, name: str) -> Act:
    return lambda: store.queue(name).enqueue("job")


async def _enqueue_batch(store: Store, name: str) -> Act:
    return lambda: store.queue(name).enqueue_batch(["job"])


async def _commit(store: Store, name: str) -> Act:
    async def act() -> None:
        async with store.begin_tx() as tx:
            await tx.enqueue(name, "job")

    return act


async def _retry(store: Store, name: str) -> Act:
    await store.queue(name).enqueue("job")
    [handle] = await taken(store, name, 1)
    return lambda: handle.retry(delay=0)


async def _release(store: Store, name: str) -> Act:
    await store.queue(name).enqueue("job")
    [handle] = await taken(store, name, 1)
    return handle.release


async def _redrive(store: Store, name: str) -> Act:
    await store.queue(name).enqueue("job")
    [handle] = await taken(store, name, 1)
    await handle.fail()
    return lambda: store.queue(name).redrive(handle.job.id)


async def _fire(store: Store, name: str) -> Act:
    await store.schedule(name, "@every 1s", name, "job")
    return store.tick_schedules


CAUSES: Final[Mapping[str, Callable[[Store, str], Awaitable[Act]]]] = {
    "an enqueue": _enqueue,
    "a batch": _enqueue_batch,
    "a commit": _commit,
    "a retry": _retry,
    "a release": _release,
    "a redrive": _redrive,
    "a fire": _fire,
}


async def _cause(store: Store, label: str, name: str) -> None:
    """Prepare, and act when the case says so."""
    act = await CAUSES[label](store, name)
    tell("prepared")
    await hear()
    await act()
    tell("done")


@row(
    "Q-21",
    text="A waiting claim has its job on the commit of whatever made it claimable, in any process.",
    oracle="claims that wait in two processes, polling an hour apart, before and after each kind of commit in a third",
    modes=("process",),
    kills=("no-wake-across-processes",),
)
async def a_commit_in_one_process_wakes_the_claim_in_another(ctx: Context) -> None:
    worker, other = await ctx.processes(2, poll_interval=ALONE)
    for label in CAUSES:
        for waiter in ("a child", "this process"):
            name = ctx.name("mail")
            cause = worker.start(_cause, label, name)
            await ctx.soon(worker.hear(), "what is to be done can be prepared")
            task = other.start(claimed, name) if waiter == "a child" else ctx.start(claimed(ctx.store, name))
            await ctx.advance(1)
            ctx.still_waiting(task, f"{label}: the claim waits before it")
            worker.tell("act")
            await ctx.soon(cause, f"{label}: it can be done while others wait")
            found = await ctx.soon(task, f"{label}: it wakes the claim that waits in another process")
            ctx.expect(found, "job", f"{label}: the claim gets the job")
            ctx.expect(await ctx.soon(worker.hear(), "it is told"), "done", "the cause was done once")


async def _enqueue_later(store: Store, name: str, payload: object, delay: float) -> None:
    await store.queue(name).enqueue(payload, delay=delay)


@row(
    "Q-21",
    text="A job that another process delayed is given when it falls due, the earlier one first.",
    oracle="a waiting claim one microsecond before and at each run_at, the earlier one having been enqueued last",
    modes=("process",),
)
async def a_delay_of_another_process_ends_on_time(ctx: Context) -> None:
    name = ctx.name("mail")
    producer, worker = await ctx.processes(2, poll_interval=ALONE)
    task = worker.start(claimed, name)
    await producer.run(_enqueue_later, name, "late", 60)
    await ctx.idle(task, "a delayed job is not given")
    await producer.run(_enqueue_later, name, "soon", 10)
    for payload, wait in (("soon", 10), ("late", 50)):
        await ctx.advance(wait - MICRO)
        await ctx.idle(task, "one microsecond before its run_at a job is not given")
        await ctx.advance(MICRO)
        found = await ctx.soon(task, "a run_at that falls due wakes the claim in another process")
        ctx.expect(found, payload, "the job that fell due is given")
        task = worker.start(claimed, name)
    await ctx.idle(task, "each job is given once")


async def _hold_one(store: Store, name: str) -> None:
    await taken(store, name, 1)
    tell("held")
    await asyncio.Event().wait()


@row(
    "Q-21",
    text="A claim that lapses because its process was killed wakes whoever waits in another.",
    oracle="a waiting claim one microsecond before and at the deadline of a killed worker",
    modes=("process",),
)
async def the_lapse_of_a_killed_workers_claim_wakes_another(ctx: Context) -> None:
    name = ctx.name("mail")
    await ctx.store.queue(name, visibility_timeout=30).enqueue("job")
    killed, other = await ctx.processes(2, poll_interval=ALONE)
    _ = killed.start(_hold_one, name)
    await ctx.soon(killed.hear(), "a ready job is given")
    task = other.start(claimed, name)
    await ctx.idle(task, "a held job is not given")
    await killed.kill()
    await ctx.advance(30 - MICRO)
    await ctx.idle(task, "a killed worker's job is not given before its deadline")
    await ctx.advance(MICRO)
    found = await ctx.soon(task, "the lapse of a killed worker's claim wakes another process")
    ctx.expect(found, "job", "a killed worker's job is given at its deadline")
