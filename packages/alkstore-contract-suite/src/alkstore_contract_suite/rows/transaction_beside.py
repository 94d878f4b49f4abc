"""TX-05, TX-06, TX-08 and TX-09: failing commits, the caller's SQL, and transactions beside each other."""

import asyncio
from contextlib import aclosing
from functools import partial

from alkstore import Closed, DatabaseError, InvalidArgument, Store
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.factory import Fault
from alkstore_contract_suite.racing import Step, Worker
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._accepting import accepts
from alkstore_contract_suite.rows._receiving import broken
from alkstore_contract_suite.rows._transaction import (
    EVERYTHING,
    NOTHING,
    begun,
    look,
    prepare,
    write_everything,
)


@row(
    "TX-05",
    text="A failed commit leaves nothing and wakes nothing.",
    oracle="DatabaseError; nothing seen, nobody woken, the claim live; the next transaction lands",
    modes=("plain", "second", "reopen"),
    needs=("durable", "listen"),
    kills=("failed-commit-wakes", "failed-commit-leaves-its-jobs"),
)
async def a_failed_commit_leaves_nothing(ctx: Context) -> None:
    store = ctx.store
    handle = await prepare(ctx, store)
    async with store.listen("channel") as wakes:
        waiting = ctx.start(store.queue("jobs").claim())
        await ctx.settle()
        async with broken(ctx, Fault.COMMIT_FAILS, store):
            tx = await store.begin_tx()
            await write_everything(tx, handle)
            async with ctx.refuses(DatabaseError, "a failed commit is a DatabaseError") as caught:
                await tx.commit()
            ctx.that(caught.error.__cause__, "with the driver's error as its cause")
        async with ctx.refuses(Closed, "a transaction whose commit failed has ended"):
            await tx.enqueue("jobs", 1)
        await ctx.idle(waiting, "a failed commit wakes no waiting claim")
        ctx.expect(await wakes.try_recv(), None, "a failed commit wakes no receiver")
        ctx.expect(await look(store), NOTHING, "a failed commit leaves nothing")
        async with store.begin_tx() as again:
            await write_everything(again, handle)
        ctx.that(await ctx.soon(waiting, "the next commit wakes"), "the next commit wakes")
    seen = await look(await ctx.turn())
    ctx.expect(seen._replace(jobs=3), EVERYTHING, "the next transaction lands")


@row(
    "TX-05",
    text="A failed commit leaves nothing where nobody listens either.",
    oracle="DatabaseError; nothing seen, a waiting claim and subscription untouched; the next transaction lands",
    needs=("durable",),
)
async def a_failed_commit_leaves_nothing_where_nobody_listens(ctx: Context) -> None:
    store = ctx.store
    handle = await prepare(ctx, store)
    async with store.stream("events").subscribe() as events:
        waiting = ctx.start(store.queue("jobs").claim())
        await ctx.settle()
        async with broken(ctx, Fault.COMMIT_FAILS, store):
            tx = await store.begin_tx()
            await write_everything(tx, handle)
            async with ctx.refuses(DatabaseError, "a failed commit is a DatabaseError"):
                await tx.commit()
        await ctx.idle(waiting, "a failed commit gives no waiting claim a job")
        ctx.expect(await events.try_recv(), None, "a failed commit gives no subscriber an event")
        ctx.expect(await look(store), NOTHING, "a failed commit leaves nothing")
        async with store.begin_tx() as again:
            await write_everything(again, handle)
        ctx.that(await ctx.soon(waiting, "the next commit gives the job"), "the next commit gives the job")
    ctx.expect((await look(store))._replace(jobs=3), EVERYTHING, "the next transaction lands")


@row(
    "TX-06",
    text="tx.connection is the driver's connection, or InvalidArgument where there is none.",
    oracle="one of the two, and the transaction stays usable; Closed once it has ended",
    kills=("connection-is-none",),
)
async def the_connection_is_there_or_refused(ctx: Context) -> None:
    async with ctx.store.begin_tx() as tx:
        try:
            found = "a connection" if tx.connection is not None else "nothing"
        except InvalidArgument:
            found = "refused"
        allowed = {"a connection": "a connection", "no SQL here": "refused"}
        ctx.among(found, allowed, "a transaction has a connection, or says that there is none")
        await write_everything(tx)
    ctx.expect((await look(ctx.store)).jobs, 3, "asking for the connection leaves the transaction usable")
    with ctx.refuses_sync(Closed, "the connection of an ended transaction is Closed"):
        ctx.note(type(tx.connection).__name__)


