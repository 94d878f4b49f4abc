"""What each page shows: what it reads when it is asked for, and what of it changes with every look."""

import datetime as dt
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any, Final, NamedTuple

from starlette.datastructures import QueryParams

from alkstore import shown
from alkstore.dashboard import chart
from alkstore.dashboard.chart import Chart, Drawn, Line
from alkstore.dashboard.history import COARSE, FINE, Point, Span, Track
from alkstore.dashboard.look import (
    AGE,
    DEAD,
    DELAYED,
    DONE,
    ENQUEUED,
    FAILED,
    HEAD,
    LIVE,
    NONE,
    PROCESSING,
    READY,
    STALE,
    Look,
)
from alkstore.dashboard.page import CUT, pretty
from alkstore.dashboard.witness import Witness
from alkstore.engine import JobCounts, JobState
from alkstore.errors import InvalidArgument, show
from alkstore.names import PREFIX, SCHEDULER_LOCK
from alkstore.observing import Destination
from alkstore.queue import Queue
from alkstore.store import Store
from alkstore.values import LockInfo

__all__ = ["VIEWS", "Context", "Reader", "Row", "Site", "View", "destination_of", "jobs_of", "number"]

PAGE: Final = 50
"""Jobs of one page of a list."""

SPANS: Final[Mapping[str, Span]] = {"15min": FINE, "6h": COARSE}

SHAPES: Final = ("charts", "table")
"""How the figures over time are shown; the first one unless another is asked for."""

PACE: Final = 60.0
"""Seconds over which rates in tables are taken."""

LATE: Final = 60.0
"""Seconds that a schedule may be late: a runner that takes over needs the lease's 10 s."""

Context = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Site:
    """What all pages are about."""

    store: Store
    look: Look
    witness: Witness | None
    write: bool


@dataclass(frozen=True, slots=True)
class View:
    """One page. ``live`` gives what changes with every look, ``still`` what is read only when the page is asked for."""

    template: str
    title: str
    live: Callable[[Site, QueryParams], Context] | None
    still: Callable[[Site, QueryParams], Awaitable[Context]] | None = None


# ---------------------------------------------------------------- what a query says


def destination_of(query: Mapping[str, str]) -> Destination:
    """Give the queue or outbox that is meant. Raises InvalidArgument."""
    kind, name = query.get("kind", "queue"), query.get("name", "")
    if kind not in ("queue", "outbox"):
        raise InvalidArgument(f"kind must be queue or outbox, got {show(kind)}")
    return Destination(kind, name)


def jobs_of(store: Store, destination: Destination) -> Queue:
    """Give what lists and clears up the jobs. Raises InvalidName, ReservedName."""
    if destination.kind == "outbox":
        return store.outbox(destination.name).jobs
    return store.queue(destination.name)


def number(text: str, what: str) -> int:
    """Read a whole number that a query holds. Raises InvalidArgument."""
    if not text.removeprefix("-").isdecimal() or len(text) > 20:
        raise InvalidArgument(f"{what} must be a whole number, got {show(text)}")
    return int(text)


# ---------------------------------------------------------------- queues


class Row(NamedTuple):
    """A queue in the list."""

    destination: Destination
    counts: JobCounts
    trend: Drawn
    change: float | None
    enqueued: float | None
    done: float | None


def _queues(site: Site, query: QueryParams) -> Context:
    look = site.look
    rows = [_row(look, destination) for destination in sorted(look.queues, key=_order)]
    ages = [row.counts.oldest_ready_age for row in rows if row.counts.oldest_ready_age is not None]
    totals = {state: sum(getattr(row.counts, state) for row in rows) for state in JobCounts._fields[:5]}
    return {
        "rows": rows,
        "totals": totals,
        "oldest": max(ages) / 1_000_000 if ages else None,
        "has_pace": site.witness is not None and site.witness.has_heard,
        "runner": _runner(site),
        "listening": None if site.witness is None else site.witness.listening,
        "is_witnessed": site.witness is not None,
        "has_listener": look.has_listener,
    }


