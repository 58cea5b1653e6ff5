"""Rows without a time, or of another partition: each is on main, in quarantine, or named in a rejection."""

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import write_deltalake

from ml_assets.data.sources.kinds import open_source
from ml_assets.data.sources.preview import preview
from ml_assets.data.sources.protocol import SourceReader
from ml_assets.data.tables.declared import NOTHING_DECLARED
from ml_assets.data.tables.layout import UNDATED
from ml_assets.data.tables.manifest import Reconciliation
from ml_assets.data.tables.publish.rejected import (
    NotReadmitted,
    accept_partition,
    quarantined_keys,
    quarantined_rows,
    readmit,
)
from ml_assets.data.validation.quarantine import COLUMN, REASON, RULE
from ml_assets.pages.partition_page import partition_page
from ml_assets_tests.components.installation import Installation, failure_of, materialized
from ml_assets_tests.sources import sales
from ml_assets_tests.sources.conftest import Declare
from ml_assets_tests.sources.hourly_sales import HOURLY
from ml_assets_tests.sources.sales import ANSWERS, DATASET, DAYS, SALES, rows
from resources.ledger import Person

SET_ASIDE = {"on_bad_rows": "quarantine", "quarantine": {"limit": 0.5}}
UNKNOWN = [900, 901]
"""Sales without a time."""


@pytest.fixture(autouse=True)
def _mended() -> Iterator[None]:
    yield
    ANSWERS.clear()


def without_time(*numbers: int) -> pl.DataFrame:
    """Return sales whose time is null."""
    return rows(*DAYS)[: len(numbers)].with_columns(
        pl.Series("sale", numbers, dtype=pl.Int64), sold_at=pl.lit(None, pl.Datetime("us", "UTC"))
    )


def at(moment: datetime, sale: int) -> pl.DataFrame:
    """Return one sale at a moment."""
    return rows(DAYS[0])[:1].with_columns(sale=pl.lit(sale, pl.Int64), sold_at=pl.lit(moment))


def write(place: Path, frame: pl.DataFrame) -> dict[str, Any]:
    """Write all rows of the source at `place`, a file or the folder of a Delta table; return its section."""
    if place.suffix:
        frame.write_parquet(place) if place.suffix == ".parquet" else frame.write_csv(place)
        return {"kind": "file", "path": str(place)}
    write_deltalake(place, frame.to_arrow(), mode="overwrite")
    return {"kind": "delta", "path": str(place)}


def reconciled(installation: Installation, day: str) -> Reconciliation | None:
    return installation.main.manifest(SALES, day).reconciliation


def open_reader(installation: Installation) -> SourceReader:
    spec = installation._components[0].spec  # pyright: ignore[reportPrivateUsage]
    return open_source(spec.source, spec.source_table, installation.platform)


PLACES = ["sales.parquet", "sales.csv", "delta"]


@pytest.mark.parametrize("place", PLACES)
def test_rows_without_a_time_reject_each_partition(declare: Declare, tmp_path: Path, place: str) -> None:
    source = write(tmp_path / place, pl.concat([rows(*DAYS), without_time(*UNKNOWN)]))
    installation = declare(source)
    said = failure_of(installation.run(SALES, partition=DAYS[1], last=DAYS[2]))
    assert "undated sold_at: 2 rows " in said
    assert "sale=900" in said
    assert installation.main.keys(SALES) == []
    for day in DAYS[1:3]:
        verdict = installation.platform.ledger.newest_verdicts(SALES, [day])[day]
        assert verdict.status == "rejected"
    write(tmp_path / place, rows(*DAYS))
    assert installation.run(SALES, partition=DAYS[1], last=DAYS[2]).success
    assert reconciled(installation, DAYS[1]) == Reconciliation(returned=3)


