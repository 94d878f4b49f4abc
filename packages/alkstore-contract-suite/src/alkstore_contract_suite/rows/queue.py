"""Rows Q-01 to Q-04: what an enqueue writes."""

from datetime import timedelta, timezone

from alkstore import InvalidArgument, JobState
from alkstore_contract_suite.context import MICRO, Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._queue import STORED, bury, later, read, seconds, states, take, take_nothing


@row(
    "Q-01",
    text="An enqueue without options stamps 300 s, 3 attempts, 5 s, priority 0 and no expiry, ready at once.",
    oracle="every field of the job read back by id",
    modes=STORED,
    kills=("default-budget-is-four",),
)
async def an_enqueue_without_options_reads_back_the_defaults(ctx: Context) -> None:
    name = ctx.name("mail")
    now = await ctx.now()
    job_id = await ctx.store.queue(name).enqueue({"n": 1})

    queue = (await ctx.turn()).queue(name)
    job = await read(ctx, queue, job_id, "an acknowledged enqueue is there")

    ctx.expect((job.id, job.queue, job.payload, job.headers), (job_id, name, {"n": 1}, {}), "content")
    ctx.expect(job.visibility_timeout, seconds(300), "the default visibility timeout is 300 s")
    ctx.expect(job.max_attempts, 3, "the default budget is 3 attempts")
    ctx.expect(job.base_delay, seconds(5), "the default base delay is 5 s")
    ctx.expect((job.priority, job.expires_at), (0, None), "priority 0 and no expiry by default")
    ctx.expect((job.created_at, job.run_at), (now, now), "a job is ready at the enqueue instant")
    ctx.expect((job.state, job.attempts), (JobState.PENDING, 0), "a new job is pending and untried")
    ctx.expect((job.scheduled_for, job.retry_error), (None, None), "a new job has no boundary and no error")
    ctx.expect((job.last_error, job.died_at), (None, None), "a job that lives has no death")
    handle = await take(ctx, queue, "a job is claimable at the enqueue instant")
    ctx.expect(handle.job.id, job_id, "a job is claimable at the enqueue instant")


@row(
    "Q-02",
    text="A handle's options are stamped; a per-call option wins over them, each by itself.",
    oracle="the stamps read back by id",
    modes=STORED,
    kills=("handle-options-ignored",),
)
async def options_of_the_handle_and_of_the_call_are_stamped(ctx: Context) -> None:
    name = ctx.name("mail")
    now = await ctx.now()
    mail = ctx.store.queue(name, visibility_timeout=60, max_attempts=7, base_delay=2, expires=100)
    plain = await mail.enqueue(1)
    mixed = await mail.enqueue(2, max_attempts=1, base_delay=0, priority=-9)
    whole = await mail.enqueue(3, visibility_timeout=1.5, max_attempts=2, base_delay=0.25, expires=0.000_003)

    queue = (await ctx.turn()).queue(name)

    async def stamps(job_id: int) -> tuple[object, ...]:
        job = await read(ctx, queue, job_id)
        return (job.visibility_timeout, job.max_attempts, job.base_delay, job.expires_at, job.priority)

    first = (seconds(60), 7, seconds(2), later(now, 100), 0)
    ctx.expect(await stamps(plain), first, "the handle's options are stamped")
    second = (seconds(60), 1, seconds(0), later(now, 100), -9)
    ctx.expect(await stamps(mixed), second, "a per-call option wins, the others stay the handle's")
    third = (seconds(1.5), 2, seconds(0.25), now + timedelta(microseconds=3), 0)
    ctx.expect(await stamps(whole), third, "stamps keep their microseconds")


@row(
    "Q-02",
    text="A later handle with other options changes no row; handles with different options coexist.",
    oracle="the first row's stamps after the second handle enqueued and claimed",
    modes=("plain", "second", "reopen"),
)
async def handles_with_different_options_coexist(ctx: Context) -> None:
    name = ctx.name("mail")
    slow = ctx.store.queue(name, visibility_timeout=900, max_attempts=9)
    first = await slow.enqueue("slow")
    before = await read(ctx, slow, first)

    quick = (await ctx.turn()).queue(name, visibility_timeout=timedelta(seconds=2), max_attempts=1)
    second = await quick.enqueue("quick")

    ctx.expect(await read(ctx, quick, first), before, "a later handle changes no existing row")
    by_quick = await take(ctx, quick)
    by_other = await take(ctx, quick)
    ctx.expect((by_quick.job.id, by_other.job.id), (first, second), "both are rows of one queue")
    now = await ctx.now()
    ctx.expect(by_quick.job.deadline, later(now, 900), "a claim runs for the row's stamp, not the handle's")
    ctx.expect(by_other.job.deadline, later(now, 2), "a claim runs for the row's stamp, not the handle's")


