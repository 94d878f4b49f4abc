"""Schedules: rules, their next boundaries, and the jobs that they become."""

import logging
from typing import Final

from alkstore.engine import Fired, JobRecord, NewSchedule, ScheduleRecord, Topic, TopicKind
from alkstore.errors import show
from alkstore.interval import due_boundaries, fired_job, registered
from alkstore_mem.lock import Locks
from alkstore_mem.queue import Queues
from alkstore_mem.state import State

__all__ = ["Schedules"]

LOGGER: Final = logging.getLogger("alkstore")


class Schedules:
    """Every schedule of one store."""

    def __init__(self, state: State, queues: Queues, locks: Locks) -> None:
        self._state = state
        self._queues = queues
        self._locks = locks
        self._records: dict[str, ScheduleRecord] = {}

    def put(self, rule: NewSchedule) -> ScheduleRecord:
        record = registered(rule, self._state.clock.now(), self._records.get(rule.name))
        self._records[rule.name] = record
        self._state.hub.wake(Topic(TopicKind.SCHEDULE))
        return record

    def delete(self, name: str) -> bool:
        was_there = self._records.pop(name, None) is not None
        if was_there:
            self._state.hub.wake(Topic(TopicKind.SCHEDULE))
        return was_there

    def fire(self, lease: tuple[str, int] | None) -> Fired:
        led = lease is None or self._locks.is_live(*lease)
        rows: list[JobRecord] = []
        stuck: set[str] = set()
        if led:
            now = self._state.clock.now()
            for record in self.all():
                try:
                    rows.extend(self._fire_one(record, now))
                except Exception:
                    # Whatever it is, it is this schedule's: the boundaries of the others must not be lost to it.
                    LOGGER.exception("scheduler: schedule %s cannot fire", show(record.rule.name))
                    stuck.add(record.rule.name)
            self._state.wake(self._queues.land(rows, now))
        # A boundary that cannot fire stays due: as the next instant it would keep the runner from ever sleeping.
        ahead = (record.next_fire_at for name, record in self._records.items() if name not in stuck)
        return Fired(len(rows), min(ahead, default=None), led)

    def all(self) -> list[ScheduleRecord]:
        return [record for _, record in sorted(self._records.items())]

    def _fire_one(self, record: ScheduleRecord, now: int) -> list[JobRecord]:
        rule = record.rule
        due = due_boundaries(record.next_fire_at, rule.every, now)
        if not due.boundaries:
            return []
        rows = [self._queues.make(fired_job(rule), now, boundary) for boundary in due.boundaries]
        self._records[rule.name] = ScheduleRecord(rule, due.next_at)
        return rows
