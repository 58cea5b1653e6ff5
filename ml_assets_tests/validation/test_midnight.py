"""Days of every zone begin when its clocks say so, also where they skip midnight."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import polars as pl
from hypothesis import example, given
from hypothesis import strategies as st

from ml_assets.data.validation.check import check_partitions
from ml_assets.data.validation.contract import Contract
from ml_assets.foundation.days import midnight

ZONES = st.sampled_from(sorted(zone for zone in available_timezones() if "/" in zone))
# Samoa left out 2011-12-30 whole: a day without a moment of its own.
DAYS = st.dates(date(2012, 1, 1), date(2030, 12, 31))


@given(zone=ZONES, day=DAYS)
@example(zone="Africa/Cairo", day=date(2024, 4, 26))
@example(zone="America/Santiago", day=date(2024, 9, 8))
@example(zone="Asia/Beirut", day=date(2024, 3, 31))
@example(zone="America/Havana", day=date(2024, 3, 10))
def test_midnight_is_the_first_moment_of_its_day(zone: str, day: date) -> None:
    begin = midnight(day, zone)
    assert begin.astimezone(ZoneInfo(zone)).date() == day
    assert (begin - timedelta(microseconds=1)).astimezone(ZoneInfo(zone)).date() == day - timedelta(days=1)


@given(zone=ZONES, day=DAYS, off=st.sampled_from([-1, 0, 1]))
@example(zone="Africa/Cairo", day=date(2024, 4, 26), off=1)
@example(zone="Africa/Cairo", day=date(2024, 4, 26), off=-1)
@example(zone="America/Santiago", day=date(2024, 9, 8), off=1)
def test_a_day_as_event_time_belongs_to_its_own_partition_alone(zone: str, day: date, off: int) -> None:
    contract = Contract.model_validate(
        {"event_time": "on", "event_time_zone": zone, "columns": [{"name": "on", "dtype": "date"}]}
    )
    key = (day + timedelta(days=off)).isoformat()
    bounds = date.fromisoformat(key)
    found = check_partitions(
        {key: pl.DataFrame({"on": [day]})},
        contract,
        bounds={key: (bounds, bounds)},
        now=datetime(2031, 1, 9, tzinfo=UTC),
    )
    assert [finding.rule for finding in found[key]] == ["event_outside_partition"] * bool(off)
