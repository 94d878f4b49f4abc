"""Row Q-08: a claim whose deadline passed."""

from alkstore import JobState, Queue, Store
from alkstore_contract_suite.context import MICRO, Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._queue import (
    LAPSED,
    STORED,
    later,
    read,
    states,
    take,
    take_nothing,
)


@row(
    "Q-08",
    text="At its deadline a row is claimable again, one microsecond before it is not.",
    oracle="the same job with attempts 2 and a new deadline",
    modes=("boundary",),
    kills=("lapsed-claim-never-returns",),
)
async def a_lapsed_claim_returns_at_its_deadline(ctx: Context) -> None:
    queue = ctx.store.queue(ctx.name("mail"), visibility_timeout=10)
    job_id = await queue.enqueue("work")
    first = await take(ctx, queue, worker_id="one")
    await ctx.advance(10 - MICRO)
    await take_nothing(ctx, queue, "one microsecond before its deadline a claim is live")
    await ctx.advance(MICRO)

    second = await take(ctx, queue, "at its deadline a row is claimable again", worker_id="two")

    ctx.expect((second.job.id, second.job.attempts), (job_id, 2), "the same row comes again, counted")
    ctx.expect(second.job.deadline, later(await ctx.now(), 10), "a new claim has a whole window")
    ctx.expect((second.job.worker_id, first.job.worker_id), ("two", "one"), "the row shows its new worker")
    await take_nothing(ctx, queue, "a row claimed again is held again")


@row(
    "Q-08",
    text="A lapsed row comes back to every other worker, without an admin call or a trace of its old one.",
    oracle="after the holder is gone a claim gives the job at its deadline",
    modes=("second", "reopen", "crash-drop", "crash-kill"),
)
async def a_lapsed_claim_returns_to_whoever_asks(ctx: Context) -> None:
    name = ctx.name("mail")
    job_id = await ctx.store.queue(name).enqueue("work", visibility_timeout=2)
    await take(ctx, ctx.store.queue(name))

    queue = (await ctx.turn()).queue(name)
    await take_nothing(ctx, queue, "a claim outlives its holder until its deadline")
    await ctx.advance(2)
    handle = await take(ctx, queue, "at its deadline a row is claimable again by anybody")
    ctx.expect((handle.job.id, handle.job.attempts), (job_id, 2), "the same row comes again, counted")
    ctx.expect(await handle.ack(), True, "the new claim is live")
    ctx.expect(await states(queue), {}, "acked is gone")


