"""Columns of a holdout cut into few parts each: values of a slice or category, quantile bins of a number."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from ml_assets.model.evaluation.slices import NOTHING, Rows, slice_rows
from ml_assets.model.evaluation.spec import SliceBy

MOST_PARTS = 12
"""Parts of a column: those with most rows. A number with more values is cut into bins."""
BINS = 5
"""Quantile bins of a number."""
Part = tuple[str, Rows]
"""Value or range for people, and the rows that have it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CodedColumn:
    """A column cut into parts."""

    name: str
    parts: tuple[str, ...]
    """Value or range of each part, for people."""
    code: npt.NDArray[np.uint8]
    """Number of each row's part, `[N]`; `len(parts)` for rows in none of them. Of all columns it is held in memory."""


def coded_columns(
    holdout: pl.DataFrame, cuts: Sequence[SliceBy], features: Sequence[str], least_rows: int
) -> list[CodedColumn]:
    """Return declared slices, then feature columns, cut into parts of at least `least_rows` rows.

    Features that are neither numbers nor texts nor booleans are left out; so are columns without such a part, or with
    the same value in all rows.
    """
    whole = {cut.column for cut in cuts if cut.by == "value"}
    found = [
        *(_coded(cut.name, _values(holdout, cut), holdout.height, least_rows) for cut in cuts),
        *(
            _coded(name, _parts(holdout, name), holdout.height, least_rows)
            for name in dict.fromkeys(features)
            if name not in whole
        ),
    ]
    return [one for one in found if len(np.unique(one.code)) > 1]


def _coded(name: str, parts: Iterable[Part], height: int, least_rows: int) -> CodedColumn:
    large = sorted((one for one in parts if len(one[1]) >= least_rows), key=lambda one: -len(one[1]))[
        :MOST_PARTS
    ]
    code = np.full(height, len(large), dtype=np.uint8)
    for number, (_, rows) in enumerate(large):
        code[rows] = number
    return CodedColumn(name=name, parts=tuple(words for words, _ in large), code=code)


def _values(holdout: pl.DataFrame, cut: SliceBy) -> Iterator[Part]:
    yield from ((key.value, rows) for key, rows in slice_rows(holdout, [cut]).items())


def _parts(holdout: pl.DataFrame, name: str) -> Iterator[Part]:
    column = holdout.get_column(name)
    if column.dtype.is_numeric() and column.n_unique() > MOST_PARTS:
        yield from _bins(column.cast(pl.Float64).fill_null(np.nan).to_numpy())
    elif column.dtype.is_numeric() or isinstance(
        column.dtype, pl.String | pl.Boolean | pl.Categorical | pl.Enum
    ):
        yield from _values(holdout, SliceBy(column=name))


def _bins(values: np.ndarray) -> Iterator[Part]:
    known = np.isfinite(values)
    yield NOTHING, np.flatnonzero(~known)
    if not known.any():
        return
    edges = np.unique(np.quantile(values[known], np.linspace(0, 1, BINS + 1)[1:-1]))
    # A value equal to an edge belongs to the bin below it, so that a frequent smallest value is a bin of its own.
    bin_of = np.searchsorted(edges, values, "left")
    for number in range(len(edges) + 1):
        rows = np.flatnonzero(known & (bin_of == number))
        if len(rows):
            yield f"{values[rows].min():.6g} to {values[rows].max():.6g}", rows
