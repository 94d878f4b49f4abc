"""PAY-01 to PAY-04: which values are payloads, and the exact bytes that are stored."""

import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from typing import Any, Final
from uuid import UUID

from alkstore import CodecError, Job, Store, StreamEvent
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.platform_needs import TOO_DEEP
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._accepting import accepts
from alkstore_contract_suite.rows._queue import STORED, read

GOLDEN: Final[tuple[tuple[Any, bytes], ...]] = (
    (None, b"null"),
    (True, b"true"),
    (False, b"false"),
    (0, b"0"),
    (-1, b"-1"),
    (2**53 + 1, b"9007199254740993"),
    (-(2**63), b"-9223372036854775808"),
    (2**64, b"18446744073709551616"),
    (2**200, b"1606938044258990275541962092341162602522202993782792835301376"),
    (0.0, b"0.0"),
    (-0.0, b"-0.0"),
    (1.0, b"1.0"),
    (0.1, b"0.1"),
    (1e15, b"1000000000000000.0"),
    (1e16, b"1e16"),
    (1e22, b"1e22"),
    (0.0001, b"0.0001"),
    (0.00001, b"0.00001"),
    (1e-7, b"1e-7"),
    (5e-324, b"5e-324"),
    (1.7976931348623157e308, b"1.7976931348623157e308"),
    ("", b'""'),
    ("a\0b", b'"a\\u0000b"'),
    ("\u2028\u2029", '"\u2028\u2029"'.encode()),
    ("é", '"é"'.encode()),
    ("e\u0301", '"e\u0301"'.encode()),
    ("/", b'"/"'),
    ('"\\\b\f\n\r\t\x1f\x7f', b'"\\"\\\\\\b\\f\\n\\r\\t\\u001f\x7f"'),
    ("😀\U0010ffff\uffff", '"😀\U0010ffff\uffff"'.encode()),
    ("42", b'"42"'),
    ([], b"[]"),
    ({}, b"{}"),
    ([[], {}, [None]], b"[[],{},[null]]"),
    ((1, (2, ())), b"[1,[2,[]]]"),
    ({"b": 1, "a": [1.5, "x"], "": None}, b'{"b":1,"a":[1.5,"x"],"":null}'),
    ({"é\0": {"\u2028": True}}, '{"é\\u0000":{"\u2028":true}}'.encode()),
)
"""Values and the only bytes that may be stored for them."""


def _as_list(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_as_list(each) for each in value]
    return {key: _as_list(each) for key, each in value.items()} if isinstance(value, dict) else value


def _nested(depth: int, leaf: Any = 1) -> Any:
    value = leaf
    for level in range(depth):
        value = [value] if level % 2 else {"k": value}
    return value


async def _store(store: Store, value: Any) -> tuple[list[int], list[int]]:
    """Put a payload on every path; gives the ids and the offsets."""
    ids = [await store.queue("q").enqueue(value), *await store.queue("q").enqueue_batch([value])]
    offsets = [await store.stream("s").publish(value), *await store.stream("s").publish_batch([value])]
    async with store.begin_tx() as tx:
        ids += [await tx.enqueue("q", value), *await tx.enqueue_batch("q", [value])]
        offsets += [await tx.publish("s", value), *await tx.publish_batch("s", [value])]
    ids.append(await store.outbox("o").enqueue(value))
    async with store.begin_tx() as tx:
        ids.append(await tx.outbox_enqueue("o", value))
    return ids, offsets


@row(
    "PAY-01",
    text="A payload is encoded once, to exactly these bytes, on direct and tx paths.",
    oracle="the golden bytes and the equal value, for jobs, events and outbox entries",
    modes=STORED,
    kills=("keys-are-sorted", "float-stored-as-int", "tuple-refused"),
)
async def a_payload_is_stored_as_the_golden_bytes(ctx: Context) -> None:
    placed = []
    for value, golden in GOLDEN:
        with accepts(ctx, f"{value!a:.60} is a payload"):
            placed.append((value, golden, *await _store(ctx.store, value)))
    store = await ctx.turn()
    for value, golden, ids, offsets in placed:
        found: list[Job | StreamEvent] = [await read(ctx, store.queue("q"), id) for id in ids[:4]]
        found += [await read(ctx, store.outbox("o").jobs, id) for id in ids[4:]]
        found += await store.stream("s").read_since(offsets[0] - 1, len(offsets))
        shown = [each.payload_bytes for each in found]
        ctx.expect(shown, [golden] * 10, f"{value!a:.60} is stored as these bytes on every path")
        for each in found:
            same = (_as_list(value), type(_as_list(value)))
            ctx.expect(
                (each.payload, type(each.payload)), same, f"{value!a:.60} reads back equal, in type too"
            )


