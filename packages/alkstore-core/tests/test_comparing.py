import asyncio
import logging
from collections.abc import Callable, Sequence

import pytest

from alkstore import DatabaseError
from alkstore.comparing import ComparedSchedules, Lease, StoredSchedules
from alkstore.engine import Fired, NewJob, NewSchedule, ScheduleRecord
from alkstore.interval import fired_job

HOUR = 3_600_000_000
RULE = NewSchedule("report", "@every 1h", HOUR, None, "mail", b"[]", 0, 300, 3, 5, None)


class Refused(Exception):
    pass


class Shelf(ComparedSchedules):
    """Keeps texts; before a write something may happen, once."""

    refusals = (Refused,)

    def __init__(self) -> None:
        self.now = 0
        self.texts: dict[str, str] = {}
        self.jobs: list[tuple[NewJob, int]] = []
        self.led = True
        self.spoilt: dict[str, Exception] = {}
        self.meanwhile: Callable[[], object] | None = None

    async def read_schedules(self, lease: Lease) -> StoredSchedules:
        return StoredSchedules(self.now, dict(self.texts), lease is None or self.led)

    async def write_schedule(
        self,
        name: str,
        old: str | None,
        new: str | None,
        jobs: Sequence[NewJob],
        boundaries: Sequence[int],
        lease: Lease,
    ) -> bool:
        happens, self.meanwhile = self.meanwhile, None
        if happens is not None:
            happens()
        if self.texts.get(name) != old or not (lease is None or self.led):
            return False
        if jobs and name in self.spoilt:
            raise DatabaseError("spoilt") from self.spoilt[name]
        self.jobs += zip(jobs, boundaries, strict=True)
        self.texts.pop(name, None)
        if new is not None:
            self.texts[name] = new
        return True


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


async def test_a_schedule_is_written_listed_by_name_and_deleted_once(shelf: Shelf) -> None:
    other = RULE._replace(name="audit", anchor=7, payload=b'"\xc3\xa9"')
    written = [await shelf.put_schedule(rule) for rule in (RULE, other)]

    assert written == [ScheduleRecord(RULE, HOUR), ScheduleRecord(other, 7)]
    assert await shelf.list_schedules() == written[::-1]
    assert [await shelf.delete_schedule("audit") for _ in range(2)] == [True, False]
    assert list(shelf.texts) == ["report"]


async def test_the_same_grid_is_kept_and_another_begins_anew(shelf: Shelf) -> None:
    await shelf.put_schedule(RULE)
    shelf.now = HOUR // 2

    same = await shelf.put_schedule(RULE._replace(payload=b"1"))
    other = await shelf.put_schedule(RULE._replace(every=2 * HOUR))

    assert (same.next_fire_at, other.next_fire_at) == (HOUR, HOUR // 2 + 2 * HOUR)


async def test_what_changed_meanwhile_is_worked_out_again(shelf: Shelf) -> None:
    await shelf.put_schedule(RULE)
    theirs = dict(shelf.texts)
    await shelf.put_schedule(RULE._replace(every=2 * HOUR))
    shelf.meanwhile = lambda: shelf.texts.update(theirs)
    shelf.now = 1

    assert (await shelf.put_schedule(RULE)).next_fire_at == HOUR  # theirs is of the same grid

    shelf.meanwhile = shelf.texts.clear

    assert not await shelf.delete_schedule("report")


async def test_what_is_due_fires_by_its_boundaries_and_moves_on(shelf: Shelf) -> None:
    await shelf.put_schedule(RULE)
    shelf.now = 3 * HOUR + 5

    fired = await shelf.fire_schedules(("lock", 1))

    assert fired == Fired(3, 4 * HOUR, True)
    assert shelf.jobs == [(fired_job(RULE), boundary * HOUR) for boundary in (1, 2, 3)]
    assert await shelf.fire_schedules(None) == Fired(0, 4 * HOUR, True)


async def test_whoever_lost_the_lease_fires_nothing_even_between_look_and_write(shelf: Shelf) -> None:
    await shelf.put_schedule(RULE)
    shelf.now = HOUR
    shelf.meanwhile = lambda: setattr(shelf, "led", False)

    fired = [await asyncio.wait_for(shelf.fire_schedules(("lock", 1)), 5) for _ in range(2)]

    assert fired == [Fired(0, HOUR, False)] * 2
    assert shelf.jobs == []


async def test_a_schedule_that_cannot_fire_is_logged_and_holds_back_no_other(
    shelf: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b", "c"):
        await shelf.put_schedule(RULE._replace(name=name, queue=name))
    shelf.spoilt["b"] = Refused()
    shelf.now = HOUR

    with caplog.at_level(logging.ERROR, "alkstore"):
        fired = await shelf.fire_schedules(None)

    assert fired == Fired(2, 2 * HOUR, True)
    assert [job.queue for job, _ in shelf.jobs] == ["a", "c"]
    assert "'b' cannot fire" in caplog.text


async def test_an_error_that_is_the_storages_is_no_schedules(shelf: Shelf) -> None:
    await shelf.put_schedule(RULE)
    shelf.spoilt["report"] = ConnectionError()
    shelf.now = HOUR

    with pytest.raises(DatabaseError):
        await shelf.fire_schedules(None)