def _order(destination: Destination) -> tuple[bool, str]:
    return destination.kind == "outbox", destination.name


def _row(look: Look, destination: Destination) -> Row:
    track = look.queues.track(destination)
    return Row(
        destination,
        look.seen.queues.get(destination, NONE),
        chart.spark(track.column(LIVE), FINE, look.seen.at),
        track.change(LIVE, PACE),
        track.change(ENQUEUED, PACE),
        track.change(DONE, PACE),
    )


def _queue(site: Site, query: QueryParams) -> Context:
    look, destination = site.look, destination_of(query)
    jobs_of(site.store, destination)  # refuses what is no name
    track = look.queues.track(destination)
    wanted = query.get("span", "15min")
    if wanted not in SPANS:
        raise InvalidArgument(f"span must be one of {', '.join(SPANS)}, got {show(wanted)}")
    shape = query.get("as", SHAPES[0])
    if shape not in SHAPES:
        raise InvalidArgument(f"as must be one of {', '.join(SHAPES)}, got {show(shape)}")
    counts = look.seen.queues.get(destination, NONE)
    change = track.change(LIVE, PACE)
    live = counts.ready + counts.delayed + counts.processing + counts.stale
    return {
        "destination": destination,
        "counts": counts,
        "age": None if counts.oldest_ready_age is None else counts.oldest_ready_age / 1_000_000,
        "change": change,
        "empty_in": live / -change if live and change is not None and change < 0 else None,
        "charts": _charts(site, track, SPANS[wanted]),
        "span": wanted,
        "spans": list(SPANS),
        "shape": shape,
        "shapes": SHAPES,
        "is_read": destination not in look.seen.unread,
    }


def _charts(site: Site, track: Track, span: Span) -> Sequence[tuple[str, Chart, Callable[[float], str]]]:
    points, now = track.points(span), site.look.seen.at
    states = [("ready", READY), ("processing", PROCESSING), ("delayed", DELAYED)]
    if any(point.values[STALE] for point in points):
        states.append(("stale", STALE))
    lines = [Line(name, name, chart.of(points, index)) for name, index in states]
    ages = [(point.at, 0.0 if isnan(point.values[AGE]) else point.values[AGE]) for point in points]
    rates_title, rates = _rates(site, points, max(span.step * 5, 10.0))
    dead = [Line("dead", "dead", chart.of(points, DEAD))]
    return [
        ("Jobs", chart.chart(lines, span, now), chart.short),
        (
            "Age of the oldest ready job",
            chart.chart([Line("oldest", "ready", ages)], span, now, _age, chart.AGES),
            _age,
        ),
        (rates_title, chart.chart(rates, span, now), chart.short),
        ("Dead jobs", chart.chart(dead, span, now), chart.short),
    ]


def _rates(site: Site, points: Sequence[Point], over: float) -> tuple[str, Sequence[Line]]:
    if site.witness is None or not site.witness.has_heard:
        return "Change of the backlog, jobs a second", [
            Line("change", "ready", chart.pace(points, LIVE, over))
        ]
    lines = ("enqueued", ENQUEUED, "ready"), ("done", DONE, "processing"), ("failed", FAILED, "dead")
    return "Jobs a second, in this process", [
        Line(name, kind, chart.pace(points, index, over)) for name, index, kind in lines
    ]


def _age(value: float) -> str:
    return (shown.ago(dt.timedelta(seconds=value)) or "") if value else "–"


async def _listed(site: Site, query: QueryParams) -> Context:
    state, error = query.get("state", ""), query.get("error", "")
    if state not in ("", *(each.value for each in JobState)):
        raise InvalidArgument(
            f"state must be one of {', '.join(each.value for each in JobState)}, got {show(state)}"
        )
    after = number(query.get("after", "0"), "after")
    queue = jobs_of(site.store, destination_of(query))
    found = await queue.list(
        state=JobState(state) if state else None, error=error or None, after=after, limit=PAGE + 1
    )
    done = query.get("done", "")
    return {
        "jobs": found[:PAGE],
        "next": found[PAGE - 1].id if len(found) > PAGE else None,
        "state": state,
        "states": [each.value for each in JobState],
        "error": error,
        "after": after,
        "done": done if done in ("redriven", "purged") else "",
        "count": number(query.get("count", "0"), "count"),
        "more": "more" in query,
    }


