"""Rows about what the author supplies: if one fails, nothing that the other rows say counts."""

from datetime import timedelta

from alkstore import Closed, InvalidArgument, JobState, StopToken, Store
from alkstore_contract_suite.context import MICRO, Context
from alkstore_contract_suite.factory import Fault, Unsupported
from alkstore_contract_suite.row import row

STEPS = (1.0, MICRO, 0.25, 3600.0 * 24 * 365, -2.0, -MICRO)


@row(
    "FACTORY-01",
    text="advance moves now by exactly the seconds given, backwards too.",
    oracle="the difference of two readings of now",
    hints="advance must move the clock that the stores read, to the microsecond",
)
async def advance_moves_now_by_exactly_what_was_given(ctx: Context) -> None:
    for seconds in STEPS:
        before = await ctx.now()
        await ctx.advance(seconds)
        moved = await ctx.now() - before
        ctx.expect(
            moved, timedelta(microseconds=round(seconds / MICRO)), "advance moves now by what was given"
        )


@row(
    "FACTORY-02",
    text="Between two calls of advance time stands still.",
    oracle="now before and after real time passed",
    hints="the store must not read the machine's clock",
)
async def time_stands_still_while_real_time_passes(ctx: Context) -> None:
    queue = ctx.store.queue(ctx.name("still"))
    before = await ctx.now()
    first = await queue.enqueue(None)
    await ctx.hold(0.002)
    second = await queue.enqueue(None)
    after = await ctx.now()
    ctx.expect(after, before, "now stands still while real time passes")
    jobs = [await queue.get_job(id) for id in (first, second)]
    created = [job.created_at for job in jobs if job is not None]
    ctx.expect(created, [before, before], "the store's time stands still while real time passes")


@row(
    "FACTORY-03",
    text="The factory's now is the time that the stores see.",
    oracle="created_at of jobs, and a claim of a delayed job one microsecond early and on time",
    hints="hand the factory's clock to every store that it opens",
)
async def the_stores_see_the_factorys_time(ctx: Context) -> None:
    queue = ctx.store.queue(ctx.name("time"))
    await ctx.advance(12.345678)
    job = await queue.get_job(await queue.enqueue("late", delay=10))
    assert job is not None
    ctx.expect(job.created_at, await ctx.now(), "a job is created at the factory's now")
    await ctx.advance(10 - MICRO)
    ctx.expect(await queue.claim_one(), None, "a delayed job is not claimed before its time")
    await ctx.advance(MICRO)
    ctx.that(await queue.claim_one(), "a delayed job is claimed at its time")


async def _expect_nothing(ctx: Context, store: Store) -> None:
    found = {
        "queues": await store.queues(),
        "streams": await store.streams(),
        "outboxes": await store.outboxes(),
        "schedules": await store.schedules(),
        "locks": await store.locks(),
    }
    ctx.expect(found, {area: [] for area in found}, "a scope begins with empty storage")


async def _fill(store: Store) -> None:
    await store.queue("left").enqueue("behind")
    await store.stream("left").publish("behind")
    await store.outbox("left").enqueue("behind")
    await store.schedule("left", "@every 1d", "left", "behind")
    await store.try_lock("left", 3600)


@row(
    "FACTORY-04",
    text="Every scope begins with empty storage.",
    oracle="the lists of names at the begin, in two cases that both leave everything behind",
    hints="storage must be made or emptied on entering a scope, not only on leaving one",
)
async def the_first_scope_is_empty_and_left_full(ctx: Context) -> None:
    await _expect_nothing(ctx, ctx.store)
    await _fill(ctx.store)


@row(
    "FACTORY-04",
    text="Every scope begins with empty storage.",
    oracle="the lists of names at the begin, in two cases that both leave everything behind",
)
async def the_scope_after_a_full_one_is_empty(ctx: Context) -> None:
    # Which of the two runs second is open, and does not matter: both look, then fill.
    await _expect_nothing(ctx, ctx.store)
    await _fill(ctx.store)


@row(
    "FACTORY-05",
    text="A second instance is another store on the same storage and the same clock.",
    oracle="identity, and a job enqueued through one and claimed through the other",
    modes=("second",),
)
async def a_second_instance_is_another_store_on_the_same_storage(ctx: Context) -> None:
    first = ctx.store
    id = await first.queue("shared").enqueue("seen")
    second = await ctx.turn()
    ctx.that(second is not first, "a second instance is another object")
    job = await second.queue("shared").get_job(id)
    ctx.expect(None if job is None else job.created_at, await ctx.now(), "a second instance sees the storage")
    await first.aclose()
    ctx.expect(await second.queues(), ["shared"], "a second instance has connections of its own")


@row(
    "FACTORY-06",
    text="reopen closes the store and gives another one on what it left.",
    oracle="identity, the old store's refusal, a job that is still there",
    modes=("reopen",),
)
async def reopening_closes_one_store_and_opens_another(ctx: Context) -> None:
    first = ctx.store
    id = await first.queue("kept").enqueue("still here")
    second = await ctx.turn()
    ctx.that(second is not first, "reopen gives another object")
    async with ctx.refuses(Closed, "reopen closes the store"):
        await first.queues()
    ctx.that(await second.queue("kept").get_job(id), "reopen keeps the storage")


@row(
    "FACTORY-07",
    text="A crash is not a clean close.",
    oracle="a runner's lease, which a close gives up and a crash leaves",
    modes=("crash-drop", "crash-kill"),
    hints="crash must cut the connection or kill the process before anything of aclose gets through; of a ServerFactory: cut",
)
async def a_crash_does_none_of_the_work_of_a_close(ctx: Context) -> None:
    _leader = ctx.start(ctx.store.run_schedules(StopToken()))
    await ctx.settle()
    held = [lock.fence for lock in await ctx.store.locks()]
    ctx.expect(len(held), 1, "a runner holds its lease")
    after = await ctx.turn()
    ctx.expect([lock.fence for lock in await after.locks()], held, "a crash leaves a runner's lease behind")


