"""A source that changes its past does not change what features of the past knew (`known_at: ingestion`)."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ml_assets.components import Dataset, FeatureTable
from ml_assets.components.metadata import declared_tables
from ml_assets.data.tables.guard import WindowValidation, validate_window
from ml_assets.pages.partition_page import users_of
from ml_assets_tests.components.installation import Installation, component, failure_of, versions

HERE = "ml_assets_tests.components.test_corrections"
SALES, RATES, SUMS = "datasets/sales", "datasets/rates", "features/sums"
TODAY = datetime.now(UTC).date()
DAYS = [(TODAY + timedelta(n)).isoformat() for n in range(-5, 4)]
"""Days before today, over by now, and days that begin after every correction of a test."""
PAST, AFTER = DAYS[:4], DAYS[7:]

SOLD: dict[str, float] = {}
"""Day → what the source says was sold, if it is not 1."""
RATE = {"rate": 1.0}


class _Later(datetime):
    """Clock of the sources: all days of the tests are over, so their partitions may be read."""

    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return datetime.now(tz) + timedelta(days=5)


@pytest.fixture(autouse=True)
def source_of_first_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reset the source."""
    monkeypatch.setattr("ml_assets.components.specs.datetime", _Later)
    SOLD.clear()
    RATE["rate"] = 1.0


def read_sales(day: date) -> pl.DataFrame:
    """Return two sales of a day. Nothing says when they became known."""
    sold = SOLD.get(day.isoformat(), 1.0)
    return pl.DataFrame({"day": [day, day], "shop": ["north", "south"], "sold": [sold, 2 * sold]})


def read_rates() -> pl.DataFrame:
    """Return the rate of the day of asking."""
    return pl.DataFrame({"rate": [RATE["rate"]]})


def sums(inputs: Mapping[str, pl.LazyFrame], first: date, last: date) -> pl.LazyFrame:
    """Return for each day what was sold on it and on the eight days before, times the rate."""
    every = pl.LazyFrame({"partition_date": pl.date_range(first, last, eager=True)})
    days = pl.col("day").is_between(pl.col("partition_date") - timedelta(days=8), pl.col("partition_date"))
    summed = (
        every.join(inputs[SALES], how="cross")
        .filter(days)
        .group_by("partition_date")
        .agg(pl.col("sold").sum())
    )
    return summed.join(inputs[RATES], how="cross").select(
        "partition_date",
        pl.col("partition_date").cast(pl.Datetime("us", "UTC")).alias("predicted_at"),
        pl.col("sold") * pl.col("rate"),
    )


def _components(known_at: Mapping[str, Any], most: float = 1e6) -> list[Any]:
    partitions = {"cadence": "daily", "start": DAYS[0], "end": DAYS[-1]}
    sales = {
        "name": "sales",
        "source": {"function": f"{HERE}.read_sales"},
        "partitions": partitions,
        "contract": {
            "primary_key": ["day", "shop"],
            "columns": [
                {"name": "day", "dtype": "date"},
                {"name": "shop", "dtype": "string"},
                {"name": "sold", "dtype": "float64", "le": most},
            ],
        },
        **known_at,
    }
    rates = {
        "name": "rates",
        "source": {"function": f"{HERE}.read_rates"},
        "contract": {"columns": [{"name": "rate", "dtype": "float64"}]},
        **known_at,
    }
    table = {
        "name": "sums",
        "function": f"{HERE}.sums",
        "inputs": [{"table": SALES, "lookback": 8}, {"table": RATES, "lookback": "all"}],
        "partitions": partitions,
        "leakage_check": "off",
        "contract": {
            "primary_key": ["partition_date"],
            "columns": [
                {"name": "partition_date", "dtype": "date"},
                {"name": "predicted_at", "dtype": "datetime"},
                {"name": "sold", "dtype": "float64"},
            ],
        },
    }
    return [component(Dataset, sales), component(Dataset, rates), component(FeatureTable, table)]


