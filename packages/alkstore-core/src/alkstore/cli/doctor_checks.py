"""What can be found out about any storage, whatever its engine."""

import asyncio
import shlex
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from alkstore import numbers
from alkstore.cli.jobs import chosen
from alkstore.cli.output import ago, many
from alkstore.cli.queues import count
from alkstore.clock import SystemClock
from alkstore.diagnosis import Finding
from alkstore.engine import JobState, NewWake, Signal, Topic, TopicKind
from alkstore.names import PREFIX, SCHEDULER_LOCK
from alkstore.store import Store

__all__ = ["Limits", "checks"]

CHANNEL: Final = f"{PREFIX}doctor"

WAKE_LIMIT: Final = 5.0
"""Seconds that a wake may take; it takes milliseconds."""

CLAIMS: Final = 1_000
"""Claims of one queue that are looked at."""

OVERDUE: Final = 60_000_000
"""Microseconds that a schedule may be late: a runner that takes over needs the lease's 10 s."""

ROUND_TRIPS: Final = 5


@dataclass(frozen=True, slots=True)
class Limits:
    """What is still no finding.

    Attributes:
        oldest: Seconds that a job may be ready without being claimed.
        dead: Dead jobs of one queue.
        lapsed: Seconds that a claim may be past its end without being claimed again.
    """

    oldest: float
    dead: int
    lapsed: float = 60.0


async def checks(
    store: Store, limits: Limits, offset: float
) -> AsyncGenerator[Finding | tuple[str, object], None]:
    """Give facts, as a name and a value, and findings, as they are found.

    Args:
        offset: Seconds by which the storage's clock is ahead of ours.
    """
    yield "round-trip-ms", round(await _round_trip(store) * 1_000, 2)
    latency = await _wake(store)
    yield "wake-ms", None if latency is None else round(latency * 1_000, 2)
    if latency is None:
        yield Finding(
            "listener",
            f"a wake did not come through within {WAKE_LIMIT:g} s",
            "workers find new jobs by polling alone; look at what is between here and the storage (a pooler that does "
            "not carry LISTEN, a network file system)",
        )
    now = SystemClock().now() + round(offset * 1_000_000)
    for looking in (_queues(store, limits, now), _schedules(store, now)):
        async with aclosing(looking) as found:
            async for each in found:
                yield each


async def _round_trip(store: Store) -> float:
    times = []
    for _ in range(ROUND_TRIPS):
        began = time.perf_counter()
        await store.locks()
        times.append(time.perf_counter() - began)
    return sorted(times)[ROUND_TRIPS // 2]


async def _wake(store: Store) -> float | None:
    """Seconds that a wake takes from us to ourselves; None if none came."""
    # By the seam, for no name of alkstore's own is open to users, and none of theirs is to be woken.
    async with store._watching(Topic(TopicKind.CHANNEL, CHANNEL)) as watch:
        began = time.perf_counter()
        await store._engine.notify((NewWake(CHANNEL, None),))
        try:
            async with asyncio.timeout(WAKE_LIMIT):
                while await watch.wait() is not Signal.WOKEN:
                    pass
        except TimeoutError:
            return None
        return time.perf_counter() - began


async def _queues(
    store: Store, limits: Limits, now: int
) -> AsyncGenerator[Finding | tuple[str, object], None]:
    counted = await count(store)
    yield "queues", sum(kind == "queue" for kind, _, _ in counted)
    yield "jobs", sum(s.ready + s.delayed + s.processing + s.stale + s.dead for _, _, s in counted)
    for kind, name, stats in counted:
        what = f"{kind} {name!r}"
        age = stats.oldest_ready_age
        if age is not None and age.total_seconds() > limits.oldest:
            yield Finding(
                "waiting",
                f"{what}: {many(stats.ready, 'ready job')}, the oldest for {ago(age)}",
                "run a worker for it, or more of them; alkstore jobs shows what waits",
            )
        if stats.dead > limits.dead:
            option = " --outbox" if kind == "outbox" else ""
            yield Finding(
                "dead",
                f"{what}: {many(stats.dead, 'dead job')}",
                f"alkstore dead list {shlex.quote(name)}{option} says why they died; then redrive or purge them",
            )
        if stats.stale:
            yield Finding(
                "stale",
                f"{what}: {many(stats.stale, 'job')} past the time to expire or out of attempts",
                "a worker moves them to the dead once a minute; is one running?",
                is_problem=False,
            )
        lapsed = await _lapsed(store, name, kind == "outbox", now, limits)
        if lapsed:
            yield Finding(
                "stuck-claims",
                f"{what}: {many(lapsed, 'claim')} ended without being taken over",
                "their worker was killed and no other one is running: start one; nothing is lost",
            )


async def _lapsed(store: Store, name: str, outbox: bool, now: int, limits: Limits) -> int:
    held = await chosen(store, name, outbox).list(state=JobState.PROCESSING, limit=CLAIMS)
    end = numbers.to_datetime(now - round(limits.lapsed * 1_000_000))
    return sum(job.deadline is not None and job.deadline < end for job in held)


async def _schedules(store: Store, now: int) -> AsyncGenerator[Finding | tuple[str, object], None]:
    schedules = await store.schedules()
    leases = [lock for lock in await store.locks() if lock.name == SCHEDULER_LOCK]
    yield "schedules", len(schedules)
    yield "scheduler-lease-until", leases[0].expires_at if leases else None
    late = [each.name for each in schedules if each.next_fire_at < numbers.to_datetime(now - OVERDUE)]
    for finding in _of_schedules(len(schedules), late, bool(leases)) if schedules else ():
        yield finding


def _of_schedules(count: int, late: list[str], is_led: bool) -> Iterator[Finding]:
    if not is_led:
        yield Finding(
            "no-scheduler",
            f"nobody leads, so {many(count, 'schedule')} will not fire",
            "run a worker with schedules=True, or supervise_schedules",
        )
    elif late:
        names = ", ".join(late[:5]) + (", …" if len(late) > 5 else "")
        yield Finding(
            "late-schedules",
            f"{many(len(late), 'schedule')} overdue although somebody leads: {names}",
            "the log of the process that leads says why they cannot be fired",
        )
