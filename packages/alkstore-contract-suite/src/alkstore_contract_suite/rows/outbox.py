"""Rows OBX-01 to OBX-06: the backing queue, stamps, and what becomes of a delivery."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

from alkstore import DatabaseError, InvalidArgument, Job, JobHandle, JobState, Outbox, ReservedName
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._accepting import accepts

SECOND: Final = ("plain", "second")
STORED: Final = ("plain", "second", "reopen", "crash-drop", "crash-kill")
PREFIX: Final = "__alkstore_outbox:"


async def entry(
    ctx: Context, outbox: Outbox, id: int, promise: str = "an entry stays until it is delivered"
) -> Job:
    """Read one entry that must be there."""
    job = await outbox.jobs.get_job(id)
    ctx.that(job is not None, promise, observed=job)
    assert job is not None
    return job


async def deliver(handle: JobHandle) -> None:
    """Deliver at once."""


@row(
    "OBX-01",
    text="The backing queue is `__alkstore_outbox:{name}`, the same text on every engine, seen as job.queue.",
    oracle="job.queue, the names, and the outbox's own view, for plain, odd and 255-byte names",
    modes=STORED,
    kills=("outbox-name-is-cut",),
)
async def the_backing_queue_has_its_name(ctx: Context) -> None:
    long = "x" * 254
    names = [ctx.name("mail"), f"{long}a", f"{long}b", "é it's; 100% :", "__alkstore"]
    ids = {name: await ctx.store.outbox(name).enqueue(name) for name in names}
    store = await ctx.turn()
    for name in names:
        outbox = store.outbox(name)
        ctx.expect((outbox.name, outbox.jobs.name), (name, PREFIX + name), "an outbox knows its names")
        found = [(job.id, job.queue, job.payload) for job in await outbox.jobs.list()]
        ctx.expect(found, [(ids[name], PREFIX + name, name)], "an outbox's entry is in its own backing queue")
    ctx.expect(await store.outboxes(), sorted(names), "outboxes() gives the outboxes' names")
    ctx.expect(await store.queues(), [], "queues() leaves out the backing queues")


@row(
    "OBX-01",
    text="The backing queue is unreachable by queue(), Tx.enqueue and schedule, and not fed or drained through jobs.",
    oracle="the typed error on every path, and nothing changed; then the entry is delivered",
    modes=SECOND,
    kills=("backing-queue-is-reachable",),
)
async def the_backing_queue_is_unreachable(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("mail")
    id = await other.outbox(name).enqueue("entry")
    with ctx.refuses_sync(ReservedName, "queue() does not reach the backing queue"):
        mine.queue(PREFIX + name)
    async with ctx.refuses(ReservedName, "schedule does not reach the backing queue"):
        await mine.schedule("s", "@every 1s", PREFIX + name, 1)
    jobs: Any = mine.outbox(name).jobs
    calls: dict[str, Callable[[], Awaitable[Any]]] = {
        "enqueue": lambda: jobs.enqueue(1),
        "enqueue_batch": lambda: jobs.enqueue_batch([1]),
        "claim_one": lambda: jobs.claim_one(),
        "claim_batch": lambda: jobs.claim_batch(1),
        "claim": lambda: jobs.claim(timeout=0),
        "run_once": lambda: jobs.run_once(deliver),
        "claims": lambda: anext(jobs.claims()),
    }
    for what, call in calls.items():
        async with ctx.refuses(ReservedName, f"{what} through an outbox's jobs is refused"):
            await call()
    async with mine.begin_tx() as tx:
        for queue in (PREFIX + name, jobs):
            async with ctx.refuses(ReservedName, "Tx.enqueue does not reach the backing queue"):
                await tx.enqueue(queue, 1)
    found = [(job.id, job.attempts) for job in await other.outbox(name).jobs.list()]
    ctx.expect(found, [(id, 0)], "a refused call changes nothing")
    ctx.expect(await mine.outbox(name).run_once(deliver), True, "the outbox itself delivers the entry")


@row(
    "OBX-01",
    text="An outbox's entries are seen, cancelled, swept, redriven, purged and counted through Outbox.jobs.",
    oracle="each operation on an entry in its state",
    modes=SECOND,
)
async def entries_are_looked_after_through_jobs(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("mail")
    outbox, jobs = mine.outbox(name), other.outbox(name).jobs
    kept, cancelled = await outbox.enqueue("kept", max_attempts=1), await outbox.enqueue("cancelled")
    expired = await outbox.enqueue("expired", expires=1)
    ctx.expect(await jobs.cancel(cancelled), True, "an entry is cancelled through jobs")
    ctx.expect(await mine.queue(name).get_job(kept), None, "a queue of the outbox's name is another queue")
    await ctx.advance(1)
    ctx.expect(await jobs.sweep_expired(), 1, "entries are swept through jobs")
    await outbox.run_once(lambda handle: handle.fail("refused for good"))
    dead = [job.id for job in await jobs.list(state=JobState.DEAD)]
    ctx.expect(dead, [kept, expired], "dead entries are seen through jobs")
    ctx.expect(await jobs.redrive(kept), 1, "a dead entry is redriven through jobs")
    ctx.expect(await jobs.purge_dead(older_than=0), 1, "dead entries are purged through jobs")
    stats = await jobs.stats()
    ctx.expect((stats.ready, stats.dead), (1, 0), "entries are counted through jobs")
    ctx.expect(await outbox.run_once(deliver), True, "a redriven entry is delivered")
    ctx.expect(await jobs.list(), [], "a delivered entry is gone")


def _stamps(job: Job) -> tuple[object, ...]:
    return (
        job.visibility_timeout,
        job.max_attempts,
        job.base_delay,
        job.expires_at,
        job.priority,
        job.run_at,
    )


@row(
    "OBX-02",
    text="Entries are stamped 60 s, 5 attempts, 5 s, no expiry; per-call options apply over them.",
    oracle="the stamps of entries of both paths, with no option, with one, and with all",
    modes=STORED,
    kills=("outbox-has-a-plain-queues-stamps",),
)
async def entries_have_the_outboxs_stamps(ctx: Context) -> None:
    name, now = ctx.name("mail"), await ctx.now()
    plain = (timedelta(seconds=60), 5, timedelta(seconds=5), None, 0, now)
    options: dict[str, Any] = {
        "visibility_timeout": 1.5, "max_attempts": 9, "base_delay": 0, "expires": 30, "priority": -2, "delay": 4
    }  # fmt: skip
    later = timedelta(seconds=30)
    all_set = (timedelta(seconds=1.5), 9, timedelta(0), now + later, -2, now + timedelta(seconds=4))
    outbox = ctx.store.outbox(name)
    ids = [
        await outbox.enqueue(1),
        await outbox.enqueue(2, max_attempts=2),
        await outbox.enqueue(3, **options),
    ]
    async with ctx.store.begin_tx() as tx:
        ids += [await tx.outbox_enqueue(name, 1), await tx.outbox_enqueue(outbox, 2, max_attempts=2)]
        ids.append(await tx.outbox_enqueue(outbox, 3, **options))
    found = await (await ctx.turn()).outbox(name).jobs.list()
    ctx.expect([job.id for job in found], ids, "every entry is there")
    expected = [plain, (plain[0], 2, *plain[2:]), all_set] * 2
    ctx.expect([_stamps(job) for job in found], expected, "options apply over the outbox's own stamps")


@row(
    "OBX-02",
    text="Tx.outbox_enqueue is commit-atomic with the business write.",
    oracle="entry and event of a transaction: before its commit, after a rollback, after a commit",
    modes=STORED,
    kills=("outbox-row-survives-rollback",),
)
async def an_entry_lands_with_its_transaction(ctx: Context) -> None:
    name, store, jobs = ctx.name("mail"), ctx.store, list[Job]()
    for keep in (False, True):
        async with store.begin_tx() as tx:
            await tx.publish(name, "business")
            await tx.outbox_enqueue(name, "entry", headers={"trace": "1"})
            open_now = (len(await store.outbox(name).jobs.list()), await store.stream(name).head())
            ctx.expect(open_now, (0, 0), "nothing is seen before the commit")
            if not keep:
                await tx.rollback()
        store = await ctx.turn()
        jobs, head = await store.outbox(name).jobs.list(), await store.stream(name).head()
        found = (len(jobs), head > 0)
        ctx.expect(found, (1, True) if keep else (0, False), "entry and business write land together")
    ctx.expect((jobs[0].payload, dict(jobs[0].headers)), ("entry", {"trace": "1"}), "the entry is whole")


@row(
    "OBX-03",
    text="run_once with nothing claimable is False and calls no delivery; else it delivers one, acks it, and is True.",
    oracle="the calls of the delivery and the entries left, with none, delayed ones, and two ready",
    modes=SECOND,
    kills=("outbox-acks-before-delivery",),
)
async def run_once_delivers_one_entry(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("mail")
    calls: list[tuple[object, str | None, int]] = []

    async def note(handle: JobHandle) -> str:
        job = await entry(ctx, other.outbox(name), handle.job.id, "an entry is there until it was delivered")
        calls.append((job.payload, job.worker_id, job.attempts))
        return "whatever"

    outbox = mine.outbox(name)
    ctx.expect(await outbox.run_once(note), False, "with nothing to deliver run_once is False")
    await other.outbox(name).enqueue("later", delay=10)
    ctx.expect(await outbox.run_once(note), False, "a delayed entry is not delivered early")
    ctx.expect(calls, [], "with nothing claimable the delivery is not called")
    for payload in ("one", "two"):
        await other.outbox(name).enqueue(payload)
    for _ in range(2):
        ctx.expect(await outbox.run_once(note, worker_id="relay"), True, "run_once delivers one entry")
    ctx.expect(calls, [("one", "relay", 1), ("two", "relay", 1)], "each is delivered once, in claim order")
    left = [job.payload for job in await other.outbox(name).jobs.list()]
    ctx.expect(left, ["later"], "a delivered entry is acked")
    ctx.expect(await outbox.run_once(note), False, "with nothing to deliver run_once is False")


@row(
    "OBX-03",
    text="A delivery that raises is retried with its error on the row's curve; run_once is True.",
    oracle="the entry after each of three failures, its delay within the curve; then a delivery",
    modes=SECOND,
    kills=("outbox-acks-on-error", "outbox-retries-at-once", "outbox-lets-our-own-errors-through"),
)
async def a_failed_delivery_is_retried(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("mail")
    id = await mine.outbox(name).enqueue("entry", base_delay=8)

    # alkstore's own errors are a delivery's like any other
    kinds = (ConnectionError, DatabaseError, InvalidArgument)

    async def fail(handle: JobHandle) -> None:
        raise kinds[handle.job.attempts - 1](f"relay away {handle.job.attempts}")

    for attempt, curve in ((1, 8), (2, 16), (3, 32)):
        promise = "a failed delivery is True, and not an ack"
        with accepts(ctx, "what a delivery raises stays with its entry"):
            ctx.expect(await mine.outbox(name).run_once(fail), True, promise)
        job = await entry(ctx, other.outbox(name), id, "a failed delivery is no ack")
        ctx.expect((job.state, job.attempts), (JobState.PENDING, attempt), "a failed delivery is retried")
        ctx.that(
            f"relay away {attempt}" in (job.retry_error or ""), "with its error", observed=job.retry_error
        )
        delay = (job.run_at - await ctx.now()).total_seconds()
        ctx.that(curve / 2 <= delay <= curve, "on the row's curve", observed=delay)
        ctx.expect(await mine.outbox(name).run_once(fail), False, "not before its delay")
        await ctx.advance(curve)
    ctx.expect(await mine.outbox(name).run_once(deliver), True, "a later delivery succeeds")
    ctx.expect(await other.outbox(name).jobs.list(), [], "and is acked")


class AsyncCallable:
    """A delivery that is an object with an asynchronous call."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, handle: JobHandle) -> None:
        self.calls += 1