@row(
    "Q-02",
    text="By name, in a transaction, the plain defaults apply; a handle's options come along.",
    oracle="the stamps of both rows",
    modes=("plain", "second"),
)
async def a_queue_by_name_has_the_plain_defaults(ctx: Context) -> None:
    name = ctx.name("mail")
    mail = ctx.store.queue(name, visibility_timeout=60, max_attempts=7, base_delay=1, expires=9)
    async with ctx.store.begin_tx() as tx:
        by_name = await tx.enqueue(name, 1)
        by_handle = await tx.enqueue(mail, 2, max_attempts=8)

    queue = (await ctx.turn()).queue(name)
    job = await read(ctx, queue, by_name)
    found = (job.visibility_timeout, job.max_attempts, job.base_delay, job.expires_at)
    ctx.expect(found, (seconds(300), 3, seconds(5), None), "by name the plain defaults apply")
    job = await read(ctx, queue, by_handle)
    found = (job.visibility_timeout, job.max_attempts, job.base_delay, job.expires_at)
    expected = (seconds(60), 8, seconds(1), later(await ctx.now(), 9))
    ctx.expect(found, expected, "a handle's options come along into a transaction")


@row(
    "Q-02",
    text="A queue handle of another store is refused.",
    oracle="InvalidArgument, nothing written, the transaction goes on",
    modes=("second",),
)
async def a_handle_of_another_store_is_refused(ctx: Context) -> None:
    name = ctx.name("mail")
    mine, other = ctx.store, await ctx.turn()
    foreign = other.queue(name)
    async with mine.begin_tx() as tx:
        async with ctx.refuses(InvalidArgument, "a queue handle belongs to its store"):
            await tx.enqueue(foreign, 1)
        async with ctx.refuses(InvalidArgument, "a queue handle belongs to its store"):
            await tx.enqueue_batch(foreign, [1, 2])
        kept = await tx.enqueue(mine.queue(name), 3)
    async with ctx.refuses(InvalidArgument, "a queue handle belongs to its store"):
        await mine.schedule(ctx.name("nightly"), "@every 1d", foreign, 1)

    ctx.expect(list(await states(foreign)), [kept], "a refused handle writes nothing")
    ctx.expect(await mine.schedules(), [], "a refused handle writes nothing")


