"""Hourly tables: from a source, from other hours, from the day before, and as input of a daily table."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest
from pydantic import ValidationError

from ml_assets.components import Dataset, FeatureTable, TrainingPipeline
from ml_assets.components.checks.leakage import feature_declaration
from ml_assets.components.declarations import DeclarationRefused, require_consistent
from ml_assets.components.metadata import RANGE_END, RANGE_START, declared_tables
from ml_assets.data.tables.cadence import Cadence
from ml_assets.data.tables.declared import NOTHING_DECLARED
from ml_assets.data.tables.leakage import find_leaks, newest_partitions
from ml_assets.data.tables.publish.publish import publish
from ml_assets.data.tables.publish.rejected import quarantined_keys, quarantined_rules, readmit
from ml_assets.data.tables.spec import Incoming, PublishingRun
from ml_assets_tests.components.installation import (
    Installation,
    built,
    component,
    failure_of,
    mapped_inputs,
)
from ml_assets_tests.components.readings_pipeline import PIPELINE
from resources.ledger import Person

HERE = "ml_assets_tests.components.test_hours"
CLICKS, RATES, DAYS, USUAL = "datasets/clicks", "features/rates", "features/days", "features/usual"
LATEST = datetime(2024, 1, 3, 5, tzinfo=UTC)
HOUR = timedelta(hours=1)
AT = pl.col("hour").alias("predicted_at")

wrong_hours: set[datetime] = set()
"""Hours for which the source hands out rows of the hour after."""


def read_clicks(hour: datetime) -> pl.DataFrame:
    """Clicks of an hour: as many as its number, and one."""
    first = hour + HOUR if hour in wrong_hours else hour
    ids = range(hour.hour + 1)
    return pl.DataFrame(
        {
            "at": [first + timedelta(minutes=one) for one in ids],
            "id": ids,
            "price": [1.0 + one for one in ids],
        },
        schema_overrides={"at": pl.Datetime("us", "UTC"), "id": pl.Int64()},
    )


def latest() -> datetime:
    """Newest complete hour."""
    return LATEST


def rates(inputs: Mapping[str, pl.LazyFrame], first: datetime, last: datetime) -> pl.LazyFrame:
    """Clicks of an hour and of the two before it."""
    by_hour = (
        inputs[CLICKS]
        .group_by(pl.col("at").dt.truncate("1h").alias("hour"))
        .agg(pl.len().alias("clicks"))
        .sort("hour")
    )
    recent = pl.col("clicks").rolling_sum_by("hour", "3h").alias("recent")
    return by_hour.with_columns(recent, AT).filter(pl.col("hour").is_between(first, last))


def days(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
    """Clicks of a day, from its hours."""
    day = pl.col("hour").dt.date().alias("day")
    made = inputs[RATES].group_by(day).agg(pl.col("clicks").sum(), pl.len().alias("recent"))
    at = pl.col("day").cast(pl.Datetime("us", "UTC")).alias("predicted_at")
    return made.with_columns(at).filter(pl.col("day").is_between(first, last))


def usual(inputs: Mapping[str, pl.LazyFrame], first: datetime, last: datetime) -> pl.LazyFrame:
    """For each hour, the clicks of the day before."""
    hours = pl.LazyFrame({"hour": pl.datetime_range(first, last, "1h", time_unit="us", eager=True)})
    before = pl.col("hour").dt.date() - timedelta(days=1)
    read = inputs[DAYS].select("day", "clicks", "recent")
    return hours.with_columns(before.alias("day"), AT).join(read, on="day").drop("day")


CLICKS_DATASET: dict[str, Any] = {
    "name": "clicks",
    "source": {"function": f"{HERE}.read_clicks", "latest": f"{HERE}.latest", "watch": {}},
    "partitions": {"cadence": "hourly", "start": "2024-01-01", "end": "2024-01-31"},
    "contract": {
        "primary_key": ["at", "id"],
        "event_time": "at",
        "columns": [
            {"name": "at", "dtype": "datetime"},
            {"name": "id", "dtype": "int64"},
            {"name": "price", "dtype": "float64"},
        ],
    },
}


def _table(
    name: str, cadence: str, read: dict[str, Any], start: str = "2024-01-01", **more: Any
) -> FeatureTable:
    begin, dtype = ("hour", "datetime") if cadence == "hourly" else ("day", "date")
    columns = [
        {"name": begin, "dtype": dtype},
        {"name": "clicks", "dtype": "uint32"},
        {"name": "recent", "dtype": "uint32"},
        {"name": "predicted_at", "dtype": "datetime"},
    ]
    made = component(
        FeatureTable,
        {
            "name": name,
            "function": f"{HERE}.{name}",
            "inputs": [read],
            "partitions": {"cadence": cadence, "start": start, "end": "2024-01-31"},
            "partition_date": begin,
            "leakage_check": "off",
            "contract": {"primary_key": [begin], "columns": columns, **more},
        },
    )
    assert isinstance(made, FeatureTable)
    return made


COMPONENTS = [
    component(Dataset, CLICKS_DATASET),
    _table("rates", "hourly", {"table": CLICKS, "lookback": 2}),
    _table("days", "daily", {"table": RATES, "cadence": "hourly"}),
    _table("usual", "hourly", {"table": DAYS, "cadence": "daily"}, start="2024-01-02"),
]


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """Two days and six hours of clicks."""
    found = Installation(tmp_path_factory.mktemp("installation"), COMPONENTS)
    require_consistent(found.defs)
    assert built(found, CLICKS, "2024-01-01T00", "2024-01-03T05")
    return found


def test_hours_look_back_across_midnight(installation: Installation) -> None:
    at_once = built(installation, RATES, "2024-01-01T00", "2024-01-03T05")
    assert len(at_once) == 54
    rows = installation.main.scan(RATES, ["2024-01-02T00"]).collect()
    assert rows.row(0, named=True) | {"predicted_at": None} == {
        "hour": datetime(2024, 1, 2, tzinfo=UTC),
        "clicks": 1,
        "recent": 24 + 23 + 1,
        "predicted_at": None,
    }
    manifest = installation.main.manifest(RATES, "2024-01-02T00")
    assert sorted(manifest.inputs[CLICKS]) == ["2024-01-01T22", "2024-01-01T23", "2024-01-02T00"]
    assert built(installation, RATES, "2024-01-02T07") == {"2024-01-02T07": at_once["2024-01-02T07"]}


def test_a_day_reads_its_hours_and_an_hour_the_day_that_was_over(
    installation: Installation,
) -> None:
    built(installation, RATES, "2024-01-01T00", "2024-01-03T05")
    built(installation, DAYS, "2024-01-01", "2024-01-02")
    assert installation.main.scan(DAYS, ["2024-01-02"]).collect()["clicks"].to_list() == [sum(range(1, 25))]
    lacking = installation.run(DAYS, partition="2024-01-03")
    assert f"{RATES} 2024-01-03T06" in failure_of(lacking)
    built(installation, USUAL, "2024-01-02T00", "2024-01-03T23")
    assert set(installation.main.manifest(USUAL, "2024-01-03T23").inputs[DAYS]) == {"2024-01-02"}


def test_dagster_shows_the_same_inputs(installation: Installation) -> None:
    parents = partial(mapped_inputs, installation.defs)
    assert parents(RATES, "2024-01-02T01") == ["2024-01-01T23", "2024-01-02T00", "2024-01-02T01"]
    assert parents(DAYS, "2024-01-02") == [f"2024-01-02T{hour:02}" for hour in range(24)]
    assert parents(USUAL, "2024-01-03T00") == parents(USUAL, "2024-01-03T23") == ["2024-01-02"]


def test_rows_of_another_hour_are_rejected(tmp_path: Path) -> None:
    found = Installation(tmp_path, COMPONENTS)
    wrong_hours.add(datetime(2024, 1, 1, 4, tzinfo=UTC))
    try:
        refused = found.run(CLICKS, partition="2024-01-01T03", last="2024-01-01T05")
    finally:
        wrong_hours.clear()
    assert not refused.success
    assert "from 2024-01-01T04:00:00Z to before 2024-01-01T05:00:00Z" in failure_of(refused)
    assert found.main.keys(CLICKS) == ["2024-01-01T03", "2024-01-01T05"]


def test_rows_of_an_hour_are_set_aside_and_readmitted(tmp_path: Path) -> None:
    def clicks_from(price: float) -> Dataset:
        contract = CLICKS_DATASET["contract"]
        columns = [one | {"ge": price} if one["name"] == "price" else one for one in contract["columns"]]
        lenient = {"on_bad_rows": "quarantine", "quarantine": {"limit": 0.9}}
        made = component(Dataset, CLICKS_DATASET | lenient | {"contract": contract | {"columns": columns}})
        assert isinstance(made, Dataset)
        return made

    built(Installation(tmp_path, [clicks_from(3)]), CLICKS, "2024-01-01T03", "2024-01-01T05")
    loose = clicks_from(2)
    found = Installation(tmp_path, [loose])
    hours = quarantined_keys(found.main, CLICKS)
    assert hours == found.main.keys(CLICKS) == ["2024-01-01T03", "2024-01-01T04", "2024-01-01T05"]
    assert quarantined_rules(found.main, CLICKS, hours[1]) == (2, {"out_of_range": 2})
    readmit(
        found.platform.lake,
        found.platform.ledger,
        loose.table,
        hours[1],
        Person.unchecked("ada"),
        NOTHING_DECLARED,
    )
    assert found.main.scan(CLICKS, [hours[1]]).collect()["price"].to_list() == [2.0, 3.0, 4.0, 5.0]
    assert [quarantined_rules(found.main, CLICKS, hour)[0] for hour in hours] == [2, 1, 2]


def test_the_sensor_requests_hours_up_to_the_newest_complete_one(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    sensor = installation.defs.get_repository_def().get_sensor_def("clicks_new_data")

    def tick() -> Any:
        resources = {"platform": installation.platform, "tables": declared_tables(installation.defs)}
        answer: Any = sensor(dg.build_sensor_context(instance=installation.instance, resources=resources))
        return answer

    quiet = tick().skip_reason.skip_message
    assert quiet is not None
    assert quiet.startswith(
        f"{CLICKS} is complete up to 2024-01-03T05; the latest hour of the source is 2024-01-03 05:00:00"
    )
    monkeypatch.setattr(f"{HERE}.LATEST", LATEST + 2 * HOUR)
    [request] = tick().run_requests
    assert (request.tags[RANGE_START], request.tags[RANGE_END]) == ("2024-01-03T06", "2024-01-03T07")


def test_days_and_hours_need_one_clock(tmp_path: Path) -> None:
    zone = {"event_time": "predicted_at", "event_time_zone": "America/New_York"}
    local = _table("days", "daily", {"table": RATES, "cadence": "hourly"}, **zone)
    defs = Installation(tmp_path / "finer", [*COMPONENTS[:2], local]).defs
    said = (
        "features/days begins its days in America/New_York and reads features/rates, which has hours of UTC"
    )
    with pytest.raises(DeclarationRefused, match=said):
        require_consistent(defs)
    # An hourly table may name a zone, by which its numbers of rows are compared: its hours stay hours of UTC.
    hourly = component(
        Dataset,
        CLICKS_DATASET
        | {"contract": CLICKS_DATASET["contract"] | {"event_time_zone": zone["event_time_zone"]}},
    )
    require_consistent(Installation(tmp_path / "zoned", [hourly, *COMPONENTS[1:2]]).defs)


def test_an_hourly_model_is_refused_with_the_way_to_train_on_hours() -> None:
    hourly = PIPELINE | {"partitions": {"cadence": "hourly", "start": "2024-01-01"}}
    with pytest.raises(ValidationError, match="let a daily feature table read the hours"):
        component(TrainingPipeline, hourly)


@pytest.mark.nightly
def test_the_leakage_test_leaves_out_days_of_before(tmp_path: Path) -> None:
    """They stay on main when a table becomes hourly. The weekly check ended with an error."""
    known = {"table": CLICKS, "lookback": 2, "known_at": []}
    rates_known = _table("rates", "hourly", known)
    found = Installation(tmp_path, [COMPONENTS[0], rates_known])
    built(found, CLICKS, "2024-01-01T00", "2024-01-01T03")
    built(found, RATES, "2024-01-01T00", "2024-01-01T03")
    was_daily = replace(rates_known.table, cadence=Cadence("daily", date(2024, 1, 1)))
    rows = found.main.scan(RATES, ["2024-01-01T03"]).collect()
    of_before = [Incoming(key="2024-01-02", data=rows)]
    publish(
        found.platform.lake,
        found.platform.ledger,
        was_daily,
        of_before,
        PublishingRun(run_id="before"),
        NOTHING_DECLARED,
    )
    main = found.main
    keys = newest_partitions(rates_known.spec.cadence, main.keys(RATES))
    assert list(keys) == main.keys(RATES)[:-1]
    cadences = {CLICKS: rates_known.spec.cadence}
    assert find_leaks(main, feature_declaration(rates_known.spec, cadences), keys).ok
