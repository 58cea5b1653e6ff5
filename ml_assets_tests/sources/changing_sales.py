"""Sources of sales that change after they were read, and the ticks and runs that follow.

A test says what changes; nothing here knows what the sensor should request.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
from deltalake import DeltaTable
from hypothesis import strategies as st

from ml_assets.components import Dataset
from ml_assets.components.metadata import RANGE_END, RANGE_START, declared_tables
from ml_assets.data.sources.kinds import open_source, read_partitions
from ml_assets.data.tables.declared import NOTHING_DECLARED
from ml_assets.data.tables.publish.publish import publish
from ml_assets.data.tables.spec import PublishingRun
from ml_assets_tests.components.clock import clock_ahead
from ml_assets_tests.components.installation import Installation, component
from ml_assets_tests.sources.iceberg_shop import IcebergShop
from ml_assets_tests.sources.sales import DATASET, DAYS, SALES, rows

_CATALOG = "CHANGING_CATALOG"
ALL = {"watch": {"recheck": "5d"}}
"""Every day of the sales is compared at each tick."""


class ChangingSales(ABC):
    """The sales of five days at a source of one kind."""

    @property
    @abstractmethod
    def source(self) -> dict[str, Any]:
        """`source` section."""

    @abstractmethod
    def insert(self, frame: pl.DataFrame) -> None:
        """Add rows, in one transaction or in a file of their own for each day."""

    @abstractmethod
    def delete(self, sale: int) -> None:
        """Remove the row of a sale."""


class SalesFiles(ChangingSales):
    """A folder for each day; each insert is a new file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written = 0

    @property
    def source(self) -> dict[str, Any]:
        return {"kind": "file", "path": f"{self._folder}/%Y-%m-%d/part-*.parquet"}

    def insert(self, frame: pl.DataFrame) -> None:
        for (day,), part in frame.group_by(_local_day()):
            self._written += 1
            file = self._folder / f"{day}" / f"part-{self._written}.parquet"
            file.parent.mkdir(parents=True, exist_ok=True)
            part.write_parquet(file)

    def delete(self, sale: int) -> None:
        for file in sorted(self._folder.rglob("*.parquet")):
            found = pl.read_parquet(file)
            if sale in found["sale"]:
                found.filter(pl.col("sale") != sale).write_parquet(file)


class SalesDelta(ChangingSales):
    """A Delta table."""

    def __init__(self, folder: Path) -> None:
        self._path = str(folder / "sales")

    @property
    def source(self) -> dict[str, Any]:
        return {"kind": "delta", "path": self._path, "watermark_column": "changed_at"}

    def insert(self, frame: pl.DataFrame) -> None:
        frame.write_delta(self._path, mode="append")

    def delete(self, sale: int) -> None:
        DeltaTable(self._path).delete(f"sale = {sale}")


class SalesIceberg(ChangingSales):
    """An Iceberg table of a catalog in SQLite. Nothing dates its changes."""

    def __init__(self, folder: Path) -> None:
        place = folder / "iceberg"
        place.mkdir()
        self._shop = IcebergShop(f"sqlite:///{place}/catalog.db", f"file://{place}")
        os.environ[_CATALOG] = self._shop.address

    @property
    def source(self) -> dict[str, Any]:
        return {"kind": "iceberg", "catalog_env": _CATALOG, "table": "shop.sales"}

    def insert(self, frame: pl.DataFrame) -> None:
        self._shop.append(frame)

    def delete(self, sale: int) -> None:
        self._shop.table.delete(f"sale = {sale}")


def _local_day() -> pl.Expr:
    return pl.col("sold_at").dt.convert_time_zone("America/New_York").dt.date()


