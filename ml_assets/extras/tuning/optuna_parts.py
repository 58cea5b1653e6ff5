"""Optuna's parts of a study: samplers and pruners as a `tuning` section declares them, and importance of parameters."""

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna import pruners, samplers
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler, PartialFixedSampler
from optuna.trial import Trial

from ml_assets.model.steps.search_space import (
    Choices,
    FloatRange,
    IntRange,
    Scalar,
    SpaceSection,
    TuningSection,
)


def sampler_of(section: TuningSection, seed: int, number: int) -> BaseSampler:
    """Return the sampler that draws the values of trial `number` of a study with `seed`."""
    digest = hashlib.sha256(f"{seed}/{number}".encode()).digest()
    own = int.from_bytes(digest[:4])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        match section.sampler:
            case "grid" | "random":
                return samplers.RandomSampler(seed=own)
            case "tpe":
                # Among trials side by side, the running ones count as bad, so that none is drawn twice.
                return samplers.TPESampler(seed=own, constant_liar=section.parallel_trials > 1)
            case "GPSampler":
                return samplers.GPSampler(seed=own)
            case "QMCSampler":  # one sequence for the whole study
                return samplers.QMCSampler(seed=seed % 2**32, scramble=True)


def with_fixed(parameters: Mapping[str, Scalar], otherwise: BaseSampler) -> BaseSampler:
    """Return a sampler that draws `parameters`, and `otherwise` those that they lack."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return PartialFixedSampler(dict(parameters), otherwise)


def ask(study: optuna.Study, sampler: BaseSampler, space: SpaceSection) -> Trial:
    """Begin a trial of `study` with a value of each parameter that exists beside the others."""
    study.sampler = sampler
    asked = study.ask()
    for name, values in space.dimensions.items():
        if values.exists(asked.params):
            _suggest(asked, name, values)
    return asked


def _suggest(trial: Trial, name: str, values: FloatRange | IntRange | Choices) -> None:
    match values:
        case FloatRange():
            high = values.high if values.step is None else (values.values() or (values.high,))[-1]
            trial.suggest_float(name, values.low, high, log=values.log, step=values.step)
        case IntRange():
            trial.suggest_int(name, values.low, values.ends()[1], log=values.log, step=values.step)
        case Choices():
            trial.suggest_categorical(name, values.choices)


def pruner_of(section: TuningSection, declared: int) -> BasePruner:
    """Return the pruner of a study. `declared` is the number of epochs of trials whose values do not hold another."""
    most_epochs = _most_epochs(section.space, declared)
    match section.pruner:
        case "none":
            return pruners.NopPruner()
        case "median":
            return pruners.MedianPruner(n_warmup_steps=2 if section.pruner_warmup is None else 0)
        case "successive_halving":
            # The first comparison comes after a ninth of the epochs, because earlier losses say little.
            first = max(1, round(most_epochs / 9))
            return pruners.SuccessiveHalvingPruner(min_resource=first, reduction_factor=2)
        case "hyperband":
            return pruners.HyperbandPruner(min_resource=1, max_resource=most_epochs, reduction_factor=3)


def _most_epochs(space: SpaceSection, declared: int) -> int:
    """Return the largest number of epochs of a trial; `declared` for trials whose values do not hold the number."""
    values = space.training.get("epochs")
    if values is None:
        return declared
    return max([*(int(end or 0) for end in values.ends()), *([declared] if values.when else [])])


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
    """Return parameter → its share of the importance for a low loss, largest first; the shares add up to 1.

    PED-ANOVA compares the values of the best trials with those of all trials. A paused trial takes part with its loss
    so far: PED-ANOVA asks only which trials are the best, and a paused trial is not among them. The alternative,
    fANOVA, models the loss itself and would mistake losses after different numbers of epochs for an effect of the
    parameters.

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
