"""Rows chosen from a table in memory, whose partitions become files first."""

import tempfile
from pathlib import Path

import polars as pl

from ml_assets.data.features.encoding import FittedState
from ml_assets.data.snapshots.partitions import store_partitions
from ml_assets.data.snapshots.row_choice import ChosenRows, choose_rows
from ml_assets.data.snapshots.spec import InputColumns, RowSpec, Split
from ml_assets.data.snapshots.split_reader import SplitName

FOLDER = tempfile.TemporaryDirectory(prefix="tables-")
"""Folder of the tables, which lasts as long as this process: chosen rows are read again."""


def chosen_rows(
    table: pl.DataFrame, split: Split, spec: RowSpec, inputs: InputColumns | FittedState | None = None
) -> ChosenRows:
    """Choose rows of `table`; without `inputs` no column is fitted."""
    folder = Path(tempfile.mkdtemp(dir=FOLDER.name))
    partitions = store_partitions(table, spec.partition, folder)
    return choose_rows(partitions, split, spec, inputs or InputColumns(), into=folder / "runs")


def taken(chosen: ChosenRows, split: SplitName) -> pl.DataFrame:
    """Return the rows taken into `split`, with all columns but blobs."""
    schema = chosen.partitions[0].scan().collect_schema()
    columns = [name for name, dtype in schema.items() if dtype != pl.Binary]
    return pl.concat(chosen.parts(split, columns))
