"""PAY-05 to PAY-08: decoding on access, sizes, headers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypedDict

from alkstore import AlkstoreError, CodecError, EnqueueOpts, InvalidArgument, InvalidName, PayloadTooLarge
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._accepting import accepts
from alkstore_contract_suite.rows._queue import STORED, bury, read, take

LIMIT: Final = 7_000
"""Bytes of an encoded notify payload that an engine with a limit takes."""

HEADERS: Final[Mapping[str, str]] = {
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "empty": "",
    "nul": "a\0b",
    "é 😀": 'quoted "value"\n\u2028',
    "__alkstore_x": "the prefix is allowed here",
    "Case": "1",
    "case": "2",
}


@dataclass
class Mail:
    to: str
    tries: int = 0


class Pair(TypedDict):
    to: str


@row(
    "PAY-05",
    text="payload_as reads a payload as a type, strictly; what does not fit is CodecError and harms nothing.",
    oracle="CodecError; the claim is still held and acks; the event is still read",
    kills=("payload-as-is-lax",),
)
async def a_payload_that_does_not_fit_harms_nothing(ctx: Context) -> None:
    queue, stream = ctx.store.queue("q"), ctx.store.stream("s")
    await queue.enqueue({"to": "ada"})
    await stream.publish({"to": "ada"})
    async with stream.subscribe("c") as events:
        handle, event = await take(ctx, queue), await ctx.soon(events.recv(), "an event is there")
        ctx.that(event, "an event is received")
        assert event is not None
        for value in (handle.job, event):
            ctx.expect(value.payload_as(Mail), Mail("ada"), "a payload that fits is read as the type")
            ctx.expect(value.payload_as(Pair), {"to": "ada"}, "a TypedDict is read too")
            for kind in (int, list, dict[str, int]):
                with ctx.refuses_sync(CodecError, f"{kind!r} does not fit"):
                    value.payload_as(kind)
            ctx.expect(value.payload, {"to": "ada"}, "the payload is unharmed")
    await queue.enqueue({"to": "1", "tries": "1"})
    with ctx.refuses_sync(CodecError, "text is not taken for an int"):
        (await take(ctx, queue)).job.payload_as(Mail)
    ctx.expect(await handle.ack(), True, "the claim is still held")


@row(
    "PAY-06",
    text="A notify payload of 7,000 bytes passes on every channel; over that, only an engine with a limit refuses.",
    oracle="a wake at the limit; above it a wake, or PayloadTooLarge that says how much",
    modes=("boundary", "second"),
    needs=("listen",),
    kills=("notify-limit-is-one-byte-short",),
)
async def a_notify_payload_at_the_limit_passes(ctx: Context) -> None:
    store, other = ctx.store, await ctx.turn()
    outcomes = set()
    for channel in ("c", "x" * 255, "é" * 127 + "'"):
        async with other.listen(channel) as wakes:
            for payload in ("x" * (LIMIT - 2), "é" * (LIMIT // 2 - 1), None, 0, {"id": 7}):
                with accepts(ctx, "a notify payload within the limit passes"):
                    await store.notify(channel, payload)
                ctx.that(await ctx.soon(wakes.recv(), "it wakes"), "a notify with a payload wakes")
            for payload in ("x" * (LIMIT - 1), "é" * (LIMIT // 2), "x" * 2**20):
                try:
                    await store.notify(channel, payload)
                except PayloadTooLarge as error:
                    size = len(payload.encode()) + 2
                    ctx.expect((error.size, error.limit), (size, LIMIT), "the error says how much, in bytes")
                    outcomes.add("refused")
                else:
                    ctx.that(await ctx.soon(wakes.recv(), "it wakes"), "a notify with a payload wakes")
                    outcomes.add("passed")
    allowed = {"no limit": {"passed"}, "limit of 7,000 bytes": {"refused"}}
    ctx.among(outcomes, allowed, "a limit on notify payloads is one limit")


@row(
    "PAY-06",
    text="Over the limit nothing is sent, and the transaction stays usable.",
    oracle="PayloadTooLarge before any SQL; the transaction's other work lands and nobody was woken",
    needs=("notify_limit", "listen"),
    kills=("notify-limit-is-the-servers",),
)
async def a_notify_payload_over_the_limit_is_refused(ctx: Context) -> None:
    store = ctx.store
    async with store.listen("c") as wakes:
        async with ctx.refuses(PayloadTooLarge, "over the limit is refused") as caught:
            await store.notify("c", "x" * (LIMIT - 1))
        ctx.expect((caught.error.size, caught.error.limit), (LIMIT + 1, LIMIT), "the error says how much")
        async with store.begin_tx() as tx:
            async with ctx.refuses(PayloadTooLarge, "over the limit is refused in a transaction"):
                await tx.notify("c", "é" * (LIMIT // 2))
            id = await tx.enqueue("q", 1)
        await ctx.settle()
        ctx.expect(await wakes.try_recv(), None, "what was refused wakes nobody")
        await read(ctx, store.queue("q"), id, "the transaction still lands")


@row(
    "PAY-07",
    text="Job and event payloads of 8 MiB pass.",
    oracle="the whole text reads back",
    modes=("plain", "reopen"),
    kills=("payloads-end-at-1-mib",),
)
async def a_payload_of_8_mib_passes(ctx: Context) -> None:
    text = "0123456789abcdef" * (8 * 2**20 // 16)
    with accepts(ctx, "a payload of 8 MiB passes"):
        id = await ctx.store.queue("q").enqueue(text)
        offset = await ctx.store.stream("s").publish(text)
        async with ctx.store.begin_tx() as tx:
            in_tx = await tx.enqueue("q", [text])
    store = await ctx.turn()
    ctx.that((await read(ctx, store.queue("q"), id)).payload == text, "a job's 8 MiB come back whole")
    ctx.that(
        (await read(ctx, store.queue("q"), in_tx)).payload == [text], "a transaction's 8 MiB come back whole"
    )
    (event,) = await store.stream("s").read_since(offset - 1)
    ctx.that(event.payload == text, "an event's 8 MiB come back whole")


@row(
    "PAY-08",
    text="Headers round-trip exactly, on jobs and events, on every path.",
    oracle="equal, read-only mappings; none is an empty one",
    modes=STORED,
    kills=("tx-drops-headers",),
)
async def headers_round_trip_on_every_path(ctx: Context) -> None:
    store = ctx.store
    opts = [EnqueueOpts(headers=HEADERS), EnqueueOpts(headers={})]
    await store.queue("q").enqueue(1, headers=HEADERS)
    await store.queue("q").enqueue_batch([2, 3], headers={"over": "ridden"}, each=opts)
    await store.outbox("o").enqueue(1, headers=HEADERS)
    await store.stream("s").publish(1, headers=HEADERS)
    async with store.begin_tx() as tx:
        await tx.enqueue("q", 4, headers=HEADERS)
        await tx.enqueue_batch("q", [5], headers=HEADERS)
        await tx.outbox_enqueue("o", 2, headers=HEADERS)
        await tx.publish("s", 2, headers=HEADERS)
    await store.queue("q").enqueue(6)
    await store.stream("s").publish(3)
    store = await ctx.turn()
    jobs: list[Any] = await store.queue("q").list()
    shown = [dict(job.headers) for job in jobs]
    some = dict(HEADERS)
    ctx.expect(shown, [some, some, {}, some, some, {}], "a job's headers read back exactly")
    entries = [dict(job.headers) for job in await store.outbox("o").jobs.list()]
    ctx.expect(entries, [some, some], "an outbox entry's headers read back exactly")
    events = [dict(event.headers) for event in await store.stream("s").read_since(0)]
    ctx.expect(events, [some, some, {}], "an event's headers read back exactly")
    with ctx.refuses_sync((TypeError, AttributeError), "headers that were read cannot be changed"):
        jobs[0].headers["x"] = "y"


@row(
    "PAY-08",
    text="Headers come along on retry, release, redrive and death.",
    oracle="the same headers after each",
    modes=("plain", "second"),
    kills=("retry-drops-headers",),
)
async def headers_come_along(ctx: Context) -> None:
    mine, other = ctx.store.queue("q"), (await ctx.turn()).queue("q")
    id = await mine.enqueue(1, headers=HEADERS, max_attempts=5)
    for step in ("retry", "release", "fail"):
        handle = await take(ctx, mine)
        ctx.expect(dict(handle.job.headers), dict(HEADERS), "a claim shows the headers")
        await (handle.retry(delay=0) if step == "retry" else getattr(handle, step)())
        ctx.expect(dict((await read(ctx, other, id)).headers), dict(HEADERS), f"headers come along on {step}")
    ctx.expect(await other.redrive(id), 1, "a dead job is redriven")
    ctx.expect(dict((await take(ctx, mine)).job.headers), dict(HEADERS), "headers come along on redrive")
    await bury(ctx, ctx.store.queue("other"))


@row(
    "PAY-08",
    text="Headers over 8 KiB, or that are no mapping of str to str, are refused.",
    oracle="a typed error, nothing stored; just under the bound passes",
    modes=("boundary",),
    kills=("headers-have-no-bound",),
)
async def bad_headers_are_refused(ctx: Context) -> None:
    store: Any = ctx.store
    bad: dict[str, tuple[Any, type[AlkstoreError] | tuple[type[AlkstoreError], ...]]] = {
        "too much": ({"h": "x" * 8_192}, InvalidArgument),
        "too many": ({f"header-{n}": "x" * 100 for n in range(80)}, InvalidArgument),
        "too much, in bytes": ({"h": "é" * 4_096}, InvalidArgument),
        "an int": ({"h": 1}, InvalidArgument),
        "bytes": ({"h": b"1"}, InvalidArgument),
        "None": ({"h": None}, InvalidArgument),
        "a surrogate": ({"h": "\ud800"}, (InvalidArgument, CodecError)),
        "a list": ([("h", "1")], InvalidArgument),
        "text": ("h=1", InvalidArgument),
        "a blank name": ({" ": "1"}, InvalidName),
        "a name with NUL": ({"a\0": "1"}, InvalidName),
    }
    for label, (headers, kind) in bad.items():
        async with ctx.refuses(kind, f"headers: {label} is refused"):
            await store.queue("q").enqueue(1, headers=headers)
        async with ctx.refuses(kind, f"headers: {label} is refused on events"):
            await store.stream("s").publish(1, headers=headers)
    async with store.begin_tx() as tx:
        for label, (headers, kind) in bad.items():
            async with ctx.refuses(kind, f"headers: {label} is refused in a transaction"):
                await tx.enqueue("q", 1, headers=headers)
    ctx.expect((await store.queues(), await store.streams()), ([], []), "refused headers leave nothing")
    with accepts(ctx, "headers just under 8 KiB pass"):
        id = await store.queue("q").enqueue(1, headers={"h": "x" * 8_100})
    ctx.expect(len((await read(ctx, store.queue("q"), id)).headers["h"]), 8_100, "they read back whole")
