"""Choice of a snapshot's rows from a feature table, with the reasons for leaving out others.

A row is taken if its partition is in a split, its label was known by that split's cutoff, it has a blob (if rows have
blobs) and a weight above 0 (if rows have weights). If rows form lists, a list is taken with all of its rows or not at
all. Blobs are never in memory all at once. Not here: choosing the partitions (spec), writing the rows (builder).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from ml_assets.data.features.encoding import class_ids, fit_classes
from ml_assets.data.snapshots.spec import RowSpec, Split
from ml_assets.data.snapshots.split_reader import SPLITS, PartitionIndex, SnapshotError, SplitName
from ml_assets.foundation.objective_facts import Labels, facts_of
from resources.words import counted, name_some

NO_LABEL = "label unknown"
LABEL_TOO_LATE = "label known after the cutoff"
NO_BLOB = "blob missing"
NO_WEIGHT = "weight is 0"
LIST_LACKS_ROWS = "list without all of its rows"
"""A row of the same list is left out. Without that row the others would be easier to order than they were."""
ROW = "_row"
"""Column of `ChosenRows.of`: number of the row in the table, 0-based."""
LIST = "_list"
"""Column of `ChosenRows.of`: number of the first taken row of the row's list. Only if rows form lists."""
WEIGHT = "_weight"
"""Column of `ChosenRows.of`: weight of the row, divided by the mean weight of the split. Only if rows have weights."""
_KEY, _SPLIT, _REASON, _BLOB_BYTES = "_key", "_split", "_reason", "_blob_bytes"
_VALUE = "_value"
_LEAST_WEIGHT = 2.0**-126
"""Smallest normal float32."""
MOST_CLASSES = 256
"""Classes that a label may have."""
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
_NAMED = 3
"""Rows that an error names."""
_BLOBS_AT_ONCE = 64 * 2**20
"""Approximate bytes of blobs to read from the table at once."""
_BLOBS_AT_FIRST = 16
"""Blobs to read first, while their size is unknown."""


@dataclass(frozen=True, kw_only=True)
class ChosenRows:
    """Rows of the splits, in the order of the table."""

    split: Split
    spec: RowSpec
    frame: pl.DataFrame
    """All rows of the splits' partitions: the table's columns without binary columns, and helper columns."""
    blob: pl.LazyFrame | None = None
    """Column of blobs, for each row of the table; None if rows have no blobs."""

    def of(self, split: SplitName) -> pl.DataFrame:
        """Return the rows taken into `split`, in the order of the table, with the columns of the table and `ROW`.

        `Snapshot.read` returns validation and holdout rows in the same order, or list by list. Training rows are spread
        over shards.
        """
        taken = self.frame.filter((pl.col(_SPLIT) == split) & pl.col(_REASON).is_null())
        if self.spec.group is not None:
            taken = taken.with_columns(pl.col(ROW).min().over(self.spec.group).alias(LIST))
        if self.spec.weight is not None:
            # Their sum is the number of rows, so that learning rates and losses keep their meaning in any unit.
            weight = pl.col(self.spec.weight).cast(pl.Float64)
            weight = weight / weight.max()  # first, because the sum of the weights themselves may be infinite
            taken = taken.with_columns((weight / weight.mean()).alias(WEIGHT))
        return taken.drop(_KEY, _SPLIT, _REASON, _BLOB_BYTES, strict=False)

    def blob_bytes(self, split: SplitName) -> float:
        """Return the mean bytes of a blob over the rows taken into `split`; 0 if rows have no blobs."""
        if self.blob is None:
            return 0.0
        taken = self.frame.filter((pl.col(_SPLIT) == split) & pl.col(_REASON).is_null())
        return float(taken[_BLOB_BYTES].to_numpy().mean())

    def blobs(self) -> Iterator[tuple[int, pl.Series]]:
        """Yield the blobs of all rows of the table in order, in parts, each with the number of its first row."""
        if self.blob is None:
            return
        mean = self.frame[_BLOB_BYTES].fill_null(0).to_numpy().mean()
        rows, first = max(1, int(_BLOBS_AT_ONCE / max(mean, 1.0))), 0
        while len(part := self.blob.slice(first, rows).collect().to_series()):
            yield first, part
            first += rows

    def index(self) -> tuple[PartitionIndex, ...]:
        """Return the outcome of every partition, in the order of the splits."""
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
                    for reason in (NO_LABEL, LABEL_TOO_LATE, NO_BLOB, NO_WEIGHT, LIST_LACKS_ROWS)
                    if (key, reason) in found
                },
            )
            for key in self.split.keys
        )


