import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import asyncpg
import pytest
from hanging import HUNG
from timed import PATIENCE, Timed, timed

from alkstore import DatabaseError
from alkstore.engine import Fired, NewSchedule, ScheduleRecord, Topic, TopicKind
from alkstore.interval import CATCH_UP
from alkstore.numbers import MAX_INSTANT
from alkstore_pg import lock, schedule
from alkstore_pg.session import Session
from alkstore_pg.wake import Woken


@pytest.fixture
async def at(dsn: str) -> AsyncIterator[Timed]:
    async with timed(dsn) as it:
        yield it


def rule(
    name: str, every: int = 10, anchor: int | None = None, queue: str = "mail", expires: int | None = None
) -> NewSchedule:
    return NewSchedule(name, f"@every {every}s", every, anchor, queue, b"[1]", 3, 40, 5, 7, expires)


async def put(at: Timed, rule: NewSchedule, now: int) -> int:
    record = await at.run(lambda on: schedule.put(on, rule, (), PATIENCE), now)
    assert record.rule == rule
    return record.next_fire_at


async def delete(at: Timed, name: str) -> bool:
    return await at.run(lambda on: schedule.delete(on, name, (), PATIENCE))


class Fires:
    """One pass, what it told whom, and what others do after its look and before its statement."""

    def __init__(self, at: Timed, *between: str) -> None:
        self.at = at
        self.between = list(between)
        self.woken: list[Woken] = []

    async def write(self, landing: schedule.Landing, woken: Sequence[Woken]) -> int | None:
        if self.between:
            await self.at.sql(self.between.pop(0))
        self.woken += woken
        return await self.at.pool.run(lambda on: landing(on, [one.topic.name for one in woken]))

    async def run(self, now: int, lease: tuple[str, int] | None = None, patience: int = PATIENCE) -> Fired:
        await self.at.sql("UPDATE {schema}.test_now SET instant = $1", now)
        return await schedule.fire(lease, self.at.pool, self.write, patience)


async def fire(at: Timed, now: int, lease: tuple[str, int] | None = None) -> Fired:
    return await Fires(at).run(now, lease)


async def fired(at: Timed) -> list[tuple[Any, ...]]:
    return await at.sql("SELECT queue, scheduled_for FROM {schema}.job ORDER BY id")


async def take(at: Timed, now: int) -> None:
    await at.run(lambda on: lock.take(on, "leader", 50, PATIENCE), now)


# ---------------------------------------------------------------- put, delete, list


async def test_a_schedule_reads_back_as_it_was_written(at: Timed) -> None:
    whole = NewSchedule("n", "@every 10s", 10, 5, "mail", b"\x00", -1, 40, 5, 7, 99)

    assert await put(at, whole, 100) == 105
    assert await at.run(schedule.all) == [ScheduleRecord(whole, 105)]


async def test_the_same_grid_keeps_its_next_boundary_and_all_else_is_replaced(at: Timed) -> None:
    await put(at, rule("n"), 100)

    assert await put(at, rule("n", queue="other"), 5_000) == 110
    assert [record.rule for record in await at.run(schedule.all)] == [rule("n", queue="other")]


@pytest.mark.parametrize(
    ("changed", "next_fire_at"),
    [(rule("n", every=20), 170), (rule("n", anchor=0), 160), (rule("n", anchor=1_000), 1_000)],
    ids=["interval", "anchor", "anchor ahead"],
)
async def test_another_grid_starts_anew(at: Timed, changed: NewSchedule, next_fire_at: int) -> None:
    await put(at, rule("n"), 100)

    assert await put(at, changed, 150) == next_fire_at


async def test_a_delete_says_whether_there_was_anything(at: Timed) -> None:
    await put(at, rule("n"), 100)

    assert await delete(at, "n")
    assert not await delete(at, "n")
    assert await fire(at, 10_000) == Fired(0, None, True)


async def test_every_put_and_every_delete_of_something_is_told(at: Timed) -> None:
    async with at.listening() as told:
        await at.run(lambda on: schedule.put(on, rule("n"), ["put"], PATIENCE))
        await at.run(lambda on: schedule.delete(on, "n", ["delete"], PATIENCE))
        await at.run(lambda on: schedule.delete(on, "n", ["nothing"], PATIENCE))

        assert await told.texts() == ["put", "delete"]


async def test_schedules_are_listed_by_code_point(at: Timed) -> None:
    for name in ("b", "\u0101", "a"):
        await put(at, rule(name), 100)

    assert [record.rule.name for record in await at.run(schedule.all)] == ["a", "b", "\u0101"]


# ---------------------------------------------------------------- fire


