"""Rows STR-04, STR-05 and STR-15: events become visible in the order of their offsets, at a commit."""

import gc
import time
import warnings

from alkstore import Closed, DatabaseError, Store, Tx
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.racing import Step, Worker
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._receiving import SECOND, offsets
from alkstore_contract_suite.rows._stream import Held, filled, publishing, rising

WRITERS = 16
MOST_EVENTS = 2_000
LONGEST = 0.3
"""Seconds of real time of the stress; longer runs are the soak's."""


@row(
    "STR-04",
    text="A publish that commits while an earlier one is still open does not become visible above a hole.",
    oracle="reads while the first transaction is open, and reading on after it committed or rolled back",
    modes=("plain", "concurrent", "second"),
    kills=("offset-visible-out-of-order",),
    hints="draw the offset at the commit, or hold back what is above the least offset that is still open",
)
async def no_event_becomes_visible_below_one_that_was_read(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    for keep in (True, False):
        name = ctx.name("log")
        first = Held(ctx, mine)
        opened = first.begin(publishing(name))
        await first.ready("a transaction can publish")
        second = ctx.start(other.stream(name).publish("second"))
        await ctx.settle()
        seen = await offsets(mine.stream(name))
        heads = [await mine.stream(name).head()]
        (first.commit if keep else first.roll_back)()
        expected = {await ctx.soon(second, "a publish lands once the other has ended")}
        expected |= {await ctx.soon(opened, "the first transaction ends")} if keep else set()
        await ctx.settle()
        seen += await offsets(other.stream(name), seen[-1] if seen else 0)
        heads.append(await mine.stream(name).head())
        ctx.expect(seen, sorted(expected), "reading on from the last offset misses nothing")
        ctx.expect(heads[-1], max(expected), "the head is the greatest offset that may be read")
        ctx.that(rising(seen), "a reader never finds an event below one that it has seen", observed=seen)


@row(
    "STR-04",
    text="Two open transactions on one stream, committed in either order, lose no event to a reader that reads on.",
    oracle="a reader that reads after each step, for both orders and for a rollback of either",
    modes=("plain", "second"),
    kills=("offset-visible-out-of-order",),
)
async def transactions_may_commit_in_any_order(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    for order, keeps in (((0, 1), (True, True)), ((1, 0), (True, True)), ((1, 0), (False, True))):
        name = ctx.name("log")
        held = [Held(ctx, mine), Held(ctx, other)]
        tasks = [each.begin(publishing(name)) for each in held]
        await ctx.settle()
        seen = await offsets(mine.stream(name))
        ctx.expect(seen, [], "nothing is visible before a commit")
        for at in order:
            (held[at].commit if keeps[at] else held[at].roll_back)()
            await ctx.settle()
            seen += await offsets(mine.stream(name), seen[-1] if seen else 0)
        given = [await ctx.soon(task, "both transactions end") for task in tasks]
        await ctx.settle()
        seen += await offsets(mine.stream(name), seen[-1] if seen else 0)
        kept = sorted(given[at] for at in (0, 1) if keeps[at])
        ctx.expect(seen, kept, "whatever the order of the commits, a reader that reads on sees all")


@row(
    "STR-04",
    text="Under many publishers, held transactions and rollbacks a reader that reads on never misses an event.",
    oracle="the offsets that a fast reader saw against those that committed: the same, in order",
    modes=("concurrent", "second"),
    kills=("offset-visible-out-of-order",),
)
async def a_reader_misses_nothing_under_stress(ctx: Context) -> None:
    name = ctx.name("log")
    stores = [ctx.store, await ctx.turn()]
    committed: list[int] = []
    begun, running = time.monotonic(), [True] * WRITERS

    def writer(at: int) -> Worker[list[int]]:
        async def write(step: Step) -> list[int]:
            while len(committed) < MOST_EVENTS and time.monotonic() - begun < LONGEST:
                committed.extend(await _write_some(ctx, stores[at % 2], name, step))
            running[at] = False
            return []

        return write

    async def read(step: Step) -> list[int]:
        stream, seen = stores[0].stream(name), list[int]()
        while True:
            is_last = not any(running)
            seen += await offsets(stream, seen[-1] if seen else 0)
            if is_last:
                return seen
            await step()

    results = await ctx.race_workers([*(writer(at) for at in range(WRITERS)), read])
    seen = results[-1]
    ctx.that(rising(seen), "a reader finds events in the order of their offsets", observed=seen)
    ctx.expect(sorted(set(committed) - set(seen)), [], "a reader that reads on misses no committed event")
    ctx.expect(sorted(set(seen) - set(committed)), [], "a reader sees nothing that did not commit")
    ctx.expect(len(set(committed)), len(committed), "no offset is given twice")


async def _write_some(ctx: Context, store: Store, name: str, step: Step) -> list[int]:
    """Publish in a transaction that stays open a little, or directly; gives what committed."""
    if ctx.random.random() < 0.2:
        await step()
        return [await store.stream(name).publish("direct")]
    try:
        async with store.begin_tx() as tx:
            given = [await tx.publish(name, "held") for _ in range(ctx.random.randrange(1, 3))]
            for _ in range(ctx.random.randrange(4)):
                await step()
            if ctx.random.random() < 0.05:
                await ctx.hold(ctx.random.random() * 0.003)
            if ctx.random.random() < 0.1:
                await tx.rollback()
                return []
    except DatabaseError:
        await step()
        return []
    return given


@row(
    "STR-05",
    text="Tx.publish returns the offset that the event has if the tx commits; nobody else sees it before.",
    oracle="reads, head, a subscription and the names before the commit; the event at that offset after it",
    modes=SECOND,
    kills=("publish-visible-before-commit",),
)
async def a_transaction_knows_its_offsets(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("log")
    before = await filled(mine.stream(name), 2)
    async with other.stream(name).subscribe() as events:
        async with mine.begin_tx() as tx:
            given = [await tx.publish(name, "a", key="k"), *await tx.publish_batch(name, ["b", "c"])]
            ctx.that(rising([*before, *given]), "a transaction's offsets increase", observed=given)
            await ctx.settle()
            for store in (mine, other):
                ctx.expect(await offsets(store.stream(name)), before, "nothing is visible before the commit")
                ctx.expect(await store.stream(name).head(), before[-1], "the head does not move before it")
            ctx.expect(await events.try_recv(), None, "no subscriber sees an event before its commit")
        found = [(event.offset, event.payload) for event in await other.stream(name).read_since(before[-1])]
        expected = list(zip(given, "abc", strict=True))
        ctx.expect(found, expected, "each event has the offset that the transaction was given")
        await ctx.settle()
        event = await events.try_recv()
        ctx.expect(event and event.offset, given[0], "a subscriber sees the events after the commit")


@row(
    "STR-05",
    text="A rollback leaves nothing, and readers never wait for its offset.",
    oracle="reads, head and names after it; the next publish is readable at once",
    modes=SECOND,
    kills=("rolled-back-event-stays",),
)
async def a_rollback_leaves_no_event(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("log")
    tx = await mine.begin_tx()
    await tx.publish_batch(name, [1, 2, 3])
    await tx.rollback()
    async with ctx.refuses(Closed, "a transaction that was rolled back has ended"):
        await tx.publish(name, 4)
    ctx.expect(await offsets(other.stream(name)), [], "a rollback leaves no event")
    ctx.expect(await other.stream(name).head(), 0, "a rollback leaves no head")
    given = await other.stream(name).publish("after")
    ctx.expect(await offsets(mine.stream(name)), [given], "the next event is readable at once")


@row(
    "STR-05",
    text="While Tx.publish is open another publish waits or is held back; either way it lands, and readers never wait.",
    oracle="reads while both are under way; both events after the first ended",
    modes=("plain", "second"),
)
async def readers_never_wait_for_a_publisher(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("log")
    before = await filled(mine.stream(name), 2)
    open_one = Held(ctx, mine)
    first = open_one.begin(publishing(name))
    await open_one.ready("a transaction can publish")
    later = ctx.start(other.stream(name).publish("later"))
    await ctx.settle()
    ctx.among(later.done(), {"held back": True, "waits": False}, "a publish beside an open one")
    for store in (mine, other):
        found = await ctx.soon(offsets(store.stream(name)), "readers never wait for a publisher")
        ctx.expect(found, before, "an open publish holds back what comes after it")
    open_one.commit()
    given = [await ctx.soon(each, "both publishes land") for each in (first, later)]
    await ctx.settle()
    found = await offsets(other.stream(name))
    ctx.expect(found, [*before, *sorted(given)], "once the first has ended both are readable")


@row(
    "STR-05",
    text="An abandoned transaction frees what it held back.",
    oracle="a publish beside a transaction that is dropped without an end",
    modes=("plain", "second"),
    kills=("abandoned-tx-holds-readers",),
)
async def an_abandoned_transaction_frees_readers(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("log")

    async def abandon() -> None:
        tx: Tx = await mine.begin_tx()
        await tx.publish(name, "never")

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ResourceWarning)
        await ctx.soon(ctx.start(abandon()), "a transaction can publish")
        later = ctx.start(other.stream(name).publish("later"))
        gc.collect()
        await ctx.settle()
        given = await ctx.soon(later, "an abandoned transaction frees writers")
    await ctx.settle()
    ctx.expect(await offsets(mine.stream(name)), [given], "an abandoned transaction frees readers")
    warned = any(issubclass(each.category, ResourceWarning) for each in told)
    ctx.that(warned, "a transaction that nobody ended is told of")


@row(
    "STR-15",
    text="A slow writer of something else does not hold back a stream's readers.",
    oracle="an event that was published while a transaction on another stream, queue and channel is open",
    modes=("plain", "second"),
    kills=("open-tx-holds-every-stream",),
)
async def a_writer_of_something_else_holds_back_nobody(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name, elsewhere = ctx.name("log"), ctx.name("log")
    before = await filled(mine.stream(name), 2)

    async def write(tx: Tx) -> int:
        await tx.enqueue(name, "job")
        await tx.notify(name)
        await tx.save_offset(name, "reader", before[0])
        return await tx.publish(elsewhere, "slow")

    slow = Held(ctx, other)
    writing = slow.begin(write)
    await slow.ready("a transaction can write")
    publishing = ctx.start(mine.stream(name).publish("later"))
    await ctx.settle()
    found = await ctx.soon(offsets(other.stream(name)), "a slow writer of something else holds up no reader")
    landed = [publishing.result()] if publishing.done() else []
    ctx.among(publishing.done(), {"lands": True, "waits": False}, "a publish beside an open transaction")
    ctx.expect(found, [*before, *landed], "what landed is readable, whoever else writes something else")
    slow.commit()
    given = await ctx.soon(publishing, "the publish lands")
    offset = await ctx.soon(writing, "the slow writer lands")
    ctx.expect(await offsets(other.stream(name)), [*before, given], "every event is readable in the end")
    ctx.expect(await offsets(mine.stream(elsewhere)), [offset], "so is the slow writer's")


@row(
    "STR-15",
    text="An open Tx.publish holds back that stream's later events at most, not the earlier ones.",
    oracle="earlier events of that stream, and of another, while it is open",
    modes=("plain", "second"),
)
async def an_open_publish_holds_back_later_events_at_most(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name, elsewhere = ctx.name("log"), ctx.name("log")
    before = await filled(mine.stream(name), 3)
    theirs = await filled(mine.stream(elsewhere), 3)
    slow = Held(ctx, other)
    writing = slow.begin(publishing(name))
    await slow.ready("a transaction can publish")
    for stream, expected in ((name, before), (elsewhere, theirs)):
        found = await ctx.soon(offsets(mine.stream(stream)), "an open publish holds up no reader")
        ctx.expect(found, expected, "an open publish holds back no earlier event and no other stream")
    slow.roll_back()
    await ctx.soon(writing, "the slow writer ends")
