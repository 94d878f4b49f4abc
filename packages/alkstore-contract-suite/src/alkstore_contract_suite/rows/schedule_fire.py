"""Rows SCHED-05, SCHED-06, SCHED-08 and SCHED-14: each boundary fires once, catch-up is bounded."""

import asyncio
from datetime import timedelta
from typing import Final

from alkstore import Store
from alkstore_contract_suite.context import MICRO, Context
from alkstore_contract_suite.racing import Step, Worker
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._schedule import SECOND, Runner, boundaries, fired_for, stored

CATCH_UP: Final = 64


@row(
    "SCHED-05",
    text="With any number of tickers no boundary fires twice and none is lost.",
    oracle="six tickers on two stores over twelve moves of time: one job a boundary, in order",
    modes=("concurrent", "second"),
    kills=("fire-then-advance",),
)
async def racing_tickers_fire_each_boundary_once(ctx: Context) -> None:
    stores = [ctx.store, await ctx.turn()]
    queue, start = ctx.name("mail"), await ctx.now()
    await stores[0].schedule(ctx.name("report"), "@every 10s", queue, 1)
    counts: list[int] = []

    def ticker(store: Store) -> Worker[int]:
        async def tick(step: Step) -> int:
            count = 0
            for _ in range(3):
                count += await store.tick_schedules()
                await step()
            return count

        return tick

    for seconds in (10, 5, 5, 30, 9.999_999, MICRO, 10, 0, 20, 50, 1, 9):
        await ctx.advance(seconds)
        counts += await ctx.race_workers([ticker(stores[at % 2]) for at in range(6)])
    passed = int((await ctx.now() - start).total_seconds()) // 10
    expected = boundaries(start, 10, *range(1, passed + 1))
    ctx.expect(await fired_for(stores[1], queue), expected, "each boundary fires once, and none is lost")
    ctx.expect(sum(counts), passed, "the tickers know what they fired")


