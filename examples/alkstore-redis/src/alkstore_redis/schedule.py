"""Schedules: worked out here, by core's arithmetic, and written only if what they were worked out from is still stored."""

import json
import logging
from collections.abc import Sequence
from typing import Final

from redis.exceptions import ResponseError

from alkstore.engine import Fired, NewJob, NewSchedule, ScheduleRecord
from alkstore.errors import DatabaseError, show
from alkstore.interval import due_boundaries, first_boundary
from alkstore_redis.queue import packed
from alkstore_redis.state import Area, number, text

__all__ = ["Schedules"]

LOGGER: Final = logging.getLogger("alkstore")
NO_LEASE: Final = (False, False)


def _stored(record: ScheduleRecord) -> str:
    rule = record.rule._replace(payload=record.rule.payload.decode())  # type: ignore[arg-type]  # text, in this text
    return json.dumps((*rule, record.next_fire_at))


def _read(stored: str) -> ScheduleRecord:
    *values, next_fire_at = json.loads(stored)
    rule = NewSchedule(*values)
    return ScheduleRecord(rule._replace(payload=rule.payload.encode()), next_fire_at)  # type: ignore[attr-defined]


class Schedules(Area):
    """Everything about schedules."""

    async def put_schedule(self, schedule: NewSchedule) -> ScheduleRecord:
        while True:
            now, stored, _ = await self._load(NO_LEASE)
            found = stored.get(schedule.name)
            old = None if found is None else _read(found)
            if old is not None and (old.rule.every, old.rule.anchor) == (schedule.every, schedule.anchor):
                next_fire_at = old.next_fire_at
            else:
                next_fire_at = first_boundary(now, schedule.every, schedule.anchor)
            record = ScheduleRecord(schedule, next_fire_at)
            if await self._state.run("put_schedule", schedule.name, found or False, _stored(record)):
                return record

    async def delete_schedule(self, name: str) -> bool:
        while (found := (await self._load(NO_LEASE))[1].get(name)) is not None:
            if await self._state.run("put_schedule", name, found, False):
                return True
        return False

    async def fire_schedules(self, lease: tuple[str, int] | None) -> Fired:
        given = NO_LEASE if lease is None else (lease[0], text(lease[1]))
        jobs, stuck = 0, set[str]()
        while True:
            now, stored, is_led = await self._load(given)
            ahead = {name: _read(found) for name, found in stored.items() if name not in stuck}
            due = {name: _fire(record, now) for name, record in ahead.items() if record.next_fire_at <= now}
            due = {name: fire for name, fire in due.items() if fire[1]}
            if not (due and is_led):
                next_at = min((record.next_fire_at for record in ahead.values()), default=None)
                return Fired(jobs, next_at, is_led)
            for name, fire in sorted(due.items()):
                try:
                    # Changed meanwhile, or the lease lost: the next look tells.
                    done = await self._state.run("fire_schedule", name, stored[name], *fire, *given)
                    jobs += len(fire[1]) * (done == "fired")
                except DatabaseError as error:
                    if not isinstance(error.__cause__, ResponseError):
                        raise
                    # The boundaries of the others must not be lost to what is this one's: its queue's keys, say.
                    LOGGER.exception("scheduler: schedule %s cannot fire", show(name))
                    stuck.add(name)

    async def list_schedules(self) -> Sequence[ScheduleRecord]:
        _, stored, _ = await self._load(NO_LEASE)
        return [_read(found) for _, found in sorted(stored.items())]

    async def _load(self, lease: tuple[object, object]) -> tuple[int, dict[str, str], bool]:
        now, flat, is_led = await self._state.run("list_schedules", *lease)
        return (
            number(now),
            {flat[at]: flat[at + 1] for at in range(0, len(flat), 2)},
            bool(is_led),
        )


def _fire(record: ScheduleRecord, now: int) -> tuple[str, list[str], list[object]]:
    """Give what is to be stored, the boundaries, and the job of each."""
    rule = record.rule
    due = due_boundaries(record.next_fire_at, rule.every, now)
    job = NewJob(
        rule.queue, rule.payload, b"{}", rule.priority, None, None,
        rule.visibility_timeout, rule.max_attempts, rule.base_delay, rule.expires,
    )  # fmt: skip
    return _stored(ScheduleRecord(rule, due.next_at)), [text(at) for at in due.boundaries], packed(job)
