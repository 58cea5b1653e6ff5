"""The `tuning` section of a pipeline: the space of a study, its sampler, pruner, number of trials, prior and budget.

The space has the parameters that a study varies and their values. A parameter with `when` is conditional: it exists
only beside some values of other parameters. Also the values that a study chose, and what it spent. Runs nothing.
"""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, Self, TypeVar

from pydantic import Field, model_validator

from ml_assets.foundation.sections import Section, refuse_at
from resources.words import did_you_mean

Scalar = bool | int | float | str | None
"""Value of a searched parameter: a JSON value without parts."""


class Conditional(Section, ABC):
    """Values of a searched parameter, and the condition under which it exists."""

    has_exact_values: ClassVar[bool] = True
    """True if a drawn value equals a value of the file. A step of 0.1 from 0 reaches 0.30000000000000004."""
    when: dict[str, Annotated[tuple[Scalar, ...], Field(min_length=1)]] = Field(
        default_factory=dict, examples=[{"hyperparameters.layers": [2, 3]}]
    )
    """Other parameter (`hyperparameters.<key>` or `training.<key>`) → its values beside which this one exists. With
    several entries, all must hold. Where it does not exist, the declared value counts. Not given: it always exists."""

    @abstractmethod
    def values(self) -> Sequence[Scalar] | None:
        """Return all values; None for a continuous range."""

    @abstractmethod
    def holds(self, value: Scalar) -> bool:
        """True if `value` is one of the values."""

    def exists(self, beside: Mapping[str, Scalar]) -> bool:
        """True beside these values of other parameters. A parent that does not exist itself has no value."""
        return all(name in beside and beside[name] in values for name, values in self.when.items())


Searched = TypeVar("Searched", bound=Conditional)


def parents_first(dimensions: Mapping[str, Searched]) -> dict[str, Searched]:
    """Return the parameters in their declared order, but each after those that its condition names.

    Parameters of a circle, and those behind it, are left out.
    """
    ordered: dict[str, Searched] = {}

    def is_next(name: str) -> bool:
        return name not in ordered and dimensions[name].when.keys() <= ordered.keys()

    while (name := next(filter(is_next, dimensions), None)) is not None:
        ordered[name] = dimensions[name]
    return ordered


def points(dimensions: Mapping[str, Conditional]) -> Iterator[dict[str, Scalar]]:
    """Yield each point of a space with parents first once; the last parameter changes first.

    A point holds the parameters that exist beside its other values. A continuous range has no points.
    """
    ordered = list(dimensions.items())

    def from_place(place: int, point: dict[str, Scalar]) -> Iterator[dict[str, Scalar]]:
        if place == len(ordered):
            yield point
            return
        name, one = ordered[place]
        if not one.exists(point):
            yield from from_place(place + 1, point)
            return
        for value in one.values() or ():
            yield from from_place(place + 1, {**point, name: value})

    yield from from_place(0, {})


def wrong_conditions(dimensions: Mapping[str, Conditional]) -> Iterator[tuple[str, str]]:
    """Yield each parameter whose condition can never hold, with the reason."""
    unknown = False
    for name, one in dimensions.items():
        for parent, values in one.when.items():
            if parent not in dimensions:
                unknown = True
                yield name, f"its `when` names {parent}, not in the space{did_you_mean(parent, dimensions)}"
            elif not dimensions[parent].has_exact_values:
                yield (
                    name,
                    f"its `when` names values of {parent}, but a draw from a range of real numbers hardly ever equals "
                    f"one: give {parent} choices",
                )
            elif never := [value for value in values if not dimensions[parent].holds(value)]:
                yield name, f"its `when` names {parent} {never[0]!r}, a value that {parent} never has"
    ordered = parents_first(dimensions)
    stuck = [name for name in dimensions if name not in ordered]
    if stuck and not unknown:
        circle = _circle(stuck[0], dimensions, ordered)
        yield circle[0], f"its `when` goes in a circle, {' → '.join(circle)}: remove one of these conditions"


def _circle(
    name: str, dimensions: Mapping[str, Conditional], ordered: Mapping[str, Conditional]
) -> list[str]:
    """Return a circle of conditions at or behind `name`, which `parents_first` left out."""
    path = [name]
    while path.count(path[-1]) == 1:
        path.append(next(parent for parent in dimensions[path[-1]].when if parent not in ordered))
    return path[path.index(path[-1]) :]