def choose_rows(features: pl.DataFrame | pl.LazyFrame, split: Split, spec: RowSpec) -> ChosenRows:
    """Choose the rows of each split from `features`, which are in the order of their table.

    Raises `SnapshotError` if a column is missing, a label is not a finite number or is illegal for the objective, a
    weight is not a number from 0, all training rows have the same label, a time is not in UTC, blobs are not bytes, or
    a split has no rows. The message names rows or partitions, and reasons.
    """
    table = features.lazy()
    _check_columns(table.collect_schema(), spec)
    bytes_of_rows = [name for name, dtype in table.collect_schema().items() if dtype == pl.Binary]
    sized = table.with_row_index(ROW)
    if spec.blob:
        sized = sized.with_columns(pl.col(spec.blob).bin.size().alias(_BLOB_BYTES))
    frame = sized.drop(bytes_of_rows).collect(engine="streaming" if spec.blob else "auto")
    unknown = pl.col(spec.label).is_null() | pl.col(spec.label_known_at).is_null()
    late = pl.any_horizontal(
        (pl.col(_SPLIT) == name) & (pl.col(spec.label_known_at) > cutoff)
        for name, cutoff in spec.cutoffs.by_split.items()
    )
    lacks_blob = pl.col(_BLOB_BYTES).is_null() if spec.blob else pl.lit(False)
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
    if spec.group is not None:
        lacks_rows = reason.is_not_null().any().over(spec.group)
        reason = pl.coalesce(reason, pl.when(lacks_rows).then(pl.lit(LIST_LACKS_ROWS)))
    key = pl.col(spec.partition).cast(pl.String)
    chosen = ChosenRows(
        split=split,
        spec=spec,
        frame=frame.with_columns(
            pl.col(ROW).cast(pl.Int64),
            key.alias(_KEY),
            key.replace_strict(split.split_of, default=None, return_dtype=pl.String).alias(_SPLIT),
        )
        .filter(pl.col(_SPLIT).is_not_null())
        .with_columns(reason.alias(_REASON)),
        blob=table.select(spec.blob) if spec.blob else None,
    )
    _check_labels(chosen)
    if spec.weight is not None:
        _check_weights(chosen, spec.weight)
    if spec.group is not None:
        _check_lists(chosen, spec.group)
    index = chosen.index()
    for name in SPLITS:
        partitions = [partition for partition in index if partition.split == name]
        if not any(partition.rows for partition in partitions):
            excluded = Counter[str]()
            for partition in partitions:
                excluded.update(partition.excluded)
            reasons = ", ".join(f"{reason}: {rows}" for reason, rows in excluded.items())
            raise SnapshotError(
                f"the {name} split ({partitions[0].key} to {partitions[-1].key}) has no row. Left out: "
                f"{reasons or 'none, the partitions are empty'}. A label is known in time if "
                f"{spec.label_known_at!r} is at most {spec.cutoffs.in_words[name]}. "
                "Move the window, shorten its embargo, or fix the feature function"
            )
    if spec.weight is not None:
        _require_no_weight_lost(chosen, spec.weight)
    if spec.objective is not None and not spec.has_tokens:
        _require_two_labels(chosen)
    if spec.group is not None:
        _require_order(chosen, spec.group)
    return chosen


