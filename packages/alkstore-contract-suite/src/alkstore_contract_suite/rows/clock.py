"""CLK-01 to CLK-03: at the instant it is so, for everybody, and only now moves time."""

from collections.abc import Awaitable, Callable
from typing import Final

from alkstore import JobState, Queue, StopToken, Store
from alkstore_contract_suite.context import MICRO, Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._queue import given, later, read, take, take_nothing

HOLD: Final = 0.003
"""Seconds of real time that pass while the storage's clock stands."""

WAITS: Final = (1.0, 0.000003, 59.999999, 3_600.5)
"""Seconds: whole ones, a few microseconds, just under a minute, a fraction."""


@row(
    "CLK-01",
    text="A job is ready when now >= run_at, and not one microsecond earlier.",
    oracle="claims one microsecond before, at and after",
    modes=("boundary", "second"),
    kills=("now-in-whole-seconds", "due-one-microsecond-late"),
)
async def a_job_is_ready_at_its_instant(ctx: Context) -> None:
    mine, other = ctx.store.queue("q"), (await ctx.turn()).queue("q")
    for wait in WAITS:
        now = await ctx.now()
        ids = [await mine.enqueue(1, delay=wait), await mine.enqueue(2, run_at=later(now, wait))]
        await ctx.advance(wait - MICRO)
        await take_nothing(ctx, other, "one microsecond early is early")
        await ctx.advance(MICRO)
        handles = await other.claim_batch(3)
        ctx.expect([each.job.id for each in handles], ids, "at the instant it is ready")
        ctx.expect([await each.retry(delay=wait) for each in handles], [True, True], "a retry lands")
        await ctx.advance(wait - MICRO)
        await take_nothing(ctx, other, "one microsecond before the retry is early")
        await ctx.advance(MICRO)
        handles = await other.claim_batch(3)
        ctx.expect([each.job.id for each in handles], ids, "at the retry's instant it is ready")
        ctx.expect([await each.ack() for each in handles], [True, True], "the claims are live")


@row(
    "CLK-01",
    text="A job is expired when now >= expires_at, and not one microsecond earlier.",
    oracle="claimable one microsecond before, swept to dead at the instant",
    modes=("boundary", "second"),
    kills=("expired-one-microsecond-late", "now-in-whole-seconds"),
)
async def a_job_expires_at_its_instant(ctx: Context) -> None:
    mine, other = ctx.store.queue("q"), (await ctx.turn()).queue("q")
    for wait in WAITS:
        id = await mine.enqueue(1, expires=wait)
        await ctx.advance(wait - MICRO)
        ctx.expect(await other.sweep_expired(), 0, "one microsecond before its expiry nothing is swept")
        ctx.expect(
            await (await take(ctx, other)).release(), True, "one microsecond before its expiry it is ready"
        )
        await ctx.advance(MICRO)
        await take_nothing(ctx, other, "at its expiry it is not claimable")
        await other.sweep_expired()
        ctx.expect((await read(ctx, mine, id)).state, JobState.DEAD, "at its expiry it is expired")


@row(
    "CLK-01",
    text="A claim has lapsed when now >= deadline, and not one microsecond earlier.",
    oracle="heartbeat and ack one microsecond before land; at the instant they do not, and the job is given again",
    modes=("boundary", "second"),
    kills=("held-at-the-deadline", "now-in-whole-seconds"),
)
async def a_claim_lapses_at_its_instant(ctx: Context) -> None:
    mine, other = ctx.store.queue("q", max_attempts=1_000), (await ctx.turn()).queue("q")
    for wait in WAITS:
        id = await mine.enqueue(1, visibility_timeout=wait)
        handle = await take(ctx, mine)
        await ctx.advance(wait - MICRO)
        await take_nothing(ctx, other, "one microsecond before its deadline a claim holds")
        ctx.expect(await handle.heartbeat(), True, "one microsecond before its deadline a claim renews")
        await ctx.advance(wait - MICRO)
        await take_nothing(ctx, other, "a renewed claim holds")
        await ctx.advance(MICRO)
        ctx.expect(await handle.heartbeat(), False, "at its deadline a claim is not renewed")
        ctx.expect(await handle.ack(), False, "at its deadline a claim does not ack")
        again = await take(ctx, other, "at its deadline the job is given again")
        ctx.expect((again.job.id, again.job.attempts), (id, 2), "the lapsed job comes again")
        await ctx.advance(wait - MICRO)
        ctx.expect(await again.ack(), True, "one microsecond before its deadline an ack lands")


