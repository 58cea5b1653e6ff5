"""Which rows of a feature table a snapshot takes, and why it leaves others out.

A row is taken when its partition is in a split and its label was known by the cutoff. Not here: which
partitions those are (spec), writing the rows (builder).
"""

from dataclasses import dataclass

import polars as pl

from ml_assets.snapshots.reader import SPLITS, PartitionIndex, SnapshotError, SplitName
from ml_assets.snapshots.spec import RowSpec, Split

NO_LABEL = "label unknown"
LABEL_TOO_LATE = "label known after the cutoff"
ROW = "_row"
"""Column of `ChosenRows.of`: which row of the table it is, 0-based."""
_KEY, _SPLIT, _REASON = "_key", "_split", "_reason"


@dataclass(frozen=True, kw_only=True)
class ChosenRows:
    """The rows of the splits, in the order of the table."""

    split: Split
    spec: RowSpec
    frame: pl.DataFrame
    """All rows of the splits' partitions: the table's columns and four of this module's."""

    def of(self, split: SplitName) -> pl.DataFrame:
        """Rows taken into `split`, in the order of the table, with the columns of the table and `ROW`.

        `Snapshot.read` gives validation and holdout in this very order; training rows are dealt into shards.
        """
        taken = self.frame.filter((pl.col(_SPLIT) == split) & pl.col(_REASON).is_null())
        return taken.drop(_KEY, _SPLIT, _REASON)

    def index(self) -> tuple[PartitionIndex, ...]:
        """What became of every partition, in the order of the splits."""
        counts = self.frame.group_by(_KEY, _REASON).len("rows")
        found = {(key, reason): int(rows) for key, reason, rows in counts.iter_rows()}
        splits = self.split.split_of
        return tuple(
            PartitionIndex(
                key=key,
                split=splits[key],
                rows=found.get((key, None), 0),
                excluded={
                    reason: found[key, reason]
                    for reason in (NO_LABEL, LABEL_TOO_LATE)
                    if (key, reason) in found
                },
            )
            for key in self.split.keys
        )


def choose_rows(features: pl.DataFrame | pl.LazyFrame, split: Split, spec: RowSpec) -> ChosenRows:
    """Judge every row of `features`, sorted as its table is.

    Raises `SnapshotError` where a column is missing, a label is not a finite number, a time is not in UTC, or
    a split is left without rows; the message names partitions and reasons.
    """
    frame = features.lazy().with_row_index(ROW).collect()
    _check(frame, spec)
    unknown = pl.col(spec.label).is_null() | pl.col(spec.label_known_at).is_null()
    late = pl.col(spec.label_known_at) > spec.cutoff
    key = pl.col(spec.partition).cast(pl.String)
    chosen = ChosenRows(
        split=split,
        spec=spec,
        frame=frame.with_columns(
            pl.col(ROW).cast(pl.Int64),
            key.alias(_KEY),
            key.replace_strict(split.split_of, default=None, return_dtype=pl.String).alias(_SPLIT),
            pl.when(unknown).then(pl.lit(NO_LABEL)).when(late).then(pl.lit(LABEL_TOO_LATE)).alias(_REASON),
        ).filter(pl.col(_SPLIT).is_not_null()),
    )
    index = chosen.index()
    for name in SPLITS:
        partitions = [partition for partition in index if partition.split == name]
        if not any(partition.rows for partition in partitions):
            excluded = sum(sum(partition.excluded.values()) for partition in partitions)
            raise SnapshotError(
                f"the {name} split ({partitions[0].key} to {partitions[-1].key}) has no row: {excluded} were "
                f"left out because their label was not known by {spec.cutoff.isoformat()}. "
                "Move the window or the cutoff"
            )
    return chosen


def _check(frame: pl.DataFrame, spec: RowSpec) -> None:
    missing = [c for c in (spec.partition, spec.label, spec.label_known_at) if c not in frame.columns]
    if missing:
        raise SnapshotError(f"the feature table has no column {missing}; it has {frame.columns}")
    known_at = frame.schema[spec.label_known_at]
    if not (isinstance(known_at, pl.Datetime) and known_at.time_zone == "UTC"):
        raise SnapshotError(f"{spec.label_known_at!r} is {known_at}: it must be a datetime in UTC")
    label = frame[spec.label]
    if not (label.dtype.is_numeric() or label.dtype == pl.Boolean):
        raise SnapshotError(f"label {spec.label!r} is {label.dtype}: it must be a number or a boolean")
    broken = frame.height - int(label.drop_nulls().cast(pl.Float64).is_finite().sum()) - label.null_count()
    if broken:
        raise SnapshotError(
            f"label {spec.label!r} is NaN or infinite in {broken} rows: make it null where it is unknown"
        )
