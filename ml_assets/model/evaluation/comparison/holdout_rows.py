"""Rows of a holdout: their labels, lists and bootstrap blocks, and the predictions that an objective allows."""

from collections.abc import Callable, Sequence

import numpy as np
import polars as pl

from ml_assets.foundation.objective_facts import ROUNDED, Labels, Link, ObjectiveName, facts_of
from ml_assets.model.evaluation.errors import EvaluationInputError
from ml_assets.model.evaluation.metrics.bootstrap import BlockIds, Matrix, draw_blocks
from ml_assets.model.evaluation.metrics.list_metrics import Lists
from ml_assets.model.evaluation.metrics.metrics import Vector
from ml_assets.model.evaluation.spec import EvaluationSpec

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


def few_rows(frame: pl.DataFrame, most: int) -> pl.DataFrame:
    """Return at most `most` rows, spread evenly over `frame`."""
    if frame.height <= most:
        return frame
    return frame[np.linspace(0, frame.height - 1, most).round().astype(np.intp)]


def few_lists(frame: pl.DataFrame, group: str, most: int) -> pl.DataFrame:
    """Return about `most` rows in whole lists, evenly spread: half a list has other places."""
    lists = frame.select(pl.col(group).unique(maintain_order=True))
    few = few_rows(lists, max(1, lists.height * most // max(most, frame.height)))
    return frame.join(few, on=group, how="semi", nulls_equal=True)


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
