"""Row Q-24 as a loop of kills: everything works at once in processes that die at random, and every effect is accounted for.

Seven processes work on one storage: two producers, two workers, a scheduler, a subscriber, and one that delivers an
outbox. They tell of each step: of what they are about to do, of what was acknowledged, of what they got. In each round
one of them is killed, in the midst of its work or while time passes, and replaced. A long run also restarts the server
and cuts the network under all of them, where a factory can bring that about. At the end the work is let come to its end,
and what is there is held against what was told.
"""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext, suppress
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from alkstore import ClaimLost, DatabaseError, EventReceiver, JobHandle, StopToken, Store
from alkstore_contract_suite.child import hold, tell
from alkstore_contract_suite.children import Child
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.factory import Disturbed
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._accounting import Book
from alkstore_contract_suite.rows._process import ALONE, sound
from alkstore_contract_suite.rows._schedule import boundaries, fired_for

T = TypeVar("T")

WINDOW: Final = 20.0
"""Seconds of a claim; time passes between the kills, so that those of the dead lapse."""

EVERY: Final = 3
BURST: Final = 8
"""Acknowledgements that a producer waits for in each round."""

HANDLING: Final = 0.002
"""Seconds of real time that a job takes at most; a kill is to find somebody at work."""

LONGEST_STEP: Final = 9

MOST_STEPS: Final = 12
"""Of what it tells, after which a process is killed; most tell of two for each operation."""

LONGEST_WAIT: Final = 40
"""Milliseconds after which it is killed whatever it tells."""

PATIENCE: Final = 12
"""Windows in which the work must have become less once nobody is killed any more."""

RETRIED: Final = 1
"""Seconds after which a job comes again that a worker gave back."""

DISTURBANCES: Final[Mapping[str, int]] = {"server restart": 3, "network cut": 5}
"""Of each kind among a hundred kills; among five there are none, so that an ordinary run stays quick."""

TRYING_AGAIN: Final = 0.003
"""Seconds of real time between two tries while the storage is away."""

Role: TypeAlias = Callable[[Store, str, bool], Awaitable[None]]
"""Does its part until it is killed; with ``goes_on`` it goes on over a `DatabaseError`, which is a failure otherwise."""


# ---------------------------------------------------------------- what the processes do


async def _again(work: Callable[[], Awaitable[T]], goes_on: bool) -> T:
    """Do what may be done twice, until the storage lets it be done."""
    while True:
        try:
            return await work()
        except DatabaseError:
            if not goes_on:
                raise
            await hold(TRYING_AGAIN)


async def _produce(store: Store, who: str, goes_on: bool) -> None:
    """Enqueue one by one, in batches, and in transactions with an event and an entry."""
    draw = random.Random()
    for number in range(BURST):
        how = draw.choice(("single", "batch", "whole"))
        keys = [f"{who}/{number}/{part}" for part in range(1 if how == "single" else draw.choice((1, 3)))]
        tell(("tries", how, keys))
        try:
            await _store(store, how, keys, draw)
        except DatabaseError:
            # It may have landed, so it must not be tried again.
            if not goes_on:
                raise
            await hold(TRYING_AGAIN)
        else:
            tell(("landed", how, keys))


async def _store(store: Store, how: str, keys: list[str], draw: random.Random) -> None:
    queue = store.queue("jobs", visibility_timeout=WINDOW, max_attempts=1_000)
    if how == "whole":
        async with store.begin_tx() as tx:
            for key in keys:
                await tx.enqueue(queue, key)
                await tx.publish("events", key)
                await hold(draw.uniform(0, HANDLING / 2))
                await tx.outbox_enqueue("mail", key, visibility_timeout=WINDOW, max_attempts=1_000)
    elif how == "batch":
        await queue.enqueue_batch(keys)
    else:
        await queue.enqueue(keys[0])


async def _work(store: Store, who: str, goes_on: bool) -> None:
    """Claim, and ack, ack in one transaction with an effect, retry, or bury."""
    draw = random.Random()
    claims = store.queue("jobs").claims()
    while True:
        try:
            handle = await _again(lambda: anext(claims), goes_on)
        except StopAsyncIteration:
            return
        tell(("claimed", "jobs", _claim(handle)))
        await hold(draw.uniform(0, HANDLING))
        await _again(partial(_settle, store, handle, draw), goes_on)


