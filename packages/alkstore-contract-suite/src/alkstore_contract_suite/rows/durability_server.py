"""DUR-05 and DUR-09 where a server keeps the storage: restarts under load, altered tables, clocks that are wrong."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Final, Protocol, cast

from alkstore import DatabaseError, StopToken, Store
from alkstore_contract_suite.context import MICRO, Context
from alkstore_contract_suite.factory import Fault
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._entry_points import SPEC
from alkstore_contract_suite.rows._process import sound, taken
from alkstore_contract_suite.rows._queue import seconds
from alkstore_contract_suite.rows._receiving import broken

PRODUCERS: Final = 4
RESTARTS: Final = 2
ENOUGH: Final = 20
"""Jobs that land before, between and after the restarts."""

HOUR: Final = 3_600.0


class _Load:
    """Jobs that several tasks enqueue and one takes out, whatever becomes of the server meanwhile."""

    def __init__(self, ctx: Context, name: str) -> None:
        self._ctx = ctx
        self._queue = ctx.store.queue(name, max_attempts=100)
        self._number = 0
        self.stop = StopToken()
        self.acknowledged: set[int] = set()
        self.seen: dict[int, set[int]] = {}

    async def produce(self) -> None:
        while not self.stop.is_cancelled:
            self._number += 1
            number = self._number
            try:
                await self._queue.enqueue(number)
            except DatabaseError:
                await self._ctx.hold(0.003)  # this one may have landed or not, and is not tried again
            else:
                self.acknowledged.add(number)

    async def consume(self) -> None:
        while not self.stop.is_cancelled:
            try:
                async for handle in self._queue.claims(stop=self.stop):
                    self._note(handle.job.payload, handle.job.id)
                    await handle.ack()
            except DatabaseError:
                await self._ctx.hold(0.003)

    async def more(self) -> None:
        """Wait until enough more have landed and were taken out."""
        landed, taken_out = len(self.acknowledged) + ENOUGH, len(self.seen) + ENOUGH
        while len(self.acknowledged) < landed or len(self.seen) < taken_out:
            await self._ctx.hold(0.003)

    async def drain(self) -> None:
        """Take out what is left, also what a claim holds whose answer was lost."""
        await self._ctx.advance(HOUR)
        while handles := await self._queue.claim_batch(1_000):
            for handle in handles:
                self._note(handle.job.payload, handle.job.id)
                await handle.ack()

    def _note(self, payload: object, id: int) -> None:
        self.seen.setdefault(cast(int, payload), set()).add(id)


@row(
    "DUR-05",
    text="A server that restarts under load loses nothing that was acknowledged, and everybody goes on by himself.",
    oracle="jobs of four tasks and a worker through two restarts: each acknowledged one comes, none is there twice",
    needs=("server",),
    kills=("restart-ends-the-writer",),
)
async def a_restart_under_load_loses_nothing(ctx: Context) -> None:
    load = _Load(ctx, ctx.name("load"))
    tasks = [ctx.start(load.produce()) for _ in range(PRODUCERS)] + [ctx.start(load.consume())]
    await ctx.soon(load.more(), "work goes on before the restart")
    for _ in range(RESTARTS):
        async with broken(ctx, Fault.SERVER_RESTART, ctx.store):
            ctx.note("the server restarts")
        await ctx.soon(load.more(), "work goes on after a restart")
    load.stop.cancel()
    for task in tasks:
        await ctx.soon(task, "a stop ends the work")
    await load.drain()
    lost = sorted(load.acknowledged - set(load.seen))
    ctx.expect(lost, [], "what was acknowledged before a restart comes after it")
    doubled = {number: ids for number, ids in load.seen.items() if len(ids) > 1}
    ctx.expect(doubled, {}, "a call that a restart cut off left one job at most")
    await sound(ctx)


class Alterable(Protocol):
    """A factory of an engine with a server: what an administrator may do there under open stores."""

    async def alter(self) -> None:
        """Add a column to every table, and build every index anew."""


async def _use_everything(store: Store, number: int) -> None:
    """Use every area once, on names of its own."""
    name = f"n{number}"
    queue, stream = store.queue(name), store.stream(name)
    await queue.enqueue(number)
    [handle] = await taken(store, name, 1)
    await handle.heartbeat()
    await handle.retry(error="again", delay=0)
    [handle] = await taken(store, name, 1)
    await handle.fail("dead")
    await queue.list()
    await queue.redrive(handle.job.id)
    await queue.sweep_expired()
    await queue.stats()
    offset = await stream.publish(number)
    await stream.save_offset("c", offset)
    await stream.read_from_consumer("c")
    async with store.begin_tx() as tx:
        await tx.read_from_consumer(name, "c")
        await tx.publish(name, number)
        await tx.enqueue(name, number)
    lock = await store.try_lock(name, 60)
    if lock is not None:
        await lock.renew(60)
        await lock.release()
    await store.schedule(name, SPEC, name, number)
    await store.tick_schedules()
    await store.unschedule(name)


@row(
    "DUR-05",
    text="A column that is added and an index that is built anew under a live store fail no call.",
    oracle="every area used before, during and after it, on the same connections",
    modes=("plain", "second"),
    needs=("server",),
)
async def altered_tables_fail_no_call(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    if not hasattr(ctx.factory, "alter"):
        ctx.skip_inconclusive("the factory of an engine with 'server' must have alter()")
    for number in range(6):  # as often as drivers wait before they prepare a statement
        await _use_everything(mine, number)
    altering = ctx.start(cast(Alterable, ctx.factory).alter())
    number = 100
    while not altering.done():
        await _use_everything(other, number)
        await _use_everything(mine, number + 1)
        number += 2
    await altering
    await _use_everything(mine, 7)
    await _use_everything(other, 8)
    ctx.expect(len(await mine.queue("n7").list()), 2, "what is written afterwards is there")
    await sound(ctx)


@asynccontextmanager
async def _wrong_clock(by: float) -> AsyncIterator[None]:
    """Let this process's clock be wrong."""
    right, right_ns = time.time, time.time_ns
    time.time = lambda: right() + by
    time.time_ns = lambda: right_ns() + round(by * 1e9)
    try:
        yield
    finally:
        time.time, time.time_ns = right, right_ns


