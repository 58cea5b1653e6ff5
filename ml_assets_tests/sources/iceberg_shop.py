"""An Iceberg table of sales that a test writes with pyiceberg, as another team would."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

NAME = ("shop", "sales")


@dataclass
class IcebergShop:
    """The table `shop.sales` of a catalog in a database."""

    address: str
    """Address of the catalog's database."""
    warehouse: str
    """Folder of the files: `file://…` or `s3://…`."""
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """pyiceberg's options for them."""

    @property
    def catalog(self) -> Any:
        """The catalog; its tables in the database are made at the first use."""
        from pyiceberg.catalog.sql import SqlCatalog

        address = self.address.replace("postgresql://", "postgresql+psycopg2://")
        return SqlCatalog("default", uri=address, warehouse=self.warehouse, **self.files)

    @property
    def table(self) -> Any:
        """The table as it is now."""
        return self.catalog.load_table(NAME)

    def make(self, frame: pl.DataFrame) -> None:
        """Make the table with the columns of `frame`, without rows. Iceberg has no 16-bit numbers."""
        self.catalog.create_namespace_if_not_exists(NAME[0])
        self.catalog.create_table(NAME, schema=_wide(frame).to_arrow().schema)

    def write(self, frame: pl.DataFrame) -> None:
        """Replace the table's rows; make it at the first call."""
        if not self.catalog.table_exists(NAME):
            self.make(frame)
        self.table.overwrite(_wide(frame).to_arrow())

    def append(self, frame: pl.DataFrame) -> None:
        """Add rows; make the table at the first call."""
        if not self.catalog.table_exists(NAME):
            self.make(frame)
        self.table.append(_wide(frame).to_arrow())

    def snapshots(self) -> list[Any]:
        """Return the table's snapshots that hold rows, oldest first."""
        return [one for one in self.table.snapshots() if one.summary.operation.value != "delete"]

    def rename(self, column: str, to: str) -> None:
        """Give a column another name."""
        with self.table.update_schema() as change:
            change.rename_column(column, to)

    def drop(self) -> None:
        """Remove the table from the catalog."""
        self.catalog.drop_table(NAME)

    def delete_files(self) -> None:
        """Delete all data files of a warehouse in a folder."""
        for file in Path(self.warehouse.removeprefix("file://")).rglob("*.parquet"):
            file.unlink()


def _wide(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(pl.selectors.by_dtype(pl.Int8, pl.Int16).cast(pl.Int32))
