"""Rows of each slice, and calibration-in-the-large on each: mean prediction minus mean label."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np
import numpy.typing as npt
import polars as pl

from ml_assets.foundation.objective_facts import ObjectiveName, facts_of
from ml_assets.model.evaluation.errors import EvaluationInputError
from ml_assets.model.evaluation.metrics.bootstrap import (
    BlockIds,
    Estimate,
    Interval,
    Matrix,
    estimate,
    interval,
    joint_intervals,
    mean_form,
)
from ml_assets.model.evaluation.metrics.metrics import Vector, hits, is_covered
from ml_assets.model.evaluation.spec import EVERY, EvaluationSpec, SliceBy, SliceValue

Rows = npt.NDArray[np.intp]
NOTHING = "(none)"
"""Value of the slice of rows whose column is null."""
_SHOWN = 12
"""Values of a column that an error names."""


@dataclass(frozen=True, order=True)
class SliceKey:
    """One slice: `carrier=AA`."""

    name: str
    value: str

    def __str__(self) -> str:
        return f"{self.name}={self.value}"


def slice_rows(frame: pl.DataFrame, cuts: Iterable[SliceBy]) -> dict[SliceKey, Rows]:
    """Return the row numbers (ascending) of each slice, ordered by cut and then by value.

    Raises `EvaluationInputError` for a missing column, or for `by: month` on a column without dates.
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


def with_values_of(spec: EvaluationSpec, schema: Mapping[str, pl.DataType]) -> EvaluationSpec:
    """Return `spec` with each gate's slice value as the text that `slice_rows` uses for columns of `schema`.

    Raises `EvaluationInputError` for a value that the column's type cannot hold. Example: an unquoted `NO` for a text
    column, which YAML reads as false.
    """
    cuts = {cut.name: cut for cut in spec.sliced_by}
    gates = [
        gate
        if gate.sliced is None
        else gate.model_copy(
            update={"slice": {gate.sliced[0]: _text(gate.name, gate.sliced[1], cuts[gate.sliced[0]], schema)}}
        )
        for gate in spec.gates
    ]
    return spec.model_copy(update={"gates": tuple(gates)})


def slice_faults(spec: EvaluationSpec, schema: Mapping[str, pl.DataType]) -> Iterator[tuple[str, str]]:
    """Yield (dotted key below the section, sentence) for slices that do not fit the column types in `schema`.

    A slice does not fit if its column cannot be cut that way, or if a gate's value does not have the column's type.
    Columns that `schema` lacks are checked elsewhere.
    """
    for cut in spec.sliced_by:
        dtype = schema.get(cut.column)
        if cut.by == "month" and dtype is not None and not dtype.is_temporal():
            yield "slices", f"cuts {cut.column!r} by month, and it is of type {dtype}, not a date"
            return
    for number, gate in enumerate(spec.gates):
        cut = next((cut for cut in spec.sliced_by if gate.sliced and cut.name == gate.sliced[0]), None)
        if gate.sliced is None or cut is None or cut.column not in schema:
            continue
        try:
            _text(gate.name, gate.sliced[1], cut, schema)
        except EvaluationInputError as error:
            yield f"gates.{number}.slice", str(error)


def require_slices(spec: EvaluationSpec, rows: pl.DataFrame) -> None:
    """Refuse a gate whose slice has none of `rows`, which are all rows that train and measure a model.

    Raises `EvaluationInputError`. If only the holdout lacks the slice, the gate decides.
    """
    typed = with_values_of(spec, rows.schema)
    wanted = {gate.name: gate.sliced for gate in typed.gates if gate.sliced and gate.sliced[1] != EVERY}
    there = slice_rows(rows, spec.sliced_by) if wanted else {}
    for gate, (name, value) in wanted.items():
        if SliceKey(name, str(value)) not in there:
            known = [key.value for key in there if key.name == name]
            raise EvaluationInputError(
                f"gate {gate!r} checks the slice {name}={value}, and the window has no such row: the gate "
                f"would never be checked. {name} has {', '.join(known[:_SHOWN])}{' …' if len(known) > _SHOWN else ''}"
            )


def _text(gate: str, value: SliceValue, cut: SliceBy, schema: Mapping[str, pl.DataType]) -> str:
    if value in (EVERY, NOTHING) and isinstance(value, str):
        return value
    dtype = pl.String() if cut.by == "month" else schema[cut.column]
    found = _as_column(value, dtype)
    if found is None or (cut.by == "month" and not re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", found)):
        wanted = "a month such as '2013-11'" if cut.by == "month" else f"of type {dtype}"
        text = (
            "the text in quotes"
            if isinstance(value, bool)
            else f"{str(value)!r} in quotes if that is the text"
        )
        quote = f": write {text}" if dtype == pl.String else ""
        read = "" if isinstance(value, str) else f", which YAML reads as {type(value).__name__}"
        raise EvaluationInputError(
            f"gate {gate!r} checks the slice {cut.name}={value}{read}; {cut.name} is {wanted}, so no row can "
            f"match{quote}"
        )
    return found


def _as_column(value: SliceValue, dtype: pl.DataType) -> str | None:
    """Return the text of `value` in a column of `dtype`; None if such a column cannot hold it."""
    if dtype == pl.Boolean:
        text = str(value).lower()
        return text if isinstance(value, bool | str) and text in ("true", "false") else None
    if dtype.is_numeric():
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        if dtype.is_integer() and value != int(value):
            return None
        return str(pl.Series([value], dtype=dtype, strict=False).cast(pl.String)[0])
    if dtype == pl.Date:
        if isinstance(value, date):
            return value.isoformat()
        return value if isinstance(value, str) and re.fullmatch(r"\d{4}-\d{2}-\d{2}", value) else None
    return value if isinstance(value, str) else None


def calibration_gaps(objective: ObjectiveName, y: Vector, p: Vector) -> Vector | None:
    """Return predicted minus observed for each row, `[N]`; a calibrated model has a mean of 0 on every slice.

    Numbers: prediction minus label. Quantiles: 1 for a label at or below the prediction, else 0, minus the declared
    share. Classes: the largest probability minus 1 for a right class, else minus 0. None for scores of a ranking.
    """
    facts = facts_of(objective)
    if not facts.calibration:
        return None
    if facts.has_classes:
        return p.max(axis=1) - hits(y, p)
    if facts.quantile is not None:
        return is_covered(y, p) - facts.quantile
    return p - y


def calibration_of_slices(
    gaps: Vector | None,
    w: Vector,
    slices: Sequence[Rows],
    blocks: BlockIds,
    counts: Matrix,
    spec: EvaluationSpec,
) -> list[Interval | None]:
    """Return the mean gap on all rows and on each of `slices`, in their order; None without `gaps` or enough rows.

    `w` are the weights of the rows. Intervals of slices hold jointly. A slice in fewer than `min_blocks` blocks has
    none.
    """
    if gaps is None:
        return [None] * (1 + len(slices))

    def mean_gap(rows: Rows, fewest: int) -> Estimate:
        present = len(np.unique(blocks[rows]))
        form = mean_form(gaps[rows], w[rows], blocks[rows], counts.shape[1])
        return estimate(form, counts, present if present >= fewest else 1)

    whole = interval(mean_gap(np.arange(len(gaps)), 2), spec.confidence)
    large = [len(rows) >= spec.fewest_slice_rows for rows in slices]
    found = iter(
        joint_intervals(
            [mean_gap(rows, spec.min_blocks) for rows, fine in zip(slices, large, strict=True) if fine],
            spec.confidence,
        )
    )
    return [whole, *(next(found) if fine else None for fine in large)]
