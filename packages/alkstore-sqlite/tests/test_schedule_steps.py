import logging
import sqlite3
from typing import Any

import pytest
from tables import plan

from alkstore.engine import Fired, NewSchedule, ScheduleRecord, Topic, TopicKind
from alkstore.interval import CATCH_UP
from alkstore.numbers import MAX_INSTANT
from alkstore_sqlite import lock, schedule
from alkstore_sqlite.connection import Row, Woken, perform

SCHEDULES = Topic(TopicKind.SCHEDULE)


def rule(
    name: str, every: int = 10, anchor: int | None = None, queue: str = "mail", expires: int | None = None
) -> NewSchedule:
    return NewSchedule(name, f"@every {every}s", every, anchor, queue, b"[1]", 3, 40, 5, 7, expires)


def put(connection: sqlite3.Connection, rule: NewSchedule, now: int) -> int:
    return perform(connection, schedule.put(rule, now)).result.next_fire_at


def fire(connection: sqlite3.Connection, now: int, lease: tuple[str, int] | None = None) -> Fired:
    return perform(connection, schedule.fire(lease, now)).result


def fired(connection: sqlite3.Connection) -> list[tuple[str, int]]:
    rows = connection.execute("SELECT queue, scheduled_for FROM alkstore_job ORDER BY id")
    return rows.fetchall()


# ---------------------------------------------------------------- put, delete, list


def test_a_schedule_reads_back_as_it_was_written(connection: sqlite3.Connection) -> None:
    whole = NewSchedule("n", "@every 10s", 10, 5, "mail", b"\x00", -1, 40, 5, 7, 99)
    change = perform(connection, schedule.put(whole, 100))

    assert change == (ScheduleRecord(whole, 105), (Woken(SCHEDULES),))
    assert perform(connection, schedule.all()) == [ScheduleRecord(whole, 105)]


def test_the_same_grid_keeps_its_next_boundary_and_all_else_is_replaced(
    connection: sqlite3.Connection,
) -> None:
    put(connection, rule("n"), 100)

    assert put(connection, rule("n", queue="other"), 5_000) == 110
    assert [record.rule for record in perform(connection, schedule.all())] == [rule("n", queue="other")]


@pytest.mark.parametrize(
    ("changed", "next_fire_at"),
    [(rule("n", every=20), 170), (rule("n", anchor=0), 160), (rule("n", anchor=1_000), 1_000)],
    ids=["interval", "anchor", "anchor ahead"],
)
def test_another_grid_starts_anew(
    connection: sqlite3.Connection, changed: NewSchedule, next_fire_at: int
) -> None:
    put(connection, rule("n"), 100)

    assert put(connection, changed, 150) == next_fire_at


def test_every_put_and_delete_moves_what_watchers_look_at_and_a_fire_does_not(
    connection: sqlite3.Connection,
) -> None:
    def mark() -> Row:
        sql = "SELECT max(seq), (SELECT count(*) FROM alkstore_schedule) FROM sqlite_sequence WHERE name = ?"
        found: Row = connection.execute(sql, ("alkstore_schedule",)).fetchone()
        return found

    marks = [mark()]
    for steps in (
        schedule.put(rule("n"), 100),
        schedule.put(rule("n"), 100),
        schedule.fire(None, 110),
        schedule.delete("n"),
    ):
        perform(connection, steps)
        marks.append(mark())

    assert marks == [(None, 0), (1, 1), (2, 1), (2, 1), (2, 0)]


def test_a_delete_says_whether_there_was_anything(connection: sqlite3.Connection) -> None:
    put(connection, rule("n"), 100)

    assert perform(connection, schedule.delete("n")) == (True, (Woken(SCHEDULES),))
    assert perform(connection, schedule.delete("n")) == (False, ())
    assert fire(connection, 10_000) == Fired(0, None, True)


def test_schedules_are_listed_by_code_point(connection: sqlite3.Connection) -> None:
    for name in ("b", "\u0101", "a"):
        put(connection, rule(name), 100)

    assert [record.rule.name for record in perform(connection, schedule.all())] == ["a", "b", "\u0101"]


# ---------------------------------------------------------------- fire


def test_what_is_due_becomes_jobs_by_name_and_boundary(connection: sqlite3.Connection) -> None:
    put(connection, rule("z", every=10, queue="slow"), 100)
    put(connection, rule("a", every=15, queue="mail"), 100)
    put(connection, rule("later", every=500), 100)

    change = perform(connection, schedule.fire(None, 130))

    assert change.result == Fired(5, 140, True)
    assert {woken.topic for woken in change.woken} == {
        Topic(TopicKind.QUEUE, "mail"),
        Topic(TopicKind.QUEUE, "slow"),
    }
    assert fired(connection) == [("mail", 115), ("mail", 130), ("slow", 110), ("slow", 120), ("slow", 130)]
    assert fire(connection, 130) == Fired(0, 140, True)


def test_a_fired_job_carries_the_schedules_stamps(connection: sqlite3.Connection) -> None:
    put(connection, rule("n", expires=2**63 - 1), 100)

    fire(connection, 115)

    columns = "payload, headers, priority, run_at, expires_at, attempts, visibility_timeout, max_attempts"
    rows = connection.execute(f"SELECT {columns}, base_delay, created_at, scheduled_for FROM alkstore_job")
    assert rows.fetchall() == [(b"[1]", b"{}", 3, 115, MAX_INSTANT, 0, 40, 5, 7, 115, 110)]


