"""NAME-05: names are kept as they are, and are equal only if they are equal byte for byte."""

from typing import Final

from alkstore import Store
from alkstore_contract_suite.context import Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._entry_points import SPEC

ODD: Final = (
    "two  inner spaces",
    " around ",
    "it's",
    'a "quoted" name',
    "100%s %(x)s %%",
    "a; drop table job; --",
    "back\\slash\\n",
    "\x01\x1b[31m\x7f",
    "line\nfeed\ttab",
    "😀👩\u200d👩\u200d👧",
    "שלום \u202eabc",
    "$1 ? :name {braces}",
    "a/b.c*d[e]",
    "\ufeffbom",
    "null",
    "x" * 255,
    "é" * 127 + "x",
)

TWINS: Final = (
    ("Mail", "mail"),
    ("STRASSE", "straße"),
    ("İ", "i"),
    ("\u00e9", "e\u0301"),
    ("\ufb01", "fi"),
    ("Å", "\u212b"),
    ("a", "a "),
    ("a b", "a  b"),
    ("x" * 254 + "1", "x" * 254 + "2"),
    ("é" * 127 + "1", "é" * 127 + "2"),
    ("y" * 63 + "1", "y" * 63 + "2"),
    ("1", "01"),
    ("a%", "ab"),
    ("a_b", "axb"),
)


async def _write_under(store: Store, name: str) -> None:
    await store.queue(name).enqueue(name, headers={name: name})
    await store.outbox(name).enqueue(name)
    await store.stream(name).publish(name, key=name, headers={name: name})
    await store.stream(name).save_offset(name, 1)
    await store.schedule(name, SPEC, name, name)
    await store.try_lock(name, 3_600)


@row(
    "NAME-05",
    text="Spaces, quotes, control characters, emoji, right-to-left text pass and read back unchanged.",
    oracle="every list and every value shows the name as it was given",
    modes=("plain", "second", "reopen"),
    needs=("listen",),
    kills=("names-lose-their-outer-spaces",),
)
async def an_odd_name_reads_back_unchanged(ctx: Context) -> None:
    for name in ODD:
        await _write_under(ctx.store, name)
    store = await ctx.turn()
    names = sorted(ODD)
    ctx.expect(sorted(await store.queues()), names, "queues keep their names")
    ctx.expect(sorted(await store.outboxes()), names, "outboxes keep their names")
    ctx.expect(sorted(await store.streams()), names, "streams keep their names")
    ctx.expect(sorted(lock.name for lock in await store.locks()), names, "locks keep their names")
    schedules = await store.schedules()
    ctx.expect(sorted(each.name for each in schedules), names, "schedules keep their names")
    ctx.expect(sorted(each.queue for each in schedules), names, "schedules keep their queues' names")
    for name in ODD:
        await _reads_back(ctx, store, name)


async def _reads_back(ctx: Context, store: Store, name: str) -> None:
    handle = await store.queue(name).claim_one(worker_id=name)
    ctx.that(handle, "a job is found under the name that it was put under")
    assert handle is not None
    job = handle.job
    shown = (job.queue, job.worker_id, dict(job.headers), job.payload)
    ctx.expect(shown, (name, name, {name: name}, name), "a job keeps its names")
    (event,) = await store.stream(name).read_since(0)
    seen = (event.stream, event.key, dict(event.headers), event.payload)
    ctx.expect(seen, (name, name, {name: name}, name), "an event keeps its names")
    ctx.expect(await store.stream(name).consumers(), {name: 1}, "a consumer keeps its name")
    async with store.listen(name) as wakes:
        await store.notify(name)
        wake = await ctx.soon(wakes.recv(), "a notify reaches a receiver on the same name")
        ctx.expect(wake and wake.channel, name, "a wake shows the channel's name")


@row(
    "NAME-05",
    text="Two names are equal only if equal byte for byte: no folding, no normalisation, no truncation.",
    oracle="what was written under one name is not there under its twin",
    modes=("plain", "second"),
    kills=("names-cut-at-63-bytes", "names-case-folded"),
)
async def two_names_that_differ_are_two_names(ctx: Context) -> None:
    store, other = ctx.store, await ctx.turn()
    for one, twin in TWINS:
        await _write_under(store, one)
        ctx.expect(await other.queue(twin).claim_one(), None, f"queue {twin!a:.40} is not {one!a:.40}")
        ctx.expect(await other.outbox(twin).jobs.list(), [], f"outbox {twin!a:.40} is not {one!a:.40}")
        ctx.expect(await other.stream(twin).read_since(0), [], f"stream {twin!a:.40} is not {one!a:.40}")
        ctx.expect(await other.stream(one).get_offset(twin), 0, f"consumer {twin!a:.40} is not {one!a:.40}")
        ctx.expect(await other.unschedule(twin), False, f"schedule {twin!a:.40} is not {one!a:.40}")
        lock = await other.try_lock(twin, 3_600)
        ctx.that(lock, f"lock {twin!a:.40} is not {one!a:.40}")
        ctx.expect(await other.try_lock(one, 1), None, "the lock under the name itself is held")
        ctx.that(await other.queue(one).claim_one(), "the job under the name itself is there")
        ctx.expect(await other.unschedule(one), True, "the schedule under the name itself is there")


@row(
    "NAME-05",
    text="Channels too are equal only byte for byte.",
    oracle="a notify on the twin wakes nobody; one on the name itself does",
    modes=("plain", "second"),
    needs=("listen",),
    kills=("channels-cut-at-63-bytes",),
)
async def two_channels_that_differ_are_two_channels(ctx: Context) -> None:
    store, other = ctx.store, await ctx.turn()
    for one, twin in TWINS:
        async with other.listen(one) as wakes:
            await store.notify(twin)
            await ctx.settle()
            ctx.expect(await wakes.try_recv(), None, f"a notify on {twin!a:.40} does not wake {one!a:.40}")
            await store.notify(one)
            wake = await ctx.soon(wakes.recv(), "a notify on the name itself arrives")
            ctx.expect(wake and wake.channel, one, "the wake shows the receiver's channel")
            ctx.expect(await wakes.try_recv(), None, "one notify gives one wake")
