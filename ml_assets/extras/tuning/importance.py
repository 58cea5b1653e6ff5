"""Importance of the searched parameters for a low validation loss: PED-ANOVA, by Optuna.

It compares the values of the best trials with those of all trials. A paused trial takes part with its loss so far:
PED-ANOVA asks only which trials are the best, and a paused trial is not among them. The alternative, fANOVA, models the
loss itself and would mistake losses after different numbers of epochs for an effect of the parameters.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

LEAST_TRIALS = 15
"""Trials with a loss below which no importance is estimated: with 10 trials, a parameter that decided the loss was the
most important of four in 10 of 12 random studies, with 16 in 11, with 24 in 12."""
_BEST = 0.3
"""Share of the trials that count as the best. With Optuna's 0.1 it was the most important in 6, 10 and 11 of 12."""


@dataclass(frozen=True, kw_only=True)
class MeasuredTrial:
    """Trial with a loss."""

    parameters: Mapping[str, Any]
    distributions: Mapping[str, BaseDistribution]
    """Parameter → the range from which its value was drawn."""
    loss: float


def importances(trials: Sequence[MeasuredTrial]) -> dict[str, float]:
    """Return parameter → its share of the importance, largest first; the shares add up to 1.

    Empty for fewer than `LEAST_TRIALS` trials, and if no parameter tells the best trials from the others.
    """
    if len(trials) < LEAST_TRIALS:
        return {}
    study = optuna.create_study()  # in memory
    study.add_trials(
        [
            optuna.trial.create_trial(
                value=one.loss, params=dict(one.parameters), distributions=dict(one.distributions)
            )
            for one in trials
        ]
    )
    evaluator = PedAnovaImportanceEvaluator(target_quantile=_BEST)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a parameter that few trials used: its share is then small
        found = get_param_importances(study, evaluator=evaluator, normalize=False)
    total = sum(found.values())
    shares = {name: value / total for name, value in found.items()} if total > 0 else {}
    # Optuna goes through a set, whose order changes from process to process.
    return dict(sorted(shares.items(), key=lambda one: (-one[1], one[0])))
