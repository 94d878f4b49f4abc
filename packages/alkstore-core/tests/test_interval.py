import pytest
from hypothesis import given
from hypothesis import strategies as st

from alkstore import interval
from alkstore.engine import NewJob, NewSchedule, ScheduleRecord
from alkstore.errors import InvalidArgument, InvalidSpec
from alkstore.interval import CATCH_UP, LONGEST, Due
from alkstore.numbers import MAX_INSTANT, MIN_INSTANT, shift

INSTANT = st.integers(MIN_INSTANT, MAX_INSTANT)
EVERY = st.integers(1, 60).map(lambda n: n * 1_000_000) | st.integers(1, LONGEST // 1_000_000).map(
    lambda n: n * 1_000_000
)


@pytest.mark.parametrize(
    ("spec", "microseconds"),
    [
        ("@every 1s", 1_000_000),
        ("@every 90m", 5_400_000_000),
        ("@every 24h", 86_400_000_000),
        ("@every 1d", 86_400_000_000),
        ("@every    7s", 7_000_000),
        ("@every 36500d", LONGEST),
        ("@every 876000h", LONGEST),
        ("@every 3153600000s", LONGEST),
    ],
)
def test_a_spec_says_its_interval(spec: str, microseconds: int) -> None:
    assert interval.parse(spec) == microseconds


@pytest.mark.parametrize(
    "spec",
    [
        "",
        " ",
        "* * * * *",
        "@daily",
        "@every",
        "@every ",
        "@every1s",
        "@every 0s",
        "@every 01s",
        "@every +1s",
        "@every -1s",
        "@every 1.5h",
        "@every 1e3s",
        "@every 1_000s",
        "@every 1",
        "@every s",
        "@every 1 s",
        "@every 1w",
        "@every 1ms",
        "@every 1S",
        "@Every 1s",
        "@every\t1s",
        "@every\u00a01s",
        " @every 1s",
        "@every 1s ",
        "@every 1s\n",
        "@every 1h30m",
        "@every \u0663s",
        "@every \uff11s",
        "@every 1\u017f",
        "@every 36501d",
        "@every 876001h",
        "@every 3153600001s",
        "@every " + "9" * 5000 + "s",
    ],
)
def test_anything_else_is_an_invalid_spec(spec: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        interval.parse(spec)

    assert caught.value.spec == spec


@pytest.mark.parametrize("spec", [None, 60, b"@every 1s"])
def test_a_spec_is_a_str(spec: object) -> None:
    with pytest.raises(InvalidArgument, match="schedule spec must be a str"):
        interval.parse(spec)


@given(INSTANT, EVERY)
def test_the_first_boundary_is_one_interval_after_registration(now: int, every: int) -> None:
    assert interval.first_boundary(now, every, None) == shift(now, every)


@given(INSTANT, EVERY, INSTANT)
def test_an_anchored_first_boundary_is_the_first_grid_point_after_now(
    now: int, every: int, anchor: int
) -> None:
    first = interval.first_boundary(now, every, anchor)

    assert first >= anchor
    if first < MAX_INSTANT:
        assert first > now
        assert (first - anchor) % every == 0
        assert first == anchor or first - every <= now


def test_a_boundary_at_now_is_past_for_a_new_anchor() -> None:
    assert interval.first_boundary(100, 10, 100) == 110
    assert interval.first_boundary(99, 10, 100) == 100
    assert interval.first_boundary(125, 10, 100) == 130


@pytest.mark.parametrize(
    ("now", "due"),
    [
        (99, Due((), 100)),
        (100, Due((100,), 110)),
        (109, Due((100,), 110)),
        (110, Due((100, 110), 120)),
        (735, Due(tuple(range(100, 740, 10)), 740)),
        (740, Due(tuple(range(100, 740, 10)), 750)),
        (10_000, Due(tuple(range(100, 740, 10)), 10_010)),
        (10_001, Due(tuple(range(100, 740, 10)), 10_010)),
    ],
)
def test_missed_boundaries_fire_oldest_first_up_to_64_and_the_rest_is_skipped(now: int, due: Due) -> None:
    assert interval.due_boundaries(100, 10, now) == due


@given(INSTANT, EVERY, INSTANT)
def test_every_pass_keeps_the_grid_and_ends_after_now(next_fire_at: int, every: int, now: int) -> None:
    due = interval.due_boundaries(next_fire_at, every, now)

    assert len(due.boundaries) <= CATCH_UP
    assert all(boundary <= now for boundary in due.boundaries)
    assert due.boundaries == tuple(next_fire_at + k * every for k in range(len(due.boundaries)))
    assert due.next_at > now or due.next_at == MAX_INSTANT
    assert due.next_at == MAX_INSTANT or (due.next_at - next_fire_at) % every == 0
    if len(due.boundaries) < CATCH_UP and due.next_at != MAX_INSTANT:
        assert due.next_at == next_fire_at + len(due.boundaries) * every


def test_a_schedule_whose_next_boundary_leaves_the_calendar_fires_no_more() -> None:
    last = interval.due_boundaries(MAX_INSTANT - 5, 10, MAX_INSTANT - 1)

    assert last == Due((MAX_INSTANT - 5,), MAX_INSTANT)
    assert interval.due_boundaries(last.next_at, 10, MAX_INSTANT) == Due((), MAX_INSTANT)


RULE = NewSchedule("report", "@every 10s", 10, 5, "mail", b"[]", 2, 300, 3, 7, 60)


@pytest.mark.parametrize(
    ("old", "next_fire_at"),
    [
        (None, 105),
        (RULE._replace(payload=b"1", spec="@every  10s"), 42),
        (RULE._replace(every=20), 105),
        (RULE._replace(anchor=None), 105),
    ],
)
def test_a_schedule_written_again_keeps_its_boundary_as_long_as_its_grid_is_the_same(
    old: NewSchedule | None, next_fire_at: int
) -> None:
    before = None if old is None else ScheduleRecord(old, 42)

    assert interval.registered(RULE, 95, before) == ScheduleRecord(RULE, next_fire_at)


def test_the_job_of_a_boundary_is_ready_at_once_and_has_the_schedules_stamps() -> None:
    assert interval.fired_job(RULE) == NewJob("mail", b"[]", b"{}", 2, None, None, 300, 3, 7, 60)
