"""Weeks and months made from days, and days that read the week before: the same whether built at once or one by one."""

from collections.abc import Mapping
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal

import polars as pl
import pytest
from pydantic import ValidationError

from ml_assets.components import Dataset, FeatureTable
from ml_assets.components.base import coarser_mapping, lookback_mapping, partitions_definition
from ml_assets.components.declarations import DeclarationRefused, require_consistent
from ml_assets.data.tables.cadence import FIRST_YEAR, LAST_YEAR, PartitionsSection, fit_of
from ml_assets.data.tables.declared import InputTable
from ml_assets_tests.components.installation import (
    Installation,
    built,
    component,
    failure_of,
    mapped_inputs,
    mapped_keys,
)
from ml_assets_tests.components.readings_pipeline import DATASET, MACHINES, READINGS, days

HERE = "ml_assets_tests.components.test_cadences"
Cadence = Literal["hourly", "daily", "weekly", "monthly", "quarterly", "yearly"]
CADENCES: tuple[Cadence, ...] = ("hourly", "daily", "weekly", "monthly", "quarterly", "yearly")
WEEKS, MONTHS, TODAY = "features/weeks", "features/months", "features/today"
QUARTERS, YEARS = "features/quarters", "features/years"
PREDICTED_AT = pl.col("partition_date").cast(pl.Datetime("us", "UTC")).alias("predicted_at")


def _made(readings: pl.LazyFrame, every: str) -> pl.LazyFrame:
    first_day = pl.col("at").dt.date().dt.truncate(every).alias("partition_date")
    made = readings.group_by(first_day, "machine").agg(pl.col("made").sum(), pl.len().alias("rows"))
    return made.with_columns(PREDICTED_AT)


