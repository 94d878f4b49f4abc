"""NAME-01 to NAME-04, NAME-06, NAME-07: which names are legal, everywhere that a name is taken."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, Final, TypeAlias

from alkstore import EnqueueOpts, InvalidArgument, InvalidName, ReservedName, Store
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._accepting import accepts
from alkstore_contract_suite.rows._entry_points import (
    DIRECT_HEADER,
    DIRECT_LOCAL,
    DIRECT_SHARED,
    LISTENING,
    SPEC,
    TX_HEADER,
    TX_LOCAL,
    TX_SHARED,
    Direct,
    InTx,
)

Calls: TypeAlias = Mapping[str, Callable[[], Awaitable[object]]]

BLANK: Final = ("", " ", "\t", "\n", " \r\n\t", "\x1c", "\u00a0", "\u2003", "\u3000")
UNSTORABLE: Final = ("\0", "a\0b", "\ud800", "a\udfff", "\udcff.txt")
TOO_LONG: Final = ("x" * 256, "é" * 128, "😀" * 64, "x" * 100_000)
EVERYWHERE: Final = {label: call for label, call in DIRECT_SHARED.items() if label not in LISTENING}
"""Where a good name goes well on every engine."""

LONGEST: Final = ("x" * 255, "é" * 127 + "x", "😀" * 63 + "abc")
RESERVED: Final = (
    "__alkstore_",
    "__alkstore_x",
    "__alkstore_outbox:mail",
    "__alkstore_scheduler",
    "__alkstore_ ",
)
RESERVED_AND_WORSE: Final = ("__alkstore_\0", "__alkstore_\ud800", "__alkstore_" + "x" * 300)
NEARLY_RESERVED: Final = (
    "__alkstore",
    "__alkstore-x",
    "_alkstore_x",
    "___alkstore_x",
    "__Alkstore_x",
    "__ALKSTORE_X",
    " __alkstore_x",
    "x__alkstore_",
    "__alk_store_x",
)
NO_TEXT: Final = (5, 1.5, True, b"name", ["name"], object())

LOCAL: Final[Mapping[str, Direct]] = {**DIRECT_LOCAL, **DIRECT_HEADER}
TX_ANY_LOCAL: Final[Mapping[str, InTx]] = {**TX_LOCAL, **TX_HEADER}


async def _looks(store: Store) -> tuple[object, ...]:
    """Everything that a refused call could have left behind, the control's own queue apart."""
    queues = [name for name in await store.queues() if name != "control"]
    listed = (
        queues,
        await store.streams(),
        await store.outboxes(),
        await store.locks(),
        await store.schedules(),
    )
    entry = store.stream("entry")
    return (*listed, await entry.head(), await entry.consumers(), await store.queue("entry").stats())


async def _refused(
    ctx: Context,
    direct: Mapping[str, Direct],
    in_tx: Mapping[str, InTx],
    names: Iterable[Any],
    kind: type[InvalidName] | type[ReservedName] | type[InvalidArgument],
) -> None:
    """Give each name to each entry point: the exact error, nothing changed, and the transaction goes on."""
    before = await _looks(ctx.store)
    for name in names:
        for label, call in direct.items():
            async with ctx.refuses(kind, f"{label} refuses the name {name!a:.60}") as caught:
                await call(ctx.store, name)
            _expect_exactly(ctx, caught.error, kind, label, name)
    ctx.expect(await _looks(ctx.store), before, "a refused name leaves nothing in storage")
    async with ctx.store.begin_tx() as tx:
        for name in names:
            for label, call_in in in_tx.items():
                async with ctx.refuses(kind, f"{label} refuses the name {name!a:.60}") as caught:
                    await call_in(tx, name)
                _expect_exactly(ctx, caught.error, kind, label, name)
        id = await tx.enqueue("control", 1)
    ctx.that(await ctx.store.queue("control").get_job(id), "a transaction that refused names still lands")
    ctx.expect(await _looks(ctx.store), before, "a name refused in a transaction leaves nothing in storage")


