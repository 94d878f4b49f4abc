import datetime as dt
import fractions
import math
import zoneinfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alkstore import numbers
from alkstore.errors import InvalidArgument
from alkstore.numbers import MAX_INSTANT, MAX_INT64, MIN_INSTANT, MIN_INT64

NO_DURATIONS = [True, False, "5", b"6", None, math.nan, math.inf, -math.inf, 2**63, -(2**63) - 1, 1j, [5]]
INT64 = st.integers(MIN_INT64, MAX_INT64)


@pytest.mark.parametrize(
    ("value", "microseconds"),
    [
        (0, 0),
        (5, 5_000_000),
        (-1, -1_000_000),
        (0.5, 500_000),
        (1e-6, 1),
        (1e-7, 0),
        (1 / 128, 7_812),  # ties go to the even one
        (3 / 128, 23_438),
        (-1e-7, 0),
        (1.0000015, 1_000_001),  # the float is a little less than what is written
        (dt.timedelta(days=1, microseconds=1), 86_400_000_001),
        (dt.timedelta(microseconds=-1), -1),
        (2**63 - 1, MAX_INT64),
        (-(2**63), MIN_INT64),
        (1e300, MAX_INT64),
        (-1e300, MIN_INT64),
        (5e-324, 0),
        (dt.timedelta.max, MAX_INT64),
        (dt.timedelta.min, MIN_INT64),
    ],
)
def test_a_duration_becomes_the_nearest_microseconds_within_64_bits(value: object, microseconds: int) -> None:
    assert numbers.duration(value, "ttl") == microseconds


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_duration_is_rounded_once_and_exactly(seconds: float) -> None:
    exact = fractions.Fraction(seconds) * 1_000_000

    assert numbers.duration(seconds, "delay") == min(max(round(exact), MIN_INT64), MAX_INT64)


@pytest.mark.parametrize("value", [*NO_DURATIONS, dt.datetime(2026, 1, 1, tzinfo=dt.UTC)])
def test_what_is_no_finite_number_of_seconds_is_no_duration(value: object) -> None:
    with pytest.raises(InvalidArgument, match=r"^ttl must "):
        numbers.duration(value, "ttl")


@pytest.mark.parametrize("value", [0, -1, 0.0, 1e-7, -5.5, dt.timedelta(0), -(2**63)])
def test_a_positive_duration_has_a_microsecond_at_least(value: object) -> None:
    with pytest.raises(InvalidArgument, match="ttl must be positive"):
        numbers.duration(value, "ttl", positive=True)


def test_the_shortest_positive_duration_is_one_microsecond() -> None:
    assert numbers.duration(1e-6, "ttl", positive=True) == 1


def test_a_duration_may_have_a_least_value() -> None:
    assert numbers.duration(0, "base_delay", least=0) == 0
    with pytest.raises(InvalidArgument, match=r"base_delay must be at least 0 s, got -0\.1"):
        numbers.duration(-0.1, "base_delay", least=0)


@pytest.mark.parametrize(
    ("value", "microseconds"),
    [
        (dt.datetime(1970, 1, 1, tzinfo=dt.UTC), 0),
        (dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC), -1),
        (dt.datetime(1970, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=2))), -7_200_000_000),
        (dt.datetime.min.replace(tzinfo=dt.UTC), MIN_INSTANT),
        (dt.datetime.max.replace(tzinfo=dt.UTC), MAX_INSTANT),
        (dt.datetime.min.replace(tzinfo=dt.timezone(dt.timedelta(hours=23))), MIN_INSTANT),
        (dt.datetime.max.replace(tzinfo=dt.timezone(-dt.timedelta(hours=23))), MAX_INSTANT),
        (dt.datetime.max.replace(tzinfo=zoneinfo.ZoneInfo("UTC")), MAX_INSTANT),
    ],
)
def test_an_aware_datetime_becomes_an_instant_clamped_to_the_calendar(
    value: dt.datetime, microseconds: int
) -> None:
    assert numbers.instant(value, "run_at") == microseconds


