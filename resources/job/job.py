"""Input and output of a training worker.

`TrainingJob` is the whole input of a worker: a JSON document. Its fingerprint names the job's folder, its lock, its
tracking run and (on a cluster) its Kubernetes Job. So a retry resumes, a second launch attaches, and an identical job
gets the finished result.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Self

from resources.job.training_settings import TrainingSettings


class ExitCode(IntEnum):
    """Exit codes of a worker. 64 to 68 are final: another attempt cannot help."""

    DONE = 0
    BAD_CONFIGURATION = 64
    DIVERGED = 65
    INPUT_CHANGED = 66
    OUT_OF_MEMORY = 67
    UNMEASURED = 68
    PREEMPTED = 75
    PEER_LOST = 76
    """Another rank ended first; its exit code tells the reason. Retried like a failure without a code."""

    @classmethod
    def of(cls, code: int) -> Self | None:
        """Return the member for the exit code of a process; None if it is not one of these."""
        return cls(code) if code in set(cls) else None

    @property
    def is_final(self) -> bool:
        """True if a retry cannot change the outcome."""
        return self not in (ExitCode.PREEMPTED, ExitCode.PEER_LOST)


@dataclass(frozen=True, kw_only=True)
class RestoredState:
    """Checkpoint of another training, with which a training begins."""

    training: str
    """Fingerprint of that training."""
    step: int
    """Step of the checkpoint."""
    state: str
    """SHA-256 of the names and digests of its files."""

    @property
    def in_words(self) -> str:
        """Name of the checkpoint for people: `step 40 of training 0a1b2c3d4e5f6071`."""
        return f"step {self.step} of training {self.training[:16]}"


@dataclass(frozen=True, kw_only=True)
class LossHistory:
    """Losses of work in earlier trainings of the same pipeline, for `checkpoint_every_minutes: auto`."""

    losses: int
    """Attempts that ended without a save: a worker, its pod or its machine was lost."""
    worker_seconds: float
    """Seconds that their attempts trained, times their workers."""
    save_seconds: float | None
    """Median of the time that a save took from the steps; None if no attempt measured it."""


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """Complete description of one training."""

    model: str
    """Name of the pipeline."""
    partition: str
    """Partition key of the model, for people; not part of the fingerprint."""
    model_function: str
    """Import path `package.module.function`: `(inputs: InputSpec, **hyperparameters) -> torch.nn.Module`. Empty if
    there is a `script`."""
    objective: str
    """Name of the objective, such as `binary` (logits, cross-entropy) or `regression` (values, squared error)."""
    hyperparameters: dict[str, Any]
    """Keyword arguments of the model function, or the command line of the script; JSON values."""
    snapshot: str
    """Folder with `snapshot.json` and the Arrow shards. Its path is not part of the fingerprint."""
    snapshot_digest: str
    """SHA-256 of the snapshot. The worker refuses (exit 66) a folder with another digest."""
    code_version: str
    """Digests of the script, the model function and `decode`, each with the project modules that it reaches, joined by
    dashes. The worker refuses (exit 66) code with another digest. Empty for a job made by hand: not compared."""
    seed: int
    schema_hash: str = ""
    """SHA-256 of the ordered (column, type) pairs at the submission of the training, with the label. The worker refuses
    (exit 66) a snapshot with other columns."""
    initial_weights: str = ""
    """SHA-256 of the file with the initial weights. Empty: random weights from the seed."""
    settings: TrainingSettings = field(default_factory=TrainingSettings)
    script: str = ""
    """Import path `package.module` of a script with its own training loop. Each worker runs it."""
    arguments: tuple[str | int | float, ...] = ()
    """Positional arguments of the script, before its hyperparameters."""
    decode: str = ""
    """Import path `package.module.function`: `(content: bytes) -> array`. Decodes a blob, if rows have blobs."""
    loop_version: str = ""
    """Digest of the platform's modules that run in the workers and can change the weights. The worker refuses (exit 66)
    other modules. Empty for a job made by hand: not compared."""
    platform_text: str = ""
    """SHA-256 of the text of all modules of the platform at submission; not part of the fingerprint. A worker with
    equal text need not compute `loop_version`."""
    packages: dict[str, str] = field(default_factory=dict[str, str])
    """Name → version of `python` and of every installed package that the code of the workers reaches."""
    restored: RestoredState | None = None
    """State with which it begins, in place of step 0; None for nearly all trainings."""
    loss_history: LossHistory | None = None
    """Losses of earlier trainings, as the launch knows them; not part of the fingerprint. None: not asked for."""
    foreign: str = ""
    """SHA-256 of the document of a model that was trained elsewhere, in place of a training; empty for trainings."""

    @property
    def fingerprint(self) -> str:
        """SHA-256, 64 hex digits, of everything that can change the weights."""
        facts = dataclasses.asdict(self)
        for place in ("partition", "snapshot", "platform_text", "loss_history"):
            del facts[place]
        if self.restored is None:  # the fingerprint of a training that begins at step 0 does not mention it
            del facts["restored"]
        if not self.foreign:  # nor is that of a training about another origin
            del facts["foreign"]
        facts["settings"] = self.settings.identity
        canonical = json.dumps(facts, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def to_json(self) -> str:
        """Return the JSON document that a worker reads."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Inverse of `to_json`. Raises `ValueError`, also for JSON that is not a job."""
        return cls.from_document(json.loads(text))

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read the decoded document of `to_json`. Raises `ValueError` for another document."""
        try:
            settings = TrainingSettings(**document["settings"])
            restored: dict[str, Any] | None = document.get("restored")
            history: dict[str, Any] | None = document.get("loss_history")
            facts: dict[str, Any] = {
                **document,
                "arguments": tuple(document["arguments"]),
                "settings": settings,
                "restored": None if restored is None else RestoredState(**restored),
                "loss_history": None if history is None else LossHistory(**history),
            }
            return cls(**facts)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not the document of a training: {error}") from error


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """Content of a finished job's `result.json`, the last file that the job writes."""

    fingerprint: str
    weights: str
    """Path of `model.safetensors`, the weights with the best validation loss."""
    weights_sha256: str
    best_step: int
    best_validation_loss: float
    """Loss of these weights over the validation rows, in a fresh model; for a script, as the script reported it."""
    steps: int
    epochs: int
    world_size: int
    rows_per_second: float
    seconds: float
    """Wall time of the training loop, over all attempts."""
    worker_seconds: float
    """Sum over all attempts of the seconds from the start to the last sign of life, times the workers."""
    attempts: int = 1
    resumed_from_steps: tuple[int, ...] = ()
    """Step from which each later attempt resumed."""
    compared_units: int = 0
    """Number of validation rows, or lists, in `compared_loss`, spread over all; 0 for a script."""
    compared_loss: float = 0.0
    """Mean loss of these weights over them, on the CPU. The exporter's process computes it again."""

    def has_weights(self, path: Path) -> bool:
        """True if the file at `path` has the digest of these weights."""
        if not path.exists():
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == self.weights_sha256

    def to_json(self) -> str:
        """Return the content of `result.json`."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, indent=1)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read `result.json`."""
        return cls.from_document(json.loads(path.read_text()))

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read the decoded document of `to_json`."""
        facts: dict[str, Any] = {**document, "resumed_from_steps": tuple(document["resumed_from_steps"])}
        return cls(**facts)