SEARCHED_SETTINGS = (
    "epochs",
    "patience",
    "learning_rate",
    "weight_decay",
    "warmup_fraction",
    "clip_norm",
    "category_dropout",
    "global_batch",
)
"""Keys of `training` that a space may hold. The others decide the machines, or the arithmetic of a step."""
_MOST_VALUES = 10_000
"""Largest number of values of an integer range that a check tries one by one."""
_ROUNDING = 1e-8
"""Part of a step by which a value may miss it: 0.1 + 3 · 0.2 is 0.7000000000000001. Optuna allows the same."""


class FloatRange(Conditional):
    """Real numbers from `low` to `high`."""

    has_exact_values: ClassVar[bool] = False
    kind: Literal["float"]
    """A range of real numbers."""
    low: float
    """Smallest value."""
    high: float
    """Largest value."""
    log: bool = False
    """Draw the logarithm uniformly, as for a learning rate."""
    step: float | None = Field(default=None, gt=0)
    """Distance of two neighbouring values. Not given: every value of the range."""

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        _require_range(type(self).__name__, self.low, self.high, log=self.log, stepped=self.step is not None)
        return self

    def values(self) -> tuple[float, ...] | None:
        """Return all values; None for a continuous range."""
        if self.step is None:
            return (self.low,) if self.low == self.high else None
        count = math.floor((self.high - self.low) / self.step + 1e-9) + 1
        return tuple(self.low + i * self.step for i in range(count))

    def ends(self) -> tuple[float, float]:
        """Return the smallest and the largest value."""
        return self.low, self.high

    def holds(self, value: Scalar) -> bool:
        """True if `value` lies in the range; with `step`, if it is one of the values but for rounding."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if self.step is None:
            return self.low <= value <= self.high
        steps = (value - self.low) / self.step
        most = len(self.values() or ()) - 1
        return abs(steps - round(steps)) < _ROUNDING and 0 <= round(steps) <= most


class IntRange(Conditional):
    """Whole numbers from `low` to `high`."""

    kind: Literal["int"]
    """A range of whole numbers."""
    low: int
    """Smallest value."""
    high: int
    """Largest value."""
    log: bool = False
    """Draw the logarithm uniformly, as for the width of a layer."""
    step: int = Field(default=1, ge=1)
    """Distance of two neighbouring values."""

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        _require_range(type(self).__name__, self.low, self.high, log=self.log, stepped=self.step != 1)
        return self

    def values(self) -> range:
        """Return all values."""
        return range(self.low, self.high + 1, self.step)

    def ends(self) -> tuple[int, int]:
        """Return the smallest and the largest value."""
        return self.low, self.values()[-1]

    def holds(self, value: Scalar) -> bool:
        """True if `value` is one of the values."""
        return isinstance(value, int) and not isinstance(value, bool) and value in self.values()


class Choices(Conditional):
    """Values without an order."""

    kind: Literal["categorical"]
    """A list of values."""
    choices: tuple[Scalar, ...] = Field(min_length=1)
    """Values to choose from: numbers, texts, true, false or null."""

    @model_validator(mode="after")
    def _are_listed_once(self) -> Self:
        for i, value in enumerate(self.choices):
            if value in self.choices[:i]:
                # Also 1, 1.0 and true: Optuna takes the first of equal values.
                raise ValueError(f"{value!r} is listed twice, or equals another choice: list each value once")
        return self

    def values(self) -> tuple[Scalar, ...]:
        """Return all values."""
        return self.choices

    def ends(self) -> tuple[Scalar, ...]:
        """Return all values, since none is smallest or largest."""
        return self.choices

    def holds(self, value: Scalar) -> bool:
        """True if `value` is one of the choices."""
        return value in self.choices


Dimension = Annotated[FloatRange | IntRange | Choices, Field(discriminator="kind")]
"""Values of one searched parameter."""


class SpaceSection(Section):
    """Parameters that a study varies, and their values."""

    hyperparameters: dict[str, Dimension] = Field(default_factory=dict)
    """Key of `model.hyperparameters` → its values."""
    training: dict[str, Dimension] = Field(default_factory=dict)
    """Key of `training` → its values."""

    @property
    def dimensions(self) -> Mapping[str, FloatRange | IntRange | Choices]:
        """Name of a parameter, `hyperparameters.<key>` or `training.<key>` → its values. Parents come first.

        Otherwise in the order of the names: a study draws in this order, and a file whose keys change places declares
        the same study.
        """
        return parents_first(dict(sorted(self._declared.items())))

    @property
    def is_conditional(self) -> bool:
        """True if some parameter exists only beside some values of others."""
        return any(one.when for one in self._declared.values())

    @property
    def points(self) -> Iterator[dict[str, Scalar]]:
        """All points of a space without continuous ranges, the last parameter changing first."""
        return points(self.dimensions)

    def holds(self, parameters: Mapping[str, Scalar]) -> bool:
        """True if `parameters` name exactly the parameters that exist beside them, each with one of its values."""
        existing = {name: one for name, one in self.dimensions.items() if one.exists(parameters)}
        return parameters.keys() == existing.keys() and all(
            one.holds(parameters[name]) for name, one in existing.items()
        )

    @model_validator(mode="after")
    def _conditions_can_hold(self) -> Self:
        refuse_at(
            type(self).__name__,
            {(*name.split(".", 1), "when"): said for name, said in wrong_conditions(self._declared)},
        )
        return self

    @property
    def _declared(self) -> Mapping[str, FloatRange | IntRange | Choices]:
        return {
            **{f"hyperparameters.{key}": values for key, values in self.hyperparameters.items()},
            **{f"training.{key}": values for key, values in self.training.items()},
        }


def probes(values: FloatRange | IntRange | Choices) -> Iterator[Scalar]:
    """Yield values with which a check tries a setting: all values if they are few, else the ends of their range."""
    every = values.values()
    yield from values.ends() if every is None or len(every) > _MOST_VALUES else every


def _require_range(section: str, low: float, high: float, *, log: bool, stepped: bool) -> None:
    why: dict[tuple[str | int, ...], str] = {}
    if low > high:
        why["low",] = f"low {low:g} is above high {high:g}: swap them"
    elif log and low <= 0:
        why["low",] = f"log needs a low above 0, not {low:g}: the logarithm of {low:g} does not exist"
    if log and stepped:
        why["step",] = "log and step exclude each other: remove one"
    refuse_at(section, why)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Values of the searched parameters for one training, and their source."""

    source: str
    """Digest of the result of a study; for a trial, of the study itself."""
    parameters: Mapping[str, Scalar] = field(hash=False)
    """`hyperparameters.<key>` or `training.<key>` → value."""

    def of(self, part: str) -> dict[str, Scalar]:
        """Return key → value of the parameters under `hyperparameters` or `training`."""
        begins = f"{part}."
        return {
            name.removeprefix(begins): value
            for name, value in self.parameters.items()
            if name.startswith(begins)
        }


