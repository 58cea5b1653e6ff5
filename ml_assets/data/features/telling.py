"""Columns that tell the label by themselves: in a table with a leak, a column that is known only after the label.

Here: the measure. It finds no leak by itself: a good forecast tells much, too. So it asks a question about columns that
count as known in advance. Not here: proof that a column uses the future (`cut_and_rebuild`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

_LEAST_ROWS = 100
"""Rows with a label below which nothing is said."""
_LEAST_ERRORS = 10
"""Rows without the most frequent class below which nothing is said."""
_GROUPS = 50
"""Groups of equal size into which a column of more numbers is divided."""
_LEAST_IN_GROUP = 5
"""Rows of a value below which it counts as one of the rare values, which are one group."""
_MOST_CLASSES = 20
"""Whole numbers of a label from which it counts as a number."""
_FEWER_ERRORS = 0.5
"""Share of the errors of a guess of the most frequent class that a column must avoid to be reported."""
_EXPLAINED = 0.95
"""Share of the variance of a number that a column must explain to be reported."""


@dataclass(frozen=True, kw_only=True)
class Telling:
    """A column that by itself tells the label, or nearly."""

    column: str
    label: str
    rows: int
    right: float
    """Share of the rows whose class is the most frequent one among rows with the same value of the column; if the label
    is a number, share of its variance between the groups."""
    is_class: bool

    def explain(self) -> str:
        """Return what the column tells, as a part of a sentence."""
        if self.is_class:
            return f"{self.column} alone tells {self.label} in {100 * self.right:.1f} % of {self.rows:,} rows"
        return f"{self.column} alone explains {100 * self.right:.1f} % of the variance of {self.label}"


def telling_columns(frame: pl.DataFrame, columns: Sequence[str], label: str) -> list[Telling]:
    """Return those of `columns` that by themselves tell `label`, the most telling first.

    Rows without a label are left out. A null is a value, because a column that is filled after the label says it by
    being filled.
    """
    rows = frame.filter(pl.col(label).is_not_null())
    dtype = rows.schema[label]
    if rows.height < _LEAST_ROWS or not (dtype.is_numeric() or dtype == pl.Boolean or dtype == pl.String):
        return []
    is_class = not dtype.is_numeric() or (dtype.is_integer() and rows[label].n_unique() <= _MOST_CLASSES)
    found: list[Telling] = []
    for name in columns:
        groups = _groups(rows[name])
        if groups is None:
            continue
        pair = pl.DataFrame({"group": groups, "label": rows[label]})
        right = _class_share(pair) if is_class else _variance_share(pair)
        if right is not None:
            found.append(Telling(column=name, label=label, rows=rows.height, right=right, is_class=is_class))
    return sorted(found, key=lambda one: -one.right)


def _groups(column: pl.Series) -> pl.Series | None:
    """Return the group of each row; None for a column of another type, such as a list."""
    dtype = column.dtype
    if dtype.is_float():
        column = column.fill_nan(None)
    if dtype.is_numeric() and column.n_unique() > _GROUPS:
        known = len(column) - column.null_count()
        return ((column.rank("min") - 1) * _GROUPS // known).cast(pl.Int64)
    has_values = dtype.is_numeric() or dtype == pl.Boolean or dtype == pl.String
    if not (has_values or isinstance(dtype, pl.Categorical | pl.Enum)):
        return None
    texts = column.cast(pl.String)
    often = texts.value_counts(name="n").filter(pl.col("n") >= _LEAST_IN_GROUP)[column.name]
    is_rare = texts.is_not_null() & ~texts.is_in(often.drop_nulls().implode())
    return texts.set(is_rare, "\0rare")


def _class_share(pair: pl.DataFrame) -> float | None:
    usual = int(pair["label"].value_counts(name="n")["n"].max() or 0)  # pyright: ignore[reportArgumentType]
    counts = pair.group_by("group", "label").len().group_by("group").agg(pl.col("len").max())
    errors, without = pair.height - int(counts["len"].sum()), pair.height - usual
    if without < _LEAST_ERRORS or errors > (1 - _FEWER_ERRORS) * without:
        return None
    return 1 - errors / pair.height


def _variance_share(pair: pl.DataFrame) -> float | None:
    number = pair.with_columns(pl.col("label").cast(pl.Float64))
    within = number.select((pl.col("label") - pl.col("label").mean().over("group")).pow(2).sum()).item()
    around = number.select((pl.col("label") - pl.col("label").mean()).pow(2).sum()).item()
    degrees = pair.height - pair["group"].n_unique()
    if not around or degrees < 1:
        return None
    # Groups of few rows explain some of any noise, which the degrees of freedom take back.
    share = 1 - (within / degrees) / (around / (pair.height - 1))
    return share if share >= _EXPLAINED else None
