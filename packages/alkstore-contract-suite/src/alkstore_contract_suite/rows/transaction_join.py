"""TX-10, TX-11, and what DUR-08, PAY-06, Q-23 and STR-12 say of it: riding the application's own transaction."""

import asyncio

from alkstore import (
    Closed,
    CodecError,
    DatabaseError,
    HandleConsumed,
    InvalidArgument,
    InvalidName,
    JobHandle,
    PayloadTooLarge,
)
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._joining import Application, applications, strict_applications
from alkstore_contract_suite.rows._queue import take
from alkstore_contract_suite.rows._transaction import EVERYTHING, NOTHING, look, prepare, write_everything

CUTS = 8
"""Turns of the loop in one of which a join is cancelled: more than any of them takes without waiting."""


@row(
    "TX-10",
    text="A joined transaction lands with the application's commit and vanishes with its rollback.",
    oracle="nothing seen before; business data and everything of ours after the commit, neither after a rollback",
    modes=("plain", "second"),
    needs=("joins",),
    kills=("join-commits-by-itself",),
)
async def a_joined_transaction_lands_with_the_applications_commit(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    for application in applications(ctx):
        key = application.label
        for keep in (False, True):
            before = await look(other)
            async with application.transaction() as app:
                async with mine.join(app.connection) as tx:
                    await write_everything(tx)
                    await app.write(key, str(keep))
                ctx.expect(await look(other), before, f"{key}: leaving the join commits nothing")
                await (app.commit() if keep else app.rollback())
            after = await look(other)
            ctx.expect(after.jobs - before.jobs, 3 if keep else 0, f"{key}: jobs land with the commit alone")
            ctx.expect(after.events - before.events, 3 if keep else 0, f"{key}: so do events")
            ctx.expect(await application.read(key), "True" if keep else None, f"{key}: so does business data")
        await mine.stream("events").reset_offset("consumer", 0)


@row(
    "TX-10",
    text="What is in no transaction is not joined; commit and rollback are the application's; later it is Closed.",
    oracle="InvalidArgument before any write, InvalidArgument, Closed",
    needs=("joins",),
    kills=("join-takes-another-file",),
)
async def a_join_has_its_limits(ctx: Context) -> None:
    for application in applications(ctx):
        async with (
            application.idle() as connection,
            ctx.refuses(InvalidArgument, "an idle connection is refused"),
            ctx.store.join(connection) as tx,
        ):
            await tx.enqueue("jobs", 1)
        async with (
            application.foreign() as connection,
            ctx.refuses(InvalidArgument, "a foreign one is refused"),
            ctx.store.join(connection) as tx,
        ):
            await tx.enqueue("jobs", 1)
        async with application.transaction() as app, ctx.store.join(app.connection) as tx:
            async with ctx.refuses(InvalidArgument, "commit is the application's"):
                await tx.commit()
            async with ctx.refuses(InvalidArgument, "rollback is the application's"):
                await tx.rollback()
            await tx.enqueue("jobs", 1)
            await app.commit()
            async with ctx.refuses(Closed, "after the application's commit it is Closed"):
                await tx.enqueue("jobs", 2)
        payloads = [job.payload for job in await ctx.store.queue("jobs").list()]
        ctx.expect(payloads, [1], "what was written before the application's commit landed")
        await ctx.store.queue("jobs").cancel((await ctx.store.queue("jobs").list())[0].id)


@row(
    "Q-23",
    text="A handle acked in a joined transaction is open again once that was rolled back, and used up once it committed.",
    oracle="HandleConsumed inside, a retry with the body's error and an ack after rollbacks, HandleConsumed after a commit",
    needs=("joins",),
    kills=("joined-ack-is-final",),
)
async def a_joined_ack_is_open_again_after_a_rollback(ctx: Context) -> None:
    for application in applications(ctx):
        handle = await prepare(ctx, ctx.store)
        async with (
            ctx.refuses(KeyError, "the body's own exception"),
            handle,
            application.transaction() as app,
            ctx.store.join(app.connection) as tx,
        ):
            await tx.ack(handle)
            raise KeyError("the joined block")
        (job,) = await ctx.store.queue("held").list()
        ctx.that("the joined block" in str(job.retry_error), "a rollback by an exception leads to a retry")
        await ctx.advance(3_600)
        handle = await take(ctx, ctx.store.queue("held"))
        async with handle, application.transaction() as app:
            async with ctx.store.join(app.connection) as tx:
                await tx.ack(handle)
            async with ctx.refuses(HandleConsumed, "acked in a transaction that is open it is used up"):
                await handle.release()
            await app.rollback()
        ctx.expect(
            await ctx.store.queue("held").list(), [], "a rollback by hand leads to the ack of a clean exit"
        )
        await _ends_with_the_commit(ctx, application)


async def _ends_with_the_commit(ctx: Context, application: Application) -> None:
    handle: JobHandle = await prepare(ctx, ctx.store)
    async with handle, application.transaction() as app:
        async with ctx.store.join(app.connection) as tx:
            await tx.ack(handle)
        await app.commit()
    ctx.expect(await ctx.store.queue("held").list(), [], "the commit acks")
    async with ctx.refuses(HandleConsumed, "after the commit it is used up"):
        await handle.ack()


@row(
    "DUR-08",
    text="A join that is cancelled at any point leaves the application its connection, and the storage to everybody.",
    oracle="nothing but the cancellation comes out of the application's own block, and a write of the store lands",
    needs=("joins",),
    kills=("cancelled-join-raises",),
)
async def a_cancelled_join_leaves_the_connection_alone(ctx: Context) -> None:
    for application in applications(ctx):
        for turns in range(CUTS):
            begun = asyncio.Event()
            riding = ctx.start(_ride(ctx, application, begun))
            await ctx.soon(begun.wait(), "the application begins")
            for _ in range(turns):
                await ctx.hold(0)
            riding.cancel()
            await ctx.soon(asyncio.wait([riding]), "the application's block ends")
            ended = "cancelled" if riding.cancelled() else repr(riding.exception())
            ctx.expect(
                ended, "cancelled", f"{application.label}: the cancellation comes out, after {turns} turns"
            )
            landed = ctx.start(ctx.store.queue("jobs").enqueue(turns))
            ctx.that(await ctx.soon(landed, "the storage takes writes"), "the storage takes writes")
    ctx.expect(await ctx.store.queue("lost").list(), [], "what was not committed is not there")


async def _ride(ctx: Context, application: Application, begun: asyncio.Event) -> None:
    async with application.transaction() as app:
        begun.set()
        async with ctx.store.join(app.connection) as tx:
            await tx.enqueue("lost", 1)
            await asyncio.Event().wait()


@row(
    "TX-11",
    text="A savepoint that the application rolls back takes its part along, wakes too.",
    oracle="only what was outside the savepoint lands and wakes",
    modes=("plain", "second"),
    needs=("joins", "listen"),
    kills=("join-never-asks-the-session", "join-wakes-before-the-commit"),
)
async def a_savepoint_takes_its_part_along(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    for application in applications(ctx):
        async with other.listen("lost") as lost, other.listen("kept") as kept:
            async with application.transaction() as app:
                async with mine.join(app.connection) as tx:
                    await tx.publish("events", "before")
                    async with ctx.refuses(KeyError, "the application's own exception"), app.savepoint():
                        await tx.enqueue("jobs", "lost")
                        await tx.publish("events", "lost")
                        await tx.notify("lost")
                        raise KeyError(1)
                    await tx.publish("events", "after")
                    await tx.notify("kept")
                await ctx.settle()
                ctx.expect(await kept.try_recv(), None, "wakes wait for the application's commit")
                await app.commit()
            ctx.that(await ctx.soon(kept.recv(), "the commit wakes"), "the commit wakes")
            ctx.expect(await lost.try_recv(), None, "a wake of the savepoint is gone with it")
        payloads = [event.payload for event in await other.stream("events").read_since(0)]
        ctx.expect(payloads, ["before", "after"], "events of the savepoint are gone with it")
        ctx.expect(await other.queue("jobs").list(), [], "jobs of the savepoint are gone with it")
        await mine.stream("events").trim_to(2**63 - 1)


@row(
    "TX-11",
    text="What alkstore refuses it refuses before any SQL, so the application's transaction stays usable.",
    oracle="typed errors, then a business write and the commit land",
    needs=("joins",),
)
async def a_refusal_leaves_the_applications_transaction_usable(ctx: Context) -> None:
    handle = await prepare(ctx, ctx.store)
    for application in applications(ctx):
        async with application.transaction() as app:
            async with ctx.store.join(app.connection) as tx:
                async with ctx.refuses(InvalidName, "a blank name is refused"):
                    await tx.enqueue(" ", 1)
                async with ctx.refuses(CodecError, "what is no payload is refused"):
                    await tx.publish("events", float("nan"))
                async with ctx.refuses(InvalidArgument, "a bad option is refused"):
                    await tx.enqueue("jobs", 1, max_attempts=0)
            await app.write(application.label, "landed")
            await app.commit()
        ctx.expect(await application.read(application.label), "landed", "the application's transaction lands")
    ctx.expect(await look(ctx.store), NOTHING, "what was refused did nothing")
    async with ctx.store.begin_tx() as own:
        await write_everything(own, handle)
    ctx.expect(await look(ctx.store), EVERYTHING, "a transaction of our own lands afterwards")


@row(
    "PAY-06",
    text="Over the limit nothing is sent, and a joined transaction stays usable.",
    oracle="PayloadTooLarge before any SQL; business data and a notify at the limit land with the commit",
    needs=("joins", "notify_limit", "listen"),
    kills=("notify-limit-is-the-servers",),
)
async def a_joined_transaction_outlives_a_notify_payload_over_the_limit(ctx: Context) -> None:
    limit = 7_000
    async with ctx.store.listen("channel") as wakes:
        for application in applications(ctx):
            async with application.transaction() as app:
                async with ctx.store.join(app.connection) as tx:
                    async with ctx.refuses(PayloadTooLarge, "over the limit is refused") as caught:
                        await tx.notify("channel", "x" * (limit - 1))
                    ctx.expect(
                        (caught.error.size, caught.error.limit), (limit + 1, limit), "it says how much"
                    )
                    await tx.notify("channel", "x" * (limit - 2))
                await app.write(application.label, "landed")
                await app.commit()
            ctx.that(await ctx.soon(wakes.recv(), "the commit wakes"), "a notify at the limit wakes")
            ctx.expect(await application.read(application.label), "landed", "and the rest has landed")


@row(
    "STR-12",
    text="In a joined transaction that is not READ COMMITTED a stream is not read: InvalidArgument; writes land.",
    oracle="both reads refused, with events there and without; then a publish, an enqueue and business data land",
    needs=("joins", "server"),
    kills=("strict-transaction-reads-streams",),
)
async def a_strict_transaction_reads_no_stream(ctx: Context) -> None:
    for number, application in enumerate(strict_applications(ctx)):
        for stream in ("events", f"nobody's {number}"):
            key = f"{application.label} {stream}"
            async with application.strict() as app:
                async with ctx.store.join(app.connection) as tx:
                    async with ctx.refuses(InvalidArgument, "a read is refused"):
                        await tx.read_since(stream, 0)
                    async with ctx.refuses(InvalidArgument, "a read from a position is refused"):
                        await tx.read_from_consumer(stream, "consumer")
                    await tx.publish("events", key)
                    await tx.enqueue("jobs", key)
                await app.write(key, "landed")
                await app.commit()
            ctx.expect(await application.read(key), "landed", "the application's transaction lands")
            payloads = [event.payload for event in await ctx.store.stream("events").read_since(0)]
            ctx.expect(payloads[-1], key, "so does what was published in it")
            jobs = [job.payload for job in await ctx.store.queue("jobs").list()]
            ctx.expect(jobs[-1], key, "so does what was enqueued in it")


@row(
    "TX-11",
    text="In a strict transaction a conflict is the application's: DatabaseError with the driver's error as its cause.",
    oracle="an ack of a claim that was renewed after the snapshot; the claim is live after the rollback",
    needs=("joins", "server"),
    kills=("conflict-reads-as-a-lost-claim",),
)
async def a_conflict_is_the_applications(ctx: Context) -> None:
    for application in strict_applications(ctx):
        handle = await prepare(ctx, ctx.store)
        async with application.strict() as app:
            async with ctx.store.join(app.connection) as tx:
                await tx.get_job("held", handle.job.id)
                renewed = ctx.start(handle.heartbeat(600))
                ctx.expect(await ctx.soon(renewed, "others go on"), True, "a claim is renewed beside it")
                async with ctx.refuses(DatabaseError, "a conflict is a DatabaseError") as caught:
                    await tx.ack(handle)
                ctx.that(caught.error.__cause__, "with the driver's error as its cause")
            await app.rollback()
        ctx.expect(await handle.ack(), True, "the claim is live after the rollback")