def with_blobs(rows: pl.DataFrame, table: pl.LazyFrame, column: str) -> Iterator[pl.DataFrame]:
    """Yield `rows` (from `ChosenRows.of`) with the blobs in `column` of their `table`: in order, in parts."""
    first, count = 0, _BLOBS_AT_FIRST
    while first < rows.height:
        part = rows.slice(first, count)
        places = part[ROW] - part[ROW][0]
        blobs = table.select(column).slice(part[ROW][0], places[-1] + 1).collect().to_series().gather(places)
        yield part.with_columns(blobs.alias(column))
        first += count
        count = max(1, int(_BLOBS_AT_ONCE * part.height / max(blobs.bin.size().sum(), 1)))


def _check_columns(schema: pl.Schema, spec: RowSpec) -> None:
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


def _check_labels(chosen: ChosenRows) -> None:
    spec = chosen.spec
    if spec.has_classes:
        return
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
    _refuse_illegal(chosen, f"label {spec.label!r}", spec.label, checks)


def _check_weights(chosen: ChosenRows, column: str) -> None:
    """Refuse illegal weights, also in rows that are left out; a weight may be unknown as long as the label is."""
    weight = pl.col(column).cast(pl.Float64)
    checks = (
        (
            weight.is_null() & pl.col(_REASON).is_null(),
            "null",
            "give each row with a label a weight, 0 if it should not count",
        ),
        (weight.is_nan() | weight.is_infinite(), "NaN or infinite", "give each row a number from 0"),
        (weight < 0, "negative", "give each row a number from 0; 0 leaves it out"),
    )
    _refuse_illegal(chosen, f"weight {column!r} (features.weight)", column, checks)


def _refuse_illegal(
    chosen: ChosenRows, what: str, column: str, checks: Iterable[tuple[pl.Expr, str, str]]
) -> None:
    """Refuse rows for which the first part of a check is true; its other parts are the fault and the remedy."""
    for illegal, found, remedy in checks:
        rows = chosen.frame.filter(illegal)
        if rows.height:
            raise SnapshotError(
                f"{what} is {found} in {rows.height} of {chosen.frame.height} rows: "
                f"{_named(rows, chosen.spec, column)}; {remedy}"
            )


def _require_no_weight_lost(chosen: ChosenRows, column: str) -> None:
    """Refuse weights that are 0 in float32 once they are divided by their mean, as a snapshot stores them."""
    for split in SPLITS:
        rows = chosen.of(split)
        lost = rows.filter(pl.col(WEIGHT) < _LEAST_WEIGHT)
        if lost.height:
            raise SnapshotError(
                f"weight {column!r} (features.weight) is too small beside the largest in {lost.height} of "
                f"{rows.height} {split} rows: {_named(lost, chosen.spec, column)}; give such rows the weight 0"
            )


def _require_two_labels(chosen: ChosenRows) -> None:
    """Refuse training rows that all have the same label: a model would learn to predict it for every row."""
    labels = chosen.of("train")[chosen.spec.label]
    if labels.n_unique() == 1:
        raise SnapshotError(
            f"label {chosen.spec.label!r} is {labels[0]} in all {len(labels)} training rows, so a model "
            f"cannot learn from it: train on a longer window, or fix the feature function"
        )


def _check_lists(chosen: ChosenRows, group: str) -> None:
    """Refuse rows without a list, and lists with rows in several partitions, also rows that are left out: sooner or
    later a split would cut such a list, and a model would learn from one part and be measured on the other."""
    spec = chosen.spec
    lacking = chosen.frame.filter(pl.col(group).is_null())
    if lacking.height:
        raise SnapshotError(
            f"{group!r} (evaluation.group) is null in {lacking.height} of {chosen.frame.height} rows: "
            f"{_named(lacking, spec)}; name the list of each row in the feature function"
        )
    where = chosen.frame.group_by(group, maintain_order=True).agg(pl.col(_KEY).unique(maintain_order=True))
    cut = where.filter(pl.col(_KEY).list.len() > 1)
    if cut.height:
        named = "; ".join(f"{one} is in {name_some(keys)}" for one, keys in cut.head(_NAMED).iter_rows())
        raise SnapshotError(
            f"{cut.height} of {where.height} lists are in several partitions: {group} {named}"
            f"{'; …' * (cut.height > _NAMED)}. {_one_partition(group)}"
        )


