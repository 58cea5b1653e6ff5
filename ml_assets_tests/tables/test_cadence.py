"""Laws of partition keys."""

from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.data.tables.cadence import UNPARTITIONED, Cadence, KeyRefused

days = st.dates(date(1990, 1, 1), date(2060, 1, 1))
cadences = st.builds(
    lambda kind, start, length: Cadence(kind, start, None if length is None else start + timedelta(length)),
    st.sampled_from(["daily", "weekly", "monthly", "quarterly", "yearly"]),
    days,
    st.none() | st.integers(0, 400),
)


@given(cadences, st.integers(0, 400))
def test_every_covered_day_lies_in_exactly_one_key(cadence: Cadence, length: int) -> None:
    assert cadence.start is not None
    last = min(cadence.end or date.max, cadence.start + timedelta(length))
    keys = cadence.keys(cadence.start, last)
    day = cadence.start
    covered = {key: cadence.bounds(key) for key in keys}
    while day <= last:
        assert [k for k, (first, end) in covered.items() if first <= day <= end] == [cadence.key_of(day)]
        day += timedelta(1)


@given(cadences, st.integers(0, 300), st.integers(1, 40))
def test_keys_ascend_and_a_window_is_the_tail_of_what_came_before(
    cadence: Cadence, offset: int, lookback: int
) -> None:
    assert cadence.start is not None
    day = min(cadence.end or date.max, cadence.start + timedelta(offset))
    key = cadence.key_of(day)
    keys = cadence.keys(cadence.start, day)
    assert keys == sorted(set(keys))
    assert keys[-1] == key
    assert cadence.window(key, lookback) == keys[-lookback:]
    assert cadence.previous(key, lookback) == keys[:-1][-lookback:]


@given(st.datetimes(datetime.fromisoformat("1990-01-01"), timezones=st.just(UTC)), st.integers(1, 100))
def test_an_hourly_key_is_its_hour(moment: datetime, back: int) -> None:
    hours = Cadence("hourly", date(1990, 1, 1))
    key = hours.key_of(moment)
    first, last = hours.bounds(key)
    assert isinstance(first, datetime)
    assert first == last <= moment < first + timedelta(hours=1)
    earlier = [hours.key_of(moment - timedelta(hours=n)) for n in range(back, 0, -1)]
    reached = [one for one in earlier if one < key and one >= "1990-01-01T00"]
    assert hours.previous(key, back) == sorted(set(reached))
    assert hours.keys(moment, moment) == [key]
    assert all(hours.are_neighbours(*pair) for pair in pairwise(hours.window(key, back)))


@given(days, st.integers(0, 3))
def test_a_day_has_24_hours_of_utc(day: date, length: int) -> None:
    last = day + timedelta(length)
    hours = Cadence("hourly", day, last)
    keys = hours.keys(day, last)
    assert keys == sorted(set(keys))
    assert len(keys) == 24 * (length + 1)
    assert keys == hours.complete(last) == hours.keys(date.min, date.max)
    assert hours.complete(datetime.combine(last, time(5), UTC)) == keys[:-18]


@given(days)
def test_a_weekly_key_is_its_monday(day: date) -> None:
    first, last = Cadence("weekly", day).bounds(Cadence("weekly", day).key_of(day))
    assert first.weekday() == 0
    assert (last - first).days == 6
    assert first <= day <= last


@given(days)
def test_a_monthly_key_is_the_first_of_its_month(day: date) -> None:
    first, last = Cadence("monthly", day).bounds(Cadence("monthly", day).key_of(day))
    assert (first.day, (last + timedelta(1)).day) == (1, 1)
    assert first <= day <= last
    assert (first.year, first.month) == (last.year, last.month)


def test_days_outside_the_covered_range_have_no_keys() -> None:
    cadence = Cadence("daily", date(2013, 1, 1), date(2013, 1, 3))
    assert cadence.keys(date(2012, 1, 1), date(2014, 1, 1)) == ["2013-01-01", "2013-01-02", "2013-01-03"]
    assert cadence.keys(date(2014, 1, 1), date(2014, 2, 1)) == []
    assert cadence.window("2013-01-02", 99) == ["2013-01-01", "2013-01-02"]


def test_a_table_without_partitions_has_one_key() -> None:
    cadence = Cadence("none")
    assert cadence.keys(date(2013, 1, 1), date(2013, 1, 3)) == [UNPARTITIONED]
    assert cadence.window(UNPARTITIONED, 30) == [UNPARTITIONED]
    assert cadence.previous(UNPARTITIONED) == []


@pytest.mark.parametrize("key", ["2013-01-02", "20130107", "2013-W02", "all", ""])
def test_a_string_that_is_no_weekly_key_is_refused(key: str) -> None:
    with pytest.raises(KeyRefused, match="weekly key"):
        Cadence("weekly", date(2013, 1, 1)).bounds(key)


@pytest.mark.parametrize(
    "key", ["2013-01-02", "2013-01-02T5", "2013-01-02T24", "2013-01-02T05:00", "2013-01-02T05Z", "all", ""]
)
def test_a_string_that_is_no_hourly_key_is_refused(key: str) -> None:
    with pytest.raises(KeyRefused, match="hourly key"):
        Cadence("hourly", date(2013, 1, 1)).bounds(key)


def test_hours_outside_the_table_are_refused() -> None:
    hours = Cadence("hourly", date(2013, 1, 2), date(2013, 1, 2))
    hours.require("2013-01-02T23")
    with pytest.raises(KeyRefused, match="end with 2013-01-02T23"):
        hours.require("2013-01-03T00")
    with pytest.raises(KeyRefused, match="begin with 2013-01-02T00"):
        hours.require("2013-01-01T23")


def test_a_partitioned_cadence_needs_a_start() -> None:
    with pytest.raises(ValueError, match="set `start`"):
        Cadence("daily")
    with pytest.raises(ValueError, match="before its start"):
        Cadence("daily", date(2013, 1, 2), date(2013, 1, 1))
