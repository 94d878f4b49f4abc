"""Rows SCHED-11, SCHED-12 and SCHED-13: how a runner ends, what wakes it, and who stands by."""

import asyncio

from alkstore import InvalidArgument, StopToken
from alkstore_contract_suite.context import MICRO, Context
from alkstore_contract_suite.factory import Fault
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._receiving import broken
from alkstore_contract_suite.rows._schedule import SECOND, Runner, boundaries, fired_for, lease


@row(
    "SCHED-11",
    text="stop ends the sleep at once, with a clean return, and the lease is free for the next runner.",
    oracle="a runner stopped in the middle of a long sleep; its successor with no time passed",
    modes=SECOND,
    kills=("clean-stop-keeps-the-lease", "stop-waits-for-the-boundary"),
)
async def a_stop_ends_the_sleep(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    queue = ctx.name("mail")
    await mine.schedule(ctx.name("report"), "@every 1d", queue, 1)
    for store in (mine, other, mine):
        runner = Runner(ctx, store)
        await ctx.idle(runner.task, "a runner sleeps until its next boundary")
        await runner.ends(ctx, "a stop ends the sleep at once")
        ctx.expect(await lease(other), None, "a clean stop releases the lease")
    ctx.expect(await fired_for(other, queue), [], "a stop fires nothing")


@row(
    "SCHED-11",
    text="A token cancelled before the call: the runner returns without acquiring, leader or not.",
    oracle="the return, the lease and its fence, with nobody leading and beside a leader",
    modes=SECOND,
)
async def a_token_cancelled_before_acquires_nothing(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    queue = ctx.name("mail")
    await mine.schedule(ctx.name("report"), "@every 1s", queue, 1)
    await ctx.advance(1)
    stop = StopToken()
    stop.cancel()
    for run in (mine.run_schedules, mine.supervise_schedules):
        ctx.expect(await ctx.soon(run(stop), "a cancelled token returns at once"), None, "it returns cleanly")
        ctx.expect(await lease(other), None, "it acquires nothing")
    ctx.expect(await fired_for(other, queue), [], "it fires nothing")
    leader = Runner(ctx, other)
    await ctx.settle()
    held = await lease(other)
    ctx.expect(await ctx.soon(mine.run_schedules(stop), "it returns at once"), None, "a leader is no matter")
    ctx.expect(await lease(other), held, "a leader is not disturbed")
    await leader.ends(ctx)


@row(
    "SCHED-11",
    text="Cancelling the runner's task releases the lease, then propagates.",
    oracle="a runner cancelled at every turn of its start, of a tick, and asleep",
    modes=SECOND,
    kills=("cancelled-runner-keeps-the-lease",),
)
async def a_cancelled_runner_releases_the_lease(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    queue, start = ctx.name("mail"), await ctx.now()
    await mine.schedule(ctx.name("report"), "@every 5s", queue, 1)
    for turns in (None, *range(12)):
        runner = Runner(ctx, mine)
        if turns is None:
            await ctx.settle()
        for _ in range(turns or 0):
            await ctx.hold(0)
        runner.task.cancel()
        await ctx.soon(asyncio.wait((runner.task,)), "a cancelled runner ends")
        ctx.expect(runner.task.cancelled(), True, "a runner's cancellation propagates")
        await ctx.settle()
        ctx.expect(await lease(other), None, "a cancelled runner releases its lease")
        await ctx.advance(5)
    await other.tick_schedules()
    expected = boundaries(start, 5, *range(1, 14))
    ctx.expect(await fired_for(other, queue), expected, "a cancelled runner loses and doubles no boundary")


@row(
    "SCHED-11",
    text="A tick under way ends before the runner stops.",
    oracle="three schedules due at once, stopped at each wait of the tick: all fire or none does",
    modes=SECOND,
)
async def a_tick_under_way_ends_first(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    queue = ctx.name("mail")
    for at in range(3):
        await mine.schedule(f"report-{at}", "@every 1s", queue, at)
    for waits in range(8):
        runner = Runner(ctx, mine)
        await ctx.settle()
        before = len(await fired_for(other, queue))
        runner.stall(after=waits)
        await ctx.advance(1)
        runner.stop.cancel()
        runner.go_on()
        await runner.ends(ctx)
        fired = len(await fired_for(other, queue)) - before
        ctx.among(fired, {"stopped before": 0, "ended its tick": 3}, "a tick under way ends before a stop")
        await other.tick_schedules()


@row(
    "SCHED-11",
    text="One token stops many runners and waits; what is no token is refused.",
    oracle="a leader and two standbys on one token; the typed error, and nobody leads",
    modes=SECOND,
)
async def one_token_stops_many(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    stop = StopToken()
    runs = [ctx.start(mine.run_schedules(stop))]
    await ctx.settle()
    runs += [ctx.start(store.supervise_schedules(stop)) for store in (mine, other)]
    for run in runs:
        await ctx.idle(run, "runners run and standbys wait")
    stop.cancel()
    for run in runs:
        ctx.expect(await ctx.soon(run, "one token stops many"), None, "each returns cleanly")
    for refused in (mine.run_schedules, mine.supervise_schedules):
        async with ctx.refuses(InvalidArgument, "what is no token is refused"):
            await refused(None)  # type: ignore[arg-type]  # the wrong type is the point
    ctx.expect(await lease(other), None, "nobody leads afterwards")


@row(
    "SCHED-11",
    text="When the store closes its runners return cleanly and give up the lease.",
    oracle="a leader and a standby through the close; another store leads at once",
    modes=SECOND,
)
async def a_close_ends_the_runner(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    runner = Runner(ctx, mine)
    await ctx.idle(runner.task, "a runner runs")
    standby = Runner(ctx, mine, supervised=True)
    await ctx.idle(standby.task, "a standby waits")
    await mine.aclose()
    for run in (runner, standby):
        ctx.expect(await ctx.soon(run.task, "a close ends a runner"), None, "it returns cleanly")
    if other is not mine:
        ctx.expect(await lease(other), None, "a runner gives up its lease when its store closes")


@row(
    "SCHED-12",
    text="A schedule that is added while the runner sleeps fires on time, and so does a nearer one.",
    oracle="the boundary's job at its instant, not a microsecond before, with nothing and with a far one registered",
    modes=("boundary", "second"),
    kills=("new-schedule-wakes-nobody",),
    hints="the runner waits for changes of schedules as well as for time",
)
async def an_added_schedule_fires_on_time(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    runner = Runner(ctx, mine)
    await ctx.advance(1.5)
    for every in (60, 1):
        queue, start = ctx.name("mail"), await ctx.now()
        await other.schedule(ctx.name("report"), f"@every {every}s", queue, 1)
        for _ in range(every - 1):
            await ctx.advance(1)
        await ctx.advance(1 - MICRO)
        ctx.expect(await fired_for(other, queue), [], "nothing fires early")
        await ctx.advance(MICRO)
        ctx.expect(await fired_for(other, queue), boundaries(start, every, 1), "a new schedule fires on time")
    await runner.ends(ctx)


@row(
    "SCHED-12",
    text="A schedule that is changed or removed while the runner sleeps is honoured on time.",
    oracle="the fires after a change to a nearer boundary, another queue, and a removal",
    modes=("boundary", "second"),
    kills=("new-schedule-wakes-nobody", "unschedule-only-hides"),
)
async def a_changed_schedule_is_honoured_on_time(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name, first, second = ctx.name("report"), ctx.name("mail"), ctx.name("mail")
    await mine.schedule(name, "@every 1d", first, 1)
    runner = Runner(ctx, mine)
    await ctx.advance(1.25)
    start = await ctx.now()
    await other.schedule(name, "@every 1s", first, 1)
    await ctx.advance(1 - MICRO)
    ctx.expect(await fired_for(other, first), [], "nothing fires early")
    await ctx.advance(MICRO)
    ctx.expect(await fired_for(other, first), boundaries(start, 1, 1), "a nearer boundary fires on time")
    await other.schedule(name, "@every 1s", second, 1)
    await ctx.advance(1)
    ctx.expect(await fired_for(other, second), boundaries(start, 1, 2), "a new queue is honoured")
    ctx.expect(await other.unschedule(name), True, "a known schedule is removed")
    for _ in range(5):
        await ctx.advance(1)
    fired = [len(await fired_for(other, queue)) for queue in (first, second)]
    ctx.expect(fired, [1, 1], "a removed schedule fires no more")
    await ctx.idle(runner.task, "the runner goes on")
    await runner.ends(ctx)


@row(
    "SCHED-13",
    text="supervise_schedules leads when nobody does, and stands by while another leads; a stop lets the standby in.",
    oracle="the boundaries fired by a leader and its standby, with the leader stopped in between",
    modes=SECOND,
    kills=("standby-gives-up",),
)
async def a_standby_takes_over_from_a_stopped_leader(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    queue, start = ctx.name("mail"), await ctx.now()
    await mine.schedule(ctx.name("report"), "@every 4s", queue, 1)
    leader = Runner(ctx, mine, supervised=True)
    await ctx.idle(leader.task, "a supervisor leads when nobody does")
    standby = Runner(ctx, other, supervised=True)
    first = await lease(other)
    await ctx.advance(4)
    await ctx.idle(standby.task, "a standby waits while another leads")
    ctx.expect(await fired_for(other, queue), boundaries(start, 4, 1), "one of them fires")
    await leader.ends(ctx)
    await ctx.settle()
    second = await lease(other)
    ctx.that(second and first and second.fence > first.fence, "a stop lets the standby in", observed=second)
    await ctx.advance(4)
    ctx.expect(await fired_for(other, queue), boundaries(start, 4, 1, 2), "the standby fires")
    await standby.ends(ctx)
    ctx.expect(await lease(other), None, "a stopped supervisor releases the lease")


@row(
    "SCHED-13",
    text="On LeadershipLost a supervisor stands by again; a leader that stood still does not come back as a second one.",
    oracle="a leader that stands still past its lease, its successor, and the old one after the successor stopped",
    modes=SECOND,
    kills=("standby-gives-up",),
)
async def a_deposed_supervisor_stands_by_again(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    queue, start = ctx.name("mail"), await ctx.now()
    await mine.schedule(ctx.name("report"), "@every 4s", queue, 1)
    old = Runner(ctx, mine, supervised=True)
    await ctx.settle()
    new = Runner(ctx, other, supervised=True)
    await ctx.settle()
    old.stall()
    for seconds in (5, 5, 2):
        await ctx.advance(seconds)
    ctx.expect(await fired_for(other, queue), boundaries(start, 4, 1, 2, 3), "the standby takes over in time")
    old.go_on()
    await ctx.idle(old.task, "a deposed supervisor stands by again")
    await new.ends(ctx)
    for _ in range(100):
        if await lease(other):
            break
        await ctx.hold(0.003)
    ctx.that(await lease(other), "a deposed supervisor leads again when nobody else does")
    await ctx.advance(4)
    fired = await fired_for(other, queue)
    ctx.expect(fired, boundaries(start, 4, 1, 2, 3, 4), "every boundary fires once, across leaders")
    await old.ends(ctx)


@row(
    "SCHED-13",
    text="Fail-over after a leader's death within lease + 2 s: no boundary is lost and none doubled.",
    oracle="the boundaries fired over the death of a leader, by the time lease + 2 s have passed",
    modes=("crash-drop", "crash-kill"),
)
async def a_standby_takes_over_from_a_dead_leader(ctx: Context) -> None:
    queue, start = ctx.name("mail"), await ctx.now()
    await ctx.store.schedule(ctx.name("report"), "@every 4s", queue, 1)
    Runner(ctx, ctx.store)
    await ctx.advance(4)
    await ctx.advance(1.5)
    store = await ctx.turn()
    standby = Runner(ctx, store, supervised=True)
    await ctx.idle(standby.task, "a standby waits for a dead leader's lease")
    for _ in range(12):
        await ctx.advance(1)
    ctx.that(await lease(store), "a standby leads within lease + 2 s")
    expected = boundaries(start, 4, 1, 2, 3, 4)
    ctx.expect(await fired_for(store, queue), expected, "every boundary fires once, across a leader's death")
    await standby.ends(ctx)


@row(
    "SCHED-13",
    text="On DatabaseError a supervisor backs off and waits again, past its lease too.",
    oracle="a supervisor whose storage is away for longer than its lease, and the boundaries fired afterwards",
    needs=("durable",),
)
async def a_supervisor_outlives_a_database_error(ctx: Context) -> None:
    queue, start = ctx.name("mail"), await ctx.now()
    await ctx.store.schedule(ctx.name("report"), "@every 6s", queue, 1)
    runner = Runner(ctx, ctx.store, supervised=True)
    await ctx.settle()
    async with broken(ctx, Fault.STORAGE_AWAY, ctx.store):
        for _ in range(3):
            await ctx.advance(5)
        for _ in range(20):
            await ctx.hold(0.003)
        ctx.still_waiting(runner.task, "a supervisor outlives a database error")
    expected = boundaries(start, 6, 1, 2)
    for _ in range(800):
        if await fired_for(ctx.store, queue) == expected:
            break
        await ctx.hold(0.003)
    ctx.expect(await fired_for(ctx.store, queue), expected, "a supervisor leads again and catches up, once")
    await runner.ends(ctx)
