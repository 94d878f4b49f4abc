"""Rows SCHED-01 to SCHED-04 and SCHED-07: writing schedules, and what a boundary fires."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final

from alkstore import CodecError, InvalidArgument, InvalidName, InvalidSpec, JobState, ReservedName, Schedule
from alkstore_contract_suite.context import MICRO, Context
from alkstore_contract_suite.row import row
from alkstore_contract_suite.rows._schedule import STORED, boundaries, fired_for, fires, stored

DAYS: Final = 24 * 3600


def _fields(schedule: Schedule) -> tuple[object, ...]:
    return (
        schedule.name,
        schedule.spec,
        schedule.queue,
        schedule.payload,
        schedule.opts,
        schedule.anchor,
        schedule.next_fire_at,
    )


@row(
    "SCHED-01",
    text="schedule returns the read-back: name, spec, queue, payload, options, anchor and the next boundary.",
    oracle="every field returned, and the same read later",
    modes=STORED,
)
async def a_schedule_reads_back_whole(ctx: Context) -> None:
    name, queue, now = ctx.name("report"), ctx.name("mail"), await ctx.now()
    anchor = now + timedelta(seconds=7.25)
    given = await ctx.store.schedule(
        name, "@every 10s", queue, {"id": [1, None]}, anchor=anchor, priority=-3, visibility_timeout=1.5,
        max_attempts=7, base_delay=0, expires=60,
    )  # fmt: skip
    found = await stored(ctx, await ctx.turn(), name)
    ctx.expect(_fields(found), _fields(given), "schedule returns what is stored")
    wanted = (name, "@every 10s", queue, {"id": [1, None]}, anchor, anchor)
    shown = (found.name, found.spec, found.queue, found.payload, found.anchor, found.next_fire_at)
    ctx.expect(shown, wanted, "a schedule reads back whole")
    opts = (found.opts.priority, found.opts.visibility_timeout, found.opts.max_attempts)
    ctx.expect(opts, (-3, timedelta(seconds=1.5), 7), "a schedule's options read back")
    rest = (found.opts.base_delay, found.opts.expires)
    ctx.expect(rest, (timedelta(0), timedelta(seconds=60)), "a schedule's options read back")


@row(
    "SCHED-01",
    text="schedule is an upsert by name: one schedule a name, the last write whole; others are untouched.",
    oracle="schedules() after two writes of one name beside another",
    modes=STORED,
    kills=("upsert-keeps-the-old-queue",),
)
async def schedule_is_an_upsert_by_name(ctx: Context) -> None:
    one, two = sorted((ctx.name("report"), ctx.name("report")))
    first, second = ctx.name("mail"), ctx.name("mail")
    other = await ctx.store.schedule(two, "@every 1h", first, "other")
    await ctx.store.schedule(one, "@every 1h", first, "old", priority=5, max_attempts=9)
    store = await ctx.turn()
    last = await store.schedule(one, "@every 2h", second, "new")
    found = [_fields(each) for each in await store.schedules()]
    ctx.expect(
        found, [_fields(last), _fields(other)], "a second write of a name replaces the first one whole"
    )
    shown = (last.spec, last.queue, last.payload)
    ctx.expect(shown, ("@every 2h", second, "new"), "the last write is stored whole")
    ctx.expect(last.opts.max_attempts, 3, "what the second write leaves out is the default again")


BAD: Final[dict[str, tuple[dict[str, Any], type[Exception]]]] = {
    "name": ({"name": " "}, InvalidName),
    "reserved name": ({"name": "__alkstore_x"}, ReservedName),
    "queue": ({"queue": ""}, InvalidName),
    "reserved queue": ({"queue": "__alkstore_outbox:x"}, ReservedName),
    "spec": ({"spec": "@every 1w"}, InvalidSpec),
    "payload": ({"payload": float("nan")}, CodecError),
    "anchor": ({"anchor": datetime(2026, 1, 1)}, InvalidArgument),  # noqa: DTZ001  # naive is the point
    "attempts": ({"max_attempts": 0}, InvalidArgument),
    "window": ({"visibility_timeout": 0}, InvalidArgument),
}


@row(
    "SCHED-01",
    text="A bad name, queue, spec, payload or option: the typed error, and nothing is written.",
    oracle="schedules() after each, on an unknown and on a known name; then a good one as control",
    modes=("plain", "second"),
)
async def a_bad_schedule_writes_nothing(ctx: Context) -> None:
    mine, other = ctx.store, await ctx.turn()
    name, known = ctx.name("report"), ctx.name("report")
    before = _fields(await mine.schedule(known, "@every 1h", "mail", "good"))
    for at in (name, known):
        good = {"name": at, "spec": "@every 1s", "queue": "mail", "payload": 1}
        for what, (bad, error) in BAD.items():
            async with ctx.refuses(error, f"a schedule with a bad {what} is refused"):
                await mine.schedule(**{**good, **bad})
    found = [_fields(each) for each in await other.schedules()]
    ctx.expect(found, [before], "a refused schedule writes nothing")
    await mine.schedule(name, "@every 1s", "mail", 1)
    ctx.expect(len(await other.schedules()), 2, "a good one is written")


@row(
    "SCHED-01",
    text="Of concurrent upserts one is stored, whole.",
    oracle="the fields that twelve racing writes share, after the race",
    modes=("concurrent", "second"),
)
async def concurrent_upserts_leave_one_whole(ctx: Context) -> None:
    stores = [ctx.store, await ctx.turn()]
    name = ctx.name("report")
    writes = [
        stores[at % 2].schedule(name, f"@every {at + 1}m", f"mail-{at}", {"at": at}, priority=at)
        for at in range(12)
    ]
    await ctx.race(*writes)
    found = await stored(ctx, stores[0], name)
    at = found.opts.priority
    expected = (f"@every {at + 1}m", f"mail-{at}", {"at": at}, await ctx.now() + timedelta(minutes=at + 1))
    shown = (found.spec, found.queue, found.payload, found.next_fire_at)
    ctx.expect(shown, expected, "of concurrent upserts one is stored whole")


ACCEPTED: Final = {
    "@every 1s": 1,
    "@every 90s": 90,
    "@every   5m": 300,
    "@every 24h": DAYS,
    "@every 7d": 7 * DAYS,
    "@every 36500d": 36_500 * DAYS,
    "@every 876000h": 36_500 * DAYS,
    "@every 3153600000s": 36_500 * DAYS,
}
REFUSED: Final = (
    "", " ", "@every", "@every ", "@every 5", "@every s", "@every5s", "@every\t5s", "@every\u00a05s",
    " @every 5s", "@every 5s ", "@every 5s\n", "@every 5 s", "@every 0s", "@every 05s", "@every -5s",
    "@every +5s", "@every 1.5s", "@every 1e2s", "@every 1_0s", "@every 5S", "@every 5w", "@every 5ms",
    "@every 1h30m", "@EVERY 5s", "@Every 5s", "every 5s", "@every \u0665s", "@every \uff15s", "@every ²s",
    "@hourly", "*/5 * * * *", "0 0 1 1 *", "@every 36501d", "@every 3153600001s", "@every 52560001m",
    f"@every {'9' * 400}d",
)  # fmt: skip


@row(
    "SCHED-02",
    text="`@every <n><unit>` with unit s, m, h or d is accepted up to exactly 36,500 days; units have fixed lengths.",
    oracle="the first boundary of each",
    modes=("boundary", "second"),
)
async def the_grammar_accepts_intervals(ctx: Context) -> None:
    name, now = ctx.name("report"), await ctx.now()
    other = await ctx.turn()
    for spec, seconds in ACCEPTED.items():
        await other.unschedule(name)
        given = await other.schedule(name, spec, "mail", 1)
        ctx.expect(given.spec, spec, "a spec reads back as it was given")
        distance = given.next_fire_at - now
        ctx.expect(distance, timedelta(seconds=seconds), f"{spec} is so many seconds")


@row(
    "SCHED-02",
    text="Anything else is InvalidSpec before any write.",
    oracle="the typed error with the spec, and no schedule; then a good spec as control",
    modes=("boundary", "second"),
    kills=("spec-may-end-in-a-newline",),
)
async def the_grammar_refuses_anything_else(ctx: Context) -> None:
    name = ctx.name("report")
    mine, other = ctx.store, await ctx.turn()
    for spec in REFUSED:
        async with ctx.refuses(InvalidSpec, f"{spec[:40]!r} is no spec") as caught:
            await mine.schedule(name, spec, "mail", 1)
        ctx.expect(caught.error.spec, spec, "the error carries the spec")
    ctx.expect(await other.schedules(), [], "a refused spec writes nothing")
    await mine.schedule(name, "@every 5s", "mail", 1)
    ctx.expect(len(await other.schedules()), 1, "a good spec is written")


@row(
    "SCHED-03",
    text="Without an anchor the first boundary is registration + interval; with one it is the first after now on its grid.",
    oracle="next_fire_at for anchors before, at, and after now, near and far, at the microsecond",
    modes=("boundary", "second"),
    kills=("anchor-may-be-the-boundary-now",),
)
async def the_first_boundary_is_on_the_grid(ctx: Context) -> None:
    await ctx.advance(0.123_456)
    now, store = await ctx.now(), await ctx.turn()
    micro, every = timedelta(microseconds=1), timedelta(seconds=10)
    cases: dict[str, tuple[datetime | None, datetime]] = {
        "none": (None, now + every),
        "now": (now, now + every),
        "one microsecond ago": (now - micro, now - micro + every),
        "one microsecond ahead": (now + micro, now + micro),
        "an interval ago": (now - every, now + every),
        "almost an interval ago": (now - every + micro, now + micro),
        "a thousand and a half intervals ago": (now - 1000.5 * every, now + every / 2),
        "a year ahead": (now + timedelta(days=365), now + timedelta(days=365)),
        "the first instant": (datetime(1, 1, 1, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)),
    }
    for what, (anchor, expected) in cases.items():
        if what == "the first instant":
            expected += ((now - expected) // every + 1) * every
        given = await store.schedule(ctx.name("report"), "@every 10s", "mail", 1, anchor=anchor)
        ctx.expect(given.next_fire_at, expected, f"the first boundary for the anchor {what}")
        ctx.expect(given.anchor, anchor, "the anchor reads back")


@row(
    "SCHED-03",
    text="An upsert with the same interval and anchor, however written, keeps the grid and next_fire_at.",
    oracle="next_fire_at after each rewrite at a later time; payload, queue and options are replaced",
    modes=STORED,
    kills=("re-registration-resets-the-grid",),
)
async def an_upsert_keeps_the_grid(ctx: Context) -> None:
    name, now = ctx.name("report"), await ctx.now()
    anchor = now + timedelta(seconds=20)
    east = anchor.astimezone(timezone(timedelta(hours=9)))
    for first, again, anchors in (
        ("@every 60s", ("@every 60s", "@every 1m", "@every  60s"), (None, None)),
        ("@every 24h", ("@every 1d", "@every 86400s"), (anchor, east)),
    ):
        await ctx.store.unschedule(name)
        given = await ctx.store.schedule(name, first, "old", "old", anchor=anchors[0], priority=1)
        for spec in again:
            await ctx.advance(7)
            store = await ctx.turn()
            kept = await store.schedule(name, spec, "new", spec, anchor=anchors[1], priority=2)
            ctx.expect(kept.next_fire_at, given.next_fire_at, "the same interval and anchor keep the grid")
            shown = (kept.queue, kept.payload, kept.opts.priority)
            ctx.expect(shown, ("new", spec, 2), "payload, queue and options are replaced")
            ctx.expect(_fields(await stored(ctx, store, name)), _fields(kept), "and stay so")


@row(
    "SCHED-03",
    text="A past next_fire_at is kept too, and then caught up: re-registering never postpones or drops a fire.",
    oracle="the fires of a schedule that is re-registered before every tick",
    modes=("plain", "second", "reopen", "crash-kill"),
    kills=("re-registration-resets-the-grid",),
)
async def a_past_boundary_survives_an_upsert(ctx: Context) -> None:
    name, queue, start = ctx.name("report"), ctx.name("mail"), await ctx.now()
    await ctx.store.schedule(name, "@every 10s", queue, "first")
    await ctx.advance(35)
    store = await ctx.turn()
    kept = await store.schedule(name, "@every 10s", queue, "second")
    ctx.expect(kept.next_fire_at, start + timedelta(seconds=10), "a past boundary is kept")
    ctx.expect(await store.tick_schedules(), 3, "a past boundary is caught up")
    jobs = await fires(store, queue)
    expected = boundaries(start, 10, 1, 2, 3)
    ctx.expect([job.scheduled_for for job in jobs], expected, "no fire is postponed or dropped")
    ctx.expect({str(job.payload) for job in jobs}, {"second"}, "what fires is what is registered now")


@row(
    "SCHED-03",
    text="A changed interval or anchor restarts the grid.",
    oracle="next_fire_at after each change, with the old boundary in the future and in the past",
    modes=("plain", "second"),
    kills=("changed-interval-keeps-the-grid",),
)
async def a_change_restarts_the_grid(ctx: Context) -> None:
    name = ctx.name("report")
    store = await ctx.turn()
    await store.schedule(name, "@every 10s", "mail", 1)
    for wait in (3, 100):
        await ctx.advance(wait)
        now = await ctx.now()
        changed = await store.schedule(name, f"@every {wait}m", "mail", 1)
        ctx.expect(
            changed.next_fire_at, now + timedelta(minutes=wait), "a changed interval restarts the grid"
        )
        anchored = await store.schedule(name, f"@every {wait}m", "mail", 1, anchor=now + timedelta(seconds=1))
        ctx.expect(anchored.next_fire_at, now + timedelta(seconds=1), "a changed anchor restarts the grid")
        await ctx.advance(0.5)
        later = await ctx.now()
        freed = await store.schedule(name, f"@every {wait}m", "mail", 1)
        ctx.expect(freed.next_fire_at, later + timedelta(minutes=wait), "so does an anchor left out")


@row(
    "SCHED-04",
    text="A due boundary enqueues one ordinary job: payload and options as registered, scheduled_for the boundary.",
    oracle="every field of the job that a late tick fired",
    modes=STORED,
    kills=("fire-ignores-options", "fire-at-the-boundary"),
)
async def a_boundary_fires_an_ordinary_job(ctx: Context) -> None:
    name, queue, start = ctx.name("report"), ctx.name("mail"), await ctx.now()
    handle = ctx.store.queue(queue, max_attempts=9, base_delay=1)
    await ctx.store.schedule(
        name, "@every 10s", handle, {"id": 7}, priority=4, visibility_timeout=20, expires=60
    )
    await ctx.advance(12.5)
    ctx.expect(await ctx.store.tick_schedules(), 1, "a due boundary fires one job")
    job = (await fires(await ctx.turn(), queue))[0]
    now = start + timedelta(seconds=12.5)
    times = (job.run_at, job.created_at, job.scheduled_for, job.expires_at)
    expected = (now, now, start + timedelta(seconds=10), now + timedelta(seconds=60))
    ctx.expect(times, expected, "a fire is ready at the tick, for its boundary, and expires from the tick")
    ctx.expect((job.queue, job.payload), (queue, {"id": 7}), "a fire has queue and payload as registered")
    stamps = (job.priority, job.visibility_timeout, job.max_attempts, job.base_delay)
    registered = (4, timedelta(seconds=20), 9, timedelta(seconds=1))
    ctx.expect(stamps, registered, "a fire has the schedule's options over the queue's")
    ctx.expect((job.state, job.attempts), (JobState.PENDING, 0), "a fire is an ordinary job")
    claimed = await ctx.store.queue(queue).claim_one()
    ctx.expect(claimed and claimed.job.id, job.id, "a fire is claimed like any other job")


@row(
    "SCHED-04",
    text="Ids come in the order of boundaries; other jobs have no scheduled_for; by name the plain defaults apply.",
    oracle="five caught-up fires beside a job that was enqueued",
    modes=("plain", "second"),
)
async def fires_come_in_the_order_of_boundaries(ctx: Context) -> None:
    name, queue, start = ctx.name("report"), ctx.name("mail"), await ctx.now()
    mine, other = ctx.store, await ctx.turn()
    await mine.schedule(name, "@every 10s", queue, None)
    await mine.queue(queue).enqueue("ordinary")
    await ctx.advance(50)
    ctx.expect(await mine.tick_schedules(), 5, "each boundary fires")
    jobs = await fires(other, queue)
    expected = [None, *boundaries(start, 10, 1, 2, 3, 4, 5)]
    ctx.expect([job.scheduled_for for job in jobs], expected, "ids come in the order of boundaries")
    last = jobs[-1]
    stamps = (last.priority, last.visibility_timeout, last.max_attempts, last.base_delay, last.expires_at)
    plain = (0, timedelta(seconds=300), 3, timedelta(seconds=5), None)
    ctx.expect(stamps, plain, "with a queue by name the plain defaults apply")


@row(
    "SCHED-07",
    text="A schedule is not fired one microsecond before its boundary, and is at it; one that is not due is untouched.",
    oracle="ticks around the boundary, and the other schedule's record before and after",
    modes=("boundary", "second"),
    kills=("boundary-one-microsecond-late", "not-due-is-moved"),
)
async def only_what_is_due_is_fired(ctx: Context) -> None:
    due, later, queue, start = ctx.name("due"), ctx.name("later"), ctx.name("mail"), await ctx.now()
    mine, other = ctx.store, await ctx.turn()
    await mine.schedule(due, "@every 10s", queue, "due")
    before = _fields(await mine.schedule(later, "@every 15s", queue, "later"))
    await ctx.advance(10 - MICRO)
    ctx.expect(await other.tick_schedules(), 0, "nothing fires one microsecond before its boundary")
    await ctx.advance(MICRO)
    ctx.expect(await other.tick_schedules(), 1, "a schedule fires at its boundary")
    ctx.expect(await other.tick_schedules(), 0, "a boundary fires once")
    ctx.expect(await fired_for(mine, queue), boundaries(start, 10, 1), "what is due fires, and nothing else")
    ctx.expect(_fields(await stored(ctx, mine, later)), before, "a schedule that is not due is untouched")
    moved = (await stored(ctx, mine, due)).next_fire_at
    ctx.expect(moved, start + timedelta(seconds=20), "a fired schedule is at its next boundary")


@row(
    "SCHED-07",
    text="unschedule is True, then False, and nothing fires after it; a schedule written anew starts anew.",
    oracle="a tick past the removed schedule's boundary beside another one",
    modes=STORED,
    kills=("unschedule-only-hides",),
)
async def what_is_unscheduled_fires_no_more(ctx: Context) -> None:
    gone, kept, queue = ctx.name("gone"), ctx.name("kept"), ctx.name("mail")
    await ctx.store.schedule(gone, "@every 10s", queue, "gone")
    await ctx.store.schedule(kept, "@every 10s", queue, "kept")
    ctx.expect(await ctx.store.unschedule(gone), True, "unschedule of a known name is True")
    store = await ctx.turn()
    ctx.expect(await store.unschedule(gone), False, "unschedule of an unknown name is False")
    ctx.expect([each.name for each in await store.schedules()], [kept], "a removed schedule is not listed")
    await ctx.advance(10)
    ctx.expect(await store.tick_schedules(), 1, "a removed schedule fires no more")
    ctx.expect([job.payload for job in await fires(store, queue)], ["kept"], "the other one fires")
    again = await store.schedule(gone, "@every 10s", queue, "again")
    ctx.expect(again.next_fire_at, await ctx.now() + timedelta(seconds=10), "a new schedule starts anew")
