"""Naive model: the simple guess that is best on the validation rows, so that no gate compares with a guess of straw.

Guesses: the mean of a group (`baseline`), and the last known labels of an entity (`recent_labels`). Not here: reading
rows of the table (`steps.naive`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf, isfinite, isnan
from typing import Self

import numpy as np
import polars as pl

from ml_assets.foundation.objective_facts import ObjectiveFacts, ObjectiveName, facts_of
from ml_assets.model.evaluation.comparison.baseline import PRIORS, ClassShares, GroupMeans, prior_in_words
from ml_assets.model.evaluation.comparison.holdout_rows import lists_of
from ml_assets.model.evaluation.comparison.recent_labels import LastLabels, Recent
from ml_assets.model.evaluation.metrics.metrics import metric_named
from ml_assets.model.evaluation.metrics.row_weights import Vector, quantiles_of_rows, weights_of
from ml_assets.model.evaluation.report_document import NaiveChoice, NaiveGuess

_WHEN: Mapping[tuple[str, ...], str] = {
    (): "",
    ("weekday",): " on the same weekday",
    ("hour",): " at the same hour",
    ("weekday", "hour"): " at the same hour of the same weekday",
    ("week",): " in the same week of the year",
    ("month",): " in the same month of the year",
}


@dataclass(frozen=True)
class Recalled:
    """Mean, quantile or shares of classes of the last known labels of some rows' entities."""

    values: Vector
    """`[N]`; of classes `[N, K]`. 0 for a row without such a label."""
    rows: Vector
    """Number of labels behind each value, `[N]`."""

    @classmethod
    def of(cls, found: LastLabels, facts: ObjectiveFacts, classes: int) -> Self:
        """Return the values of labels. A label of weight 2 counts as two; labels of classes are their numbers."""
        labels, rows = found.labels, np.count_nonzero(found.weights, axis=1).astype(np.float64)
        # Weights in any unit would leave the range of float64.
        largest = found.weights.max(axis=1, initial=0.0, keepdims=True)
        weights = np.divide(found.weights, largest, out=np.zeros_like(labels), where=largest > 0)
        if facts.quantile is not None:
            return cls(quantiles_of_rows(labels, weights, facts.quantile), rows)
        if facts.has_classes:
            shares = [_means((labels == number).astype(np.float64), weights) for number in range(classes)]
            return cls(np.stack(shares, axis=1), rows)
        return cls(_means(labels, weights), rows)

    @classmethod
    def together(cls, parts: Iterable[Self]) -> Self:
        """Return the rows of all parts, in their order. At least one part."""
        some = list(parts)
        return cls(np.concatenate([one.values for one in some]), np.concatenate([one.rows for one in some]))

    def shrunk(self, prior_rows: float, of_groups: Vector) -> Vector:
        """Return predictions: `of_groups` counts as `prior_rows` labels, and alone where no label is known."""
        rows = self.rows if of_groups.ndim == 1 else self.rows[:, None]
        total = rows + prior_rows
        both = rows * self.values + prior_rows * of_groups
        return np.where(rows > 0, both / np.where(total > 0, total, 1.0), of_groups)


def _means(values: Vector, weights: Vector) -> Vector:
    """Return the weighted mean of each row `[rows, length]`, added from the first value on; 0 without weight."""
    total, weight = np.zeros(len(values)), np.zeros(len(values))
    for place in range(values.shape[1]):
        total += values[:, place] * weights[:, place]
        weight += weights[:, place]
    return np.divide(total, weight, out=np.zeros_like(total), where=weight > 0)


@dataclass(frozen=True, kw_only=True)
class NaiveModel:
    """The strongest guess."""

    groups: GroupMeans | ClassShares
    recent: Recent | None
    """Labels that it repeats; None: it is `groups`."""
    prior_rows: float
    """Labels that the mean of the group counts as. 0: it counts only where no label is known."""
    choice: NaiveChoice

    @property
    def name(self) -> str:
        """Name in a report."""
        of = len(self.choice.guesses)
        return f"naive baseline ({self.choice.chosen}, the best of {of} guesses on validation)"

    def predict(self, frame: pl.DataFrame, recalled: Recalled | None) -> Vector:
        """Return predictions for rows with the columns of the groups, and what `recent` recalls of them."""
        of_groups = self.groups.predict(frame)
        return of_groups if recalled is None else recalled.shrunk(self.prior_rows, of_groups)


def strongest(
    groups: GroupMeans | ClassShares,
    recalled: Mapping[Recent, Recalled],
    validation: pl.DataFrame,
    objective: ObjectiveName,
    *,
    entity: tuple[str, ...],
    prior_rows: float | None,
    label: str,
    weight: str | None,
    group: str | None,
) -> NaiveModel:
    """Return the guess with the best metric that the objective names (`chosen_by`); among equals, the first.

    `groups` comes first, then `recalled` in its order, all on the rows `validation`. A guess that predicts what an
    earlier one predicts is left out. If predictions have a range, such as probabilities, or only order a list, last
    labels are shrunk towards the mean of the group: `prior_rows`, or else the best of `PRIORS`.
    """
    facts = facts_of(objective)
    y = validation.get_column(label).cast(pl.Float64).to_numpy()
    metric, lists, w = (
        metric_named(facts.chosen_by, objective),
        lists_of(validation, group),
        weights_of(validation, weight),
    )

    def loss(p: Vector) -> float:
        found = metric.loss(y, p, w=w, lists=lists)
        return inf if isnan(found) else found

    of_groups = groups.predict(validation)
    seen = [of_groups]
    tried: list[tuple[float, Recent | None, float, str]] = [(loss(of_groups), None, 0.0, groups.guess)]
    is_shrunk = facts.prediction_range[0] == 0 or facts.has_lists
    for recent, one in recalled.items():
        plain = one.shrunk(0.0, of_groups)
        if any(np.array_equal(plain, other) for other in seen):
            continue
        seen.append(plain)
        priors = (0.0,) if not is_shrunk else PRIORS if prior_rows is None else (prior_rows,)
        prior = min(priors, key=lambda prior: loss(one.shrunk(prior, of_groups)))
        said = _in_words(recent, entity, facts) + (f", {prior_in_words(prior)}" if is_shrunk else "")
        tried.append((loss(one.shrunk(prior, of_groups)), recent, prior, said))
    best = min(tried, key=lambda one: one[0])
    return NaiveModel(
        groups=groups,
        recent=best[1],
        prior_rows=best[2],
        choice=NaiveChoice(
            metric=metric.name,
            rows=validation.height,
            guesses=tuple(
                NaiveGuess(
                    name=said,
                    value=(-found if metric.higher_is_better else found) if isfinite(found) else None,
                )
                for found, _, _, said in tried
            ),
            chosen=best[3],
        ),
    )


def _in_words(recent: Recent, entity: tuple[str, ...], facts: ObjectiveFacts) -> str:
    """Return the guess in words: `mean of the last 7 known labels of store and product`."""
    what = "last known label"
    if recent.length > 1:
        of = "mean of" if facts.quantile is None else f"{facts.quantile:g} quantile of"
        what = f"{'share of each class among' if facts.has_classes else of} the last {recent.length} known labels"
    whose = f" of {' and '.join(entity)}" if entity else ""
    return f"{what}{whose}{_WHEN[recent.season]}"
