"""Result of a study: a document with every trial, the chosen one, and the reason.

Not here: the storage in which a study runs (`study`), the files of the document (`tuning.tune`).
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

from ml_assets.foundation.days import Days
from ml_assets.model.steps.search_space import VALIDATION_LOSS, Choice, Scalar, Spent, in_words
from ml_assets.model.steps.study_metric import StudyMetric
from resources.ledger import TrainedOn
from resources.words import counted


@dataclass(frozen=True, kw_only=True)
class TrialOutcome:
    """End of one trial."""

    number: int
    """Number of the trial in its study, from 0."""
    parameters: Mapping[str, Scalar]
    """`hyperparameters.<key>` or `training.<key>` → value."""
    state: Literal["finished", "paused", "failed"]
    """`paused`: the pruner stopped it after a checkpoint."""
    fingerprint: str = ""
    """Fingerprint of the trial's training."""
    validation_loss: float | None = None
    """Lowest validation loss, of a paused trial so far; None if the trial failed."""
    value: float | None = None
    """Metric of the study for the weights of the best epoch; None if that is the validation loss, or the trial did not
    finish."""
    epochs: int = 0
    """Epochs trained."""
    epochs_before: int = 0
    """Those of them that were trained before the study began: by another study, or by a training of the model."""
    most_epochs: int = 0
    """Epochs that it might have trained: `training.epochs`; 0 for a script, which has its own loop."""
    pauses: Sequence[int] = field(default=(), hash=False)
    """Epoch after which the pruner paused it; empty if it did not."""
    steps: int = 0
    seconds: float = 0.0
    """Wall time of the training loop, over all attempts."""
    worker_seconds: float = 0.0
    """Seconds of all workers, over all attempts."""
    worker_seconds_before: float = 0.0
    """Those of them before the study began."""
    mlflow_run: str = ""
    """Id of the trial's run in MLflow."""
    why: str = ""
    """Reason of a failure or of a pause; empty for a finished trial."""
    may_pass: bool = False
    """True for a failure by resources, room or a store rather than by the values. The next launch trains it again."""
    curve: Sequence[tuple[int, float]] = field(default=(), hash=False)
    """Epoch and lowest validation loss up to it, for each epoch with which the pruner compared."""

    @property
    def own_worker_seconds(self) -> float:
        """Seconds of all workers since the study began."""
        return max(0.0, self.worker_seconds - self.worker_seconds_before)

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        """Return the outcome from its JSON object."""
        curve = tuple((int(epoch), float(loss)) for epoch, loss in facts["curve"])
        known: dict[str, Any] = {**facts, "pauses": tuple(facts["pauses"]), "curve": curve}
        return cls(**known)