@row(
    "Q-08",
    text="A lapsed row is claimed at its old place in the order.",
    oracle="between rows of higher priority, of an earlier and of a later run_at",
    modes=("plain", "second"),
)
async def a_lapsed_row_keeps_its_place(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = ctx.store.queue(name)
    now = await ctx.now()
    lapsing = await queue.enqueue("lapsing", run_at=later(now, -10), visibility_timeout=1)
    await take(ctx, queue)
    after = await queue.enqueue("after", run_at=later(now, -9))
    before = await queue.enqueue("before", run_at=later(now, -11))
    higher = await queue.enqueue("higher", priority=1)
    lower = await queue.enqueue("lower", priority=-1, run_at=later(now, -100))
    await ctx.advance(1)

    found = [handle.job.id for handle in await (await ctx.turn()).queue(name).claim_batch(9)]

    ctx.expect(found, [higher, before, lapsing, after, lower], "a lapsed row keeps its place in the order")


@row(
    "Q-08",
    text="A lapsed row without attempts left is not given again: the next claim moves it to DEAD.",
    oracle="until a claim on its own queue it reads PROCESSING with the past deadline, then DEAD",
    modes=STORED,
    kills=("one-attempt-too-many", "exhausted-row-stranded"),
)
async def an_exhausted_row_goes_dead_at_the_next_claim(ctx: Context) -> None:
    name, elsewhere = ctx.name("mail"), ctx.name("post")
    job_id = await ctx.store.queue(name, max_attempts=2, visibility_timeout=3).enqueue("work")
    await take(ctx, ctx.store.queue(name))
    await ctx.advance(3)
    held = (await take(ctx, ctx.store.queue(name), "an attempt is left")).job

    store = await ctx.turn()
    queue = store.queue(name)
    await ctx.advance(3)
    await take_nothing(ctx, store.queue(elsewhere), "another queue is empty")
    ctx.expect(await store.queue(elsewhere).sweep_expired(), 0, "a sweep works on its own queue only")
    ctx.expect(await read(ctx, queue, job_id), held, "until then it reads PROCESSING with the past deadline")
    ctx.expect([job.id for job in await queue.list(state=JobState.PROCESSING)], [job_id], "and is listed so")
    await ctx.advance(4)
    await take_nothing(ctx, queue, "a row whose attempts are used up is not given again")
    dead = await read(ctx, queue, job_id, "an exhausted row is not lost")
    ctx.expect((dead.state, dead.last_error), (JobState.DEAD, LAPSED), "the next claim moves it to DEAD")
    ctx.expect(
        (dead.attempts, dead.died_at), (2, await ctx.now()), "it died at that claim, with its attempts"
    )
    ctx.expect(await queue.sweep_expired(), 0, "nobody moves it again")


@row(
    "Q-08",
    text="A sweep moves an exhausted row as well; a live last attempt is left to its holder.",
    oracle="one microsecond before the deadline nothing moves and the holder may ack, at it the sweep moves it",
    modes=("boundary",),
)
async def a_live_last_attempt_is_left_to_its_holder(ctx: Context) -> None:
    queue = ctx.store.queue(ctx.name("mail"), max_attempts=1, visibility_timeout=3)
    acked, lapsed = await queue.enqueue("acked"), await queue.enqueue("lapsed")
    holder = await take(ctx, queue)
    await take(ctx, queue)
    await ctx.advance(3 - MICRO)
    await take_nothing(ctx, queue, "a live last attempt is not given again")
    ctx.expect(await queue.sweep_expired(), 0, "a live last attempt is not swept")
    ctx.expect(await holder.ack(), True, "the holder of a last attempt may still ack")
    ctx.expect(await states(queue), {lapsed: JobState.PROCESSING}, "nothing moves before the deadline")
    await ctx.advance(MICRO)

    ctx.expect(await queue.sweep_expired(), 1, "at the deadline the sweep moves it")
    dead = await read(ctx, queue, lapsed)
    ctx.expect((dead.state, dead.last_error), (JobState.DEAD, LAPSED), "exhausted, and it says so")
    ctx.expect(acked in await states(queue), False, "acked is gone")


async def _exhausted(ctx: Context, store: Store, name: str, count: int) -> Queue:
    queue = store.queue(name, max_attempts=1, visibility_timeout=1)
    await queue.enqueue_batch(range(count), priority=5)
    ctx.expect(len(await queue.claim_batch(count)), count, "a batch takes all of them")
    await ctx.advance(1)
    return queue


@row(
    "Q-08",
    text="A claim moves at most 1,000 exhausted rows and never comes back short; no row is stranded.",
    oracle="how many are dead after each of three claims, and what the claims gave",
    modes=("plain", "second"),
    kills=("exhausted-row-stranded",),
)
async def a_claim_moves_a_thousand_and_never_comes_back_short(ctx: Context) -> None:
    name = ctx.name("mail")
    await _exhausted(ctx, ctx.store, name, 1_205)
    queue = (await ctx.turn()).queue(name)
    ready = await queue.enqueue_batch(["a", "b", "c", "d"])

    first = [handle.job.id for handle in await queue.claim_batch(3)]
    ctx.expect(first, ready[:3], "exhausted rows ahead never make a claim come back short")
    moved = (await queue.stats()).dead
    ctx.that(0 < moved <= 1_000, "a claim moves at most 1,000 exhausted rows", observed=moved)
    second = [handle.job.id for handle in await queue.claim_batch(3)]
    ctx.expect(second, ready[3:], "exhausted rows ahead never make a claim come back short")
    for _ in range(1_205):
        if (await queue.stats()).stale == 0:
            break
        await take_nothing(ctx, queue, "an exhausted row is not given again")
    ctx.expect((await queue.stats()).dead, 1_205, "no row is stranded: claims alone move them all")
