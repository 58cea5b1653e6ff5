"""How to train: the `training` section of a pipeline, and part of a training job. Standard library only.

Here: the settings, their defaults, what contradicts itself. Not here: what is trained on (job), where (profile).
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, cast

_DEFAULT_LANES = 8
"""Enough for a machine's devices; each lane is a pass of its own where bits are to be the same."""

_CHANGES_NO_WEIGHTS = (
    "checkpoint_steps",
    "checkpoint_minutes",
    "keep_checkpoints",
    "metric_steps",
    "max_attempts",
    "hang_seconds",
    "metrics_port",
    "peak_tflops",
)
_NEW = ("parallel",)
"""Came after trainings had been identified without them, and are left out where they hold their default."""


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """How a model lies on the workers; by default each has the whole. docs/training.md says what to use when."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - read by pydantic when YAML is validated

    shard: Literal["none", "optimizer", "gradients", "full"] = "none"
    """What is divided among the workers that read different rows: nothing; what the optimizer keeps (ZeRO 1);
    gradients, too (ZeRO 2); parameters, too (ZeRO 3)."""
    tensor: int = 1
    """So many workers read the same rows; each computes its part of every layer that the model says can be cut."""

    def __post_init__(self) -> None:
        if self.shard not in ("none", "optimizer", "gradients", "full"):
            raise ValueError(f"parallel.shard is none, optimizer, gradients or full, not {self.shard!r}")
        if self.tensor < 1:
            raise ValueError(f"parallel.tensor must be at least 1, not {self.tensor}")
        if self.shard == "optimizer" and self.tensor > 1:
            raise ValueError(
                f"parallel.shard optimizer deals out whole parameters, and with tensor {self.tensor} no worker has "
                "them: use shard gradients or full"
            )

    @property
    def model_workers(self) -> int:
        """Workers that read the same rows: between them they compute one model."""
        return self.tensor


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How to train. A change is another job, besides what changes no weights."""

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
    parallel: Parallel = field(default_factory=Parallel)
    """How the model lies on the workers."""
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
    peak_tflops: float | None = None
    """10¹² operations a second a worker's device can do at most, in the precision of the training: for the figure `mfu`
    where the card is not among those known."""

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
        each = self.parallel.model_workers
        if self.workers % each:
            raise ValueError(
                f"workers {self.workers} cannot be divided by parallel.tensor {each}: "
                f"{self.workers} / {each} = {self.workers / each:g}; use {-(-self.workers // each) * each}"
            )
        if self.workers > self.lane_count * each:
            per_model = f" / {each} that read the same rows" * (each > 1)
            raise ValueError(
                f"workers {self.workers}{per_model} are more than lanes {self.lane_count}, and a worker needs one: "
                f"lower workers, or set lanes to a divisor of global_batch {self.global_batch} from "
                f"{self.workers // each} on"
            )
        if self.determinism not in ("bitwise", "tolerance"):
            raise ValueError(f"determinism is bitwise or tolerance, not {self.determinism!r}")
        if self.peak_tflops is not None and not self.peak_tflops > 0:
            raise ValueError(f"peak_tflops must be above 0, not {self.peak_tflops:g}")
        if self.determinism == "bitwise" and self.parallel != Parallel():
            raise ValueError(
                "determinism bitwise adds up the gradients of whole models, lane by lane, and with parallel no worker "
                "has one: use determinism tolerance, or leave parallel out"
            )
        if self.keep_checkpoints < 2:
            raise ValueError("keep_checkpoints must be at least 2: the newest may still be being written")

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """From JSON or YAML. Raises `ValueError` for what contradicts itself, `TypeError` for an unknown key."""
        facts = dict(document)
        parallel: Any = facts.pop("parallel", {})
        if not isinstance(parallel, dict):
            raise ValueError(f"parallel has keys shard and tensor, and is {parallel!r}")
        return cls(**facts, parallel=Parallel(**cast(dict[str, Any], parallel)))

    @property
    def lane_count(self) -> int:
        """`lanes`, or what stands for it: a matter of the batch alone, so that workers may come and go."""
        small = range(min(_DEFAULT_LANES, self.global_batch), 0, -1)
        return self.lanes or next(lanes for lanes in small if self.global_batch % lanes == 0)

    @property
    def identity(self) -> dict[str, Any]:
        """What of this can change the weights: a training with other values is another one."""
        facts = dataclasses.asdict(self)
        facts["lanes"] = self.lane_count
        if self.determinism == "bitwise":
            del facts["workers"]
        default = dataclasses.asdict(type(self)())
        for name in (*_CHANGES_NO_WEIGHTS, *(new for new in _NEW if facts[new] == default[new])):
            del facts[name]
        return facts
