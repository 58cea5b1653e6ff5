"""Metric by which the trials of a study are compared: its name, its direction, and what it is measured by.

Not here: measuring it (`tuning.trial_metric`), the values of the trials (`study_result`).
"""

from dataclasses import dataclass
from typing import Literal, Protocol

from ml_assets.foundation.code.code_version import code_version
from ml_assets.model.evaluation.metrics.metrics import find_metric
from ml_assets.model.evaluation.spec import EvaluationSpec
from ml_assets.model.steps.search_space import VALIDATION_LOSS, TuningSection


class ComparedTrial(Protocol):
    """Trial, or a point of an earlier study."""

    @property
    def validation_loss(self) -> float | None:
        """Lowest validation loss."""
        ...

    @property
    def value(self) -> float | None:
        """Value of another metric."""
        ...


TRIAL_VALUE = "trial_value"
"""Number on the page of a study: the value by which a trial that finished is compared."""


@dataclass(frozen=True, kw_only=True)
class StudyMetric:
    """Metric of a study."""

    name: str = VALIDATION_LOSS
    direction: Literal["minimize", "maximize"] = "minimize"
    measured_by: str = ""
    """Objective of the metric, or function of the project and version of its code; empty for the validation loss.
    Values measured by something else cannot be compared."""

    @property
    def is_validation_loss(self) -> bool:
        """True for the loss by which each training chooses its best step."""
        return self.name == VALIDATION_LOSS

    @property
    def in_words(self) -> str:
        """Return the metric for a sentence."""
        return "validation loss" if self.is_validation_loss else f"{self.name} of the validation rows"

    @property
    def best_in_words(self) -> str:
        """Return the metric with its direction for a sentence: `lowest validation loss`."""
        return f"{'lowest' if self.sign > 0 else 'highest'} {self.in_words}"

    @property
    def sign(self) -> int:
        """Factor that makes the metric a loss: 1 or -1."""
        return 1 if self.direction == "minimize" else -1

    def value_of(self, one: ComparedTrial) -> float | None:
        """Return the number by which a trial is compared; None if it has none."""
        return one.validation_loss if self.is_validation_loss else one.value

    def loss_of(self, one: ComparedTrial) -> float | None:
        """Return that number as a loss, whose smallest value is the best; None if the trial has none."""
        value = self.value_of(one)
        return None if value is None else self.sign * value

    def require_loss_of(self, one: ComparedTrial) -> float:
        """Return the loss of a trial that finished, or of a point of an earlier study."""
        loss = self.loss_of(one)
        assert loss is not None  # only of those that have no end, or another end
        return loss

    def other_than(self, other: "StudyMetric") -> str:
        """Return the difference between this metric and `other` as a clause; empty if values can be compared."""
        if self == other:
            return ""
        if self.name != other.name:
            return f"its metric is {self.name}, not {other.name}"
        return f"its {self.name} is measured by {self.measured_by}, not by {other.measured_by}"


BY_LOSS = StudyMetric()
"""Metric of a study that names none."""


def study_metric(tuning: TuningSection, evaluation: EvaluationSpec) -> StudyMetric:
    """Return the metric that `tuning` names, with the direction that `evaluation` knows. Imports no code of metrics."""
    if tuning.metric == VALIDATION_LOSS:
        return BY_LOSS
    facts = find_metric(tuning.metric, evaluation.of_rows, evaluation.objective)
    measured_by = f"objective {evaluation.objective}"
    for own in evaluation.metrics:
        if own.facts.name == tuning.metric:
            grouped = "" if own.group is None else f" by {own.group}"
            measured_by = f"{own.function}{grouped}, code {code_version(own.function)}"
    return StudyMetric(
        name=tuning.metric,
        direction="maximize" if facts.higher_is_better else "minimize",
        measured_by=measured_by,
    )