class SalesLake:
    """A home that ingests the sales: ticks of the sensor, and runs without Dagster's cost."""

    def __init__(self, home: Path, source: dict[str, Any]) -> None:
        dataset = component(Dataset, DATASET, source=source)
        assert isinstance(dataset, Dataset)
        self.dataset = dataset
        self.said = ""
        """Reason of the last tick that requested nothing."""
        self.installation = Installation(home, components=[dataset])
        self._cursor: str | None = None
        self._hours = 0

    @cached_property
    def _sensor(self) -> dg.SensorDefinition:
        return self.installation.defs.get_repository_def().get_sensor_def("sales_new_data")

    def tick(self) -> list[str]:
        """Evaluate the sensor, `retry_seconds` after the last time, and return the partitions that it requests."""
        here = self.installation
        resources = {"platform": here.platform, "tables": declared_tables(here.defs)}
        context = dg.build_sensor_context(instance=here.instance, resources=resources, cursor=self._cursor)
        self._hours += 1
        with clock_ahead(timedelta(hours=self._hours)):
            answer: Any = self._sensor(context)
        self._cursor, self.said = answer.cursor, str(answer.skip_reason)
        ranges = [(one.tags[RANGE_START], one.tags[RANGE_END]) for one in answer.run_requests or ()]
        return [day for first, last in ranges for day in DAYS if first <= day <= last]

    def read(self, days: Sequence[str]) -> None:
        """Read and publish days, as a run does. Each of them must land."""
        spec, platform = self.dataset.spec, self.installation.platform
        table = self.dataset.table
        with closing(open_source(spec.source, spec.source_table, platform)) as source:
            incoming = read_partitions(source, table.cadence, days, spec.require_closed)
            run = PublishingRun(run_id="changing")
            result = publish(platform.lake, platform.ledger, table, incoming, run, NOTHING_DECLARED)
        faults = [*result.failed.values(), *(one.verdict.explain() for one in result.rejected.values())]
        assert not faults, faults

    def follow(self) -> list[str]:
        """Tick and read what was requested; the next tick must request nothing."""
        asked = self.tick()
        if asked:
            self.read(asked)
            assert self.tick() == [], "what was read is not requested again"
        return asked

    def require(self, expected: pl.DataFrame) -> None:
        """Fail unless main holds exactly these rows, each on its day."""
        for day in DAYS:
            found = self.installation.main.scan(SALES, [day]).collect()
            wanted = expected.filter(_local_day() == date.fromisoformat(day))
            assert found.sort("sale").equals(wanted.sort("sale")), day


Change = tuple[str, int, str]
"""Event, number of the sale among those there are, and a day."""
CHANGES = st.tuples(
    st.sampled_from(["insert", "late", "move", "delete", "rewrite", "pause"]),
    st.integers(0, 20),
    st.sampled_from(DAYS),
)


def require_that_main_follows(sales: ChangingSales, lake: SalesLake, changes: Sequence[Change]) -> None:
    """Play a history of changes; after each tick and its runs, main must hold the rows of the source."""
    there = rows(*DAYS)
    sales.insert(there)
    assert lake.follow() == DAYS
    lake.require(there)
    for number, (what, which, day) in enumerate([*changes, ("pause", 0, DAYS[0])]):
        if what == "pause" or there.is_empty():
            lake.follow()
            lake.require(there)
            continue
        before = there[which % there.height]
        after = _changed(before, what, number, day)
        if what not in ("insert", "late"):
            sales.delete(before["sale"].item())
            there = there.filter(pl.col("sale") != before["sale"].item())
        if not after.is_empty():
            sales.insert(after)
            there = pl.concat([there, after])


def _changed(row: pl.DataFrame, what: str, number: int, day: str) -> pl.DataFrame:
    """Return a row after a change; empty if it was deleted. A late one has the oldest date of all changes."""
    on_day = rows(day)[1].with_columns(sold_at=pl.col("sold_at") + timedelta(seconds=number))
    match what:
        case "insert" | "late":
            oldest = pl.lit(datetime(2024, 1, 1, tzinfo=UTC)).cast(pl.Datetime("us", "UTC"))
            marked = oldest if what == "late" else pl.col("changed_at") + timedelta(days=3)
            return on_day.with_columns(sale=pl.lit(10_000_000 + number, dtype=pl.Int64), changed_at=marked)
        case "move":
            return row.with_columns(sold_at=pl.lit(on_day["sold_at"].item()).cast(pl.Datetime("us", "UTC")))
        case "rewrite":
            return row.with_columns(price=pl.lit(float(number)))
        case _:
            return row.clear()
