"""Rows STR-01 to STR-03, STR-07 and STR-14: publishing and reading."""

from datetime import timedelta
from typing import Any, Final

from alkstore import CodecError, InvalidArgument, InvalidName, StreamEvent
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.racing import Step
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._receiving import SECOND, offsets
from alkstore_contract_suite.rows._stream import FIRST, LAST, STORED, filled, rising


def _fields(event: StreamEvent) -> tuple[object, ...]:
    return (event.offset, event.stream, event.key, event.payload, dict(event.headers), event.created_at)


@row(
    "STR-01",
    text="publish returns the assigned offset: 1 for the first event of a stream in a quiet store, then greater ones.",
    oracle="the offsets given, and those read back",
    modes=STORED,
    kills=("offsets-start-at-zero",),
)
async def offsets_start_at_one_and_rise(ctx: Context) -> None:
    name = ctx.name("log")
    given = [await ctx.store.stream(name).publish(number) for number in range(3)]
    store = await ctx.turn()
    given += [await store.stream(name).publish(number) for number in range(3)]
    ctx.expect(given[0], 1, "the first event of a stream in a quiet store has offset 1")
    ctx.that(rising(given), "offsets are strictly increasing", observed=given)
    ctx.expect(await offsets(store.stream(name)), given, "publish returned the assigned offsets")


@row(
    "STR-01",
    text="Events read back in offset order with key, payload, headers and created_at.",
    oracle="every field of three events",
    modes=STORED,
    kills=("events-lose-their-headers",),
)
async def events_read_back_whole(ctx: Context) -> None:
    name, began = ctx.name("log"), await ctx.now()
    stream = ctx.store.stream(name)
    expected: list[tuple[object, ...]] = []
    given: tuple[tuple[Any, str | None, dict[str, str] | None], ...] = (
        ({"id": 7, "tags": [None, 1.5]}, "seven", {"traceparent": "00-1"}),
        (None, None, None),
        ("text", "it's; 100% \N{PARTY POPPER}", {"a": "", "b": "\N{PARTY POPPER}"}),
    )
    for at, (payload, key, headers) in enumerate(given):
        offset = await stream.publish(payload, key=key, headers=headers)
        created = began + timedelta(seconds=2.5 * at)
        expected.append((offset, name, key, payload, headers or {}, created))
        await ctx.advance(2.5)
    store = await ctx.turn()
    found = [_fields(event) for event in await store.stream(name).read_since(0)]
    ctx.expect(found, expected, "events read back in offset order, whole")


@row(
    "STR-01",
    text="Streams are isolated by name, and offsets are per stream.",
    oracle="two streams whose names differ in case, each with its own events",
    modes=SECOND,
)
async def streams_are_isolated_by_name(ctx: Context) -> None:
    name = ctx.name("log")
    one, two = ctx.store.stream(name), (await ctx.turn()).stream(name.upper())
    mine = await filled(one, 3)
    theirs = await filled(two, 2)
    ctx.expect([event.payload for event in await one.read_since(0)], [0, 1, 2], "a stream has its own events")
    ctx.expect(await offsets(one), mine, "a stream has its own offsets")
    ctx.expect(await offsets(two), theirs, "another stream has its own")


@row(
    "STR-02",
    text="The key is carried along: it neither orders nor deduplicates nor parts.",
    oracle="events with equal, absent and descending keys, read back in the order of publishing",
    modes=SECOND,
    kills=("equal-keys-deduplicate",),
)
async def a_key_is_only_carried(ctx: Context) -> None:
    name = ctx.name("log")
    stream = ctx.store.stream(name)
    keys: tuple[str | None, ...] = ("b", "a", "b", None, "b", "a", "__alkstore_key")
    given = [await stream.publish("same", key=key) for key in keys]
    store = await ctx.turn()
    found = await store.stream(name).read_since(0)
    ctx.expect([event.key for event in found], list(keys), "keys are carried in the order of publishing")
    ctx.expect([event.offset for event in found], given, "equal keys and payloads are events of their own")
    ctx.that(rising(given), "a key does not order", observed=given)


