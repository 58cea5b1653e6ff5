"""Rows of a holdout: their labels, lists, bootstrap blocks and slices, and the predictions that an objective allows.

Also the calibration-in-the-large of each slice: mean prediction minus mean label.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np
import numpy.typing as npt
import polars as pl

from ml_assets.foundation.objective_facts import ROUNDED, Labels, Link, ObjectiveName, facts_of
from ml_assets.model.evaluation.metrics.bootstrap import (
    BlockIds,
    Estimate,
    Interval,
    Matrix,
    draw_blocks,
    estimate,
    interval,
    joint_intervals,
    mean_form,
)
from ml_assets.model.evaluation.metrics.list_metrics import Lists
from ml_assets.model.evaluation.metrics.metrics import Vector, hits, is_covered
from ml_assets.model.evaluation.metrics.row_weights import EvaluationInputError
from ml_assets.model.evaluation.spec import EVERY, EvaluationSpec, SliceBy, SliceValue

Rows = npt.NDArray[np.intp]
"""Places of rows in a frame, from 0."""
_LEGAL_LABELS: dict[Labels, tuple[Callable[[Vector, int], bool], str]] = {
    "zero or one": (lambda y, _: bool(np.isin(y, (0.0, 1.0)).all()), "0 or 1"),
    "numbers": (lambda y, _: True, "a number"),
    "counts": (lambda y, _: bool(((y >= 0) & (y == np.floor(y))).all()), "a whole number of at least 0"),
    "relevance": (lambda y, _: bool((y >= 0).all()), "a relevance of at least 0"),
    "numbers of tokens": (
        lambda y, _: bool(((y >= 1) & (y == np.floor(y))).all()),
        "a whole number of at least 1",
    ),
    "classes": (lambda y, classes: bool(np.isin(y, np.arange(classes)).all()), "the number of a class"),
}
"""Labels of an objective → function of labels and number of classes that returns True for legal ones, and words."""
MOST_BLOCKS = 500
"""Blocks that are redrawn: 4 MB for 1,000 redraws. A block for each of 54,000 sessions took 432 MB. An interval from
500 blocks is about 3 % too wide or too narrow, as it is by the choice of 1,000 redraws."""


def labels_of(holdout: pl.DataFrame, label: str, spec: EvaluationSpec, classes: Sequence[str]) -> Vector:
    """Return the labels of a holdout, float64 `[N]`. Raises `EvaluationInputError` if they do not fit the objective."""
    for column in (label, spec.bootstrap_unit):
        if column not in holdout.columns:
            raise EvaluationInputError(
                f"the holdout has no column {column!r}; it has {', '.join(holdout.columns)}"
            )
    if holdout.is_empty():
        raise EvaluationInputError("the holdout has no rows: check `window.holdout`")
    known = holdout.get_column(label).cast(pl.Float64)
    if nulls := known.null_count() + int(known.is_nan().sum()):
        raise EvaluationInputError(
            f"{nulls} of {holdout.height} holdout rows have no label: leave them out before evaluating"
        )
    y = known.to_numpy()
    is_legal, words = _LEGAL_LABELS[facts_of(spec.objective).labels]
    if not is_legal(y, len(classes)):
        raise EvaluationInputError(f"label {label!r} of objective {spec.objective} must be {words}")
    return y


def bootstrap_blocks(holdout: pl.DataFrame, spec: EvaluationSpec) -> tuple[BlockIds, list[str]]:
    """Return the number of each row's block, `[N]`, and the names of the blocks. Raises `EvaluationInputError`.

    If there are more than `MOST_BLOCKS`, several blocks have the same number and are drawn together. Blocks are
    independent of each other, so groups of them are, too, and the intervals are as wide.
    """
    column = holdout.get_column(spec.bootstrap_unit)
    if nulls := column.null_count():
        raise EvaluationInputError(
            f"{nulls} holdout rows have no {spec.bootstrap_unit!r}: give each row its block"
        )
    ids = (column.rank("dense").cast(pl.Int64).to_numpy() - 1) % MOST_BLOCKS
    return ids.astype(np.intp), [str(value) for value in column.unique().sort()]


def redraws_of(holdout: pl.DataFrame, spec: EvaluationSpec) -> tuple[BlockIds, Matrix]:
    """Return the block of each row, `[N]`, and the redraws of the blocks, `[D, B]`. Raises `EvaluationInputError`."""
    blocks, _ = bootstrap_blocks(holdout, spec)
    return blocks, redraws(blocks, spec)


def redraws(blocks: BlockIds, spec: EvaluationSpec) -> Matrix:
    """Return the redraws of `blocks` (`bootstrap_blocks`), `[D, B]`."""
    return draw_blocks(int(blocks.max()) + 1, spec.draws, spec.seed)


_BLOCKS = "_blocks"
_NAMED = 3
"""Lists that an error names."""


def lists_of(frame: pl.DataFrame, group: str | None) -> Lists | None:
    """Return the number of each row's list, `[N]`, from 0; None if rows form no lists (`group` is None).

    Rows with the same value of the column `group` are one list. Raises `EvaluationInputError` if the column is missing
    or has nulls.
    """
    if group is None:
        return None
    if group not in frame.columns:
        raise EvaluationInputError(
            f"the rows have no column {group!r} (evaluation.group), which names the list of a row; they have "
            f"{', '.join(frame.columns)}"
        )
    column = frame.get_column(group)
    if nulls := column.null_count():
        raise EvaluationInputError(
            f"{nulls} rows have no {group!r} (evaluation.group): name the list of each row in the feature function"
        )
    return (column.rank("dense").cast(pl.Int64).to_numpy() - 1).astype(np.intp)


def few_places(rows: int, most: int) -> Rows:
    """Return at most `most` places, ascending and spread evenly over `rows` rows."""
    if rows <= most:
        return np.arange(rows)
    return np.linspace(0, rows - 1, most).round().astype(np.intp)


def few_rows(frame: pl.DataFrame, most: int) -> pl.DataFrame:
    """Return the rows of `frame` at its `few_places`."""
    return frame if frame.height <= most else frame[few_places(frame.height, most)]


def places_of_few_lists(group: pl.Series, most: int) -> Rows:
    """Return the places of about `most` rows in whole lists, evenly spread: half a list has other places.

    `group` names the list of each row.
    """
    lists = group.unique(maintain_order=True)
    few = lists.gather(few_places(len(lists), max(1, len(lists) * most // max(most, len(group)))))
    return np.flatnonzero(group.is_in(few.implode(), nulls_equal=True).to_numpy())


def whole_lists(holdout: pl.DataFrame, spec: EvaluationSpec) -> Lists | None:
    """Return the lists of a holdout as `lists_of` does. Raises `EvaluationInputError` as `require_whole_lists` does."""
    require_whole_lists(holdout, spec)
    return lists_of(holdout, spec.group)


def require_whole_lists(rows: pl.DataFrame, spec: EvaluationSpec) -> None:
    """Raise `EvaluationInputError`, which names lists, if rows of one list lie in different bootstrap blocks.

    A redraw takes a block as a whole, so a list in two blocks would be drawn in part.
    """
    if spec.group is None:
        return
    blocks = rows.group_by(spec.group, maintain_order=True).agg(
        pl.col(spec.bootstrap_unit).n_unique().alias(_BLOCKS)
    )
    cut = blocks.filter(pl.col(_BLOCKS) > 1)
    if cut.height:
        named = ", ".join(str(one) for one in cut[spec.group].head(_NAMED)) + ", …" * (cut.height > _NAMED)
        raise EvaluationInputError(
            f"{cut.height} of {blocks.height} lists have rows in several blocks of {spec.bootstrap_unit!r}: "
            f"{spec.group} {named}. The bootstrap redraws whole blocks: set evaluation.bootstrap_unit to a column that "
            f"is the same for all rows of a list, such as {spec.group!r} itself"
        )


_SUM_ROUNDED = 1e-4
"""Largest distance of a sum of probabilities from 1: a bundle computes them in float32."""
_WORDS: dict[Link, str] = {
    "sigmoid": "probabilities",
    "identity": "numbers",
    "exp": "counts of at least 0",
    "softmax": "probabilities that add up to 1 in each row",
    "token log_softmax": "nats per token of at least 0 and shares",
}


def prediction_fault(p: Vector, objective: ObjectiveName) -> str:
    """Return the reason for which `p`, `[N]` or `[N, K]`, cannot be predictions, as a clause; empty if they can be."""
    if wrong := int((~np.isfinite(p)).sum()):
        return f"are not finite in {wrong} of {p.size} places"
    facts = facts_of(objective)
    low, high = facts.prediction_range
    adds_up = not facts.has_classes or np.abs(p.sum(axis=1) - 1).max() <= _SUM_ROUNDED
    if p.min() < low - ROUNDED or p.max() > high + ROUNDED or not adds_up:
        # The figures of a text come from the bundle's graph, so there is no raw output to mend.
        advice = "" if facts.has_tokens else f" (raw output? apply the {facts.link})"
        return f"must be {_WORDS[facts.link]}; they run from {p.min():.4g} to {p.max():.4g}{advice}"
    return ""


def in_range(p: Vector, objective: ObjectiveName) -> Vector:
    """Return `p` with values that rounding moved out of the range at its end."""
    return np.clip(p, *facts_of(objective).prediction_range)


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