def in_words(parameters: Mapping[str, Scalar]) -> str:
    """Return parameters as text for people: `training.learning_rate=0.01, hyperparameters.hidden=64`."""
    return ", ".join(
        f"{name}={f'{value:.6g}' if isinstance(value, float) else value}"
        for name, value in parameters.items()
    )


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


class PrunerWarmupSection(Section):
    """Beginning of each trial, in which the pruner pauses nothing. Give one of both."""

    epochs: int | None = Field(default=None, ge=1)
    """Epochs after which the pruner first compares a trial."""
    steps: int | None = Field(default=None, ge=1)
    """Steps: the pruner first compares a trial after the epoch that reaches them. Where `global_batch` varies, trials
    reach them in different epochs."""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("give either epochs or steps, after which the pruner first compares a trial")
        return self

    def is_over(self, epoch: int, step: int) -> bool:
        """True if the pruner may pause a trial after `epoch`, which ended at `step`."""
        return epoch >= self.epochs if self.epochs is not None else step >= (self.steps or 0)


VALIDATION_LOSS = "validation_loss"
"""Metric by which a training chooses its best step, and by which the trials of a study are compared unless the section
names another one."""


class TuningSection(Section):
    """Study of a model: trainings with different values, of which the best one is chosen."""

    space: SpaceSection
    """Parameters to vary, and their values."""
    sampler: Sampler = "tpe"
    """Chooses the values of the next trial. `grid`: every combination. `random`: independent draws. `tpe`: more draws
    near good trials, after ten random ones. `GPSampler` and `QMCSampler` are Optuna's samplers of these names."""
    pruner: Pruner = "none"
    """Pauses a trial with a checkpoint if its validation loss after an epoch is bad. `median`: worse than the median of
    the other trials. `successive_halving`: not in the better half after 1/9, 2/9, 4/9 and 8/9 of the epochs.
    `hyperband`: groups of trials that are thinned to a third, each from another epoch on."""
    pruner_warmup: PrunerWarmupSection | None = Field(default=None, examples=[{"steps": 500}])
    """Beginning of each trial, in which the pruner pauses nothing. Not given: `median` waits for two epochs."""
    metric: str = VALIDATION_LOSS
    """Metric of the validation rows by which trials are compared: a metric of the objective, or a function of
    `evaluation.metrics`, each with its own direction. Not given: the lowest validation loss. The pruner always compares
    validation losses."""
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
        if self.pruner_warmup is not None and self.pruner == "none":
            said = "pruner none pauses no trial, so nothing has a warm-up: remove it, or name a pruner"
            refuse_at(type(self).__name__, {("pruner_warmup",): said})
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
