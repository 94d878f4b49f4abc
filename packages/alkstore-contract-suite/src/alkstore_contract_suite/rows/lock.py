"""Rows LOCK-01 to LOCK-05 and LOCK-07: taking, renewing and releasing a named lock."""

import gc

from alkstore import HandleConsumed, InsideTransaction, InvalidArgument, Lock, LockInfo, Store
from alkstore_contract_suite.context import MICRO, Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._lock import after, refused, taken

SECOND = ("plain", "second")


@row(
    "LOCK-01",
    text="A free lock is given, a held one is refused at once: to the holder's own process and to every other.",
    oracle="try_lock on both stores, by one task and by another, before and after the release",
    modes=SECOND,
    kills=("lock-reentrant",),
)
async def a_held_lock_is_refused_at_once(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("report")
    lock = await taken(ctx, mine, name, 30)
    ctx.expect((lock.name, lock.held), (name, True), "the handle knows its name and that it is held")
    for store in (mine, other):
        await refused(ctx, store, name, "a held lock is refused, to its own holder too")
        task = ctx.start(store.try_lock(name, 30))
        ctx.expect(
            await ctx.soon(task, "a refusal comes at once"), None, "a held lock is refused to any task"
        )
    ctx.expect(await lock.release(), True, "its holder releases it")
    await taken(ctx, other, name, 30)


@row(
    "LOCK-01",
    text="Locks are isolated by name.",
    oracle="three locks held at once, one of them with a name that differs in case",
    modes=SECOND,
)
async def locks_are_isolated_by_name(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    names = [ctx.name("a"), ctx.name("A"), ctx.name("b")]
    names.append(names[0].upper() + "é")
    locks = [await taken(ctx, (mine, other)[at % 2], name, 30) for at, name in enumerate(names)]
    ctx.expect(await locks[0].release(), True, "a lock is released by its name")
    for name in names[1:]:
        await refused(ctx, mine, name, "a release frees no other name")
    expires = after(await ctx.now(), 30)
    found = await other.locks()
    expected = sorted(
        (LockInfo(lock.name, lock.fence, expires) for lock in locks[1:]), key=lambda each: each.name
    )
    ctx.expect(found, expected, "locks() shows what is held, by whom and how long")


@row(
    "LOCK-01",
    text="Of many that try at once exactly one gets the lock.",
    oracle="sixteen racing tries, five times; the winner's release lets exactly one in again",
    modes=("concurrent", "second"),
    kills=("lock-check-then-take",),
)
async def exactly_one_of_many_gets_the_lock(ctx: Context) -> None:
    stores = [ctx.store, await ctx.turn()]
    name = ctx.name("report")
    for _ in range(5):
        got = await ctx.race(*(stores[at % 2].try_lock(name, 30) for at in range(16)))
        winners = [lock for lock in got if lock is not None]
        ctx.expect(len(winners), 1, "exactly one of many gets the lock")
        ctx.expect(await winners[0].release(), True, "the winner holds it")


@row(
    "LOCK-02",
    text="After the ttl another may take it, not a microsecond earlier, and at that instant it may.",
    oracle="tries one microsecond before the end, at it, and with a fractional ttl",
    modes=("boundary", "second", "reopen", "crash-drop", "crash-kill"),
    kills=("ttl-ignored", "held-at-its-expiry-instant"),
)
async def after_the_ttl_another_may_take_it(ctx: Context) -> None:
    name = ctx.name("report")
    for ttl in (10, 0.000_002, 2.5):
        await taken(ctx, ctx.store, name, ttl)
        store = await ctx.turn()
        await ctx.advance(ttl - MICRO)
        await refused(ctx, store, name, "a lock is held until its ttl has passed")
        await ctx.advance(MICRO)
        lock = await taken(ctx, store, name, 5, "at the instant of its end a lock is free")
        ctx.expect(await lock.release(), True, "whoever took it after the end holds it")


@row(
    "LOCK-02",
    text="renew gives a full new window from now, which may be shorter.",
    oracle="tries around the old and the new end, after a longer and a shorter renewal",
    modes=("boundary", "second"),
    kills=("renew-adds-to-the-old-end", "renew-does-nothing"),
)
async def a_renewal_gives_a_full_window_from_now(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("report")
    lock = await taken(ctx, mine, name, 10)
    await ctx.advance(4)
    ctx.expect(await lock.renew(10), True, "a live lock is renewed")
    await ctx.advance(10 - MICRO)
    await refused(ctx, other, name, "a renewed lock is held for a full window from then")
    ctx.expect(await lock.renew(3), True, "a lock is renewed one microsecond before its end")
    await ctx.advance(3 - MICRO)
    await refused(ctx, other, name, "a shorter window holds until its end")
    await ctx.advance(MICRO)
    await taken(ctx, other, name, 10, "a renewal may shorten the window")


@row(
    "LOCK-02",
    text="The holder is told nothing when its ttl passes: no error, no cancellation.",
    oracle="the task that holds it, and the lock's own words, after the end",
    modes=SECOND,
)
async def the_holder_is_told_nothing(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("report")
    lock = await taken(ctx, mine, name, 5)
    fence = lock.fence
    await ctx.advance(5)
    await taken(ctx, other, name, 5)
    await ctx.settle()
    ctx.expect((lock.name, lock.fence), (name, fence), "the handle stays what it was")
    ctx.expect(await lock.renew(5), False, "who asks is told")
    ctx.expect(lock.held, False, "a handle that was told knows")


@row(
    "LOCK-03",
    text="A lapsed lock is not renewed and not released, though nobody took it.",
    oracle="both at the instant of the end; then another takes it at once",
    modes=("boundary", "second"),
    kills=("renew-of-an-expired-lock",),
)
async def a_lapsed_lock_is_lost(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    for late in (0, MICRO, 3600):
        name = ctx.name("report")
        lock, idle = await taken(ctx, mine, name, 5), await taken(ctx, mine, ctx.name("idle"), 5)
        await ctx.advance(5 + late)
        for _ in range(2):
            ctx.expect(await lock.renew(5), False, "a lapsed lock is not renewed, though nobody took it")
        ctx.expect(await idle.release(), False, "a lapsed lock is not released, though nobody took it")
        ctx.expect(await other.locks(), [], "a refused renewal changes nothing")
        again = await taken(ctx, other, name, 5, "a lapsed lock is free")
        ctx.expect(await again.release(), True, "whoever took it holds it")


@row(
    "LOCK-03",
    text="A lost lock's renew and release are False and change nothing for the one who holds it now.",
    oracle="the new holder's lock, to the microsecond, after both",
    modes=SECOND,
    kills=("release-ignores-owner", "renew-ignores-owner"),
)
async def a_lost_lock_harms_nobody(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("report")
    old = await taken(ctx, mine, name, 5)
    await ctx.advance(5)
    new = await taken(ctx, other, name, 10)
    held = [LockInfo(name, new.fence, after(await ctx.now(), 10))]
    await ctx.advance(1)
    ctx.expect(await old.renew(60), False, "a lost lock is not renewed")
    ctx.expect(await other.locks(), held, "a lost lock's renew changes nothing")
    ctx.expect(await old.release(), False, "a lost lock is not released")
    ctx.expect(await other.locks(), held, "a lost lock's release changes nothing")
    await refused(ctx, mine, name, "the new holder holds it")
    ctx.expect(await new.renew(10), True, "the new holder's renew lands")
    ctx.expect(await new.release(), True, "the new holder's release lands")


@row(
    "LOCK-03",
    text="A handle that was lost stays lost when its own store holds the lock anew.",
    oracle="the old handle beside a new one of the same store",
    modes=SECOND,
    kills=("release-ignores-owner", "renew-ignores-owner"),
)
async def an_old_handle_of_the_same_store_is_lost(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("report")
    old = await taken(ctx, mine, name, 5)
    await ctx.advance(5)
    new = await taken(ctx, mine, name, 5)
    ctx.expect(await old.renew(60), False, "an old handle renews nothing for its own store")
    ctx.expect(await old.release(), False, "an old handle releases nothing for its own store")
    await refused(ctx, other, name, "the new handle holds the lock")
    ctx.expect(await new.release(), True, "the new handle's release lands")


@row(
    "LOCK-04",
    text="release while held is True and frees the lock at once.",
    oracle="a try right after it, with the ttl still ahead; locks()",
    modes=SECOND,
    kills=("release-frees-nothing",),
)
async def a_release_frees_at_once(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("report")
    for store in (mine, other):
        lock = await taken(ctx, store, name, 3600)
        ctx.expect(await lock.release(), True, "a release while held is True")
        ctx.expect(lock.held, False, "the handle knows that it released")
        ctx.expect(await other.locks(), [], "a released lock is not held")
    async with await taken(ctx, mine, name, 3600):
        await refused(ctx, other, name, "the block of a handle holds the lock")
    lock = await taken(ctx, mine, name, 3600, "leaving the block of a handle frees the lock")
    async with ctx.refuses(ZeroDivisionError, "a block's own error stays what it is"), lock:
        raise ZeroDivisionError
    await taken(ctx, other, name, 5, "an error in the block of a handle frees the lock")


@row(
    "LOCK-04",
    text="Once release has answered, True or False, any further operation on the handle raises HandleConsumed.",
    oracle="renew and release after each answer; the next holder is unharmed",
    modes=SECOND,
    kills=("release-twice",),
)
async def a_release_consumes_the_handle(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    for lapse in (False, True):
        name = ctx.name("report")
        lock = await taken(ctx, mine, name, 5)
        await ctx.advance(5 if lapse else 1)
        ctx.expect(await lock.release(), not lapse, "release says whether it freed the lock")
        new = await taken(ctx, other, name, 5)
        async with ctx.refuses(HandleConsumed, "release after a release is refused"):
            await lock.release()
        async with ctx.refuses(HandleConsumed, "renew after a release is refused"):
            await lock.renew(5)
        ctx.expect(await new.release(), True, "the next holder is unharmed")


@row(
    "LOCK-04",
    text="An operation that raised leaves the handle open.",
    oracle="a refused renew, and a release that was cancelled before it began; then a release",
    modes=("plain", "second"),
)
async def an_operation_that_raised_leaves_the_handle_open(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name = ctx.name("report")
    lock = await taken(ctx, mine, name, 30)
    for ttl in (0, -1, float("nan"), "5"):
        async with ctx.refuses(InvalidArgument, "a ttl that is no positive duration is refused"):
            await lock.renew(ttl)  # type: ignore[arg-type]  # the wrong type is the point
    task = ctx.start(lock.release())
    task.cancel()
    await ctx.settle()
    await refused(ctx, other, name, "a refused operation changed nothing")
    expires = after(await ctx.now(), 30)
    ctx.expect(await other.locks(), [LockInfo(name, lock.fence, expires)], "the ttl is what it was")
    ctx.expect(await lock.renew(30), True, "the handle is still open")
    ctx.expect(await lock.release(), True, "the handle is still open")


@row(
    "LOCK-05",
    text="The fence grows strictly with every acquisition of a name: after releases, lapses, restarts and crashes.",
    oracle="the fences of nine acquisitions in a row",
    modes=("plain", "second", "reopen", "crash-drop", "crash-kill"),
    kills=("fence-restarts",),
)
async def the_fence_grows_with_every_acquisition(ctx: Context) -> None:
    name, other = ctx.name("report"), ctx.name("other")
    fences: list[int] = []
    store = ctx.store
    for end in ("release", "lapse", "renewal") * 3:
        lock = await taken(ctx, store, name, 5)
        await taken(ctx, store, other, 1)
        fences.append(lock.fence)
        ctx.that(fences == sorted(set(fences)), "the fence grows strictly", observed=fences)
        if end == "renewal":
            ctx.expect(await lock.renew(5), True, "a live lock is renewed")
            ctx.expect(lock.fence, fences[-1], "a renewal keeps the fence")
        if end == "release":
            ctx.expect(await lock.release(), True, "the holder releases")
        await ctx.advance(0 if end == "release" else 5)
        await ctx.advance(1)
        store = await ctx.turn()


@row(
    "LOCK-05",
    text="The fence grows strictly across racing holders.",
    oracle="the fences of four workers that take and release, in the order in which they held the lock",
    modes=("concurrent", "second"),
    kills=("fence-restarts",),
)
async def racing_holders_have_growing_fences(ctx: Context) -> None:
    stores = [ctx.store, await ctx.turn()]
    name = ctx.name("report")
    fences: list[int] = []

    async def hold(store: Store) -> None:
        held = 0
        while held < 8:
            lock: Lock | None = await store.try_lock(name, 30)
            if lock is None:
                await ctx.hold(0)
                continue
            held += 1
            fences.append(lock.fence)
            await ctx.hold(0)
            ctx.expect(await lock.release(), True, "the holder releases")

    await ctx.soon(ctx.race(*(hold(stores[at % 2]) for at in range(4))), "every worker gets the lock")
    ctx.that(fences == sorted(set(fences)), "the fence grows strictly across holders", observed=fences)


@row(
    "LOCK-07",
    text="A handle dropped without release keeps the lock, and the ttl frees it.",
    oracle="tries after the collection, one microsecond before the end and at it",
    modes=("boundary", "second", "reopen", "crash-drop", "crash-kill"),
    kills=("ttl-ignored",),
)
async def the_ttl_frees_a_dropped_lock(ctx: Context) -> None:
    name = ctx.name("report")
    await taken(ctx, ctx.store, name, 20)
    gc.collect()
    store = await ctx.turn()
    await refused(ctx, store, name, "dropping a handle frees nothing")
    await ctx.advance(20 - MICRO)
    await refused(ctx, store, name, "a dropped lock is held until its ttl has passed")
    await ctx.advance(MICRO)
    await taken(ctx, store, name, 5, "the ttl frees a dropped lock")


@row(
    "LOCK-07",
    text="There is no lock operation in a transaction: none on the Tx, and the store's are refused beside it.",
    oracle="the Tx's names; the typed error, nothing changed, and the same calls after the transaction",
    modes=SECOND,
)
async def no_lock_operation_is_in_a_transaction(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name, held = ctx.name("report"), ctx.name("report")
    lock = await taken(ctx, mine, held, 30)
    before = await other.locks()
    async with mine.begin_tx() as tx:
        found = [each for each in ("lock", "try_lock", "renew", "release") if hasattr(tx, each)]
        ctx.expect(found, [], "no lock operation is on a transaction")
        for attempt in (mine.try_lock(name, 5), mine.lock(name, 5), lock.renew(60), lock.release()):
            async with ctx.refuses(
                InsideTransaction, "a lock operation beside an open transaction is refused"
            ):
                await attempt
        ctx.expect(await other.locks(), before, "a refused lock operation changes nothing")
        given = await tx.publish(name, "the transaction stays usable")
    ctx.expect(await other.stream(name).head(), given, "the transaction stays usable")
    ctx.expect(await lock.release(), True, "after the transaction the handle is still open")
    await taken(ctx, mine, name, 5)
