"""Index files of a snapshot: the rows of each split, as numbers of rows of the feature table.

The rows of a split are chosen once, when the snapshot is made. An evaluation reads the rows that the index names. Each
split has one delta-encoded Parquet file, in which row numbers of whole partitions take almost no space. Not here:
choosing rows (row_choice), reading them from the table (split_rows), the encoded copies that training reads (shards).
"""

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml_assets.data.snapshots.split_reader import (
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
    path = folder / index_name(split)
    table = pa.table({_COLUMN: pa.array(rows, pa.int64())})
    encoding = {_COLUMN: "DELTA_BINARY_PACKED"}
    _parquet().write_table(table, path, use_dictionary=False, column_encoding=encoding, compression="zstd")
    return SplitIndex(
        split=split, path=path.name, sha256=file_sha256(path), rows=len(rows), bytes=path.stat().st_size
    )


def read_index(snapshot: Snapshot, split: SplitName) -> NDArray[np.int64]:
    """Return the row numbers of a split, `[rows]`, ascending. `ShardChanged` if the file differs from the manifest."""
    index = snapshot.index_of(split)
    path = snapshot.folder / index.path
    verify_file(path, index)
    rows: NDArray[np.int64] = _parquet().read_table(path)[_COLUMN].to_numpy()
    return rows


def _parquet() -> Any:
    return import_module("pyarrow.parquet")