@row(
    "STR-02",
    text="A present key is a local name; a bad one is refused and nothing is published.",
    oracle="each refusal on every path, then an event as control",
    modes=SECOND,
)
async def a_bad_key_is_refused(ctx: Context) -> None:
    name = ctx.name("log")
    mine, other = ctx.store.stream(name), (await ctx.turn()).stream(name)
    for key in ("", "  ", "a\0b", "\ud800", "é" * 128):
        async with ctx.refuses(InvalidName, "publish refuses a bad key"):
            await mine.publish(1, key=key)
        async with ctx.refuses(InvalidName, "publish_batch refuses a bad key"):
            await mine.publish_batch([1, 2], key=key)
        async with ctx.refuses(InvalidName, "publish_batch refuses a bad key among keys"):
            await mine.publish_batch([1, 2], keys=["good", key])
    ctx.expect(await offsets(other), [], "a refused key publishes nothing")
    given = await mine.publish(1, key="é" * 127 + "k")
    ctx.expect(await offsets(other), [given], "a key of 255 bytes is published")


@row(
    "STR-03",
    text="read_since(n) gives the events with offset > n, ascending, at most limit.",
    oracle="every n around ten offsets, with every limit up to eleven",
    modes=("boundary", "second", "reopen"),
    kills=("read-since-includes-n", "read-ignores-its-limit"),
)
async def read_since_gives_what_is_greater(ctx: Context) -> None:
    name = ctx.name("log")
    given = await filled(ctx.store.stream(name), 10)
    stream = (await ctx.turn()).stream(name)
    for after in range(given[0] - 1, given[-1] + 2):
        for limit in (1, 2, 9, 10, 11):
            expected = [offset for offset in given if offset > after][:limit]
            found = [event.offset for event in await stream.read_since(after, limit)]
            ctx.expect(found, expected, "read_since gives what is greater, ascending, at most limit")


@row(
    "STR-03",
    text="read_since is empty at 2^63 - 1, and a negative offset reads from the start.",
    oracle="the extremes, and a limit over the number of events",
    modes=("boundary", "second"),
)
async def read_since_is_total(ctx: Context) -> None:
    name = ctx.name("log")
    given = await filled(ctx.store.stream(name), 3)
    stream = (await ctx.turn()).stream(name)
    for after in (FIRST, -1, 0):
        ctx.expect(await offsets(stream, after), given, "an offset below 1 reads from the start")
    for after in (given[-1], LAST - 1, LAST):
        ctx.expect(await offsets(stream, after), [], "after the last event nothing is read")
    ctx.expect(await offsets(stream, 0, LAST), given, "a limit over the number of events gives them all")
    ctx.expect(await offsets(stream, 0, 0), [], "a limit of 0 gives nothing")
    empty = ctx.store.stream(ctx.name("log"))
    ctx.expect(await offsets(empty), [], "a stream without events is empty")


@row(
    "STR-03",
    text="read_since gives 100 events if no limit is given.",
    oracle="a stream of 130 events, in two reads",
)
async def read_since_gives_a_hundred_by_default(ctx: Context) -> None:
    stream = ctx.store.stream(ctx.name("log"))
    given = await filled(stream, 130)
    found = [event.offset for event in await stream.read_since(0)]
    ctx.expect(found, given[:100], "read_since gives 100 events by default")
    found = [event.offset for event in await stream.read_since(found[-1])]
    ctx.expect(found, given[100:], "reading on gives the rest")


@row(
    "STR-07",
    text="read_from_consumer gives what read_since(get_offset(consumer)) gives, and saves nothing.",
    oracle="both reads and the position, for a consumer without position, in the middle, at and past the tail",
    modes=STORED,
    kills=("read-from-consumer-saves",),
)
async def read_from_consumer_saves_nothing(ctx: Context) -> None:
    name = ctx.name("log")
    given = await filled(ctx.store.stream(name), 6)
    places = {"new": None, "middle": given[2], "tail": given[-1], "past": LAST, "before": -5}
    for consumer, place in places.items():
        if place is not None:
            await ctx.store.stream(name).reset_offset(consumer, place)
    stream = (await ctx.turn()).stream(name)
    for consumer, place in places.items():
        for limit in (2, 100):
            expected = [offset for offset in given if offset > (place or 0)][:limit]
            for _ in range(2):
                found = [event.offset for event in await stream.read_from_consumer(consumer, limit)]
                ctx.expect(found, expected, "read_from_consumer reads on from the saved position")
                at = await stream.get_offset(consumer)
                ctx.expect(at, place or 0, "read_from_consumer saves nothing")
    known = {consumer: place for consumer, place in places.items() if place is not None}
    ctx.expect(await stream.consumers(), known, "reading makes no consumer")


