"""Rows STR-08, STR-09, STR-10, STR-13 and STR-16: subscriptions, and what outlives a connection and a server."""

from contextlib import aclosing

from alkstore import Stream, StreamEvent
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.factory import Fault
from alkstore_contract_suite.racing import Step, Worker
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._receiving import (
    SECOND,
    broken,
    offsets,
    received,
    received_offsets,
    waiting_offsets,
)
from alkstore_contract_suite.rows._stream import FIRST, LAST, STORED, filled, rising

PAGE = 500
"""Events that a receiver may hold: the default, and the greatest limit, of recv_page."""


@row(
    "STR-08",
    text="subscribe starts after the consumer's saved position; `after` overrides it; with neither it starts from now.",
    oracle="the backlog of each kind of start, and one live event after it",
    modes=SECOND,
    kills=("subscribe-without-a-start-replays",),
)
async def a_subscription_starts_where_it_is_told(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("log")
    given = await filled(other.stream(name), 5)
    await other.stream(name).save_offset("mailer", given[2])
    starts: tuple[tuple[str | None, int | None, list[int]], ...] = (
        ("mailer", None, given[3:]),
        ("unknown", None, given),
        ("mailer", given[0], given[1:]),
        ("mailer", FIRST, given),
        (None, given[3], given[4:]),
        (None, 0, given),
        (None, None, []),
    )
    for consumer, after, backlog in starts:
        async with mine.stream(name).subscribe(consumer, after=after) as events:
            found = await waiting_offsets(ctx, events)
            ctx.expect(found, backlog, f"subscribe({consumer!r}, after={after}) starts where it is told")
    async with mine.stream(name).subscribe() as events, mine.stream(name).subscribe(after=LAST) as never:
        live = await other.stream(name).publish("live")
        event = await received(ctx, events, "with neither a subscription starts from now")
        ctx.expect(event.offset, live, "with neither a subscription starts from now")
        ctx.expect(await waiting_offsets(ctx, never), [], "after the last offset of all nothing comes")


@row(
    "STR-08",
    text="The backlog comes in order, over several pages, then live events, without gap or duplicate.",
    oracle="1,203 events, then single ones that a waiting recv gets",
    modes=SECOND,
    kills=("pages-skip-an-event",),
)
async def the_backlog_comes_before_live_events(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("log")
    given = await filled(other.stream(name), 2 * PAGE + 203)
    async with mine.stream(name).subscribe("mailer") as events:
        found = await received_offsets(ctx, events, len(given), "the backlog comes")
        ctx.expect(found, given, "the backlog comes in order, without gap or duplicate")
        for _ in range(5):
            waiter = ctx.start(events.recv())
            await ctx.idle(waiter, "after the last event recv waits")
            live = await other.stream(name).publish("live")
            event = await ctx.soon(waiter, "a live event ends the wait")
            ctx.expect(event and event.offset, live, "live events follow the backlog")


def _publisher(stream: Stream, running: list[int]) -> Worker[list[int]]:
    """Give a worker that publishes 40 events; the last one of the workers says that it was the last."""

    async def publish(step: Step) -> list[int]:
        for number in range(40):
            await stream.publish(number)
            await step()
        running[0] -= 1
        if running[0] == 0:
            await stream.publish("last")
        return []

    return publish


@row(
    "STR-08",
    text="While publishers are running a subscription has no gap and no duplicate, wherever it begins.",
    oracle="twelve subscriptions opened at random moments among four publishers: all that the log has after each start",
    modes=("concurrent", "second"),
    kills=("gap-between-backlog-and-live", "duplicate-between-backlog-and-live"),
    hints="watch first, then look where the log stands: the other way round loses what is committed in between",
)
async def a_subscription_among_publishers_has_no_gap(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("log")
    running = [4]

    async def subscribe(step: Step) -> list[int]:
        for _ in range(ctx.random.randrange(30)):
            await step()
        after = ctx.random.choice((None, 0))
        async with mine.stream(name).subscribe(after=after) as events:
            seen: list[StreamEvent] = []
            while not seen or seen[-1].payload != "last":
                seen += await events.recv_page(ctx.random.choice((1, 7, PAGE)))
                await step()
            return [event.offset for event in seen]

    publishers = [_publisher(store.stream(name), running) for store in (mine, other) * 2]
    results = await ctx.soon(
        ctx.race_workers([*publishers, *[subscribe] * 12]), "every subscription reaches the last event"
    )
    log = await offsets(mine.stream(name))
    for seen in results[4:]:
        ctx.that(rising(seen), "a subscription gives no event twice, and each in order", observed=seen)
        ctx.expect(seen, [each for each in log if each >= seen[0]], "a subscription has no gap")


@row(
    "STR-08",
    text="What is published right after subscribe returned is received, though the receiver was never in recv.",
    oracle="publishes at once after each of twenty subscriptions, with and without a backlog",
    modes=("plain", "concurrent", "second"),
    kills=("subscription-starts-at-its-first-read",),
)
async def what_follows_a_subscribe_is_received(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    for round in range(20):
        name = ctx.name("log")
        before = await filled(other.stream(name), round % 3)
        async with mine.stream(name).subscribe("r" if round % 2 else None) as events:
            later = await filled(other.stream(name), 2)
            if round % 5 == 0:
                await ctx.settle()
            expected = [*(before if round % 2 else []), *later]
            found = await received_offsets(ctx, events, len(expected), "what follows a subscribe is received")
            ctx.expect(found, expected, "what follows a subscribe is received, once")
            ctx.expect(await waiting_offsets(ctx, events), [], "no event comes twice")


@row(
    "STR-08",
    text="No save happens by itself: not on recv, not on a page, not on close.",
    oracle="the positions while a subscription reads, and after it was closed",
    modes=STORED,
    kills=("recv-saves-by-itself",),
)
async def a_subscription_saves_nothing_by_itself(ctx: Context) -> None:
    name = ctx.name("log")
    given = await filled(ctx.store.stream(name), 6)
    async with ctx.store.stream(name).subscribe("mailer") as events:
        await received_offsets(ctx, events, 2, "the backlog comes")
        await ctx.soon(events.recv_page(), "the backlog comes")
        ctx.expect(await ctx.store.stream(name).consumers(), {}, "no save happens by itself")
    stream = (await ctx.turn()).stream(name)
    ctx.expect(await stream.get_offset("mailer"), 0, "a close saves nothing")
    ctx.expect(await offsets(stream), given, "reading removes nothing")


@row(
    "STR-09",
    text="A new subscription without a save repeats; after a save it goes on after it.",
    oracle="the backlog of a second and a third subscription of one consumer",
    modes=STORED,
    depends=("STR-06",),
)
async def a_new_subscription_goes_on_after_the_save(ctx: Context) -> None:
    name = ctx.name("log")
    given = await filled(ctx.store.stream(name), 5)
    async with ctx.store.stream(name).subscribe("mailer") as events:
        found = await received_offsets(ctx, events, 3, "the backlog comes")
        ctx.expect(found, given[:3], "the backlog comes in order")
    store = await ctx.turn()
    async with store.stream(name).subscribe("mailer") as events:
        seen = [await received(ctx, events, "without a save a subscription repeats") for _ in range(3)]
        ctx.expect([each.offset for each in seen], given[:3], "without a save a subscription repeats")
        await events.save(seen[1])
    store = await ctx.turn()
    async with store.stream(name).subscribe("mailer") as events:
        found = await waiting_offsets(ctx, events)
        ctx.expect(found, given[2:], "after a save a subscription goes on after it")


@row(
    "STR-09",
    text="Two receivers, of the same or of different consumers, both get every event.",
    oracle="four receivers of one stream, one of them on another store, a backlog and live events",
    modes=SECOND,
    kills=("receivers-of-a-consumer-share-events",),
)
async def every_receiver_gets_every_event(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("log")
    backlog = await filled(other.stream(name), 3)
    stream = mine.stream(name)
    async with (
        stream.subscribe("same") as one,
        stream.subscribe("same") as two,
        stream.subscribe("different") as three,
        other.stream(name).subscribe("same") as four,
    ):
        live = await filled(other.stream(name), 3)
        for receiver in (one, two, three, four):
            found = await received_offsets(ctx, receiver, 6, "every receiver gets every event")
            ctx.expect(found, [*backlog, *live], "every receiver gets every event, in order")
            ctx.expect(await waiting_offsets(ctx, receiver), [], "and none twice")


@row(
    "STR-10",
    text="A stalled subscriber goes on afterwards without loss.",
    oracle="2,600 events in single publishes and batches while the receiver stands still, then all of them",
    modes=SECOND,
    kills=("stalled-subscriber-drops",),
)
async def a_stalled_subscriber_loses_nothing(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("log")
    async with mine.stream(name).subscribe() as events:
        given = [await other.stream(name).publish("first")]
        found = await received_offsets(ctx, events, 1, "the first event comes")
        for _ in range(20):
            given += await filled(other.stream(name), 128)
            given.append(await other.stream(name).publish("single"))
            await ctx.settle()
        found += await received_offsets(ctx, events, len(given) - 1, "a stalled subscriber goes on")
        ctx.expect(found, given, "a stalled subscriber loses nothing, in order")


@row(
    "STR-10",
    text="A stalled subscriber holds at most one page: what was trimmed meanwhile does not come from its memory.",
    oracle="the events that still come after a trim of everything, at most one page; then a new one",
    modes=SECOND,
    kills=("stalled-subscriber-hoards",),
)
async def a_stalled_subscriber_holds_one_page(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("log")
    async with mine.stream(name).subscribe(after=0) as events:
        await filled(other.stream(name), 1)
        await received_offsets(ctx, events, 1, "the first event comes")
        given: list[int] = []
        for _ in range(5):
            given = await filled(other.stream(name), PAGE)
            await ctx.settle()
        await received_offsets(ctx, events, 1, "a stalled subscriber goes on")
        await other.stream(name).trim_to(LAST)
        held = await waiting_offsets(ctx, events)
        ctx.that(len(held) <= PAGE, "a stalled subscriber holds at most one page", observed=len(held))
        later = await other.stream(name).publish("later")
        event = await received(ctx, events, "a subscriber goes on after a trim")
        ctx.expect(event.offset, later, "a subscriber goes on after a trim")
        ctx.that(later > given[-1], "numbering goes on after a trim", observed=later)


@row(
    "STR-13",
    text="After a listener reconnect a subscription goes on without loss.",
    oracle="events before, during and after three losses of the listening connection, in order",
    needs=("reconnects",),
    kills=("reconnect-passes-over-events",),
)
async def a_subscription_outlives_its_listener(ctx: Context) -> None:
    name, store = ctx.name("log"), ctx.store
    other = await ctx.open("b")
    async with store.stream(name).subscribe() as events:
        given: list[int] = []
        found: list[int] = []
        for _ in range(3):
            given += await filled(other.stream(name), 2)
            async with broken(ctx, Fault.LISTENER_LOST, store):
                given += await filled(other.stream(name), 2)
            given += await filled(other.stream(name), 2)
            missing = len(given) - len(found)
            found += await received_offsets(ctx, events, missing, "a subscription outlives its listener")
        ctx.expect(found, given, "a subscription outlives its listener without gap or duplicate")


@row(
    "STR-16",
    text="Saved positions and events survive dump and restore into another server, and numbering goes on.",
    oracle="events, positions and head of the restored storage; an event published there reaches its consumer",
    needs=("server",),
    kills=("positions-stay-where-they-were",),
)
async def a_restored_stream_goes_on(ctx: Context) -> None:
    name = ctx.name("log")
    given = await filled(ctx.store.stream(name), 5)
    await ctx.store.stream(name).save_offset("mailer", given[2])
    factory = await ctx.factory.dump_restore()
    if factory is None:
        ctx.skip_inconclusive("the factory cannot dump and restore here")
    async with aclosing(await factory.open("restored")) as store:
        stream = store.stream(name)
        ctx.expect(await offsets(stream), given, "events survive dump and restore")
        ctx.expect(await stream.get_offset("mailer"), given[2], "positions survive dump and restore")
        ctx.expect(await stream.head(), given[-1], "the head survives dump and restore")
        later = await stream.publish("later")
        ctx.that(later > given[-1], "numbering goes on after a restore", observed=later)
        found = [event.offset for event in await stream.read_from_consumer("mailer")]
        ctx.expect(found, [*given[3:], later], "a consumer goes on in the restored storage")
