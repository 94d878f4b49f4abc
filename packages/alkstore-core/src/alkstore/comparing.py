"""Schedules on a storage that compares and sets: worked out here, and written only if nothing has changed meanwhile.

State model. The storage keeps a text of each schedule, which only this file reads. A change names the text that it was worked
out from, and the storage makes it if that is what it still has, in one step with what else belongs to it: the jobs, and the
check of the lease. If it does not, everything is worked out again from what is stored now.
"""

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, NamedTuple

from alkstore.document import document, reader
from alkstore.engine import Fired, NewJob, NewSchedule, ScheduleRecord
from alkstore.errors import DatabaseError, show
from alkstore.interval import Due, due_boundaries, fired_job, registered

__all__ = ["ComparedSchedules", "Lease", "StoredSchedules"]

LOGGER: Final = logging.getLogger("alkstore")

Lease = tuple[str, int] | None
"""A lock's name and fence."""


class StoredSchedules(NamedTuple):
    """The texts by name, the instant of the look, and whether the lease was live then (True where none was given)."""

    now: int
    texts: Mapping[str, str]
    led: bool


class ComparedSchedules(ABC):
    """`alkstore.engine.ScheduleEngine` over two operations of the storage.

    Attributes:
        refusals: What the driver raises when the storage refuses what was to be written, whatever state it is in.
    """

    refusals: ClassVar[tuple[type[Exception], ...]] = ()

    @abstractmethod
    async def read_schedules(self, lease: Lease) -> StoredSchedules:
        """Look at all of them, in one step. Never writes."""

    @abstractmethod
    async def write_schedule(
        self,
        name: str,
        old: str | None,
        new: str | None,
        jobs: Sequence[NewJob],
        boundaries: Sequence[int],
        lease: Lease,
    ) -> bool:
        """Store ``new`` (None: delete) if ``old`` (None: nothing) is stored and the lease is live; else give False.

        In the same step insert ``jobs``, each with its ``scheduled_for``, and wake their queue; without any wake the
        SCHEDULE topic.
        """

    async def put_schedule(self, schedule: NewSchedule) -> ScheduleRecord:
        while True:
            now, texts, _ = await self.read_schedules(None)
            old = texts.get(schedule.name)
            record = registered(schedule, now, None if old is None else _read(old))
            if await self.write_schedule(schedule.name, old, _text(record), (), (), None):
                return record

    async def delete_schedule(self, name: str) -> bool:
        while (old := (await self.read_schedules(None)).texts.get(name)) is not None:
            if await self.write_schedule(name, old, None, (), (), None):
                return True
        return False

    async def fire_schedules(self, lease: Lease) -> Fired:
        jobs, stuck = 0, set[str]()
        while True:
            now, texts, led = await self.read_schedules(lease)
            ahead = {name: _read(text) for name, text in sorted(texts.items()) if name not in stuck}
            due = {name: record for name, record in ahead.items() if _due(record, now).boundaries}
            if not (due and led):
                next_at = min((record.next_fire_at for record in ahead.values()), default=None)
                return Fired(jobs, next_at, led)
            for name, record in due.items():
                try:
                    jobs += await self._fire(texts[name], record, now, lease)
                except DatabaseError as error:
                    if not isinstance(error.__cause__, self.refusals):
                        raise
                    # The boundaries of the others must not be lost to what is this one's: its queue, say.
                    LOGGER.exception("scheduler: schedule %s cannot fire", show(name))
                    stuck.add(name)

    async def list_schedules(self) -> Sequence[ScheduleRecord]:
        texts = (await self.read_schedules(None)).texts
        return [_read(text) for _, text in sorted(texts.items())]

    async def _fire(self, old: str, record: ScheduleRecord, now: int, lease: Lease) -> int:
        boundaries, next_at = _due(record, now)
        jobs = [fired_job(record.rule)] * len(boundaries)
        new = _text(ScheduleRecord(record.rule, next_at))
        # Changed meanwhile, or the lease lost: nothing was fired, and the next look tells.
        return len(jobs) * await self.write_schedule(record.rule.name, old, new, jobs, boundaries, lease)


def _due(record: ScheduleRecord, now: int) -> Due:
    return due_boundaries(record.next_fire_at, record.rule.every, now)


def _text(record: ScheduleRecord) -> str:
    return json.dumps(document(record, int))


def _read(text: str) -> ScheduleRecord:
    record: ScheduleRecord = reader(ScheduleRecord, int)(json.loads(text))
    return record
