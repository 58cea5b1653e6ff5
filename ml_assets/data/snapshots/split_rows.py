"""Rows of each split of a snapshot, read from the table from which it was made.

Not here: the numbers of these rows (index), choosing them (row_choice).
"""

import polars as pl

from ml_assets.data.snapshots.index import read_index
from ml_assets.data.snapshots.row_choice import ROW
from ml_assets.data.snapshots.spec import SnapshotError
from ml_assets.data.snapshots.split_reader import SPLITS, Snapshot, SplitName


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