@row(
    "OBX-03",
    text="A delivery that is not callable is refused before the claim; one with nothing to await is never an ack.",
    oracle="the entry after each: untouched, or released; an object with an async call delivers",
    modes=SECOND,
    kills=("outbox-acks-what-was-not-awaited",),
)
async def a_delivery_must_be_awaitable(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("mail")
    id = await mine.outbox(name).enqueue("entry")
    wrong: tuple[Any, ...] = (None, "deliver", 7, lambda handle: None, lambda handle: "sent")
    for delivery in wrong:
        async with ctx.refuses(InvalidArgument, "a delivery that is no async callable is refused"):
            await mine.outbox(name).run_once(delivery)
        job = await entry(ctx, other.outbox(name), id, "a delivery that was not awaited is no ack")
        ctx.expect((job.state, job.attempts), (JobState.PENDING, 0), "the entry is untouched or released")
    delivery = AsyncCallable()
    ctx.expect(await mine.outbox(name).run_once(delivery), True, "an object with an async call delivers")
    ctx.expect(delivery.calls, 1, "it is called once")
    ctx.expect(await other.outbox(name).jobs.list(), [], "and is acked after it")


@row(
    "OBX-04",
    text="The engine sends no heartbeat before or during delivery; the delivery's own heartbeat works.",
    oracle="the deadline in the handle and in the row at several instants of a long delivery",
    modes=SECOND,
    kills=("outbox-heartbeats",),
)
async def no_heartbeat_is_sent(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name, start = ctx.name("mail"), await ctx.now()
    await mine.outbox(name).enqueue("entry")
    raw = start + timedelta(seconds=60)

    async def slow(handle: JobHandle) -> None:
        ctx.expect(handle.job.deadline, raw, "the handle carries the raw claim deadline")
        for _ in range(5):
            await ctx.advance(11)
            await ctx.settle()
            job = await entry(ctx, other.outbox(name), handle.job.id)
            ctx.expect(job.deadline, raw, "no heartbeat is sent during a delivery")
        ctx.expect(await handle.heartbeat(), True, "the delivery's own heartbeat works")
        job = await entry(ctx, other.outbox(name), handle.job.id)
        ctx.expect(job.deadline, await ctx.now() + timedelta(seconds=60), "it gives a whole window")
        await ctx.advance(30)

    ctx.expect(await mine.outbox(name).run_once(slow), True, "a long delivery ends")
    ctx.expect(await other.outbox(name).jobs.list(), [], "a delivery that kept its claim is acked")


@row(
    "OBX-05",
    text="A delivery that outlived its window leaves the outcome unapplied, and run_once is True.",
    oracle="the row while another worker holds it, after the first delivery returned or raised",
    modes=SECOND,
    kills=("ack-after-deadline",),
)
async def a_delivery_that_outlived_its_window_settles_nothing(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    for fails in (False, True):
        name = ctx.name("mail")
        id = await mine.outbox(name).enqueue("entry")

        async def again(handle: JobHandle) -> None:
            ctx.expect(handle.job.attempts, 2, "a delivery that outlived its window is reclaimed")

        async def outlive(handle: JobHandle, fails: bool = fails, name: str = name) -> None:
            await ctx.advance(60)
            if fails:
                raise ConnectionError("too late")

        ctx.expect(await mine.outbox(name).run_once(outlive), True, "a late delivery is True")
        job = await entry(ctx, other.outbox(name), id, "a late delivery settles nothing")
        found = (job.state, job.attempts, job.retry_error)
        ctx.expect(found, (JobState.PROCESSING, 1, None), "a late delivery settles nothing")
        ctx.expect(await other.outbox(name).run_once(again), True, "the row is reclaimable")
        ctx.expect(await other.outbox(name).jobs.list(), [], "and acked by whoever delivered it in time")


@row(
    "OBX-05",
    text="A delivery that settled the handle itself is left at that; run_once is True.",
    oracle="the row after a fail, a retry, a release and an ack of the delivery's own, also if it raises afterwards",
    modes=SECOND,
)
async def a_delivery_may_settle_itself(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    settles: dict[str, tuple[Any, tuple[JobState, int] | None]] = {
        "fail": (lambda handle: handle.fail("refused"), (JobState.DEAD, 1)),
        "retry": (lambda handle: handle.retry(delay=60), (JobState.PENDING, 1)),
        "release": (lambda handle: handle.release(), (JobState.PENDING, 0)),
        "ack": (lambda handle: handle.ack(), None),
    }
    for what, (settle, expected) in settles.items():
        for raises in (False, True):
            name = ctx.name("mail")
            id = await mine.outbox(name).enqueue("entry")

            async def delivery(handle: JobHandle, settle: Any = settle, raises: bool = raises) -> None:
                ctx.expect(await settle(handle), True, "the delivery's own settle lands")
                if raises:
                    raise ConnectionError("after the settle")

            ctx.expect(await mine.outbox(name).run_once(delivery), True, f"a delivery with its own {what}")
            job = await other.outbox(name).jobs.get_job(id)
            found = None if job is None else (job.state, job.attempts)
            ctx.expect(found, expected, f"a delivery's own {what} is left at that")


@row(
    "OBX-06",
    text="On exhaustion the entry is DEAD with the delivery error's text.",
    oracle="the row after as many failures as it has attempts",
    modes=SECOND,
    kills=("outbox-forgets-the-error",),
)
async def an_exhausted_entry_is_dead_with_its_error(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("mail")
    id = await mine.outbox(name).enqueue("entry", base_delay=0)

    async def fail(handle: JobHandle) -> None:
        raise ConnectionError(f"relay away {handle.job.attempts}")

    for attempt in range(1, 6):
        ctx.expect(await mine.outbox(name).run_once(fail), True, "each attempt is a delivery")
        state = (await entry(ctx, other.outbox(name), id)).state
        ctx.expect(state, JobState.DEAD if attempt == 5 else JobState.PENDING, "5 attempts, then DEAD")
    job = await entry(ctx, other.outbox(name), id)
    ctx.that("relay away 5" in (job.last_error or ""), "the error's text stays", observed=job.last_error)
    ctx.expect((job.died_at, job.retry_error), (await ctx.now(), None), "a dead entry says when it died")
    ctx.expect(await mine.outbox(name).run_once(fail), False, "a dead entry is not delivered")
