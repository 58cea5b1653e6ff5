"""What a training worker gets and gives back. Standard library only: the worker image imports this file.

`TrainingJob` is the whole input of a worker: a JSON document. Its fingerprint names the job's folder, its
lock, its tracking run and (on a cluster) its Kubernetes Job, so a retry resumes, a second click attaches,
and an identical job finds the finished result.
"""

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal, Self

_DEFAULT_LANES = 8
"""Enough for a machine's devices; each lane is a pass of its own where bits are to be the same."""


class ExitCode(IntEnum):
    """How a worker ends. 64, 65 and 66 are final: another attempt cannot help."""

    DONE = 0
    BAD_CONFIGURATION = 64
    DIVERGED = 65
    INPUT_CHANGED = 66
    PREEMPTED = 75
    PEER_LOST = 76
    """Another rank went away first; why, its own exit code tells. Retried like a failure without a code."""

    @property
    def is_final(self) -> bool:
        """True where a retry cannot change the outcome."""
        return self in (ExitCode.DONE, ExitCode.BAD_CONFIGURATION, ExitCode.DIVERGED, ExitCode.INPUT_CHANGED)


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How to train: part of the fingerprint, so a change is another job."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic when YAML is validated

    epochs: int = 5
    """Upper limit; `patience` may stop earlier."""
    patience: int = 2
    """Epochs without a better validation loss before training stops."""
    global_batch: int = 1024
    """Rows per optimizer step over all workers; the same for any number of workers."""
    learning_rate: float = 1e-3
    """Peak of the one-cycle schedule (linear warm-up, cosine decay)."""
    weight_decay: float = 1e-2
    """AdamW."""
    warmup_fraction: float = 0.1
    """Share of all steps spent warming up, 0 to 1."""
    clip_norm: float = 1.0
    """Global gradient norm is clipped to this."""
    workers: int = 2
    """Processes, one per device."""
    lanes: int | None = None
    """Virtual workers, fixed for the job: each step takes its rows lane by lane, and a worker has some of the lanes. By
    default the largest divisor of `global_batch` up to 8."""
    determinism: Literal["bitwise", "tolerance"] = "tolerance"
    """`bitwise`: the same weights to the bit for any number of workers, also when that changes on the way. `tolerance`:
    faster, the same bits for the same number of workers only."""
    checkpoint_steps: int = 1000
    """A checkpoint at least every so many steps…"""
    checkpoint_minutes: float = 10.0
    """…and at most so many minutes apart."""
    keep_checkpoints: int = 3
    """The newest so many are kept, and the best one."""
    metric_steps: int = 20
    """Metrics are emitted every so many steps."""
    max_attempts: int = 3
    """Attempts of the launcher before it gives up; preemptions do not count."""
    hang_seconds: float = 15.0
    """A worker that gives no sign of life for so long is ended, and the job goes on from its checkpoint."""
    metrics_port: int | None = None
    """Where rank 0 serves its newest figures to Prometheus (`/metrics`); 0: any free port, told in the log."""

    def __post_init__(self) -> None:
        counts = (
            "epochs",
            "patience",
            "global_batch",
            "workers",
            "lanes",
            "checkpoint_steps",
            "metric_steps",
        )
        for name in counts:
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if self.global_batch % self.lane_count:
            raise ValueError(
                f"global_batch {self.global_batch} is not divisible by lanes {self.lanes}: "
                f"{self.global_batch} / {self.lanes} = {self.global_batch / self.lane_count:g}; "
                f"use {self.global_batch // self.lane_count * self.lane_count or self.lane_count}"
            )
        if self.workers > self.lane_count:
            raise ValueError(
                f"workers {self.workers} are more than lanes {self.lane_count}, and a worker needs one: lower workers, "
                f"or set lanes to a divisor of global_batch {self.global_batch} from {self.workers} on"
            )
        if self.determinism not in ("bitwise", "tolerance"):
            raise ValueError(f"determinism is bitwise or tolerance, not {self.determinism!r}")
        if self.keep_checkpoints < 2:
            raise ValueError("keep_checkpoints must be at least 2: the newest may still be being written")

    @property
    def lane_count(self) -> int:
        """`lanes`, or what stands for it: a matter of the batch alone, so that workers may come and go."""
        small = range(min(_DEFAULT_LANES, self.global_batch), 0, -1)
        return self.lanes or next(lanes for lanes in small if self.global_batch % lanes == 0)


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """One training, completely described."""

    model: str
    """Name of the pipeline."""
    partition: str
    """Partition key of the model, for people; not part of the fingerprint."""
    model_function: str
    """Import path `package.module.function`: `(inputs: InputSpec, **hyperparameters) -> torch.nn.Module`."""
    objective: str
    """`binary` (logits, cross-entropy) or `regression` (values, squared error)."""
    hyperparameters: dict[str, Any]
    """Keyword arguments of the model function; JSON values."""
    snapshot: str
    """Folder with `snapshot.json` and the Arrow shards; where it lies is not part of the fingerprint."""
    snapshot_digest: str
    """SHA-256 of what is trained on; the worker refuses (66) a folder with another digest."""
    code_version: str
    """Digest of the model function and the project modules it imports."""
    seed: int
    settings: TrainingSettings = field(default_factory=TrainingSettings)
    nonce: str = ""
    """Set by `force` to train again what has been trained."""

    @property
    def fingerprint(self) -> str:
        """SHA-256, 64 hex digits, of everything that can change the weights."""
        facts = dataclasses.asdict(self)
        for place in ("partition", "snapshot"):
            del facts[place]
        facts["settings"]["lanes"] = self.settings.lane_count
        if self.settings.determinism == "bitwise":
            del facts["settings"]["workers"]
        # How often a checkpoint is written or a job retried does not change what is learned.
        for name in (
            "checkpoint_steps",
            "checkpoint_minutes",
            "keep_checkpoints",
            "metric_steps",
            "max_attempts",
            "hang_seconds",
            "metrics_port",
        ):
            del facts["settings"][name]
        canonical = json.dumps(facts, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def to_json(self) -> str:
        """The document a worker reads."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Inverse of `to_json`."""
        facts: dict[str, Any] = json.loads(text)
        settings = TrainingSettings(**facts.pop("settings"))
        return cls(**facts, settings=settings)


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """What a finished job leaves in `result.json`, written last."""

    fingerprint: str
    weights: str
    """Path of `model.safetensors`, the weights with the best validation loss."""
    weights_sha256: str
    best_step: int
    best_validation_loss: float
    steps: int
    epochs: int
    world_size: int
    rows_per_second: float
    seconds: float
    """Wall time of the training loop, over all attempts."""
    attempts: int = 1
    resumed_from_steps: tuple[int, ...] = ()
    """Step each later attempt continued from."""

    def to_json(self) -> str:
        """The content of `result.json`."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, indent=1)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read `result.json`."""
        facts: dict[str, Any] = json.loads(path.read_text())
        resumed_from_steps: tuple[int, ...] = tuple(facts.pop("resumed_from_steps"))
        return cls(**facts, resumed_from_steps=resumed_from_steps)
