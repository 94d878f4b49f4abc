"""Rows SCHED-09, SCHED-10 and SCHED-15: who leads, what a lost lease means, and what a failing storage does."""

from datetime import timedelta

from alkstore import DatabaseError, LeadershipLost, ReservedName
from alkstore_contract_suite.context import MICRO, Context
from alkstore_contract_suite.factory import Fault
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._receiving import broken
from alkstore_contract_suite.rows._schedule import (
    LEASE,
    LEASE_NAME,
    SECOND,
    Runner,
    boundaries,
    fired_for,
    lease,
)


@row(
    "SCHED-09",
    text="A runner holds the scheduler's lock: a lease of 10 s, with a fence, gone after its clean end.",
    oracle="locks() before, during and after two runs",
    modes=SECOND,
    kills=("clean-stop-keeps-the-lease",),
)
async def a_runner_holds_the_lease(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    fences = []
    for _ in range(2):
        ctx.expect(await lease(other), None, "nobody leads before a runner runs")
        runner = Runner(ctx, mine)
        await ctx.idle(runner.task, "a runner runs until it is stopped")
        held = await lease(other)
        ctx.that(held is not None, "a runner holds the scheduler's lock", observed=await other.locks())
        assert held is not None
        ends = held.expires_at - await ctx.now()
        ctx.expect(ends, timedelta(seconds=LEASE), "the lease is 10 s")
        fences.append(held.fence)
        await runner.ends(ctx)
    ctx.expect(await lease(other), None, "a clean stop releases the lease")
    ctx.that(fences[0] < fences[1], "each leadership has a greater fence", observed=fences)


@row(
    "SCHED-09",
    text="The lease is renewed before every tick, and every 2 s while the runner sleeps.",
    oracle="what is left of the lease after every move of time, through ten leases",
    modes=("boundary", "second"),
    kills=("runner-renews-too-late",),
)
async def the_lease_is_renewed_in_time(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    queue = ctx.name("mail")
    runner = Runner(ctx, mine)
    await ctx.settle()
    first, left = await lease(other), None
    await mine.schedule(ctx.name("report"), "@every 9s", queue, 1)
    for moves in ((2.0, 2.0, 1.5, 2.0, 1.5), (2 - MICRO, MICRO, 1.0, 0.5, 0.5, 2.0, 2.0, 1.0)) * 5:
        for seconds in moves:
            await ctx.advance(seconds)
            held = await lease(other)
            left = None if held is None else (held.expires_at - await ctx.now()).total_seconds()
            ctx.that(left is not None and left >= 8, "a sleeping runner renews every 2 s", observed=left)
        ctx.expect(left, 10.0, "the lease is renewed before every tick")
    held = await lease(other)
    ctx.expect(held and held.fence, first and first.fence, "a renewed lease is the same lease")
    ctx.expect(len(await fired_for(other, queue)), 10, "the runner fires what is due")
    await runner.ends(ctx)


@row(
    "SCHED-09",
    text="The owner is unique for each runner: two runners of one store are two.",
    oracle="a second runner beside the first, in the same store and in another",
    modes=SECOND,
    kills=("runners-of-a-store-share-the-lease",),
)
async def two_runners_of_one_store_are_two(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    first = Runner(ctx, mine)
    await ctx.settle()
    for store in (mine, other):
        second = Runner(ctx, store)
        async with ctx.refuses(LeadershipLost, "while one leads another is refused"):
            await ctx.soon(second.task, "a refused runner ends at once")
    await ctx.idle(first.task, "the leader goes on")
    await first.ends(ctx)
    third = Runner(ctx, other)
    await ctx.idle(third.task, "once the leader stopped another may lead")
    await third.ends(ctx)


@row(
    "SCHED-10",
    text="A runner that is refused at its start raises LeadershipLost and fires nothing.",
    oracle="a boundary that is due while the leader stands still, after the refusal; then the leader fires it",
    modes=SECOND,
    kills=("refused-leader-ticks-once",),
)
async def a_refused_runner_fires_nothing(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    queue, start = ctx.name("mail"), await ctx.now()
    await mine.schedule(ctx.name("report"), "@every 5s", queue, 1)
    leader = Runner(ctx, mine)
    await ctx.settle()
    leader.stall()
    await ctx.advance(5)
    ctx.expect(await fired_for(other, queue), [], "a leader that stands still fires nothing")
    async with ctx.refuses(LeadershipLost, "while one leads another is refused"):
        await ctx.soon(Runner(ctx, other).task, "a refused runner ends at once")
    ctx.expect(await fired_for(other, queue), [], "a refused runner fires nothing")
    leader.go_on()
    await ctx.settle()
    ctx.expect(await fired_for(other, queue), boundaries(start, 5, 1), "the leader fires what was due")
    await leader.ends(ctx)


@row(
    "SCHED-10",
    text="A lease that lapsed is lost, even if nobody took it: LeadershipLost, before any further fire.",
    oracle="a leader that stood still until the end of its lease, and one that came back a microsecond earlier",
    modes=("boundary", "second"),
    kills=("deposed-leader-fires", "lapsed-lease-is-revived"),
)
async def a_lapsed_lease_is_lost(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    for beyond in (-MICRO, 0.0):
        name, queue, start = ctx.name("report"), ctx.name("mail"), await ctx.now()
        await mine.schedule(name, "@every 1s", queue, 1)
        leader = Runner(ctx, mine)
        await ctx.settle()
        leader.stall()
        await ctx.advance(10 + beyond)
        leader.go_on()
        if beyond < 0:
            await ctx.idle(leader.task, "a lease that has not lapsed is renewed")
            fired = await fired_for(other, queue)
            ctx.expect(fired, boundaries(start, 1, *range(1, 10)), "a leader catches up")
            await leader.ends(ctx)
        else:
            async with ctx.refuses(LeadershipLost, "a lease that lapsed is lost, though nobody took it"):
                await ctx.soon(leader.task, "a leader without its lease ends")
            ctx.expect(await fired_for(other, queue), [], "a leader without its lease fires nothing")
            ctx.expect(await lease(other), None, "a lost lease is not revived")
            ctx.expect(await other.tick_schedules(), 10, "what it did not fire is still due")
        await mine.unschedule(name)


@row(
    "SCHED-10",
    text="A deposed leader raises LeadershipLost and fires nothing; its successor is not disturbed.",
    oracle="the boundaries fired by a leader that stood still, by its successor, and after it came back",
    modes=SECOND,
    kills=("deposed-leader-fires",),
)
async def a_deposed_leader_fires_nothing(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    queue, start = ctx.name("mail"), await ctx.now()
    await mine.schedule(ctx.name("report"), "@every 4s", queue, 1)
    old = Runner(ctx, mine)
    await ctx.settle()
    old.stall()
    await ctx.advance(10)
    new = Runner(ctx, other)
    await ctx.idle(new.task, "after the lease another may lead")
    new.stall()
    await ctx.advance(2)
    held = await lease(other)
    old.go_on()
    async with ctx.refuses(LeadershipLost, "a deposed leader is told"):
        await ctx.soon(old.task, "a deposed leader ends")
    expected = boundaries(start, 4, 1, 2)
    ctx.expect(await fired_for(other, queue), expected, "a deposed leader fires nothing that is due")
    ctx.expect(await lease(other), held, "a deposed leader takes nothing from its successor")
    new.go_on()
    await ctx.idle(new.task, "the successor goes on")
    expected = boundaries(start, 4, 1, 2, 3)
    ctx.expect(await fired_for(other, queue), expected, "every boundary fires once, across leaders")
    await new.ends(ctx)


@row(
    "SCHED-10",
    text="A runner that is paused anywhere, between its renewal and its fire too, fires nothing once its lease is gone.",
    oracle="a leader that stands still at its first, second … twelfth wait of a tick, until its lease is gone",
    modes=("plain", "second"),
    kills=("fire-ignores-the-lease",),
    hints="check the fence in the same atomic step as the fire",
)
async def a_paused_leader_fires_nothing(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    queue = ctx.name("mail")
    await mine.schedule(ctx.name("report"), "@every 5s", queue, 1)
    for waits in range(12):
        leader = Runner(ctx, mine)
        await ctx.settle()
        leader.stall(after=waits)
        for seconds in (5, 2, 2, 2):
            await ctx.advance(seconds)
        await ctx.advance(10)
        before = await fired_for(other, queue)
        held = await lease(other)
        leader.go_on()
        await ctx.settle()
        if held is None:
            ctx.expect(await fired_for(other, queue), before, "a runner without its lease fires nothing")
            async with ctx.refuses(LeadershipLost, "a runner without its lease is told"):
                await ctx.soon(leader.task, "a runner without its lease ends")
        else:
            await leader.ends(ctx)
        await other.tick_schedules()
    fired = await fired_for(other, queue)
    ctx.expect(len(set(fired)), len(fired), "no boundary fires twice")


@row(
    "SCHED-10",
    text="The lease's name is reserved: a consumer can neither take it nor wait for it.",
    oracle="the typed error with and without a leader; the leader goes on",
    modes=SECOND,
)
async def the_leases_name_is_reserved(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    leader = Runner(ctx, mine)
    await ctx.settle()
    held = await lease(other)
    async with ctx.refuses(ReservedName, "try_lock of the scheduler's lock is refused"):
        await other.try_lock(LEASE_NAME, 5)
    with ctx.refuses_sync(ReservedName, "lock of the scheduler's lock is refused"):
        _ = other.lock(LEASE_NAME, 5)
    ctx.expect(await lease(other), held, "a refused lock changes nothing")
    await ctx.idle(leader.task, "the leader goes on")
    await leader.ends(ctx)


@row(
    "SCHED-15",
    text="With no schedules a runner idles, and keeps its lease.",
    oracle="the runner and its lease over a minute; then a schedule that it fires",
    modes=SECOND,
)
async def a_runner_without_schedules_idles(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    runner = Runner(ctx, mine)
    for _ in range(40):
        await ctx.advance(1.5)
    await ctx.idle(runner.task, "with no schedules a runner idles")
    ctx.that(await lease(other), "an idle runner keeps its lease")
    queue, start = ctx.name("mail"), await ctx.now()
    await other.schedule(ctx.name("report"), "@every 1s", queue, 1)
    await ctx.advance(1)
    ctx.expect(await fired_for(other, queue), boundaries(start, 1, 1), "an idle runner fires what comes")
    await runner.ends(ctx)


@row(
    "SCHED-15",
    text="Only the working loop renews: a runner whose ticks do not get through lets the lease go within 10 s.",
    oracle="another runner around the end of the lease of one that stands still",
    modes=("boundary", "second"),
    kills=("runner-renews-in-the-background",),
)
async def a_stuck_runner_lets_the_lease_go(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    stuck = Runner(ctx, mine)
    await ctx.settle()
    stuck.stall()
    for seconds in (2, 2, 2, 2, 2 - MICRO):
        await ctx.advance(seconds)
    async with ctx.refuses(LeadershipLost, "until its end the lease is held"):
        await ctx.soon(Runner(ctx, other).task, "a refused runner ends at once")
    await ctx.advance(MICRO)
    new = Runner(ctx, other)
    await ctx.idle(new.task, "a stuck runner lets the lease go within 10 s")
    stuck.go_on()
    async with ctx.refuses(LeadershipLost, "a runner that comes back too late is told"):
        await ctx.soon(stuck.task, "a runner that comes back too late ends")
    await new.ends(ctx)


@row(
    "SCHED-15",
    text="A DatabaseError is met with back-off and repeated while the lease lives.",
    oracle="a boundary that falls due while the storage is away, and fires once when it is back",
    needs=("durable",),
)
async def a_runner_outlives_a_database_error(ctx: Context) -> None:
    queue, start = ctx.name("mail"), await ctx.now()
    await ctx.store.schedule(ctx.name("report"), "@every 5s", queue, 1)
    runner = Runner(ctx, ctx.store)
    await ctx.settle()
    async with broken(ctx, Fault.STORAGE_AWAY, ctx.store):
        await ctx.advance(5)
        for _ in range(20):
            await ctx.hold(0.003)
        ctx.still_waiting(runner.task, "a runner outlives a database error")
    await _until_fired(ctx, queue, 1)
    ctx.expect(
        await fired_for(ctx.store, queue), boundaries(start, 5, 1), "the boundary fires once, in the end"
    )
    await runner.ends(ctx)


@row(
    "SCHED-15",
    text="Once the lease cannot be renewed: LeadershipLost with the database's error as its cause.",
    oracle="a runner whose storage is away past the end of its lease",
    needs=("durable",),
)
async def a_lease_that_cannot_be_renewed_is_lost(ctx: Context) -> None:
    queue = ctx.name("mail")
    await ctx.store.schedule(ctx.name("report"), "@every 5s", queue, 1)
    runner = Runner(ctx, ctx.store)
    await ctx.settle()
    async with broken(ctx, Fault.STORAGE_AWAY, ctx.store):
        await ctx.advance(5)
        await ctx.advance(5)
        async with ctx.refuses(LeadershipLost, "a lease that cannot be renewed is lost") as caught:
            await ctx.soon(runner.task, "a runner without its lease ends")
        cause = type(caught.error.__cause__)
        ctx.that(issubclass(cause, DatabaseError), "the database's error is the cause", observed=cause)
    ctx.expect(await fired_for(ctx.store, queue), [], "a runner without its lease fired nothing")


async def _until_fired(ctx: Context, queue: str, count: int) -> None:
    for _ in range(400):
        if len(await fired_for(ctx.store, queue)) >= count:
            return
        await ctx.hold(0.003)
    ctx.fail("a boundary that fell due during an error fires afterwards", f"{count} fires", "none")
