"""Rows DUR-01 to DUR-03, DUR-06, DUR-07, CLK-02, and FACTORY-11 in several processes."""

import asyncio
import os
import warnings
from datetime import datetime
from typing import Any, Final

from alkstore import InvalidArgument, Store
from alkstore_contract_suite.child import hold, tell
from alkstore_contract_suite.context import MICRO, Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._accepting import accepts
from alkstore_contract_suite.rows._process import sound, taken
from alkstore_contract_suite.rows._queue import seconds, take

KILLED: Final = -9
OPENED: Final = 6


async def pid(store: Store) -> int:
    return os.getpid()


async def instant(store: Store, name: str) -> datetime:
    """Enqueue a job and give the instant at which the store says that it did."""
    id = await store.queue(name).enqueue(None)
    job = await store.queue(name).get_job(id)
    assert job is not None
    return job.created_at


@row(
    "FACTORY-11",
    text="A child process is another process, on the same storage and the same time, and a kill is a kill.",
    oracle="process ids, a job seen from both sides, its instant, and the exit status",
    modes=("process",),
    hints="remote() gives a picklable recipe of a factory on the same storage; the suite moves its clock",
)
async def a_child_process_has_the_same_storage_and_time(ctx: Context) -> None:
    await ctx.advance(12.345678)
    children = await ctx.processes(2)
    pids = [await child.run(pid) for child in children]
    ctx.expect(len({os.getpid(), *pids}), 3, "a child is another process")
    for child in children:
        await ctx.advance(0.000001)
        ctx.expect(await child.run(instant, "q"), await ctx.now(), "a child has the case's time")
    ctx.expect(len(await ctx.store.queue("q").list()), 2, "a child has the case's storage")
    await children[0].kill()
    await children[1].stop()
    ctx.expect([child.status for child in children], [KILLED, 0], "a kill is a kill, a stop a clean end")


async def _write_one_of_each(store: Store, who: str) -> None:
    """Write something of every kind, and tell of each thing when it was acknowledged; never end."""
    queue, stream = store.queue("q", visibility_timeout=3_600), store.stream("s")
    for number in range(20):
        tell(("job", await queue.enqueue(number)))
        tell(("event", await stream.publish(number)))
        async with store.begin_tx() as tx:
            job, event = await tx.enqueue("q", number), await tx.publish("s", number)
        tell(("job", job))
        tell(("event", event))
        tell(("position", await stream.save_offset("c", event) and event))
        [handle] = await taken(store, "q", 1)
        tell(("gone", await handle.ack() and handle.job.id))
        lock = await store.try_lock(f"{who} {number}", 3_600)
        tell(("lock", lock and lock.name))
        tell(("schedule", (await store.schedule(f"{who} {number}", "@every 1h", "q", number)).name))
    tell(("end", None))
    await asyncio.Event().wait()


@row(
    "DUR-01",
    text="What a process acknowledged before it was killed is there.",
    oracle="six processes tell of each acknowledgement and are killed at random; every told thing is looked for",
    modes=("process",),
    kills=("acknowledged-before-durable",),
)
async def what_a_process_acknowledged_survives_its_kill(ctx: Context) -> None:
    told: list[tuple[str, Any]] = []
    for child in await ctx.processes(6):
        _ = child.start(_write_one_of_each, child.name)
        for _ in range(ctx.random.randrange(3, 80)):
            told.append(await ctx.soon(child.hear(), "a process works"))
        await child.kill()
        told += child.heard()
    found = await _found(ctx.store)
    for kind, names in found.items():
        wanted = {name for word, name in told if word == kind}
        if kind == "job":
            wanted -= {name for word, name in told if word == "gone"}
        # One more than told may be gone: the ack that was under way when a process died.
        missing = wanted - names
        ctx.that(
            len(missing) <= (6 if kind == "job" else 0),
            f"what was acknowledged is there: {kind}",
            observed=missing,
        )
    gone = {name for word, name in told if word == "gone"}
    ctx.expect(gone & found["job"], set(), "what was acked before a kill stays acked")
    positions = [name for word, name in told if word == "position"]
    ctx.that(
        await ctx.store.stream("s").get_offset("c") >= max(positions, default=0),
        "a saved position stays saved",
    )
    await sound(ctx)