async def test_what_is_due_becomes_jobs_by_name_and_boundary(at: Timed) -> None:
    await put(at, rule("z", every=10, queue="slow"), 100)
    await put(at, rule("a", every=15, queue="mail"), 100)
    await put(at, rule("later", every=500), 100)
    fires = Fires(at)

    assert await fires.run(130) == Fired(5, 140, True)
    assert fires.woken == [Woken(Topic(TopicKind.QUEUE, name)) for name in ("mail", "slow")]
    assert await fired(at) == [("mail", 115), ("mail", 130), ("slow", 110), ("slow", 120), ("slow", 130)]
    assert await fire(at, 130) == Fired(0, 140, True)


@pytest.mark.parametrize(("expires", "expires_at"), [(2**63 - 1, MAX_INSTANT), (5, 120), (None, None)])
async def test_a_fired_job_carries_the_schedules_stamps(
    at: Timed, expires: int | None, expires_at: int | None
) -> None:
    await put(at, rule("n", expires=expires), 100)

    await fire(at, 115)

    columns = "payload, headers, priority, run_at, expires_at, attempts, visibility_timeout, max_attempts"
    rows = await at.sql(f"SELECT {columns}, base_delay, created_at, scheduled_for FROM {{schema}}.job")
    assert rows == [(b"[1]", b"{}", 3, 115, expires_at, 0, 40, 5, 7, 115, 110)]


async def test_a_boundary_is_due_at_its_instant_and_not_before(at: Timed) -> None:
    await put(at, rule("n"), 100)

    assert await fire(at, 109) == Fired(0, 110, True)
    assert await fire(at, 110) == Fired(1, 120, True)


async def test_a_pass_catches_up_with_64_boundaries_and_skips_the_rest(at: Timed) -> None:
    await put(at, rule("n"), 100)

    assert await fire(at, 10_005) == Fired(CATCH_UP, 10_010, True)
    assert await fired(at) == [("mail", 110 + 10 * k) for k in range(CATCH_UP)]


@pytest.mark.parametrize(
    "lease", [("leader", 1), ("leader", 2), ("nobody", 1)], ids=["lapsed", "strange", "unknown"]
)
async def test_a_lease_that_is_not_live_fires_nothing(at: Timed, lease: tuple[str, int]) -> None:
    await put(at, rule("n"), 100)
    await take(at, 100)

    assert await fire(at, 150, lease) == Fired(0, 110, False)
    assert await fired(at) == []


async def test_a_live_lease_fires(at: Timed) -> None:
    await put(at, rule("n"), 100)
    await take(at, 100)

    assert await fire(at, 149, ("leader", 1)) == Fired(4, 150, True)


async def test_a_lease_that_is_lost_after_the_look_fires_nothing(at: Timed) -> None:
    await put(at, rule("n"), 100)
    await take(at, 100)
    fires = Fires(at, "UPDATE {schema}.lock SET fence = 2")

    assert await fires.run(110, ("leader", 1)) == Fired(0, 110, False)
    assert await fired(at) == []


async def test_nobody_takes_the_lease_over_while_its_fires_land(at: Timed) -> None:
    await take(at, 100)
    async with at.transaction() as other:
        fence = await schedule._send(other, (), ("leader", 1), (), PATIENCE)
        assert fence == 0

        with pytest.raises(DatabaseError) as caught:
            await at.run(lambda on: lock.take(on, "leader", 50, 1), 150)

    assert isinstance(caught.value.__cause__, asyncpg.LockNotAvailableError)


async def test_what_another_has_fired_after_the_look_is_not_fired_again(at: Timed) -> None:
    await put(at, rule("n"), 100)
    fires = Fires(at, "UPDATE {schema}.schedule SET next_fire_at = 120")

    assert await fires.run(110) == Fired(0, 120, True)
    assert await fired(at) == []


async def test_what_was_written_anew_after_the_look_is_looked_at_again(at: Timed) -> None:
    await put(at, rule("n"), 100)
    fires = Fires(at, "UPDATE {schema}.schedule SET revision = 99, queue = 'new'")

    assert await fires.run(110) == Fired(1, 120, True)
    assert await fired(at) == [("new", 110)]


async def test_what_is_always_written_anew_is_left_for_a_pass_that_is_to_come_at_once(at: Timed) -> None:
    await put(at, rule("n"), 100)
    fires = Fires(at, *["UPDATE {schema}.schedule SET revision = revision + 1"] * 20)

    assert await fires.run(115) == Fired(0, 110, True)


async def test_what_becomes_due_while_others_fire_is_fired_too(at: Timed) -> None:
    await put(at, rule("n"), 100)
    await put(at, rule("soon", every=11), 100)
    fires = Fires(at, "UPDATE {schema}.test_now SET instant = 111")

    assert await fires.run(110) == Fired(2, 120, True)


async def test_any_number_of_passes_at_once_fire_each_boundary_once(at: Timed) -> None:
    for name in "abcd":
        await put(at, rule(name, queue=name), 100)
    await at.sql("UPDATE {schema}.test_now SET instant = 125")

    async with asyncio.timeout(HUNG):
        passes = await asyncio.gather(
            *(schedule.fire(None, at.pool, Fires(at).write, PATIENCE) for _ in range(8))
        )

    assert sum(one.jobs for one in passes) == 8
    assert {one.next_at for one in passes} == {130}
    assert sorted(await fired(at)) == [(name, boundary) for name in "abcd" for boundary in (110, 120)]