async def _job(site: Site, query: QueryParams) -> Context:
    destination, id = destination_of(query), number(query.get("id", ""), "id")
    job = await jobs_of(site.store, destination).get_job(id)
    found: Context = {"destination": destination, "id": id, "job": job, "is_missing": job is None}
    if job is None:
        return found
    text, is_whole = pretty(job)
    failure = job.last_error or job.retry_error or ""
    return found | {
        "payload": text,
        "is_whole": is_whole,
        "failure": failure[:CUT],
        "is_failure_whole": len(failure) <= CUT,
        "headers": dict(job.headers),
    }


# ---------------------------------------------------------------- streams, schedules, locks


class Reader(NamedTuple):
    """A consumer of a stream."""

    consumer: str
    offset: int
    lag: int
    trend: Drawn
    change: float | None


def _streams(site: Site, query: QueryParams) -> Context:
    look, seen = site.look, site.look.seen
    streams = []
    for name, head in sorted(seen.heads.items()):
        readers = []
        for consumer, offset in sorted(seen.offsets[name].items()):
            track = look.lags.track((name, consumer))
            trend = chart.spark(track.column(HEAD), FINE, seen.at)
            readers.append(Reader(consumer, offset, max(head - offset, 0), trend, track.change(HEAD, PACE)))
        streams.append((name, head, look.streams.track(name).change(HEAD, PACE), readers))
    return {"streams": streams}


async def _events(site: Site, query: QueryParams) -> Context:
    stream = site.store.stream(query.get("name", ""))
    head = await stream.head()
    after = number(query["after"], "after") if query.get("after") else max(head - PAGE, 0)
    found = await stream.read_since(after, PAGE + 1)
    events = found[:PAGE]
    first = events[0].offset - 1 if events else min(after, head)
    return {
        "stream": stream.name,
        "head": head,
        "after": after,
        "events": events,
        # Offsets have gaps, so that page may have some of these too.
        "older": max(first - PAGE, 0) if first > 0 else None,
        "newer": events[-1].offset if len(found) > PAGE else None,
    }


async def _event(site: Site, query: QueryParams) -> Context:
    stream, offset = site.store.stream(query.get("name", "")), number(query.get("offset", ""), "offset")
    found = await stream.read_since(offset - 1, 1)
    event = found[0] if found and found[0].offset == offset else None
    context: Context = {"stream": stream.name, "offset": offset, "event": event, "is_missing": event is None}
    if event is None:
        return context
    text, is_whole = pretty(event)
    return context | {"payload": text, "is_whole": is_whole, "headers": dict(event.headers)}


def _schedules(site: Site, query: QueryParams) -> Context:
    return {"schedules": site.look.seen.schedules, "runner": _runner(site), "late": LATE}


def _runner(site: Site) -> LockInfo | None:
    """Give the lease of whoever fires schedules."""
    return next((lock for lock in site.look.seen.locks if lock.name == SCHEDULER_LOCK), None)


def _locks(site: Site, query: QueryParams) -> Context:
    return {"own": PREFIX}


VIEWS: Final[Mapping[str, View]] = {
    "/": View("queues.html", "Queues", _queues),
    "/queue": View("queue.html", "Queue", _queue, _listed),
    "/job": View("job.html", "Job", None, _job),
    "/streams": View("streams.html", "Streams", _streams),
    "/stream": View("stream.html", "Stream", None, _events),
    "/event": View("event.html", "Event", None, _event),
    "/schedules": View("schedules.html", "Schedules", _schedules),
    "/locks": View("locks.html", "Locks", _locks),
}
