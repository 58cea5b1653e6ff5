"""A partition that has not ended in the zone of its table is not read, whoever asks, whatever its source."""

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg
import polars as pl
import pytest

from ml_assets.components import Dataset, FeatureTable
from ml_assets.components.metadata import declared_tables
from ml_assets.components.specs import DatasetSpec
from ml_assets.data.sources.kinds import read_partitions
from ml_assets.data.sources.protocol import PartitionOpen, SourceRows, Span
from ml_assets.data.sources.python_source import PythonReader, PythonSource
from ml_assets.data.tables.spec import SourceFailed
from ml_assets_tests.components.installation import Installation, component, failure_of
from ml_assets_tests.sources.conftest import Declare
from ml_assets_tests.sources.hourly_sales import HOURLY
from ml_assets_tests.sources.sales import DATASET, SALES, rows
from resources.platform import Platform
from resources.settings import Settings

HERE = "ml_assets_tests.sources.test_open_partitions"
NEW_YORK = ZoneInfo("America/New_York")
NOW = datetime.now(UTC)
TODAY = NOW.astimezone(NEW_YORK).date()
DAYS = [(TODAY + timedelta(days=n)).isoformat() for n in range(-2, 2)]
OVER, *_, OPEN = DAYS
"""A day that is over, and one that is not, also if this test runs over a midnight."""
RECENT = {"cadence": "daily", "start": OVER, "end": OPEN}


def latest() -> date:
    """Return a day that is not over: the source calls it complete."""
    return date.fromisoformat(OPEN)


def read(day: date) -> pl.DataFrame:
    """Return the sales of any day, also of an open one."""
    return rows(day.isoformat())


def read_hour(hour: datetime) -> pl.DataFrame:
    """Return no sales."""
    return rows(OVER)[:0]


PYTHON = {"function": f"{HERE}.read", "latest": f"{HERE}.latest", "watch": {}}


def _spec(**changes: Any) -> DatasetSpec:
    return DatasetSpec.model_validate(DATASET | {"source": PYTHON} | changes)


def _without_zone(**changes: Any) -> dict[str, Any]:
    contract = {name: value for name, value in DATASET["contract"].items() if name != "event_time_zone"}
    return {"contract": contract | changes}


def test_the_evening_of_new_york_does_not_close_its_day() -> None:
    """At 21:02 in New York it is the next day in UTC."""
    spec = _spec()
    end = datetime(2024, 3, 9, 5, tzinfo=UTC)
    assert spec.closes_at("2024-03-08") == end
    evening = datetime(2024, 3, 8, 21, 2, tzinfo=NEW_YORK)
    for now, is_open in ((evening, True), (end - timedelta(seconds=1), True), (end, False)):
        asked: list[Span | None] = []
        reader = _Noting(spec, asked)
        [one] = read_partitions(reader, spec.cadence, ["2024-03-08"], partial(spec.require_closed, now=now))
        assert isinstance(one.data, SourceFailed) == is_open
        assert bool(asked) == (not is_open)
        if is_open:
            assert isinstance(one.data, SourceFailed)
            assert isinstance(one.data.__cause__, PartitionOpen)
            assert "2024-03-08" in str(one.data)
            assert "2024-03-09T05:00:00+00:00" in str(one.data)


class _Noting(PythonReader):
    """Source that notes which partitions it is asked for."""

    def __init__(self, spec: DatasetSpec, asked: list[Span | None]) -> None:
        assert isinstance(spec.source, PythonSource)
        super().__init__(spec.source, spec.source_table, Platform(Settings(home=Path("unused"))))
        self._asked = asked

    def read(self, span: Span | None) -> SourceRows:
        self._asked.append(span)
        return super().read(span)


@pytest.mark.parametrize(
    ("cadence", "key", "closes"),
    [
        ("hourly", "2024-03-08T05", "2024-03-08T06:00:00+00:00"),
        ("daily", "2024-03-10", "2024-03-11T04:00:00+00:00"),  # clocks are set forward that day
        ("weekly", "2024-03-04", "2024-03-11T04:00:00+00:00"),
        ("monthly", "2024-02-01", "2024-03-01T05:00:00+00:00"),
        ("quarterly", "2024-01-01", "2024-04-01T04:00:00+00:00"),
        ("yearly", "2024-01-01", "2025-01-01T05:00:00+00:00"),
    ],
)
def test_each_cadence_closes_at_its_end(cadence: str, key: str, closes: str) -> None:
    changes = _without_zone() if cadence == "hourly" else {}
    spec = _spec(partitions={"cadence": cadence, "start": "2024-02-01"}, **changes)
    assert spec.closes_at(key) == datetime.fromisoformat(closes)


