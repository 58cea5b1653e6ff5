"""An Iceberg table as a source: days by the contract's event time, snapshots, changed columns, wrong addresses."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ml_assets.components import Dataset
from ml_assets.components.documents import attribute_faults
from ml_assets_tests.components.installation import failure_of, materialized
from ml_assets_tests.sources.conftest import Declare
from ml_assets_tests.sources.iceberg_shop import IcebergShop
from ml_assets_tests.sources.landed_sales import require_every_day
from ml_assets_tests.sources.sales import DATASET, DAYS, SALES, rows

SECTION = {"kind": "iceberg", "catalog_env": "SHOP_CATALOG", "table": "shop.sales"}


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> IcebergShop:
    """A table of two snapshots that replace its rows: half the price in the first."""
    folder = tmp_path / "iceberg"
    folder.mkdir()
    shop = IcebergShop(f"sqlite:///{folder}/catalog.db", f"file://{folder}")
    shop.write(rows(*DAYS).with_columns(pl.col("price") / 2))
    shop.write(rows(*DAYS))
    monkeypatch.setenv("SHOP_CATALOG", shop.address)
    return shop


def test_each_day_lands_with_the_rows_of_its_time_zone(declare: Declare, shop: IcebergShop) -> None:
    installation = declare({**SECTION, "watermark_column": "changed_at"})
    result = installation.run(SALES, partition=DAYS[0], last=DAYS[4])
    assert result.success, failure_of(result)
    require_every_day(installation)
    shown = materialized(result, SALES)[DAYS[4]].metadata["source watermark"].value
    assert datetime.fromisoformat(str(shown)) == rows(DAYS[4])["changed_at"].max()


def test_a_snapshot_and_a_moment_choose_the_rows(declare: Declare, shop: IcebergShop) -> None:
    first, *_, last = shop.snapshots()
    between = datetime.fromtimestamp((last.timestamp_ms - 0.5) / 1000, UTC)
    for choice, factor in (
        ({"snapshot": first.snapshot_id}, 2),
        ({"as_of": datetime.fromtimestamp(first.timestamp_ms / 1000, UTC).isoformat()}, 2),
        ({"as_of": (between + timedelta(days=1)).isoformat()}, 1),
    ):
        installation = declare(SECTION | choice)
        result = installation.run(SALES, partition=DAYS[0])
        assert result.success, failure_of(result)
        expected = rows(DAYS[0]).with_columns(pl.col("price") / factor)
        assert installation.main.scan(SALES, [DAYS[0]]).collect().equals(expected)


def test_deleted_rows_and_added_columns_are_seen(declare: Declare, shop: IcebergShop) -> None:
    """Iceberg has its own deletes and changes of columns; both count."""
    gone = rows(DAYS[0])["sale"][0]
    shop.table.delete(f"sale = {gone}")
    installation = declare(SECTION)
    assert installation.run(SALES, partition=DAYS[0]).success
    assert installation.main.scan(SALES, [DAYS[0]]).collect().equals(rows(DAYS[0])[1:])
    shop.rename("gift", "present")
    said = failure_of(declare(SECTION).run(SALES, partition=DAYS[0]))
    assert "added: present (bool);" in said
    assert "removed: gift (bool)" in said
    assert "in the Iceberg table" in said


def test_snapshots_that_are_gone_are_refused_by_name(declare: Declare, shop: IcebergShop) -> None:
    assert declare(SECTION).run(SALES, partition=DAYS[0]).success
    first, *_ = shop.snapshots()
    early = datetime.now(UTC) - timedelta(days=900)
    shop.table.maintenance.expire_snapshots().by_id(first.snapshot_id).commit()
    for choice, said in (
        ({"snapshot": first.snapshot_id}, f"has no snapshot {first.snapshot_id}, or it has expired"),
        ({"as_of": early.isoformat()}, "has no snapshot as old as"),
    ):
        installation = declare(SECTION | choice)
        before = installation.main.digests(SALES)
        assert said in failure_of(installation.run(SALES, partition=DAYS[0]))
        assert installation.main.digests(SALES) == before
    shop.delete_files()
    said = failure_of(declare(SECTION).run(SALES, partition=DAYS[1]))
    assert "its snapshot expired" in said


def test_a_table_without_a_snapshot_has_empty_days(declare: Declare, shop: IcebergShop) -> None:
    shop.drop()
    shop.make(rows(*DAYS))
    installation = declare(SECTION)
    result = installation.run(SALES, partition=DAYS[0])
    assert result.success, failure_of(result)
    assert installation.main.scan(SALES, [DAYS[0]]).collect().height == 0


@pytest.mark.parametrize(
    ("source", "variable", "said"),
    [
        ({"table": "shop.other"}, None, "there is no table shop.other in the catalog 'default'"),
        ({"catalog": "second"}, None, "there is no table shop.sales in the catalog 'second'"),
        ({}, "", "the environment variable SHOP_CATALOG is not set"),
        ({}, "https://u:secret@catalog", "holds no address of a catalog in PostgreSQL or SQLite"),
        ({}, "sqlite:////nowhere/catalog.db", "unable to open database file"),
    ],
)
def test_a_wrong_address_or_name_is_told(
    declare: Declare,
    shop: IcebergShop,
    monkeypatch: pytest.MonkeyPatch,
    source: dict[str, Any],
    variable: str | None,
    said: str,
) -> None:
    if variable is not None:
        monkeypatch.setenv("SHOP_CATALOG", variable)
    if variable == "":
        monkeypatch.delenv("SHOP_CATALOG")
    message = failure_of(declare(SECTION | source).run(SALES, partition=DAYS[0]))
    assert said in message
    assert "secret" not in message


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"snapshot": 1, "as_of": "2024-01-01T00:00:00Z"}, "leave one out"),
        ({"catalog_env": "postgresql://u:p@h/d"}, "write the name of an environment variable"),
        ({"table": "sales"}, "pattern"),
        ({"tabel": "x"}, "did you mean 'table'?"),
    ],
)
def test_wrong_keys_are_named(source: dict[str, object], said: str) -> None:
    faults = attribute_faults(Dataset.get_model_cls(), DATASET | {"source": SECTION | source})
    assert any(said in words for _, words in faults), faults
