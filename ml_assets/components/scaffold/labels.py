"""The column that a first model predicts, and the objective that follows from its values."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date

import polars as pl

from ml_assets.components.scaffold.refusals import CsvRefused
from ml_assets.components.scaffold.row_keys import ID
from ml_assets.components.scaffold.rows_of_file import FileRows
from ml_assets.data.features.encoding import LARGEST_FLOAT32
from ml_assets.foundation.objective_facts import (
    LARGEST_LEVEL,
    LARGEST_SPREAD,
    LEAST_SPREAD,
    ObjectiveName,
    facts_of,
)
from resources.words import name_some

LABEL = re.compile(
    r"(is_|has_)?(label|target|y|outcome|response|churn(ed)?|default(ed)?|fraud|converted|survived)"
)
"""Names that a label has by custom."""
MOST_CLASSES = 50
MOST_SHARES = 6
"""Classes whose share in the past is a feature: the most frequent ones."""


@dataclass(frozen=True)
class Label:
    """The column to predict."""

    name: str
    objective: ObjectiveName
    classes: tuple[str, ...] = ()
    """Texts of its classes, the most frequent first; empty if it is a number or a boolean."""
    why: str = ""
    """Reason for which it was guessed; empty if the person named it."""

    @property
    def is_binary(self) -> bool:
        """True if labels are 0 or 1."""
        return facts_of(self.objective).is_zero_or_one

    @property
    def kind(self) -> str:
        """Words for its values."""
        if self.classes:
            return f"one of {len(self.classes)} classes: {name_some(self.classes, 4)}"
        return "true or false" if self.is_binary else "a number"

    @property
    def shares(self) -> Mapping[str, str]:
        """Feature → class whose share in the past it is."""
        return {f"{self.name}_{n}": text for n, text in enumerate(self.classes[:MOST_SHARES], 1)}

    def of_past(self) -> list[pl.Expr]:
        """Return the numbers whose past says something about the label: itself, or the shares of its classes."""
        if not self.classes:
            return [pl.col(self.name).cast(pl.Float64)]
        return [
            (pl.col(self.name) == text).cast(pl.Float64).alias(name) for name, text in self.shares.items()
        ]


def label_of(
    rows: FileRows,
    frame: pl.DataFrame,
    titles: Mapping[str, str],
    wanted: str,
    taken: Sequence[str],
    known: Sequence[str],
    starts: pl.Series,
    validation: date,
    holdout: date,
    odd: Mapping[str, int],
) -> tuple[Label, list[str]]:
    """Return the label, and other columns that could be predicted, the most likely first.

    `wanted` is the column that the person named, or empty. `taken` are the columns of times and keys, `known` those
    that the person named as known in advance, `starts` [rows] the partitions of the rows, `validation` and `holdout`
    the first days of these splits. `odd` is column of texts that are mostly numbers → first row with a text that is
    none. Raises `CsvRefused`, also if two columns are equally likely.
    """
    free = [name for name in frame.columns if name not in {*taken, *known}]
    values = {name: frame[name].drop_nulls().n_unique() for name in free}
    numbers = [name for name in free if values[name] > 1 and _is_number(frame[name]) and not ID.search(name)]
    words = [name for name in free if values[name] > 1 and _has_classes(frame[name])]
    flags = [name for name in (*numbers, *words) if values[name] == 2 and _is_flag(frame[name])]
    flags.sort(key=free.index)
    # Yes and no is asked for more often than another number.
    possible = [*dict.fromkeys((*reversed(flags), *reversed(numbers), *reversed(words)))]
    if not wanted and not possible:
        raise CsvRefused(
            f"{rows.path}: no column can be predicted: there are {name_some(list(titles.values()))}. A label is a "
            "number, true and false, or a text with few values; it differs between rows and does not identify them"
        )
    name, why = (wanted, "") if wanted else _guessed(rows, titles, free, numbers, words, flags)
    label = replace(_label(rows, frame, titles, name, odd), why=why)
    _require_splits(rows, frame[label.name], titles, starts, validation, holdout, label)
    return label, [name for name in possible if name != label.name]


def _guessed(
    rows: FileRows,
    titles: Mapping[str, str],
    free: Sequence[str],
    numbers: Sequence[str],
    words: Sequence[str],
    flags: Sequence[str],
) -> tuple[str, str]:
    """Return the likeliest label, and why: its name, or its place as the last column, as is the custom.

    `free` are the columns that may be features or labels, `numbers` and `words` those that can be predicted, and
    `flags` those with two values. Raises `CsvRefused` if two columns are equally likely.
    """
    named = [name for name in (*numbers, *words) if LABEL.fullmatch(name)]
    if len(named) == 1:
        return named[0], "by its name"
    last = free[-1]
    equal = named
    if not equal and len(flags) > 1 and (last in flags or last not in (*numbers, *words)):
        equal = flags
    if not equal and last in words and last not in flags and numbers:
        equal = [numbers[-1], last]
    if equal:
        options = " or ".join(f"--label {typed_as(titles[name])}" for name in equal[-_EQUAL_SHOWN:])
        raise CsvRefused(
            f"{rows.path}: {len(equal)} columns are equally likely to be the label: say which one, with {options}"
        )
    if last in (*numbers, *words):
        return last, "the last column"
    return (numbers[-1], "the last number") if numbers else (words[-1], "the last text with few values")


_EQUAL_SHOWN = 4


def typed_as(name: str) -> str:
    """Return a heading as a person types it as an option."""
    return name if re.fullmatch(r"[\w.:/%+,-]+", name) else shlex.quote(name)


def _is_flag(column: pl.Series) -> bool:
    """Return True for a column of two values that are true and false, 0 and 1, or texts."""
    return not column.dtype.is_numeric() or {*column.drop_nulls().unique()} == {0, 1}


def _is_number(column: pl.Series) -> bool:
    return column.dtype.is_numeric() or column.dtype == pl.Boolean


def _has_classes(column: pl.Series) -> bool:
    return column.dtype == pl.String and column.n_unique() <= min(MOST_CLASSES, len(column) // 5)


def _label(
    rows: FileRows, frame: pl.DataFrame, titles: Mapping[str, str], name: str, odd: Mapping[str, int]
) -> Label:
    column, place = frame[name], f"{rows.path}: '{titles[name]}'"
    known = column.drop_nulls()
    if known.n_unique() < 2:
        shown = f"{known[0]!r} in all rows" if len(known) else "empty in all rows"
        raise CsvRefused(f"{place} is {shown}, so there is nothing to predict: give another --label")
    if _is_number(column):
        values = known.cast(pl.Float64)
        objective = "binary" if set(values.unique().to_list()) <= {0.0, 1.0} else "regression"
        most = float(values.abs().max() or 0.0)  # pyright: ignore[reportArgumentType]
        shares = values / most
        spread = most * float(shares.std() or 0.0)  # pyright: ignore[reportArgumentType]
        if most > LARGEST_FLOAT32 or not LEAST_SPREAD <= spread <= LARGEST_SPREAD:
            raise CsvRefused(
                f"{place} holds numbers up to {most:.0e} that differ by about {spread:.0e}, and a network computes in "
                "float32, which does not hold the squares of such errors: write the column in another unit"
            )
        level = most * abs(float(shares.mean() or 0.0))  # pyright: ignore[reportArgumentType]
        if level > LARGEST_LEVEL * spread:
            raise CsvRefused(
                f"{place} holds numbers around {level:.3g} that differ by about {spread:.0e}, and a network computes "
                "in float32, which has seven digits: subtract a constant from the column"
            )
        return Label(name, objective)
    if column.dtype != pl.String:
        raise CsvRefused(
            f"{place} holds dates: a --label is a number, true and false, or a text with few values"
        )
    counts = known.value_counts(sort=True, name="n").sort(["n", name], descending=[True, False])
    if len(counts) > min(MOST_CLASSES, len(known) // 5):
        if name in odd:
            raise CsvRefused(
                f"{rows.place(odd[name])}: '{titles[name]}' holds {column[odd[name]]!r}, which is not a number like "
                "the others: correct it, leave it empty, or delete the row"
            )
        raise CsvRefused(
            f"{place} has {len(counts)} different texts in {len(known)} rows, such as {known[0]!r}: a --label with "
            f"classes has at most {MOST_CLASSES}, and five rows for each. If it holds numbers, write them as 1234.5"
        )
    return Label(name, "multiclass", classes=tuple(counts[name].to_list()))


def _require_splits(
    rows: FileRows,
    column: pl.Series,
    titles: Mapping[str, str],
    starts: pl.Series,
    validation: date,
    holdout: date,
    label: Label,
) -> None:
    """Raise `CsvRefused` if the training rows have one label, from which nothing can be learned, or if the holdout has
    one class, by which no metric can tell models apart."""
    parts = {"training": starts < validation, "holdout": starts >= holdout}
    for split, chosen in parts.items():
        values = column.filter(chosen).drop_nulls()
        if values.is_empty() or (
            values.n_unique() < 2 and (split == "training" or label.classes or label.is_binary)
        ):
            shown = f"always {values[0]!r}" if len(values) else "empty"
            begin, end = starts.filter(chosen).min(), starts.filter(chosen).max()
            raise CsvRefused(
                f"{rows.path}: '{titles[label.name]}' is {shown} from {begin} to {end}, the rows of the {split}, so no "
                "model can be trained or measured: give another --label, or a file with more rows"
            )
