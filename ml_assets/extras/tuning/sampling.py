"""Draws of a study: Optuna's samplers and pruners as a `tuning` section declares them."""

import hashlib
import warnings
from collections.abc import Mapping

import optuna
from optuna import pruners, samplers
from optuna.exceptions import ExperimentalWarning
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
            return pruners.MedianPruner(n_warmup_steps=2)
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
