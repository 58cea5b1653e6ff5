"""The naive model a challenger has to beat: the mean label of a group, fitted on training rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from ml_assets.evaluation.errors import EvaluationInputError
from ml_assets.evaluation.metrics import Vector

_MEAN, _PARENT, _SUM, _ROWS = "__mean", "__parent", "__sum", "__rows"


@dataclass(frozen=True)
class GroupMeans:
    """Shrunken mean labels, coarse to fine.

    The mean of a group of n rows is (sum of labels + prior_rows × mean of its parent) / (n + prior_rows).
    The parent leaves out the last column; the parent of the first level is the overall mean. A group that
    training has not seen gets its parent's mean; nulls form a group like any other value.
    """

    groups: tuple[str, ...]
    overall: float
    levels: tuple[pl.DataFrame, ...]
    """Level i: the first i + 1 group columns and the mean, one row a group."""

    @classmethod
    def fit(
        cls, train: pl.DataFrame, *, label: str = "label", groups: Sequence[str] = (), prior_rows: float = 100
    ) -> "GroupMeans":
        """Fit on training rows; rows with a null label are left out.

        Raises `EvaluationInputError` for a missing column or no labelled rows.
        """
        missing = [name for name in (label, *groups) if name not in train.columns]
        if missing:
            raise EvaluationInputError(
                f"the training rows lack {', '.join(missing)}, which the naive baseline needs: "
                "give it those columns or change `baseline.groups`"
            )
        known = train.select(*groups, pl.col(label).cast(pl.Float64).alias(label)).drop_nulls(label)
        if known.is_empty():
            raise EvaluationInputError("no training row has a label: the naive baseline has nothing to fit")
        overall = float(known.get_column(label).to_numpy().mean())
        fitted = cls(tuple(groups), overall, ())
        for depth in range(1, len(groups) + 1):
            columns = list(groups[:depth])
            sums = known.group_by(columns).agg(pl.col(label).sum().alias(_SUM), pl.len().alias(_ROWS))
            parents = pl.Series(_PARENT, fitted.predict(sums))
            mean = (pl.col(_SUM) + prior_rows * parents) / (pl.col(_ROWS) + prior_rows)
            level = sums.select(*columns, mean.alias(_MEAN)).sort(columns)
            fitted = cls(fitted.groups, overall, (*fitted.levels, level))
        return fitted

    def predict(self, frame: pl.DataFrame) -> Vector:
        """The mean of each row's finest known group, float64 `[N]`."""
        means = np.full(frame.height, self.overall)
        for depth, level in enumerate(self.levels, start=1):
            columns = list(self.groups[:depth])
            joined = frame.select(columns).join(
                level, on=columns, how="left", maintain_order="left", nulls_equal=True
            )
            finer = joined.get_column(_MEAN).to_numpy()
            means = np.where(np.isnan(finer), means, finer)
        return means

    @property
    def name(self) -> str:
        """How a report calls it."""
        return (
            f"naive baseline (mean by {' and '.join(self.groups)})"
            if self.groups
            else "naive baseline (mean)"
        )
