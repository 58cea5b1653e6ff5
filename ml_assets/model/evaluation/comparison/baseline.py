"""Naive model that a challenger has to beat: a group's mean label, quantile or shares of classes in training rows.

Training rows come in parts and are summed, so memory does not bound their number. For means, the sums have a row for
each group; for quantiles and classes, a row for each group and label.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ml_assets.foundation.objective_facts import ObjectiveName, facts_of
from ml_assets.model.evaluation.comparison.holdout_rows import lists_of
from ml_assets.model.evaluation.metrics.metrics import Vector, metric_named
from ml_assets.model.evaluation.metrics.row_weights import (
    EvaluationInputError,
    quantile_in_group,
    raw_weights_of,
    weights_of,
)
from ml_assets.model.evaluation.spec import BaselineSpec

PRIORS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
"""Values of `prior_rows` that are tried on the validation rows, unless the pipeline sets `prior_rows`."""
_MEAN, _PARENT, _VALUE, _ROWS, _WEIGHT, _SUM = "__mean", "__parent", "__value", "__rows", "__weight", "__sum"
_NUMBER = "__number"
_MOST_WAITING = 100_000
"""Rows of sums that may wait before they are added up, unless the sums so far have more rows."""


@dataclass(frozen=True, kw_only=True)
class LabelSums:
    """Labels of the training rows, summed by group."""

    groups: tuple[str, ...]
    frame: pl.DataFrame
    """Group columns and `_WEIGHT`, the weight of the rows. Beside them `_VALUE`, the label, if sums are by label, else
    `_SUM`, the sum of weighted labels."""
    mean_weight: float
    """Mean weight of a row, in the unit of `_WEIGHT`."""

    @classmethod
    def of(
        cls,
        train: Iterable[pl.DataFrame],
        *,
        label: str = "label",
        weight: str | None = None,
        groups: Sequence[str] = (),
        by_label: bool = False,
    ) -> Self:
        """Sum training rows, which come in parts, with the weights of the column `weight`. Null labels do not count.

        Each sum adds rows in the order of a part, and parts in their order, so it has the same bits on every machine.
        Raises `EvaluationInputError` for a missing column or no labelled rows.
        """
        keys = [*groups, *([_VALUE] if by_label else [])]
        rows, parts = 0, list[_Scaled]()
        for part in train:
            known = _labelled(part, label, groups)
            if known.is_empty():
                continue
            rows += known.height
            parts.append(_Scaled.of(known, label, weight, groups, by_label).added_up(keys))
            if sum(one.frame.height for one in parts[1:]) > max(parts[0].frame.height, _MOST_WAITING):
                parts = [_Scaled.together(parts).added_up(keys)]
        if not rows:
            raise EvaluationInputError(
                "no training row has a label, so the naive baseline cannot be fitted: choose a window with labels"
            )
        frame = _Scaled.together(parts).added_up(keys).frame
        return cls(groups=tuple(groups), frame=frame, mean_weight=float(frame[_WEIGHT].sum()) / rows)

    def value(self, quantile: float | None, columns: Sequence[str] = ()) -> pl.DataFrame:
        """Return mean label or `quantile`, and weight, of each group by `columns`; without one, of all rows."""
        sums = _added_up(self.frame, columns)
        if quantile is None:
            return sums.with_columns((pl.col(_SUM) / pl.col(_WEIGHT)).alias(_VALUE))
        found = quantile_in_group(pl.col(_VALUE), pl.col(_WEIGHT), quantile)
        groups = self.frame.group_by(columns, maintain_order=True) if columns else None
        values = self.frame.select(found) if groups is None else groups.agg(found)
        return sums.hstack([values.get_column(_VALUE)])

    def of_class(self, number: int) -> Self:
        """Return the sums of a label that is 1 for this class, else 0; of sums by label."""
        is_class = pl.when(pl.col(_VALUE) == number).then(_WEIGHT).otherwise(0.0)
        return replace(self, frame=self.frame.with_columns(is_class.alias(_SUM)))


def _labelled(part: pl.DataFrame, label: str, groups: Sequence[str]) -> pl.DataFrame:
    missing = [name for name in (label, *groups) if name not in part.columns]
    if missing:
        raise EvaluationInputError(
            f"the training rows lack {', '.join(missing)}, which the naive baseline needs: add these "
            f"columns to the feature table, or change `baseline.groups`"
        )
    return part.drop_nulls(label)


@dataclass(frozen=True, kw_only=True)
class _Scaled:
    """Sums, or single rows to sum, whose weights are divided by 2 to the power of `unit`.

    Weights in any unit would leave the range of float64, and a division by a power of two loses no digit.
    """

    frame: pl.DataFrame
    unit: int

    @classmethod
    def of(
        cls, known: pl.DataFrame, label: str, weight: str | None, groups: Sequence[str], by_label: bool
    ) -> Self:
        w = raw_weights_of(known, weight)
        unit = int(np.frexp(w.max())[1])
        w, value = np.ldexp(w, -unit), known.get_column(label).cast(pl.Float64).to_numpy()
        labels = pl.Series(_VALUE, value) if by_label else pl.Series(_SUM, value * w)
        return cls(
            frame=pl.DataFrame([*map(known.get_column, groups), labels, pl.Series(_WEIGHT, w)]), unit=unit
        )

    @classmethod
    def together(cls, parts: Sequence[Self]) -> Self:
        unit = max(one.unit for one in parts)
        return cls(frame=pl.concat([one._with(unit) for one in parts]), unit=unit)

    def added_up(self, keys: Sequence[str]) -> Self:
        return replace(self, frame=_added_up(self.frame, keys))

    def _with(self, unit: int) -> pl.DataFrame:
        columns = [name for name in (_SUM, _WEIGHT) if name in self.frame.columns]
        return self.frame.with_columns(pl.col(columns) * 2.0 ** (self.unit - unit))


def _added_up(frame: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return `keys` and the sums of the rows that have the same ones, in the order of their first rows.

    numpy adds in the order of the rows. Polars adds in parts, as many as it has threads, so its last digits differ from
    machine to machine.
    """
    summed = [name for name in (_SUM, _WEIGHT) if name in frame.columns]
    found, number = group_numbers(frame, keys)
    sums = (pl.Series(name, np.bincount(number, frame[name].to_numpy())) for name in summed)
    return pl.DataFrame([*found.iter_columns(), *sums])


