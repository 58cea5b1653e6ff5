"""Rules by which the rows of one partition are taken, with the reason for each row that is left out.

A row is taken if its partition is in a split, its label was known by that split's cutoff, it has a blob (if rows have
blobs) and a weight above 0 (if rows have weights). If rows form lists, a list is taken with all of its rows or not at
all. Not here: counts over all partitions (row_choice).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import polars as pl

from ml_assets.data.snapshots.partitions import PartitionFiles
from ml_assets.data.snapshots.spec import RowSpec, Split
from ml_assets.data.snapshots.split_reader import SnapshotError
from ml_assets.foundation.objective_facts import Labels, facts_of

NO_LABEL = "label unknown"
LABEL_TOO_LATE = "label known after the cutoff"
NO_BLOB = "blob missing"
NO_WEIGHT = "weight is 0"
LIST_LACKS_ROWS = "list without all of its rows"
"""A row of the same list is left out. Without that row the others would be easier to order than they were."""
REASONS = (NO_LABEL, LABEL_TOO_LATE, NO_BLOB, NO_WEIGHT, LIST_LACKS_ROWS)
ROW = "_row"
"""Column: number of the row in the table, 0-based; of `marked_rows`, in the partition."""
KEY, SPLIT, REASON, BLOB_BYTES = "_key", "_split", "_reason", "_blob_bytes"
"""Columns of `marked_rows`: partition key, split, reason for which the row is left out (null: it is taken), and bytes
of the row's blob, only if rows have blobs."""
NAMED = 3
"""Rows that an error names."""
_VALUE = "_value"
_LEGAL: dict[Labels, tuple[Callable[[pl.Expr], pl.Expr], str, str]] = {
    "zero or one": (lambda label: label.is_in([0.0, 1.0]).not_(), "neither 0 nor 1", "0 or 1"),
    "counts": (
        lambda label: (label < 0) | (label != label.floor()),
        "negative or not a whole number",
        "a count",
    ),
    "relevance": (lambda label: label < 0, "negative", "0 or more"),
    "numbers of tokens": (
        lambda label: (label < 1) | (label != label.floor()),
        "less than 1 or not a whole number",
        "the number of tokens to predict",
    ),
}
"""Labels that must be special numbers → which are illegal, in words, and words for legal ones."""


def marked_rows(
    partition: PartitionFiles, split: Split, spec: RowSpec, columns: Sequence[str] = ()
) -> tuple[pl.DataFrame, int]:
    """Return the rows of a partition that are in a split, and the number of all its rows.

    They have the columns that the rules read, `columns`, and `ROW`, `KEY`, `SPLIT`, `REASON` and `BLOB_BYTES`. Blobs
    are not read, except for their sizes.
    """
    roles = [name for name in spec.columns if name != spec.blob]
    read = partition.scan().with_row_index(ROW).with_columns(pl.col(ROW).cast(pl.Int64))
    wanted: list[pl.Expr | str] = list(dict.fromkeys([ROW, *roles, *columns]))
    if spec.blob:
        wanted.append(pl.col(spec.blob).bin.size().alias(BLOB_BYTES))
    frame = read.select(wanted).collect(engine="streaming" if spec.blob else "auto")
    # A partition has few keys, mostly one, so each is made a text once.
    values = frame[spec.partition].unique()
    keys = values.cast(pl.String)
    splits = pl.Series([split.split_of.get(key) for key in keys], dtype=pl.String)
    in_split = frame.with_columns(
        _instead(spec.partition, values, keys).alias(KEY),
        _instead(spec.partition, values, splits).alias(SPLIT),
    ).filter(pl.col(SPLIT).is_not_null())
    return in_split.with_columns(_reason(spec).alias(REASON)), frame.height


def _instead(column: str, values: pl.Series, texts: pl.Series) -> pl.Expr:
    """Return `texts` in place of `values`, which are all those of a column."""
    if len(values) == 1:
        return pl.lit(texts[0], dtype=pl.String)
    return pl.col(column).replace_strict(values, texts, return_dtype=pl.String)


def _reason(spec: RowSpec) -> pl.Expr:
    unknown = pl.col(spec.label).is_null() | pl.col(spec.label_known_at).is_null()
    late = pl.any_horizontal(
        (pl.col(SPLIT) == name) & (pl.col(spec.label_known_at) > cutoff)
        for name, cutoff in spec.cutoffs.by_split.items()
    )
    lacks_blob = pl.col(BLOB_BYTES).is_null() if spec.blob else pl.lit(False)
    lacks_weight = pl.col(spec.weight).cast(pl.Float64) == 0 if spec.weight is not None else pl.lit(False)
    reason = (
        pl.when(unknown)
        .then(pl.lit(NO_LABEL))
        .when(late)
        .then(pl.lit(LABEL_TOO_LATE))
        .when(lacks_blob)
        .then(pl.lit(NO_BLOB))
        .when(lacks_weight)
        .then(pl.lit(NO_WEIGHT))
    )
    if spec.group is None:
        return reason
    lacks_rows = reason.is_not_null().any().over(spec.group)
    return pl.coalesce(reason, pl.when(lacks_rows).then(pl.lit(LIST_LACKS_ROWS)))