@pytest.mark.parametrize("place", PLACES)
def test_rows_without_a_time_are_set_aside_once(declare: Declare, tmp_path: Path, place: str) -> None:
    """Each partition is read with the same rows without a time. A correction at the source empties their place."""
    source = write(tmp_path / place, pl.concat([without_time(*UNKNOWN), rows(*DAYS)]))
    installation = declare(source, **SET_ASIDE)
    result = installation.run(SALES, partition=DAYS[0], last=DAYS[4])
    assert result.success, failure_of(result)
    reader = installation.main
    assert quarantined_keys(reader, SALES) == [UNDATED]
    aside = quarantined_rows(reader, SALES, UNDATED)
    assert aside["sale"].to_list() == UNKNOWN
    assert aside[RULE].unique().to_list() == ["undated"]
    assert aside[COLUMN].unique().to_list() == ["sold_at"]
    (reason,) = aside[REASON].unique()
    assert reason.startswith("undated of sold_at: ")
    assert reason.endswith(" 1 to 9999")
    assert reader.scan(SALES, DAYS).collect().equals(rows(*DAYS))
    assert reconciled(installation, DAYS[2]) == Reconciliation(returned=5, undated=2, quarantined=2)
    assert installation.run(SALES, partition=DAYS[3]).success
    assert installation.main.commit_id == reader.commit_id

    mended = pl.concat([rows(*DAYS), at(rows(DAYS[2])["sold_at"][1], UNKNOWN[0])])
    write(tmp_path / place, mended)
    assert installation.run(SALES, partition=DAYS[2]).success
    assert quarantined_keys(installation.main, SALES) == []
    assert installation.main.scan(SALES, [DAYS[2]]).collect()["sale"].to_list()[0] == UNKNOWN[0]


def test_too_many_rows_without_a_time_reject_the_partition(declare: Declare, tmp_path: Path) -> None:
    """The limit counts all rows of the table: 2 of 15 are too many for 0.1, although the day has 3."""
    source = write(tmp_path / "all.parquet", pl.concat([rows(*DAYS), without_time(*UNKNOWN)]))
    installation = declare(source, **SET_ASIDE | {"quarantine": {"limit": 0.1}})
    said = failure_of(installation.run(SALES, partition=DAYS[0], last=DAYS[4]))
    assert re.search(r"undated sold_at: 2 rows .*the 15 rows", said, re.DOTALL)
    assert installation.main.tables() == []


def test_rows_without_a_time_are_not_readmitted(declare: Declare, tmp_path: Path) -> None:
    source = write(tmp_path / "all.parquet", pl.concat([rows(*DAYS), without_time(*UNKNOWN)]))
    installation = declare(source, **SET_ASIDE)
    assert installation.run(SALES, partition=DAYS[0], last=DAYS[4]).success
    platform, table = installation.platform, installation._components[0].table  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(NotReadmitted, match=f"without a time of {SALES} "):
        readmit(platform.lake, platform.ledger, table, UNDATED, Person.unchecked("ada"), NOTHING_DECLARED)


def test_a_partition_accepted_without_rows_is_not_readmitted(declare: Declare, tmp_path: Path) -> None:
    """Its rows without a time are nowhere, so nothing else can make its sums agree."""
    day, odd = DAYS[1], rows(DAYS[1])[:1].with_columns(sale=pl.lit(7, pl.Int64), product=pl.lit("tea " * 99))
    source = write(tmp_path / "all.parquet", pl.concat([rows(*DAYS), odd, without_time(*UNKNOWN)]))
    few = SET_ASIDE | {"quarantine": {"limit": 0.3}}
    columns = [
        one | ({"max_length": 9} if one["name"] == "product" else {})
        for one in DATASET["contract"]["columns"]
    ]
    installation = declare(source, contract=DATASET["contract"] | {"columns": columns}, **few)
    assert "undated sold_at: 2 rows " in failure_of(installation.run(SALES, partition=day))
    platform, ada = installation.platform, Person.unchecked("ada")
    accept_partition(platform.lake, platform.ledger, SALES, day, ada, "closed")
    assert quarantined_keys(installation.main, SALES) == [day]
    wider = declare(source, **few)._components[0].table  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(NotReadmitted, match=f"{SALES} {day} .*accepted without 2 rows "):
        readmit(platform.lake, platform.ledger, wider, day, ada, NOTHING_DECLARED)


@pytest.mark.parametrize("place", ["all.parquet", "delta"])
def test_a_time_that_no_calendar_has_is_no_time(declare: Declare, tmp_path: Path, place: str) -> None:
    """The newest day is that of the newest row with a time. polars panics where it formats such a moment."""
    beyond = pl.Series([2**62, -(2**62)], dtype=pl.Int64).cast(pl.Datetime("us", "UTC"))
    strange = without_time(*UNKNOWN).with_columns(sold_at=beyond)
    source = write(tmp_path / place, pl.concat([rows(*DAYS), strange]))
    installation = declare(source, **SET_ASIDE)
    if place == "delta":
        assert open_reader(installation).latest() == date.fromisoformat(DAYS[-1])
    spec = installation._components[0].spec  # pyright: ignore[reportPrivateUsage]
    assert str(preview(spec.source, spec.source_table, installation.platform).rows)
    result = installation.run(SALES, partition=DAYS[0], last=DAYS[4])
    assert result.success, failure_of(result)
    assert quarantined_rows(installation.main, SALES, UNDATED)["sale"].to_list() == UNKNOWN


