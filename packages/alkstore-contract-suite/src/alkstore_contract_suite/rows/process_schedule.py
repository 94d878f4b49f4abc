"""Rows SCHED-05, SCHED-10, SCHED-12 and SCHED-13 in several processes."""

from alkstore import LeadershipLost, StopToken, Store
from alkstore_contract_suite.children import Child
from alkstore_contract_suite.context import MICRO, Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._process import ALONE
from alkstore_contract_suite.rows._schedule import LEASE, boundaries, fired_for, lease

TAKE_OVER = LEASE + 2
"""Seconds within which somebody else leads after the leader was killed."""


async def _tick(store: Store, times: int) -> int:
    return sum([await store.tick_schedules() for _ in range(times)])


async def _lead(store: Store) -> None:
    await store.run_schedules(StopToken())


async def _supervise(store: Store) -> None:
    await store.supervise_schedules(StopToken())


async def _schedule(store: Store, name: str, spec: str) -> None:
    await store.schedule(name, spec, name, None)


async def _unschedule(store: Store, name: str) -> bool:
    return await store.unschedule(name)


@row(
    "SCHED-05",
    text="However many processes tick, each boundary fires once.",
    oracle="what four processes counted, and the boundaries of the jobs, over eight rounds and three schedules",
    modes=("process",),
    kills=("two-processes-fire-one-boundary",),
)
async def tickers_of_several_processes_fire_each_boundary_once(ctx: Context) -> None:
    start = await ctx.now()
    grids = {"seconds": 1.0, "more": 2.0, "tens": 10.0}
    for name, every in grids.items():
        await ctx.store.schedule(name, f"@every {every:.0f}s", name, None)
    children = await ctx.processes(3)
    passed, counted = 0, 0
    for _ in range(8):
        step = ctx.random.randrange(1, 9)
        passed += step
        await ctx.advance(step)
        found = await ctx.race(*(child.run(_tick, 3) for child in children), _tick(ctx.store, 3))
        counted += sum(found)
    for name, every in grids.items():
        wanted = boundaries(start, every, *range(1, int(passed // every) + 1))
        ctx.expect(await fired_for(ctx.store, name), wanted, "each boundary fires once, whoever ticks")
    ctx.expect(
        counted, sum(int(passed // every) for every in grids.values()), "a tick counts what it fired itself"
    )


@row(
    "SCHED-12",
    text="A schedule added, changed or removed in another process is honoured by the sleeping runner on time.",
    oracle="the boundaries of the jobs, one microsecond before and at each, with a runner that sleeps in a third process",
    modes=("process",),
    kills=("no-wake-across-processes",),
)
async def the_runner_honours_what_another_process_schedules(ctx: Context) -> None:
    runner, other = await ctx.processes(2, poll_interval=ALONE)
    _ = runner.start(_lead)
    await ctx.settle()
    ctx.that(await lease(ctx.store), "a runner leads")
    start = await ctx.now()
    await other.run(_schedule, "added", "@every 8s")
    await other.run(_schedule, "kept", "@every 6s")
    await ctx.advance(6 - MICRO)
    ctx.expect(await fired_for(ctx.store, "kept"), [], "nothing fires before its boundary")
    await ctx.advance(MICRO)
    ctx.expect(await fired_for(ctx.store, "kept"), boundaries(start, 6, 1), "an added schedule fires on time")
    changed = await ctx.now()
    await other.run(_schedule, "added", "@every 1s")
    await ctx.advance(1)
    fired = boundaries(changed, 1, 1)
    ctx.expect(await fired_for(ctx.store, "added"), fired, "a changed schedule fires on time")
    ctx.expect(await other.run(_unschedule, "added"), True, "a schedule can be removed by any process")
    await ctx.advance(5)
    ctx.expect(await fired_for(ctx.store, "added"), fired, "a removed schedule fires no more")
    ctx.expect(await fired_for(ctx.store, "kept"), boundaries(start, 6, 1, 2), "another one goes on")


@row(
    "SCHED-13",
    text="When the leader is killed another supervisor leads within lease + 2 s, and no boundary is lost or doubled.",
    oracle="the lease's fence second by second after each of two kills; the boundaries of the jobs at the end",
    modes=("process",),
    hints="whoever waits for leadership must be woken by the lapse of the lease",
)
async def another_process_leads_soon_after_the_leader_was_killed(ctx: Context) -> None:
    start, passed = await ctx.now(), 0
    await ctx.store.schedule("tick", "@every 3s", "tick", None)
    leader = await _supervisor(ctx)
    for _ in range(2):
        standby = await _supervisor(ctx)
        before, fired = await lease(ctx.store), len(await fired_for(ctx.store, "tick"))
        await leader.kill()
        for _ in range(TAKE_OVER):
            passed += 1
            await ctx.advance(1)
        after = await lease(ctx.store)
        ctx.that(
            before and after and after.fence > before.fence,
            "another process leads within lease + 2 s",
            observed=(before, after),
        )
        ctx.that(len(await fired_for(ctx.store, "tick")) > fired, "the new leader fires")
        leader = standby
    wanted = boundaries(start, 3, *range(1, passed // 3 + 1))
    ctx.expect(await fired_for(ctx.store, "tick"), wanted, "no boundary is lost or fired twice")


async def _supervisor(ctx: Context) -> Child:
    """Begin a process that leads as soon as nobody else does."""
    child = await ctx.process(poll_interval=ALONE)
    _ = child.start(_supervise)
    await ctx.settle()
    return child


@row(
    "SCHED-10",
    text="A leader that was paused past its lease fires nothing when it goes on, and is told that it lost it.",
    oracle="a leader's process stopped by the system while another one leads and fires; the boundaries, the error",
    modes=("process",),
)
async def a_paused_leader_fires_nothing_when_it_goes_on(ctx: Context) -> None:
    start = await ctx.now()
    await ctx.store.schedule("tick", "@every 4s", "tick", None)
    paused = await ctx.process(poll_interval=ALONE)
    leading = paused.start(_lead)
    await ctx.settle()
    ctx.that(await lease(ctx.store), "a runner leads")
    await ctx.advance(4)
    ctx.expect(await fired_for(ctx.store, "tick"), boundaries(start, 4, 1), "a leader fires")
    paused.pause()
    _ = await _supervisor(ctx)
    for _ in range(TAKE_OVER):
        await ctx.advance(1)
    wanted = boundaries(start, 4, 1, 2, 3, 4)
    ctx.expect(await fired_for(ctx.store, "tick"), wanted, "another process leads, fires and catches up")
    await ctx.advance(2)
    await paused.go_on()
    async with ctx.refuses(LeadershipLost, "a leader that was paused past its lease is told"):
        await ctx.soon(leading, "a leader that was paused past its lease ends")
    await ctx.advance(2)
    ctx.expect(
        await fired_for(ctx.store, "tick"),
        [*wanted, *boundaries(start, 4, 5)],
        "a leader that lost its lease fires nothing",
    )