async def _settle(store: Store, handle: JobHandle, draw: random.Random) -> None:
    id = handle.job.id
    how = draw.choice(("ack", "ack", "effect", "effect", "retry", "bury"))
    if how in ("retry", "bury"):
        # From here on somebody else may have it, whether we live to tell of it or not.
        tell(("lets go", "jobs", id))
        await (handle.retry(delay=draw.choice((0, RETRIED))) if how == "retry" else handle.fail("buried"))
    elif how == "ack":
        tell(("acked", "jobs", id, await handle.ack()))
    else:
        with suppress(ClaimLost):
            async with store.begin_tx() as tx:
                await tx.publish("effects", handle.job.payload)
                await tx.ack(handle)
            tell(("acked", "jobs", id, True))


async def _deliver(store: Store, who: str, goes_on: bool) -> None:
    async def delivery(handle: JobHandle) -> None:
        tell(("claimed", "mail", _claim(handle)))
        await hold(random.uniform(0, HANDLING))

    await store.outbox("mail").run(delivery, stop=StopToken(), concurrency=2)


def _claim(handle: JobHandle) -> dict[str, Any]:
    job = handle.job
    assert job.deadline is not None
    return {
        "id": job.id,
        "key": job.payload,
        "attempt": job.attempts,
        "since": job.deadline - job.visibility_timeout,
        "until": job.deadline,
    }


async def _schedule(store: Store, who: str, goes_on: bool) -> None:
    await store.supervise_schedules(StopToken())


async def _follow(store: Store, who: str, goes_on: bool) -> None:
    """Tell of each event, and save now and then."""
    draw = random.Random()
    async with aclosing(await _again(partial(_subscribe, store), goes_on)) as events:
        while (event := await _again(events.recv, goes_on)) is not None:
            tell(("event", event.offset))
            if draw.random() < 0.3:
                await _again(partial(events.save, event), goes_on)


async def _subscribe(store: Store) -> EventReceiver:
    return await store.stream("events").subscribe("reader")


ROLES: Final[Mapping[str, Role]] = {
    "producer 1": _produce,
    "producer 2": _produce,
    "worker 1": _work,
    "worker 2": _work,
    "scheduler": _schedule,
    "subscriber": _follow,
    "outbox": _deliver,
}


# ---------------------------------------------------------------- the loop


class _Crew:
    """The processes by what they do, and everything that any of them ever told."""

    def __init__(self, ctx: Context, *, goes_on: bool) -> None:
        self._ctx = ctx
        self._goes_on = goes_on
        self._working: dict[str, Child] = {}
        self._begun: list[Child] = []
        self.book = Book()

    async def begin(self) -> None:
        for name, child in zip(
            ROLES, await self._ctx.processes(len(ROLES), poll_interval=ALONE), strict=True
        ):
            self._employ(name, child)

    def _employ(self, name: str, child: Child) -> None:
        self._working[name] = child
        self._begun.append(child)
        if not name.startswith("producer"):
            _ = child.start(ROLES[name], name, self._goes_on)

    def produce(self) -> "list[asyncio.Task[None]]":
        """Let the producers work; gives a task for each."""
        return [
            child.start(
                _produce, f"{child.name} {len(self._begun)} {self._ctx.random.random()}", self._goes_on
            )
            for name, child in self._working.items()
            if name.startswith("producer")
        ]

    async def kill(self, name: str) -> None:
        """Kill one soon, right after it told of a step if it does, and put another in its place."""
        child, draw = self._working[name], self._ctx.random
        enough = child.unheard + draw.randrange(1, MOST_STEPS)
        for _ in range(draw.choice((0, LONGEST_WAIT, LONGEST_WAIT))):
            if child.unheard >= enough:
                break
            await self._ctx.hold(0.001)
        await self._ctx.hold(draw.choice((0, draw.uniform(0, 0.001))))
        await child.kill()
        self._employ(name, await self._ctx.process(poll_interval=ALONE))

    def note(self) -> None:
        """Write down what was told, process by process."""
        for child in self._begun:
            self.book.note(child.name, child.heard())
        self._begun = [child for child in self._begun if child.status is None]

    async def stop(self) -> None:
        for child in self._working.values():
            await child.stop()
        self.note()