@row(
    "SCHED-05",
    text="A ticker that dies between fire and advance loses no boundary and doubles none.",
    oracle="ticks cancelled at every turn, then one that ends: one job a boundary",
    modes=("plain", "second"),
    kills=("fire-then-advance",),
)
async def a_cancelled_tick_loses_no_boundary(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    queue, start = ctx.name("mail"), await ctx.now()
    for at in range(3):
        await mine.schedule(f"report-{at}", "@every 10s", queue, at)
    for turns in range(10):
        await ctx.advance(10)
        ticking = ctx.start(mine.tick_schedules())
        for _ in range(turns):
            await ctx.hold(0)
        ticking.cancel()
        await ctx.soon(asyncio.wait((ticking,)), "a cancelled tick ends")
    await ctx.settle()
    await other.tick_schedules()
    fired = sorted(str(each) for each in await fired_for(other, queue))
    expected = sorted(str(each) for each in boundaries(start, 10, *range(1, 11)) * 3)
    ctx.expect(fired, expected, "a cancelled tick loses no boundary and doubles none")


@row(
    "SCHED-05",
    text="What a tick fired stays fired, and what it advanced stays advanced, whatever becomes of its store.",
    oracle="a second tick at the same instant on what is left of the storage",
    modes=("plain", "second", "reopen", "crash-drop", "crash-kill"),
)
async def a_tick_is_one_step(ctx: Context) -> None:
    queue, start = ctx.name("mail"), await ctx.now()
    await ctx.store.schedule(ctx.name("report"), "@every 10s", queue, 1)
    await ctx.advance(20)
    ctx.expect(await ctx.store.tick_schedules(), 2, "each boundary fires")
    store = await ctx.turn()
    ctx.expect(await store.tick_schedules(), 0, "a boundary that was fired is not fired again")
    ctx.expect(await fired_for(store, queue), boundaries(start, 10, 1, 2), "a boundary fires once")


@row(
    "SCHED-06",
    text="k missed boundaries fire k times for k <= 64; more fire exactly 64, the oldest, then time is skipped.",
    oracle="the boundaries fired and next_fire_at, for k from 1 to 1,000, on the grid point and between",
    modes=("boundary", "second"),
    kills=("catch-up-of-65", "catch-up-without-a-cap", "skip-off-the-grid", "skip-into-the-past"),
)
async def catch_up_is_bounded(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    for missed in (1, 2, 63, 64, 65, 66, 129, 1_000):
        for beyond in (0.0, MICRO, 3.5, 10 - MICRO):
            name, queue, start = ctx.name("report"), ctx.name("mail"), await ctx.now()
            await mine.schedule(name, "@every 10s", queue, 1)
            await ctx.advance(10 * missed + beyond)
            fired = min(missed, CATCH_UP)
            ctx.expect(await other.tick_schedules(), fired, f"{missed} missed boundaries fire {fired} times")
            expected = boundaries(start, 10, *range(1, fired + 1))
            ctx.expect(await fired_for(mine, queue), expected, "the oldest boundaries fire, in order")
            ahead = start + timedelta(seconds=10 * (missed + 1))
            found = (await stored(ctx, mine, name)).next_fire_at
            ctx.expect(found, ahead, "then comes the first grid point strictly after now")
            ctx.expect(await other.tick_schedules(), 0, "what was skipped is not fired later")
            await mine.unschedule(name)


@row(
    "SCHED-06",
    text="The grid is kept through catch-up and skip: no drift, whatever the ticks' times; an anchor's grid too.",
    oracle="every boundary fired over ticks that come late by odd amounts, and one long absence",
    modes=("plain", "second"),
    kills=("skip-off-the-grid", "fires-drift"),
)
async def the_grid_is_kept(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    queue, start = ctx.name("mail"), await ctx.now()
    anchor = start - timedelta(seconds=1_000_003.25)
    await mine.schedule(ctx.name("report"), "@every 7s", queue, 1, anchor=anchor)
    for seconds in (7.1, 0.3, 20.9, 6.999_999, 700, 1.7, 8.8):
        await ctx.advance(seconds)
        await other.tick_schedules()
    for at in await fired_for(mine, queue):
        assert at is not None
        ctx.expect((at - anchor) % timedelta(seconds=7), timedelta(0), "every boundary is on the grid")
    ahead = (await mine.schedules())[0].next_fire_at
    distance = (ahead - await ctx.now()).total_seconds()
    ctx.that(0 < distance <= 7, "the next boundary is the first one after now", observed=distance)
    ctx.expect((ahead - anchor) % timedelta(seconds=7), timedelta(0), "the next boundary is on the grid")


@row(
    "SCHED-06",
    text="The bound is per schedule and tick: one that is far behind takes nothing from the others.",
    oracle="the fires of three schedules with different arrears in one tick",
    modes=("plain", "second"),
)
async def the_bound_is_for_each_schedule(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    queues = {"@every 1s": CATCH_UP, "@every 2s": CATCH_UP, "@every 10s": 20, "@every 150s": 1}
    for spec in queues:
        await mine.schedule(f"report {spec}", spec, f"mail {spec}", 1)
    await ctx.advance(200)
    ctx.expect(await other.tick_schedules(), sum(queues.values()), "a tick fires every schedule's arrears")
    found = {spec: len(await fired_for(mine, f"mail {spec}")) for spec in queues}
    ctx.expect(found, queues, "the bound is for each schedule by itself")


@row(
    "SCHED-08",
    text="tick_schedules runs one pass now and returns how many jobs it fired.",
    oracle="its answers with nothing registered, nothing due, and several due",
    modes=SECOND,
    kills=("tick-counts-schedules",),
)
async def a_tick_returns_how_many_it_fired(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    ctx.expect(await other.tick_schedules(), 0, "with no schedules a tick fires nothing")
    for at in (1, 2, 3):
        await mine.schedule(f"report-{at}", f"@every {at}m", "mail", at)
    ctx.expect(await other.tick_schedules(), 0, "with nothing due a tick fires nothing")
    await ctx.advance(120)
    ctx.expect(
        await other.tick_schedules(), 3, "a tick returns how many jobs it fired, not how many schedules"
    )
    await ctx.advance(60)
    ctx.expect(await other.tick_schedules(), 2, "a tick returns how many jobs it fired")
    ctx.expect(len(await mine.queue("mail").list()), 5, "a tick's jobs are there when it returns")


@row(
    "SCHED-08",
    text="A tick is safe beside a running leader: whoever fires a boundary, it fires once.",
    oracle="the boundaries fired by a leader and by ticks at and between them; the leader goes on",
    modes=("plain", "concurrent", "second"),
    kills=("fire-then-advance",),
)
async def a_tick_beside_a_leader_doubles_nothing(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    queue, start = ctx.name("mail"), await ctx.now()
    await mine.schedule(ctx.name("report"), "@every 3s", queue, 1)
    leader = Runner(ctx, mine)
    for _ in range(8):
        ticks = [ctx.start(other.tick_schedules()) for _ in range(2)]
        await ctx.advance(1.5)
        for tick in [*ticks, ctx.start(other.tick_schedules())]:
            await ctx.soon(tick, "a tick beside a leader ends")
    expected = boundaries(start, 3, 1, 2, 3, 4)
    ctx.expect(await fired_for(mine, queue), expected, "a boundary fires once, whoever fires it")
    ctx.still_waiting(leader.task, "ticks beside it do not disturb a leader")
    await leader.ends(ctx)


@row(
    "SCHED-14",
    text="A clock that jumps backwards fires nothing twice, neither by ticks nor by a leader.",
    oracle="the boundaries fired through jumps back and forth again",
    modes=("plain", "second"),
    kills=("fires-twice-after-a-step-back",),
)
async def a_clock_that_jumps_back_fires_nothing_twice(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    for leads in (False, True):
        name, queue, start = ctx.name("report"), ctx.name("mail"), await ctx.now()
        await mine.schedule(name, "@every 10s", queue, 1)
        runner = Runner(ctx, mine) if leads else None
        for seconds in (30, -25, -10, 5, 30, -3, 3):
            # Short moves keep the leader's lease, which lapses like any other.
            for _ in range(abs(seconds)):
                await ctx.advance(1 if seconds > 0 else -1)
            if runner is None:
                await other.tick_schedules()
        await ctx.advance(9 if leads else 10)
        if runner is None:
            await other.tick_schedules()
        else:
            await ctx.advance(1)
        expected = boundaries(start, 10, 1, 2, 3, 4)
        ctx.expect(await fired_for(mine, queue), expected, "a clock that jumps back fires nothing twice")
        if runner is not None:
            await runner.ends(ctx)
        await mine.unschedule(name)