def _installation(folder: Path, **known_at: Any) -> Installation:
    found = Installation(folder, _components(known_at))
    _launch(found, SALES, DAYS)
    _launch(found, RATES)
    return found


def _launch(installation: Installation, table: str, days: list[str] | None = None) -> dict[str | None, str]:
    which = {"partition": days[0], "last": days[-1]} if days else {}
    result = installation.run(table, **which)
    assert result.success, failure_of(result)
    return versions(result, table)


def _guard(installation: Installation) -> WindowValidation:
    tables = declared_tables(installation.defs)
    return validate_window(installation.main, installation.platform.ledger, tables, SUMS, DAYS)


def _stale(installation: Installation) -> Mapping[str, str]:
    return _guard(installation).stale


def _sold(installation: Installation, day: str) -> float:
    return installation.main.scan(SUMS, [day]).collect()["sold"].item()


def test_a_correction_changes_no_features_of_the_past(tmp_path: Path) -> None:
    """Tables with partitions and without, whether days are built at once or alone."""
    here = _installation(tmp_path, known_at="ingestion")
    before = _launch(here, SUMS, DAYS)
    head = here.main.commit_id
    _launch(here, SALES, DAYS)
    assert here.main.commit_id == head, "equal rows are no correction"
    SOLD[PAST[0]] = 100.0
    _launch(here, SALES, PAST[:1])
    RATE["rate"] = 2.0
    _launch(here, RATES)
    stale = _stale(here)
    assert set(AFTER) <= set(stale)
    assert not set(PAST) & set(stale)
    assert stale[AFTER[0]] == f"{SALES} {PAST[0]} changed; {RATES} all changed"
    at_once = _launch(here, SUMS, DAYS)
    assert {day: at_once[day] for day in PAST} == {day: before[day] for day in PAST}, "bit for bit"
    assert (_sold(here, PAST[3]), _sold(here, AFTER[0])) == (3 * 4, 2 * (3 * 7 + 300))
    assert not _stale(here)
    used = users_of(here.platform, here.main, SALES, PAST[0])
    assert (used.tables_of_earlier_rows[SUMS][0], used.tables[SUMS][-1]) == (PAST[0], DAYS[8])
    assert not set(used.tables_of_earlier_rows[SUMS]) & set(used.tables[SUMS])
    for day in (PAST[3], AFTER[0]):
        assert _launch(here, SUMS, [day]) == {day: at_once[day]}


def test_features_of_the_past_do_not_keep_rows_that_were_rejected(tmp_path: Path) -> None:
    """A stricter contract rejects what was known. The features are built again from what replaced it."""
    SOLD[PAST[0]] = 1000.0
    here = _installation(tmp_path, known_at="ingestion")
    _launch(here, SUMS, DAYS)
    strict = here.declared_as(_components({"known_at": "ingestion"}, most=500.0))
    assert not strict.run(SALES, partition=PAST[0]).success
    del SOLD[PAST[0]]
    _launch(strict, SALES, DAYS)
    assert PAST[0] in _guard(strict).barred
    _launch(strict, SUMS, DAYS)
    assert _sold(strict, PAST[0]) == 3
    assert _guard(strict).ok
    assert not _stale(strict)


@pytest.mark.nightly
def test_without_the_declaration_a_correction_rewrites_the_past(tmp_path: Path) -> None:
    """Also if it was removed: at the next ingest."""
    here = _installation(tmp_path, known_at="ingestion")
    _launch(here, SUMS, DAYS)
    SOLD[PAST[0]] = 100.0
    _launch(here, SALES, PAST[:1])
    rewriting = here.declared_as(_components({}))
    _launch(rewriting, SALES, DAYS)
    assert PAST[0] in _stale(rewriting)
    _launch(rewriting, SUMS, DAYS)
    assert _sold(rewriting, PAST[0]) == 300
    SOLD[PAST[0]] = 50.0
    _launch(rewriting, SALES, PAST[:1])
    assert PAST[0] in _stale(rewriting)