@row(
    "Q-03",
    text="delay beats run_at; run_at alone is literal, in the past or the future.",
    oracle="run_at read back, and when a claim gives the job",
    modes=STORED,
    kills=("delay-ignored",),
)
async def delay_beats_run_at_and_run_at_is_literal(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = ctx.store.queue(name)
    now = await ctx.now()
    both = await queue.enqueue(1, delay=5, run_at=later(now, 9_000))
    zero = await queue.enqueue(2, delay=0, run_at=later(now, 9_000))
    past = await queue.enqueue(3, run_at=later(now, -86_400.000_001))
    berlin = later(now, 7_200.000_001).astimezone(timezone(timedelta(hours=2)))
    future = await queue.enqueue(4, run_at=berlin)
    half = await queue.enqueue(5, delay=timedelta(seconds=0.5))

    queue = (await ctx.turn()).queue(name)
    ctx.expect((await read(ctx, queue, both)).run_at, later(now, 5), "delay beats run_at")
    ctx.expect((await read(ctx, queue, zero)).run_at, now, "a delay of 0 beats run_at too")
    ctx.expect((await read(ctx, queue, past)).run_at, later(now, -86_400.000_001), "run_at is literal")
    found = (await read(ctx, queue, future)).run_at
    ctx.expect(
        (found, found.utcoffset()), (berlin, timedelta(0)), "run_at reads back as the same instant in UTC"
    )
    ctx.expect((await read(ctx, queue, half)).run_at, later(now, 0.5), "half a second is half a second")
    taken = [handle.job.id for handle in await queue.claim_batch(9)]
    ctx.expect(taken, [past, zero], "before its run_at a job is not claimable")
    ctx.expect((await read(ctx, queue, both)).state, JobState.PENDING, "a delayed job is pending")


@row(
    "Q-03",
    text="A delay ends at its microsecond; a delay of 0 or less is ready now.",
    oracle="claims one microsecond before and at the instant",
    modes=("boundary",),
    kills=("delay-ignored",),
)
async def a_delay_ends_at_its_microsecond(ctx: Context) -> None:
    queue = ctx.store.queue(ctx.name("mail"))
    now = await ctx.now()
    for delay in (0, -5, -(2**63) // 1_000_000, timedelta(days=-40_000_000)):
        job_id = await queue.enqueue("now", delay=delay)
        handle = await take(ctx, queue, "a delay of 0 or less is ready now")
        ctx.expect(handle.job.id, job_id, "a delay of 0 or less is ready now")
        ctx.that(handle.job.run_at <= now, "a delay of 0 or less is ready now", observed=handle.job.run_at)
        await handle.ack()
    ids = [
        await queue.enqueue("soon", delay=delay, visibility_timeout=10**6)
        for delay in (MICRO, 5, timedelta(days=3))
    ]

    for job_id, instant in zip(ids, (MICRO, 5.0, 259_200.0), strict=True):
        passed = (await ctx.now() - now).total_seconds()
        if instant > MICRO:
            await ctx.advance(instant - passed - MICRO)
        await take_nothing(ctx, queue, "one microsecond before its run_at a job is not claimable")
        await ctx.advance(MICRO)
        ctx.expect((await take(ctx, queue)).job.id, job_id, "at its run_at a job is claimable")


@row(
    "Q-03",
    text="expires counts from the enqueue and reads back as an instant; 0 or less is expired at once.",
    oracle="expires_at read back; a claim passes over what is expired",
    modes=STORED,
)
async def expires_is_relative_to_the_enqueue(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = ctx.store.queue(name)
    now = await ctx.now()
    delayed = await queue.enqueue(1, expires=10, delay=60)
    literal = await queue.enqueue(2, expires=timedelta(microseconds=1), run_at=later(now, 500))
    nil = await queue.enqueue(3, expires=0)
    below = await queue.enqueue(4, expires=-5)
    control = await queue.enqueue(5, expires=1)

    queue = (await ctx.turn()).queue(name)
    found = [
        (await read(ctx, queue, job_id)).expires_at for job_id in (delayed, literal, nil, below, control)
    ]
    expected = [later(now, 10), later(now, MICRO), now, later(now, -5), later(now, 1)]
    ctx.expect(found, expected, "expires is relative to the enqueue and reads back absolute")
    ctx.expect((await read(ctx, queue, nil)).state, JobState.PENDING, "an expired row reads as before")
    ctx.expect((await take(ctx, queue)).job.id, control, "what expired at once is never claimed")
    await take_nothing(ctx, queue, "what expired at once is never claimed")


@row(
    "Q-04",
    text="Ids are positive, 64-bit, unique over all queues, and increase for one caller.",
    oracle="the ids of three queues and of batches, in the order of the calls",
    modes=("plain", "second", "reopen", "crash-kill"),
)
async def ids_increase_over_all_queues(ctx: Context) -> None:
    names = [ctx.name(name) for name in ("a", "b", "c")]
    ids: list[int] = []
    for turn in range(12):
        name = names[turn % 3]
        ids.append(await ctx.store.queue(name).enqueue(turn))
        ids += await ctx.store.queue(name).enqueue_batch([turn] * 3, priority=turn)
    async with ctx.store.begin_tx() as tx:
        ids.append(await tx.enqueue(names[0], "tx"))
        ids += await tx.enqueue_batch(names[1], ["tx", "tx"])

    store = await ctx.turn()
    ids.append(await store.queue(names[2]).enqueue("later"))

    ctx.expect(ids, sorted(set(ids)), "ids increase for one caller over all queues")
    ctx.that(all(0 < job_id < 2**63 for job_id in ids), "ids are positive and of 64 bits", observed=ids[:3])
    found = [job_id for name in names for job_id in await states(store.queue(name))]
    ctx.expect(sorted(found), ids, "every id is one row")


@row(
    "Q-04",
    text="An id is never given twice: not after ack, cancel, purge or restart.",
    oracle="ids given after every row is gone are above every earlier one",
    modes=STORED,
    kills=("ids-given-again",),
)
async def an_id_is_never_given_twice(ctx: Context) -> None:
    name = ctx.name("mail")
    queue = ctx.store.queue(name)
    given = [await bury(ctx, queue)]
    given.append(await queue.enqueue("acked"))
    await (await take(ctx, queue)).ack()
    given.append(await queue.enqueue("cancelled"))
    await queue.cancel(given[-1])
    given.append(await bury(ctx, queue))
    ctx.expect(await queue.purge_dead(older_than=0), 2, "a purge deletes the dead rows")
    ctx.expect(await states(queue), {}, "no row is left")

    queue = (await ctx.turn()).queue(name)
    given.append(await queue.enqueue("next"))
    await queue.cancel(given[-1])
    given += await queue.enqueue_batch(["one", "two"])

    ctx.expect(given, sorted(set(given)), "an id is never given twice")


@row(
    "Q-04",
    text="An unknown id, another queue's, or one out of range is None, False and 0.",
    oracle="the answers, and that the other queue's rows are untouched",
    modes=("plain", "second"),
)
async def an_id_that_is_not_here_is_answered_calmly(ctx: Context) -> None:
    here, there = ctx.name("mail"), ctx.name("post")
    other = ctx.store.queue(there)
    dead = await bury(ctx, other)
    foreign = await other.enqueue("foreign")
    before = await other.list()

    store = await ctx.turn()
    queue = store.queue(here)
    own = await queue.enqueue("own")
    for job_id in (own + 1_000, foreign, dead, 0, -1, 2**63 - 1, 2**63, 2**64 + own, -(2**63) - 1, 10**40):
        ctx.expect(await queue.get_job(job_id), None, "an id that is not here reads as None")
        ctx.expect(await queue.cancel(job_id), False, "an id that is not here is not cancelled")
        ctx.expect(await queue.redrive(job_id), 0, "an id that is not here is not redriven")

    ctx.expect(await store.queue(there).list(), before, "another queue's rows are untouched")
    ctx.expect((await read(ctx, queue, own)).payload, "own", "the queue's own id is found")
    ctx.expect(await store.queue(there).redrive(dead, own), 1, "the queue's own dead id is redriven")
    ctx.expect(await queue.cancel(own), True, "the queue's own id is cancelled")
