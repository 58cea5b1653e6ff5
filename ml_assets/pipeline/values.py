"""Values that the steps of a model hand each other: frozen, small, JSON. Data and weights lie in lake and artifacts.

A run that goes on from a failed one reads the values of that run, so each has everything a later step needs to know of
the step: nothing is derived a second time from a declaration that may have changed since.
"""

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Self

from resources.job.job import TrainingJob, TrainingResult
from resources.ledger import GateStatus, TrainedOn


@dataclass(frozen=True, kw_only=True)
class StepValue:
    """Base: the value of one step, as the file between two steps holds it."""

    def to_json(self) -> str:
        """The content of the file."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Inverse of `to_json`. Raises `ValueError`, `KeyError` or `TypeError` for another document."""
        facts: dict[str, Any] = json.loads(text)
        return cls(**cls._read(facts))

    @classmethod
    def _read(cls, facts: dict[str, Any]) -> dict[str, Any]:
        """Return the fields by name, for a value that JSON gives back in another shape."""
        return facts


@dataclass(frozen=True, kw_only=True)
class ValidatedWindow(StepValue):
    """Partitions that a training may be built on, as they were validated at one commit."""

    commit: str
    """Commit of the lake."""
    table: str
    """Feature table."""
    keys: tuple[str, ...]
    """Partitions of the window, oldest first."""
    stale: dict[str, str]
    """Key → what differs from what it would be made with now; usable all the same."""
    inputs: tuple[dict[str, str | int], ...]
    """A row per table of the window and of what it is made from, for people."""

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
    """Digest of its newest evaluation when the training set was frozen."""


@dataclass(frozen=True, kw_only=True)
class TrainingSet(StepValue):
    """A frozen training input, and the job that will train on it."""

    job: TrainingJob
    commit: str
    """Commit of the lake that keeps the snapshot's documents."""
    branch: str
    """Branch that holds this commit until a version is registered."""
    source_commit: str
    """Commit that the rows were read at."""
    table: str
    """Feature table."""
    keys: tuple[str, ...]
    """Partitions of the window, oldest first."""
    run_id: str
    """Dagster run that froze it."""
    settings: str
    """`settings_digest` of the declaration and code that it was frozen for."""
    initial: InitialVersion | None = None
    """Version that the training begins with; None: random weights."""

    @property
    def trained_on(self) -> TrainedOn:
        """The window and the version it began with, as the ledger records them."""
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
        return facts | {
            "job": TrainingJob.from_json(json.dumps(facts["job"])),
            "keys": tuple(facts["keys"]),
            "initial": None if initial is None else InitialVersion(**initial),
        }


@dataclass(frozen=True, kw_only=True)
class TrainedModel(StepValue):
    """A finished training."""

    result: TrainingResult
    folder: str
    """Folder of the job on this machine: events and result."""
    mlflow_run: str
    """Id of the training's run in MLflow."""
    is_reused: bool
    """True where the job was found finished."""

    @classmethod
    def _read(cls, facts: dict[str, Any]) -> dict[str, Any]:
        return facts | {"result": TrainingResult.from_json(json.dumps(facts["result"]))}


@dataclass(frozen=True, kw_only=True)
class RuleOutcome:
    """One gate on the whole holdout or on one slice, in words."""

    rule: str
    slice: str
    """`all rows` for the whole holdout."""
    result: str
    """`passed`, `failed`, `undecided` or `not_applicable`."""
    asks: str
    found: str
    would_pass: str
    """Condition under which it would pass; empty where it passed."""


@dataclass(frozen=True, kw_only=True)
class EvaluatedModel(StepValue):
    """A bundle and the decision of the gates about it."""

    status: GateStatus
    summary: str
    """The decision in one sentence."""
    rules: tuple[RuleOutcome, ...]
    bundle: str
    """Digest of the bundle."""
    evaluation: str
    """Digest of the evaluation."""
    decided_by: str
    """SHA-256 of all that decided: the challenger (which names its holdout), the champion, and the rules."""
    report: str
    """Name of the report's folder among the artifacts."""
    report_file: str
    """Address of the report's file, for readers without the pages."""

    @property
    def failed(self) -> tuple[RuleOutcome, ...]:
        """The gates that reject."""
        return tuple(one for one in self.rules if one.result == "failed")

    @classmethod
    def _read(cls, facts: dict[str, Any]) -> dict[str, Any]:
        return facts | {"rules": tuple(RuleOutcome(**one) for one in facts["rules"])}


@dataclass(frozen=True, kw_only=True)
class RegisteredModel(StepValue):
    """A version in the registry."""

    number: int
    semantic: str
    """`major.minor.patch`."""
    bundle: str
    """Digest of its bundle."""
    branch: str
    """Branch of the lake that keeps what it was trained on."""
    may_be_promoted: bool
    is_in_production: bool
    was_promoted: bool
    """True where a promotion would go back to it."""
    gate: str
    """Decision that stands for it: of its promotion's evaluation, or of its newest; empty without one."""
    evaluation: str
    """Short name of that evaluation; empty without one."""
    report: str
    """Name of that evaluation's report folder among the artifacts; empty without one."""
    report_file: str
    """Address of that report's file; empty without one."""