@dataclass(frozen=True, kw_only=True)
class RowCheck:
    """A fault that no row of a split may have, also if it is left out."""

    what: str
    column: str
    illegal: pl.Expr
    """True for a row with the fault."""
    found: str
    remedy: str


def checks_of(spec: RowSpec) -> list[RowCheck]:
    """Return the checks of labels and weights, in the order in which they are refused."""
    return [*_checks_of_labels(spec), *([] if spec.weight is None else _checks_of_weights(spec.weight))]


def _checks_of_labels(spec: RowSpec) -> list[RowCheck]:
    if spec.has_classes:
        return []
    label = pl.col(spec.label).cast(pl.Float64)
    legal = _LEGAL.get(facts_of(spec.objective).labels) if spec.objective is not None else None
    instead = "leave such texts out" if spec.has_tokens else "choose objective regression"
    is_illegal, found_illegal, should_be = legal or (lambda label: pl.lit(False), "", "")
    checks = (
        (label.is_nan() | label.is_infinite(), "NaN or infinite", "make it null where it is unknown"),
        (
            label.cast(pl.Float32).is_infinite(),
            "too large for float32",
            "let the feature function return it in a larger unit",
        ),
        (
            is_illegal(label),
            found_illegal,
            f"the objective is {spec.objective}. Make it {should_be} in the feature function, or {instead}",
        ),
    )
    return [
        RowCheck(what=f"label {spec.label!r}", column=spec.label, illegal=illegal, found=found, remedy=remedy)
        for illegal, found, remedy in checks
    ]


def _checks_of_weights(column: str) -> list[RowCheck]:
    """Refuse illegal weights, also in rows that are left out; a weight may be unknown as long as the label is."""
    weight = pl.col(column).cast(pl.Float64)
    checks = (
        (
            weight.is_null() & pl.col(REASON).is_null(),
            "null",
            "give each row with a label a weight, 0 if it should not count",
        ),
        (weight.is_nan() | weight.is_infinite(), "NaN or infinite", "give each row a number from 0"),
        (weight < 0, "negative", "give each row a number from 0; 0 leaves it out"),
    )
    what = f"weight {column!r} (features.weight)"
    return [
        RowCheck(what=what, column=column, illegal=illegal, found=found, remedy=remedy)
        for illegal, found, remedy in checks
    ]


def require_roles(schema: pl.Schema, spec: RowSpec) -> None:
    """Raise `SnapshotError` if a column of the rules is missing or has a type that they cannot read."""
    needed = [
        spec.partition,
        spec.label,
        spec.label_known_at,
        *(one for one in (spec.blob, spec.group, spec.weight) if one),
    ]
    missing = [c for c in needed if c not in schema]
    if missing:
        raise SnapshotError(f"the feature table has no column {missing}; it has {schema.names()}")
    known_at = schema[spec.label_known_at]
    if not (isinstance(known_at, pl.Datetime) and known_at.time_zone == "UTC"):
        raise SnapshotError(f"{spec.label_known_at!r} is {known_at}: it must be a datetime in UTC")
    label = schema[spec.label]
    if spec.has_classes:
        if not (label.is_integer() or isinstance(label, pl.Boolean | pl.String)):
            raise SnapshotError(
                f"label {spec.label!r} is {label}: the objective is {spec.objective}, whose classes are texts, whole "
                "numbers or booleans. Cast it in the feature function, or choose objective regression"
            )
    elif not (label.is_numeric() or label == pl.Boolean):
        raise SnapshotError(f"label {spec.label!r} is {label}: it must be a number or a boolean")
    if spec.weight is not None:
        weight = schema[spec.weight]
        if not (weight.is_numeric() or weight == pl.Boolean):
            raise SnapshotError(
                f"weight {spec.weight!r} is {weight}: it must be a number from 0, or a boolean"
            )
    if spec.blob and schema[spec.blob] != pl.Binary:
        raise SnapshotError(
            f"blobs {spec.blob!r} are {schema[spec.blob]}: they must be Binary, the bytes `decode` reads. Return "
            "bytes from the feature function, and say `dtype: binary` in the contract"
        )


@dataclass(frozen=True)
class Named:
    """Rows of which the first few are named."""

    rows: int = 0
    names: tuple[str, ...] = ()

    def __add__(self, later: "Named") -> "Named":
        return Named(self.rows + later.rows, (self.names + later.names)[:NAMED])

    def __str__(self) -> str:
        return "; ".join(self.names) + "; …" * (self.rows > NAMED)


def named_rows(
    partition: PartitionFiles, rows: pl.DataFrame, spec: RowSpec, column: str | None = None
) -> Named:
    """Name the first of `rows`, which have `ROW`, by primary key (by partition without a primary key), with their value
    of `column`, the label unless another is given. The key is read only now: a training does not need it."""
    if rows.is_empty():
        return Named()
    key = spec.primary_key or (spec.partition,)
    read = partition.scan(list(dict.fromkeys([*key, column or spec.label]))).collect()[rows[ROW].head(NAMED)]
    named = read.select(pl.col(*key).cast(pl.String), pl.col(column or spec.label).alias(_VALUE))
    return Named(
        rows.height,
        tuple(
            f"{', '.join(f'{name}={row[name]}' for name in key)} has {row[_VALUE]}"
            for row in named.iter_rows(named=True)
        ),
    )
