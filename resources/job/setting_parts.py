"""Parts of the training settings, each with the checks that concern it alone. Standard library only.

`training_settings.TrainingSettings` inherits all of them, so that the `training` section of a pipeline stays flat; only
`parallel` is a section of its own. A function that needs one part takes that part. Not here: rules across parts
(compatibility), the identity of a training (training_settings).
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

Shard = Literal["none", "optimizer", "gradients", "full"]
Determinism = Literal["bitwise", "tolerance"]
Precision = Literal["fp32", "bf16", "fp16"]
Device = Literal["auto", "cpu"]
ActivationCheckpointing = Literal["none", "selective", "full"]
GradientCompression = Literal["none", "bf16", "powersgd"]
CheckpointStorage = Literal["fp32", "bf16", "compressed"]

_DEFAULT_LANES = 8
"""Enough for a machine's devices; each lane is a pass of its own where bits are to be the same."""

_READ_BY_PYDANTIC = {"extra": "forbid", "allow_inf_nan": False, "use_attribute_docstrings": True}
"""Applied when YAML is validated: keys get the docstrings of the fields as descriptions."""


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """Length of a training, its learning rate, and what keeps it from overfitting."""

    __pydantic_config__ = _READ_BY_PYDANTIC

    epochs: int = 5
    """Upper limit; `patience` may stop earlier."""
    patience: int = 2
    """Epochs without a better validation loss before training stops."""
    learning_rate: float = 1e-3
    """Peak of the one-cycle schedule (linear warm-up, cosine decay)."""
    weight_decay: float = 1e-2
    """Decoupled weight decay of AdamW."""
    warmup_fraction: float = 0.1
    """Share of all steps spent warming up, 0 to 1."""
    clip_norm: float = 1.0
    """Upper limit of the global gradient norm; a larger gradient is scaled down to it."""
    category_dropout: float = 0.05
    """Share of the categories that read as unknown in training, from 0 to below 1, so that the model learns an answer
    for categories it has not seen. At 0 the unknown category keeps its initial weights."""

    def __post_init__(self) -> None:
        _require_counts(self, "epochs", "patience")
        _require_positive(self, "learning_rate", "clip_norm")
        _require_finite(self, "weight_decay", "warmup_fraction", "category_dropout")
        if self.weight_decay < 0:
            raise ValueError(f"weight_decay must be at least 0, not {self.weight_decay:g}")
        if not 0 <= self.warmup_fraction <= 1:
            raise ValueError(
                f"warmup_fraction is a share of all steps, from 0 to 1, not {self.warmup_fraction:g}"
            )
        if not 0 <= self.category_dropout < 1:
            raise ValueError(
                f"category_dropout is a share of the categories, from 0 to below 1, not {self.category_dropout:g}"
            )


@dataclass(frozen=True, kw_only=True)
class BatchSettings:
    """Rows of a step, and their distribution over workers, lanes and passes."""

    __pydantic_config__ = _READ_BY_PYDANTIC

    global_batch: int = 1024
    """Rows per optimizer step over all workers; the same for any number of workers."""
    workers: int = 2
    """Processes, one per device."""
    lanes: int | None = None
    """Virtual workers, fixed for the job: each step takes its rows lane by lane, and a worker has some of the lanes. By
    default the largest divisor of `global_batch` up to 8."""
    gradient_accumulation_steps: int = 1
    """Passes of a worker over its share of a step. With n passes about 1/n of the rows are in its memory at once."""
    decode_threads: int = 1
    """Threads of a worker that decode samples. More threads help where `decode` releases Python's lock, as decoders of
    pictures and sound do."""

    def __post_init__(self) -> None:
        _require_counts(
            self, "global_batch", "workers", "lanes", "gradient_accumulation_steps", "decode_threads"
        )
        if self.global_batch % self.lane_count:
            raise ValueError(
                f"global_batch {self.global_batch} is not divisible by lanes {self.lanes}: "
                f"{self.global_batch} / {self.lanes} = {self.global_batch / self.lane_count:g}; "
                f"use {self.global_batch // self.lane_count * self.lane_count or self.lane_count}"
            )

    @property
    def lane_count(self) -> int:
        """`lanes`, or its default. It follows from the batch alone, so that the number of workers may change."""
        small = range(min(_DEFAULT_LANES, self.global_batch), 0, -1)
        return self.lanes or next(lanes for lanes in small if self.global_batch % lanes == 0)


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """Layout of a model on the workers; by default each has the whole. docs/concepts/training.md compares them."""

    __pydantic_config__ = _READ_BY_PYDANTIC

    shard: Shard = "none"
    """State that is divided among the workers that read different rows: `none`; `optimizer`: the optimizer's (ZeRO 1);
    `gradients`: gradients, too (ZeRO 2); `full`: parameters, too (ZeRO 3)."""
    tensor: int = 1
    """Workers that read the same rows, each computing its part of every layer that the model says can be cut."""
    pipeline: int = 1
    """Workers that read the same rows, each computing some of the layers and handing on to the next."""

    def __post_init__(self) -> None:
        if self.shard not in get_args(Shard):
            raise ValueError(f"parallel.shard is none, optimizer, gradients or full, not {self.shard!r}")
        for name in ("tensor", "pipeline"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"parallel.{name} must be at least 1, not {value}")
        if self.shard == "optimizer" and self.model_workers > 1:
            raise ValueError(
                "parallel.shard optimizer deals out whole parameters, and with tensor or pipeline no worker has them "
                "all: use shard gradients or full"
            )

    @property
    def model_workers(self) -> int:
        """Workers that read the same rows: between them they compute one model."""
        return self.tensor * self.pipeline

    @property
    def has_replicas(self) -> bool:
        """True if each worker has all parameters and their gradients."""
        return self.model_workers == 1 and self.shard in ("none", "optimizer")


