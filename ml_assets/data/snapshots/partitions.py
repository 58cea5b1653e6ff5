"""Partitions of a feature table as local files: what a snapshot is built from, one partition at a time.

Only the columns that are asked for leave the files. Not here: fetching the files (`tables.reader`), the rules by which
their rows are chosen (row_rules).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl


@dataclass(frozen=True, kw_only=True)
class PartitionFiles:
    """Parquet files of one partition."""

    key: str
    files: tuple[Path, ...]
    """At least one, in the order of the partition's rows."""

    def scan(self, columns: Sequence[str] | None = None) -> pl.LazyFrame:
        """Return the rows in their order, with these columns alone; None: all."""
        rows = pl.scan_parquet(list(self.files), glob=False)
        return rows if columns is None else rows.select(columns)


def store_partitions(table: pl.DataFrame, column: str, folder: Path) -> list[PartitionFiles]:
    """Write `table` to Parquet files in `folder`, one for each run of rows with the same key in `column`.

    For tables that are not in a lake. Rows keep their order.
    """
    folder.mkdir(parents=True, exist_ok=True)
    keys = table[column].cast(pl.String)
    begins = np.flatnonzero((keys != keys.shift()).fill_null(True).to_numpy()).tolist()
    stored: list[PartitionFiles] = []
    for number, (begin, end) in enumerate(zip(begins, [*begins[1:], table.height], strict=True)):
        file = folder / f"{number:05d}.parquet"
        table.slice(begin, end - begin).write_parquet(file)
        stored.append(PartitionFiles(key=str(keys[begin]), files=(file,)))
    return stored
