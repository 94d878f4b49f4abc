"""Rows TX-02, TX-03 and TX-08 in several processes."""

import asyncio
from typing import Final

from alkstore import DatabaseError, Store
from alkstore_contract_suite.child import hear, tell
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._process import give_way, overlapped
from alkstore_contract_suite.rows._queue import take
from alkstore_contract_suite.rows._transaction import EVERYTHING, NOTHING, look, write_everything

SHORT: Final = 0.2
"""Seconds that a store waits for another process's transaction, in the row about the end of that wait."""


async def _write(store: Store) -> None:
    """Write everything in a transaction, and end it as the case says."""
    await store.queue("held", visibility_timeout=3_600).enqueue("held")
    handle = await store.queue("held").claim_one()
    async with store.begin_tx() as tx:
        await write_everything(tx, handle)
        tell("written")
        if await hear() == "roll back":
            await tx.rollback()


@row(
    "TX-02",
    text="Nothing of a transaction is seen by another process before its commit.",
    oracle="what this process sees while the transaction is open, after its rollback, its kill, its commit",
    modes=("process",),
)
async def a_transaction_of_another_process_is_seen_at_its_commit(ctx: Context) -> None:
    for end in ("roll back", "kill", "commit"):
        child = await ctx.process()
        task = child.start(_write)
        await ctx.soon(child.hear(), "a transaction can write everything")
        ctx.expect(await look(ctx.store), NOTHING, "nothing is seen before the commit")
        if end == "kill":
            await child.kill()
        else:
            child.tell(end)
            await ctx.soon(task, f"the transaction ends: {end}")
        if end == "commit":
            ctx.expect(await look(ctx.store), EVERYTHING, "everything is seen after the commit")
        else:
            ctx.expect(await look(ctx.store), NOTHING, f"{end}: nothing is left")
            # A killed worker's claim is held to its deadline; the next round's worker is to find its own job only.
            await ctx.advance(3_600)
            await (await take(ctx, ctx.store.queue("held"), f"{end}: a claim is as it was")).ack()


async def _save(store: Store, offset: int, until: str) -> None:
    """Save a position in a transaction, and end it as the case says."""
    async with store.begin_tx() as tx:
        await tx.save_offset("log", "reader", offset)
        tell("saved")
        if await hear() != until:
            await tx.rollback()


@row(
    "TX-08",
    text="What waits for a transaction of another process goes on at its end, and other tasks run meanwhile.",
    oracle="a write of the same position in this process; after a commit, after a rollback, after a kill",
    modes=("process",),
)
async def what_waits_for_another_process_goes_on_at_its_end(ctx: Context) -> None:
    stream = ctx.store.stream("log")
    for number, end in enumerate(("commit", "roll back", "kill"), start=1):
        child = await ctx.process()
        task = child.start(_save, 10 * number, "commit")
        await ctx.soon(child.hear(), "a transaction can write")
        waiting = ctx.start(stream.save_offset("reader", 10 * number + 1))
        await ctx.soon(_turns(ctx), "other tasks run while one waits for another process")
        ctx.still_waiting(waiting, "a write of what another process is writing waits for it")
        if end == "kill":
            await child.kill()
        else:
            child.tell(end)
            await ctx.soon(task, f"the transaction ends: {end}")
        ctx.expect(await ctx.soon(waiting, f"{end}: what waited goes on"), True, "and lands")
        ctx.expect(
            await stream.get_offset("reader"), 10 * number + 1, "both have landed, one after the other"
        )


async def _turns(ctx: Context) -> None:
    for _ in range(5):
        await ctx.hold(0.002)
        await ctx.store.stream("log").get_offset("reader")


@row(
    "TX-08",
    text="What waits for a transaction of another process longer than wait_timeout is DatabaseError and not done.",
    oracle="the error of a store with a short wait; the position then, and at last",
    modes=("process",),
)
async def the_wait_for_another_process_has_an_end(ctx: Context) -> None:
    child, impatient = await ctx.process(), await ctx.process(wait_timeout=SHORT)
    task = child.start(_save, 10, "commit")
    await ctx.soon(child.hear(), "a transaction can write")
    async with ctx.refuses(DatabaseError, "what waits longer than wait_timeout is told"):
        await ctx.soon(impatient.run(_save_plainly, 20), "the wait for another process has an end")
    child.tell("commit")
    await ctx.soon(task, "the transaction ends")
    ctx.expect(await ctx.store.stream("log").get_offset("reader"), 10, "nothing of what failed was done")
    ctx.expect(await impatient.run(_save_plainly, 20), True, "the store goes on")


async def _save_plainly(store: Store, offset: int) -> bool:
    return await store.stream("log").save_offset("reader", offset)


async def _transact(store: Store, process: int, times: int) -> None:
    async def one(task: int) -> None:
        for number in range(times):
            async with store.begin_tx() as tx:
                await tx.enqueue("jobs", [process, task, number])
                await tx.publish("events", [process, task, number])
            await give_way()

    await asyncio.gather(one(0), one(1))


@row(
    "TX-08",
    text="Concurrent transactions of several processes all land, each whole.",
    oracle="the jobs and the events of three processes with two tasks each",
    modes=("process",),
)
async def concurrent_transactions_of_several_processes_all_land(ctx: Context) -> None:
    times = 25
    children = await ctx.processes(3)
    _ = await ctx.race(*(child.run(_transact, number, times) for number, child in enumerate(children)))
    jobs = [(job.id, job.payload_as(list[int])) for job in await ctx.store.queue("jobs").list(limit=5_000)]
    events = [event.payload_as(list[int]) for event in await ctx.store.stream("events").read_since(0, 5_000)]
    wanted = [[process, task, number] for process in range(3) for task in range(2) for number in range(times)]
    ctx.expect(sorted(payload for _, payload in jobs), wanted, "every transaction landed")
    ctx.expect(sorted(events), wanted, "each of them whole")
    overlapped(ctx, [[id for id, payload in jobs if payload[0] == process] for process in range(3)])
