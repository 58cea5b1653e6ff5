"""Index files of a snapshot: the rows of each split, as numbers of rows of the feature table.

The rows of a split are chosen once, when the snapshot is made. An evaluation reads the rows that the index names. Each
split has one delta-encoded Parquet file, in which row numbers of whole partitions take almost no space. Not here:
choosing rows (row_choice), the encoded copies of rows that training reads (shards).
"""

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ml_assets.snapshots.row_choice import ROW
from ml_assets.snapshots.spec import SnapshotError
from ml_assets.snapshots.split_reader import (
    SPLITS,
    Snapshot,
    SplitIndex,
    SplitName,
    file_sha256,
    index_name,
    verify_file,
)

_COLUMN = "row"


def write_index(folder: Path, split: SplitName, rows: NDArray[np.int64]) -> SplitIndex:
    """Write the index of a split: ascending row numbers of the table, 0-based."""
    pa: Any = import_module("pyarrow")  # it ships no types; `Any` keeps the rest of the module strict
    parquet: Any = import_module("pyarrow.parquet")
    path = folder / index_name(split)
    table = pa.table({_COLUMN: pa.array(rows, pa.int64())})
    encoding = {_COLUMN: "DELTA_BINARY_PACKED"}
    parquet.write_table(table, path, use_dictionary=False, column_encoding=encoding, compression="zstd")
    return SplitIndex(
        split=split, path=path.name, sha256=file_sha256(path), rows=len(rows), bytes=path.stat().st_size
    )


def read_index(snapshot: Snapshot, split: SplitName) -> NDArray[np.int64]:
    """Return the row numbers of a split, `[rows]`, ascending. `ShardChanged` if the file differs from the manifest."""
    index = snapshot.index_of(split)
    path = snapshot.folder / index.path
    verify_file(path, index)
    return pl.read_parquet(path)[_COLUMN].to_numpy()


def rows_of(table: pl.LazyFrame, snapshot: Snapshot) -> dict[SplitName, pl.DataFrame]:
    """Return split → its rows of `table`, from which `snapshot` was made.

    The rows have the table's columns without binary columns, and `ROW`. They are in the order of the table, as
    `ChosenRows.of` returned them for the snapshot. Raises `ShardChanged` for a damaged index, `SnapshotError` for a
    table that lacks rows.
    """
    schema = table.collect_schema()
    binary = [name for name, dtype in schema.items() if dtype == pl.Binary]
    numbered = table.with_row_index(ROW).with_columns(pl.col(ROW).cast(pl.Int64)).drop(binary)
    frame = numbered.collect(engine="streaming" if binary else "auto")
    found: dict[SplitName, pl.DataFrame] = {}
    for split in SPLITS:
        rows = read_index(snapshot, split)
        if len(rows) and rows[-1] >= frame.height:
            raise SnapshotError(
                f"the {split} split has row {rows[-1]}, but the table has {frame.height} rows: the snapshot "
                f"was made from another table. Launch the training again"
            )
        found[split] = frame[rows]
    return found