@row(
    "STR-14",
    text="publish_batch gives increasing offsets in payload order.",
    oracle="payloads and keys read back at the offsets given; an empty batch gives []",
    modes=STORED,
    kills=("batch-reversed",),
)
async def a_batch_keeps_the_order_of_its_payloads(ctx: Context) -> None:
    name = ctx.name("log")
    stream = ctx.store.stream(name)
    first = await stream.publish_batch(["a", "b", "c"], key="k")
    second = await stream.publish_batch(iter(["d", "e"]), keys=["one", None])
    ctx.expect(await stream.publish_batch([]), [], "an empty batch gives []")
    found = [
        (event.offset, event.payload, event.key)
        for event in await (await ctx.turn()).stream(name).read_since(0)
    ]
    expected = list(zip([*first, *second], "abcde", ["k", "k", "k", "one", None], strict=True))
    ctx.expect(found, expected, "a batch is stored in payload order, at the offsets that it gave")
    ctx.that(rising([*first, *second]), "a batch's offsets increase", observed=[*first, *second])


BAD_BATCHES: Final[dict[str, tuple[Any, dict[str, Any], type[Exception]]]] = {
    "a payload that is not JSON": ([1, float("nan"), 3], {}, CodecError),
    "a bad key in the middle": ([1, 2, 3], {"keys": ["a", "", "c"]}, InvalidName),
    "too few keys": ([1, 2, 3], {"keys": ["a"]}, InvalidArgument),
    "a key and keys": ([1], {"key": "a", "keys": ["a"]}, InvalidArgument),
    "text": ("abc", {}, InvalidArgument),
    "bytes": (b"abc", {}, InvalidArgument),
    "a mapping": ({"a": 1}, {}, InvalidArgument),
}


@row(
    "STR-14",
    text="A batch with one bad part is refused whole, on direct and transaction paths, and the transaction stays usable.",
    oracle="the typed error, nothing stored, and a good batch as control",
    modes=SECOND,
    kills=("batch-stored-in-part",),
)
async def a_bad_batch_stores_nothing(ctx: Context) -> None:
    name = ctx.name("log")
    mine, other = ctx.store, (await ctx.turn()).stream(name)
    for what, (payloads, keywords, error) in BAD_BATCHES.items():
        async with ctx.refuses(error, f"a batch with {what} is refused"):
            await mine.stream(name).publish_batch(payloads, **keywords)
    ctx.expect(await offsets(other), [], "a batch with one bad part stores nothing")
    async with mine.begin_tx() as tx:
        for what, (payloads, keywords, error) in BAD_BATCHES.items():
            async with ctx.refuses(error, f"a batch with {what} is refused in a transaction"):
                await tx.publish_batch(name, payloads, **keywords)
        given = await tx.publish_batch(name, [1, 2])
    ctx.expect(await offsets(other), given, "the transaction stays usable, with nothing of the bad batches")


@row(
    "STR-14",
    text="A batch is one append: no reader ever sees a part of it.",
    oracle="three publishers of batches of seven against a reader that reads after each step",
    modes=("concurrent", "second"),
    kills=("batch-appended-one-by-one",),
)
async def a_batch_lands_in_one_step(ctx: Context) -> None:
    name = ctx.name("log")
    mine, other = ctx.store.stream(name), (await ctx.turn()).stream(name)
    seen: list[int] = []

    async def publish(step: Step) -> None:
        for _ in range(8):
            await other.publish_batch(["same batch"] * 7)
            await step()

    async def read(step: Step) -> None:
        while len(seen) < 3 * 8 * 7:
            found = await mine.read_since(seen[-1] if seen else 0, 1_000)
            ctx.expect(len(found) % 7, 0, "a reader sees a batch whole or not at all")
            seen.extend(event.offset for event in found)
            await step()

    await ctx.soon(ctx.race_workers([publish, publish, publish, read]), "every batch lands")
    ctx.expect(await offsets(other), seen, "every batch lands once")