async def _found(store: Store) -> dict[str, set[Any]]:
    return {
        "job": {job.id for job in await store.queue("q").list(limit=5_000)},
        "event": {event.offset for event in await store.stream("s").read_since(0, 5_000)},
        "lock": {lock.name for lock in await store.locks()},
        "schedule": {schedule.name for schedule in await store.schedules()},
    }


async def _answer(store: Store, number: int) -> tuple[object, list[object], int]:
    """Claim and ack what the other side enqueued, and write the next; gives what was seen."""
    [handle] = await taken(store, "q", 1)
    await handle.ack()
    events = [event.payload for event in await store.stream("s").read_since(0)]
    position = await store.stream("s").get_offset("c")
    await store.queue("back").enqueue(number)
    return handle.job.payload, events, position


@row(
    "DUR-02",
    text="Two processes on one storage see each other's commits at once.",
    oracle="writes go back and forth between this process and two others",
    modes=("process",),
    kills=("reads-an-old-state",),
)
async def processes_see_each_others_commits(ctx: Context) -> None:
    store, children = ctx.store, await ctx.processes(2)
    for number in range(1, 9):
        await store.queue("q").enqueue(number)
        await store.stream("s").publish(number)
        await store.stream("s").save_offset("c", number)
        seen = await children[number % 2].run(_answer, number)
        wanted = (number, [*range(1, number + 1)], number)
        ctx.expect(seen, wanted, "another process sees at once what was committed")
        handle = await take(ctx, store.queue("back"), "what another process commits is seen at once")
        ctx.expect(handle.job.payload, number, "what another process commits is seen at once")
        ctx.expect(await handle.ack(), True, "a claim on another process's job is live")


async def enqueued(store: Store, payload: object) -> int:
    return await store.queue("q").enqueue(payload)


async def _payloads(store: Store) -> list[str]:
    return sorted(str(job.payload) for job in await store.queue("q").list(limit=5_000))


@row(
    "DUR-03",
    text="Several processes may open empty storage at once: the schema is made once, and nobody meets an error.",
    oracle="six processes that open it together, each with a job that all the others see",
    modes=("process",),
    needs=("migrations",),
    bare=True,
    kills=("tables-are-made-without-looking-again",),
)
async def several_processes_may_open_empty_storage_at_once(ctx: Context) -> None:
    with accepts(ctx, "nobody meets an error on opening"):
        children = await ctx.processes(OPENED)
    ids = await ctx.race(*(child.run(enqueued, child.name) for child in children))
    ctx.expect(len(set(ids)), OPENED, "they number their jobs together")
    wanted = sorted(child.name for child in children)
    for child in children:
        ctx.expect(await child.run(_payloads), wanted, "all of them work on one storage")
    ctx.expect(await _payloads(await ctx.open("a")), wanted, "so does who opens later")
    await sound(ctx)


@row(
    "DUR-06",
    text="A process that ends without a close ends cleanly too, with everything that it had open.",
    oracle="the exit status of a process with a transaction, a listener, a wait and a claim; what it wrote before",
    modes=("process",),
    needs=("listen",),
)
async def a_process_that_just_ends_ends_cleanly(ctx: Context) -> None:
    child = await ctx.process()
    _ = child.start(_leave_open)
    ctx.expect(await ctx.soon(child.hear(), "a process has everything open"), "open", "everything is open")
    await ctx.soon(child.leave(), "a process that ends without a close does not hang")
    ctx.expect(child.status, 0, "a process that ends without a close ends cleanly")
    payloads = [job.payload for job in await ctx.store.queue("q").list()]
    ctx.expect(payloads, ["kept"], "what it committed is there, what it left open is not")
    ctx.that(await ctx.soon(ctx.store.queue("q").enqueue(1), "nobody is held up"), "others go on")


async def _leave_open(store: Store) -> None:
    await store.queue("held").enqueue("held")
    held = await taken(store, "held", 1)
    await store.queue("q").enqueue("kept")
    async with store.listen("c"), store.stream("s").subscribe(after=0), store.begin_tx() as tx:
        await tx.enqueue("q", "never committed")
        tell("open")
        await store.queue("nothing").claim() if not held else await asyncio.Event().wait()


