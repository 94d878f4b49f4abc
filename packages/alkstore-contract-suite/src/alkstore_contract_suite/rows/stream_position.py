"""Rows STR-06 and STR-11: consumers' positions, and trimming."""

from alkstore import EventReceiver, InvalidArgument, OffsetConflict, Store, StreamEvent
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._receiving import SECOND, offsets, received, waiting_offsets
from alkstore_contract_suite.rows._stream import FIRST, LAST, STORED, Held, filled, saving


@row(
    "STR-06",
    text="A consumer that never saved is at 0; save_offset only moves forward, past the tail too.",
    oracle="what each save answers, and the position after it",
    modes=STORED,
    kills=("save-offset-moves-backwards",),
)
async def save_offset_only_moves_forward(ctx: Context) -> None:
    name = ctx.name("log")
    await filled(ctx.store.stream(name), 3)
    saves = (
        (2, True),
        (2, False),
        (1, False),
        (0, False),
        (-1, False),
        (3, True),
        (1_000, True),
        (999, False),
    )
    stream, at = ctx.store.stream(name), 0
    ctx.expect(await stream.get_offset("reader"), 0, "a consumer that never saved is at 0")
    for offset, moves in saves:
        found = await stream.save_offset("reader", offset)
        at = offset if moves else at
        ctx.expect(found, moves, "save_offset says whether the position moved")
        ctx.expect(await stream.get_offset("reader"), at, "save_offset only moves forward")
    stream = (await ctx.turn()).stream(name)
    ctx.expect(await stream.get_offset("reader"), at, "a position stays saved")
    ctx.expect(await stream.save_offset("reader", LAST), True, "a position may be the last of all")
    ctx.expect(await stream.save_offset("reader", LAST), False, "and cannot move further")
    ctx.expect(await stream.get_offset("reader"), LAST, "a position may be the last of all")


@row(
    "STR-06",
    text="For a consumer that never saved, a save moves from 0: a negative one moves nothing.",
    oracle="saves of -1 and 0 on fresh consumers",
    modes=("boundary", "second"),
)
async def a_first_save_moves_from_zero(ctx: Context) -> None:
    stream = ctx.store.stream(ctx.name("log"))
    for offset in (FIRST, -1, 0):
        ctx.expect(await stream.save_offset("reader", offset), False, "a save at or below 0 moves nothing")
        ctx.expect(await stream.get_offset("reader"), 0, "a save at or below 0 moves nothing")
    ctx.expect(await stream.save_offset("reader", 1), True, "a save of 1 moves from 0")


@row(
    "STR-06",
    text="reset_offset sets any 64-bit value, backwards too.",
    oracle="the position after each, and a save from there",
    modes=STORED,
)
async def reset_offset_sets_any_value(ctx: Context) -> None:
    name = ctx.name("log")
    for offset in (7, 3, LAST, 0, FIRST, -1, 5):
        await ctx.store.stream(name).reset_offset("reader", offset)
        stream = (await ctx.turn()).stream(name)
        ctx.expect(await stream.get_offset("reader"), offset, "reset_offset sets any value")
    ctx.expect(await ctx.store.stream(name).save_offset("reader", 6), True, "a save moves on from a reset")
    await ctx.store.stream(name).reset_offset("reader", -5)
    ctx.expect(await ctx.store.stream(name).save_offset("reader", -4), True, "a save moves forward from -5")


@row(
    "STR-06",
    text="Consumers, and streams, are independent of each other; saving deletes nothing.",
    oracle="the positions of two consumers on two streams, and the events",
    modes=STORED,
    kills=("positions-shared-by-streams",),
)
async def consumers_are_independent(ctx: Context) -> None:
    one, two = ctx.name("log"), ctx.name("log")
    given = await filled(ctx.store.stream(one), 5)
    await filled(ctx.store.stream(two), 5)
    await ctx.store.stream(one).save_offset("a", 5)
    await ctx.store.stream(one).save_offset("b", 2)
    await ctx.store.stream(two).save_offset("a", 1)
    store = await ctx.turn()
    ctx.expect(await store.stream(one).consumers(), {"a": 5, "b": 2}, "consumers are independent")
    ctx.expect(await store.stream(two).consumers(), {"a": 1}, "streams have positions of their own")
    ctx.expect(await store.stream(two).get_offset("b"), 0, "a consumer of one stream is unknown to another")
    ctx.expect(await offsets(store.stream(one)), given, "saving deletes nothing")