def test_a_boundary_is_due_at_its_instant_and_not_before(connection: sqlite3.Connection) -> None:
    put(connection, rule("n"), 100)

    assert fire(connection, 109) == Fired(0, 110, True)
    assert fire(connection, 110) == Fired(1, 120, True)


def test_a_pass_catches_up_with_64_boundaries_and_skips_the_rest(connection: sqlite3.Connection) -> None:
    put(connection, rule("n"), 100)

    assert fire(connection, 10_005) == Fired(CATCH_UP, 10_010, True)
    assert fired(connection) == [("mail", 110 + 10 * k) for k in range(CATCH_UP)]


@pytest.mark.parametrize(
    "lease", [("leader", 1), ("leader", 2), ("nobody", 1)], ids=["lapsed", "strange", "unknown"]
)
def test_a_lease_that_is_not_live_fires_nothing(
    connection: sqlite3.Connection, lease: tuple[str, int]
) -> None:
    put(connection, rule("n"), 100)
    perform(connection, lock.take("leader", 50, 100))

    assert fire(connection, 150, lease) == Fired(0, 110, False)
    assert fired(connection) == []


def test_a_live_lease_fires(connection: sqlite3.Connection) -> None:
    put(connection, rule("n"), 100)
    perform(connection, lock.take("leader", 50, 100))

    assert fire(connection, 149, ("leader", 1)) == Fired(4, 150, True)


@pytest.mark.parametrize("every", [0, -10, -(2**63)])
def test_a_schedule_that_cannot_fire_is_logged_and_holds_back_no_other(
    connection: sqlite3.Connection, every: int, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "broken", "z"):
        put(connection, rule(name), 100)
    connection.execute("UPDATE alkstore_schedule SET every = ? WHERE name = 'broken'", (every,))

    with caplog.at_level(logging.ERROR, logger="alkstore"):
        result = fire(connection, 110)

    assert result == Fired(2, 120, True)
    assert [record.getMessage() for record in caplog.records] == ["scheduler: schedule 'broken' cannot fire"]
    assert [record.next_fire_at for record in perform(connection, schedule.all())] == [120, 110, 120]


def test_a_schedule_whose_jobs_a_trigger_refuses_is_logged_and_holds_back_no_other(
    connection: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    connection.execute(
        "CREATE TRIGGER refuse BEFORE INSERT ON alkstore_job WHEN NEW.queue = 'bad' "
        "BEGIN SELECT RAISE(ABORT, 'not here'); END"
    )
    for name, queue in (("a", "first"), ("b", "bad"), ("c", "last")):
        put(connection, rule(name, queue=queue), 100)

    answer = fire(connection, 110)

    assert answer == Fired(2, 120, True)
    assert fired(connection) == [("first", 110), ("last", 110)]
    assert [record.message for record in caplog.records] == ["scheduler: schedule 'b' cannot fire"]
    connection.execute("DROP TRIGGER refuse")
    assert fire(connection, 110) == Fired(1, 120, True)


def test_a_schedule_that_alone_cannot_fire_leaves_nothing_ahead(
    connection: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    put(connection, rule("broken"), 100)
    connection.execute("UPDATE alkstore_schedule SET every = 0")

    with caplog.at_level(logging.ERROR, logger="alkstore"):
        assert fire(connection, 110) == Fired(0, None, True)


def test_the_calendars_last_instant_is_never_due(connection: sqlite3.Connection) -> None:
    assert put(connection, rule("n", every=2**62), MAX_INSTANT - 5) == MAX_INSTANT
    assert fire(connection, MAX_INSTANT) == Fired(0, MAX_INSTANT, True)


def test_a_grid_that_leads_out_of_the_calendar_fires_its_last_boundary_once(
    connection: sqlite3.Connection,
) -> None:
    put(connection, rule("n"), MAX_INSTANT - 15)

    assert fire(connection, MAX_INSTANT - 2) == Fired(1, MAX_INSTANT, True)
    assert fire(connection, MAX_INSTANT - 1) == Fired(0, MAX_INSTANT, True)


def test_a_clock_that_steps_back_fires_nothing_twice(connection: sqlite3.Connection) -> None:
    put(connection, rule("n"), 100)

    assert [fire(connection, now).jobs for now in (125, 112, 125, 130)] == [2, 0, 0, 1]


@pytest.mark.parametrize(
    "steps",
    [
        lambda: schedule.put(rule("a"), 100),
        lambda: schedule.delete("a"),
        lambda: schedule.fire(None, 110),
        lambda: schedule.fire(("nobody", 1), 110),
    ],
    ids=["put", "delete", "fire", "fire without a lease"],
)
def test_only_what_is_due_or_named_is_read(connection: sqlite3.Connection, steps: Any) -> None:
    put(connection, rule("a"), 100)
    put(connection, rule("later", every=500), 100)

    details = plan(connection, steps())

    assert [line for line in details if not line.startswith("SEARCH")] == []
