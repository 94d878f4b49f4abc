"""Rows Q-05 to Q-07: who gets which job, and in which order."""

from collections.abc import Awaitable, Callable
from datetime import timedelta

from alkstore import JobState, Queue
from alkstore_contract_suite.context import MICRO, Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._queue import (
    STORED,
    drain,
    later,
    read,
    seconds,
    take,
    take_nothing,
)

Step = Callable[[], Awaitable[None]]


@row(
    "Q-05",
    text="Claims go by priority, high to low over all 64 bits, then run_at, then id.",
    oracle="the ids in the order in which single claims give them",
    modes=STORED,
    kills=("newest-first", "priority-inverted"),
)
async def claims_go_by_priority_then_run_at_then_id(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = ctx.store.queue(name)
    now = await ctx.now()
    wanted: list[tuple[int, timedelta, int]] = []
    kinds = [
        (priority, seconds(back))
        for priority in (-(2**63), -(2**31) - 1, -1, 0, 1, 2**31, 2**53 + 1, 2**63 - 1)
        for back in (0.0, MICRO, 86_400.0)
        for _ in range(2)
    ]
    ctx.random.shuffle(kinds)
    for priority, back in kinds:
        job_id = await queue.enqueue(None, priority=priority, run_at=now - back)
        wanted.append((-priority, -back, job_id))

    found = await drain((await ctx.turn()).queue(name))

    ctx.expect(found, [job_id for _, _, job_id in sorted(wanted)], "claims go by priority, run_at, id")


@row(
    "Q-05",
    text="Priority is strict: waiting long lifts nobody.",
    oracle="a fresh job of higher priority goes before one that waited a year",
    modes=("plain", "second"),
    kills=("priority-inverted",),
)
async def waiting_long_lifts_nobody(ctx: Context) -> None:
    name = ctx.name("mail")
    old = await ctx.store.queue(name).enqueue("old", priority=0)
    await ctx.advance(365 * 86_400)
    fresh = await ctx.store.queue(name).enqueue("fresh", priority=1)
    low = await ctx.store.queue(name).enqueue(
        "low", priority=-1, run_at=await ctx.now() - timedelta(days=999)
    )

    found = await drain((await ctx.turn()).queue(name))

    ctx.expect(found, [fresh, old, low], "priority is strict, without ageing")


@row(
    "Q-05",
    text="Not before run_at; a job not yet ready holds nobody back, and then takes its place in the order.",
    oracle="claims one microsecond before and at run_at",
    modes=("boundary",),
    kills=("due-one-microsecond-late",),
)
async def a_job_is_ready_at_its_run_at_and_not_before(ctx: Context) -> None:
    queue = ctx.store.queue(ctx.name("mail"))
    now = await ctx.now()
    high = await queue.enqueue("high", priority=9, run_at=later(now, 2))
    early = await queue.enqueue("early", run_at=later(now, 1))
    ready = [await queue.enqueue("ready", run_at=now) for _ in range(3)]
    await ctx.advance(1 - MICRO)

    ctx.expect((await take(ctx, queue)).job.id, ready[0], "a job not yet ready holds nobody back")
    ctx.expect(
        [handle.job.id for handle in await queue.claim_batch(1)],
        ready[1:2],
        "one microsecond before run_at a job is not claimable",
    )
    await ctx.advance(MICRO)
    ctx.expect((await take(ctx, queue)).job.id, ready[2], "run_at decides before id: the older goes first")
    ctx.expect((await take(ctx, queue)).job.id, early, "at its run_at a job is claimable")
    await ctx.advance(1 - MICRO)
    await take_nothing(ctx, queue, "one microsecond before run_at a job is not claimable")
    late = await queue.enqueue("late", run_at=now)
    await ctx.advance(MICRO)
    found = [handle.job.id for handle in await queue.claim_batch(9)]
    ctx.expect(found, [high, late], "at its run_at a job takes its place in the order")


@row(
    "Q-05",
    text="Queues are isolated by name.",
    oracle="each queue gives its own jobs only, however alike the names are",
    modes=STORED,
)
async def queues_are_isolated_by_name(ctx: Context) -> None:
    base = ctx.name("mail")
    names = [base, base + " ", base.upper(), base + "%", base + "_", base + "\u00e9", base + "e\u0301"]
    ids: dict[str, list[int]] = {name: [] for name in names}
    for turn in range(3):
        for name in names:
            ids[name].append(await ctx.store.queue(name).enqueue(name, priority=-turn))

    store = await ctx.turn()
    await take_nothing(ctx, store.queue(base + "?"), "queues are isolated by name")
    for name in names:
        taken = [handle.job for handle in await store.queue(name).claim_batch(99)]
        ctx.expect([job.id for job in taken], ids[name], "queues are isolated by name")
        ctx.expect({job.queue for job in taken}, {name}, "a job's queue reads back unchanged")
        ctx.expect({job.payload for job in taken}, {name}, "queues are isolated by name")


@row(
    "Q-06",
    text="A claim sets PROCESSING, worker_id, deadline = now + the row's stamp, and attempts + 1.",
    oracle="the handle's job and the row read back; everything else is as it was",
    modes=STORED,
    kills=("attempts-not-counted",),
)
async def a_claim_stamps_worker_deadline_and_attempt(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = ctx.store.queue(name, visibility_timeout=0.75)
    job_id = await queue.enqueue({"a": [1]}, priority=4, expires=9_000, headers={"trace": "é"}, delay=-1)
    before = await read(ctx, queue, job_id)
    await ctx.advance(10)
    now = await ctx.now()
    handle = await take(ctx, queue, worker_id="__alkstore_worker 7")
    job = handle.job

    queue = (await ctx.turn()).queue(name)
    stored = await read(ctx, queue, job_id)
    ctx.expect(stored, job, "the row is what the handle says")
    ctx.expect(
        (job.state, job.worker_id), (JobState.PROCESSING, "__alkstore_worker 7"), "state and worker are set"
    )
    ctx.expect(job.deadline, later(now, 0.75), "deadline = now + the row's stamp")
    ctx.expect(job.attempts, 1, "a claim counts an attempt")
    found = (job.id, job.queue, job.payload, dict(job.headers), job.priority, job.run_at, job.created_at)
    kept = (job_id, name, {"a": [1]}, {"trace": "é"}, 4, before.run_at, before.created_at)
    ctx.expect(found, kept, "a claim leaves everything else as it was")
    ctx.expect(job.expires_at, before.expires_at, "a claim leaves everything else as it was")


@row(
    "Q-06",
    text="Every claim counts: after a retry, after a lapse; a release takes its own back.",
    oracle="attempts at each claim of one job",
    modes=("plain", "second"),
    kills=("attempts-not-counted",),
)
async def every_claim_counts_one_attempt(ctx: Context) -> None:
    name = ctx.name("mail")
    await ctx.store.queue(name, max_attempts=9, visibility_timeout=5).enqueue(1)
    queue = ctx.store.queue(name)
    seen: list[int] = []
    for ending in ("retry", "lapse", "lapse", "release", "retry"):
        handle = await take(ctx, queue)
        seen.append(handle.job.attempts)
        if ending == "retry":
            await handle.retry(delay=0)
        elif ending == "release":
            await handle.release()
        else:
            await ctx.advance(5)

    seen.append((await take(ctx, (await ctx.turn()).queue(name))).job.attempts)
    ctx.expect(seen, [1, 2, 3, 4, 4, 5], "every claim counts one attempt, a release takes its own back")


@row(
    "Q-06",
    text="claim_batch(n) returns at most n, all distinct, in claim order.",
    oracle="batches until nothing is left, against the sorted order",
    modes=STORED,
    kills=("batch-in-id-order",),
)
async def a_batch_is_distinct_and_in_claim_order(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = ctx.store.queue(name)
    now = await ctx.now()
    wanted: list[tuple[int, float, int]] = []
    for _ in range(40):
        priority, back = ctx.random.randrange(-2, 3), ctx.random.randrange(4)
        job_id = await queue.enqueue(None, priority=priority, run_at=later(now, -back))
        wanted.append((-priority, -back, job_id))
    order = [job_id for _, _, job_id in sorted(wanted)]

    queue = (await ctx.turn()).queue(name)
    found: list[int] = []
    for size in (1, 7, 12, 0, -3):
        ids = [handle.job.id for handle in await queue.claim_batch(size)]
        ctx.expect(len(ids), max(size, 0), "a batch is as large as asked for while enough is ready")
        found += ids
    rest = await queue.claim_batch(10_000)
    found += [handle.job.id for handle in rest]
    ctx.expect(found, order, "a batch is in claim order, nothing twice")
    ctx.expect(await queue.claim_batch(5), [], "nothing ready gives an empty batch")


@row(
    "Q-06",
    text="In a batch each row runs for its own stamp.",
    oracle="deadlines of one batch; only the short one is claimable again at its deadline",
    modes=("boundary",),
)
async def each_row_of_a_batch_has_its_own_deadline(ctx: Context) -> None:
    queue = ctx.store.queue(ctx.name("mail"))
    spans = [60.0, 1.0, 0.000_001, 300.0]
    ids = [await queue.enqueue(span, visibility_timeout=span) for span in spans]
    now = await ctx.now()
    handles = await queue.claim_batch(4, worker_id="w")

    found = [(handle.job.id, handle.job.deadline, handle.job.worker_id) for handle in handles]
    expected = [(job_id, later(now, span), "w") for job_id, span in zip(ids, spans, strict=True)]
    ctx.expect(found, expected, "each row of a batch runs for its own stamp")
    await ctx.advance(MICRO)
    ctx.expect((await take(ctx, queue)).job.id, ids[2], "only the row whose own stamp ended is claimable")
    ctx.expect(await handles[2].ack(), False, "a window of one microsecond ends after one microsecond")
    ctx.expect(await handles[1].ack(), True, "a longer claim of the same batch is live")


async def _racers(ctx: Context, queues: list[Queue], sizes: list[int]) -> list[list[int]]:
    """Claim at once from several tasks until nothing is left; gives what each claim gave."""

    def racer(queue: Queue, size: int) -> Callable[[Step], Awaitable[list[list[int]]]]:
        async def run(step: Step) -> list[list[int]]:
            taken: list[list[int]] = []
            while True:
                await step()
                if size == 1:
                    handle = await queue.claim_one()
                    handles = [] if handle is None else [handle]
                else:
                    handles = await queue.claim_batch(size)
                if not handles:
                    return taken
                ctx.that(
                    len(handles) <= size, "a claim never gives more than was asked for", observed=len(handles)
                )
                taken.append([handle.job.id for handle in handles])

        return run

    workers = [racer(queues[at % len(queues)], size) for at, size in enumerate(sizes)]
    return [ids for claims in await ctx.race_workers(workers) for ids in claims]


@row(
    "Q-07",
    text="Concurrent claimers never hold one row together, and every row is claimed.",
    oracle="the ids of all claimers together are all ids, each once",
    modes=("concurrent", "second"),
    kills=("claimed-row-given-twice",),
)
async def concurrent_claimers_never_share_a_row(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = ctx.store.queue(name)
    ids = await queue.enqueue_batch(range(200))
    for job_id in ids[::2]:
        ctx.expect((await take(ctx, queue)).job.state, JobState.PROCESSING, f"job {job_id} can be claimed")
    await ctx.advance(300)  # half of the rows are lapsed claims: the race must not mix the two kinds up

    other = (await ctx.turn()).queue(name)
    taken = await _racers(ctx, [queue, other], [1, 7, 1, 7, 3, 7, 1, 7])

    found = [job_id for batch in taken for job_id in batch]
    ctx.expect(len(found), len(set(found)), "concurrent claimers never hold one row together")
    ctx.expect(sorted(found), ids, "every row is claimed by somebody")
    counted = {job.attempts for job in await queue.list(limit=500)}
    ctx.expect(counted, {1, 2}, "one claim counts one attempt, however many claimers race")
