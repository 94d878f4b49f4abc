"""ADM-01: looking at what there is, without touching it."""

from collections.abc import Sequence

from alkstore import Store
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._entry_points import SPEC
from alkstore_contract_suite.rows._queue import take

NAMES: Sequence[str] = ("b", "B", "a", "é", "z z", "10", "9", "_x")


@row(
    "ADM-01",
    text="The lists are sorted by name and show what has rows; queues leave out the outboxes' backing queues.",
    oracle="the sorted names, of every kind",
    modes=("plain", "second", "reopen", "crash-kill"),
    kills=("lists-in-order-of-creation", "queues-show-the-outboxes"),
)
async def the_lists_are_sorted_and_show_what_has_rows(ctx: Context) -> None:
    store = ctx.store
    for name in NAMES:
        await store.queue(name).enqueue(1)
        await store.outbox(f"o{name}").enqueue(1)
        await store.stream(f"s{name}").publish(1)
        await store.schedule(f"c{name}", SPEC, "q", 1)
        await store.try_lock(f"l{name}", 60)
    await store.stream("only a position").save_offset("c", 1)
    store = await ctx.turn()
    ctx.expect(await store.queues(), sorted(NAMES), "queues are sorted, without the outboxes' own")
    ctx.expect(await store.outboxes(), sorted(f"o{name}" for name in NAMES), "outboxes are sorted")
    streams = await store.streams()
    ctx.expect(streams, sorted(streams), "streams are sorted")
    with_events = [name for name in streams if name != "only a position"]
    ctx.expect(with_events, sorted(f"s{name}" for name in NAMES), "streams that have events are listed")
    schedules = [each.name for each in await store.schedules()]
    ctx.expect(schedules, sorted(f"c{name}" for name in NAMES), "schedules are sorted")
    locks = [each.name for each in await store.locks()]
    ctx.expect(locks, sorted(f"l{name}" for name in NAMES), "locks that are held are sorted")


@row(
    "ADM-01",
    text="What has no rows any more, or is not held any more, is not shown; a handle alone makes no row.",
    oracle="the lists after ack, release, lapse, unschedule, and after taking handles only",
    modes=("plain", "second"),
    kills=("lapsed-locks-are-listed",),
)
async def what_is_gone_is_not_listed(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    mine.queue("handle"), mine.stream("handle"), mine.outbox("handle")
    await mine.queue("q").enqueue(1)
    await mine.outbox("o").enqueue(1)
    await mine.schedule("s", SPEC, "q", 1)
    lapsing, freed = await mine.try_lock("lapsing", 5), await mine.try_lock("freed", 60)
    shown = [(each.name, each.fence) for each in await other.locks()]
    held = [(each.name, each.fence) for each in (freed, lapsing) if each is not None]
    ctx.expect(shown, held, "a held lock is shown with its fence")
    ctx.expect((await other.queues(), await other.outboxes()), (["q"], ["o"]), "only what has rows is shown")
    await (await take(ctx, mine.queue("q"))).ack()

    async def deliver(_: object) -> None:
        ctx.note("delivered")

    await mine.outbox("o").run_once(deliver)
    await mine.unschedule("s")
    ctx.that(freed and await freed.release(), "a held lock is released")
    await ctx.advance(5)
    lists = (await other.queues(), await other.outboxes(), await other.schedules(), await other.locks())
    ctx.expect(lists, ([], [], [], []), "what is gone is not shown")


async def _looked(store: Store) -> list[object]:
    return [
        await store.queues(),
        await store.streams(),
        await store.outboxes(),
        await store.locks(),
        await store.schedules(),
        await store.stream("s").head(),
        await store.stream("s").consumers(),
        await store.stream("s").get_offset("c"),
        await store.queue("q").stats(),
        await store.queue("q").list(),
        await store.outbox("o").jobs.stats(),
    ]


@row(
    "ADM-01",
    text="None of them changes anything.",
    oracle="expired, lapsed and due rows stay as they are however often one looks, and nobody is woken",
    modes=("plain", "second"),
    needs=("listen",),
    kills=("looking-sweeps", "looking-buries-the-lapsed"),
)
async def looking_changes_nothing(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    queue = mine.queue("q", max_attempts=1, visibility_timeout=1)
    await queue.enqueue("lapsed")
    await take(ctx, queue)
    await queue.enqueue("expired", expires=1)
    await mine.outbox("o").enqueue(1, expires=1)
    await mine.stream("s").publish(1)
    await mine.schedule("due", "@every 1s", "fired", 1)
    lock = await mine.try_lock("l", 1)
    assert lock is not None
    rows = await queue.list()
    await ctx.advance(100)
    # On a queue of its own: a claim on that of the lapsed row moves it.
    waiting = ctx.start(other.queue("waited").claim())
    async with other.listen("c") as wakes, other.stream("s").subscribe("c", after=1) as events:
        await ctx.settle()
        first = await _looked(other)
        ctx.expect([await _looked(mine), await _looked(other)], [first] * 2, "looking twice shows the same")
        await ctx.idle(waiting, "looking wakes no waiting claim")
        ctx.expect((await wakes.try_recv(), await events.try_recv()), (None, None), "looking wakes nobody")
    ctx.expect(await mine.queue("fired").list(), [], "looking fires nothing")
    ctx.expect(
        await queue.list(), rows, "looking sweeps nothing: every row is as it was before its time came"
    )
    ctx.expect(await queue.sweep_expired(), 2, "the sweep that was left to the caller still has its work")
    ctx.expect(await mine.tick_schedules(), 64, "the fires that were left to the caller still come")


@row(
    "ADM-01",
    text="Looking waits for no writer.",
    oracle="every look ends while a transaction is open, and shows what is committed",
    modes=("plain", "second"),
)
async def looking_waits_for_no_writer(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    await mine.stream("s").publish(1)
    await mine.queue("q").enqueue(1)
    before = await _looked(other)
    tx = await mine.begin_tx()
    await tx.enqueue("q", 2)
    await tx.publish("s", 2)
    await tx.outbox_enqueue("o", 2)
    await tx.save_offset("s", "c", 1)
    seen = await ctx.soon(_looked(other), "looking ends while a transaction is open")
    ctx.expect(seen, before, "looking shows what is committed")
    await tx.commit()
    after = await _looked(other)
    ctx.expect((after[2], after[5], after[6]), (["o"], 2, {"c": 1}), "after the commit it is shown")


@row(
    "ADM-01",
    text="head is the greatest offset that a reader may see now, 0 if none ever.",
    oracle="head beside read_since: empty, published, rolled back, trimmed",
    modes=("plain", "second", "reopen"),
    kills=("head-falls-after-a-trim",),
)
async def head_is_the_greatest_visible_offset(ctx: Context) -> None:
    stream = ctx.store.stream("s")
    ctx.expect(await stream.head(), 0, "the head of a stream without events is 0")
    await stream.save_offset("c", 50)
    ctx.expect(await stream.head(), 0, "a position is no event")
    offsets = await stream.publish_batch([1, 2, 3])
    ctx.expect(await stream.head(), offsets[-1], "the head is the last event's offset")
    tx = await ctx.store.begin_tx()
    await tx.publish("s", 4)
    ctx.expect(await stream.head(), offsets[-1], "an open transaction's event is not to be seen")
    await tx.rollback()
    await stream.trim_to(offsets[-1])
    stream = (await ctx.turn()).stream("s")
    ctx.expect(await stream.head(), offsets[-1], "a trim leaves the head where it was")
    offset = await stream.publish(5)
    ctx.expect(await stream.head(), offset, "the head is the last event's offset")
