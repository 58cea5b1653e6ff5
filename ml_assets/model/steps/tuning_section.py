"""The `tuning` section of a pipeline: sampler, pruner, number of trials, prior and budget of a study. Runs nothing."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import Field, model_validator

from ml_assets.foundation.sections import Section, refuse_at
from ml_assets.model.steps.search_space import SpaceSection


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Cost of a study so far, over all its launches."""

    hours: float
    """Wall time in which it ran trials."""
    worker_hours: float
    """Hours of all workers of all trials, over all attempts."""


class BudgetSection(Section):
    """Hours after which a study begins no further trial."""

    hours: float | None = Field(default=None, gt=0)
    """Hours of wall time in which the study runs trials, queues of the cluster included. Time between two launches does
    not count."""
    worker_hours: float | None = Field(default=None, gt=0)
    """Hours of all workers of all trials. The time in which GPUs are only reserved does not count."""

    @model_validator(mode="after")
    def _limits_something(self) -> Self:
        if self.hours is None and self.worker_hours is None:
            raise ValueError("the budget is empty: give hours or worker_hours, or remove budget")
        return self

    def spent_says(self, spent: Spent) -> str:
        """Return the spent part of the budget in words; empty if hours are left."""
        for limit, took, unit in (
            (self.hours, spent.hours, "hours"),
            (self.worker_hours, spent.worker_hours, "worker hours"),
        ):
            if limit is not None and took >= limit:
                return f"the budget of {limit:g} {unit} is spent ({took:.3g})"
        return ""


MOST_TRIALS = 10_000
"""Largest number of trials of a study."""
Sampler = Literal["grid", "random", "tpe", "GPSampler", "QMCSampler"]
_WHOLE_SPACE: tuple[Sampler, ...] = ("GPSampler", "QMCSampler")
"""Samplers of Optuna that would draw conditional parameters at random, without a word."""
Pruner = Literal["none", "median", "successive_halving", "hyperband"]


class PriorSection(Section):
    """Use of the model's newest result as the beginning of a new study."""

    best: int = Field(default=1, ge=1, le=100)
    """Number of first trials that repeat the values of the best earlier trials. They count among `trials`."""
    keep: float = Field(default=0.8, gt=0, lt=1)
    """Share of the earlier trials that sampler `tpe` or `GPSampler` sees, evenly from the best to the worst. Each later
    study keeps this share of them again: after ten studies with 0.8, one in ten is left."""


class TuningSection(Section):
    """Study of a model: trainings with different values, of which the one with the lowest validation loss is chosen."""

    space: SpaceSection
    """Parameters to vary, and their values."""
    sampler: Sampler = "tpe"
    """Chooses the values of the next trial. `grid`: every combination. `random`: independent draws. `tpe`: more draws
    near good trials, after ten random ones. `GPSampler` and `QMCSampler` are Optuna's samplers of these names."""
    pruner: Pruner = "none"
    """Pauses a trial with a checkpoint if its validation loss after an epoch is bad. `median`: worse than the median of
    the other trials. `successive_halving`: not in the better half after 1/9, 2/9, 4/9 and 8/9 of the epochs.
    `hyperband`: groups of trials that are thinned to a third, each from another epoch on."""
    trials: int = Field(ge=1, le=MOST_TRIALS)
    """Largest number of trials, each a training."""
    parallel_trials: int = Field(default=1, ge=1, le=100)
    """Number of trials that train at the same time, each with all workers of the pipeline."""
    prior: PriorSection | None = None
    """Begin with the best values of the model's newest result, and draw near them. Not given: search from nothing."""
    budget: BudgetSection | None = None
    """Hours after which the study begins no further trial, and chooses among the finished ones. Not given: no limit."""

    @model_validator(mode="after")
    def _can_be_searched(self) -> Self:
        if not self.space.dimensions:
            said = "the space is empty: name a key of hyperparameters or training with its values, or remove tuning"
            refuse_at(type(self).__name__, {("space",): said})
        if self.sampler == "grid":
            refuse_at(type(self).__name__, dict(self._not_a_grid()))
            if self.prior is not None:
                said = "sampler grid tries every combination, whatever is known of them: remove prior, or use tpe"
                refuse_at(type(self).__name__, {("prior",): said})
        if self.space.is_conditional and self.sampler in _WHOLE_SPACE:
            said = (
                f"{self.sampler} models a space whose parameters all exist, and this space has conditions (`when`): "
                "use sampler tpe, random or grid"
            )
            refuse_at(type(self).__name__, {("sampler",): said})
        return self

    def _not_a_grid(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        for name, one in self.space.dimensions.items():
            if one.values() is None:
                path = tuple(name.split(".", 1))
                yield (
                    ("space", *path),
                    "sampler grid tries every value, and a range of real numbers has no end: give step, or list "
                    "choices, or use sampler random or tpe",
                )
                return
        combinations = sum(1 for _ in itertools.islice(self.space.points, MOST_TRIALS + 1))
        if combinations > self.trials:
            number = f"{combinations:,}" if combinations <= MOST_TRIALS else f"more than {MOST_TRIALS:,}"
            yield (
                ("trials",),
                f"the grid has {number} combinations, more than trials {self.trials:,}: raise trials, make "
                "the space smaller, or use sampler random or tpe",
            )
