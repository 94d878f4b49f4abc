"""Rows OBX-07 to OBX-09: cancelled deliveries, several workers, and the loop that delivers until it is stopped."""

import asyncio
from collections import Counter
from typing import Any

from alkstore import DatabaseError, InvalidArgument, JobHandle, JobState, StopToken
from alkstore_contract_suite.context import MICRO, Context
from alkstore_contract_suite.factory import Fault
from alkstore_contract_suite.racing import Step, Worker
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._receiving import broken
from alkstore_contract_suite.rows.outbox import SECOND, deliver, entry


class Pool:
    """A delivery that stays open until it is told to end, and counts how many are open at once."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.open: list[int] = []
        self.most = 0
        self.done: list[object] = []

    async def __call__(self, handle: JobHandle) -> None:
        self.open.append(handle.job.id)
        self.most = max(self.most, len(self.open))
        await self.go_on.wait()
        self.open.remove(handle.job.id)
        self.done.append(handle.job.payload)


@row(
    "OBX-07",
    text="A cancelled delivery propagates and applies no outcome; the row is reclaimable after its window.",
    oracle="the row after the cancellation, one microsecond before the end of its window, and at it",
    modes=("boundary", "second"),
    kills=("outbox-swallows-cancellation", "outbox-releases-on-cancellation"),
)
async def a_cancelled_delivery_applies_no_outcome(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("mail")
    id = await mine.outbox(name).enqueue("entry")
    delivery = Pool()
    running = ctx.start(mine.outbox(name).run_once(delivery))
    await ctx.idle(running, "run_once awaits the delivery")
    running.cancel()
    await ctx.soon(asyncio.wait((running,)), "a cancelled delivery ends")
    ctx.expect(running.cancelled(), True, "a cancellation propagates")
    job = await entry(ctx, other.outbox(name), id, "a cancelled delivery is no ack")
    found = (job.state, job.attempts, job.retry_error)
    ctx.expect(found, (JobState.PROCESSING, 1, None), "a cancelled delivery applies no outcome")
    await ctx.advance(60 - MICRO)
    ctx.expect(await other.outbox(name).run_once(deliver), False, "the row is held for its whole window")
    await ctx.advance(MICRO)
    ctx.expect(await other.outbox(name).run_once(deliver), True, "the row is reclaimable after its window")
    ctx.expect(await mine.outbox(name).jobs.list(), [], "and acked by whoever delivered it")


@row(
    "OBX-07",
    text="So does a delivery that raises CancelledError or KeyboardInterrupt itself.",
    oracle="what leaves run_once, and the row",
    modes=SECOND,
    kills=("outbox-swallows-cancellation",),
)
async def an_interrupted_delivery_applies_no_outcome(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    for kind in (asyncio.CancelledError, KeyboardInterrupt):
        name = ctx.name("mail")
        id = await mine.outbox(name).enqueue("entry")

        async def interrupted(handle: JobHandle, kind: type[BaseException] = kind) -> None:
            raise kind("interrupted")

        left: type[BaseException] | None = None
        try:
            await mine.outbox(name).run_once(interrupted)
        except (asyncio.CancelledError, KeyboardInterrupt) as error:
            left = type(error)
        ctx.expect(left, kind, "an interruption propagates")
        job = await entry(ctx, other.outbox(name), id, "an interrupted delivery is no ack")
        ctx.expect((job.state, job.attempts), (JobState.PROCESSING, 1), "it applies no outcome")
        await ctx.advance(60)
        ctx.expect(
            await other.outbox(name).run_once(deliver), True, "the row is reclaimable after its window"
        )


@row(
    "OBX-08",
    text="Two workers never deliver one row at the same time within its window.",
    oracle="eight workers on two stores over 80 entries, some of which fail once: who delivers what at once",
    modes=("concurrent", "second"),
    kills=("claimed-row-given-twice",),
)
async def no_entry_is_delivered_twice_at_once(ctx: Context) -> None:
    stores = [ctx.store, await ctx.turn()]
    name = ctx.name("mail")
    for number in range(80):
        await stores[number % 2].outbox(name).enqueue(number, base_delay=0)
    active: list[int] = []
    delivered: Counter[object] = Counter()

    def worker(at: int) -> Worker[None]:
        async def work(step: Step) -> None:
            async def delivery(handle: JobHandle) -> None:
                ctx.that(handle.job.id not in active, "no entry is delivered twice at once", observed=active)
                active.append(handle.job.id)
                await step()
                active.remove(handle.job.id)
                if handle.job.id % 5 == 0 and handle.job.attempts == 1:
                    raise ConnectionError("once")
                delivered[handle.job.payload] += 1

            while await stores[at % 2].outbox(name).run_once(delivery):
                pass

        return work

    await ctx.race_workers([worker(at) for at in range(8)])
    while await stores[0].outbox(name).run_once(deliver):
        pass
    ctx.that(set(delivered.values()) <= {1}, "no entry is delivered twice", observed=delivered.most_common(3))
    ctx.expect(await stores[0].outbox(name).jobs.list(), [], "every entry is delivered")


@row(
    "OBX-09",
    text="run waits as a claim does and delivers what comes: at once, on time, and after a lapse.",
    oracle="an entry while it waits, one that is delayed, and one of a worker that vanished",
    modes=SECOND,
)
async def run_waits_for_entries(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name, stop, delivery = ctx.name("mail"), StopToken(), Pool()
    delivery.go_on.set()
    running = ctx.start(mine.outbox(name).run(delivery, stop=stop))
    await ctx.idle(running, "run waits for entries")
    await other.outbox(name).enqueue("now")
    await ctx.settle()
    ctx.expect(delivery.done, ["now"], "run delivers what comes")
    async with other.begin_tx() as tx:
        await tx.outbox_enqueue(name, "committed")
        await ctx.idle(running, "run waits for entries")
        ctx.expect(delivery.done, ["now"], "nothing is delivered before its commit")
    await ctx.settle()
    ctx.expect(delivery.done[1:], ["committed"], "run delivers what is committed")
    await other.outbox(name).enqueue("later", delay=10)
    await ctx.advance(10 - MICRO)
    ctx.expect(len(delivery.done), 2, "a delayed entry is not delivered early")
    await ctx.advance(MICRO)
    ctx.expect(delivery.done[2:], ["later"], "a delayed entry is delivered on time")
    stop.cancel()
    ctx.expect(await ctx.soon(running, "a stop ends run"), None, "run returns cleanly")
    ctx.expect(await other.outbox(name).jobs.list(), [], "what was delivered is acked")


@row(
    "OBX-09",
    text="run delivers up to `concurrency` at once and no more; on stop the deliveries under way end.",
    oracle="how many deliveries are open of nine entries, and what becomes of each after the stop",
    modes=SECOND,
    kills=("outbox-run-cancels-on-stop", "outbox-run-ignores-concurrency"),
)
async def run_delivers_several_at_once(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    for concurrency in (1, 4):
        name, stop, delivery = ctx.name("mail"), StopToken(), Pool()
        for number in range(9):
            await other.outbox(name).enqueue(number)
        running = ctx.start(mine.outbox(name).run(delivery, stop=stop, concurrency=concurrency))
        await ctx.idle(running, "run goes on until it is stopped")
        ctx.expect(len(delivery.open), concurrency, "run delivers `concurrency` entries at once")
        stop.cancel()
        await ctx.idle(running, "on stop deliveries under way end first")
        delivery.go_on.set()
        ctx.expect(await ctx.soon(running, "a stop ends run"), None, "run returns cleanly")
        ctx.expect(delivery.most, concurrency, "run never delivers more than `concurrency` at once")
        ctx.expect(sorted(map(str, delivery.done)), [str(at) for at in range(concurrency)], "in claim order")
        left = {(job.state, job.attempts) for job in await other.outbox(name).jobs.list()}
        ctx.expect(
            left, {(JobState.PENDING, 0)}, "a stop takes nothing more, and what was delivered is acked"
        )


@row(
    "OBX-09",
    text="A stop that was set before, or while run waits, ends it at once; a bad argument is refused.",
    oracle="the returns, the typed errors, and an untouched entry",
    modes=SECOND,
)
async def a_stop_ends_run(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name, stop, delivery = ctx.name("mail"), StopToken(), Pool()
    running = ctx.start(mine.outbox(name).run(delivery, stop=stop, concurrency=3))
    await ctx.idle(running, "run waits for entries")
    stop.cancel()
    ctx.expect(await ctx.soon(running, "a stop ends a run that waits"), None, "run returns cleanly")
    id = await other.outbox(name).enqueue("entry")
    again = mine.outbox(name).run(delivery, stop=stop)
    ctx.expect(await ctx.soon(again, "a stop set before ends run"), None, "run returns cleanly")
    bad: tuple[dict[str, Any], ...] = (
        {"concurrency": 0},
        {"concurrency": 1.5},
        {"delivery": None},
        {"delivery": "x"},
    )
    for keywords in bad:
        async with ctx.refuses(InvalidArgument, "a bad argument of run is refused"):
            arguments: dict[str, Any] = {"delivery": delivery, "stop": StopToken(), **keywords}
            await mine.outbox(name).run(**arguments)
    job = await entry(ctx, other.outbox(name), id)
    ctx.expect((job.state, job.attempts), (JobState.PENDING, 0), "the entry is untouched")


@row(
    "OBX-09",
    text="A delivery that raises does not end run: it goes on with the next entry, and retries the first on its curve.",
    oracle="two entries, the first of which fails once",
    modes=SECOND,
)
async def run_outlives_a_failing_delivery(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name, stop = ctx.name("mail"), StopToken()
    seen: list[tuple[object, int]] = []

    async def delivery(handle: JobHandle) -> None:
        seen.append((handle.job.payload, handle.job.attempts))
        if handle.job.payload == "bad" and handle.job.attempts == 1:
            raise ConnectionError("once")

    running = ctx.start(mine.outbox(name).run(delivery, stop=stop))
    await ctx.settle()
    await other.outbox(name).enqueue("bad", base_delay=4)
    await other.outbox(name).enqueue("good")
    await ctx.idle(running, "run goes on after a failing delivery")
    ctx.expect(seen, [("bad", 1), ("good", 1)], "a failing delivery holds up nobody")
    await ctx.advance(4)
    ctx.expect(seen[2:], [("bad", 2)], "a failed entry is delivered again on its curve")
    stop.cancel()
    await ctx.soon(running, "a stop ends run")
    ctx.expect(await other.outbox(name).jobs.list(), [], "every entry is delivered")


@row(
    "OBX-09",
    text="run survives a DatabaseError with back-off.",
    oracle="an entry that comes after the storage was away",
    needs=("durable",),
)
async def run_outlives_a_database_error(ctx: Context) -> None:
    name, stop, delivery = ctx.name("mail"), StopToken(), Pool()
    delivery.go_on.set()
    running = ctx.start(ctx.store.outbox(name).run(delivery, stop=stop))
    await ctx.idle(running, "run waits for entries")
    async with broken(ctx, Fault.STORAGE_AWAY, ctx.store):
        for _ in range(20):
            await ctx.hold(0.003)
        ctx.still_waiting(running, "run survives a database error")
    await ctx.store.outbox(name).enqueue("after")
    for _ in range(400):
        if delivery.done:
            break
        await ctx.hold(0.003)
    ctx.expect(delivery.done, ["after"], "run goes on when the storage is back")
    stop.cancel()
    await ctx.soon(running, "a stop ends run")


@row(
    "OBX-03",
    text="A DatabaseError of the claim or of the outcome propagates from run_once.",
    oracle="what leaves run_once while the storage is away, and the entry afterwards",
    needs=("durable",),
)
async def a_database_error_leaves_run_once(ctx: Context) -> None:
    outbox = ctx.store.outbox(ctx.name("mail"))
    id = await outbox.enqueue("entry")
    delivery = Pool()
    delivery.go_on.set()
    async with broken(ctx, Fault.STORAGE_AWAY, ctx.store):
        async with ctx.refuses(DatabaseError, "a DatabaseError of the claim propagates"):
            await outbox.run_once(delivery)
        ctx.expect(delivery.done, [], "without a claim nothing is delivered")

    late = Pool()
    running = ctx.start(outbox.run_once(late))
    await ctx.idle(running, "run_once awaits the delivery")
    async with broken(ctx, Fault.STORAGE_AWAY, ctx.store):
        late.go_on.set()
        async with ctx.refuses(DatabaseError, "a DatabaseError of the outcome propagates"):
            await ctx.soon(running, "the outcome is given up in time")
    job = await outbox.jobs.get_job(id)
    ctx.among(job is None, {"it landed": True, "it is reclaimable": False}, "an outcome that raised")
    await ctx.advance(60)
    again = await outbox.run_once(deliver)
    ctx.expect(again, job is not None, "an entry whose outcome did not land is reclaimable")