def group_numbers(frame: pl.DataFrame, keys: Sequence[str]) -> tuple[pl.DataFrame, NDArray[np.intp]]:
    """Return the different `keys` of `frame` in the order of their first rows, and the number of each row's, `[rows]`.

    Numbers begin at 0; nulls are equal. Without keys, all rows have the number 0, and the frame is empty.
    """
    if not keys:
        return pl.DataFrame(), np.zeros(frame.height, dtype=np.intp)
    found = frame.select(keys).unique(maintain_order=True)
    numbered = found.with_row_index(_NUMBER)
    joined = frame.select(keys).join(
        numbered, on=list(keys), how="left", maintain_order="left", nulls_equal=True
    )
    return found, joined.get_column(_NUMBER).to_numpy().astype(np.intp)


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
    def fit(cls, train: LabelSums, *, prior_rows: float, quantile: float | None = None) -> Self:
        """Fit on the sums of training rows: those by label for a `quantile` of it."""
        fitted = cls(train.groups, prior_rows, train.value(quantile)[_VALUE].item(), (), quantile=quantile)
        value, rows = pl.col(_VALUE), pl.col(_WEIGHT) / train.mean_weight
        for depth in range(1, len(train.groups) + 1):
            columns = list(train.groups[:depth])
            own = train.value(quantile, columns).with_columns(rows.alias(_ROWS))
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
    def guess(self) -> str:
        """Prediction in words, with the prior: `mean by shop, prior of 5 rows`."""
        value = "mean" if self.quantile is None else f"{self.quantile:g} quantile"
        if not self.groups:
            return value
        return f"{value} by {' and '.join(self.groups)}, {prior_in_words(self.prior_rows)}"

    @property
    def name(self) -> str:
        """Name in a report; says if the prior was chosen on validation rows."""
        return f"naive baseline ({self.guess}{', chosen on validation' if self.chosen else ''})"


def prior_in_words(rows: float) -> str:
    """Return the weight of a parent's mean: `prior of 5 rows`."""
    return f"prior of {rows:g} row{'' if rows == 1 else 's'}"


@dataclass(frozen=True)
class ClassShares:
    """Shrunken shares of the classes in a group: for each class the mean of a label that is 1 for the class, else 0."""

    means: tuple[GroupMeans, ...]
    """One for each class, all with the same prior, so that the shares of a row add up to 1."""
    chosen: bool = False
    """True if the prior is the best of `PRIORS` on the validation rows."""

    @classmethod
    def fit(cls, train: LabelSums, *, prior_rows: float, classes: int) -> Self:
        """Fit on the sums of training rows by label. Labels are numbers of classes, from 0."""
        of_classes = map(train.of_class, range(classes))
        return cls(tuple(GroupMeans.fit(one, prior_rows=prior_rows) for one in of_classes))

    def predict(self, frame: pl.DataFrame) -> Vector:
        """Return the shares of the classes in each row's finest known group, float64 `[N, K]`."""
        return np.stack([means.predict(frame) for means in self.means], axis=1)

    @property
    def guess(self) -> str:
        """Prediction in words, as that of `GroupMeans`."""
        return self.means[0].guess.replace("mean", "share of each class", 1)

    @property
    def name(self) -> str:
        """Name in a report, as that of `GroupMeans`."""
        return replace(self.means[0], chosen=self.chosen).name.replace("(mean", "(share of each class")


def naive_baseline(
    train: Iterable[pl.DataFrame],
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

    `train` yields the training rows in parts, in the order of the table.

    Best of `PRIORS` is the best metric that the objective names (`chosen_by`); among equals, the smallest prior. If
    `spec` sets a prior, that prior is used. `classes` is the number of classes of the label, whose labels are numbers
    from 0. `weight` is the column with the weights of the rows, if they have any, and `group` the column with the list
    of a row, if rows form lists. Raises `EvaluationInputError` like `LabelSums.of`.
    """
    facts = facts_of(objective)
    by_label = facts.has_classes or facts.quantile is not None
    sums = LabelSums.of(train, label=label, weight=weight, groups=spec.groups, by_label=by_label)

    def fitted(prior: float) -> GroupMeans | ClassShares:
        if facts.has_classes:
            return ClassShares.fit(sums, prior_rows=prior, classes=classes)
        return GroupMeans.fit(sums, prior_rows=prior, quantile=facts.quantile)

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