@row(
    "PAY-01",
    text="A later mutation of the caller's object changes nothing.",
    oracle="the stored bytes are those of the call, before commit and after",
    kills=("payload-encoded-at-commit",),
)
async def a_later_mutation_changes_nothing(ctx: Context) -> None:
    store = ctx.store
    value: dict[str, Any] = {"list": [1]}
    headers = {"h": "1"}
    id = await store.queue("q").enqueue(value, headers=headers)
    async with store.begin_tx() as tx:
        in_tx = await tx.enqueue("q", value, headers=headers)
        offset = await tx.publish("s", value, headers=headers)
        _mutate(value, headers)
    (event,) = await store.stream("s").read_since(offset - 1)
    shown: list[Any] = [await read(ctx, store.queue("q"), each) for each in (id, in_tx)]
    for each in (*shown, event):
        ctx.expect(each.payload, {"list": [1]}, "what is stored is what was given at the call")
        ctx.expect(dict(each.headers), {"h": "1"}, "headers are those of the call")
    taken: Any = shown[0].payload
    taken["list"].append(9)
    ctx.expect(shown[0].payload, {"list": [1]}, "changing a decoded payload changes no stored one")


def _mutate(value: dict[str, Any], headers: dict[str, str]) -> None:
    value["list"].append(2)
    value["more"] = 3
    headers["h"] = "2"


@row(
    "PAY-02",
    text="Wide ints, floats, NULs, emoji, deep and empty containers, and 1 MiB strings come back equal.",
    oracle="an equal value after a round trip",
    modes=STORED,
    kills=("ints-beyond-64-bits-become-floats", "text-cut-at-a-nul"),
)
async def every_kind_of_payload_comes_back(ctx: Context) -> None:
    rng = ctx.random
    values: list[Any] = [
        10**639,
        -(10**639),
        [rng.getrandbits(1 + rng.randrange(600)) * rng.choice((1, -1)) for _ in range(50)],
        [rng.uniform(-1, 1) * 10.0 ** rng.randrange(-300, 300) for _ in range(200)],
        "é\0" * 2**19,
        "".join(map(chr, (*range(0xD800), *range(0xE000, 0xFFFF, 7)))),
        {f"k{n}": [None, n, str(n), {}] for n in range(500)},
        _nested(256),
        [[] for _ in range(1_000)],
    ]
    names = [f"{value!a:.40}" for value in values]  # once: that of a million characters takes a while
    for name, value in zip(names, values, strict=True):
        with accepts(ctx, f"{name} is a payload"):
            await ctx.store.queue("q").enqueue(value)
            await ctx.store.stream("s").publish(value)
    store = await ctx.turn()
    jobs = await store.queue("q").list()
    events = await store.stream("s").read_since(0)
    for found in (jobs, events):
        ctx.expect(len(found), len(values), "every payload was stored")
    for name, value, job, event in zip(names, values, jobs, events, strict=True):
        ctx.that(job.payload == value, f"a job's {name} comes back equal")
        ctx.that(event.payload == value, f"an event's {name} comes back equal")


class _Colour(Enum):
    RED = "red"


class _Number(IntEnum):
    ONE = 1


class _Opaque:
    def __repr__(self) -> str:
        raise ValueError("even its repr fails")


def _cycle() -> list[Any]:
    cycle: list[Any] = [1]
    cycle.append({"k": cycle})
    return cycle


