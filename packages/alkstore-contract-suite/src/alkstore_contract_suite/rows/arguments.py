"""NAME-08 to NAME-11: numbers, durations, instants and extents."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final

from alkstore import EnqueueOpts, InvalidArgument, InvalidName, JobState, LockTimeout, Store
from alkstore_contract_suite.context import MICRO, Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._accepting import accepts
from alkstore_contract_suite.rows._arguments import (
    BAD_DURATIONS,
    BAD_INSTANTS,
    BAD_INTEGERS,
    ENQUEUED,
    EXTENTS,
    INTEGERS,
    LEASES,
    MIN,
    STAMPED,
    TX_ENQUEUED,
    TX_EXTENTS,
    TX_INTEGERS,
    Bench,
    Stamping,
    TxStamping,
    bench,
)
from alkstore_contract_suite.rows._entry_points import SPEC

NOT_POSITIVE: Final[tuple[Any, ...]] = (
    0,
    -1,
    0.0,
    -0.5,
    4e-7,
    -4e-7,
    MIN,
    timedelta(0),
    timedelta(microseconds=-1),
    timedelta.min,
)
NO_ID: Final[tuple[Any, ...]] = (1.0, "1", True, None, b"1", float("nan"))


async def _looks(b: Bench) -> tuple[object, ...]:
    store = b.store
    lists = (await store.queues(), await store.streams(), await store.outboxes(), await store.schedules())
    held = await store.queue("held").list()
    stream = store.stream("st")
    return (*lists, await store.locks(), held, await stream.read_since(0), await stream.consumers())


async def _refused(
    ctx: Context,
    b: Bench,
    option: str,
    values: Iterable[Any],
    direct: Mapping[str, Stamping] = STAMPED,
    in_tx: Mapping[str, TxStamping] = TX_ENQUEUED,
) -> None:
    """Give each value to each entry point as one option: InvalidArgument, nothing changed, the transaction goes on."""
    before = await _looks(b)
    for value in values:
        for label, call in direct.items():
            async with ctx.refuses(InvalidArgument, f"{label} refuses {option}={value!r:.40}"):
                await call(b, {option: value})
    async with ctx.store.begin_tx() as tx:
        for value in values:
            for label, call_in in in_tx.items():
                async with ctx.refuses(InvalidArgument, f"{label} refuses {option}={value!r:.40}"):
                    await call_in(tx, {option: value})
        id = await tx.enqueue("held", "control")
    ctx.expect(
        await ctx.store.queue("held").cancel(id), True, "a transaction that refused arguments still lands"
    )
    ctx.expect(await _looks(b), before, f"a refused {option} changes nothing")


@row(
    "NAME-08",
    text="An extent that is not positive gives the empty result, direct and in a transaction.",
    oracle="an empty list, nothing claimed; a positive extent gives what is there",
    kills=("zero-limit-means-no-limit",),
)
async def an_extent_that_is_not_positive_gives_nothing(ctx: Context) -> None:
    b = await bench(ctx)
    await b.store.queue("q").enqueue_batch([1, 2])
    await b.store.stream("st").publish_batch([1, 2])
    for value in (0, -1, MIN):
        for label, call in EXTENTS.items():
            with accepts(ctx, f"{label} accepts {value}"):
                ctx.expect(await call(b, value), [], f"{label} of {value} gives nothing")
        async with ctx.store.begin_tx() as tx:
            for label, call_in in TX_EXTENTS.items():
                with accepts(ctx, f"{label} accepts {value}"):
                    ctx.expect(await call_in(tx, value), [], f"{label} of {value} gives nothing")
    attempts = [job.attempts for job in await b.store.queue("q").list(state=JobState.PENDING)]
    ctx.expect(attempts, [0, 0], "nothing was claimed")
    for value in (2, 3, 1_000):
        for label in ("Queue.list limit", "Stream.read_since limit", "Stream.read_from_consumer limit"):
            found: Any = await EXTENTS[label](b, value)
            ctx.expect(len(found), 2, f"{label} of {value} gives what is there")


@row(
    "NAME-08",
    text="The other arguments are checked all the same when the extent is not positive.",
    oracle="the typed error",
)
async def an_empty_extent_does_not_hide_a_bad_argument(ctx: Context) -> None:
    store: Any = ctx.store
    async with ctx.refuses(InvalidName, "claim_batch(0) checks the worker id"):
        await store.queue("q").claim_batch(0, worker_id=" ")
    async with ctx.refuses(InvalidArgument, "list(limit=0) checks the state"):
        await store.queue("q").list(limit=0, state="pending")
    async with ctx.refuses(InvalidArgument, "list(limit=0) checks after"):
        await store.queue("q").list(limit=0, after=1.5)
    async with ctx.refuses(InvalidArgument, "read_since(…, 0) checks the offset"):
        await store.stream("st").read_since(None, 0)
    async with ctx.refuses(InvalidName, "read_from_consumer(…, 0) checks the consumer"):
        await store.stream("st").read_from_consumer("", 0)
    async with store.begin_tx() as tx:
        async with ctx.refuses(InvalidArgument, "Tx.read_since(…, 0) checks the offset"):
            await tx.read_since("st", 1.5, 0)
        async with ctx.refuses(InvalidName, "Tx.read_from_consumer(…, 0) checks the consumer"):
            await tx.read_from_consumer("st", "", 0)
    ctx.expect(await store.queue("q").claim_batch(0, worker_id="w"), [], "with good arguments it is empty")


@row(
    "NAME-09",
    text="A ttl, window or visibility_timeout that is not positive after conversion is refused.",
    oracle="InvalidArgument; the held claim and the held lock are as before and still usable",
    kills=("zero-ttl-accepted",),
)
async def a_duration_that_is_not_positive_is_refused(ctx: Context) -> None:
    b = await bench(ctx)
    await _refused(ctx, b, "visibility_timeout", NOT_POSITIVE)
    before = await _looks(b)
    for value in NOT_POSITIVE:
        for label, call in LEASES.items():
            async with ctx.refuses(InvalidArgument, f"{label} refuses {value!r}"):
                await call(b, value)
    ctx.expect(await _looks(b), before, "a refused duration changes nothing")
    ctx.expect(await b.lock.renew(MICRO), True, "one microsecond is positive, and the lock is still held")
    ctx.expect(
        await b.handle.heartbeat(MICRO), True, "one microsecond is positive, and the claim is still live"
    )
    ctx.expect(await b.handle.ack(), True, "a handle whose call was refused stays open")


@row(
    "NAME-09",
    text="max_attempts < 1 and base_delay < 0 are refused.",
    oracle="InvalidArgument, nothing stored; 1 and 0 pass",
    modes=("boundary",),
)
async def a_stamp_below_its_least_value_is_refused(ctx: Context) -> None:
    b = await bench(ctx)
    await _refused(ctx, b, "max_attempts", (0, -1, MIN))
    await _refused(ctx, b, "base_delay", (-1, -MICRO, MIN, timedelta(microseconds=-1), timedelta.min))
    id = await b.store.queue("q").enqueue(1, max_attempts=1, base_delay=0)
    job = await b.store.queue("q").get_job(id)
    ctx.expect((job and job.max_attempts, job and job.base_delay), (1, timedelta(0)), "the least values pass")


@row(
    "NAME-11",
    text="NaN, infinities, bools, text, datetimes and ints outside 64 bits are no durations.",
    oracle="InvalidArgument at every entry point; nothing changed",
    needs=("listen",),
    kills=("bool-taken-for-a-number",),
)
async def what_is_no_duration_is_refused(ctx: Context) -> None:
    b = await bench(ctx)
    for option in ("visibility_timeout", "base_delay", "expires"):
        await _refused(ctx, b, option, BAD_DURATIONS)
    await _refused(ctx, b, "delay", BAD_DURATIONS, ENQUEUED)
    before = await _looks(b)
    async with ctx.store.listen("channel") as wakes:
        for value in BAD_DURATIONS:
            for label, call in LEASES.items():
                async with ctx.refuses(InvalidArgument, f"{label} refuses {value!r:.40}"):
                    await call(b, value)
            async with ctx.refuses(InvalidArgument, f"retry refuses delay={value!r:.40}"):
                await b.handle.retry(delay=value)
            async with ctx.refuses(InvalidArgument, f"purge_dead refuses older_than={value!r:.40}"):
                await b.store.queue("q").purge_dead(older_than=value)
            async with ctx.refuses(InvalidArgument, f"claim refuses timeout={value!r:.40}"):
                await b.store.queue("q").claim(timeout=value)
            async with ctx.refuses(InvalidArgument, f"recv_timeout refuses {value!r:.40}"):
                await wakes.recv_timeout(value)
            async with ctx.refuses(InvalidArgument, f"lock refuses timeout={value!r:.40}"):
                await b.store.lock("free", 5, timeout=value)
    ctx.expect(await _looks(b), before, "a refused duration changes nothing")


@row(
    "NAME-11",
    text="A float, a bool, text or an int outside 64 bits is no integer; a number or a naive datetime no instant.",
    oracle="InvalidArgument at every entry point; nothing changed",
    kills=("naive-datetime-accepted", "bool-taken-for-a-number"),
)
async def what_is_no_integer_and_no_instant_is_refused(ctx: Context) -> None:
    b = await bench(ctx)
    await _refused(ctx, b, "max_attempts", BAD_INTEGERS)
    await _refused(ctx, b, "priority", BAD_INTEGERS, ENQUEUED)
    await _refused(ctx, b, "run_at", BAD_INSTANTS, ENQUEUED)
    before = await _looks(b)
    for value in BAD_INTEGERS:
        for label, call in INTEGERS.items():
            async with ctx.refuses(InvalidArgument, f"{label} refuses {value!r:.40}"):
                await call(b, value)
        async with ctx.refuses(InvalidArgument, f"schedule refuses priority={value!r:.40}"):
            await b.store.schedule("s", SPEC, "q", 1, priority=value)
    for value in BAD_INSTANTS:
        async with ctx.refuses(InvalidArgument, f"schedule refuses anchor={value!r}"):
            await b.store.schedule("s", SPEC, "q", 1, anchor=value)
    async with ctx.store.begin_tx() as tx:
        for value in BAD_INTEGERS:
            for label, call_in in TX_INTEGERS.items():
                async with ctx.refuses(InvalidArgument, f"{label} refuses {value!r:.40}"):
                    await call_in(tx, value)
    ctx.expect(await _looks(b), before, "a refused argument changes nothing")


@row(
    "NAME-11",
    text="A job id that is no int is refused.",
    oracle="InvalidArgument; an int out of range is only unknown",
)
async def a_job_id_that_is_no_int_is_refused(ctx: Context) -> None:
    queue: Any = ctx.store.queue("q")
    id = await queue.enqueue(1)
    for value in NO_ID:
        for call in (queue.get_job, queue.cancel, queue.redrive):
            async with ctx.refuses(InvalidArgument, f"a job id may not be {value!r}"):
                await call(value)
    async with ctx.store.begin_tx() as opened:
        tx: Any = opened
        for value in NO_ID:
            async with ctx.refuses(InvalidArgument, f"Tx.get_job refuses the id {value!r}"):
                await tx.get_job("q", value)
    ctx.that(await queue.get_job(id), "the job is untouched")
    ctx.expect(await queue.get_job(2**80), None, "an int out of range is only unknown")


@row(
    "NAME-11",
    text="A timeout that is not positive is one immediate try, and None is for ever.",
    oracle="what is ready is given, else None or LockTimeout at once; without a limit it waits on",
    needs=("listen",),
)
async def a_timeout_of_nothing_is_one_try(ctx: Context) -> None:
    store = ctx.store
    queue = store.queue("q")
    async with store.listen("channel") as wakes, store.lock("held", 3_600):
        for timeout in (0, -1, -0.5, MIN, timedelta(0), timedelta.min):
            got = await ctx.soon(queue.claim(timeout=timeout), "one try of an empty queue ends")
            ctx.expect(got, None, "one try of an empty queue gives None")
            got_wake = await ctx.soon(wakes.recv_timeout(timeout), "one try of an idle receiver ends")
            ctx.expect(got_wake, None, "one try of an idle receiver gives None")
            await _try_lock_once(ctx, store, timeout)
            await queue.enqueue(1)
            handle = await ctx.soon(queue.claim(timeout=timeout), "one try of a ready job ends")
            ctx.that(handle, "one try gives the job that is ready")
        waiting = ctx.start(queue.claim(timeout=None))
        await ctx.settle()
        await ctx.advance(200)
        await ctx.idle(waiting, "without a timeout a claim waits on")
        id = await queue.enqueue(2)
        found = await ctx.soon(waiting, "the waiting claim gets the next job")
        ctx.expect(found and found.job.id, id, "the waiting claim gets the next job")


async def _try_lock_once(ctx: Context, store: Store, timeout: Any) -> None:
    async with ctx.refuses(LockTimeout, "one try of a held lock ends at once"):
        await store.lock("held", 5, timeout=timeout)
    async with store.lock("free", 5, timeout=timeout) as lock:
        ctx.expect(lock.held, True, "one try takes a free lock")


@row(
    "NAME-11",
    text="Numbers become microseconds once, to the nearest; durations may be int, float or timedelta.",
    oracle="the stamps read back to the microsecond",
    kills=("durations-cut-to-milliseconds",),
)
async def a_duration_is_kept_to_the_microsecond(ctx: Context) -> None:
    queue = ctx.store.queue("q")
    for given, micros in (
        (1, 1_000_000),
        (0.1, 100_000),
        (1.0000004, 1_000_000),
        (1.0000006, 1_000_001),
        (6e-7, 1),
        (0.000001, 1),
        (123456.789012, 123_456_789_012),
        (timedelta(days=3, microseconds=1), 259_200_000_001),
    ):
        options = EnqueueOpts(visibility_timeout=given, base_delay=given, delay=given, expires=given)
        (id,) = await queue.enqueue_batch([1], each=[options])
        job = await queue.get_job(id)
        assert job is not None
        span = timedelta(microseconds=micros)
        ctx.expect(
            (job.visibility_timeout, job.base_delay), (span, span), f"{given!r} is kept to the microsecond"
        )
        shown = (job.run_at - job.created_at, job.expires_at and job.expires_at - job.created_at)
        ctx.expect(shown, (span, span), f"instants are {given!r} away to the microsecond")
