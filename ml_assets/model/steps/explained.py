"""Explanations of a bundle: the rows and columns with which `evaluation` asks its runtime."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ml_assets.model.evaluation.spec import EvaluationSpec
from ml_assets.model.steps.blob_decoding import few_with_blobs

if TYPE_CHECKING:
    import polars as pl

    from ml_assets.model.evaluation.report_document import Explanations
    from ml_assets.model.release.runtime import ServingModel

FEWEST_ROWS = 100
"""Rows of a model that reads blobs, since each prediction decodes them again; and of one with very many columns."""
_MOST_VALUES = 200_000_000
"""Values to predict from, over all shuffled columns: about ten seconds of a small network. All of up to 316 columns of
2,000 rows; a table of a thousand columns took minutes."""


def most_rows(declared: int, columns: int, *, has_blobs: bool) -> int:
    """Return the number of rows to explain a model of so many columns on: at most `declared`, at least 100."""
    if has_blobs:
        return min(declared, FEWEST_ROWS)
    return min(declared, max(FEWEST_ROWS, _MOST_VALUES // columns**2))


def explanations_of(
    spec: EvaluationSpec,
    model: "ServingModel",
    holdout: "pl.DataFrame",
    table: "pl.LazyFrame",
    *,
    label: str,
    weight: str | None,
    shown: Sequence[str],
) -> "Explanations | None":
    """Explain `model` on rows of `holdout`, which come from `table`; None if `spec` asks for no explanations.

    Only columns in `shown` are drawn, since a partial dependence names values of real rows.
    """
    from ml_assets.model.evaluation.comparison.explanations import NotPredicted, explain
    from ml_assets.model.evaluation.comparison.holdout_rows import few_lists
    from ml_assets.model.release.golden import spread
    from ml_assets.model.release.runtime import PredictionNotFinite

    if spec.explanations is None:
        return None
    most = most_rows(spec.explanations.rows, len(model.inputs), has_blobs=bool(model.blob))
    rows = spread(holdout, most) if spec.group is None else few_lists(holdout, spec.group, most)
    if model.blob:
        rows = few_with_blobs(rows, table, model.blob, rows.height)
    inputs = {column.name: column.kind for column in model.inputs}

    def predict(changed: "pl.DataFrame") -> NDArray[np.float64]:
        try:
            return model.predict(changed)
        except PredictionNotFinite as error:  # of rows that do not exist, the holdout has none
            raise NotPredicted(str(error)) from error

    return explain(
        rows, predict, inputs, spec, label=label, weight=weight, shown=shown, classes=model.classes
    )