@given(st.datetimes(dt.datetime(1, 1, 3), dt.datetime(9999, 12, 29), timezones=st.timezones()))  # noqa: DTZ001 - bounds are naive
def test_an_instant_reads_back_equal(value: dt.datetime) -> None:
    assert numbers.to_datetime(numbers.instant(value, "run_at")) == value.astimezone(dt.UTC)


@given(st.datetimes(timezones=st.timezones()))
def test_every_aware_datetime_is_an_instant_of_the_calendar(value: dt.datetime) -> None:
    assert MIN_INSTANT <= numbers.instant(value, "run_at") <= MAX_INSTANT


@pytest.mark.parametrize("value", [0, 1.5, "2026-01-01", None, True, dt.date(2026, 1, 1), dt.timedelta(1)])
def test_only_a_datetime_is_an_instant(value: object) -> None:
    with pytest.raises(InvalidArgument, match="run_at must be an aware datetime"):
        numbers.instant(value, "run_at")


def test_a_naive_datetime_is_no_instant() -> None:
    with pytest.raises(InvalidArgument, match="run_at must be aware"):
        numbers.instant(dt.datetime(2026, 1, 1), "run_at")  # noqa: DTZ001 - naive is the point


@given(INT64)
def test_every_64_bit_integer_passes_unchanged(value: int) -> None:
    assert numbers.integer(value, "offset") == value


@pytest.mark.parametrize(
    "value", [True, 1.0, "1", None, 2**63, -(2**63) - 1, pytest.param(10**5000, id="giant")]
)
def test_what_is_no_64_bit_integer_is_refused(value: object) -> None:
    with pytest.raises(InvalidArgument, match=r"^offset must "):
        numbers.integer(value, "offset")


def test_an_integer_may_have_a_least_value() -> None:
    assert numbers.integer(1, "max_attempts", least=1) == 1
    with pytest.raises(InvalidArgument, match="max_attempts must be at least 1, got 0"):
        numbers.integer(0, "max_attempts", least=1)


@pytest.mark.parametrize(
    ("value", "count"), [(3, 3), (0, 0), (-1, 0), (MIN_INT64, 0), (MAX_INT64, MAX_INT64)]
)
def test_an_extent_that_is_not_positive_asks_for_nothing(value: int, count: int) -> None:
    assert numbers.extent(value, "limit") == count


@pytest.mark.parametrize("value", [True, 2.0, "2", None, 2**63])
def test_an_extent_is_an_integer(value: object) -> None:
    with pytest.raises(InvalidArgument, match=r"^limit must "):
        numbers.extent(value, "limit")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(None, None), (2, 2.0), (0.25, 0.25), (0, 0.0), (-3, 0.0), (dt.timedelta(seconds=1), 1.0)],
)
def test_a_timeout_is_seconds_or_at_once_or_never(value: object, seconds: float | None) -> None:
    assert numbers.timeout(value, "timeout") == seconds


@pytest.mark.parametrize("value", [value for value in NO_DURATIONS if value is not None])
def test_a_timeout_is_a_duration(value: object) -> None:
    with pytest.raises(InvalidArgument, match=r"^timeout must "):
        numbers.timeout(value, "timeout")


@given(st.integers(MIN_INSTANT, MAX_INSTANT), INT64)
def test_a_shifted_instant_stays_within_the_calendar(instant: int, delta: int) -> None:
    assert numbers.shift(instant, delta) == min(max(instant + delta, MIN_INSTANT), MAX_INSTANT)


@given(INT64)
def test_every_duration_reads_back_as_a_timedelta_exactly(microseconds: int) -> None:
    assert numbers.duration(numbers.to_timedelta(microseconds), "ttl") == microseconds


@given(INT64)
def test_every_instant_can_be_shown(instant: int) -> None:
    shown = numbers.to_datetime(instant)

    assert shown.utcoffset() == dt.timedelta(0)
    assert numbers.instant(shown, "run_at") == numbers.shift(instant, 0)