@dataclass(frozen=True, kw_only=True)
class KnownPoint:
    """Values that an earlier study tried."""

    parameters: Mapping[str, Scalar] = field(hash=False)
    """`hyperparameters.<key>` or `training.<key>` → value."""
    validation_loss: float
    """Lowest validation loss. Of another study's rows, moved by the difference that repeated trials showed."""
    window: TrainedOn
    """Window of that study."""
    value: float | None = None
    """Metric of that study, moved likewise in place of the loss; None if it is the validation loss."""

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        """Return the point from its JSON object."""
        known: dict[str, Any] = {**facts, "window": TrainedOn(**facts["window"])}
        return cls(**known)


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """Finished study."""

    study: str
    """Digest of the study: its snapshot, space, sampler, declared values and code."""
    name: str
    """Name of the study in Optuna's storage."""
    model: str
    partition: str
    """Partition of the model whose window was searched on."""
    snapshot: str
    """Digest of the snapshot. Trials read its training and validation rows."""
    window: TrainedOn
    """Partitions of the snapshot."""
    seen: Days
    """Days that its values have seen: training and validation rows of the trials, what stands behind their initial
    weights, and the same of each study that it began from."""
    sampler: str
    pruner: str
    trials: Sequence[TrialOutcome] = field(hash=False)
    """All trials that ended, by number."""
    seconds: float = 0.0
    """Wall time in which the study ran trials, over all launches."""
    stopped: str = ""
    """Reason for which it began fewer trials than declared; empty if it began all."""
    differs: str = ""
    """Difference from the model's study before, in a sentence; empty for its first study."""
    prior: str = ""
    """Digest of the result that it began from; empty if it searched from nothing."""
    inherited: Sequence[KnownPoint] = field(default=(), hash=False)
    """Points of earlier studies that the sampler sees."""
    metric: str = VALIDATION_LOSS
    direction: Literal["minimize", "maximize"] = "minimize"
    measured_by: str = ""
    """See `StudyMetric`."""

    @property
    def compared_by(self) -> StudyMetric:
        """Metric by which trials were compared."""
        return StudyMetric(name=self.metric, direction=self.direction, measured_by=self.measured_by)

    @property
    def finished(self) -> list[TrialOutcome]:
        """Trials that finished, best first; of equal ones the earlier first."""
        done, metric = [one for one in self.trials if one.state == "finished"], self.compared_by
        return sorted(done, key=lambda one: (metric.require_loss_of(one), one.number))

    @property
    def chosen(self) -> TrialOutcome:
        """Best trial by the metric. Raises `IndexError` if no trial finished."""
        return self.finished[0]

    @property
    def choice(self) -> Choice:
        """Values of the chosen trial."""
        return Choice(source=self.digest, parameters=self.chosen.parameters)

    @property
    def because(self) -> str:
        """Return the reason of the choice, and the chosen values, in one sentence."""
        return f"{self.reason}: {in_words(self.chosen.parameters)}"

    @property
    def reason(self) -> str:
        """Return the reason of the choice without the chosen values."""
        best, *others = self.finished
        metric = self.compared_by
        among = f"of {counted(len(others) + 1, 'finished trial')}"
        next_best = (
            f"; next is trial {others[0].number} with {metric.value_of(others[0]):.6g}" if others else ""
        )
        ends = Counter(one.state for one in self.trials)
        lost = "".join(
            f"; {counted(ends[state], 'trial')} {state}" for state in ("paused", "failed") if ends[state]
        )
        lost += f"; {self.stopped}" if self.stopped else ""
        value = f"{metric.value_of(best):.6g}"
        return f"trial {best.number} has the {metric.best_in_words}, {value}, {among}{next_best}{lost}"

    @property
    def spent(self) -> Spent:
        """Cost of the study."""
        return spent_on(self.seconds, self.trials)

    @property
    def epochs_saved(self) -> tuple[int, int]:
        """Epochs that paused trials did not train, and that all trials might have trained. Failed trials do not count.

        Early stopping is not counted as saved: a training stops early without a pruner, too.
        """
        paused = sum(one.most_epochs - one.epochs for one in self.trials if one.state == "paused")
        return paused, sum(one.most_epochs for one in self.trials if one.state != "failed")

    @property
    def digest(self) -> str:
        """SHA-256 of the document, 64 hex digits."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """Return the document. `chosen` and `because` in it are for people: they follow from the trials."""
        facts: dict[str, Any] = asdict(self) | {"chosen": self.chosen.number, "because": self.because}
        if self.compared_by.is_validation_loss:
            # A result of a release without other metrics keeps its digest.
            del facts["measured_by"]
            for one in (*facts["trials"], *facts["inherited"]):
                del one["value"]
        return json.dumps(facts, sort_keys=True, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Inverse of `to_json`."""
        facts: dict[str, Any] = json.loads(text)
        del facts["chosen"], facts["because"]
        facts["window"] = TrainedOn(**facts["window"])
        facts["seen"] = Days.from_document(facts["seen"])
        facts["trials"] = tuple(TrialOutcome.of(one) for one in facts["trials"])
        facts["inherited"] = tuple(KnownPoint.of(one) for one in facts["inherited"])
        return cls(**facts)


def spent_on(seconds: float, trials: Iterable[TrialOutcome]) -> Spent:
    """Return the cost of a study that ran for `seconds` of wall time and has `trials`.

    Trainings, and parts of them, that are older than the study cost it nothing.
    """
    worked = sum(one.own_worker_seconds for one in each_training(trials))
    return Spent(hours=seconds / 3600, worker_hours=worked / 3600)


def each_training(trials: Iterable[TrialOutcome]) -> list[TrialOutcome]:
    """Return the trials without those whose training is that of an earlier trial: equal values train once."""
    first: dict[str, TrialOutcome] = {}
    for one in trials:
        first.setdefault(one.fingerprint or f"trial {one.number}", one)
    return list(first.values())
