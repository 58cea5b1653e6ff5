"""Fitted state: facts about the training rows that a model needs to read any other row.

Here: fill values, scales and quantiles of numeric columns, vocabularies of categorical columns, level and spread of the
label. They are fitted only on the training split, and hashed. The snapshot and the bundle hold them, and the bundle's
graph standardises numbers the same way. Not here: features that need other rows (`rolling`, `point_in_time`), filling
missing values (the torch module).
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ml_assets.data.features.categories import NotACategory, category_texts
from ml_assets.data.features.sorted_runs import VALUE, median_and_ends
from ml_assets.foundation.objective_facts import ObjectiveName, facts_of

ROWS = "rows"
"""Column of `counted_texts`."""
UNKNOWN = 0
"""Id of a category that is null or was too rare in the training rows."""

LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
_EXACT = 2**53
"""Largest whole number up to which float64 holds each."""
_UNKNOWN_TO_NUMPY = (pl.Int128, pl.UInt128)
"""Types of whole numbers that numpy does not have."""
_SIGNIFICANT_DIGITS = 7
"""Digits of the scale to which mean and scale are rounded, so that the order in which a machine sums a column does not
change the digest."""
_PIECES = 16
"""Parts with about equally many training rows into which quantiles divide a numeric column."""
_LEAST_SPREAD = float(np.finfo(np.float32).eps)
"""Least typical distance of different values from the median, in standard deviations."""
_ROUNDING_STEPS = 4
"""Steps of a floating-point type up to which values count as equal, such as 0.1 + 0.2 and 0.3."""


EncodingFault = Literal[
    "missing", "type", "whole numbers", "no value", "infinite", "range", "outlier", "float32", "category"
]


class EncodingError(ValueError):
    """A frame cannot be fitted or encoded; the message names the column and the remedy."""

    def __init__(self, said: str, fault: EncodingFault | None = None, *columns: str) -> None:
        super().__init__(said)
        self.fault = fault
        self.columns = columns


@dataclass(frozen=True, kw_only=True)
class NumericState:
    """One numeric column. A model reads `(value - mean) / scale`, with `fill` for a missing value.

    The division uses float64, because float32 cannot hold epoch seconds or ids around 1e9 exactly.
    """

    name: str
    fill: float
    """Median of the training rows, in the unit of the column."""
    mean: float
    """Mean of the training rows after filling; `fill` for a constant column."""
    scale: float
    """Standard deviation of the training rows after filling; 1 for a constant column."""
    quantiles: tuple[float, ...] = ()
    """Known values of training rows that divide them into up to 16 equal parts, from the least to the greatest, in the
    unit of the column: each once, so fewer where many rows are alike. Empty if it was fitted before 0.2."""

    def standardised(self, values: NDArray[np.float64]) -> NDArray[np.float32]:
        """Standardise values in the unit of the column to `[rows]` float32; NaN stays.

        Raises `EncodingError` for an infinite value, or if float32 cannot hold the result.
        """
        with np.errstate(over="ignore"):
            result = np.subtract(values, self.mean)
            result /= self.scale
        beyond = np.flatnonzero(np.abs(result) > LARGEST_FLOAT32)
        if beyond.size:
            raise EncodingError(
                f"column {self.name!r} holds {values[beyond[0]]:g} in {beyond.size} of {len(values)} rows, "
                f"which float32 cannot hold with a mean of {self.mean:g} and a deviation of {self.scale:g}: "
                f"make such "
                "values null in the feature function, and bound the column in the contract (`ge`, `le`)",
                "float32",
                self.name,
            )
        return result.astype(np.float32)

    @property
    def standardised_fill(self) -> float:
        """Number, rounded to float32, that a model reads for a missing value."""
        return float(self.standardised(np.array([self.fill]))[0])

    @property
    def standardised_quantiles(self) -> tuple[float, ...]:
        """Quantiles as a model reads them, rounded to float32: ascending, each once."""
        return tuple(np.unique(self.standardised(np.array(self.quantiles))).tolist())


@dataclass(frozen=True, kw_only=True)
class CategoricalState:
    """One categorical column: `vocabulary[i]` has id `i + 1`; anything else has id `UNKNOWN`."""

    name: str
    vocabulary: tuple[str, ...]
    """Sorted, without null."""

    @property
    def cardinality(self) -> int:
        """Number of ids, `UNKNOWN` included: the size of an embedding."""
        return len(self.vocabulary) + 1

    def ids_of(self, column: pl.Series) -> NDArray[np.int32]:
        """Return the ids of values, `[rows]`. Raises `EncodingError` for a type that no category can have."""
        words, ids = self._words_and_ids
        return _texts(column).replace_strict(words, ids, default=UNKNOWN, return_dtype=pl.Int32).to_numpy()

    @cached_property
    def _words_and_ids(self) -> tuple[pl.Series, pl.Series]:
        """The vocabulary as a column, and its ids. Made once: of ten million words it takes a second."""
        words = pl.Series(self.vocabulary, dtype=pl.String)
        return words, pl.int_range(1, len(words) + 1, dtype=pl.Int32, eager=True)


@dataclass(frozen=True, kw_only=True)
class LabelState:
    """Level and spread of the label, for networks whose outputs begin near 0 and vary by about 1."""

    level: float = 0.0
    """Output that predicts the mean label: the mean itself, its logarithm for a count, its log-odds for 0 and 1."""
    spread: float = 1.0
    """Standard deviation of the label; 1 unless the output is in its unit."""


@dataclass(frozen=True, kw_only=True)
class FittedState:
    """Fitted state of all columns, in the order of the model's inputs."""

    numeric: tuple[NumericState, ...]
    categorical: tuple[CategoricalState, ...]
    classes: tuple[str, ...] = ()
    """Classes of the label, as texts: class i is output i of the model. Empty if the label is a number."""
    label: LabelState = LabelState()

    @property
    def digest(self) -> str:
        """SHA-256, 64 hex digits, of the canonical JSON."""
        canonical = json.dumps(self._document(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def to_json(self) -> str:
        """Return the state as JSON; `from_json` reads it back to an equal value with the same digest."""
        return json.dumps(self._document(), sort_keys=True, indent=1, allow_nan=False)

    def _document(self) -> dict[str, Any]:
        # `asdict` would copy each word, also of ten million.
        return {
            "numeric": [_fields(one) for one in self.numeric],
            "categorical": [_fields(one) for one in self.categorical],
            "classes": self.classes,
            "label": _fields(self.label),
        }

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Inverse of `to_json`."""
        return cls.from_document(json.loads(text))

    @classmethod
    def from_document(cls, document: Mapping[str, Sequence[Any]]) -> Self:
        """Read the decoded document of `to_json`."""
        return cls(
            numeric=tuple(
                NumericState(**column | {"quantiles": tuple(column.get("quantiles", ()))})
                for column in document["numeric"]
            ),
            categorical=tuple(
                CategoricalState(name=column["name"], vocabulary=tuple(column["vocabulary"]))
                for column in document["categorical"]
            ),
            classes=tuple(document["classes"]),
            label=LabelState(**dict(document.get("label", {}))),
        )

    def encode(self, frame: pl.DataFrame) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Return standardised numbers `[rows, F]` float32, NaN where missing, and category ids `[rows, C]` int32.

        The model fills missing values. Raises `EncodingError` if a column is missing, a numeric column is not a number,
        float32 cannot hold a standardised number, or a category has no text.
        """
        require_columns(frame, [c.name for c in self.numeric], [c.name for c in self.categorical])
        numeric = np.empty((frame.height, len(self.numeric)), dtype=np.float32)
        for i, column in enumerate(self.numeric):
            numeric[:, i] = column.standardised(_floats(frame[column.name]))
        category = np.empty((frame.height, len(self.categorical)), dtype=np.int32)
        for i, state in enumerate(self.categorical):
            category[:, i] = state.ids_of(frame[state.name])
        return numeric, category


def _fields(one: NumericState | CategoricalState | LabelState) -> dict[str, Any]:
    return {field.name: getattr(one, field.name) for field in fields(one)}


def fit(
    frame: pl.DataFrame, numeric: Sequence[str], categorical: Sequence[str], min_count: int = 20
) -> FittedState:
    """Fit the state of these columns on the rows of `frame`, which are the training split and nothing else.

    A category with fewer than `min_count` rows is not in the vocabulary. It has too few rows to learn from, and its
    rows train the unknown id. Raises `EncodingError` for a missing column, and for a numeric column that is not a
    number, has no value, or holds a value that is infinite, too far from the others, or a whole number beyond 2^53.
    """
    require_columns(frame, numeric, categorical)
    return FittedState(
        numeric=tuple(
            fit_numeric(name, frame.schema[name], frame.height, [sorted_numbers(frame[name])])
            for name in numeric
        ),
        categorical=tuple(
            fit_categorical(name, [counted_texts(frame[name])], min_count) for name in categorical
        ),
    )


def fit_classes(labels: pl.Series) -> tuple[str, ...]:
    """Return the classes of training labels as texts: numbers in their order, texts in alphabetical order."""
    return tuple(_texts(labels.drop_nulls().unique().sort()).to_list())


def class_ids(labels: pl.Series, classes: Sequence[str]) -> pl.Series:
    """Return the number of each label's class, Int64; null for a class that is not among `classes`."""
    numbers = pl.Series(range(len(classes)), dtype=pl.Int64)
    words = pl.Series(classes, dtype=pl.String)
    return _texts(labels).replace_strict(words, numbers, default=None, return_dtype=pl.Int64)


def require_columns(frame: pl.DataFrame, numeric: Sequence[str], categorical: Sequence[str]) -> None:
    """Raise `EncodingError` if `frame` lacks a column or if a numeric column is not a number or boolean."""
    schema = frame.schema  # once: each call makes a list of all columns
    missing = [name for name in (*numeric, *categorical) if name not in schema]
    if missing:
        raise EncodingError(
            f"columns {missing} are missing; the frame has {schema.names()}. Add them to the feature table, or "
            f"remove them from the model's inputs",
            "missing",
            *missing,
        )
    for name in numeric:
        dtype = schema[name]
        if not (dtype.is_numeric() or dtype == pl.Boolean):
            raise EncodingError(
                f"column {name!r} is {dtype}, not a number: list it as categorical, or cast it", "type", name
            )


def sorted_numbers(column: pl.Series) -> NDArray[Any]:
    """Return the known values of a numeric column, ascending, in a type of numpy that holds each of them."""
    if column.dtype.is_integer() or column.dtype.is_float():
        values = column.drop_nulls().to_numpy()
    else:
        values = column.drop_nulls().cast(pl.UInt8 if column.dtype == pl.Boolean else pl.Float64).to_numpy()
    values = np.sort(values)  # NaN comes last
    if values.dtype.kind != "f":
        return values
    return values[: np.searchsorted(values, np.nan)]


def counted_texts(column: pl.Series) -> pl.DataFrame:
    """Return the categories of a column as texts, `VALUE`, ascending, and the number of their rows, `ROWS`.

    Raises `EncodingError` for a type that no category can have.
    """
    return _texts(column).drop_nulls().alias(VALUE).value_counts(name=ROWS).sort(VALUE)


def fit_numeric(name: str, dtype: pl.DataType, rows: int, runs: Sequence[NDArray[Any]]) -> NumericState:
    """Fit the column `name` of type `dtype` on `rows` rows, whose known values are `runs` (`sorted_numbers`).

    The sums of the runs are added exactly, so their order does not matter. Raises `EncodingError`.
    """
    runs = [run for run in runs if len(run)]
    if not runs:
        raise EncodingError(
            f"column {name!r} has no value in the training rows: remove it from the model's numeric "
            f"inputs, or train on a window where it is known",
            "no value",
            name,
        )
    least, most = min(run[0] for run in runs), max(run[-1] for run in runs)
    if dtype.is_integer() and max(abs(int(least)), abs(int(most))) > _EXACT:
        raise EncodingError(
            f"column {name!r} holds whole numbers beyond 2^53 in the training rows, which float64 rounds: list "
            "it as categorical, or subtract a constant in the feature function",
            "whole numbers",
            name,
        )
    least, most = float(least), float(most)
    if math.isinf(least) or math.isinf(most):
        raise EncodingError(
            f"column {name!r} has infinite values in the training rows: "
            "make them null in the feature function",
            "infinite",
            name,
        )
    fill, ends = median_and_ends(runs, _PIECES)
    # Distances from the median, in units of the largest distance: no square underflows or overflows.
    largest = max(most - fill, fill - least)
    if math.isinf(largest) or math.isinf(fill):
        raise EncodingError(
            f"column {name!r} holds values from {least:g} to {most:g}: float64 cannot hold their "
            "differences. Make extreme values null in the feature function",
            "range",
            name,
        )
    if largest <= _rounding(dtype) * max(abs(least), abs(most)):
        return NumericState(name=name, fill=fill, mean=fill, scale=1.0)
    quantiles = tuple(np.unique(ends).astype(np.float64).tolist())
    sums = [_sums(run, fill, largest) for run in runs]
    # A missing value is filled, so its distance is 0. The mean of the distances is at most one standard deviation, so
    # the difference of squares loses no digits.
    mean = math.fsum(one for one, _ in sums) / rows
    deviation = math.sqrt(math.fsum(one for _, one in sums) / rows - mean**2)
    _refuse_dwarfed(name, runs, fill, _LEAST_SPREAD * deviation * largest)
    scale = float(f"{largest * deviation:.{_SIGNIFICANT_DIGITS}g}")
    mean = fill + _rounded(largest * mean, scale)
    return NumericState(name=name, fill=fill, mean=mean, scale=scale, quantiles=quantiles)


def fit_label(objective: ObjectiveName, runs: Sequence[NDArray[np.float64]]) -> LabelState:
    """Fit the label of training rows, whose values are `runs` in any order, for a model that learns `objective`.

    Two values differ, at least. The sums of the runs are added exactly, so their order does not matter. Where float64
    cannot hold the spread of the labels, it stays 1.
    """
    facts, rows = facts_of(objective), sum(len(run) for run in runs)
    with np.errstate(over="ignore"):
        mean = math.fsum(float(run.sum()) for run in runs) / rows
        if facts.link == "sigmoid":
            return LabelState(level=_rounded(math.log(mean / (1 - mean)), 1.0))
        if facts.link == "exp":
            return LabelState(level=_rounded(math.log(mean), 1.0))
        spread = math.sqrt(math.fsum(float(np.square(run - mean).sum()) for run in runs) / rows)
    if not 0 < spread < math.inf:
        return LabelState()
    spread = float(f"{spread:.{_SIGNIFICANT_DIGITS}g}")
    return LabelState(level=_rounded(mean, spread), spread=spread)


def _sums(run: NDArray[Any], fill: float, largest: float) -> tuple[float, float]:
    """Return the sums of distances from the median, in units of the largest, and of their squares."""
    distances = run.astype(np.float64)
    distances -= fill
    distances /= largest
    total = float(distances.sum())
    np.square(distances, out=distances)
    return total, float(distances.sum())


def _refuse_dwarfed(name: str, runs: Sequence[NDArray[Any]], fill: float, least: float) -> None:
    """Raise `EncodingError` if one value is so far away that the others become one number for a model in float32.

    That is so if most values other than the median are nearer to it than `least`. A missing marker such as 1e300, or
    the largest int64, sets the scale of the column alone.
    """
    near = others = 0
    for run in runs:
        values = run.astype(np.float64, copy=False)
        equal = np.searchsorted(values, fill, "right") - np.searchsorted(values, fill, "left")
        inside = np.searchsorted(values, fill + least, "left") - np.searchsorted(
            values, fill - least, "right"
        )
        near += max(0, int(inside - equal))
        others += int(len(values) - equal)
    if 2 * near <= others:
        return
    extreme = max((run[place] for run in runs for place in (0, -1)), key=lambda one: abs(float(one)))
    raise EncodingError(
        f"column {name!r} holds {float(extreme):g} in the training rows, beside which float32 cannot tell the other "
        f"values apart (their median is {fill:g}). Make such values null in the feature function, and bound the "
        "column in the contract (`ge`, `le`)",
        "outlier",
        name,
    )


def _rounding(dtype: pl.DataType) -> float:
    """Return the relative size up to which differences are rounding errors of `dtype`; 0 for whole numbers."""
    if not dtype.is_float():
        return 0.0
    of_type = np.float64 if dtype == pl.Float64 else np.float32
    return _ROUNDING_STEPS * float(np.finfo(of_type).eps)


def fit_categorical(name: str, counts: Iterable[pl.DataFrame], min_count: int) -> CategoricalState:
    """Fit the column `name` on `counts` (`counted_texts`) of all its rows, in ranges of texts that ascend.

    A text may be in several rows of one range.
    """
    vocabulary: list[str] = []
    for some in counts:
        summed = some.group_by(VALUE).agg(pl.col(ROWS).cast(pl.Int64).sum())
        vocabulary += summed.filter(pl.col(ROWS) >= min_count)[VALUE].sort().to_list()
    return CategoricalState(name=name, vocabulary=tuple(vocabulary))


def _floats(column: pl.Series) -> NDArray[np.float64]:
    """Return the values of a numeric column, NaN where missing."""
    dtype = column.dtype
    if (dtype.is_float() or dtype.is_integer()) and not any(map(dtype.is_, _UNKNOWN_TO_NUMPY)):
        # polars gives NaN for null. Its own cast costs a query for each column.
        return column.to_numpy().astype(np.float64, copy=False)
    return column.cast(pl.Float64).fill_null(float("nan")).to_numpy()


def _texts(column: pl.Series) -> pl.Series:
    try:
        return category_texts(column, column.dtype)
    except NotACategory as error:
        raise EncodingError(
            f"categorical column {column.name!r}: {error}. Cast it in the feature function, or remove it from "
            f"the model's inputs",
            "category",
            column.name,
        ) from error


def _rounded(value: float, scale: float) -> float:
    """Round `value` to the last significant digit of `scale`."""
    return round(value, _SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(scale)))