@row(
    "Q-24",
    text="Processes that do everything at once may be killed at any moment: nothing is lost, nothing is done twice.",
    oracle="what producers, workers, a scheduler, a subscriber and an outbox told, against what is there at the end",
    modes=("process",),
    needs=("listen",),
    hints="--alk-kills N kills more; the timeline names the rounds",
)
async def processes_may_be_killed_at_any_moment(ctx: Context) -> None:
    start = await ctx.now()
    await ctx.store.schedule("tick", f"@every {EVERY}s", "ticks", None)
    await ctx.store.stream("events").save_offset("reader", 0)
    async with _disturbances(ctx) as disturbances:
        crew = _Crew(ctx, goes_on=bool(disturbances))
        await crew.begin()
        await _rounds(ctx, crew, disturbances)
        await _come_to_an_end(ctx, crew)
        await crew.stop()
    # The last leader may have died within its lease: what it owed is still due, each boundary once.
    while await ctx.store.tick_schedules():
        ctx.note("boundaries that the dead had left")
    await _judge(ctx, crew.book)
    passed = int((await ctx.now() - start).total_seconds())
    wanted = boundaries(start, EVERY, *range(1, passed // EVERY + 1))
    ctx.expect(await fired_for(ctx.store, "ticks"), wanted, "each boundary fired once, kills notwithstanding")
    await sound(ctx)


def _disturbances(ctx: Context) -> AbstractAsyncContextManager[Mapping[str, Callable[[], Awaitable[None]]]]:
    if any(_times(kind, ctx.kills) for kind in DISTURBANCES) and isinstance(ctx.factory, Disturbed):
        return ctx.factory.disturbances()
    return nullcontext({})


def _times(kind: str, kills: int) -> int:
    return DISTURBANCES[kind] * kills // 100


async def _rounds(
    ctx: Context, crew: _Crew, disturbances: Mapping[str, Callable[[], Awaitable[None]]]
) -> None:
    names = list(ROLES)
    troubles = [kind for kind in disturbances for _ in range(_times(kind, ctx.kills))]
    ctx.random.shuffle(troubles)
    troubled = dict(zip(ctx.random.sample(range(ctx.kills), len(troubles)), troubles, strict=True))
    for number in range(ctx.kills):
        if number in troubled:
            await _trouble(ctx, crew, troubled[number], disturbances[troubled[number]])
        if number % len(names) == 0:
            ctx.random.shuffle(names)
        await _round(ctx, crew, names[number % len(names)])


async def _trouble(ctx: Context, crew: _Crew, kind: str, happen: Callable[[], Awaitable[None]]) -> None:
    """Let something happen to the storage while all work on it."""
    ctx.note(kind)
    producing = crew.produce()
    await ctx.hold(ctx.random.uniform(0, 0.003))
    await happen()
    await ctx.soon(asyncio.wait(producing), "all go on by themselves")
    for task in producing:
        task.result()
    await ctx.advance(ctx.random.randrange(1, LONGEST_STEP + 1))
    crew.note()


async def _round(ctx: Context, crew: _Crew, name: str) -> None:
    """Kill one process: while all work, or while time passes."""
    ctx.note(f"kill the {name}")
    step = ctx.random.randrange(1, LONGEST_STEP + 1)
    producing = crew.produce()
    if ctx.random.random() < 0.7:
        await crew.kill(name)
        await ctx.soon(asyncio.wait(producing), "those who live go on")
        await ctx.advance(step)
    else:
        await ctx.soon(asyncio.wait(producing), "those who live go on")
        await asyncio.gather(ctx.advance(step), crew.kill(name))
    for task in producing:
        if not task.cancelled():
            task.result()
    crew.note()


async def _come_to_an_end(ctx: Context, crew: _Crew) -> None:
    """Let time pass until the work is done, however much it is; what the dead held must lapse first."""
    jobs = mail = None
    fewest, fruitless = math.inf, 0
    while fruitless < PATIENCE:
        # As long as the work becomes less, the living are given time to do it in and not to lose it again.
        await ctx.advance(WINDOW if fruitless or fewest == math.inf else RETRIED)
        crew.note()
        jobs, mail = await ctx.store.queue("jobs").stats(), await ctx.store.outbox("mail").jobs.stats()
        left = sum(each.ready + each.delayed + each.processing + each.stale for each in (jobs, mail))
        if not left:
            return
        fruitless = 0 if left < fewest else fruitless + 1
        fewest = min(left, fewest)
    ctx.expect((jobs, mail), "nothing but dead rows", "each row is in the end acked or dead")


async def _judge(ctx: Context, book: Book) -> None:
    dead = {job.payload_as(str) for job in await ctx.store.queue("jobs").list(limit=5_000)}
    mail = await ctx.store.outbox("mail").jobs.list()
    events = {event.offset: event.payload_as(str) for event in await _everything(ctx.store, "events")}
    effects = [event.payload_as(str) for event in await _everything(ctx.store, "effects")]
    ctx.expect(mail, [], "each entry is in the end delivered")
    book.check_jobs(ctx, dead)
    book.check_windows(ctx)
    book.check_wholes(ctx, list(events.values()))
    book.check_effects(ctx, effects)
    book.check_reading(ctx, list(events))


async def _everything(store: Store, name: str) -> "list[Any]":
    found: list[Any] = []
    while page := await store.stream(name).read_since(found[-1].offset if found else 0, 1_000):
        found += page
    return found
