"""Rows STR-04, STR-08 and STR-12 in several processes: one order for all, no gap, and effects exactly once."""

import asyncio
import random
from collections import Counter
from typing import Final

from alkstore import DatabaseError, OffsetConflict, Store
from alkstore_contract_suite.child import hear, hold, tell
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._process import ALONE, give_way, joined, overlapped
from alkstore_contract_suite.rows._stream import rising

EVENTS: Final = 500
PAGES: Final = (7, 11)
ROLLBACKS: Final = 0.1
PUBLISHED: Final = 40
"""Transactions of one writer."""

Seen = list[tuple[int, str]]


async def _publish(store: Store, name: str, writers: int, seed: str) -> list[str]:
    """Publish with several tasks, in transactions held open for a moment, some rolled back; gives what was committed."""

    async def write(writer: int) -> list[str]:
        draw = random.Random(f"{seed}/{writer}")
        kept = []
        for number in range(PUBLISHED):
            payloads = [f"{seed}/{writer}/{number}/{part}" for part in range(draw.randrange(1, 3))]
            async with store.begin_tx() as tx:
                for payload in payloads:
                    await tx.publish(name, payload)
                await hold(draw.choice((0, 0, draw.uniform(0, 0.003))))
                if draw.random() < ROLLBACKS:
                    await tx.rollback()
                else:
                    kept += payloads
            await give_way()
        return kept

    return [payload for part in await asyncio.gather(*map(write, range(writers))) for payload in part]


async def _read_on(store: Store, name: str) -> Seen:
    """Read what is new, again and again, until the case says that all is there; gives it as it came."""
    seen: Seen = []
    end = asyncio.create_task(hear())
    is_last = False
    while True:
        events = await store.stream(name).read_since(seen[-1][0] if seen else 0, 7)
        seen += [(event.offset, event.payload_as(str)) for event in events]
        if is_last and not events:
            return seen
        is_last = end.done()
        await hold(0.001)


@row(
    "STR-04",
    text="A reader never finds an event behind one that it has seen, whatever processes publish and roll back.",
    oracle="readers in two processes, while two others publish in held transactions, against what is there at the end",
    modes=("process",),
)
async def one_order_for_the_readers_of_every_process(ctx: Context) -> None:
    name = ctx.name("log")
    first, second, reader, late = await ctx.processes(4)
    readers = [reader.start(_read_on, name), late.start(_read_on, name)]
    writers = [child.start(_publish, name, 2, child.name) for child in (first, second)]
    kept = await asyncio.gather(*writers)
    for child in (reader, late):
        child.tell("all is there")
    found = [await ctx.soon(task, "a reader reads on while others write") for task in readers]
    events = [
        (event.offset, event.payload_as(str)) for event in await ctx.store.stream(name).read_since(0, 5_000)
    ]
    ctx.that(rising([offset for offset, _ in events]), "events are ordered by offset")
    ctx.expect(
        sorted(payload for _, payload in events),
        sorted(joined(kept)),
        "what was committed is there, and only that",
    )
    ctx.expect(
        found, [events, events], "no reader missed what was committed behind an event that it had seen"
    )
    places = {payload: offset for offset, payload in events}
    overlapped(ctx, [[places[payload] for payload in part] for part in kept])


async def _subscribe(store: Store, name: str, consumer: str, count: int, saved: int) -> list[int]:
    """Receive so many events as a consumer, and save after so many of them; gives their offsets."""
    offsets: list[int] = []
    async with store.stream(name).subscribe(consumer) as events:
        tell("subscribed")
        while len(offsets) < count:
            event = await events.recv()
            assert event is not None
            offsets.append(event.offset)
            if len(offsets) == saved:
                await events.save(event)
    return offsets


async def _publish_in_every_way(store: Store, name: str, times: int) -> None:
    stream = store.stream(name)
    for number in range(times):
        await stream.publish(number)
        await stream.publish_batch([number, number])
        async with store.begin_tx() as tx:
            await tx.publish(name, number)


