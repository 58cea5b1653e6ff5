"""Values between the steps of a model: frozen, small, JSON. Data and weights are in the lake and the artifacts.

A run that continues a failed run reads that run's values. So each value holds all that later steps need, and nothing is
derived again from a declaration that may have changed since.
"""

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Self

from ml_assets.foundation.days import Days
from ml_assets.model.steps.search_space import Choice
from resources.job.job import TrainingJob, TrainingResult
from resources.ledger import GateStatus, RuleOutcome, TrainedOn, TransitionOutcome


@dataclass(frozen=True, kw_only=True)
class StepValue:
    """Base class: the value of one step, stored as a file between two steps."""

    def to_json(self) -> str:
        """Return the content of the file."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a value from `to_json`. Raises `ValueError`, `KeyError` or `TypeError` for another document."""
        facts: dict[str, Any] = json.loads(text)
        return cls(**cls._read(facts))

    @classmethod
    def _read(cls, facts: dict[str, Any]) -> dict[str, Any]:
        """Return the fields by name; override it for a field that JSON returns as another type."""
        return facts


@dataclass(frozen=True, kw_only=True)
class ValidatedWindow(StepValue):
    """Partitions that a training may read, as they were validated at one commit."""

    commit: str
    """Commit of the lake."""
    table: str
    """Feature table."""
    keys: tuple[str, ...]
    """Partitions of the window, oldest first."""
    stale: dict[str, str]
    """Key → the reason for which it is stale; still usable."""
    inputs: tuple[dict[str, str | int], ...]
    """Rows for people: one per table of the window and per table it is made from."""
    declared: str
    """Digest of the declarations of the pipeline and of these tables for which it was validated."""

    @classmethod
    def _read(cls, facts: dict[str, Any]) -> dict[str, Any]:
        return facts | {"keys": tuple(facts["keys"]), "inputs": tuple(facts["inputs"])}


@dataclass(frozen=True, kw_only=True)
class InitialVersion:
    """Registered version whose weights a training begins with."""

    version: str
    """`model/number`."""
    bundle: str
    """Digest of its bundle."""
    evaluation: str
    """Digest of its newest evaluation at the time the training set was frozen."""


@dataclass(frozen=True, kw_only=True)
class TrainingSet(StepValue):
    """Frozen training input, and the job that will train on it."""

    job: TrainingJob
    commit: str
    """Commit of the lake that keeps the snapshot's documents."""
    branch: str
    """Branch that keeps this commit until a version is registered."""
    source_commit: str
    """Commit at which this run read the rows. Another run of the same job may read them at another one."""
    read: str
    """Digest of the values that the snapshot was made from (`SourceValues.digest`)."""
    table: str
    """Feature table."""
    keys: tuple[str, ...]
    """Partitions of the window, oldest first."""
    run_id: str
    """Dagster run that froze it."""
    settings: str
    """`settings_digest` of the declaration and code for which it was frozen."""
    seen: Days
    """Days behind the weights of `job`: those of training and validation, of the initial version with all versions
    before it, and of the study that chose the values."""
    initial: InitialVersion | None = None
    """Version whose weights the training begins with; None: random weights."""
    choice: Choice | None = None
    """Values that a study chose for `job`, or those of a trial; None: the declared values."""
    values_from: str = ""
    """Origin of the values in a sentence; empty for a model without a study, and for a trial."""

    @property
    def trained_on(self) -> TrainedOn:
        """Window, and version that the training begins with, as the ledger records them."""
        return TrainedOn(
            commit=self.source_commit,
            table=self.table,
            first=self.keys[0],
            last=self.keys[-1],
            partitions=len(self.keys),
            begins_with="" if self.initial is None else self.initial.evaluation,
        )

    @classmethod
    def _read(cls, facts: dict[str, Any]) -> dict[str, Any]:
        initial: dict[str, str] | None = facts["initial"]
        choice: dict[str, Any] | None = facts["choice"]
        return facts | {
            "job": TrainingJob.from_document(facts["job"]),
            "keys": tuple(facts["keys"]),
            "seen": Days.from_document(facts["seen"]),
            "initial": None if initial is None else InitialVersion(**initial),
            "choice": None if choice is None else Choice(**choice),
        }


@dataclass(frozen=True, kw_only=True)
class TrainedModel(StepValue):
    """Finished training."""

    result: TrainingResult
    folder: str
    """Folder of the job on this machine, with events and result."""
    mlflow_run: str
    """Id of the training's run in MLflow."""
    is_reused: bool
    """True if an earlier run had already finished the job."""
    launches: tuple[str, ...] = ()
    """SHA-256 of the record of each launch that trained it, oldest first."""

    @classmethod
    def _read(cls, facts: dict[str, Any]) -> dict[str, Any]:
        result = TrainingResult.from_document(facts["result"])
        return facts | {"result": result, "launches": tuple(facts["launches"])}


@dataclass(frozen=True, kw_only=True)
class EvaluatedModel(StepValue):
    """Bundle, and the gates' decision about it."""

    status: GateStatus
    summary: str
    """The decision in one sentence."""
    rules: tuple[RuleOutcome, ...]
    transitions: tuple[TransitionOutcome, ...]
    bundle: str
    """Digest of the bundle."""
    evaluation: str
    """Digest of the evaluation."""
    decided_by: str
    """SHA-256 of all that decided: the challenger (which names its holdout), the champion, the rules, and the columns
    that only the evaluation reads."""
    report: str
    """Name of the report's folder among the artifacts."""
    report_file: str
    """Address of the report's file, for readers without the pages."""

    @property
    def failed(self) -> tuple[RuleOutcome, ...]:
        """Gates that failed and so reject the model."""
        return tuple(one for one in self.rules if one.result == "failed")

    @classmethod
    def _read(cls, facts: dict[str, Any]) -> dict[str, Any]:
        transitions = (one | {"rules": _outcomes(one)} for one in facts["transitions"])
        return facts | {
            "rules": _outcomes(facts),
            "transitions": tuple(TransitionOutcome(**one) for one in transitions),
        }


def _outcomes(facts: dict[str, Any]) -> tuple[RuleOutcome, ...]:
    return tuple(RuleOutcome(**one) for one in facts["rules"])


@dataclass(frozen=True, kw_only=True)
class RegisteredModel(StepValue):
    """Version in the registry."""

    number: int
    semantic: str
    """`major.minor.patch`."""
    bundle: str
    """Digest of its bundle."""
    branch: str
    """Branch of the lake that keeps its training input."""
    may_be_promoted: bool
    waits_for_approval: bool
    """True if a person has to approve it first."""
    is_in_production: bool
    was_promoted: bool
    """True if it was promoted before: promoting it again is a rollback."""
    gate: str
    """Decision that counts for it: of its promotion's evaluation, or of its newest evaluation; empty without one."""
    evaluation: str
    """Short name of that evaluation; empty without one."""
    report: str
    """Name of that evaluation's report folder among the artifacts; empty without one."""
    report_file: str
    """Address of that report's file; empty without one."""
    dossier: str
    """Digest of its signed dossier; empty if no key is set."""
    dossier_files: str
    """Address of the dossier's files; empty if no key is set."""
