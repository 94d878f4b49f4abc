"""Row STR-12: reading and saving in a transaction, and the exactly-once effect that they make."""

import asyncio
from collections import Counter

from alkstore import DatabaseError, OffsetConflict, Store, Tx
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.racing import Step, Worker
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._receiving import SECOND, offsets
from alkstore_contract_suite.rows._stream import LAST, Held, filled, publishing

EVENTS = 500


@row(
    "STR-12",
    text="A transaction's reads see its own events and positions over what others had committed.",
    oracle="reads in the transaction before and after another commit; nobody else sees its part",
    modes=SECOND,
    kills=("tx-read-misses-own-events",),
)
async def a_transaction_reads_its_own_writes(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("log")
    before = await filled(other.stream(name), 2)
    async with mine.begin_tx() as tx:
        ctx.expect(await _read(tx, name), before, "a transaction reads what is committed")
        own = [await tx.publish(name, "own"), await tx.publish(name, "own")]
        ctx.expect(await _read(tx, name), [*before, *own], "a transaction reads its own events")
        ctx.expect(await _read(tx, name, own[0], 1), own[1:], "its reads keep offset and limit")
        ctx.expect(await _read(tx, name, LAST), [], "its reads are total")
        await tx.save_offset(name, "reader", before[1])
        ctx.expect(await tx.get_offset(name, "reader"), before[1], "a transaction reads its own position")
        found = [event.offset for event in await tx.read_from_consumer(name, "reader")]
        ctx.expect(found, own, "a transaction reads on from its own position")
        ctx.expect(await other.stream(name).get_offset("reader"), 0, "nobody else sees an open save")
    ctx.expect(await other.stream(name).get_offset("reader"), before[1], "a commit lands the position")
    ctx.expect(await offsets(other.stream(name)), [*before, *own], "a commit lands the events")


async def _read(tx: Tx, name: str, after: int = 0, limit: int = 100) -> list[int]:
    return [event.offset for event in await tx.read_since(name, after, limit)]


@row(
    "STR-12",
    text="Own events are shown up to the first offset that another open transaction may still fill.",
    oracle="a transaction that publishes after another open one, reads, saves what it read last, and commits",
    modes=("plain", "second"),
    kills=("tx-reads-own-events-over-a-hole",),
)
async def own_events_are_not_shown_over_a_hole(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("log")
    first = Held(ctx, mine)
    earlier = first.begin(publishing(name))
    await first.ready("a transaction can publish")

    async def publish_and_save(tx: Tx) -> tuple[int, list[int]]:
        own = await tx.publish(name, "later")
        seen = [event.offset for event in await tx.read_from_consumer(name, "reader")]
        if seen:
            await tx.save_offset(name, "reader", seen[-1])
        return own, seen

    second = Held(ctx, other)
    later = second.begin(publish_and_save)
    second.commit()
    await ctx.settle()
    first.commit()
    offset = await ctx.soon(earlier, "the first transaction ends")
    own, seen = await ctx.soon(later, "the second transaction ends")
    await ctx.settle()
    rest = [event.offset for event in await mine.stream(name).read_from_consumer("reader")]
    ctx.expect([*seen, *rest], sorted((offset, own)), "saving the last offset read never skips an event")


@row(
    "STR-12",
    text="Tx.save_offset commits or vanishes with its transaction.",
    oracle="the position, and a job of the same transaction, after a rollback and after a commit",
    modes=SECOND,
    kills=("tx-save-lands-before-commit",),
)
async def a_save_lands_with_its_transaction(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("log")
    await filled(mine.stream(name), 3)
    for keep in (False, True):
        async with mine.begin_tx() as tx:
            await tx.enqueue(name, "effect")
            await tx.save_offset(name, "reader", 2)
            ctx.expect(await other.stream(name).get_offset("reader"), 0, "an open save is not seen")
            if not keep:
                await tx.rollback()
        jobs = await other.queue(name).list()
        found = (await other.stream(name).get_offset("reader"), len(jobs))
        ctx.expect(found, (2, 1) if keep else (0, 0), "effect and position land together or not at all")


@row(
    "STR-12",
    text="Tx.save_offset is compare-and-set: OffsetConflict unless the position is where the transaction expects it.",
    oracle="saves after a read, with `after`, and with nothing read; the transaction stays usable",
    modes=SECOND,
    kills=("tx-save-compares-nothing",),
)
async def a_save_in_a_transaction_compares(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("log")
    await other.stream(name).reset_offset("reader", 10)
    async with mine.begin_tx() as tx:
        async with ctx.refuses(OffsetConflict, "nothing read: the position must move forward") as blind:
            await tx.save_offset(name, "reader", 10)
        ctx.expect((blind.error.expected, blind.error.found), (None, 10), "the conflict says what it found")
        async with ctx.refuses(OffsetConflict, "a position that is not `after` is a conflict") as told:
            await tx.save_offset(name, "reader", 20, after=9)
        ctx.expect((told.error.expected, told.error.found), (9, 10), "the conflict says what it found")
        await tx.save_offset(name, "reader", 12, after=10)
        ctx.expect(await tx.get_offset(name, "reader"), 12, "a save that fits lands in the transaction")
        await tx.save_offset(name, "reader", 11)
        ctx.expect(await tx.get_offset(name, "reader"), 11, "what was read may be moved backwards")
    ctx.expect(await other.stream(name).get_offset("reader"), 11, "the last save of a transaction lands")
    async with mine.begin_tx() as tx:
        await tx.save_offset(name, "reader", 13)
    ctx.expect(await other.stream(name).get_offset("reader"), 13, "nothing read: a greater position lands")


@row(
    "STR-12",
    text="A transaction whose position moved meanwhile conflicts, and lands nothing.",
    oracle="a reset between the read and the save, or one that waits until the end",
    modes=("plain", "second"),
    kills=("tx-save-compares-nothing",),
)
async def a_position_that_moved_is_a_conflict(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("log")
    await filled(mine.stream(name), 5)
    resets: list[asyncio.Task[None]] = []

    async def save_after_a_reset(tx: Tx) -> None:
        await tx.enqueue(name, "effect")
        events = await tx.read_from_consumer(name, "reader")
        resets.append(ctx.start(other.stream(name).reset_offset("reader", 1)))
        await ctx.settle()
        await tx.save_offset(name, "reader", events[-1].offset)

    reader = Held(ctx, mine)
    reading = reader.begin(save_after_a_reset)
    reader.commit()
    try:
        await ctx.soon(reading, "the transaction ends")
        landed = 1
    except OffsetConflict:
        landed = 0
    await ctx.soon(resets[0], "a reset lands in the end")
    ctx.among(landed, {"the reset waits": 1, "the transaction conflicts": 0}, "a reset beside a transaction")
    jobs = len(await other.queue(name).list())
    ctx.expect(jobs, landed, "a conflict lands nothing of its transaction")
    ctx.expect(await other.stream(name).get_offset("reader"), 1, "a reset beside a transaction is not lost")


@row(
    "STR-12",
    text="Tx.read_from_consumer holds the position: another transaction's read waits, and goes on from the save.",
    oracle="a second reader of the same consumer, begun while the first is open",
    modes=("plain", "second"),
    kills=("read-from-consumer-holds-nothing",),
)
async def a_read_in_a_transaction_holds_the_position(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("log")
    given = await filled(mine.stream(name), 5)

    async def take(tx: Tx) -> list[int]:
        found = [event.offset for event in await tx.read_from_consumer(name, "reader", 2)]
        await tx.save_offset(name, "reader", found[-1])
        return found

    first, second = Held(ctx, mine), Held(ctx, other)
    one = first.begin(take)
    await first.ready("a transaction can read from its consumer")
    two = second.begin(take)
    second.commit()
    await ctx.idle(two, "a position that is held makes the next reader wait")
    free = await ctx.soon(offsets(other.stream(name)), "reading the stream waits for nobody")
    ctx.expect(free, given, "reading the stream waits for nobody")
    first.commit()
    found = [await ctx.soon(one, "the first reader ends"), await ctx.soon(two, "the next reader goes on")]
    ctx.expect(found, [given[:2], given[2:4]], "the next reader goes on from where the first one saved")
    ctx.expect(await mine.stream(name).get_offset("reader"), given[3], "both saves land")


@row(
    "STR-12",
    text="Business write and Tx.save_offset together are an exactly-once effect.",
    oracle="two projections of one consumer, pages of 7 and 11, 500 events: 500 effects, one an event",
    modes=("concurrent", "second"),
    kills=("tx-save-compares-nothing",),
)
async def an_effect_happens_exactly_once(ctx: Context) -> None:
    name = ctx.name("log")
    stores = [ctx.store, await ctx.turn()]
    given = await filled(stores[0].stream(name), EVENTS)

    def projection(store: Store, page: int) -> Worker[int]:
        async def project(step: Step) -> int:
            count = 0
            while (found := await _project(ctx, store, name, page, step)) != 0:
                count += max(found, 0)
                # Who takes the position again at once may leave the other one, which asks from time to time, no page at all.
                await ctx.hold(0.001)
            return count

        return project

    counts = await ctx.race_workers([projection(stores[0], 7), projection(stores[1], 11)])
    effects = [job.payload for job in await stores[0].queue(name).list(limit=2 * EVENTS)]
    ctx.expect(len(effects), EVENTS, "every event has one effect")
    ctx.expect(Counter(effects), Counter(given), "no effect is lost and none is doubled")
    ctx.expect(sum(counts), EVENTS, "what a projection was told landed has landed, and nothing else")
    ctx.expect(await stores[0].stream(name).get_offset("projection"), given[-1], "the position is at the end")


async def _project(ctx: Context, store: Store, name: str, page: int, step: Step) -> int:
    """Do one page; gives how many events had their effect, 0 at the end, -1 if it is to be tried again."""
    try:
        async with store.begin_tx() as tx:
            events = await tx.read_from_consumer(name, "projection", page)
            for event in events:
                await tx.enqueue(name, event.offset)
            await step()
            if events:
                await tx.save_offset(name, "projection", events[-1].offset)
            if ctx.random.random() < 0.1:
                await tx.rollback()
                return -1
    except (OffsetConflict, DatabaseError):
        await step()
        return -1
    return len(events)
