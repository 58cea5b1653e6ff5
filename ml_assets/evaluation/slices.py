"""Which rows belong to which slice. Nothing is measured here."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from ml_assets.evaluation.errors import EvaluationInputError
from ml_assets.evaluation.spec import SliceBy

Rows = npt.NDArray[np.intp]
NOTHING = "(none)"
"""Value of the slice of rows whose column is null."""


@dataclass(frozen=True, order=True)
class SliceKey:
    """One slice: `carrier=AA`."""

    name: str
    value: str

    def __str__(self) -> str:
        return f"{self.name}={self.value}"


def slice_rows(frame: pl.DataFrame, cuts: Iterable[SliceBy]) -> dict[SliceKey, Rows]:
    """Row numbers (ascending) of each slice, ordered by cut and then by value.

    Raises `EvaluationInputError` for a missing column, or `by: month` of a column that holds no dates.
    """
    found: dict[SliceKey, Rows] = {}
    for cut in cuts:
        if cut.column not in frame.columns:
            raise EvaluationInputError(
                f"the holdout has no column {cut.column!r} to slice by; it has {', '.join(frame.columns)}"
            )
        column = frame.get_column(cut.column)
        if cut.by == "month":
            if column.dtype != pl.Date and not isinstance(column.dtype, pl.Datetime):
                raise EvaluationInputError(
                    f"slice by month: column {cut.column!r} is {column.dtype}, not a date"
                )
            column = column.dt.strftime("%Y-%m")
        values = column.cast(pl.String).fill_null(NOTHING)
        grouped = (
            pl.DataFrame({"value": values}).with_row_index("row").group_by("value").agg("row").sort("value")
        )
        for value, rows in zip(grouped["value"], grouped["row"], strict=True):
            found[SliceKey(cut.name, value)] = rows.to_numpy().astype(np.intp)
    return found