@row(
    "CLK-01",
    text="A lock has lapsed when now >= its end, and not one microsecond earlier.",
    oracle="held one microsecond before, taken at the instant",
    modes=("boundary", "second"),
    kills=("lock-held-at-its-end", "now-in-whole-seconds"),
)
async def a_lock_lapses_at_its_instant(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    for wait in WAITS:
        lock = await mine.try_lock("l", wait)
        ctx.that(lock, "a free lock is taken")
        assert lock is not None
        await ctx.advance(wait - MICRO)
        ctx.expect(await other.try_lock("l", 1), None, "one microsecond before its end a lock is held")
        ctx.expect(len(await other.locks()), 1, "one microsecond before its end a lock is listed")
        await ctx.advance(MICRO)
        ctx.expect(await other.locks(), [], "at its end a lock is not listed")
        ctx.expect(await lock.renew(wait), False, "at its end a lock is not renewed")
        taken = await other.try_lock("l", wait)
        ctx.that(taken, "at its end a lock is free")
        assert taken is not None
        ctx.expect(await taken.release(), True, "the new holder holds it")


@row(
    "CLK-01",
    text="A schedule is due when now >= next_fire_at, and not one microsecond earlier.",
    oracle="ticks one microsecond before, at and after",
    modes=("boundary", "second"),
    kills=("fires-one-microsecond-late",),
)
async def a_schedule_is_due_at_its_instant(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    await ctx.advance(0.123457)
    made = await mine.schedule("s", "@every 7s", "q", 1)
    ctx.expect(made.next_fire_at, later(await ctx.now(), 7), "the first boundary is registration + interval")
    await ctx.advance(7 - MICRO)
    ctx.expect(await other.tick_schedules(), 0, "one microsecond before its boundary a schedule is not due")
    await ctx.advance(MICRO)
    ctx.expect(await other.tick_schedules(), 1, "at its boundary a schedule is due")
    await ctx.advance(MICRO)
    ctx.expect(await other.tick_schedules(), 0, "a boundary is fired once")
    job = (await take(ctx, other.queue("q"))).job
    ctx.expect(job.scheduled_for, made.next_fire_at, "the job names its boundary to the microsecond")


async def _claims_at(ctx: Context, queue: Queue, seconds: float, promise: str) -> None:
    waiting = ctx.start(queue.claim())
    await ctx.advance(seconds - MICRO)
    await ctx.idle(waiting, f"{promise}, and not one microsecond earlier")
    await ctx.advance(MICRO)
    handle = await given(ctx, waiting, promise)
    ctx.expect(await handle.ack(), True, "who was woken by an instant holds a live claim")


@row(
    "CLK-02",
    text="Moving the time moves claims, delays, schedules and the outbox's curve, and wakes who waits for an instant.",
    oracle="waiting claims come at the instant, in either store",
    modes=("plain", "second"),
    kills=("instants-wake-nobody",),
)
async def moving_the_time_wakes_who_waits_for_it(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    await mine.queue("q").enqueue(1, delay=60)
    await _claims_at(ctx, other.queue("q"), 60, "a waiting claim comes when a delay has passed")
    await mine.queue("q").enqueue(1, visibility_timeout=30)
    await take(ctx, mine.queue("q"))
    await _claims_at(ctx, other.queue("q"), 30, "a waiting claim comes when a deadline has passed")
    await mine.queue("q").enqueue(1)
    await (await take(ctx, mine.queue("q"))).retry(delay=15)
    await _claims_at(ctx, other.queue("q"), 15, "a waiting claim comes when a retry is due")
    await mine.outbox("o").enqueue(1, base_delay=0)
    delivered: list[int] = []

    async def deliver(handle: object) -> None:
        delivered.append(1)
        if len(delivered) == 1:
            raise OSError("not yet")

    stop = StopToken()
    runner = ctx.start(other.outbox("o").run(deliver, stop=stop))
    await ctx.settle()
    await ctx.advance(0)
    ctx.expect(len(delivered), 2, "the outbox tries again when its curve says so")
    stop.cancel()
    await ctx.soon(runner, "the outbox's runner stops")


@row(
    "CLK-02",
    text="Locks and the runner wait for instants of now too, and renewals keep what is held.",
    oracle="a waiter takes a lapsed lock at its instant; a renewed lock outlives its ttl; the runner fires on time",
    modes=("plain", "second"),
    kills=("instants-wake-nobody",),
)
async def moving_the_time_moves_locks_and_the_runner(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    await mine.try_lock("l", 40)
    entered: list[str] = []
    waiting = ctx.start(_hold_lock(ctx, other, entered))
    await ctx.advance(40 - MICRO)
    ctx.expect(entered, [], "a lock is waited for until its end")
    await ctx.advance(MICRO)
    ctx.expect(entered, ["in"], "a waiter takes a lapsed lock at its instant")
    for _ in range(8):
        await ctx.advance(4)
    ctx.expect(await mine.try_lock("l", 1), None, "a renewed lock outlives its ttl")
    ctx.that(not waiting.done(), "the holder of a renewed lock is left in peace")
    await mine.schedule("s", "@every 5s", "q", 1)
    stop = StopToken()
    runner = ctx.start(other.run_schedules(stop))
    await ctx.settle()
    for fired in range(4):
        ctx.expect((await mine.queue("q").stats()).ready, fired, "the runner fires at its boundaries only")
        await ctx.advance(5)
    stop.cancel()
    await ctx.soon(runner, "the runner stops")


async def _hold_lock(ctx: Context, store: Store, entered: list[str]) -> None:
    async with store.lock("l", 10):
        entered.append("in")
        await StopToken().wait()


@row(
    "CLK-02",
    text="Limits of waiting run on the event loop's time: a stopped clock hangs no caller.",
    oracle="a timeout of milliseconds ends while the storage's clock stands",
    needs=("listen",),
    kills=("timeouts-run-on-the-stores-clock",),
)
async def a_stopped_clock_hangs_no_caller(ctx: Context) -> None:
    store = ctx.store
    before = await ctx.now()
    await store.queue("q").enqueue(1, delay=60)
    got = await ctx.soon(store.queue("q").claim(timeout=HOLD), "a claim ends at its timeout")
    ctx.expect(got, None, "a claim that timed out gives None")
    async with store.listen("c") as wakes, store.lock("l", 60):
        got_wake = await ctx.soon(wakes.recv_timeout(HOLD), "a receiver ends at its timeout")
        ctx.expect(got_wake, None, "a receiver that timed out gives None")
        async with ctx.refuses(TimeoutError, "a lock wait ends at its timeout"):
            await ctx.soon(_lock_briefly(store), "a lock wait ends at its timeout")
    ctx.expect(await ctx.now(), before, "the storage's clock stood all the while")


async def _lock_briefly(store: Store) -> None:
    async with store.lock("l", 5, timeout=HOLD):
        return


@row(
    "CLK-02",
    text="Moving a clock is one jump: whoever waits for an instant within it wakes once, after it.",
    oracle="every waiter sees the time after the jump, whatever it waited for",
)
async def a_jump_is_one_jump(ctx: Context) -> None:
    queue = ctx.store.queue("q")
    for delay in (1, 2, 500, 999):
        await queue.enqueue(delay, delay=delay)
    start = await ctx.now()
    seen: list[object] = []

    async def look(step: Callable[[], Awaitable[object]]) -> None:
        await step()
        seen.append(await ctx.now())

    waiting = [ctx.start(look(queue.claim)) for _ in range(4)]
    await ctx.advance(1_000)
    ctx.expect(seen, [later(start, 1_000)] * 4, "who waits for an instant within a jump wakes after it")
    ctx.that(all(task.done() for task in waiting), "each of them woke")


@row(
    "CLK-03",
    text="With the clock stopped nothing expires, however much wall time passes.",
    oracle="a job, a claim, a lock and a schedule that a microsecond would end are unchanged after real time",
    modes=("plain", "second"),
    kills=("time-goes-on-by-itself",),
)
async def nothing_expires_while_the_clock_stands(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    queue = mine.queue("q")
    await queue.enqueue("held", visibility_timeout=MICRO)
    handle = await take(ctx, queue)
    await queue.enqueue("expiring", expires=MICRO)
    await queue.enqueue("delayed", delay=MICRO, priority=5)
    lock = await mine.try_lock("l", MICRO)
    await mine.schedule("s", "@every 1s", "q", 1)
    now = await ctx.now()
    for _ in range(3):
        await ctx.hold(HOLD)
    ctx.expect(await ctx.now(), now, "the clock stands")
    ctx.expect(await other.try_lock("l", 1), None, "a lock does not lapse while the clock stands")
    ctx.expect(await other.tick_schedules(), 0, "nothing falls due while the clock stands")
    expiring = await take(ctx, other.queue("q"), "nothing expires while the clock stands")
    ctx.expect(
        expiring.job.payload, "expiring", "neither a delay nor a deadline passes while the clock stands"
    )
    ctx.expect(await handle.ack(), True, "a claim does not lapse while the clock stands")
    ctx.expect(await lock.release() if lock else None, True, "the lock is still held")


@row(
    "CLK-03",
    text="A clock stepped back fires and lapses nothing twice.",
    oracle="no second job for a boundary, one attempt, one holder, positions as before",
    modes=("plain", "second"),
    kills=("boundaries-follow-the-clock-back",),
)
async def a_clock_stepped_back_does_nothing_twice(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    await mine.schedule("s", "@every 10s", "fired", 1)
    await mine.queue("q").enqueue(1, visibility_timeout=20, max_attempts=5)
    await mine.queue("expiring").enqueue(1, expires=20)
    await take(ctx, mine.queue("q"))
    lock = await mine.try_lock("l", 20)
    assert lock is not None
    await ctx.advance(20)
    ctx.expect(await mine.tick_schedules(), 2, "two boundaries are fired")
    again = await take(ctx, other.queue("q"), "a lapsed job comes again")
    await take_nothing(ctx, other.queue("expiring"), "an expired job is not claimed")
    taken = await other.try_lock("l", 100)
    ctx.that(taken and taken.fence > lock.fence, "a lapsed lock is taken with a greater fence")
    for _ in range(2):
        await ctx.advance(-20)
        ctx.expect(await other.tick_schedules(), 0, "no boundary is fired twice")
        await take_nothing(ctx, mine.queue("q"), "a claim does not end because the clock went back")
        early = await take(ctx, mine.queue("expiring"), "before its instant nothing is expired")
        ctx.expect(await early.release(), True, "it is given back")
        ctx.expect(await lock.renew(5), False, "a lock that was lost stays lost")
        ctx.expect(await mine.try_lock("l", 5), None, "a lock has one holder after a step back")
        await ctx.advance(20)
        ctx.expect(await other.tick_schedules(), 0, "no boundary is fired twice")
    ctx.expect((await mine.queue("fired").stats()).ready, 2, "each boundary gave one job")
    ctx.expect(again.job.attempts, 2, "each lapse counted once")
    ctx.expect(await again.ack(), True, "the holder's claim is live all along")