@row(
    "TX-06",
    text="A COMMIT or ROLLBACK sent through the connection ends the tx: later operations are Closed.",
    oracle="Closed; what came before the COMMIT landed, what came before the ROLLBACK did not",
    needs=("sql",),
)
async def the_callers_own_commit_ends_it(ctx: Context) -> None:
    business = ctx.factory.business()
    assert business is not None, "a column with sql has business data"
    for commit in (True, False):
        key = f"commit {commit}"
        async with ctx.store.begin_tx() as tx:
            await tx.enqueue(key, 1)
            await business.write(tx, key, "1")
            await business.end(tx, commit=commit)
            async with ctx.refuses(Closed, "after the caller's own end a transaction is Closed"):
                await tx.enqueue(key, 2)
            async with ctx.refuses(Closed, "its commit is Closed too"):
                await tx.commit()
        payloads = [job.payload for job in await ctx.store.queue(key).list()]
        ctx.expect(payloads, [1] if commit else [], "the caller's own end decides")
        ctx.expect(await business.read(key), "1" if commit else None, "for business data too")
        await ctx.soon(ctx.store.notify("channel"), "the store stays usable")


@row(
    "TX-08",
    text="Two concurrent transactions both land, and other tasks run meanwhile.",
    oracle="everything of eight transactions that overlap in time, from either store",
    modes=("concurrent", "second"),
    kills=("second-tx-overwrites-the-first",),
)
async def concurrent_transactions_all_land(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    turns: list[int] = []

    async def bystander(step: Step) -> None:
        for turn in range(5):
            turns.append(turn)
            await step()

    workers: list[Worker[None]] = [bystander]
    workers += [partial(_write_one, (mine, other)[number % 2], number) for number in range(8)]
    await ctx.race_workers(workers)
    jobs = sorted(str(job.payload) for job in await mine.queue("jobs").list())
    events = sorted(str(event.payload) for event in await other.stream("events").read_since(0))
    wanted = [str(number) for number in range(8)]
    ctx.expect((jobs, events), (wanted, wanted), "everything of every transaction lands")
    positions = {f"consumer {number}": number + 1 for number in range(8)}
    ctx.expect(await other.stream("events").consumers(), positions, "every position is saved")
    ctx.expect(len(await mine.outbox("entries").jobs.list()), 8, "every entry is there")
    ctx.expect(turns, list(range(5)), "other tasks run meanwhile")


async def _write_one(store: Store, number: int, step: Step) -> None:
    await step()
    async with store.begin_tx() as tx:
        await tx.enqueue("jobs", number)
        await step()
        await tx.publish("events", number)
        await step()
        await tx.save_offset("events", f"consumer {number}", number + 1)
        await tx.outbox_enqueue("entries", number)
    await step()


@row(
    "TX-08",
    text="Whoever waits for another transaction goes on when that one ends.",
    oracle="a second reader of a held position, or a second transaction, waits; then sees what was saved",
    modes=("concurrent", "second"),
    kills=("holds-outlive-the-tx",),
)
async def who_waits_goes_on_when_the_other_ends(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    await mine.stream("events").publish_batch([1, 2, 3])
    for end in ("commit", "rollback", "commit"):
        before = await mine.stream("events").get_offset("consumer")
        first = await mine.begin_tx()
        await first.read_from_consumer("events", "consumer")
        waiting = ctx.start(_advance(other, 1))
        await ctx.idle(waiting, "a position that a transaction holds is waited for")
        await first.save_offset("events", "consumer", before + 1)
        await (first.commit() if end == "commit" else first.rollback())
        found = await ctx.soon(waiting, "the one who waits goes on when the other ends")
        kept = before + 1 if end == "commit" else before
        ctx.expect(found, kept, "it sees what the other left")
        ctx.expect(await mine.stream("events").get_offset("consumer"), kept + 1, "and saves after it")


async def _advance(store: Store, by: int) -> int:
    async with store.begin_tx() as tx:
        await tx.read_from_consumer("events", "consumer")
        position = await tx.get_offset("events", "consumer")
        await tx.save_offset("events", "consumer", position + by)
        return position


@row(
    "TX-08",
    text="A deadlock between two is broken: one lands, the other is rolled back with DatabaseError.",
    oracle="two transactions that hold two positions crosswise both end; whole effects only",
    modes=("concurrent", "second"),
    kills=("deadlocks-are-waited-out",),
)
async def a_deadlock_is_broken(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    # One writer at a time never gets two transactions to meet; then they simply follow each other.
    probe = await mine.begin_tx()
    opening = ctx.start(begun(other))
    await ctx.settle()
    meet = asyncio.Barrier(2) if opening.done() else None
    await probe.rollback()
    await (await ctx.soon(opening, "a second transaction begins")).rollback()

    racing = ctx.race(_crosswise(mine, "a", "b", meet), _crosswise(other, "b", "a", meet))
    ended = await ctx.soon(racing, "both transactions end")
    ctx.among(
        sorted(ended),
        {"one gave way": ["landed", "rolled back"], "one after the other": ["landed", "landed"]},
        "a deadlock is broken",
    )
    jobs = [job.payload for job in await mine.queue("jobs").list()]
    ctx.expect(len(jobs), ended.count("landed"), "who was rolled back left nothing")
    await ctx.soon(_advance(other, 1), "nothing is held any more")
    with accepts(ctx, "the positions are free again"):
        again = ctx.race(_crosswise(mine, "a", "c", None), _crosswise(other, "a", "c", None))
        ctx.expect(await ctx.soon(again, "nothing is held any more"), ["landed"] * 2, "both land now")


async def _crosswise(store: Store, first: str, then: str, meet: asyncio.Barrier | None) -> str:
    try:
        async with store.begin_tx() as tx:
            await tx.read_from_consumer("events", first)
            if meet is not None:
                await meet.wait()
            await tx.enqueue("jobs", first)
            await tx.read_from_consumer("events", then)
            await tx.save_offset("events", then, 1, after=await tx.get_offset("events", then))
    except DatabaseError:
        return "rolled back"
    return "landed"


@row(
    "TX-08",
    text="Whatever waits for another waits at most wait_timeout, then DatabaseError and nothing of it is done.",
    oracle="a store whose wait_timeout is short: the error, its work undone, the other transaction unharmed",
    modes=("concurrent",),
    kills=("waits-have-no-limit",),
)
async def a_wait_has_a_limit(ctx: Context) -> None:
    async with aclosing(await ctx.factory.open_with(wait_timeout=0.003)) as store:
        await _wait_too_long(ctx, store)


async def _wait_too_long(ctx: Context, store: Store) -> None:
    first = await store.begin_tx()
    await first.read_from_consumer("events", "consumer")
    await first.enqueue("jobs", "first")
    ran: list[int] = []

    async def second() -> None:
        async with store.begin_tx() as tx:
            await tx.enqueue("jobs", "second")
            await tx.read_from_consumer("events", "consumer")

    async def bystander() -> None:
        for turn in range(3):
            await ctx.hold(0)
            ran.append(turn)

    other = ctx.start(bystander())
    async with ctx.refuses(DatabaseError, "who waited too long gets a DatabaseError"):
        await ctx.soon(ctx.start(second()), "a wait has a limit")
    ctx.that(other.done(), "other tasks run meanwhile", observed=ran)
    with accepts(ctx, "the transaction that was waited for is unharmed"):
        await first.save_offset("events", "consumer", 1)
        await first.commit()
    payloads = [job.payload for job in await store.queue("jobs").list()]
    ctx.expect(payloads, ["first"], "nothing is done of what gave up")


@row(
    "TX-09",
    text="An open tx holds nobody back: auto-commit writes and other transactions go on.",
    oracle="each of them ends while a transaction that wrote the same things is open; both land",
    kills=("open-tx-holds-the-store",),
    hints="an engine on which writers wait for an open transaction omits TX-09: `omitted` of its column",
)
async def an_open_transaction_holds_nobody_back(ctx: Context) -> None:
    store = ctx.store
    handle = await prepare(ctx, store)
    tx = await store.begin_tx()
    await write_everything(tx, handle)

    async def others() -> list[object]:
        async with store.begin_tx() as second:
            await second.enqueue("jobs", "second")
            await second.publish("events", "second")
        return [
            await store.queue("jobs").enqueue("plain"),
            await store.stream("events").publish("plain"),
            await store.stream("events").save_offset("other consumer", 1),
            await store.queue("jobs").claim_one() is not None,
            await store.try_lock("lock", 5) is not None,
            await store.schedule("s", "@every 1h", "jobs", 1),
        ]

    done = await ctx.soon(ctx.start(others()), "an open transaction holds nobody back")
    ctx.expect(done[2:5], [True] * 3, "saves, claims and locks go on too")
    await tx.commit()
    ctx.expect((await look(store)).jobs, 5, "everybody's jobs are there")
    payloads = sorted(str(event.payload) for event in await store.stream("events").read_since(0))
    ctx.expect(payloads, ["1", "2", "3", "plain", "second"], "everybody's events are there")


@row(
    "TX-09",
    text="A commit lands in one step: no task sees half of it.",
    oracle="a task that looks at every turn of the loop while a large commit lands",
    modes=("concurrent",),
    kills=("commit-in-two-steps",),
)
async def a_commit_lands_in_one_step(ctx: Context) -> None:
    store = ctx.store
    seen: list[list[int]] = []
    tx = await store.begin_tx()
    await tx.enqueue_batch("jobs", range(500))
    await tx.publish_batch("events", range(500))
    await tx.save_offset("events", "consumer", 500)

    async def watch(step: Step) -> None:
        # There and back: looks that cost I/O are not of one instant, but what one has seen each later one must see.
        while not seen or seen[-1][0] == 0:
            await step()
            stream = store.stream("events")
            look = [(await store.queue("jobs").stats()).ready, await stream.head()]
            look += [await stream.get_offset("consumer"), await stream.head()]
            seen.append([*look, (await store.queue("jobs").stats()).ready])

    async def commit(step: Step) -> None:
        # Not before a first look, or an engine with I/O has committed before there was any.
        while not seen:
            await step()
        await tx.commit()
        await step()

    await ctx.race_workers([watch, commit])
    ctx.expect({part for look in seen for part in look}, {0, 500}, "no task sees half of a commit")
    ctx.expect(seen, [sorted(look) for look in seen], "no task sees half of a commit")
