"""Rows Q-13, Q-16 and Q-17: dead, expired, swept."""

from collections.abc import Awaitable, Callable

from alkstore import JobState
from alkstore_contract_suite.context import MICRO, Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._queue import (
    EXPIRED,
    LAPSED,
    STORED,
    drain,
    later,
    read,
    seconds,
    states,
    take,
    take_nothing,
)

Step = Callable[[], Awaitable[None]]


@row(
    "Q-13",
    text="fail: DEAD at once, stamps kept, never claimed again, seen by get_job and list.",
    oracle="every field of the row read back; claims, sweeps and cancels long after leave it",
    modes=STORED,
    kills=("dead-row-vanishes",),
)
async def a_failed_job_is_dead_and_kept(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = ctx.store.queue(name, visibility_timeout=6, max_attempts=8, base_delay=0.5)
    job_id = await queue.enqueue({"n": 1}, priority=-2, headers={"trace": "7"}, expires=50)
    first = await read(ctx, queue, job_id)
    handle = await take(ctx, queue)
    await ctx.advance(1)
    died = await ctx.now()
    ctx.expect(await handle.fail("no such address"), True, "a live fail lands")

    queue = (await ctx.turn()).queue(name)
    job = await read(ctx, queue, job_id, "a dead row is kept")
    found = (job.state, job.last_error, job.died_at, job.attempts)
    ctx.expect(found, (JobState.DEAD, "no such address", died, 1), "dead at once, with its error and instant")
    stamps = (job.visibility_timeout, job.max_attempts, job.base_delay, job.expires_at, job.priority)
    ctx.expect(stamps, (seconds(6), 8, seconds(0.5), first.expires_at, -2), "a dead row keeps its stamps")
    content = (job.payload, dict(job.headers), job.created_at, job.run_at)
    ctx.expect(
        content, ({"n": 1}, {"trace": "7"}, first.created_at, first.run_at), "a dead row keeps its content"
    )
    await ctx.advance(10_000)
    await take_nothing(ctx, queue, "a dead row is never claimed")
    ctx.expect(await queue.sweep_expired(), 0, "a dead row is not swept again")
    ctx.expect(await queue.list(state=JobState.DEAD), [job], "a dead row is listed, unchanged")
    ctx.expect(await read(ctx, queue, job_id), job, "a dead row is read, unchanged")


@row(
    "Q-13",
    text="last_error and died_at are None exactly while the row lives.",
    oracle="both fields in every state of one job's life, through a redrive to a second death",
    modes=("plain", "second"),
    kills=("dead-row-vanishes",),
)
async def a_living_row_has_no_death(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = (await ctx.turn()).queue(name)
    job_id = await queue.enqueue(1, visibility_timeout=5, max_attempts=5)

    async def alive(where: str) -> None:
        job = await read(ctx, queue, job_id)
        ctx.expect((job.last_error, job.died_at), (None, None), f"a living row has no death: {where}")

    await alive("new")
    handle = await take(ctx, queue)
    await alive("claimed")
    await handle.retry(error="once", delay=0)
    await alive("retried")
    await (await take(ctx, queue)).release()
    await alive("released")
    await take(ctx, queue)
    await ctx.advance(5)
    await alive("lapsed")
    for turn in range(2):
        await (await take(ctx, queue)).fail("over")
        job = await read(ctx, queue, job_id)
        ctx.expect((job.last_error, job.died_at), ("over", await ctx.now()), "a dead row has both")
        ctx.expect(await queue.redrive(job_id), 1, "a dead row is redriven")
        await alive(f"redriven {turn}")
        await ctx.advance(1)


@row(
    "Q-16",
    text="A row is never claimed from its expires_at on; one microsecond before it still is.",
    oracle="claims around the instant; unswept the row reads as before",
    modes=("boundary",),
    kills=("expired-row-claimed",),
)
async def an_expired_row_is_never_claimed(ctx: Context) -> None:
    queue = ctx.store.queue(ctx.name("mail"))
    now = await ctx.now()
    taken = await queue.enqueue("taken", expires=5)
    left = await queue.enqueue("left", expires=5)
    late = await queue.enqueue("late", expires=5, delay=5)
    later_still = await queue.enqueue("later", expires=5, run_at=later(now, 9))
    before = {job.id: job for job in await queue.list()}
    await ctx.advance(5 - MICRO)
    ctx.expect((await take(ctx, queue)).job.id, taken, "one microsecond before its expiry a job is claimable")
    await ctx.advance(MICRO)
    await take_nothing(ctx, queue, "from its expiry on a job is never claimed")
    await ctx.advance(4)
    ctx.expect(await queue.claim_batch(9), [], "from its expiry on a job is never claimed, ready or not")
    control = await queue.enqueue("control", priority=-5)
    ctx.expect((await take(ctx, queue)).job.id, control, "expired rows do not block the queue")
    for job_id in (left, late, later_still):
        job = await read(ctx, queue, job_id, "an expired row stays until it is swept")
        ctx.expect(job, before[job_id], "unswept an expired row reads as before")


@row(
    "Q-16",
    text="However many expired rows stand ahead of ready ones, claims never come back short.",
    oracle="a batch of all ready rows behind 1,500 expired ones, and single claims after it",
    modes=("plain", "second"),
    kills=("expired-row-claimed",),
)
async def expired_rows_ahead_never_shorten_a_claim(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = ctx.store.queue(name)
    await queue.enqueue_batch(range(1_500), priority=1, expires=2)
    await ctx.advance(2)
    ready = await queue.enqueue_batch(range(9))
    await queue.enqueue_batch(range(300), expires=-1)
    ready += await queue.enqueue_batch(range(3), priority=-1)

    queue = (await ctx.turn()).queue(name)
    found = [handle.job.id for handle in await queue.claim_batch(8)]
    ctx.expect(found, ready[:8], "expired rows ahead never make a claim come back short")
    ctx.expect(await drain(queue), ready[8:], "expired rows ahead never make a claim come back empty")
    ctx.expect((await queue.stats()).stale, 1_800, "unswept the expired rows are still there")


@row(
    "Q-16",
    text="A holder may settle and heartbeat a job that expired while processing.",
    oracle="each operation after the expiry, within the claim; the row afterwards",
    modes=("plain", "second"),
)
async def a_holder_may_settle_what_expired(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = ctx.store.queue(name, visibility_timeout=60, expires=1)
    ids = [await queue.enqueue(n) for n in range(5)]
    acked, failed, retried, released, beating = await queue.claim_batch(5)
    await ctx.advance(2)
    ctx.expect(await beating.heartbeat(100), True, "a holder may heartbeat what expired while processing")
    ctx.expect(await acked.ack(), True, "a holder may ack what expired while processing")
    ctx.expect(await failed.fail("why"), True, "a holder may fail what expired while processing")
    ctx.expect(await retried.retry(delay=0), True, "a holder may retry what expired while processing")
    ctx.expect(await released.release(), True, "a holder may release what expired while processing")

    queue = (await ctx.turn()).queue(name)
    await take_nothing(ctx, queue, "an expired row is never claimed, though it was given back")
    found = await states(queue)
    expected = dict(zip(ids[1:], ["DEAD", "PENDING", "PENDING", "PROCESSING"], strict=True))
    ctx.expect({job_id: state.name for job_id, state in found.items()}, expected, "each outcome landed")
    job = await read(ctx, queue, ids[1])
    ctx.expect(job.last_error, "why", "a failure keeps its own error")
    ctx.expect(await queue.sweep_expired(), 2, "what was given back expired is swept, what is held is not")
    ctx.expect(await beating.ack(), True, "the claim of an expired job is live for its window")


@row(
    "Q-16",
    text="A row that expired and whose claim lapsed is not claimed, and not stranded either.",
    oracle="claims give nothing; a sweep moves it to DEAD",
    modes=STORED,
    kills=("expired-row-claimed", "expired-processing-row-stranded"),
)
async def a_lapsed_expired_row_is_no_zombie(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = ctx.store.queue(name, visibility_timeout=5, max_attempts=9)
    job_id = await queue.enqueue("work", expires=3)
    held = (await take(ctx, queue)).job

    queue = (await ctx.turn()).queue(name)
    await ctx.advance(5)
    await take_nothing(ctx, queue, "an expired row is not claimed when its claim lapses")
    ctx.expect(await queue.claim_batch(9), [], "an expired row is not claimed when its claim lapses")
    ctx.expect(await read(ctx, queue, job_id), held, "unswept it reads as before")
    ctx.expect((await queue.stats()).stale, 1, "it waits to be swept")
    ctx.expect(await queue.sweep_expired(), 1, "no row is stranded: a sweep moves it")
    job = await read(ctx, queue, job_id)
    ctx.expect((job.state, job.last_error), (JobState.DEAD, EXPIRED), "it died of its expiry")


@row(
    "Q-17",
    text="A sweep moves every row that qualifies to DEAD, says why, leaves the others and says how many.",
    oracle="the state and last_error of one row of every kind, this queue only",
    modes=STORED,
    kills=("expired-processing-row-stranded", "sweep-moves-live-claims"),
)
async def a_sweep_moves_what_qualifies(ctx: Context) -> None:
    name, elsewhere = ctx.name("mail"), ctx.name("post")
    queue = ctx.store.queue(name, visibility_timeout=5)
    dead = await queue.enqueue("dead", priority=9)
    await (await take(ctx, queue)).fail("why")
    lapsed_expired = await queue.enqueue("lapsed expired", expires=2, priority=8)
    exhausted = await queue.enqueue("exhausted", max_attempts=1, priority=8)
    lapsed = await queue.enqueue("lapsed", priority=8)
    live_expired = await queue.enqueue("live expired", expires=2, visibility_timeout=99, priority=8)
    live_last = await queue.enqueue("live", max_attempts=1, visibility_timeout=99, priority=8)
    ctx.expect(len(await queue.claim_batch(5)), 5, "all of them are claimed")
    pending = await queue.enqueue("pending", expires=5)
    delayed = await queue.enqueue("delayed", expires=1, delay=60)
    ready = await queue.enqueue("ready", expires=99)
    other = await ctx.store.queue(elsewhere).enqueue("other", expires=0)

    store = await ctx.turn()
    queue = store.queue(name)
    await ctx.advance(5)
    ctx.expect(await queue.sweep_expired(), 4, "a sweep says how many rows it moved")
    now = await ctx.now()
    found = {job.id: (job.state.name, job.last_error, job.died_at == now) for job in await queue.list()}
    gone = ("DEAD", EXPIRED, True)
    stays = ("PROCESSING", None, False)
    moved = {lapsed_expired: gone, exhausted: ("DEAD", LAPSED, True), pending: gone, delayed: gone}
    left: dict[int, object] = {dead: ("DEAD", "why", False), ready: ("PENDING", None, False)}
    left |= dict.fromkeys((lapsed, live_expired, live_last), stays)
    ctx.expect(found, moved | left, "a sweep moves what qualifies, and says why")
    ctx.expect(await queue.sweep_expired(), 0, "a second sweep finds nothing")
    ctx.expect(await states(store.queue(elsewhere)), {other: JobState.PENDING}, "this queue only")


@row(
    "Q-17",
    text="Nothing sweeps by itself.",
    oracle="expired and exhausted rows long after, beside claims, settles and reads of everything else",
    modes=("plain", "second", "reopen"),
)
async def nothing_sweeps_by_itself(ctx: Context) -> None:
    name, elsewhere = ctx.name("mail"), ctx.name("post")
    queue = ctx.store.queue(name, visibility_timeout=5)
    held = await queue.enqueue("held", max_attempts=1)
    await take(ctx, queue)
    await queue.enqueue_batch(["a", "b"], expires=3)
    before = await queue.list()

    store = await ctx.turn()
    queue = store.queue(name)
    for _ in range(5):
        await ctx.advance(86_400)
        await store.queue(elsewhere).enqueue("other")
        await (await take(ctx, store.queue(elsewhere))).ack()
        await store.queue(elsewhere).sweep_expired()
        await queue.stats()
    ctx.expect(await queue.list(), before, "nothing sweeps by itself, however long it takes")
    ctx.expect(await queue.sweep_expired(), 3, "the caller's own sweep moves them")
    ctx.expect((await read(ctx, queue, held)).last_error, LAPSED, "the caller's own sweep moves them")


@row(
    "Q-17",
    text="A row qualifies for a sweep at its instant, not one microsecond before.",
    oracle="sweeps around expires_at and around a deadline",
    modes=("boundary",),
)
async def a_row_is_swept_at_its_instant(ctx: Context) -> None:
    queue = ctx.store.queue(ctx.name("mail"), visibility_timeout=5)
    exhausted = await queue.enqueue("exhausted", max_attempts=1)
    both = await queue.enqueue("both", expires=4)
    await queue.claim_batch(2)
    expiring = await queue.enqueue("expiring", expires=4)
    await ctx.advance(4 - MICRO)
    ctx.expect(await queue.sweep_expired(), 0, "one microsecond before its expiry a row is not swept")
    await ctx.advance(MICRO)
    ctx.expect(await queue.sweep_expired(), 1, "at its expiry a row is swept")
    ctx.expect((await read(ctx, queue, expiring)).state, JobState.DEAD, "at its expiry a row is swept")
    await ctx.advance(1 - MICRO)
    ctx.expect(await queue.sweep_expired(), 0, "one microsecond before its deadline a claim is not swept")
    await ctx.advance(MICRO)
    ctx.expect(await queue.sweep_expired(), 2, "at its deadline a lapsed row without a future is swept")
    ctx.expect((await read(ctx, queue, exhausted)).last_error, LAPSED, "the exhausted one says so")
    ctx.expect((await read(ctx, queue, both)).last_error, EXPIRED, "the expired one says so")


@row(
    "Q-17",
    text="A row both expired and exhausted is moved once, for one of the two reasons.",
    oracle="the reason that the engine gives, by a claim or by a sweep",
    modes=("plain", "second"),
)
async def a_row_with_two_reasons_dies_of_one(ctx: Context) -> None:
    name = ctx.name("mail")
    job_id = await ctx.store.queue(name).enqueue("work", max_attempts=1, visibility_timeout=5, expires=3)
    held = (await take(ctx, ctx.store.queue(name))).job
    await ctx.advance(5)

    queue = (await ctx.turn()).queue(name)
    await take_nothing(ctx, queue, "a row without attempts is not claimed")
    moved = (await read(ctx, queue, job_id)) != held
    ctx.among(
        moved, {"moved by a claim": True, "left for a sweep": False}, "who moves an expired, exhausted row"
    )
    ctx.expect(await queue.sweep_expired(), 0 if moved else 1, "it is moved once")
    job = await read(ctx, queue, job_id)
    ctx.expect((job.state, job.died_at), (JobState.DEAD, await ctx.now()), "no row is stranded")
    ctx.among(
        job.last_error, {"expired": EXPIRED, "exhausted": LAPSED}, "an expired, exhausted row dies of one"
    )


@row(
    "Q-17",
    text="One sweep finds every row that qualifies among many that do not.",
    oracle="ten lapsed rows in the midst of 1,200 live ones",
    modes=("plain", "second"),
)
async def a_sweep_finds_the_few_among_many(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = ctx.store.queue(name, max_attempts=1)
    wanted: list[int] = []
    for _ in range(5):
        await queue.enqueue_batch(range(120), visibility_timeout=900)
        wanted += await queue.enqueue_batch(range(2), visibility_timeout=5)
        await queue.enqueue_batch(range(120), visibility_timeout=900)
    ctx.expect(len(await queue.claim_batch(5_000)), 1_210, "all of them are claimed")
    await ctx.advance(5)

    queue = (await ctx.turn()).queue(name)
    ctx.expect(await queue.sweep_expired(), 10, "one sweep moves every row that qualified when it began")
    ctx.expect([job.id for job in await queue.list(state=JobState.DEAD)], wanted, "the lapsed rows, no other")


@row(
    "Q-17",
    text="Concurrent sweeps and claims count each row once.",
    oracle="the sum of what the sweeps say, and what the claims moved, against the dead rows",
    modes=("concurrent", "second"),
)
async def concurrent_sweeps_count_each_row_once(ctx: Context) -> None:
    name = ctx.name("mail")
    mine, other = ctx.store.queue(name), (await ctx.turn()).queue(name)
    await mine.enqueue_batch(range(80), expires=1)
    await mine.enqueue_batch(range(80), max_attempts=1, visibility_timeout=1, priority=1)
    ctx.expect(len(await mine.claim_batch(80)), 80, "the higher ones are claimed")
    await ctx.advance(1)

    async def sweeper(step: Step) -> int:
        moved = 0
        for at in range(6):
            await step()
            moved += await (mine if at % 2 else other).sweep_expired()
        return moved

    ctx.expect(sum(await ctx.race_workers([sweeper] * 6)), 160, "concurrent sweeps count each row once")
    ctx.expect((await other.stats()).dead, 160, "every row was moved")

    await mine.enqueue_batch(range(50), max_attempts=1, visibility_timeout=1)
    await mine.claim_batch(50)
    await ctx.advance(1)

    async def claimer(step: Step) -> int:
        await step()
        await step()
        return len(await other.claim_batch(3))

    swept = sum(await ctx.race_workers([sweeper, claimer, sweeper, claimer]))
    ctx.that(0 <= swept <= 50, "a sweep counts only what it moved itself", observed=swept)
    ctx.expect((await other.stats()).dead, 210, "sweeps and claims move each row once")