@row(
    "STR-06",
    text="Of concurrent saves the greatest wins.",
    oracle="the position after sixteen racing saves in random order",
    modes=("concurrent", "second"),
)
async def the_greatest_of_racing_saves_wins(ctx: Context) -> None:
    name = ctx.name("log")
    stores = [ctx.store, await ctx.turn()]
    for round in range(5):
        places = ctx.random.sample(range(100 * round + 1, 100 * round + 100), 16)
        saves = [stores[at % 2].stream(name).save_offset("r", place) for at, place in enumerate(places)]
        moved = await ctx.race(*saves)
        ctx.expect(
            await stores[0].stream(name).get_offset("r"), max(places), "the greatest of racing saves wins"
        )
        ctx.that(moved[places.index(max(places))], "the save of the greatest moved", observed=moved)


@row(
    "STR-06",
    text="A plain save that meets an open transaction's save is not lost: the greater wins.",
    oracle="the position after both, for either being the greater, and after a rollback",
    modes=("plain", "second"),
    kills=("tx-save-overwrites-a-greater-one",),
)
async def a_plain_save_beside_a_transaction_is_not_lost(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    for inside, outside, keep in ((5, 9, True), (9, 5, True), (9, 5, False)):
        name = ctx.name("log")
        held = Held(ctx, mine)
        transaction = held.begin(saving(name, "r", inside))
        await held.ready("a transaction can save")
        plain = ctx.start(other.stream(name).save_offset("r", outside))
        await ctx.settle()
        (held.commit if keep else held.roll_back)()
        await ctx.soon(plain, "a plain save lands")
        try:
            await ctx.soon(transaction, "the transaction ends")
        except OffsetConflict:
            ctx.that(outside > inside, "a transaction's save gives way to a greater one only")
        expected = max(inside, outside) if keep else outside
        found = await other.stream(name).get_offset("r")
        ctx.expect(found, expected, "of a plain and a transaction's save the greater wins")


@row(
    "STR-06",
    text="EventReceiver.save saves for its consumer; with a tx it is Tx.save_offset; without a consumer it is refused.",
    oracle="the position after each, before and after the transaction's commit",
    modes=SECOND,
    kills=("receiver-saves-outside-its-tx",),
)
async def a_receiver_saves_for_its_consumer(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("log")
    given = await filled(other.stream(name), 3)
    async with mine.stream(name).subscribe("mailer") as events, mine.stream(name).subscribe(after=0) as bare:
        first, second, _ = [await received(ctx, events, "the backlog comes") for _ in range(3)]
        await events.save(second)
        ctx.expect(await other.stream(name).get_offset("mailer"), given[1], "save moves the position")
        await events.save(first)
        ctx.expect(await other.stream(name).get_offset("mailer"), given[1], "save only moves forward")
        async with ctx.refuses(InvalidArgument, "save without a consumer is refused"):
            await bare.save(await received(ctx, bare, "the backlog comes"))
        for keep in (False, True):
            await _save_in_a_transaction(ctx, events, mine, other, name, keep)
    ctx.expect(await other.stream(name).consumers(), {"mailer": given[2]}, "no other consumer was made")


async def _save_in_a_transaction(
    ctx: Context, events: EventReceiver, mine: Store, other: Store, name: str, keep: bool
) -> None:
    event = (await mine.stream(name).read_since(2))[0]
    before = await other.stream(name).get_offset("mailer")
    async with mine.begin_tx() as tx:
        await events.save(event, tx=tx)
        found = await other.stream(name).get_offset("mailer")
        ctx.expect(found, before, "a transaction's save is not seen before its commit")
        if not keep:
            await tx.rollback()
    found = await other.stream(name).get_offset("mailer")
    ctx.expect(found, event.offset if keep else before, "a transaction's save lands with it or not at all")


@row(
    "STR-11",
    text="trim_to(h) removes the events with offset <= h, and returns how many.",
    oracle="what is left, and what is returned, for every h around five events",
    modes=("boundary", "second", "reopen", "crash-kill"),
    kills=("trim-drops-the-event-after-the-horizon",),
)
async def trim_to_removes_up_to_its_horizon(ctx: Context) -> None:
    for horizon in range(-1, 7):
        name, elsewhere = ctx.name("log"), ctx.name("log")
        given = await filled(ctx.store.stream(name), 5)
        theirs = await filled(ctx.store.stream(elsewhere), 5)
        removed = await ctx.store.stream(name).trim_to(horizon)
        stream = (await ctx.turn()).stream(name)
        left = [offset for offset in given if offset > horizon]
        ctx.expect(removed, 5 - len(left), "trim_to returns how many it removed")
        ctx.expect(await offsets(stream), left, "trim_to removes the events with offset <= h, and no other")
        ctx.expect(await stream.trim_to(horizon), 0, "a second trim to the same horizon removes none")
        ctx.expect(await offsets(ctx.store.stream(elsewhere)), theirs, "a trim leaves other streams alone")


@row(
    "STR-11",
    text="A horizon of 2^63 - 1 removes all, one of -2^63 none.",
    oracle="what is returned, and what is left",
    modes=("boundary", "second"),
)
async def trim_to_is_total(ctx: Context) -> None:
    name = ctx.name("log")
    given = await filled(ctx.store.stream(name), 3)
    stream = (await ctx.turn()).stream(name)
    ctx.expect(await stream.trim_to(FIRST), 0, "the least horizon removes none")
    ctx.expect(await offsets(stream), given, "the least horizon removes none")
    ctx.expect(await stream.trim_to(LAST), 3, "the greatest horizon removes all")
    ctx.expect(await offsets(stream), [], "the greatest horizon removes all")
    nothing = await ctx.store.stream(ctx.name("log")).trim_to(LAST)
    ctx.expect(nothing, 0, "an unknown stream has nothing to trim")


@row(
    "STR-11",
    text="Numbering goes on after a trim, of everything too; positions stay, and so does the head.",
    oracle="the next offset, the positions and the head",
    modes=STORED,
    kills=("trim-resets-numbering",),
)
async def numbering_goes_on_after_a_trim(ctx: Context) -> None:
    name = ctx.name("log")
    given = await filled(ctx.store.stream(name), 4)
    await ctx.store.stream(name).save_offset("reader", given[1])
    await ctx.store.stream(name).trim_to(LAST)
    stream = (await ctx.turn()).stream(name)
    ctx.expect(await stream.head(), given[-1], "a trim does not move the head")
    ctx.expect(await stream.get_offset("reader"), given[1], "a trim keeps saved positions")
    offset = await stream.publish("after")
    ctx.that(offset > given[-1], "an offset is never given again, not even after a trim", observed=offset)
    ctx.expect(await offsets(stream, given[-1]), [offset], "numbering goes on after a trim")
    found = [event.payload for event in await stream.read_from_consumer("reader")]
    ctx.expect(found, ["after"], "a consumer behind the trim goes on with what is left")


@row(
    "STR-11",
    text="A trim wakes nothing, and live subscriptions stay open and go on with what is left.",
    oracle="a receiver that waits, one in the middle of the log, and one at its start, through a trim",
    modes=SECOND,
)
async def subscriptions_outlive_a_trim(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("log")
    given = await filled(other.stream(name), 5)
    stream = mine.stream(name)
    async with (
        stream.subscribe() as live,
        stream.subscribe(after=0) as behind,
        stream.subscribe(after=0) as new,
    ):
        waiter = ctx.start(live.recv())
        await received(ctx, behind, "the backlog comes")
        await ctx.idle(waiter, "a receiver waits for the next event")
        await other.stream(name).trim_to(given[3])
        await ctx.idle(waiter, "a trim wakes nothing")
        later = await other.stream(name).publish("later")
        event = await ctx.soon(waiter, "a live subscription goes on after a trim")
        ctx.expect(_offset(event), later, "a live subscription goes on after a trim")
        rest = await waiting_offsets(ctx, behind)
        ctx.expect(rest[-2:], [given[4], later], "a subscription goes on with what is left")
        ctx.that(set(rest) <= {*given, later}, "a subscription gives nothing else", observed=rest)
        fresh = await waiting_offsets(ctx, new)
        ctx.expect(fresh, [given[4], later], "a receiver that had read nothing gives what is left")


def _offset(event: StreamEvent | None) -> int | None:
    return None if event is None else event.offset