async def _fork(store: Store) -> tuple[int, list[str]]:
    """Fork in the midst of work; gives the child's exit code, and what its calls met."""
    [handle] = await taken(store, "q", 1)
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads is what is tested here
        child = os.fork()
    if child == 0:
        try:
            met = [
                _first_step(call)
                for call in (
                    store.queue("q").enqueue("forked"),
                    handle.ack(),
                    store.stream("s").publish("forked"),
                )
            ]
            os.write(writing, "\n".join(met).encode())
        finally:
            os._exit(0)
    os.close(writing)
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):  # noqa: ASYNC222  # WNOHANG waits for nothing
        await hold(0.001)
    told = os.read(reading, 4096).decode().split("\n")
    os.close(reading)
    if not await handle.ack():
        told.append("the parent's claim is gone")
    await store.queue("q").enqueue("after")
    return os.waitstatus_to_exitcode(ended[1]), told


def _first_step(call: Any) -> str:
    """Begin a coroutine as its task would, and give what it met; a refusal comes before anything is awaited."""
    try:
        call.send(None)
    except InvalidArgument:
        return "InvalidArgument"
    except StopIteration:
        return "done"
    except Exception as error:  # whatever else it is, it is not the refusal
        return type(error).__name__
    return "it awaits something"


@row(
    "DUR-07",
    text="In a child forked by a worker a store is InvalidArgument, and the storage stays sound.",
    oracle="what calls in the fork met; the worker, and others, go on with what they have",
    modes=("process",),
)
async def a_fork_of_a_worker_is_refused_and_harms_nothing(ctx: Context) -> None:
    await ctx.store.queue("q").enqueue_batch(["before", "kept"])
    worker, other = await ctx.processes(2)
    found = await ctx.soon(worker.run(_fork), "a fork hangs in no call")
    ctx.expect(found, (0, ["InvalidArgument"] * 3), "a fork is refused, and the worker goes on")
    ctx.expect(
        await other.run(_payloads), ["after", "kept"], "nothing of the fork is stored, nothing is lost"
    )
    await worker.stop()
    ctx.expect(await other.run(enqueued, "later") > 0, True, "other processes go on")
    await sound(ctx)


async def _states(store: Store, window: float) -> list[object]:
    """Look at everything that depends on time."""
    stats = await store.queue("q").stats()
    return [stats.ready, stats.delayed, stats.processing, stats.stale, len(await store.locks())]


async def _begin_windows(store: Store) -> None:
    """Hold a claim and a lock for ten seconds, and leave a job that is ready, and one that expires, after ten."""
    await store.queue("q", visibility_timeout=10, max_attempts=9).enqueue("held")
    await taken(store, "q", 1)
    await store.try_lock("lock", 10)
    await store.queue("q").enqueue("delayed", delay=10)
    await store.queue("q").enqueue("expires", expires=10)


@row(
    "CLK-02",
    text="The stores of all processes see one time, and what ends by it ends for all of them at that instant.",
    oracle="delay, expiry, claim and lock of one process, looked at from three, one microsecond before and at the end",
    modes=("process",),
)
async def all_processes_see_one_time(ctx: Context) -> None:
    writer, *others = await ctx.processes(3)
    await writer.run(_begin_windows)
    for step, wanted in ((10 - MICRO, [1, 1, 1, 0, 1]), (MICRO, [2, 0, 0, 1, 0])):
        await ctx.advance(step)
        seen = [
            await _states(ctx.store, 10),
            *[await child.run(_states, 10.0) for child in (writer, *others)],
        ]
        ctx.expect(seen, [wanted] * 4, "what ends by the clock ends for every process at that instant")
    before = await ctx.now()
    for step in (-3600.0, 86_400.0):
        await ctx.advance(step)
        now = await ctx.now()
        seen_at = [await child.run(instant, "instants") for child in (writer, *others)]
        ctx.expect(seen_at, [now] * 3, "every process sees the same now, backwards too")
    ctx.expect(await ctx.now() - before, seconds(82_800), "time moved by what was given")