NO_PAYLOAD: Final[tuple[Any, ...]] = (
    float("nan"),
    float("inf"),
    float("-inf"),
    "\ud800",
    "a\udfff",
    b"bytes",
    bytearray(b"b"),
    {1, 2},
    frozenset({1}),
    datetime(2026, 1, 1, tzinfo=UTC),
    Decimal("1.5"),
    Fraction(1, 2),
    UUID(int=5),
    _Colour.RED,
    _Number.ONE,
    1j,
    object(),
    _Opaque(),
    range(3),
    iter([1]),
    lambda: None,
    10**640,
    -(10**640),
    {1: "a"},
    {1.5: 1},
    {None: 1},
    {True: 1},
    {"1": 1, 1: 2},
    {b"k": 1},
    {("a",): 1},
    {"\ud800": 1},
)
"""What no path may store: each alone, and each somewhere inside something good."""


def _calls(store: Store, value: Any) -> dict[str, Callable[[], Awaitable[object]]]:
    return {
        "Queue.enqueue": lambda: store.queue("q").enqueue(value),
        "Queue.enqueue_batch": lambda: store.queue("q").enqueue_batch([1, value]),
        "Outbox.enqueue": lambda: store.outbox("o").enqueue(value),
        "Stream.publish": lambda: store.stream("s").publish(value),
        "Stream.publish_batch": lambda: store.stream("s").publish_batch([1, value]),
        "Store.notify": lambda: store.notify("c", value),
        "Store.schedule": lambda: store.schedule("s", "@every 1h", "q", value),
    }


def _tx_calls(tx: Any, value: Any) -> dict[str, Callable[[], Awaitable[object]]]:
    return {
        "Tx.enqueue": lambda: tx.enqueue("q", value),
        "Tx.enqueue_batch": lambda: tx.enqueue_batch("q", [1, value]),
        "Tx.outbox_enqueue": lambda: tx.outbox_enqueue("o", value),
        "Tx.publish": lambda: tx.publish("s", value),
        "Tx.publish_batch": lambda: tx.publish_batch("s", [1, value]),
        "Tx.notify": lambda: tx.notify("c", value),
    }


async def _nothing_there(ctx: Context, store: Store) -> None:
    lists = (await store.queues(), await store.streams(), await store.outboxes(), await store.schedules())
    ctx.expect(lists, ([], [], [], []), "a refused payload leaves nothing in storage")


@row(
    "PAY-03",
    text="Everything else is CodecError on every path, at any depth, beside real nulls too.",
    oracle="CodecError; nothing stored, nobody woken; the transaction still lands",
    needs=("listen",),
    kills=("nan-stored-as-null", "keys-are-coerced", "sets-become-lists"),
)
async def what_is_no_payload_is_refused_on_every_path(ctx: Context) -> None:
    store = ctx.store
    async with store.listen("c") as wakes:
        for bad in NO_PAYLOAD:
            for value in (bad, [None, {"k": [bad, None]}]):
                for label, call in _calls(store, value).items():
                    async with ctx.refuses(CodecError, f"{label} refuses a value of {type(bad).__name__}"):
                        await call()
        await ctx.settle()
        ctx.expect(await wakes.try_recv(), None, "a refused payload wakes nobody")
    await _nothing_there(ctx, store)
    async with store.begin_tx() as tx:
        for bad in NO_PAYLOAD:
            for label, call in _tx_calls(tx, [None, {"k": [bad, None]}]).items():
                async with ctx.refuses(CodecError, f"{label} refuses a value of {type(bad).__name__}"):
                    await call()
        id = await tx.enqueue("q", "control")
    ctx.expect(await store.queues(), ["q"], "a refused payload leaves nothing in storage")
    ctx.expect((await read(ctx, store.queue("q"), id)).payload, "control", "the transaction still lands")
    ctx.expect(await store.streams(), [], "a refused payload leaves no stream")