def _expect_exactly(ctx: Context, error: Any, kind: type[Exception], label: str, name: Any) -> None:
    ctx.expect(type(error), kind, f"{label} refuses {name!a:.60} with exactly this error")
    if kind is not InvalidArgument:
        ctx.expect(error.name, name, f"the error of {label} carries the name")


async def _accepted(
    ctx: Context, direct: Mapping[str, Direct], in_tx: Mapping[str, InTx], names: Iterable[str]
) -> None:
    for name in names:
        for label, call in direct.items():
            with accepts(ctx, f"{label} accepts the name {name!a:.60}"):
                await call(ctx.store, name)
        async with ctx.store.begin_tx() as tx:
            for label, call_in in in_tx.items():
                with accepts(ctx, f"{label} accepts the name {name!a:.60}"):
                    await call_in(tx, name)
            await tx.rollback()


@row(
    "NAME-01",
    text="Every entry point that takes a shared name refuses a blank one.",
    oracle="InvalidName that carries the name; nothing stored; the transaction still lands",
    kills=("whitespace-is-a-name",),
)
async def a_blank_shared_name_is_refused_everywhere(ctx: Context) -> None:
    await _refused(ctx, DIRECT_SHARED, TX_SHARED, BLANK, InvalidName)
    await _accepted(ctx, EVERYWHERE, TX_SHARED, ["control"])


@row(
    "NAME-01",
    text="Names are checked before any other argument, and what they hold before their prefix.",
    oracle="with a bad name and another bad argument the error is the name's",
)
async def a_name_is_checked_before_the_other_arguments(ctx: Context) -> None:
    await _refused(ctx, DIRECT_SHARED, TX_SHARED, RESERVED_AND_WORSE, InvalidName)
    store: Any = ctx.store
    bad = object()
    calls: Calls = {
        "queue": lambda: store.queue("", visibility_timeout=-1),
        "notify": lambda: store.notify("", bad),
        "try_lock": lambda: store.try_lock("", -1),
        "lock": lambda: store.lock("", -1, timeout="x"),
        "schedule": lambda: store.schedule("", "never", "__alkstore_x", bad),
        "schedule's queue": lambda: store.schedule("good", "never", "", bad),
        "publish's key": lambda: store.stream("s").publish(bad, key=""),
        "save_offset": lambda: store.stream("s").save_offset("", "x"),
        "claim_batch": lambda: store.queue("q").claim_batch("x", worker_id=""),
        "claim": lambda: store.queue("q").claim(timeout="x", worker_id=""),
    }
    await _refuses_names(ctx, calls)


async def _refuses_names(ctx: Context, calls: Calls) -> None:
    for label, call in calls.items():
        async with ctx.refuses(InvalidName, f"{label} checks its name first"):
            await call()


@row(
    "NAME-01",
    text="In a transaction too names are checked before any other argument.",
    oracle="with a bad name and another bad argument the error is the name's",
)
async def a_transaction_checks_names_first(ctx: Context) -> None:
    bad = object()
    async with ctx.store.begin_tx() as opened:
        tx: Any = opened
        calls: Calls = {
            "enqueue": lambda: tx.enqueue("", bad, priority="x"),
            "publish": lambda: tx.publish("", bad, key=""),
            "publish's key": lambda: tx.publish("s", bad, key=""),
            "notify": lambda: tx.notify("", bad),
            "save_offset": lambda: tx.save_offset("s", "", "x"),
            "read_since": lambda: tx.read_since("", "x", "x"),
            "get_job": lambda: tx.get_job("", "x"),
        }
        await _refuses_names(ctx, calls)


