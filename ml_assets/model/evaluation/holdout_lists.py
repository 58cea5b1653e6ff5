"""Lists of some rows, a few rows or lists of many, and the refusal of rows whose lists are not whole in their blocks.

Metrics are in `list_metrics.py`.
"""

import numpy as np
import polars as pl

from ml_assets.model.evaluation.errors import EvaluationInputError
from ml_assets.model.evaluation.list_metrics import Lists
from ml_assets.model.evaluation.spec import EvaluationSpec

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
