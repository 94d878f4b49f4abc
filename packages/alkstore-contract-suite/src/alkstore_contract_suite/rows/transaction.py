"""TX-01 and TX-02: all or nothing, and nothing before."""

from alkstore import Store
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.racing import Step
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._queue import STORED, read
from alkstore_contract_suite.rows._transaction import (
    EVERYTHING,
    NOTHING,
    look,
    prepare,
    write_everything,
)


@row(
    "TX-01",
    text="enqueue, outbox enqueue, publish, notify, ack and save_offset in one tx land together, at the commit.",
    oracle="nothing is seen and nobody woken before the commit; everything after it, in any store",
    modes=("plain", "second"),
    needs=("listen",),
    kills=("commit-loses-the-positions", "transactions-write-at-once"),
)
async def everything_lands_at_the_commit(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    handle = await prepare(ctx, mine)
    async with other.listen("channel") as wakes, other.stream("events").subscribe() as events:
        claims = [ctx.start(other.queue("jobs").claim()) for _ in range(3)]
        await ctx.settle()
        async with mine.begin_tx() as tx:
            await write_everything(tx, handle)
            await ctx.settle()
            ctx.expect(await look(other), NOTHING, "nothing of a transaction is seen before its commit")
            for claim in claims:
                ctx.still_waiting(claim, "a transaction wakes nobody before its commit")
            ctx.expect((await wakes.try_recv(), await events.try_recv()), (None, None), "nor does it notify")
        ctx.expect(await look(other), EVERYTHING, "everything is seen after the commit")
        handles = [await ctx.soon(claim, "the commit wakes the waiting claims") for claim in claims]
        ctx.expect([each and each.job.payload for each in handles], [1, 2, 3], "they get the jobs in order")
        ctx.that(await ctx.soon(wakes.recv(), "the commit wakes the channel"), "the commit wakes the channel")
        received = [await ctx.soon(events.recv(), "the commit brings the events") for _ in range(3)]
        ctx.expect([each and each.payload for each in received], [1, 2, 3], "the events come in order")


@row(
    "TX-01",
    text="What was committed stays, all of it.",
    oracle="everything is seen in a store that was opened later",
    modes=STORED,
)
async def everything_that_was_committed_stays(ctx: Context) -> None:
    handle = await prepare(ctx, ctx.store)
    async with ctx.store.begin_tx() as tx:
        await write_everything(tx, handle)
    ctx.expect(await look(await ctx.turn()), EVERYTHING, "what was committed stays, all of it")


@row(
    "TX-01",
    text="A commit is one instant: no task sees a part of it.",
    oracle="looks in both directions while transactions commit; once a part is seen the rest is seen too",
    modes=("concurrent", "second"),
    kills=("commit-in-two-steps",),
)
async def a_commit_is_one_instant(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    done: list[int] = []

    async def write(step: Step) -> None:
        for number in range(20):
            async with mine.begin_tx() as tx:
                await tx.publish("events", number)
                await step()
                await tx.enqueue("jobs", number)
                await step()
                await tx.outbox_enqueue("entries", number)
            await step()
            done.append(number)

    async def watch(step: Step) -> None:
        looks = (_count_jobs, _count_entries, _count_events)
        while len(done) < 20:
            for direction in (looks, looks[::-1]):
                seen = [await each(other) for each in direction]
                ctx.that(seen == sorted(seen), "who sees a part of a commit sees all of it", observed=seen)
                await step()

    await ctx.race_workers([write, watch, watch])
    ctx.expect((await _count_jobs(other), await _count_events(other)), (20, 20), "every commit landed")


async def _count_jobs(store: Store) -> int:
    return len(await store.queue("jobs").list())


async def _count_entries(store: Store) -> int:
    return len(await store.outbox("entries").jobs.list())


async def _count_events(store: Store) -> int:
    return len(await store.stream("events").read_since(0))


@row(
    "TX-01",
    text="Whoever a commit wakes sees what it committed.",
    oracle="a reader that reads in the very step in which it was woken",
    modes=("plain", "second"),
    needs=("listen",),
    kills=("wakes-before-the-commit",),
)
async def who_is_woken_sees_the_commit(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    async with other.listen("channel") as wakes:

        async def react() -> tuple[int, int]:
            await wakes.recv()
            return await _count_jobs(other), await _count_events(other)

        for number in range(1, 6):
            reacting = ctx.start(react())
            await ctx.settle()
            async with mine.begin_tx() as tx:
                await tx.notify("channel")
                await tx.enqueue("jobs", 1)
                await tx.publish("events", 1)
            seen = await ctx.soon(reacting, "the commit wakes the reader")
            ctx.expect(seen, (number, number), "who is woken by a commit sees what it committed")


@row(
    "TX-01",
    text="The caller's own SQL is part of it.",
    oracle="a business row beside the jobs: both after the commit, neither after the rollback",
    modes=("plain", "second", "reopen", "crash-drop", "crash-kill"),
    needs=("sql",),
)
async def business_writes_land_or_vanish_with_it(ctx: Context) -> None:
    business = ctx.factory.business()
    assert business is not None, "a column with sql has business data"
    async with ctx.store.begin_tx() as tx:
        await business.write(tx, "kept", "1")
        await tx.enqueue("jobs", 1)
    async with ctx.store.begin_tx() as tx:
        await tx.enqueue("jobs", 2)
        await business.write(tx, "lost", "2")
        await tx.rollback()
    store = await ctx.turn()
    read_back = (await business.read("kept"), await business.read("lost"))
    ctx.expect(read_back, ("1", None), "business data lands or vanishes with the transaction")
    payloads = [job.payload for job in await store.queue("jobs").list()]
    ctx.expect(payloads, [1], "jobs land or vanish with the business data")


@row(
    "TX-02",
    text="Nothing is visible to any other store or view before commit; the tx's own reads see its own writes.",
    oracle="every view of the store beside every read of the transaction",
    modes=("plain", "second"),
    kills=("tx-reads-miss-its-own-writes", "transactions-write-at-once"),
)
async def a_transaction_sees_its_own_writes_alone(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    await mine.stream("events").publish(0)
    tx = await mine.begin_tx()
    ids = [await tx.enqueue("jobs", 1), *await tx.enqueue_batch("jobs", [2], delay=60)]
    offset = await tx.publish("events", 1)
    await tx.save_offset("events", "consumer", 1)
    own = [await tx.get_job("jobs", id) for id in ids]
    ctx.expect([job and job.payload for job in own], [1, 2], "a transaction reads the jobs that it enqueued")
    ctx.expect(await tx.get_job("other", ids[0]), None, "a job is read by its own queue's name only")
    events = [event.payload for event in await tx.read_since("events", 0)]
    ctx.expect(events, [0, 1], "a transaction reads the events that it published")
    ctx.expect(await tx.get_offset("events", "consumer"), 1, "a transaction reads the position that it saved")
    rest = [event.offset for event in await tx.read_from_consumer("events", "consumer")]
    ctx.expect(rest, [offset], "a transaction reads on from the position that it saved")
    for store in (mine, other):
        ctx.expect(await store.queue("jobs").list(), [], "no view sees an uncommitted job")
        ctx.expect((await store.queues(), await store.outboxes()), ([], []), "no list sees it")
        ctx.expect(await _count_events(store), 1, "no view sees an uncommitted event")
        ctx.expect(await store.stream("events").get_offset("consumer"), 0, "nor an uncommitted position")
    await tx.commit()
    ctx.expect((await read(ctx, other.queue("jobs"), ids[0])).payload, 1, "after the commit it is seen")


@row(
    "TX-02",
    text="A read of a tx sees what others had committed when that read began.",
    oracle="a sibling's commit between two reads is seen by the second one, unless the sibling had to wait",
    modes=("plain", "second"),
    kills=("tx-reads-a-snapshot",),
)
async def a_transaction_reads_what_is_committed(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    first = await other.queue("jobs").enqueue("before")
    async with mine.begin_tx() as tx:
        ctx.that(await tx.get_job("jobs", first), "what was committed before is seen")
        ctx.expect(await tx.read_since("events", 0), [], "there is no event yet")
        sibling = ctx.start(other.stream("events").publish("meanwhile"))
        await ctx.settle()
        landed = sibling.done()
        seen = [event.payload for event in await tx.read_since("events", 0)]
        allowed = {"others land meanwhile": (True, ["meanwhile"]), "others wait": (False, [])}
        ctx.among((landed, seen), allowed, "a read sees what others had committed when it began")
    await ctx.soon(sibling, "the sibling's write lands")
    ctx.expect(await _count_events(mine), 1, "the sibling's write lands")