@row(
    "FACTORY-08",
    text="settle returns when everything that can be delivered has been delivered.",
    oracle="a wake and a job that somebody waits for have arrived, a channel nobody notified is silent",
)
async def settle_delivers_what_can_be_delivered(ctx: Context) -> None:
    queue = ctx.store.queue(ctx.name("settled"))
    claim = ctx.start(queue.claim())
    await ctx.settle()
    ctx.still_waiting(claim, "a claim waits while there is nothing")
    await queue.enqueue("here")
    await ctx.settle()
    ctx.that(claim.done(), "a waiting claim has its job after settle")


@row(
    "FACTORY-08",
    text="settle returns when everything that can be delivered has been delivered.",
    oracle="a wake has arrived on the channel that was notified, and on no other",
    needs=("listen",),
)
async def settle_delivers_wakes(ctx: Context) -> None:
    async with ctx.store.listen("heard") as heard, ctx.store.listen("silent") as silent:
        await ctx.store.notify("heard")
        await ctx.settle()
        ctx.that(await heard.try_recv(), "a wake is there after settle")
        ctx.expect(await silent.try_recv(), None, "a channel that nobody notified is silent")


@row(
    "FACTORY-09",
    text="advance returns when every open store has looked at its waits again.",
    oracle="a claim that waits for a delayed job has it as soon as advance returned",
)
async def advance_returns_after_the_waits_were_looked_at(ctx: Context) -> None:
    queue = ctx.store.queue(ctx.name("due"))
    await queue.enqueue("later", delay=60)
    claim = ctx.start(queue.claim())
    await ctx.settle()
    ctx.still_waiting(claim, "a claim waits for a job that is not due")
    await ctx.advance(60)
    ctx.that(claim.done(), "a waiting claim has a job that fell due when advance returns")
    handle = claim.result()
    ctx.expect(handle and handle.job.state, JobState.PROCESSING, "what was given is claimed")


@row(
    "FACTORY-10",
    text="What the column says it has, the factory can show.",
    oracle="the factory has the caller's own data",
    needs=("sql",),
)
async def a_column_with_sql_has_the_callers_own_data(ctx: Context) -> None:
    ctx.that(ctx.factory.business() is not None, "a column with 'sql' has business data")


@row(
    "FACTORY-10",
    text="What the column says it has, the factory can show.",
    oracle="the factory has a recipe for another process",
    needs=("multi_process",),
)
async def a_column_with_many_processes_can_open_a_store_in_another(ctx: Context) -> None:
    ctx.that(
        ctx.factory.remote() is not None, "a column with 'multi_process' has a recipe for another process"
    )


# ---------------------------------------------------------------- what the column says is not there

HIDDEN = "What the column says is not there is not there: a capability that is kept quiet would spare the engine its rows."


@row(
    "FACTORY-12",
    text=HIDDEN,
    oracle="a transaction refuses its connection, and the factory has no data beside it",
    lacks=("sql",),
    hints="a connection to give and data of the caller's own are the capability 'sql'",
)
async def a_column_without_sql_has_no_connection_to_give(ctx: Context) -> None:
    async with ctx.store.begin_tx() as tx:
        with ctx.refuses_sync(InvalidArgument, "a transaction without 'sql' has no connection"):
            ctx.note(type(tx.connection).__name__)
    ctx.expect(ctx.factory.business(), None, "a column without 'sql' has no business data")


@row(
    "FACTORY-12",
    text=HIDDEN,
    oracle="a store refuses to listen",
    lacks=("listen",),
    hints="receivers of wakes are the capability 'listen'",
)
async def a_column_without_listen_has_no_receivers(ctx: Context) -> None:
    async with ctx.refuses(InvalidArgument, "a store without 'listen' refuses to"):
        await ctx.store.listen("news")


@row(
    "FACTORY-12",
    text=HIDDEN,
    oracle="the factory has no recipe for another process",
    lacks=("multi_process",),
    hints="storage that another process may open is the capability 'multi_process'",
)
async def a_column_without_many_processes_opens_no_store_in_another(ctx: Context) -> None:
    ctx.expect(
        ctx.factory.remote(), None, "a column without 'multi_process' has no recipe for another process"
    )


def _cannot(ctx: Context, kind: Fault) -> None:
    found = ctx.factory.fault(kind, ctx.store)
    ctx.that(
        isinstance(found, Unsupported),
        f"what a column does not have cannot go wrong: {kind.value}",
        observed=type(found).__name__,
    )


@row(
    "FACTORY-12",
    text=HIDDEN,
    oracle="the factory cannot lose a listening connection",
    lacks=("reconnects",),
    hints="a listening connection that may be lost is the capability 'reconnects'",
)
async def a_column_that_never_reconnects_loses_no_listener(ctx: Context) -> None:
    _cannot(ctx, Fault.LISTENER_LOST)


@row(
    "FACTORY-12",
    text=HIDDEN,
    oracle="the factory cannot restart a server",
    lacks=("server",),
    hints="a server beside the process is the capability 'server'",
)
async def a_column_without_a_server_restarts_none(ctx: Context) -> None:
    _cannot(ctx, Fault.SERVER_RESTART)


@row(
    "FACTORY-12",
    text=HIDDEN,
    oracle="the factory cannot end a watcher",
    lacks=("watcher",),
    hints="a thread or a task that looks for wakes is the capability 'watcher'",
)
async def a_column_without_a_watcher_ends_none(ctx: Context) -> None:
    _cannot(ctx, Fault.WATCHER_DIES)
