"""Explanations of a bundle: the rows and columns with which `evaluation.explanations` asks its runtime."""

from typing import TYPE_CHECKING

from ml_assets.evaluation.spec import EvaluationSpec
from ml_assets.pipeline.blob_decoding import few_with_blobs

if TYPE_CHECKING:
    import polars as pl

    from ml_assets.evaluation.explanation_document import Explanations
    from ml_assets.release.runtime import ServingModel

MOST_BLOBS = 100
"""Rows of a model that reads blobs: each prediction decodes them again."""


def explanations_of(
    spec: EvaluationSpec,
    model: "ServingModel",
    holdout: "pl.DataFrame",
    table: "pl.LazyFrame",
    *,
    label: str,
) -> "Explanations | None":
    """Explain `model` on rows of `holdout`, which come from `table`; None if `spec` asks for no explanations."""
    from ml_assets.evaluation.explanations import explain
    from ml_assets.release.golden import spread

    if spec.explanations is None:
        return None
    most = spec.explanations.rows
    if model.blob:
        rows = few_with_blobs(holdout, table, model.blob, min(most, MOST_BLOBS))
    elif spec.group is not None:
        rows = _few_lists(holdout, spec.group, most)
    else:
        rows = spread(holdout, most)
    inputs = {column.name: column.kind for column in model.inputs}
    return explain(rows, model.predict, inputs, spec, label=label, classes=model.classes)


def _few_lists(holdout: "pl.DataFrame", group: str, most: int) -> "pl.DataFrame":
    """Return about `most` rows in whole lists, evenly spread: half a list has other places."""
    import polars as pl

    from ml_assets.release.golden import spread

    lists = holdout.select(pl.col(group).unique(maintain_order=True))
    few = spread(lists, max(1, lists.height * most // max(most, holdout.height)))
    return holdout.join(few, on=group, how="semi", nulls_equal=True)
