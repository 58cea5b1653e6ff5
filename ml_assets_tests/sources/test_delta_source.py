"""A Delta table as a source: days by the contract's event time, versions, a vacuum, changed columns."""

import logging
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest
from deltalake import DeltaTable

from ml_assets.components import Dataset
from ml_assets.components.documents import attribute_faults
from ml_assets.components.metadata import RANGE_START, declared_tables
from ml_assets.extras.streams.delta_source import DeltaReader
from ml_assets_tests.components.installation import Installation, failure_of, materialized
from ml_assets_tests.sources.conftest import Declare
from ml_assets_tests.sources.hourly_sales import HOURLY, HOURS, LAST, require_every_hour, rows_of, span_of
from ml_assets_tests.sources.landed_sales import as_read, reader_of, reopened, require_every_day
from ml_assets_tests.sources.sales import DATASET, DAYS, SALES, rows


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A Delta table of two versions: half the price in the first."""
    place = str(tmp_path / "sales")
    rows(*DAYS).with_columns(pl.col("price") / 2).write_delta(place)
    rows(*DAYS).write_delta(place, mode="overwrite")
    return place


def test_each_day_lands_with_the_rows_of_its_time_zone(declare: Declare, path: str) -> None:
    installation = declare({"kind": "delta", "path": path, "watermark_column": "changed_at"})
    result = installation.run(SALES, partition=DAYS[0], last=DAYS[4])
    assert result.success, failure_of(result)
    require_every_day(installation)
    newest = rows(DAYS[4])["changed_at"].max()
    assert isinstance(newest, datetime)
    shown = materialized(result, SALES)[DAYS[4]].metadata["source watermark"].value
    assert datetime.fromisoformat(str(shown)) == newest


def test_a_pinned_version_and_a_moment_choose_the_rows(declare: Declare, path: str) -> None:
    moments = {one["version"]: one["timestamp"] for one in DeltaTable(path).history()}
    between = datetime.fromtimestamp((moments[0] + 0.5) / 1000, UTC)
    halved = rows(DAYS[0]).with_columns(pl.col("price") / 2)
    for choice in ({"version": 0}, {"as_of": between.isoformat()}):
        installation = declare({"kind": "delta", "path": path, **choice})
        result = installation.run(SALES, partition=DAYS[0])
        assert result.success, failure_of(result)
        assert installation.main.scan(SALES, [DAYS[0]]).collect().equals(halved)


def test_versions_that_are_gone_are_refused_by_name(declare: Declare, path: str) -> None:
    assert declare({"kind": "delta", "path": path}).run(SALES, partition=DAYS[0]).success
    DeltaTable(path).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    early = datetime.now(UTC) - timedelta(days=900)
    for choice, said in (
        ({"version": 0}, "(version 0) are gone, because a vacuum deleted them: name a later version"),
        ({"version": 99}, "has no version 99: name a later version"),
        ({"as_of": early.isoformat()}, "has no version as old as"),
    ):
        installation = declare({"kind": "delta", "path": path, **choice})
        before = installation.main.digests(SALES)
        assert said in failure_of(installation.run(SALES, partition=DAYS[0]))
        assert installation.main.digests(SALES) == before


def test_changed_columns_are_named_with_their_types(declare: Declare, path: str) -> None:
    changed = rows(*DAYS).rename({"gift": "present"}).with_columns(pl.col("price").cast(pl.String))
    changed.write_delta(path, mode="overwrite", delta_write_options={"schema_mode": "overwrite"})
    said = failure_of(declare({"kind": "delta", "path": path}).run(SALES, partition=DAYS[0]))
    assert "added: present (bool);" in said
    assert "removed: gift (bool);" in said
    assert re.search(r"changed: price \(.*string.*float64\)", said)


def test_hours_of_utc_land_and_a_change_reopens_its_hour(declare: Declare, path: str) -> None:
    rows(*DAYS).write_delta(path, mode="overwrite")
    source = {"kind": "delta", "path": path, "watermark_column": "changed_at"}
    require_every_hour(installation := declare(source, **HOURLY))
    reader = reader_of(installation, DeltaReader)
    assert reader.latest() == LAST
    read = as_read(reader, map(span_of, HOURS))
    assert reopened(reader, read, read) == set()
    sale = rows_of(HOURS[12])["sale"].item()
    later = (
        pl.when(pl.col("sale") == sale)
        .then(pl.col("changed_at") + timedelta(days=30))
        .otherwise("changed_at")
    )
    rows(*DAYS).with_columns(changed_at=later).write_delta(path, mode="overwrite")
    assert reopened(reader, read) == {span_of(HOURS[12])}


def test_values_that_do_not_fit_the_contract_are_refused(declare: Declare, path: str) -> None:
    rows(*DAYS).with_columns(pl.col("units").cast(pl.Int32) + 40_000).write_delta(
        path, mode="overwrite", delta_write_options={"schema_mode": "overwrite"}
    )
    said = failure_of(declare({"kind": "delta", "path": path}).run(SALES, partition=DAYS[0]))
    assert re.search(r"'units' .* int16: .* contract", said)


def test_a_folder_without_a_table_is_named(declare: Declare, tmp_path: Path) -> None:
    said = failure_of(declare({"kind": "delta", "path": str(tmp_path)}).run(SALES, partition=DAYS[0]))
    assert f"no Delta table at {tmp_path}: check source.path" in said


@pytest.mark.parametrize(
    ("source", "key", "said"),
    [
        ({"path": "s3://key:secret@bucket/sales"}, "path", "holds credentials: leave them out"),
        (
            {"path": "x", "access_key_id_env": "aB3/secret"},
            "access_key_id_env",
            "a credential never stands in a file",
        ),
        ({"path": "x", "version": 1, "as_of": "2024-01-01T00:00:00Z"}, "", "leave one out"),
        ({"pth": "x"}, "pth", "did you mean 'path'?"),
    ],
)
def test_wrong_keys_are_named_and_credentials_never_repeated(
    source: dict[str, object], key: str, said: str
) -> None:
    faults = attribute_faults(Dataset.get_model_cls(), DATASET | {"source": {"kind": "delta", **source}})
    (path, words), *_ = faults
    assert path == (("source", key) if key else ("source",))
    assert said in words
    assert "secret" not in words


def test_an_unknown_kind_is_answered_with_all_kinds() -> None:
    ((path, words),) = attribute_faults(Dataset.get_model_cls(), DATASET | {"source": {"kind": "dleta"}})
    assert path == ("source",)
    assert words.startswith("kind 'dleta' ")
    assert "'python', " in words


def _requested(installation: Installation) -> list[str]:
    """Return the first day of each range that the sensor requests."""
    sensor = installation.defs.get_repository_def().get_sensor_def("sales_new_data")
    resources = {"platform": installation.platform, "tables": declared_tables(installation.defs)}
    context = dg.build_sensor_context(instance=installation.instance, resources=resources)
    answer: Any = sensor(context)
    return [one.tags[RANGE_START] for one in answer.run_requests or ()]


def test_the_sensor_requests_failed_days_and_days_that_changed(declare: Declare, path: str) -> None:
    """One of five days fails and is requested. Then a row of another day changes, and that day is requested. Whoever
    overwrites the table reopens the two newest days, too."""
    source = {"kind": "delta", "path": path, "watermark_column": "changed_at", "watch": {}}
    installation = declare(source)
    assert _requested(installation) == [DAYS[0]]
    pl.concat([rows(*DAYS), rows(DAYS[3])]).write_delta(path, mode="overwrite")  # each sale of a day twice
    assert not installation.run(SALES, partition=DAYS[0], last=DAYS[4]).success
    assert _requested(installation) == [DAYS[3]]
    rows(*DAYS).write_delta(path, mode="overwrite")
    assert installation.run(SALES, partition=DAYS[3], last=DAYS[4]).success
    assert _requested(installation) == []

    late = pl.when(pl.col("sale") == rows(DAYS[1])["sale"][2])
    changed = late.then(pl.col("changed_at") + timedelta(days=9)).otherwise("changed_at")
    rows(*DAYS).with_columns(changed.alias("changed_at")).write_delta(path, mode="overwrite")
    assert _requested(installation) == [DAYS[1], DAYS[3]]
    assert installation.run(SALES, partition=DAYS[1]).success
    assert installation.run(SALES, partition=DAYS[3], last=DAYS[4]).success
    assert _requested(installation) == []


def _warnings(installation: Installation, run_id: str) -> list[str]:
    """Return the warnings that a run logged."""
    entries = installation.instance.all_logs(run_id)
    return [entry.user_message for entry in entries if entry.level == logging.WARNING]


def test_changes_dated_before_what_was_read_reopen_their_days(declare: Declare, path: str) -> None:
    """A transaction that took long dates its change back; a removed row takes its day's watermark back."""
    installation = declare({"kind": "delta", "path": path, "watermark_column": "changed_at", "watch": {}})
    assert installation.run(SALES, partition=DAYS[0], last=DAYS[4]).success
    assert _requested(installation) == []
    is_late = pl.col("sale") == rows(DAYS[3])["sale"][0]
    late = rows(*DAYS).with_columns(
        pl.when(is_late).then(pl.col("changed_at") + timedelta(hours=1)).otherwise("changed_at")
    )
    late.write_delta(path, mode="overwrite")
    assert _requested(installation) == [DAYS[3]]
    result = installation.run(SALES, partition=DAYS[3], last=DAYS[4])
    assert _warnings(installation, result.run_id) == []
    assert _requested(installation) == []
    late[:-1].write_delta(path, mode="overwrite")
    assert _requested(installation) == [DAYS[3]]
    result = installation.run(SALES, partition=DAYS[3], last=DAYS[4])
    assert result.success, failure_of(result)
    (said,) = _warnings(installation, result.run_id)
    assert said.startswith(f"{SALES} {DAYS[4]}: ")
    assert "clock was set back" in said
    assert _requested(installation) == []


def test_a_clock_that_was_set_back_is_named_and_its_days_read_again(
    declare: Declare, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    ahead = pl.when(pl.col("sale") == rows(DAYS[2])["sale"][0]).then(pl.lit(tomorrow)).otherwise("changed_at")
    rows(*DAYS).with_columns(ahead.dt.cast_time_unit("us").alias("changed_at")).write_delta(
        path, mode="overwrite"
    )
    installation = declare({"kind": "delta", "path": path, "watermark_column": "changed_at", "watch": {}})
    result = installation.run(SALES, partition=DAYS[0], last=DAYS[4])
    assert result.success, failure_of(result)
    assert _requested(installation) == [DAYS[2]]
    said = capsys.readouterr().err
    assert f"dated changes of {DAYS[2]} later" in said
    assert "materialize them once more" in said
