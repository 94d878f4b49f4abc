"""Rows Q-18 to Q-20: cancelling, listing, redriving, purging, counting."""

import functools
from collections.abc import Awaitable, Callable
from datetime import timedelta

from alkstore import JobState, Queue, QueueStats
from alkstore_contract_suite.context import MICRO, Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._queue import STORED, bury, later, read, seconds, states, take, take_nothing

Step = Callable[[], Awaitable[None]]


@row(
    "Q-18",
    text="cancel removes a PENDING row: ready, delayed, expired, retried, redriven.",
    oracle="True once and the row gone, then False",
    modes=STORED,
)
async def a_pending_row_is_cancelled(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = ctx.store.queue(name)
    retried = await queue.enqueue("retried")
    await (await take(ctx, queue)).retry(delay=60)
    released = await queue.enqueue("released")
    await (await take(ctx, queue)).release()
    await queue.cancel(released)
    redriven = await bury(ctx, queue)
    await queue.redrive(redriven)
    ids = [retried, redriven, await queue.enqueue("ready"), await queue.enqueue("delayed", delay=60)]
    ids.append(await queue.enqueue("expired", expires=0))
    control = await queue.enqueue("control")

    queue = (await ctx.turn()).queue(name)
    for job_id in ids:
        ctx.expect(await queue.cancel(job_id), True, "a pending row is cancelled")
        ctx.expect(await queue.get_job(job_id), None, "a cancelled row is gone")
        ctx.expect(await queue.cancel(job_id), False, "an absent row is not cancelled")
    ctx.expect(await states(queue), {control: JobState.PENDING}, "a cancel removes its own row only")
    ctx.expect((await take(ctx, queue)).job.id, control, "what was not cancelled is claimable")
    await ctx.advance(100)
    await take_nothing(ctx, queue, "a cancelled job never comes")


@row(
    "Q-18",
    text="A PROCESSING row, live or lapsed, a dead or an absent one is not cancelled.",
    oracle="False and an unchanged row; the holder's ack lands",
    modes=("plain", "second"),
    kills=("cancel-takes-processing",),
)
async def a_held_or_dead_row_is_not_cancelled(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = ctx.store.queue(name)
    dead = await bury(ctx, queue)
    lapsed = await queue.enqueue("lapsed", visibility_timeout=1)
    live = await queue.enqueue("live")
    await take(ctx, queue)
    holder = await take(ctx, queue)
    await ctx.advance(1)
    before = await queue.list()

    other = (await ctx.turn()).queue(name)
    for job_id in (dead, lapsed, live, live + 1):
        ctx.expect(await other.cancel(job_id), False, "only a pending row is cancelled")
    ctx.expect(await other.list(), before, "a refused cancel changes nothing")
    ctx.expect(await holder.ack(), True, "the holder's claim is untouched")
    ctx.expect((await take(ctx, other)).job.id, lapsed, "a lapsed row comes again though a cancel was tried")


@row(
    "Q-18",
    text="Against a claim exactly one wins.",
    oracle="the ids cancelled and the ids claimed are disjoint and together all",
    modes=("concurrent", "second"),
    kills=("cancel-takes-processing",),
)
async def a_cancel_and_a_claim_never_both_win(ctx: Context) -> None:
    name = ctx.name("mail")
    mine, other = ctx.store.queue(name), (await ctx.turn()).queue(name)
    ids = await mine.enqueue_batch(range(60))
    shuffled = ctx.random.sample(ids, len(ids))

    def canceller(queue: Queue, wanted: list[int]) -> Callable[[Step], Awaitable[list[int]]]:
        async def run(step: Step) -> list[int]:
            won = []
            for job_id in wanted:
                await step()
                if await queue.cancel(job_id):
                    won.append(job_id)
            return won

        return run

    async def claimer(step: Step) -> list[int]:
        won: list[int] = []
        await step()
        while (handle := await mine.claim_one()) is not None:
            won.append(handle.job.id)
            await step()
            ctx.expect(await handle.ack(), True, "who claimed a job may ack it")
        return won

    workers = [canceller(other, shuffled[:40]), claimer, canceller(mine, shuffled[20:]), claimer]
    won = [job_id for each in await ctx.race_workers(workers) for job_id in each]
    ctx.expect(sorted(won), ids, "of a cancel and a claim exactly one wins")
    ctx.expect(await states(other), {}, "every job was claimed or cancelled")


async def _pages(ctx: Context, queue: Queue, state: JobState | None, error: str | None = None) -> list[int]:
    """Read every page; gives the ids."""
    found: list[int] = []
    while page := await queue.list(state=state, error=error, after=found[-1] if found else 0, limit=7):
        ctx.that(len(page) <= 7, "a page has at most limit rows", observed=len(page))
        found += [job.id for job in page]
    return found


@row(
    "Q-19",
    text="list pages by id over all states or one, and by a part of the error's text.",
    oracle="pages of seven, joined, against all ids in order",
    modes=STORED,
)
async def a_list_pages_by_id(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = ctx.store.queue(name)
    ids = await queue.enqueue_batch(range(40))
    kinds: dict[JobState, list[int]] = {state: [] for state in JobState}
    for handle in await queue.claim_batch(30):
        state = ctx.random.choice(list(JobState))
        kinds[state].append(handle.job.id)
        if state is JobState.DEAD:
            await handle.fail(f"50% of {handle.job.id}_é")
        elif state is JobState.PENDING:
            await handle.retry(delay=5, error="later")
    kinds[JobState.PENDING] += ids[30:]

    pages = functools.partial(_pages, ctx, (await ctx.turn()).queue(name))
    ctx.expect(await pages(None), ids, "a list pages by id over all states")
    for state, wanted in kinds.items():
        ctx.expect(await pages(state), sorted(wanted), "a list pages by id over one state")
    ctx.expect(await pages(None, "0% of "), sorted(kinds[JobState.DEAD]), "by a part of the error's text")
    retried = sorted(set(kinds[JobState.PENDING]) - set(ids[30:]))
    ctx.expect(await pages(JobState.PENDING, "later"), retried, "by a part of the error's text, in one state")
    for error in ("LATER", "0_ of ", "%", "_é_"):
        held = sorted(kinds[JobState.DEAD]) if error == "%" else []
        ctx.expect(await pages(None, error), held, "the text is compared as it is, without wildcards")


@row(
    "Q-19",
    text="A list has at most limit rows after an id; every 64-bit value has a meaning.",
    oracle="lists with limits and positions at their extremes",
    modes=("plain", "second"),
)
async def a_list_is_total(ctx: Context) -> None:
    name = ctx.name("mail")
    ids = await ctx.store.queue(name).enqueue_batch(range(120))

    queue = (await ctx.turn()).queue(name)
    for after, limit, expected in (
        (0, 0, []),
        (0, -1, []),
        (0, -(2**63), []),
        (0, 1, ids[:1]),
        (ids[0], 2, ids[1:3]),
        (ids[-1], 9, []),
        (-(2**63), 2**63 - 1, ids),
        (2**63 - 1, 9, []),
    ):
        found = [job.id for job in await queue.list(after=after, limit=limit)]
        ctx.expect(found, expected, "a list has at most limit rows, those after an id, in id order")
    ctx.expect([job.id for job in await queue.list()], ids[:100], "a page has 100 rows by default")
    ctx.expect(await queue.list(state=JobState.DEAD), [], "no row in that state: an empty list")


@row(
    "Q-19",
    text="redrive makes dead rows PENDING: run_at now, attempts 0, no expiry, no errors; the rest stays.",
    oracle="every field read back, the count, and a whole new budget",
    modes=STORED,
    kills=("redrive-keeps-attempts",),
)
async def a_redriven_job_starts_anew(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = ctx.store.queue(name, visibility_timeout=7, max_attempts=2, base_delay=0)
    job_id = await queue.enqueue({"n": 1}, priority=5, headers={"trace": "7"}, expires=2)
    await (await take(ctx, queue)).retry(error="one")
    await (await take(ctx, queue)).retry(error="two")
    dead = await read(ctx, queue, job_id)
    alive = await queue.enqueue("alive")
    await ctx.advance(3)
    now = await ctx.now()
    ctx.expect(await queue.redrive(alive, job_id, job_id, alive + 9), 1, "redrive says how many it moved")

    queue = (await ctx.turn()).queue(name)
    job = await read(ctx, queue, job_id)
    found = (job.state, job.run_at, job.attempts, job.expires_at)
    ctx.expect(found, (JobState.PENDING, now, 0, None), "pending now, untried, without expiry")
    ctx.expect(
        (job.retry_error, job.last_error, job.died_at), (None, None, None), "a redriven job has no errors"
    )
    kept = (job.id, job.priority, job.payload, dict(job.headers), job.created_at)
    ctx.expect(kept, (job_id, 5, {"n": 1}, {"trace": "7"}, dead.created_at), "the rest stays")
    stamps = (job.visibility_timeout, job.max_attempts, job.base_delay)
    ctx.expect(stamps, (seconds(7), 2, seconds(0)), "the stamps stay")
    for attempt in (1, 2):
        handle = await take(ctx, queue, "a redriven job has its whole budget")
        ctx.expect(
            (handle.job.id, handle.job.attempts), (job_id, attempt), "a redriven job has its whole budget"
        )
        await handle.retry(delay=0)
    ctx.expect((await read(ctx, queue, job_id)).state, JobState.DEAD, "and no more than that")


@row(
    "Q-19",
    text="redrive moves many at once and touches only dead rows of its own queue.",
    oracle="the count and the states of all rows; concurrent redrives count each row once",
    modes=("plain", "second"),
)
async def a_redrive_touches_dead_rows_only(ctx: Context) -> None:
    name, elsewhere = ctx.name("mail"), ctx.name("post")
    queue = ctx.store.queue(name)
    dead = [await bury(ctx, queue) for _ in range(5)]
    foreign = await bury(ctx, ctx.store.queue(elsewhere))
    held = await queue.enqueue("held")
    await take(ctx, queue)
    pending = await queue.enqueue("pending", delay=60)

    other = (await ctx.turn()).queue(name)
    ctx.expect(await other.redrive(), 0, "a redrive of nothing moves nothing")
    ctx.expect(await other.redrive(held, pending, foreign), 0, "a redrive moves dead rows of its own queue")
    moved = await ctx.race(other.redrive(*dead[:4]), queue.redrive(*dead[1:4]), other.redrive(dead[0]))
    ctx.expect(sum(moved), 4, "concurrent redrives count each row once")
    found = {job_id: state.name for job_id, state in (await states(other)).items()}
    expected = dict.fromkeys(dead[:4], "PENDING") | {dead[4]: "DEAD", held: "PROCESSING", pending: "PENDING"}
    ctx.expect(found, expected, "a redrive touches its own ids only")
    taken = [handle.job.id for handle in await other.claim_batch(9)]
    ctx.expect(taken, dead[:4], "what was redriven is claimable now")


@row(
    "Q-19",
    text="purge_dead deletes this queue's dead rows that died longer ago than that; 0 or less deletes all.",
    oracle="counts and what is left, one microsecond around the age",
    modes=("boundary", "second", "reopen"),
)
async def a_purge_deletes_what_died_long_ago(ctx: Context) -> None:
    name, elsewhere = ctx.name("mail"), ctx.name("post")
    queue = ctx.store.queue(name)
    first = await bury(ctx, queue)
    await ctx.advance(MICRO)
    second = await bury(ctx, queue)
    held, foreign = await queue.enqueue("held"), await bury(ctx, ctx.store.queue(elsewhere))
    await take(ctx, queue)
    await ctx.advance(10 - MICRO)

    store = await ctx.turn()
    queue = store.queue(name)
    ctx.expect(await queue.purge_dead(older_than=10), 0, "a row that died exactly that long ago stays")
    await ctx.advance(MICRO)
    ctx.expect(await queue.purge_dead(older_than=seconds(10)), 1, "a row that died longer ago is deleted")
    ctx.expect(list(await states(queue)), [second, held], "the first to die goes first")
    third = await bury(ctx, queue)
    ctx.expect(
        await queue.purge_dead(older_than=2**63 // 1_000_000), 0, "an age before all time deletes nothing"
    )
    ctx.expect(
        await queue.purge_dead(older_than=timedelta(days=-7)), 2, "an age of 0 or less deletes all dead rows"
    )
    ctx.expect(await states(queue), {held: JobState.PROCESSING}, "a purge leaves what lives")
    ctx.expect(await queue.purge_dead(older_than=0), 0, "nothing is purged twice")
    ctx.expect(
        [await queue.redrive(job_id) for job_id in (first, second, third)], [0, 0, 0], "purged is gone"
    )
    ctx.expect(list(await states(store.queue(elsewhere))), [foreign], "a purge works on its own queue only")


@row(
    "Q-20",
    text="stats at a quiet moment: ready, delayed, processing, stale and dead add up to the rows.",
    oracle="one row and more of every kind; what a claim then gives is ready",
    modes=STORED,
    kills=("expired-counted-as-ready",),
)
async def stats_say_what_a_claim_would_make_of_the_rows(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = ctx.store.queue(name, visibility_timeout=5, max_attempts=2)
    await bury(ctx, queue)
    for window, expires in ((5, 2), (99, None), (99, 2), (5, None)):
        await queue.enqueue("claimed", visibility_timeout=window, expires=expires)
    await queue.enqueue("exhausted", max_attempts=1)
    ctx.expect(len(await queue.claim_batch(5)), 5, "all of them are claimed")
    await queue.enqueue_batch(range(3), expires=3)
    await queue.enqueue("delayed, then expired", delay=50, expires=4)
    await queue.enqueue("delayed", delay=6)
    await queue.enqueue("due", delay=4)
    await ctx.advance(5)
    await queue.enqueue("new")

    queue = (await ctx.turn()).queue(name)
    found = await queue.stats()
    counts = (found.ready, found.delayed, found.processing, found.stale, found.dead)
    ctx.expect(counts, (3, 1, 2, 6, 1), "each row is counted as what a claim would make of it")
    ctx.expect(sum(counts), len(await queue.list()), "the five add up to the queue's rows")
    ctx.expect(found.oldest_ready_age, seconds(5), "the age is that of the least run_at among the ready")
    ctx.expect(await queue.stats(), found, "looking changes nothing")
    ctx.expect(len(await queue.claim_batch(99)), found.ready, "ready is what a claim could take now")


@row(
    "Q-20",
    text="An unknown queue is zeros; oldest_ready_age is None if none is ready.",
    oracle="the whole value, before, while and after there is a row",
    modes=("plain", "second"),
)
async def an_unknown_queue_is_zeros(ctx: Context) -> None:
    name = ctx.name("mail")
    zeros = QueueStats(ready=0, delayed=0, processing=0, stale=0, dead=0, oldest_ready_age=None)
    queue = (await ctx.turn()).queue(name)
    ctx.expect(await queue.stats(), zeros, "an unknown queue is zeros")
    await ctx.store.queue(ctx.name("post")).enqueue(1)
    job_id = await queue.enqueue(1, run_at=later(await ctx.now(), -2.000_001))
    found = await queue.stats()
    ctx.expect((found.ready, found.oldest_ready_age), (1, seconds(2.000_001)), "the age is now − run_at")
    handle = await take(ctx, queue)
    found = await queue.stats()
    ctx.expect((found.processing, found.oldest_ready_age), (1, None), "none ready: no age")
    await handle.ack()
    ctx.expect(await queue.stats(), zeros, "an emptied queue is zeros")
    ctx.expect(await queue.get_job(job_id), None, "an acked job has no row")


@row(
    "Q-20",
    text="A row changes its count at its instant, not one microsecond before.",
    oracle="stats around run_at, expires_at and deadlines",
    modes=("boundary",),
    kills=("expired-counted-as-ready",),
)
async def a_row_changes_its_count_at_its_instant(ctx: Context) -> None:
    queue = ctx.store.queue(ctx.name("mail"))
    await queue.enqueue("lapsing", visibility_timeout=1, expires=3, priority=1)
    await queue.enqueue("exhausting", visibility_timeout=4, max_attempts=1, priority=1)
    await queue.claim_batch(2)
    await queue.enqueue("due", delay=2)

    async def counts(passed: float) -> tuple[int, int, int, int]:
        await ctx.advance(passed)
        found = await queue.stats()
        return found.ready, found.delayed, found.processing, found.stale

    ctx.expect(await counts(1 - MICRO), (0, 1, 2, 0), "one microsecond before its deadline a claim is live")
    ctx.expect(await counts(MICRO), (1, 1, 1, 0), "at its deadline a lapsed row is ready")
    ctx.expect(await counts(1 - MICRO), (1, 1, 1, 0), "one microsecond before its run_at a job is delayed")
    ctx.expect(await counts(MICRO), (2, 0, 1, 0), "at its run_at a job is ready")
    ctx.expect(await counts(1 - MICRO), (2, 0, 1, 0), "one microsecond before its expiry a row is ready")
    ctx.expect(await counts(MICRO), (1, 0, 1, 1), "at its expiry a row is stale")
    ctx.expect(await counts(1 - MICRO), (1, 0, 1, 1), "one microsecond before its deadline a claim is live")
    ctx.expect(await counts(MICRO), (1, 0, 0, 2), "at its deadline an exhausted row is stale")
