"""Rows WAKE-07, WAKE-08 and WAKE-10: what closes receivers, and what a lost or absent listener means."""

import time

from alkstore import Closed, DatabaseError, InvalidArgument, StopToken, Wake
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.factory import Fault
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._receiving import (
    SECOND,
    broken,
    next_outside,
    offsets,
    pending,
    received,
    received_offsets,
    woken,
)


@row(
    "WAKE-07",
    text="Closing a receiver closes no other one on the same channel or stream.",
    oracle="its twin on the same channel, and on the same stream, after the close",
    modes=SECOND,
    needs=("listen",),
)
async def closing_a_receiver_closes_no_other(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("news")
    async with mine.listen(name) as wakes, mine.stream(name).subscribe() as events:
        async with mine.listen(name), mine.stream(name).subscribe():
            pass
        await other.notify(name)
        await woken(ctx, wakes, name, "closing a receiver closes no other")
        offset = await other.stream(name).publish(1)
        event = await received(ctx, events, "closing a receiver closes no other")
        ctx.expect(event.offset, offset, "the other receiver goes on")


@row(
    "WAKE-07",
    text="aclose() of the store closes its receivers: waits end, and whoever asks later is told.",
    oracle="both kinds, waiting and not; a receiver of another store on the same storage goes on",
    modes=SECOND,
    needs=("listen",),
    kills=("store-close-leaves-receivers",),
)
async def closing_the_store_closes_its_receivers(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("news")
    async with other.listen(name) as far, mine.listen(name) as idle, mine.listen(name) as wakes:
        async with mine.stream(name).subscribe() as events:
            waits = [ctx.start(wakes.recv()), ctx.start(events.recv())]
            await ctx.idle(waits[0], "a receiver waits")
            await mine.aclose()
            for wait in waits:
                ended = await ctx.soon(wait, "the store's close ends a wait")
                ctx.expect(ended, None, "a recv gives None when its store closes")
            for receiver in (idle, wakes, events):
                async with ctx.refuses(Closed, "a receiver of a closed store is closed"):
                    await receiver.try_recv()
                ended = await ctx.soon(receiver.recv(), "a receiver of a closed store waits for nothing")
                ctx.expect(ended, None, "a receiver of a closed store gives None")
        if other is not mine:
            await other.notify(name)
            await woken(ctx, far, name, "another store's receiver stays open")
    async with ctx.refuses(Closed, "a closed store gives no receiver"):
        await mine.listen(name)


@row(
    "WAKE-07",
    text="When the watcher dies, receivers close and a waiting claim fails; what is opened next hears again.",
    oracle="waits of all three kinds through the death; then a listen, a subscription and a claim",
    needs=("watcher",),
)
async def the_watchers_death_closes_receivers(ctx: Context) -> None:
    name, store = ctx.name("news"), ctx.store
    async with store.listen(name) as wakes, store.stream(name).subscribe() as events:
        waits = [ctx.start(wakes.recv()), ctx.start(events.recv())]
        claim = ctx.start(store.queue(name).claim())
        await ctx.idle(claim, "with nothing to claim a claim waits")
        async with broken(ctx, Fault.WATCHER_DIES, store):
            for wait in waits:
                ended = await ctx.soon(wait, "the watcher's death ends a wait")
                ctx.expect(ended, None, "the watcher's death closes receivers")
            async with ctx.refuses(DatabaseError, "a waiting claim fails when the watcher dies"):
                await ctx.soon(claim, "the watcher's death ends a waiting claim")
    async with store.listen(name) as wakes, store.stream(name).subscribe() as events:
        claim = ctx.start(store.queue(name).claim())
        await ctx.settle()
        await store.notify(name)
        await woken(ctx, wakes, name, "what is opened next hears again")
        offset = await store.stream(name).publish(1)
        event = await received(ctx, events, "what is opened next hears again")
        ctx.expect(event.offset, offset, "the new subscription goes on")
        await store.queue(name).enqueue(1)
        ctx.that(await ctx.soon(claim, "the next claim waits and is woken"), "the next claim gets the job")


@row(
    "WAKE-08",
    text="When the listening connection was lost and re-made, receivers get a wake that says so, and nobody is closed.",
    oracle="a wake receiver, an event receiver and a waiting claim, with commits during the loss",
    needs=("reconnects",),
    kills=("reconnect-wakes-nobody",),
)
async def a_reconnect_wakes_everybody(ctx: Context) -> None:
    name, quiet, store = ctx.name("news"), ctx.name("news"), ctx.store
    other = await ctx.open("b")
    async with (
        store.listen(name) as wakes,
        store.listen(quiet) as silent,
        store.stream(name).subscribe() as events,
    ):
        claim = ctx.start(store.queue(name).claim())
        await ctx.idle(claim, "with nothing to claim a claim waits")
        async with broken(ctx, Fault.LISTENER_LOST, store):
            await other.notify(name)
            offset = await other.stream(name).publish(1)
            job_id = await other.queue(name).enqueue(1)
        for receiver, channel in ((wakes, name), (silent, quiet)):
            wake = await ctx.soon(receiver.recv(), "a reconnect wakes every open receiver")
            ctx.expect(wake, Wake(channel, True), "the wake after a reconnect says so, on its own channel")
        event = await received(ctx, events, "a subscription goes on after a reconnect")
        ctx.expect(event.offset, offset, "a subscription goes on without loss")
        handle = await ctx.soon(claim, "a waiting claim is woken by a reconnect")
        ctx.expect(handle and handle.job.id, job_id, "a waiting claim gets the job of the time of loss")
        await other.notify(name)
        await woken(ctx, wakes, name, "after a reconnect notifies are heard as before")


@row(
    "WAKE-08",
    text="A listening connection that is half open, and so silent, is found and re-made.",
    oracle="a notify during the silence: a wake that says reconnected",
    needs=("reconnects",),
    kills=("half-open-connection-is-not-found",),
)
async def a_half_open_connection_is_found(ctx: Context) -> None:
    name, store = ctx.name("news"), ctx.store
    other = await ctx.open("b")
    async with store.listen(name) as wakes:
        async with broken(ctx, Fault.LISTENER_SILENT, store):
            await other.notify(name)
            wake = await ctx.soon(wakes.recv(), "a silent connection is found and re-made")
            ctx.expect(wake, Wake(name, True), "the wake after a reconnect says so")
        await other.notify(name)
        await woken(ctx, wakes, name, "after a reconnect notifies are heard as before")


@row(
    "WAKE-08",
    text="Reconnection backs off and goes on for ever, without a busy loop.",
    oracle="processor time while the server is away; a wake after it came back",
    needs=("reconnects",),
)
async def reconnection_backs_off(ctx: Context) -> None:
    name, store = ctx.name("news"), ctx.store
    async with store.listen(name) as wakes:
        async with broken(ctx, Fault.STORAGE_AWAY, store):
            begun, used = time.monotonic(), time.process_time()
            for _ in range(100):
                await ctx.hold(0.003)
            used, passed = time.process_time() - used, time.monotonic() - begun
        ctx.that(used < passed / 2, "reconnecting is no busy loop", observed=f"{used:.3f} of {passed:.3f} s")
        wake = await ctx.soon(wakes.recv(), "reconnection goes on until it works")
        ctx.expect(wake, Wake(name, True), "the wake after a reconnect says so")
        await store.notify(name)
        await woken(ctx, wakes, name, "after a reconnect notifies are heard as before")


@row(
    "WAKE-08",
    text="Where nothing can reconnect no wake ever says so.",
    oracle="every wake of a case that notifies and commits",
    modes=("plain", "second"),
    needs=("listen",),
)
async def a_wake_says_reconnected_only_after_a_loss(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("news")
    async with mine.listen(name) as wakes:
        ctx.expect(await pending(ctx, wakes), 0, "a new receiver has no wake")
        for _ in range(10):
            await other.notify(name)
            wake = await ctx.soon(wakes.recv(), "a notify wakes")
            ctx.expect(wake, Wake(name, False), "a wake says reconnected only after a loss")


@row(
    "WAKE-10",
    text="In the polling-only mode listen is refused, and notify still notifies.",
    oracle="the refusal, and what an outside listener of the database hears",
    needs=("poll_only",),
    kills=("polling-only-mode-lets-listen",),
)
async def polling_only_refuses_listen(ctx: Context) -> None:
    name = ctx.name("news")
    heard = ctx.factory.outside(name)
    async with ctx.refuses(InvalidArgument, "listen needs a listening connection"):
        await ctx.store.listen(name)
    if heard is None:
        ctx.skip_inconclusive("the factory has nobody outside who listens")
    hearing = ctx.start(next_outside(heard))
    await ctx.settle()
    await ctx.store.notify(name, "hello")
    text = await ctx.soon(hearing, "notify still notifies")
    ctx.that(b"hello" in text, "an outside listener sees the payload", observed=text)


@row(
    "WAKE-10",
    text="In the polling-only mode claims, subscriptions, locks and the runner poll.",
    oracle="each kind of wait, begun before the commit that ends it",
    needs=("poll_only",),
    hints="a column of the polling-only mode opens its stores with a poll_interval well under a second",
)
async def polling_only_keeps_every_wait(ctx: Context) -> None:
    name, store, stop = ctx.name("news"), ctx.store, StopToken()
    held = await store.try_lock(name, 3600)
    assert held is not None
    async with store.stream(name).subscribe() as events:
        claim = ctx.start(store.queue(name).claim())
        lock = ctx.start(_waited(ctx, name))
        runner = ctx.start(store.run_schedules(stop))
        await ctx.settle()
        published = await store.stream(name).publish_batch(range(3))
        job_id = await store.queue(name).enqueue(1)
        await held.release()
        found = await received_offsets(ctx, events, 3, "a subscription polls")
        ctx.expect(found, await offsets(store.stream(name)), "a subscription that polls loses nothing")
        ctx.expect(found, published, "a subscription that polls keeps the order")
        handle = await ctx.soon(claim, "a waiting claim polls")
        ctx.expect(handle and handle.job.id, job_id, "a waiting claim that polls gets the job")
        ctx.that(await ctx.soon(lock, "a waiting lock polls"), "a waiting lock that polls gets the lock")
        await store.schedule(name, "@every 1s", ctx.name("fired"), 1)
        await ctx.advance(1)
        ctx.still_waiting(runner, "the runner polls")
        stop.cancel()
        await ctx.soon(runner, "a stop ends the runner")


async def _waited(ctx: Context, name: str) -> bool:
    lock = await ctx.store.lock(name)
    return await lock.release()