def require_lists_begin(chosen: ChosenRows, before: pl.DataFrame, key: str) -> None:
    """Refuse lists that the start of the window cuts in two: with rows also in `before`, of the partition `key`.

    `before` are the rows of the partition before the oldest one in `chosen`, with the column of lists. Raises
    `SnapshotError`, which names lists.
    """
    group = chosen.spec.group
    if group is None:
        return
    # As texts: an earlier version of the table may have had another type.
    earlier = before.select(pl.col(group).cast(pl.String)).unique()
    mine = chosen.frame.select(pl.col(group).cast(pl.String)).unique(maintain_order=True)
    cut = mine.join(earlier, on=group, how="semi", maintain_order="left")[group].to_list()
    if cut:
        raise SnapshotError(
            f"the start of the window, {chosen.split.train[0]}, cuts {counted(len(cut), 'list')} in two: {group} "
            f"{name_some(cut, _NAMED)} {'have' if len(cut) > 1 else 'has'} rows in {key}, too. {_one_partition(group)}"
        )


def _one_partition(group: str) -> str:
    return (
        f"A list belongs to one partition: let {group!r} (evaluation.group) differ between partitions, such as a "
        "user's day instead of a user"
    )


def _require_order(chosen: ChosenRows, group: str) -> None:
    """Refuse splits without any list whose rows differ in relevance: nothing can be learned or selected from them."""
    for split in ("train", "validation"):
        rows = chosen.of(split)
        differs = rows.group_by(group).agg((pl.col(chosen.spec.label).n_unique() > 1).alias(_REASON))
        if not differs[_REASON].any():
            raise SnapshotError(
                f"none of the {differs.height} lists of the {split} split has rows of different relevance "
                f"({chosen.spec.label!r}), so a model cannot learn an order from them: keep the rows that were not "
                f"relevant, or let {group!r} (evaluation.group) name longer lists"
            )


def classes_of(chosen: ChosenRows, known: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the classes of the labels: those of the training rows, or those `known` to the initial version.

    Returns none if the objective has no classes. Raises `SnapshotError`, which names rows, if validation or holdout
    rows have another class, or if there are more than `MOST_CLASSES`.
    """
    spec = chosen.spec
    if not spec.has_classes:
        return ()
    classes = fit_classes(chosen.of("train")[spec.label]) if known is None else tuple(known)
    if len(classes) > MOST_CLASSES:
        raise SnapshotError(
            f"label {spec.label!r} has {len(classes):,} classes in the training rows, and objective {spec.objective} "
            f"takes at most {MOST_CLASSES}: merge rare classes in the feature function, or choose objective regression "
            "if they are amounts"
        )
    whose = "no training row has" if known is None else "the initial version of init_from does not know"
    for split in SPLITS:
        rows = chosen.of(split)
        new = rows.filter(class_ids(rows[spec.label], classes).is_null())
        if new.height:
            raise SnapshotError(
                f"label {spec.label!r} has a class that {whose} in {new.height} of {rows.height} {split} rows: "
                f"{_named(new, spec)}; train on a longer window, or merge rare classes in the feature function"
            )
    return classes


def _named(rows: pl.DataFrame, spec: RowSpec, column: str | None = None) -> str:
    """Name the first of `rows` by primary key (by partition without a primary key), with their value of `column`, the
    label unless another is given."""
    key = spec.primary_key or (spec.partition,)
    named = rows.head(_NAMED).select(pl.col(*key).cast(pl.String), pl.col(column or spec.label).alias(_VALUE))
    told = [
        f"{', '.join(f'{name}={row[name]}' for name in key)} has {row[_VALUE]}"
        for row in named.iter_rows(named=True)
    ]
    return "; ".join(told) + "; …" * (rows.height > _NAMED)