@pytest.mark.parametrize("every", [0, -10, -(2**63)])
async def test_a_schedule_that_cannot_fire_is_logged_and_holds_back_no_other(
    at: Timed, every: int, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "broken", "z"):
        await put(at, rule(name), 100)
    await at.sql("UPDATE {schema}.schedule SET every = $1 WHERE name = 'broken'", every)

    with caplog.at_level(logging.ERROR, logger="alkstore"):
        result = await fire(at, 110)

    assert result == Fired(2, 120, True)
    assert [record.getMessage() for record in caplog.records] == ["scheduler: schedule 'broken' cannot fire"]
    assert [record.next_fire_at for record in await at.run(schedule.all)] == [120, 110, 120]


async def test_a_schedule_whose_jobs_a_trigger_refuses_is_logged_and_holds_back_no_other(
    at: Timed, caplog: pytest.LogCaptureFixture
) -> None:
    await at.sql(
        "CREATE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql "
        "AS $$BEGIN RAISE EXCEPTION 'not here'; END$$"
    )
    await at.sql(
        "CREATE TRIGGER refuse BEFORE INSERT ON {schema}.job FOR EACH ROW WHEN (NEW.queue = 'bad') "
        "EXECUTE FUNCTION {schema}.refuse()"
    )
    for name, queue in (("a", "first"), ("b", "bad"), ("c", "last")):
        await put(at, rule(name, queue=queue), 100)

    assert await fire(at, 110) == Fired(2, 120, True)
    assert await fired(at) == [("first", 110), ("last", 110)]
    assert [record.message for record in caplog.records] == ["scheduler: schedule 'b' cannot fire"]
    await at.sql("DROP TRIGGER refuse ON {schema}.job")
    assert await fire(at, 110) == Fired(1, 120, True)


async def test_a_failure_that_is_no_schedules_is_raised_and_leaves_nothing(at: Timed) -> None:
    for name in "ab":
        await put(at, rule(name), 100)
    async with at.transaction() as other:
        await other.fetch("SELECT FROM {schema}.schedule WHERE name = 'b' FOR UPDATE")

        with pytest.raises(DatabaseError) as caught:
            await Fires(at).run(110, patience=1)

    assert isinstance(caught.value.__cause__, asyncpg.LockNotAvailableError)
    assert await fired(at) == []
    assert await fire(at, 110) == Fired(2, 120, True)


async def test_a_schedule_that_alone_cannot_fire_leaves_nothing_ahead(
    at: Timed, caplog: pytest.LogCaptureFixture
) -> None:
    await put(at, rule("broken"), 100)
    await at.sql("UPDATE {schema}.schedule SET every = 0")

    with caplog.at_level(logging.ERROR, logger="alkstore"):
        assert await fire(at, 110) == Fired(0, None, True)


async def test_the_calendars_last_instant_is_never_due(at: Timed) -> None:
    assert await put(at, rule("n", every=2**51), MAX_INSTANT - 5) == MAX_INSTANT
    assert await fire(at, MAX_INSTANT) == Fired(0, MAX_INSTANT, True)


async def test_a_grid_that_leads_out_of_the_calendar_fires_its_last_boundary_once(at: Timed) -> None:
    await put(at, rule("n"), MAX_INSTANT - 15)

    assert await fire(at, MAX_INSTANT - 2) == Fired(1, MAX_INSTANT, True)
    assert await fire(at, MAX_INSTANT - 1) == Fired(0, MAX_INSTANT, True)


async def test_a_clock_that_steps_back_fires_nothing_twice(at: Timed) -> None:
    await put(at, rule("n"), 100)

    assert [(await fire(at, now)).jobs for now in (125, 112, 125, 130)] == [2, 0, 0, 1]


async def test_only_what_is_due_or_named_is_read(at: Timed) -> None:
    await put(at, rule("a"), 100)

    async def everything(on: Session) -> None:
        for number in range(12):
            await schedule.put(on, rule("a"), (), PATIENCE)
            await schedule.delete(on, str(number), (), PATIENCE)
            look = await schedule._look(on, ("nobody", 1), set())
            assert not look.led
            look = await schedule._look(on, None, set())
            await schedule._send(on, look.fires, None, (), PATIENCE)

    columns = (
        "every, next_fire_at, priority, visibility_timeout, max_attempts, base_delay, spec, queue, payload"
    )
    grow = (
        f"INSERT INTO {{schema}}.schedule (name, {columns}) "
        "SELECT n::text, 10, 1000, 0, 1, 1, 1, '', '', '' FROM generate_series(100, 20000) AS n"
    )
    assert await at.whole_scans("schedule", grow, everything) == {}
