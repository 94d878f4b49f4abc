"""Rows Q-23, Q-24, Q-26 and Q-28: whole workers, transactions around them, and what may go wrong."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from alkstore import ClaimLost, DatabaseError, HandleConsumed, JobHandle, JobState, Queue, Store, Tx
from alkstore_contract_suite.context import MICRO, Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._queue import LAPSED, read, states, take, take_nothing

Step = Callable[[], Awaitable[None]]
Operation = Callable[[JobHandle], Awaitable[object]]


@row(
    "Q-23",
    text="No claim inside a transaction exists.",
    oracle="the transaction has no claiming verb",
    modes=("plain",),
)
async def a_transaction_cannot_claim(ctx: Context) -> None:
    verbs = ("claim", "claim_one", "claim_batch", "claims", "run_once")
    found = [verb for verb in verbs if hasattr(Tx, verb)]
    ctx.expect(found, [], "no claim inside a transaction exists")
    async with ctx.store.begin_tx() as tx:
        ctx.expect([verb for verb in verbs if hasattr(tx, verb)], [], "no claim inside a transaction exists")


@row(
    "Q-23",
    text="Tx.enqueue is claimable only after the commit; inside, Tx.get_job sees it.",
    oracle="reads inside and outside, and a waiting claim around the commit",
    modes=("plain", "second"),
)
async def a_job_of_a_transaction_is_claimable_after_its_commit(ctx: Context) -> None:
    name = ctx.name("mail")
    mine, other = ctx.store, (await ctx.turn()).queue(name)
    waiter = ctx.start(other.claim())
    await ctx.idle(waiter, "with nothing claimable a claim waits")
    async with mine.begin_tx() as tx:
        job_id = await tx.enqueue(name, {"n": 1}, priority=3)
        ids = await tx.enqueue_batch(mine.queue(name), [2, 3], delay=60)
        inside = await tx.get_job(name, job_id)
        found = inside and (inside.id, inside.payload, inside.state, inside.priority)
        ctx.expect(found, (job_id, {"n": 1}, JobState.PENDING, 3), "Tx.get_job sees its own job")
        ctx.expect(await tx.get_job(ctx.name("post"), job_id), None, "of its own queue only")
        ctx.expect(await other.get_job(job_id), None, "nobody else sees it before the commit")
        ctx.expect(await mine.queue(name).list(), [], "nobody else sees it before the commit")
        await ctx.idle(waiter, "an enqueue in an open transaction serves nobody")

    handle = await ctx.soon(waiter, "after the commit the job is claimable")
    ctx.expect(handle and handle.job.id, job_id, "after the commit the job is claimable")
    ctx.expect(list(await states(other)), [job_id, *ids], "after the commit every job of it is there")


@row(
    "Q-23",
    text="After a rollback there is no job.",
    oracle="reads and claims after a rollback by hand and by an exception",
    modes=("plain", "second", "reopen"),
    kills=("rolled-back-ack-stays",),
)
async def a_rollback_leaves_no_job_and_every_claim(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = ctx.store.queue(name)
    held = await queue.enqueue("held")
    handle = await take(ctx, queue)
    async with ctx.store.begin_tx() as tx:
        gone = [await tx.enqueue(queue, 1), *await tx.enqueue_batch(name, [2, 3])]
        await tx.ack(handle)
        await tx.rollback()
    ctx.expect(await queue.get_job(held), handle.job, "a rollback leaves the claim as it was")
    async with ctx.refuses(RuntimeError, "the body's own error comes through"), ctx.store.begin_tx() as tx:
        gone.append(await tx.enqueue(queue, 4))
        await tx.ack(handle)
        raise RuntimeError("the business failed")
    ctx.expect(await queue.get_job(held), handle.job, "a rollback leaves the claim as it was")
    ctx.expect(await handle.heartbeat(), True, "a rollback opens the handle again")

    queue = (await ctx.turn()).queue(name)
    ctx.expect(await states(queue), {held: JobState.PROCESSING}, "after a rollback there is no job")
    ctx.expect(
        [await queue.get_job(job_id) for job_id in gone], [None] * 4, "after a rollback there is no job"
    )
    await take_nothing(ctx, queue, "after a rollback there is no job")
    await ctx.advance(300)
    again = await take(ctx, queue, "a claim whose ack was rolled back lapses like any other")
    ctx.expect((again.job.id, again.job.attempts), (held, 2), "the same row comes again, counted")


@row(
    "Q-23",
    text="Tx.ack lands with the commit: business write and ack, or neither.",
    oracle="the row and the follow-up job before and after the commit, and after the turn",
    modes=("plain", "second", "reopen", "crash-drop", "crash-kill"),
    kills=("tx-ack-is-ignored", "tx-sees-what-it-acked"),
)
async def an_ack_in_a_transaction_lands_with_its_commit(ctx: Context) -> None:
    name, following = ctx.name("mail"), ctx.name("next")
    queue = ctx.store.queue(name)
    job_id = await queue.enqueue("work")
    handle = await take(ctx, queue)
    async with ctx.store.begin_tx() as tx:
        effect = await tx.enqueue(following, "effect")
        await tx.ack(handle)
        ctx.expect(await tx.get_job(name, job_id), None, "a transaction sees its own ack")
        ctx.expect(await queue.get_job(job_id), handle.job, "before the commit the claim is as it was")
        ctx.expect(await states(ctx.store.queue(following)), {}, "before the commit there is no effect")
        consumed = ctx.start(handle.ack())
        async with ctx.refuses(HandleConsumed, "an ack in an open transaction consumes the handle"):
            await consumed
    async with ctx.refuses(HandleConsumed, "after the commit the handle stays consumed"):
        await handle.ack()
    async with ctx.refuses(HandleConsumed, "after the commit the handle stays consumed"):
        await handle.heartbeat()

    store = await ctx.turn()
    ctx.expect(await store.queue(name).get_job(job_id), None, "the ack landed with the commit")
    ctx.expect(list(await states(store.queue(following))), [effect], "the effect landed with the commit")
    await ctx.advance(300)
    await take_nothing(ctx, store.queue(name), "an acked job never comes again")


@row(
    "Q-23",
    text="A claim acked in time is nobody else's though its deadline passes before the commit.",
    oracle="a claim and a sweep of another task past the deadline, which may wait for the commit",
    modes=("concurrent", "second"),
    kills=("tx-acked-row-lapses",),
)
async def an_ack_in_a_transaction_outlives_the_deadline(ctx: Context) -> None:
    name = ctx.name("mail")
    mine, other = ctx.store, (await ctx.turn()).queue(name)
    job_id = await other.enqueue("work", visibility_timeout=5)
    last = await other.enqueue("last", visibility_timeout=5, max_attempts=1)
    handles = await mine.queue(name).claim_batch(2)
    async with mine.begin_tx() as tx:
        for handle in handles:
            await tx.ack(handle)
        await ctx.advance(5)
        claiming, sweeping = ctx.start(other.claim_batch(2)), ctx.start(other.sweep_expired())
        await ctx.settle()
    claimed = await ctx.soon(claiming, "a claim beside a transaction ends")
    ctx.expect([handle.job.id for handle in claimed], [], "what was acked in time is given to nobody")
    ctx.expect(await ctx.soon(sweeping, "a sweep beside it ends"), 0, "nor swept")
    left = [await other.get_job(job_id), await other.get_job(last)]
    ctx.expect(left, [None, None], "the acks landed with the commit")


@row(
    "Q-23",
    text="Tx.ack of a claim that is not live raises ClaimLost, and the transaction goes on.",
    oracle="the typed error around the deadline and for a stale handle; what else the transaction did lands",
    modes=("boundary", "second"),
    kills=("tx-ack-is-ignored",),
)
async def an_ack_of_a_lost_claim_is_refused_in_a_transaction(ctx: Context) -> None:
    name, following = ctx.name("mail"), ctx.name("next")
    mine, other = ctx.store, (await ctx.turn()).queue(name)
    for lost in ("lapsed", "taken", "dead"):
        queue = mine.queue(name, visibility_timeout=5)
        job_id = await queue.enqueue("work")
        handle = await take(ctx, queue)
        await ctx.advance(5)
        if lost != "lapsed":
            live = await take(ctx, other)
            if lost == "dead":
                await live.fail()
        before = await read(ctx, other, job_id)
        async with mine.begin_tx() as tx:
            async with ctx.refuses(ClaimLost, f"Tx.ack of a claim that is {lost} raises ClaimLost"):
                await tx.ack(handle)
            effect = await tx.enqueue(following, lost)
        ctx.expect(await read(ctx, other, job_id), before, "a refused ack changes nothing")
        ctx.expect((await read(ctx, mine.queue(following), effect)).payload, lost, "the transaction goes on")
        await other.redrive(job_id)
        await ctx.advance(5)
        handle = await take(ctx, queue)
        await ctx.advance(5 - MICRO)
        async with mine.begin_tx() as tx:
            await tx.ack(handle)
        ctx.expect(await other.get_job(job_id), None, "one microsecond before the deadline Tx.ack lands")


@row(
    "Q-23",
    text="In async with handle, Tx.ack counts as settled by the body unless rolled back.",
    oracle="the row after each block, and no ClaimLost",
    modes=("plain", "second"),
)
async def an_ack_in_a_transaction_settles_the_block(ctx: Context) -> None:
    name = ctx.name("mail")
    mine, other = ctx.store, (await ctx.turn()).queue(name)
    queue = mine.queue(name)
    first = await queue.enqueue("committed")
    async with await take(ctx, queue) as handle, mine.begin_tx() as tx:
        await tx.ack(handle)
    ctx.expect(await other.get_job(first), None, "the commit settled the block")

    second = await queue.enqueue("rolled back")
    async with await take(ctx, queue) as handle, mine.begin_tx() as tx:
        await tx.ack(handle)
        await tx.rollback()
    ctx.expect(await other.get_job(second), None, "rolled back, the clean exit acks by itself")

    third = await queue.enqueue("failed")
    async with (
        ctx.refuses(RuntimeError, "the body's own error comes through"),
        await take(ctx, queue) as handle,
        mine.begin_tx() as tx,
    ):
        await tx.ack(handle)
        raise RuntimeError("the business failed")
    job = await read(ctx, other, third, "rolled back by an exception, the row is retried")
    ctx.expect(
        (job.state, job.attempts), (JobState.PENDING, 1), "rolled back by an exception, the row is retried"
    )


@row(
    "Q-24",
    text="Work is at-least-once: whenever the worker dies, no committed row is lost.",
    oracle="a death after each step of a worker; the row comes again and can be acked",
    modes=("reopen", "crash-drop", "crash-kill"),
)
async def a_worker_may_die_after_any_step(ctx: Context) -> None:
    steps: dict[str, Operation] = {
        "claim": lambda handle: handle.heartbeat(),
        "heartbeat": lambda handle: handle.heartbeat(20),
        "retry": lambda handle: handle.retry(error="again", delay=3),
        "release": lambda handle: handle.release(),
    }
    for step, call in steps.items():
        name = ctx.name("mail")
        job_id = await ctx.store.queue(name).enqueue(step, visibility_timeout=10)
        queue = (await ctx.turn()).queue(name)
        handle = await take(ctx, queue, "what was acknowledged survives a death")
        ctx.expect(await call(handle), True, f"a live {step} lands")
        queue = (await ctx.turn()).queue(name)
        await ctx.advance(20)
        again = await take(ctx, queue, f"a row comes again after a death that followed {step}")
        found = (again.job.id, again.job.payload, again.job.attempts)
        ctx.expect(found, (job_id, step, 1 if step == "release" else 2), "the same row, its attempts counted")
        ctx.expect(await again.ack(), True, "the next worker may ack it")
        queue = (await ctx.turn()).queue(name)
        await ctx.advance(1_000)
        await take_nothing(ctx, queue, "what was acked is done for good")


@row(
    "Q-24",
    text="A job that kills each of its workers is in the end dead, never delivered for ever.",
    oracle="exactly max_attempts claims, each followed by a death; then DEAD, and it says why",
    modes=("plain", "second", "reopen", "crash-drop", "crash-kill"),
    kills=("one-attempt-too-many", "attempts-not-counted", "exhausted-row-stranded"),
)
async def a_job_that_kills_its_workers_is_dead_in_the_end(ctx: Context) -> None:
    name = ctx.name("mail")
    job_id = await ctx.store.queue(name).enqueue("poison", max_attempts=4, visibility_timeout=10)
    other = await ctx.store.queue(name).enqueue("other", priority=-1)
    claims: list[tuple[int, int]] = []
    while len(claims) < 9 and (not claims or claims[-1][0] == job_id):
        handle = await take(ctx, (await ctx.turn()).queue(name), "a poison job does not hold the queue up")
        claims.append((handle.job.id, handle.job.attempts))
        await ctx.advance(10)

    expected = [(job_id, attempt) for attempt in (1, 2, 3, 4)] + [(other, 1)]
    ctx.expect(claims, expected, "a job is claimed as often as its budget says, each death counted")
    job = await read(ctx, ctx.store.queue(name), job_id)
    ctx.expect((job.state, job.last_error), (JobState.DEAD, LAPSED), "each row is in the end acked or dead")


@row(
    "Q-24",
    text="Each row is in the end acked or dead, and every job was handled at least once.",
    oracle="workers that fail, stall and die at random, until nothing is left",
    modes=("concurrent", "second"),
)
async def every_row_is_in_the_end_acked_or_dead(ctx: Context) -> None:
    name = ctx.name("mail")
    queues = [ctx.store.queue(name), (await ctx.turn()).queue(name)]
    ids = await queues[0].enqueue_batch(range(60), visibility_timeout=10, base_delay=1)
    seen, acked = dict.fromkeys(ids, 0), set[int]()

    def worker(queue: Queue) -> Callable[[Step], Awaitable[None]]:
        async def run(step: Step) -> None:
            await step()
            while (handle := await queue.claim_one()) is not None:
                await step()
                job_id, luck = handle.job.id, ctx.random.random()
                seen[job_id] += 1
                ctx.expect(seen[job_id], handle.job.attempts, "one holder at a time, each claim counted")
                if luck < 0.3 and await handle.ack():
                    acked.add(job_id)
                elif 0.3 <= luck < 0.6:
                    await handle.retry(error="again")

        return run

    await ctx.race_workers([worker(queues[at % 2]) for at in range(4)])
    for _ in range(20):
        await ctx.advance(30)
        for queue in queues:
            await worker(queue)(lambda: ctx.hold(0))
    dead = {job.id for job in await queues[1].list(limit=500) if job.state is JobState.DEAD}
    handled = ([job_id for job_id in ids if seen[job_id]], sorted(acked | dead))
    ctx.expect(handled, (ids, ids), "each row is handled, and in the end acked or dead")
    ctx.expect(set(await states(queues[1])), dead, "what was acked is gone, what is left is dead")


HANDLED: Final[tuple[Operation, ...]] = (
    lambda handle: handle.ack(),
    lambda handle: handle.retry(error="again", delay=0),
    lambda handle: handle.fail("never"),
    lambda handle: handle.release(),
    lambda handle: handle.heartbeat(),
)


async def _settle_some(ctx: Context, store: Store, name: str, ids: list[int]) -> None:
    handles = await store.queue(name).claim_batch(9)
    ctx.random.shuffle(handles)
    await asyncio.gather(*(ctx.random.choice(HANDLED)(handle) for handle in handles))


async def _clear_some(ctx: Context, store: Store, name: str, ids: list[int]) -> None:
    queue = store.queue(name)
    await queue.sweep_expired()
    await asyncio.gather(*(queue.cancel(job_id) for job_id in ctx.random.sample(ids, 3)))
    await queue.redrive(*ctx.random.sample(ids, 20))
    await queue.stats()


async def _move_one(ctx: Context, store: Store, name: str, ids: list[int]) -> None:
    handle = await store.queue(name).claim_one()
    if handle is not None:
        async with store.begin_tx() as tx:
            await tx.enqueue(name, "follows", delay=1)
            await tx.ack(handle)


@row(
    "Q-26",
    text="No deadlock, lock timeout or serialization failure surfaces from claims, settles and sweeps in any order.",
    oracle="every call of the race answers; the rows that are left add up",
    modes=("concurrent", "second"),
    kills=("contention-surfaces",),
)
async def any_mix_of_operations_surfaces_no_error(ctx: Context) -> None:
    name = ctx.name("mail")
    stores = [ctx.store, await ctx.turn()]
    ids = await stores[0].queue(name).enqueue_batch(range(120), visibility_timeout=2, expires=9)

    def racer(work: Callable[..., Awaitable[None]]) -> Callable[[Step], Awaitable[None]]:
        async def run(step: Step) -> None:
            for at in range(6):
                await step()
                try:
                    await work(ctx, stores[at % 2], name, ids)
                except DatabaseError as error:
                    ctx.that(False, "no contention surfaces as an error", observed=error)

        return run

    for _ in range(2):
        await ctx.race_workers([racer(work) for work in (_settle_some, _clear_some, _move_one) * 2])
        await ctx.advance(2)
    found = await stores[0].queue(name).stats()
    total = found.ready + found.delayed + found.processing + found.stale + found.dead
    ctx.expect(total, len(await states(stores[1].queue(name))), "after the race the rows add up")


@row(
    "Q-26",
    text="A batch of 40,000 works.",
    oracle="40,000 ids in order, claimed in one batch",
    modes=("plain",),
)
async def a_batch_of_forty_thousand_is_taken(ctx: Context) -> None:
    queue = ctx.store.queue(ctx.name("mail"))
    ids = await queue.enqueue_batch(range(40_000))
    ctx.expect(len(ids), 40_000, "a batch of 40,000 is stored")
    ctx.that(ids == sorted(set(ids)), "its ids are in payload order", observed=ids[:5])
    handles = await queue.claim_batch(50_000)
    ctx.expect(len(handles), 40_000, "a batch of 40,000 is claimed")
    ctx.that([handle.job.id for handle in handles] == ids, "in claim order", observed=handles[:5])
    ctx.expect(await handles[-1].ack(), True, "each of its claims is live")