def test_a_row_without_a_time_belongs_to_the_day_of_its_path(declare: Declare, tmp_path: Path) -> None:
    for day in DAYS[:2]:
        rows(day).write_parquet(tmp_path / f"{day}.parquet")
    bad = pl.concat([rows(DAYS[2]), without_time(900)])
    bad.write_parquet(tmp_path / f"{DAYS[2]}.parquet")
    source = {"kind": "file", "path": f"{tmp_path}/%Y-%m-%d.parquet"}
    installation = declare(source, **SET_ASIDE)
    assert installation.run(SALES, partition=DAYS[0], last=DAYS[2]).success
    assert quarantined_keys(installation.main, SALES) == [DAYS[2]]
    assert reconciled(installation, DAYS[2]) == Reconciliation(returned=4, undated=1, quarantined=1)
    assert reconciled(installation, DAYS[1]) == Reconciliation(returned=3)


def test_rows_of_another_day_are_counted_and_set_aside(declare: Declare) -> None:
    ANSWERS[DAYS[1]] = lambda: pl.concat([rows(DAYS[1]), rows(DAYS[3])[:1], without_time(900)])
    installation = declare({"function": f"{sales.__name__}.read"}, **SET_ASIDE)
    result = installation.run(SALES, partition=DAYS[1])
    assert result.success, failure_of(result)
    expected = Reconciliation(returned=5, undated=1, outside=1, quarantined=2)
    assert reconciled(installation, DAYS[1]) == expected


@pytest.mark.parametrize("place", PLACES)
def test_other_dates_of_a_row_without_a_time_stay_as_they_are(
    declare: Declare, tmp_path: Path, place: str
) -> None:
    """The last day of the year 9999, which many tables write for `never`, became null in quarantine."""
    never = datetime(9999, 12, 31, tzinfo=UTC)
    undated = without_time(900).with_columns(changed_at=pl.lit(never).dt.cast_time_unit("us"))
    installation = declare(write(tmp_path / place, pl.concat([rows(*DAYS), undated])), **SET_ASIDE)
    result = installation.run(SALES, partition=DAYS[1])
    assert result.success, failure_of(result)
    assert quarantined_rows(installation.main, SALES, UNDATED)["changed_at"].to_list() == [never]


def test_the_pages_of_a_partition_count_the_rows_of_its_source(declare: Declare, tmp_path: Path) -> None:
    source = write(tmp_path / "all.parquet", pl.concat([rows(*DAYS), without_time(*UNKNOWN)]))
    installation = declare(source, **SET_ASIDE)
    result = installation.run(SALES, partition=DAYS[0], last=DAYS[4])
    said = "5 returned: 3 here, 2 in quarantine; 2 without a time"
    assert materialized(result, SALES)[DAYS[4]].metadata["rows of the source"].value == said
    assert said in partition_page(installation.platform, SALES, DAYS[1], draw=False).to_markdown()


def test_hours_of_a_day_file_lose_no_row(declare: Declare, tmp_path: Path) -> None:
    """The path tells the day. Rows without a time, or with one of another day, were in no hour."""
    noon = datetime(2024, 3, 8, 12, tzinfo=UTC)
    strays = pl.concat([without_time(900), at(noon + timedelta(days=3), 901)])
    pl.concat([at(noon, 1), strays]).write_parquet(tmp_path / "2024-03-08.parquet")
    source = {"kind": "file", "path": f"{tmp_path}/%Y-%m-%d.parquet"}
    installation = declare(source, **HOURLY | {"on_bad_rows": "quarantine", "quarantine": {"limit": 1}})
    assert installation.run(SALES, partition="2024-03-08T12").success
    assert quarantined_keys(installation.main, SALES) == []
    result = installation.run(SALES, partition="2024-03-08T00")
    assert result.success, failure_of(result)
    assert quarantined_rows(installation.main, SALES, "2024-03-08T00")["sale"].to_list() == [900, 901]
    assert reconciled(installation, "2024-03-08T12") == Reconciliation(returned=1)
    expected = Reconciliation(returned=2, undated=1, outside=1, quarantined=2)
    assert reconciled(installation, "2024-03-08T00") == expected