@row(
    "STR-08",
    text="A subscription yields the backlog, then live events, without gap or duplicate, while processes publish.",
    oracle="subscribers in two processes, one of them killed and resumed after its save, against what is there",
    modes=("process",),
)
async def a_subscription_has_no_gap_and_no_duplicate_across_processes(ctx: Context) -> None:
    name, backlog, times = ctx.name("log"), 40, 40
    await ctx.store.stream(name).publish_batch(range(backlog))
    total = backlog + 2 * 4 * times
    first, second, reader, killed = await ctx.processes(4, poll_interval=ALONE)
    reading = reader.start(_subscribe, name, "reader", total, 0)
    half = killed.start(_subscribe, name, "half", total // 2, total // 4)
    for child in (reader, killed):
        await ctx.soon(child.hear(), "a process can subscribe")
    writing = [child.start(_publish_in_every_way, name, times) for child in (first, second)]
    some = await ctx.soon(half, "a subscriber gets what is published in other processes")
    await killed.kill()
    [resumed] = await ctx.processes(1)
    rest = resumed.start(_subscribe, name, "half", total - total // 4, 0)
    seen = await ctx.soon(reading, "a subscriber gets everything that other processes publish")
    again = await ctx.soon(rest, "a subscriber resumes after what it saved")
    await asyncio.gather(*writing)
    events = [event.offset for event in await ctx.store.stream(name).read_since(0, 5_000)]
    ctx.expect(seen, events, "a subscription has neither gap nor duplicate")
    ctx.expect(some, events[: total // 2], "so has one that is killed later")
    ctx.expect(again, events[total // 4 :], "one that is resumed goes on right after the saved offset")


async def _project(store: Store, name: str, page: int) -> int:
    """Make the effect of each event in one transaction with the position, page by page; gives the number of conflicts."""
    conflicts = 0
    while True:
        try:
            async with store.begin_tx() as tx:
                events = await tx.read_from_consumer(name, "projection", page)
                for event in events:
                    await tx.enqueue("effects", [event.payload, page])
                if not events:
                    return conflicts
                await tx.save_offset(name, "projection", events[-1].offset)
            await give_way()
        except (OffsetConflict, DatabaseError):
            conflicts += 1


@row(
    "STR-12",
    text="Two processes of one projection make each effect exactly once.",
    oracle="500 events by pages of 7 and of 11: 500 effects, each once; then the same with one process killed midway",
    modes=("process",),
)
async def two_processes_of_one_projection_make_each_effect_once(ctx: Context) -> None:
    name = ctx.name("log")
    await ctx.store.stream(name).publish_batch(range(EVENTS))
    children = await ctx.processes(2)
    _ = await ctx.race(
        *(child.run(_project, name, page) for child, page in zip(children, PAGES, strict=True))
    )
    effects = await _effects(ctx)
    ctx.expect(
        Counter(event for event, _ in effects), Counter(range(EVENTS)), "each effect happens exactly once"
    )
    ctx.expect([event for event, _ in effects], [*range(EVENTS)], "and in the order of the events")
    overlapped(ctx, [[event for event, page in effects if page == each] for each in PAGES])


async def _effects(ctx: Context) -> list[tuple[int, int]]:
    """Give the event and the page's size of each effect, in the order in which they were made."""
    jobs = await ctx.store.queue("effects").list(limit=5_000)
    return [job.payload_as(tuple[int, int]) for job in jobs]


@row(
    "STR-12",
    text="A projection that is killed midway has made each effect exactly once when another one ends its work.",
    oracle="250 events in pages of 7, four processes killed at random, one that ends the work",
    modes=("process",),
)
async def a_killed_projection_makes_no_effect_twice(ctx: Context) -> None:
    name = ctx.name("log")
    await ctx.store.stream(name).publish_batch(range(EVENTS // 2))
    for child in await ctx.processes(4):
        _ = child.start(_project, name, 7)
        for _ in range(ctx.random.randrange(4)):
            await ctx.hold(ctx.random.uniform(0, 0.003))
        await child.kill()
    await (await ctx.process()).run(_project, name, 7)
    effects = [event for event, _ in await _effects(ctx)]
    ctx.expect(effects, [*range(EVENTS // 2)], "each effect happens exactly once, kills notwithstanding")
