"""Naive model that a challenger has to beat: a group's mean label, quantile or shares of classes in training rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import numpy as np
import polars as pl

from ml_assets.foundation.objective_facts import ObjectiveName, facts_of
from ml_assets.model.evaluation.comparison.holdout_rows import lists_of
from ml_assets.model.evaluation.metrics.metrics import Vector, metric_named
from ml_assets.model.evaluation.metrics.row_weights import (
    EvaluationInputError,
    mean,
    quantile_in_group,
    quantiles,
    weights_of,
)
from ml_assets.model.evaluation.spec import BaselineSpec

PRIORS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
"""Values of `prior_rows` that are tried on the validation rows, unless the pipeline sets `prior_rows`."""
_MEAN, _PARENT, _VALUE, _ROWS, _WEIGHT = "__mean", "__parent", "__value", "__rows", "__weight"


@dataclass(frozen=True)
class GroupMeans:
    """Shrunken mean labels, or quantiles of labels, coarse to fine.

    The mean of a group of n rows is (n × mean label + prior_rows × mean of its parent) / (n + prior_rows). Of weighted
    rows, n is the sum of their weights, in units of the mean weight of all training rows.
    The parent groups by the same columns without the last; the parent of the first level is the overall mean. A group
    without training rows gets its parent's mean. Nulls form a group like any other value.
    """

    groups: tuple[str, ...]
    prior_rows: float
    overall: float
    levels: tuple[pl.DataFrame, ...]
    """Level i: the first i + 1 group columns and the mean, one row a group."""
    chosen: bool = False
    """True if `prior_rows` is the best of `PRIORS` on the validation rows."""
    quantile: float | None = None
    """Share of a group's labels below its value; None for means. The formula for groups is the same: a quantile counts
    as the mean of the group's rows."""

    @classmethod
    def fit(
        cls,
        train: pl.DataFrame,
        *,
        label: str = "label",
        weight: str | None = None,
        groups: Sequence[str] = (),
        prior_rows: float,
        quantile: float | None = None,
    ) -> Self:
        """Fit on training rows, with the weights of the column `weight`; rows with a null label are left out.

        Raises `EvaluationInputError` for a missing column or no labelled rows.
        """
        missing = [name for name in (label, *groups) if name not in train.columns]
        if missing:
            raise EvaluationInputError(
                f"the training rows lack {', '.join(missing)}, which the naive baseline needs: add these "
                f"columns to the feature table, or change `baseline.groups`"
            )
        known = train.drop_nulls(label)
        if known.is_empty():
            raise EvaluationInputError(
                "no training row has a label, so the naive baseline cannot be fitted: choose a window with labels"
            )
        labels, w = known.get_column(label).cast(pl.Float64).to_numpy(), weights_of(known, weight)
        known = known.select(*groups, pl.Series(_VALUE, labels), pl.Series(_WEIGHT, w))
        value, rows = pl.col(_VALUE), pl.col(_WEIGHT)
        if quantile is None:
            overall, of_group = mean(labels, w), (value * rows).sum() / rows.sum()
        else:
            (overall,) = (float(one) for one in quantiles(labels, w, np.array([quantile])))
            of_group = quantile_in_group(value, rows, quantile)
        fitted = cls(tuple(groups), prior_rows, overall, (), quantile=quantile)
        for depth in range(1, len(groups) + 1):
            columns = list(groups[:depth])
            own = known.group_by(columns).agg(of_group.alias(_VALUE), rows.sum().alias(_ROWS))
            parents = pl.Series(_PARENT, fitted.predict(own))
            shrunk = (value * pl.col(_ROWS) + prior_rows * parents) / (pl.col(_ROWS) + prior_rows)
            level = own.select(*columns, shrunk.alias(_MEAN)).sort(columns)
            fitted = replace(fitted, levels=(*fitted.levels, level))
        return fitted

    def predict(self, frame: pl.DataFrame) -> Vector:
        """Return the mean of each row's finest known group, float64 `[N]`."""
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
        """Name in a report, with the prior; says if the prior was chosen on validation rows."""
        value = "mean" if self.quantile is None else f"{self.quantile:g} quantile"
        if not self.groups:
            return f"naive baseline ({value})"
        rows = f"{self.prior_rows:g} row{'' if self.prior_rows == 1 else 's'}"
        source = ", chosen on validation" if self.chosen else ""
        return f"naive baseline ({value} by {' and '.join(self.groups)}, prior of {rows}{source})"


@dataclass(frozen=True)
class ClassShares:
    """Shrunken shares of the classes in a group: for each class the mean of a label that is 1 for the class, else 0."""

    means: tuple[GroupMeans, ...]
    """One for each class, all with the same prior, so that the shares of a row add up to 1."""
    chosen: bool = False
    """True if the prior is the best of `PRIORS` on the validation rows."""

    @classmethod
    def fit(
        cls,
        train: pl.DataFrame,
        *,
        label: str,
        weight: str | None = None,
        groups: Sequence[str],
        prior_rows: float,
        classes: int,
    ) -> Self:
        """Fit as `GroupMeans.fit` does. Labels are numbers of classes, from 0."""
        fit = partial(GroupMeans.fit, label=label, weight=weight, groups=groups, prior_rows=prior_rows)
        return cls(tuple(fit(_is_class(train, label, k)) for k in range(classes)))

    def predict(self, frame: pl.DataFrame) -> Vector:
        """Return the shares of the classes in each row's finest known group, float64 `[N, K]`."""
        return np.stack([means.predict(frame) for means in self.means], axis=1)

    @property
    def name(self) -> str:
        """Name in a report, as that of `GroupMeans`."""
        return replace(self.means[0], chosen=self.chosen).name.replace("(mean", "(share of each class")


def _is_class(frame: pl.DataFrame, label: str, number: int) -> pl.DataFrame:
    return frame.with_columns((pl.col(label) == number).cast(pl.Float64).alias(label))


def naive_baseline(
    train: pl.DataFrame,
    validation: pl.DataFrame,
    spec: BaselineSpec,
    objective: ObjectiveName,
    *,
    label: str = "label",
    weight: str | None = None,
    classes: int = 0,
    group: str | None = None,
) -> GroupMeans | ClassShares:
    """Fit the baseline of an objective on the training rows, with the prior that predicts the validation rows best.

    Best of `PRIORS` is the best metric that the objective names (`chosen_by`); among equals, the smallest prior. If
    `spec` sets a prior, that prior is used. `classes` is the number of classes of the label, whose labels are numbers
    from 0. `weight` is the column with the weights of the rows, if they have any, and `group` the column with the list
    of a row, if rows form lists. Raises `EvaluationInputError` like
    `GroupMeans.fit`.
    """
    facts = facts_of(objective)

    def fitted(prior: float) -> GroupMeans | ClassShares:
        fit = partial(GroupMeans.fit, quantile=facts.quantile)
        if facts.has_classes:
            fit = partial(ClassShares.fit, classes=classes)
        return fit(train, label=label, weight=weight, groups=spec.groups, prior_rows=prior)

    if spec.prior_rows is not None:
        return fitted(spec.prior_rows)
    if not spec.groups:
        return fitted(PRIORS[0])  # the overall mean has no parent to shrink towards
    known = validation.drop_nulls(label)
    y = known.get_column(label).cast(pl.Float64).to_numpy()
    metric, lists = metric_named(facts.chosen_by, objective), lists_of(known, group)
    w = weights_of(known, weight)
    best = min(
        (fitted(prior) for prior in PRIORS),
        key=lambda baseline: metric.loss(y, baseline.predict(known), w=w, lists=lists),
    )
    return replace(best, chosen=True)