def weeks(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
    """Output of each machine in a week."""
    return _made(inputs[READINGS], "1w").filter(pl.col("partition_date").is_between(first, last))


def months(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
    """Output of each machine in a month."""
    return _made(inputs[READINGS], "1mo").filter(pl.col("partition_date").is_between(first, last))


def quarters(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
    """Output of each machine in a quarter, from its months."""
    return _of_parts(inputs[MONTHS], "1q", first, last)


def years(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
    """Output of each machine in a year, from its quarters."""
    return _of_parts(inputs[QUARTERS], "1y", first, last)


def _of_parts(parts: pl.LazyFrame, every: str, first: date, last: date) -> pl.LazyFrame:
    begins = pl.col("partition_date").dt.truncate(every)
    made = parts.group_by(begins, "machine").agg(pl.col("made", "rows").sum())
    return made.filter(pl.col("partition_date").is_between(first, last)).with_columns(PREDICTED_AT)


def today(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
    """For each day and machine, what it made in the week before."""
    every = pl.LazyFrame({"partition_date": pl.date_range(first, last, eager=True)})
    before = pl.col("partition_date").dt.truncate("1w") - timedelta(days=7)
    return (
        every.with_columns(before.alias("week"))
        .join(inputs[WEEKS].rename({"partition_date": "week"}), on="week")
        .select("partition_date", "machine", "made", "rows", PREDICTED_AT)
    )


def _table(name: str, cadence: str, read: dict[str, Any], start: str = "2024-01-01") -> FeatureTable:
    columns = [
        {"name": "partition_date", "dtype": "date"},
        {"name": "machine", "dtype": "string"},
        {"name": "made", "dtype": "float64"},
        {"name": "rows", "dtype": "uint32"},
        {"name": "predicted_at", "dtype": "datetime"},
    ]
    attributes = {
        "name": name,
        "function": f"{HERE}.{name}",
        "inputs": [read],
        "partitions": {"cadence": cadence, "start": start, "end": "2024-03-31"},
        "leakage_check": "off",
        "contract": {"primary_key": ["partition_date", "machine"], "columns": columns},
    }
    made = component(FeatureTable, attributes)
    assert isinstance(made, FeatureTable)
    return made


COMPONENTS = [
    component(Dataset, DATASET),
    _table("weeks", "weekly", {"table": READINGS, "cadence": "daily"}),
    _table("months", "monthly", {"table": READINGS, "cadence": "daily"}),
    _table("today", "daily", {"table": WEEKS, "cadence": "weekly"}, start="2024-01-08"),
    _table("quarters", "quarterly", {"table": MONTHS, "cadence": "monthly"}),
    _table("years", "yearly", {"table": QUARTERS, "cadence": "quarterly"}),
]


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """Five weeks of readings."""
    found = Installation(tmp_path_factory.mktemp("installation"), COMPONENTS)
    first, *_, last = days(35)
    assert found.run(READINGS, partition=first, last=last).success
    return found


def test_weeks_and_months_hold_all_their_days(installation: Installation) -> None:
    at_once = built(installation, WEEKS, "2024-01-01", "2024-01-29")
    assert list(at_once) == ["2024-01-01", "2024-01-08", "2024-01-15", "2024-01-22", "2024-01-29"]
    rows = installation.main.scan(WEEKS, ["2024-01-08"]).collect()
    assert set(rows["rows"]) == {7 * 12}
    built(installation, MONTHS, "2024-01-01")
    assert set(installation.main.scan(MONTHS, ["2024-01-01"]).collect()["rows"]) == {31 * 12}
    lacking = installation.run(MONTHS, partition="2024-02-01")
    assert f"{READINGS} 2024-02-05 to 2024-02-29" in failure_of(lacking) or "2024-02-05" in failure_of(
        lacking
    )


def test_a_day_reads_the_week_that_was_over(installation: Installation) -> None:
    built(installation, WEEKS, "2024-01-01", "2024-01-22")
    at_once = built(installation, TODAY, "2024-01-08", "2024-01-20")
    weeks_made = installation.main.scan(WEEKS, ["2024-01-01"]).collect().sort("machine")
    sunday = installation.main.scan(TODAY, ["2024-01-14"]).collect().sort("machine")
    assert sunday["made"].equals(weeks_made["made"])
    manifest = installation.main.manifest(TODAY, "2024-01-14")
    assert set(manifest.inputs[WEEKS]) == {"2024-01-01"}
    assert built(installation, TODAY, "2024-01-17") == {"2024-01-17": at_once["2024-01-17"]}


def test_dagster_shows_the_same_inputs(installation: Installation) -> None:
    parents = partial(mapped_inputs, installation.defs)
    assert parents(TODAY, "2024-01-14") == parents(TODAY, "2024-01-08") == ["2024-01-01"]
    assert parents(WEEKS, "2024-01-08") == [f"2024-01-{day:02}" for day in range(8, 15)]
    assert len(parents(MONTHS, "2024-02-01")) == 29
    assert parents(QUARTERS, "2024-01-01") == ["2024-01-01", "2024-02-01", "2024-03-01"]
    assert parents(YEARS, "2024-01-01") == ["2024-01-01"]


def test_a_quarter_and_a_year_need_all_their_parts(tmp_path: Path) -> None:
    found = Installation(tmp_path, COMPONENTS)
    require_consistent(found.defs)
    first, *_, last = days(91)
    assert found.run(READINGS, partition=first, last=last).success
    built(found, MONTHS, "2024-01-01", "2024-03-01")
    built(found, QUARTERS, "2024-01-01")
    assert set(found.main.scan(QUARTERS, ["2024-01-01"]).collect()["rows"]) == {91 * 12}
    lacking = found.run(YEARS, partition="2024-01-01")
    assert f"{QUARTERS} 2024-04-01 is missing" in failure_of(lacking)


@pytest.mark.parametrize("lookback", [0, 1, 5])
@pytest.mark.parametrize("later", [0, 10], ids=["same start", "later start"])
@pytest.mark.parametrize(
    ("own", "read"), [(own, read) for own in CADENCES for read in CADENCES if fit_of(own, read)]
)
def test_dagster_maps_what_a_partition_needs(own: Cadence, read: Cadence, later: int, lookback: int) -> None:
    """Also at the start of a table: a day that is the first of its table looks back at all days of its input."""
    fit = fit_of(own, read)
    begin = date(2024, 1, 1)
    first = begin + timedelta(days=later + (7 if fit == "coarser" else 0))
    its = PartitionsSection(cadence=read, start=begin, end=begin + timedelta(days=120))
    mine = PartitionsSection(cadence=own, start=first, end=first + timedelta(days=70))
    mapping = coarser_mapping(own, read, lookback) if fit == "coarser" else lookback_mapping(lookback)
    reader, source = partitions_definition(mine), partitions_definition(its)
    assert reader is not None
    assert source is not None
    table = InputTable(table=READINGS, cadence=its.as_cadence, lookback=lookback, read_by=mine.as_cadence)
    keys = reader.get_partition_keys()
    for key in [*keys[:3], *keys[3:-1:37], keys[-1]]:
        exist = [one for one in table.needed_for(key) if source.has_partition_key(one)]
        assert exist
        assert mapped_keys(mapping, reader, source, key) == exist


def test_a_week_looks_back_beyond_the_start_of_its_own_table(tmp_path: Path) -> None:
    """Else its first weeks were made from fewer days than declared, and nothing said so."""
    late = _table("weeks", "weekly", {"table": READINGS, "cadence": "daily", "lookback": 1}, "2024-01-15")
    found = Installation(tmp_path, [COMPONENTS[0], late])
    first, *_, last = days(21)
    assert found.run(READINGS, partition=first, last=last).success
    built(found, WEEKS, "2024-01-15")
    read = found.main.manifest(WEEKS, "2024-01-15").inputs[READINGS]
    assert (min(read), max(read)) == ("2024-01-08", "2024-01-21")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (
            _table("weeks", "weekly", {"table": READINGS}),
            "features/weeks is weekly and reads datasets/readings, which is daily: write `cadence: daily`",
        ),
        (
            _table("weeks", "daily", {"table": READINGS, "cadence": "weekly"}),
            "is daily: write `cadence: daily` in this input",
        ),
    ],
)
def test_another_cadence_must_be_stated(tmp_path: Path, table: FeatureTable, said: str) -> None:
    defs = Installation(tmp_path, [component(Dataset, DATASET), table])
    with pytest.raises(DeclarationRefused, match=said):
        require_consistent(defs.defs)


def test_a_day_before_the_first_whole_week_is_refused(tmp_path: Path) -> None:
    early = _table("today", "daily", {"table": WEEKS, "cadence": "weekly"})
    found = Installation(tmp_path, [*COMPONENTS[:2], early])
    with pytest.raises(DeclarationRefused, match="set `start` to 2024-01-08 or later"):
        require_consistent(found.defs)


@pytest.mark.parametrize(
    ("cadence", "first"),
    [
        ("weekly", "2023-02-20"),
        ("monthly", "2023-03-01"),
        ("quarterly", "2023-04-01"),
        ("yearly", "2024-01-01"),
    ],
)
def test_the_start_in_a_refusal_is_accepted(tmp_path: Path, cadence: str, first: str) -> None:
    """A table of quarters was told the day at which its input begins: that day is in the quarter that lacks rows."""
    read = component(Dataset, DATASET, partitions={"cadence": "daily", "start": "2023-02-15"})
    input_ = {"table": READINGS, "cadence": "daily"}
    early = Installation(tmp_path / "early", [read, _table("weeks", cadence, input_, "2023-02-15")])
    with pytest.raises(DeclarationRefused, match=f"set `start` to {first} or later"):
        require_consistent(early.defs)
    late = Installation(tmp_path / "late", [read, _table("weeks", cadence, input_, first)])
    require_consistent(late.defs)


@pytest.mark.parametrize("cadence", CADENCES)
def test_the_keys_of_all_years_are_those_of_dagster(cadence: Cadence) -> None:
    for year in (FIRST_YEAR, 1582, 1899):
        section = PartitionsSection(cadence=cadence, start=date(year, 1, 1), end=date(year + 1, 2, 3))
        partitions = partitions_definition(section)
        assert partitions is not None
        assert section.as_cadence.keys(date.min, date.max) == list(partitions.get_partition_keys())
    last = PartitionsSection(cadence=cadence, start=date(2024, 1, 1), end=date(LAST_YEAR, 12, 31))
    assert partitions_definition(last)


@pytest.mark.parametrize("year", [FIRST_YEAR - 1, LAST_YEAR + 1])
def test_years_that_no_partition_can_have_are_refused(year: int) -> None:
    with pytest.raises(ValidationError, match="is not in the years 1001 to 9998, which partitions can have"):
        PartitionsSection(
            cadence="yearly", start=date(min(year, 2024), 1, 1), end=date(max(year, 2024), 1, 1)
        )


def machines(_: date | None = None) -> pl.DataFrame:
    """Return the machines of the plant."""
    return pl.DataFrame({"machine": MACHINES})


def test_a_foreign_key_does_not_look_into_partitions_of_an_earlier_cadence(tmp_path: Path) -> None:
    """The machines had no partitions when they were published, and have days now."""
    own = {
        "name": "machines",
        "source": {"function": f"{HERE}.machines"},
        "contract": {"primary_key": ["machine"], "columns": [{"name": "machine", "dtype": "string"}]},
    }
    refers = DATASET["contract"] | {"foreign_keys": [{"columns": ["machine"], "table": "datasets/machines"}]}
    readings = component(Dataset, DATASET, contract=refers)
    whole = Installation(tmp_path, [component(Dataset, own), readings])
    assert whole.run("datasets/machines").success
    (day,) = days(1)
    assert whole.run(READINGS, partition=day).success
    daily = whole.declared_as(
        [
            component(Dataset, own, partitions=DATASET["partitions"]),
            component(Dataset, DATASET, contract=refers),
        ]
    )
    (later,) = days(1, start=1)
    said = failure_of(daily.run(READINGS, partition=later))
    assert f"datasets/machines {later} is missing" in said
    assert daily.run("datasets/machines", partition=later).success
    assert daily.run(READINGS, partition=later).success