@row(
    "NAME-02",
    text="The exact prefix __alkstore_ is refused with ReservedName, by every entry point on every path.",
    oracle="ReservedName, which is no InvalidName; nothing stored; the transaction still lands",
    kills=("prefix-checked-on-one-path",),
)
async def the_reserved_prefix_is_refused_everywhere(ctx: Context) -> None:
    await _refused(ctx, DIRECT_SHARED, TX_SHARED, RESERVED, ReservedName)
    ctx.that(not issubclass(ReservedName, InvalidName), "a ReservedName is no InvalidName")


@row(
    "NAME-02",
    text="Near misses of the prefix, and other case, pass.",
    oracle="no entry point raises",
    kills=("prefix-check-ignores-case",),
)
async def a_near_miss_of_the_prefix_passes(ctx: Context) -> None:
    await _accepted(ctx, EVERYWHERE, TX_SHARED, NEARLY_RESERVED)


@row(
    "NAME-02",
    text="Near misses of the prefix, other case, and 255 bytes pass as the names of channels to listen on.",
    oracle="no listen raises",
    needs=("listen",),
)
async def a_channel_that_is_nearly_reserved_or_long_is_listened_on(ctx: Context) -> None:
    await _accepted(ctx, LISTENING, {}, ["control", *NEARLY_RESERVED, *LONGEST])


@row(
    "NAME-03",
    text="NUL, lone surrogates and more than 255 bytes of UTF-8 are refused; a non-str is InvalidArgument.",
    oracle="the exact error; nothing stored; the transaction still lands",
    kills=("names-counted-in-characters",),
)
async def a_name_that_cannot_be_stored_is_refused_everywhere(ctx: Context) -> None:
    await _refused(ctx, DIRECT_SHARED, TX_SHARED, (*UNSTORABLE, *TOO_LONG), InvalidName)
    await _refused(ctx, DIRECT_SHARED, TX_SHARED, NO_TEXT, InvalidArgument)


@row(
    "NAME-03",
    text="A name of exactly 255 bytes of UTF-8 passes.",
    oracle="no entry point raises",
    modes=("boundary",),
)
async def a_name_of_255_bytes_passes_everywhere(ctx: Context) -> None:
    await _accepted(ctx, EVERYWHERE, TX_SHARED, LONGEST)
    await _accepted(ctx, LOCAL, TX_ANY_LOCAL, LONGEST)


@row(
    "NAME-04",
    text="Consumers, keys, worker ids and header names are refused as shared names are.",
    oracle="the exact error; nothing stored; the transaction still lands",
    kills=("keys-are-not-checked",),
)
async def a_bad_local_name_is_refused_everywhere(ctx: Context) -> None:
    await _refused(ctx, LOCAL, TX_ANY_LOCAL, (*BLANK, *UNSTORABLE, *TOO_LONG), InvalidName)
    no_text = [
        value for value in NO_TEXT if not isinstance(value, list)
    ]  # a header's name is a key of a dict
    await _refused(ctx, LOCAL, TX_ANY_LOCAL, no_text, InvalidArgument)


@row(
    "NAME-04",
    text="The reserved prefix is allowed in local names.",
    oracle="no entry point raises",
    kills=("keys-refuse-the-prefix",),
)
async def a_local_name_may_begin_with_the_prefix(ctx: Context) -> None:
    await _accepted(ctx, LOCAL, TX_ANY_LOCAL, (*RESERVED, *NEARLY_RESERVED))


@row(
    "NAME-04",
    text="A store's own worker id is a local name too.",
    oracle="InvalidName or InvalidArgument at the opening; a good one is shown by claims",
)
async def a_stores_own_worker_id_is_a_local_name(ctx: Context) -> None:
    for name in (*BLANK, *UNSTORABLE, *TOO_LONG):
        async with ctx.refuses(InvalidName, f"a store refuses the worker id {name!a:.60}"):
            _ = await ctx.factory.open_with(worker_id=name)
    for value in NO_TEXT:
        async with ctx.refuses(InvalidArgument, f"a store refuses a worker id of {type(value).__name__}"):
            _ = await ctx.factory.open_with(worker_id=value)
    for name in (*RESERVED, *LONGEST):
        async with aclosing(await ctx.factory.open_with(worker_id=name)) as store:
            await store.queue("mine").enqueue(1)
            handle = await store.queue("mine").claim_one()
            ctx.expect(handle and handle.job.worker_id, name, "a claim shows the store's worker id")