async def _instants(store: Store, name: str, by: float) -> dict[str, datetime | None]:
    """Begin everything that has an instant, in a process whose clock is wrong."""
    async with _wrong_clock(by):
        await store.queue(name, visibility_timeout=60).enqueue("held", expires=500)
        [handle] = await taken(store, name, 1)
        delayed = await store.queue(name).get_job(await store.queue(name).enqueue("delayed", delay=60))
        await store.try_lock(name, 60)
        rule = await store.schedule(name, "@every 1m", f"{name} fired", 1)
        [lock] = [each for each in await store.locks() if each.name == name]
        event = await store.stream(name).read_since(await store.stream(name).publish(1) - 1)
    return {
        "created_at": handle.job.created_at,
        "published": event[0].created_at,
        "deadline": handle.job.deadline,
        "run_at": None if delayed is None else delayed.run_at,
        "lock": lock.expires_at,
        "schedule": rule.next_fire_at,
    }


@row(
    "DUR-09",
    text="The client's clock plays no role: a process an hour off claims, leases and schedules as any other.",
    oracle="instants of two processes, an hour fast and slow; what they hold ends for others on time, not earlier",
    modes=("process",),
    needs=("server",),
    kills=("instants-from-the-clients-clock",),
)
async def a_process_an_hour_off_is_as_any_other(ctx: Context) -> None:
    children = await ctx.processes(2)
    names = [ctx.name("off") for _ in children]
    now = await ctx.now()
    wanted = {"created_at": now, "published": now}
    wanted |= dict.fromkeys(("deadline", "run_at", "lock", "schedule"), now + seconds(60))
    for child, name, by in zip(children, names, (HOUR, -HOUR), strict=True):
        found = await child.run(_instants, name, by)
        ctx.expect(found, wanted, "every instant is the server's")
    await ctx.advance(60 - MICRO)
    for name in names:
        ctx.expect(await ctx.store.queue(name).claim_one(), None, "nothing of it ends early")
        ctx.expect(await ctx.store.try_lock(name, 1), None, "its lock does not end early")
    ctx.expect(await ctx.store.tick_schedules(), 0, "its schedule does not fire early")
    await ctx.advance(MICRO)
    for name in names:
        ctx.expect(len(await ctx.store.queue(name).claim_batch(9)), 2, "both jobs come at their instants")
        ctx.that(await ctx.store.try_lock(name, 1), "its lock ends at its instant")
    ctx.expect(await ctx.store.tick_schedules(), 2, "its schedule fires at its instant")