def test_a_table_without_partitions_is_never_open() -> None:
    source = {"function": f"{HERE}.read_all"}
    assert _spec(source=source, partitions=None).closes_at("all") is None


def read_all() -> pl.DataFrame:
    """Return the sales of a table without partitions."""
    return rows(OVER)


def test_hours_of_a_late_source_keep_its_partition_open() -> None:
    source = {"kind": "file", "path": "sales/%Y-%m-%d.parquet", "complete_after_hours": 6.5}
    assert _spec(source=source).closes_at("2024-03-08") == datetime(2024, 3, 9, 11, 30, tzinfo=UTC)


Make = Callable[[Path], dict[str, Any]]


def _file(folder: Path) -> dict[str, Any]:
    for day in DAYS:
        rows(day).write_parquet(folder / f"{day}.parquet")
    return {"kind": "file", "path": f"{folder}/%Y-%m-%d.parquet", "watch": {}}


def _delta(folder: Path) -> dict[str, Any]:
    rows(*DAYS).write_delta(str(folder / "sales"))
    return {"kind": "delta", "path": str(folder / "sales"), "watch": {}}


@pytest.mark.parametrize("make", [_file, _delta, lambda _: PYTHON])
def test_an_open_day_is_refused_by_hand_and_in_a_range(declare: Declare, tmp_path: Path, make: Make) -> None:
    """A run over a range, such as a backfill's, lands the days that are over."""
    here = declare(make(tmp_path), partitions=RECENT)
    for first, last in ((OPEN, OPEN), (OVER, OPEN)):
        result = here.run(SALES, partition=first, last=last)
        said = failure_of(result)
        assert OPEN in said
        assert "has not ended" in said
        assert "America/New_York" in said
        assert OPEN not in here.main.keys(SALES)
    assert OVER in here.main.keys(SALES)


@pytest.mark.parametrize("make", [_file, _delta, lambda _: PYTHON])
def test_the_sensor_requests_no_open_day(declare: Declare, tmp_path: Path, make: Make) -> None:
    here = declare(make(tmp_path), partitions=RECENT)
    sensor = here.defs.get_repository_def().get_sensor_def("sales_new_data")
    resources = {"platform": here.platform, "tables": declared_tables(here.defs)}
    answer: Any = sensor(dg.build_sensor_context(instance=here.instance, resources=resources))
    [request] = answer.run_requests
    last = request.tags["dagster/asset_partition_range_end"]
    assert OVER <= last < OPEN


def test_a_later_hour_is_refused_by_name(declare: Declare) -> None:
    later = NOW + timedelta(hours=2)
    partitions = HOURLY["partitions"] | {"end": (NOW + timedelta(days=2)).date().isoformat()}
    here = declare({"function": f"{HERE}.read_hour"}, **HOURLY | {"partitions": partitions})
    key = f"{later:%Y-%m-%dT%H}"
    said = failure_of(here.run(SALES, partition=key, last=key))
    assert f"{SALES} {key} has not ended" in said


def counts(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
    """Return the number of sales of each day."""
    zone = pl.col("sold_at").dt.convert_time_zone("America/New_York").dt.date()
    return (
        inputs[SALES]
        .group_by(partition_date=zone)
        .agg(predicted_at=pl.col("sold_at").max(), sales=pl.len().cast(pl.Int64))
    )


def test_features_of_an_open_day_lack_their_input(tmp_path: Path) -> None:
    table = {
        "name": "counts",
        "function": f"{HERE}.counts",
        "inputs": [{"table": SALES}],
        "partitions": RECENT,
        "leakage_check": "off",
        "contract": {
            "primary_key": ["partition_date"],
            "columns": [
                {"name": "partition_date", "dtype": "date"},
                {"name": "predicted_at", "dtype": "datetime"},
                {"name": "sales", "dtype": "int64"},
            ],
        },
    }
    dataset = component(Dataset, DATASET, source=PYTHON, partitions=RECENT)
    here = Installation(tmp_path, components=[dataset, component(FeatureTable, table)])
    assert not here.run(SALES, partition=OPEN, last=OPEN).success
    said = failure_of(here.run("features/counts", partition=OPEN, last=OPEN))
    assert f"{SALES} {OPEN} is missing" in said
