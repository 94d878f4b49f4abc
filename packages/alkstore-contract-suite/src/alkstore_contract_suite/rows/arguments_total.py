"""NAME-10: boundaries are total, and every instant stays within the calendar."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final

from alkstore import Job, Queue
from alkstore_contract_suite.context import MICRO, Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._accepting import accepts
from alkstore_contract_suite.rows._arguments import MAX, MIN
from alkstore_contract_suite.rows._entry_points import SPEC
from alkstore_contract_suite.rows._queue import bury, read, take

FIRST: Final = datetime(1, 1, 1, tzinfo=UTC)
LAST: Final = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
EAST: Final = timezone(timedelta(hours=14))
WEST: Final = timezone(-timedelta(hours=14))

LARGE: Final[tuple[Any, ...]] = (10**12, MAX, 1e15, 1e300, timedelta.max, 2**53 + 1)
SMALL: Final[tuple[Any, ...]] = (-(10**12), MIN, -1e15, -1e300, timedelta.min)


async def _stored(ctx: Context, queue: Queue, **options: Any) -> Job:
    with accepts(
        ctx, f"{', '.join(f'{name}={value!r:.40}' for name, value in options.items())} has a meaning"
    ):
        id = await queue.enqueue(1, **options)
    return await read(ctx, queue, id)


@row(
    "NAME-10",
    text="Any delay and any expires has a meaning, and its instant is clamped to the calendar.",
    oracle="run_at and expires_at read back as the calendar's first or last instant; small ones are ready, or expired",
    kills=("instants-are-not-clamped",),
)
async def any_delay_and_any_expiry_has_a_meaning(ctx: Context) -> None:
    queue = ctx.store.queue("q")
    for value in LARGE:
        job = await _stored(ctx, queue, delay=value, expires=value)
        ctx.expect((job.run_at, job.expires_at), (LAST, LAST), "a far instant is the calendar's last")
        ctx.expect(await queue.claim_one(), None, "what is delayed for ever is not claimable")
        await queue.cancel(job.id)
    for value in SMALL:
        job = await _stored(ctx, queue, delay=value)
        handle = await take(ctx, queue, "a delay below nothing is ready now")
        ctx.expect(handle.job.id, job.id, "a delay below nothing is ready now")
        job = await _stored(ctx, queue, expires=value)
        ctx.expect(job.expires_at, FIRST, "an expiry before the calendar is its first instant")
        ctx.expect(await queue.claim_one(), None, "what expired at once is not claimable")
        await queue.cancel(job.id)


@row(
    "NAME-10",
    text="Any aware datetime has a meaning as run_at and as anchor, and reads back clamped.",
    oracle="the calendar's ends read back exactly, in UTC",
    modes=("plain", "second", "reopen"),
)
async def any_aware_datetime_has_a_meaning(ctx: Context) -> None:
    given = {
        FIRST: FIRST,
        LAST: LAST,
        datetime(1, 1, 1, tzinfo=EAST): FIRST,
        datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=WEST): LAST,
        datetime(2026, 3, 29, 2, 30, 0, 1, tzinfo=EAST): datetime(2026, 3, 28, 12, 30, 0, 1, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC): datetime(
            1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC
        ),
    }
    queue = ctx.store.queue("q")
    ids = {}
    for instant in given:
        with accepts(ctx, f"run_at={instant!r} has a meaning"):
            ids[instant] = await queue.enqueue(1, run_at=instant)
        with accepts(ctx, f"anchor={instant!r} has a meaning"):
            await ctx.store.schedule(f"s {instant!r}", SPEC, "q", 1, anchor=instant)
    store = await ctx.turn()
    anchors = {each.name: each.anchor for each in await store.schedules()}
    for instant, kept in given.items():
        job = await read(ctx, store.queue("q"), ids[instant])
        ctx.expect(job.run_at, kept, "run_at reads back as the same instant, within the calendar")
        ctx.expect(job.run_at.utcoffset(), timedelta(0), "an instant reads back in UTC")
        ctx.expect(
            anchors[f"s {instant!r}"], kept, "an anchor reads back as the same instant, within the calendar"
        )


@row(
    "NAME-10",
    text="Every positive duration has a meaning, however large: stamps, windows, ttls.",
    oracle="deadlines and ends of locks read back as the calendar's last instant",
    kills=("instants-are-not-clamped",),
)
async def every_positive_duration_has_a_meaning(ctx: Context) -> None:
    for number, value in enumerate(LARGE):
        with accepts(ctx, f"{value!r:.40} seconds have a meaning"):
            await _use_everywhere(ctx, number, value)
    ends = {each.expires_at for each in await ctx.store.locks()}
    ctx.expect(ends, {LAST}, "a lock for ever lasts to the end of the calendar")


async def _use_everywhere(ctx: Context, number: int, value: Any) -> None:
    queue = ctx.store.queue("q")
    await _stored(ctx, queue, visibility_timeout=value, base_delay=value, max_attempts=MAX)
    handle = await take(ctx, queue)
    ctx.expect(handle.job.deadline, LAST, "a claim for ever lasts to the end of the calendar")
    ctx.expect(await handle.heartbeat(value), True, "a live claim can be renewed for ever")
    ctx.expect(await handle.retry(), True, "a retry with an endless base delay lands")
    job = await read(ctx, queue, handle.job.id)
    ctx.that(job.run_at > await ctx.now(), "a retry with an endless base delay waits", observed=job)
    await queue.cancel(job.id)
    lock = await ctx.store.try_lock(f"lock {number}", value)
    ctx.that(lock and await lock.renew(value), "a lock for ever can be taken and renewed")


@row(
    "NAME-10",
    text="Any 64-bit offset and horizon has a meaning, and so has any age.",
    oracle="reads, positions, trims and purges at both ends of 64 bits",
    modes=("boundary",),
    kills=("trim-at-the-end-overflows",),
)
async def any_offset_and_any_age_has_a_meaning(ctx: Context) -> None:
    stream = ctx.store.stream("st")
    offsets = await stream.publish_batch([1, 2, 3])
    for value, seen in ((MIN, offsets), (-1, offsets), (0, offsets), (MAX, [])):
        with accepts(ctx, f"the offset {value} has a meaning"):
            found = [event.offset for event in await stream.read_since(value)]
            ctx.expect(found, seen, f"read_since({value}) gives what is after it")
            await stream.reset_offset("c", value)
            ctx.expect(await stream.get_offset("c"), value, "a position reads back as it was set")
            found = [event.offset for event in await stream.read_from_consumer("c")]
            ctx.expect(found, seen, "a consumer reads from its position")
            async with stream.subscribe("c") as events, stream.subscribe(after=value) as others:
                first = (await events.try_recv(), await others.try_recv())
            shown = tuple(event and event.offset for event in first)
            ctx.expect(shown, (seen[0], seen[0]) if seen else (None, None), "a subscription starts there")
    with accepts(ctx, "every horizon has a meaning"):
        ctx.expect(await stream.trim_to(MIN), 0, "the least horizon removes none")
        ctx.expect(await stream.trim_to(MAX), 3, "the greatest horizon removes all")
    (offset,) = await stream.publish_batch([4])
    ctx.that(offset > offsets[-1], "numbering goes on after a trim of everything", observed=offset)
    await _purge_any_age(ctx)


async def _purge_any_age(ctx: Context) -> None:
    queue = ctx.store.queue("dead")
    await bury(ctx, queue)
    await ctx.advance(MICRO)
    for value in LARGE:
        with accepts(ctx, f"older_than={value!r:.40} has a meaning"):
            ctx.expect(await queue.purge_dead(older_than=value), 0, "nothing is older than for ever")
    for value in SMALL:
        with accepts(ctx, f"older_than={value!r:.40} has a meaning"):
            ctx.expect(await queue.purge_dead(older_than=value), 1, "an age below nothing means all")
        await bury(ctx, queue)
    for after, count in ((MIN, 1), (MAX, 0)):
        ctx.expect(len(await queue.list(after=after)), count, f"list after {after} has a meaning")


@row(
    "NAME-10",
    text="Transactions take the same boundaries.",
    oracle="every value lands at commit and reads back",
)
async def a_transaction_takes_the_same_boundaries(ctx: Context) -> None:
    (offset,) = await ctx.store.stream("st").publish_batch([1])
    async with ctx.store.begin_tx() as tx:
        with accepts(ctx, "a transaction takes any boundary"):
            far = await tx.enqueue("q", 1, delay=MAX, expires=1e300)
            past = await tx.enqueue("q", 1, run_at=datetime(1, 1, 1, tzinfo=EAST))
            found = [[event.offset for event in await tx.read_since("st", at)] for at in (MIN, 0, MAX)]
            await tx.save_offset("st", "c", MAX, after=0)
            ended = await tx.read_from_consumer("st", "c")
    ctx.expect(found, [[offset], [offset], []], "Tx.read_since reads from any offset")
    ctx.expect(ended, [], "a consumer at the greatest offset has read everything")
    job = await read(ctx, ctx.store.queue("q"), far)
    ctx.expect((job.run_at, job.expires_at), (LAST, LAST), "a far instant is the calendar's last")
    ctx.expect((await read(ctx, ctx.store.queue("q"), past)).run_at, FIRST, "a far past is its first")
    ctx.expect(await ctx.store.stream("st").get_offset("c"), MAX, "the greatest position is kept")