@row(
    "NAME-06",
    text="A name is checked before any engine work: nothing is written and nobody is woken.",
    oracle="waiting receivers and claims go on waiting, and are reached by the control",
    modes=("plain", "second"),
    needs=("listen",),
    kills=("name-checked-after-the-write",),
)
async def a_refused_name_writes_nothing_and_wakes_nobody(ctx: Context) -> None:
    store = ctx.store
    other = await ctx.turn()
    before = await _looks(other)
    async with other.listen("entry") as wakes, other.stream("entry").subscribe() as events:
        claim = ctx.start(other.queue("entry").claim())
        await ctx.settle()
        await _try_everything_badly(ctx, store)

        await ctx.idle(claim, "a refused name wakes no waiting claim")
        ctx.expect(await wakes.try_recv(), None, "a refused name wakes no receiver")
        ctx.expect(await events.try_recv(), None, "a refused name appends no event")
        ctx.expect(await _looks(other), before, "a refused name leaves nothing in storage")
        async with store.begin_tx() as tx:
            await tx.enqueue("entry", "control")
            await tx.publish("entry", "control")
            await tx.notify("entry")
        ctx.that(await ctx.soon(claim, "the control reaches the waiting claim"), "the claim gets the control")
        ctx.that(await ctx.soon(wakes.recv(), "the control wakes the receiver"), "the receiver gets a wake")
        ctx.that(await ctx.soon(events.recv(), "the control reaches the subscriber"), "the event arrives")


async def _try_everything_badly(ctx: Context, store: Store) -> None:
    async with ctx.refuses(InvalidName, "one bad key spoils the whole batch"):
        await store.stream("entry").publish_batch([1, 2], keys=["good", ""])
    async with ctx.refuses(InvalidName, "one bad header spoils the whole batch"):
        each = [EnqueueOpts(), EnqueueOpts(headers={"": "v"})]
        await store.queue("entry").enqueue_batch([1, 2], each=each)
    for label, call in LOCAL.items():
        if "worker" not in label:
            async with ctx.refuses(InvalidName, f"{label} refuses a blank name"):
                await call(store, " ")
    async with store.begin_tx() as tx:
        for label, call_in in {**TX_SHARED, **TX_ANY_LOCAL}.items():
            async with ctx.refuses(InvalidName, f"{label} refuses a blank name"):
                await call_in(tx, " ")


@row(
    "NAME-07",
    text="schedule checks its name and its queue argument; unschedule checks its name.",
    oracle="the exact error, and the schedule that is there stays as it was",
    kills=("schedule-ignores-its-queue-name",),
)
async def schedule_checks_both_of_its_names(ctx: Context) -> None:
    kept = await ctx.store.schedule("kept", SPEC, "target", 1)
    for names, kind in ((BLANK, InvalidName), (UNSTORABLE, InvalidName), (RESERVED, ReservedName)):
        for name in names:
            calls: Calls = {
                "schedule's name": partial(ctx.store.schedule, name, SPEC, "target", 2),
                "schedule's queue": partial(ctx.store.schedule, "kept", "@every 2h", name, 2),
                "unschedule's name": partial(ctx.store.unschedule, name),
            }
            for label, call in calls.items():
                async with ctx.refuses(kind, f"{label} may not be {name!a}") as caught:
                    await call()
                ctx.expect(caught.error.name, name, "the error carries the name")
    ctx.expect(await ctx.store.schedules(), [kept], "a refused schedule changes nothing")
    ctx.expect(await ctx.store.unschedule("kept"), True, "the schedule was there all along")
    ctx.expect(await ctx.store.unschedule("kept"), False, "an unknown schedule is not an error")