@dataclass(frozen=True, kw_only=True)
class PrecisionSettings:
    """Arithmetic of a step: device, number formats, repeatability, and what is traded for memory or traffic."""

    __pydantic_config__ = _READ_BY_PYDANTIC

    device: Device = "auto"
    """`auto`: a GPU for each worker, or the CPU where a machine has none; fewer GPUs than workers are refused. `cpu`:
    the CPU, also where there are GPUs."""
    determinism: Determinism = "tolerance"
    """`bitwise`: the same weights to the bit for any number of workers, also when that changes on the way. `tolerance`:
    faster, the same bits for the same number of workers only."""
    precision: Precision = "fp32"
    """Number format of matrix products. Weights, gradients and loss stay float32; `fp16` needs GPUs."""
    activation_checkpointing: ActivationCheckpointing = "none"
    """Activations that layers of the model compute again in backward instead of keeping them: `full` all, `selective`
    all but products of matrices."""
    gradient_compression: GradientCompression = "none"
    """Compression of the gradients that replicas exchange: `bf16` sends half the bits, `powersgd` two thin matrices for
    each."""
    compile: bool = False
    """Compile the model by `torch.compile`, which takes a minute at the start of the first attempt."""

    def __post_init__(self) -> None:
        _require_choice(self, "device", Device)
        _require_choice(self, "determinism", Determinism)
        _require_choice(self, "precision", Precision)
        _require_choice(self, "activation_checkpointing", ActivationCheckpointing)
        _require_choice(self, "gradient_compression", GradientCompression)


@dataclass(frozen=True, kw_only=True)
class CheckpointSettings:
    """Frequency, number and format of checkpoints."""

    __pydantic_config__ = _READ_BY_PYDANTIC

    checkpoint_every_steps: int = 1000
    """Steps between two checkpoints, at most."""
    checkpoint_every_minutes: float = 10.0
    """Minutes between two checkpoints, at most."""
    keep_checkpoints: int = 3
    """Number of the newest checkpoints that are kept, besides the best one that each of them names."""
    checkpoint_storage: CheckpointStorage = "fp32"
    """`fp32`: as it is. `compressed`: as it is, in fewer bytes and more time. `bf16`: half the bytes; weights, also the
    final ones, and what the optimizer keeps lose 16 of 24 bits."""

    def __post_init__(self) -> None:
        _require_counts(self, "checkpoint_every_steps")
        _require_positive(self, "checkpoint_every_minutes")
        _require_choice(self, "checkpoint_storage", CheckpointStorage)
        if self.keep_checkpoints < 2:
            raise ValueError("keep_checkpoints must be at least 2: the newest may still be being written")


@dataclass(frozen=True, kw_only=True)
class LivenessSettings:
    """Signs of life of a training, timeouts, and retries. No setting of this part changes a weight."""

    __pydantic_config__ = _READ_BY_PYDANTIC

    log_every_steps: int = 20
    """Steps between two readings of the metrics."""
    max_attempts: int = 3
    """Failed attempts after which the launcher gives up; preemptions do not count."""
    heartbeat_timeout_seconds: float = 15.0
    """Seconds without a heartbeat after which the agent kills a worker; training resumes from its checkpoint."""
    stall_timeout_seconds: float | None = None
    """Seconds without a step after which the agent kills a live worker, and at least ten times its longest step. By
    default 120, and 600 for a script, whose calls count as steps."""
    metrics_port: int | None = None
    """Port at which rank 0 serves its newest figures to Prometheus (`/metrics`); 0: any free port, named in the log."""
    peak_tflops: float | None = None
    """10¹² operations a second that a worker's device can do at most, in the precision of the training: for the figure
    `mfu` of cards that are not known."""

    def __post_init__(self) -> None:
        _require_counts(self, "log_every_steps", "max_attempts")
        _require_positive(self, "heartbeat_timeout_seconds", "stall_timeout_seconds", "peak_tflops")
        if self.metrics_port is not None and not 0 <= self.metrics_port < 2**16:
            raise ValueError(f"metrics_port is a port, 0 to {2**16 - 1}, not {self.metrics_port}")


def _require_counts(part: object, *names: str) -> None:
    for name in names:
        if (value := getattr(part, name)) is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")


def _require_positive(part: object, *names: str) -> None:
    _require_finite(part, *names)
    for name in names:
        if (value := getattr(part, name)) is not None and not value > 0:
            raise ValueError(f"{name} must be above 0, not {value:g}")


def _require_finite(part: object, *names: str) -> None:
    for name in names:
        if (value := getattr(part, name)) is not None and not math.isfinite(value):
            raise ValueError(f"{name} must be a finite number, not {value:g}")


def _require_choice(part: object, name: str, choices: Any) -> None:
    if (value := getattr(part, name)) not in get_args(choices):
        *others, last = get_args(choices)
        raise ValueError(f"{name} is {', '.join(others)} or {last}, not {value!r}")
