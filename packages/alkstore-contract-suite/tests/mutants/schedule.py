"""Engines that fire at the wrong time, twice or off the grid, and runners that lead when they must not."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

from mutant import Patch, mutant

from alkstore import Closed, LeadershipLost, StopToken, interval
from alkstore import lock as locking
from alkstore import schedule as running
from alkstore.engine import (
    Fired,
    JobRecord,
    NewSchedule,
    ScheduleRecord,
    Signal,
    Taken,
    Topic,
    TopicKind,
)
from alkstore.interval import Due
from alkstore.names import SCHEDULER_LOCK
from alkstore.numbers import shift
from alkstore.pausing import Pause
from alkstore_mem import schedule as mem_schedule
from alkstore_mem.engine import MemEngine
from alkstore_mem.lock import _Lease
from alkstore_mem.schedule import Schedules

FireOne: TypeAlias = Callable[[Schedules, ScheduleRecord, int], list[JobRecord]]


class Looking(MemEngine):
    """An honest engine whose faulty children look at schedules and change them behind its back."""

    @property
    def rules(self) -> dict[str, ScheduleRecord]:
        return self._schedules._records

    def now(self) -> int:
        return self._state.clock.now()


# ---------------------------------------------------------------- writing


@mutant("upsert-keeps-the-old-queue", kills="SCHED-01")
class UpsertKeepsTheOldQueue(Looking):
    async def put_schedule(self, schedule: NewSchedule) -> ScheduleRecord:
        old = self.rules.get(schedule.name)
        return await super().put_schedule(
            schedule if old is None else schedule._replace(queue=old.rule.queue)
        )


@mutant("spec-may-end-in-a-newline", kills="SCHED-02")
def spec_may_end_in_a_newline(patch: Patch) -> None:
    original = interval.parse
    patch.attribute(interval, "parse", lambda spec: original(spec.removesuffix("\n")))


@mutant("anchor-may-be-the-boundary-now", kills="SCHED-03")
def anchor_may_be_the_boundary_now(patch: Patch) -> None:
    original = interval.first_boundary

    def first_boundary(now: int, every: int, anchor: int | None) -> int:
        return now if anchor == now else original(now, every, anchor)

    patch.attribute(interval, "first_boundary", first_boundary)


@mutant("re-registration-resets-the-grid", kills="SCHED-03")
class ReRegistrationResetsTheGrid(Looking):
    async def put_schedule(self, schedule: NewSchedule) -> ScheduleRecord:
        self.rules.pop(schedule.name, None)
        return await super().put_schedule(schedule)


@mutant("changed-interval-keeps-the-grid", kills="SCHED-03")
class ChangedIntervalKeepsTheGrid(Looking):
    async def put_schedule(self, schedule: NewSchedule) -> ScheduleRecord:
        old = self.rules.get(schedule.name)
        new = await super().put_schedule(schedule)
        if old is not None:
            new = self.rules[schedule.name] = new._replace(next_fire_at=old.next_fire_at)
        return new


@mutant("unschedule-only-hides", kills="SCHED-07")
class UnscheduleOnlyHides(Looking):
    def hidden(self) -> set[str]:
        found: set[str] = self.__dict__.setdefault("gone", set())
        return found

    async def put_schedule(self, schedule: NewSchedule) -> ScheduleRecord:
        self.hidden().discard(schedule.name)
        return await super().put_schedule(schedule)

    async def delete_schedule(self, name: str) -> bool:
        was_there = name in self.rules and name not in self.hidden()
        self.hidden().add(name)
        return was_there

    async def list_schedules(self) -> list[ScheduleRecord]:
        return [each for each in await super().list_schedules() if each.rule.name not in self.hidden()]


@mutant("new-schedule-wakes-nobody", kills="SCHED-12")
class NewScheduleWakesNobody(Looking):
    async def put_schedule(self, schedule: NewSchedule) -> ScheduleRecord:
        topic, watches = Topic(TopicKind.SCHEDULE), self._state.hub._watches
        hearing = watches.pop(topic, None)
        try:
            return await super().put_schedule(schedule)
        finally:
            if hearing is not None:
                watches[topic] = hearing


# ---------------------------------------------------------------- firing


def _firing(name: str, kills: str, wide: str = "") -> Callable[[Callable[[FireOne], FireOne]], None]:
    """Declare a mutant that fires one schedule in its own way; it is given the honest one."""

    def declare(make: Callable[[FireOne], FireOne]) -> None:
        def plant(patch: Patch) -> None:
            patch.attribute(Schedules, "_fire_one", make(Schedules._fire_one))

        mutant(name, kills=kills, wide=wide)(plant)

    return declare


@_firing("fire-ignores-options", "SCHED-04")
def fire_ignores_options(honest: FireOne) -> FireOne:
    def fire(schedules: Schedules, record: ScheduleRecord, now: int) -> list[JobRecord]:
        return [row._replace(priority=0, max_attempts=3) for row in honest(schedules, record, now)]

    return fire


@_firing("fire-at-the-boundary", "SCHED-04")
def fire_at_the_boundary(honest: FireOne) -> FireOne:
    def fire(schedules: Schedules, record: ScheduleRecord, now: int) -> list[JobRecord]:
        return [row._replace(run_at=row.scheduled_for or 0) for row in honest(schedules, record, now)]

    return fire


@_firing("boundary-one-microsecond-late", "SCHED-07")
def boundary_one_microsecond_late(honest: FireOne) -> FireOne:
    def fire(schedules: Schedules, record: ScheduleRecord, now: int) -> list[JobRecord]:
        return [] if now == record.next_fire_at else honest(schedules, record, now)

    return fire


@_firing("not-due-is-moved", "SCHED-07", wide="whatever ticks twice")
def not_due_is_moved(honest: FireOne) -> FireOne:
    def fire(schedules: Schedules, record: ScheduleRecord, now: int) -> list[JobRecord]:
        if record.next_fire_at > now:
            schedules._records[record.rule.name] = record._replace(next_fire_at=now + record.rule.every)
        return honest(schedules, record, now)

    return fire


@_firing("fires-twice-after-a-step-back", "SCHED-14")
def fires_twice_after_a_step_back(honest: FireOne) -> FireOne:
    def fire(schedules: Schedules, record: ScheduleRecord, now: int) -> list[JobRecord]:
        ahead = (record.next_fire_at - now - 1) // record.rule.every
        if ahead > 0:
            record = record._replace(next_fire_at=record.next_fire_at - ahead * record.rule.every)
            schedules._records[record.rule.name] = record
        return honest(schedules, record, now)

    return fire


@mutant("fire-then-advance", kills=("SCHED-05", "SCHED-08"))
class FireThenAdvance(Looking):
    async def fire_schedules(self, lease: tuple[str, int] | None) -> Fired:
        before = dict(self.rules)
        fired = await super().fire_schedules(lease)
        advanced = dict(self.rules)
        self.rules.update(before)
        await asyncio.sleep(0)
        self.rules.update(advanced)
        return fired


@mutant("tick-counts-schedules", kills="SCHED-08")
class TickCountsSchedules(Looking):
    async def fire_schedules(self, lease: tuple[str, int] | None) -> Fired:
        before = dict(self.rules)
        fired = await super().fire_schedules(lease)
        return fired._replace(jobs=sum(before[name] != record for name, record in self.rules.items()))


@mutant("catch-up-of-65", kills="SCHED-06")
def catch_up_of_65(patch: Patch) -> None:
    patch.attribute(interval, "CATCH_UP", 65)


@mutant("catch-up-without-a-cap", kills="SCHED-06")
def catch_up_without_a_cap(patch: Patch) -> None:
    patch.attribute(interval, "CATCH_UP", 10**9)


def _advancing(name: str, next_at: Callable[[Due, int, int], int]) -> None:
    """Declare a mutant that goes on at an instant of its own."""

    def plant(patch: Patch) -> None:
        original = interval.due_boundaries

        def due_boundaries(next_fire_at: int, every: int, now: int) -> Due:
            due = original(next_fire_at, every, now)
            return due._replace(next_at=next_at(due, every, now)) if due.boundaries else due

        patch.attribute(mem_schedule, "due_boundaries", due_boundaries)

    mutant(name, kills="SCHED-06")(plant)


def _is_capped(due: Due, every: int) -> bool:
    return due.boundaries[-1] + every < due.next_at


_advancing(
    "skip-off-the-grid", lambda due, every, now: now + every if _is_capped(due, every) else due.next_at
)
_advancing("skip-into-the-past", lambda due, every, now: due.boundaries[-1] + every)
_advancing("fires-drift", lambda due, every, now: now + every)


# ---------------------------------------------------------------- leading


@mutant("clean-stop-keeps-the-lease", kills=("SCHED-09", "SCHED-11"))
class CleanStopKeepsTheLease(Looking):
    async def renew_lock(self, name: str, fence: int, ttl: int) -> int | None:
        return None if not ttl and name == SCHEDULER_LOCK else await super().renew_lock(name, fence, ttl)


@mutant("runner-renews-too-late", kills="SCHED-09")
def runner_renews_too_late(patch: Patch) -> None:
    patch.attribute(running, "RENEWAL", 5_000_000)


@mutant("runners-of-a-store-share-the-lease", kills="SCHED-09")
def runners_of_a_store_share_the_lease(patch: Patch) -> None:
    original = locking.take

    async def take(store: Any, name: str, ttl: int) -> Taken:
        taken = await original(store, name, ttl)
        held = {record.name: record.fence for record in await store._engine.list_locks()}
        return taken._replace(fence=held[name])

    patch.attribute(running, "take", take)


@mutant("refused-leader-ticks-once", kills="SCHED-10")
def refused_leader_ticks_once(patch: Patch) -> None:
    original = locking.take

    async def take(store: Any, name: str, ttl: int) -> Taken:
        taken = await original(store, name, ttl)
        if taken.fence is None:
            await store._engine.fire_schedules(None)
        return taken

    patch.attribute(running, "take", take)


@mutant("deposed-leader-fires", kills="SCHED-10")
def deposed_leader_fires(patch: Patch) -> None:
    original = running._Runner._tick

    async def tick(runner: Any) -> int:
        try:
            return await original(runner)
        except LeadershipLost:
            await runner._engine.fire_schedules(None)
            raise

    patch.attribute(running._Runner, "_tick", tick)


@mutant("lapsed-lease-is-revived", kills="SCHED-10")
class LapsedLeaseIsRevived(Looking):
    async def renew_lock(self, name: str, fence: int, ttl: int) -> int | None:
        lease = self._locks._leases.get(name)
        if name == SCHEDULER_LOCK and ttl and lease and lease.fence == fence and lease.expires_at:
            self._locks._leases[name] = _Lease(fence, self.now() + ttl)
        return await super().renew_lock(name, fence, ttl)


@mutant("fire-ignores-the-lease", kills="SCHED-10")
class FireIgnoresTheLease(Looking):
    async def fire_schedules(self, lease: tuple[str, int] | None) -> Fired:
        # Way to the storage, which is no fault; what is one is that the lease is not looked at there.
        for _ in range(3):
            await asyncio.sleep(0)
        return await super().fire_schedules(None)


@mutant("runner-renews-in-the-background", kills="SCHED-15")
def runner_renews_in_the_background(patch: Patch) -> None:
    original = running._run_leading

    async def renew(store: Any, fence: int) -> None:
        async with store._watching(Topic(TopicKind.CLOCK)) as watch:
            while (end := await store._engine.renew_lock(SCHEDULER_LOCK, fence, running.LEASE)) is not None:
                if await watch.wait(until=shift(end, running.RENEWAL - running.LEASE)) is Signal.CLOSED:
                    return

    async def run_leading(store: Any, fence: int, lease_end: int, stop: StopToken) -> None:
        renewing = asyncio.ensure_future(renew(store, fence))
        try:
            await original(store, fence, lease_end, stop)
        finally:
            renewing.cancel()

    patch.attribute(running, "_run_leading", run_leading)


@mutant("cancelled-runner-keeps-the-lease", kills="SCHED-11")
def cancelled_runner_keeps_the_lease(patch: Patch) -> None:
    async def run_leading(store: Any, fence: int, lease_end: int, stop: StopToken) -> None:
        with store._inside:
            try:
                await running._Runner(store, fence, lease_end, stop).run()
            except Closed:
                return
            await store._engine.renew_lock(SCHEDULER_LOCK, fence, 0)

    patch.attribute(running, "_run_leading", run_leading)


class _DeafPause(Pause):
    async def wait(self, watch: Any, *, until: Any = None, timeout: Any = None, stop: Any = None) -> Any:
        return await super().wait(watch, until=until, timeout=timeout)


@mutant("stop-waits-for-the-boundary", kills="SCHED-11", wide="whatever stops a runner")
def stop_waits_for_the_boundary(patch: Patch) -> None:
    patch.attribute(running, "Pause", _DeafPause)


@mutant("standby-gives-up", kills="SCHED-13")
def standby_gives_up(patch: Patch) -> None:
    async def supervise(store: Any, stop: StopToken) -> None:
        try:
            await running.run(store, stop)
        except LeadershipLost:
            return

    patch.attribute(running, "supervise", supervise)