@row(
    "PAY-03",
    text="Cycles, more than 256 nested containers and ints of more than 640 digits are refused; 256 and 640 pass.",
    oracle="CodecError one above the bound, stored at the bound",
    modes=("boundary",),
)
async def a_payload_has_bounds(ctx: Context) -> None:
    store = ctx.store
    too_much = (_cycle(), _nested(257), *map(_nested, TOO_DEEP), [10**640], _nested(255, [[]]))
    for value in too_much:
        async with ctx.refuses(CodecError, "a value beyond the bounds is refused"):
            await store.queue("q").enqueue(value)
    async with store.begin_tx() as tx:
        for value in too_much:
            async with ctx.refuses(CodecError, "a value beyond the bounds is refused in a transaction"):
                await tx.publish("s", value)
    await _nothing_there(ctx, store)
    for value in (_nested(256), _nested(255, []), 10**640 - 1, -(10**640) + 1, [[10**639]] * 300):
        with accepts(ctx, "a value at the bounds is a payload"):
            id = await store.queue("q").enqueue(value)
        ctx.that((await read(ctx, store.queue("q"), id)).payload == value, "a value at the bounds comes back")


@row(
    "PAY-03",
    text="The error names the path to the value.",
    oracle="the keys and the index on the way to the value stand in the message",
    kills=("codec-error-names-no-path",),
)
async def a_codec_error_names_the_path(ctx: Context) -> None:
    for bad in (float("nan"), b"bytes", {1, 2}, "\ud800", object()):
        value = {"fine": [1, None], "outer": [0, 0, {"inner": bad}]}
        async with ctx.refuses(CodecError, "a bad value inside is refused") as caught:
            await ctx.store.queue("q").enqueue(value)
        text = f"{caught.error}"  # the promise is about the message: core writes it, the same on every engine
        for part in ("outer", "2", "inner"):
            ctx.that(part in text, f"the message names {part!r}, which leads to the value", observed=text)
        ctx.that("fine" not in text, "the message does not name what is good", observed=text)
        ctx.that(text.isprintable(), "the message can be printed", observed=text)


@row(
    "PAY-03",
    text="What was accepted is decodable at any stack depth.",
    oracle="the deepest payload is stored and read a few frames below the recursion limit",
    kills=("decoding-needs-the-callers-stack",),
)
async def a_payload_is_decodable_at_any_stack_depth(ctx: Context) -> None:
    value = _nested(256)
    id = await ctx.store.queue("q").enqueue(value)
    job = await read(ctx, ctx.store.queue("q"), id)

    def dive(frames: int) -> object:
        return job.payload if frames == 0 else dive(frames - 1)

    depth = 0
    frame = sys._getframe()
    while frame.f_back is not None:
        depth, frame = depth + 1, frame.f_back
    for left in (300, 200, 100, 60):
        with accepts(ctx, f"a payload is decodable {left} frames below the limit"):
            try:
                found = dive(sys.getrecursionlimit() - depth - left)
            except RecursionError:
                ctx.fail(
                    "a payload is decodable at any stack depth", "the value", f"RecursionError at {left}"
                )
        ctx.that(found == value, "a payload read deep in the stack is equal")


@row(
    "PAY-04",
    text="JSON null is a value: it reads back as None and is not absent.",
    oracle="a claimable job and an event with payload None; an absent one is None itself",
    modes=STORED,
    kills=("null-payload-is-dropped",),
)
async def null_is_a_payload(ctx: Context) -> None:
    id = await ctx.store.queue("q").enqueue(None)
    ids = await ctx.store.queue("q").enqueue_batch([None, None])
    offset = await ctx.store.stream("s").publish(None)
    await ctx.store.schedule("s", "@every 1h", "q", None)
    store = await ctx.turn()
    for each in (id, *ids):
        job = await read(ctx, store.queue("q"), each, "a job whose payload is null is there")
        ctx.expect((job.payload, job.payload_bytes), (None, b"null"), "null reads back as None")
    events = await store.stream("s").read_since(0)
    shown = [(event.offset, event.payload, event.payload_bytes) for event in events]
    ctx.expect(shown, [(offset, None, b"null")], "an event whose payload is null is there")
    (schedule,) = await store.schedules()
    ctx.expect(schedule.payload, None, "a schedule's payload may be null")
    handles = await store.queue("q").claim_batch(5)
    ctx.expect([each.job.payload for each in handles], [None] * 3, "jobs with null are claimed")
