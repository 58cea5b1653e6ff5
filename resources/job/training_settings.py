"""Training settings: the `training` section of a pipeline, and part of a training job. Standard library only.

Here: the settings in parts, each with the checks that concern it alone; all parts as one flat section; the identity of
a training; the rules across parts. A function that needs one part takes that part. Not here: the data (job), the
machines (resource_profile).
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, cast, get_args

Shard = Literal["none", "optimizer", "gradients", "full"]
Determinism = Literal["bitwise", "tolerance"]
Precision = Literal["fp32", "bf16", "fp16"]
Device = Literal["auto", "cpu"]
ActivationCheckpointing = Literal["none", "selective", "full"]
GradientCompression = Literal["none", "bf16", "powersgd"]
CheckpointStorage = Literal["fp32", "bf16", "compressed"]

OF_SCRIPTS = (
    "workers",
    "lanes",  # only because there may not be more workers than lanes
    "category_dropout",
    "keep_checkpoints",
    "max_attempts",
    "heartbeat_timeout_seconds",
    "stall_timeout_seconds",
    "metrics_port",
)
"""Settings that apply to a script. The others concern the platform's loop, and a script has its own."""

_DEFAULT_LANES = 8
"""Default number of lanes: enough for the devices of a machine. With determinism bitwise each lane is a pass of its
own, so more lanes cost time."""

_READ_BY_PYDANTIC = {"extra": "forbid", "allow_inf_nan": False, "use_attribute_docstrings": True}
"""Configuration for pydantic, which validates the YAML. The docstrings of the fields become key descriptions."""


@dataclass(frozen=True, kw_only=True)
class AverageSettings:
    """Moving average of the weights. Steps go on with the weights themselves."""

    __pydantic_config__ = _READ_BY_PYDANTIC

    decay: float
    """Share of the average that a step keeps, above 0 and below 1: 0.999 averages about the newest 1000 steps. In the
    first steps it is at most (1 + n) / (10 + n) after n steps, so that the random first weights fade."""

    def __post_init__(self) -> None:
        if not 0 < self.decay < 1:
            raise ValueError(f"average.decay is a share above 0 and below 1, not {self.decay:g}")


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """Length of a training, its learning rate and its regularization."""

    __pydantic_config__ = _READ_BY_PYDANTIC

    epochs: int = 5
    """Greatest number of epochs. `patience` may stop the training earlier."""
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
    """Share of the categories that training replaces by the unknown category, from 0 to below 1. So the model learns an
    answer for categories that it has not seen. At 0 the unknown category keeps its initial weights."""
    average: AverageSettings | None = None
    """Moving average of the weights (EMA): validation measures it, and the registered model has it. Default: none."""

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
    """Rows per optimizer step over all workers; lists with objective ranking. It does not depend on the number of
    workers."""
    workers: int = 2
    """Number of worker processes, one per device."""
    lanes: int | None = None
    """Virtual workers, a fixed number for the job. Each step takes the same number of rows from each lane, and each
    worker has some of the lanes. Default: the largest divisor of `global_batch` up to 8."""
    gradient_accumulation_steps: int = 1
    """Passes in which a worker computes its share of a step. With n passes, about 1/n of the rows are in its memory at
    once."""
    decode_threads: int = 1
    """Threads of a worker that decode blobs. More threads help if `decode` releases Python's lock (GIL), as decoders
    of images and sound do."""

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
        """`lanes`, or its default. The default depends only on the batch, so the number of workers may change."""
        small = range(min(_DEFAULT_LANES, self.global_batch), 0, -1)
        return self.lanes or next(lanes for lanes in small if self.global_batch % lanes == 0)


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """Layout of a model over the workers. By default each worker has the whole model. docs/concepts/training.md
    compares the layouts."""

    __pydantic_config__ = _READ_BY_PYDANTIC

    shard: Shard = "none"
    """State that is divided among the workers that read different rows. `none`: nothing. `optimizer`: the optimizer
    state (ZeRO 1). `gradients`: also the gradients (ZeRO 2). `full`: also the parameters (ZeRO 3)."""
    tensor: int = 1
    """Workers that read the same rows. Each computes its part of every layer that the model declares divisible."""
    pipeline: int = 1
    """Workers that read the same rows. Each computes some of the layers and sends its output to the next worker."""

    def __post_init__(self) -> None:
        if self.shard not in get_args(Shard):
            raise ValueError(f"parallel.shard must be none, optimizer, gradients or full, not {self.shard!r}")
        for name in ("tensor", "pipeline"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"parallel.{name} must be at least 1, not {value}")
        if self.shard == "optimizer" and self.model_workers > 1:
            raise ValueError(
                "parallel.shard optimizer gives each worker whole parameters, and with tensor or pipeline no worker "
                "has them all: use shard gradients or full"
            )

    @property
    def model_workers(self) -> int:
        """Number of workers that read the same rows and together compute one model."""
        return self.tensor * self.pipeline

    @property
    def has_replicas(self) -> bool:
        """True if each worker has all parameters and their gradients."""
        return self.model_workers == 1 and self.shard in ("none", "optimizer")


@dataclass(frozen=True, kw_only=True)
class PrecisionSettings:
    """Arithmetic of a step: device, number formats, determinism, savings of memory and network traffic."""

    __pydantic_config__ = _READ_BY_PYDANTIC

    device: Device = "auto"
    """`auto`: a GPU for each worker, or the CPU if a machine has no GPU. A machine with fewer GPUs than workers is
    refused. `cpu`: the CPU, even on a machine with GPUs."""
    determinism: Determinism = "tolerance"
    """`bitwise`: the same bits of the weights for any number of workers, even if it changes during the training.
    `tolerance`: faster, the same bits only for the same number of workers."""
    precision: Precision = "fp32"
    """Number format of matrix products. Weights, gradients and loss stay float32; `fp16` needs GPUs."""
    activation_checkpointing: ActivationCheckpointing = "none"
    """Activations that layers compute again in backward instead of keeping them in memory. `full`: all. `selective`:
    all but the results of matrix products."""
    gradient_compression: GradientCompression = "none"
    """Compression of the gradients that replicas exchange. `bf16`: half the bits. `powersgd`: two thin matrices instead
    of each gradient."""
    compile: bool = False
    """Compile the model with `torch.compile`. This takes a minute at the start of the first attempt."""

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
    """Greatest number of steps between two checkpoints."""
    checkpoint_every_minutes: float = 10.0
    """Greatest number of minutes between two checkpoints."""
    keep_checkpoints: int = 3
    """Number of newest checkpoints to keep. The best checkpoint that each of them names is kept, too."""
    checkpoint_storage: CheckpointStorage = "fp32"
    """`fp32`: unchanged. `compressed`: lossless, fewer bytes, more time. `bf16`: half the bytes, but weights (also the
    final weights) and optimizer state lose 16 of 24 bits."""

    def __post_init__(self) -> None:
        _require_counts(self, "checkpoint_every_steps")
        _require_positive(self, "checkpoint_every_minutes")
        _require_choice(self, "checkpoint_storage", CheckpointStorage)
        if self.keep_checkpoints < 2:
            raise ValueError("keep_checkpoints must be at least 2: the newest may be incomplete")


@dataclass(frozen=True, kw_only=True)
class LivenessSettings:
    """Signs of life of a training, timeouts and retries. No setting of this part changes a weight."""

    __pydantic_config__ = _READ_BY_PYDANTIC

    log_every_steps: int = 20
    """Steps between two readings of the metrics."""
    max_attempts: int = 3
    """Failed attempts after which the launcher gives up. Preemptions do not count."""
    heartbeat_timeout_seconds: float = 15.0
    """Seconds without a heartbeat after which the agent kills a worker. Training resumes from its checkpoint."""
    stall_timeout_seconds: float | None = None
    """Seconds without a step after which the agent kills a live worker. It waits at least ten times the longest step.
    Default: 120; 600 for a script, whose calls count as steps."""
    metrics_port: int | None = None
    """Port on which rank 0 serves its newest metrics to Prometheus (`/metrics`). 0: any free port, named in the log."""
    peak_tflops: float | None = None
    """Peak speed of a worker's device in 10¹² operations per second, in the precision of the training. Needed for the
    metric `mfu` if the device is not a known GPU."""

    def __post_init__(self) -> None:
        _require_counts(self, "log_every_steps", "max_attempts")
        _require_positive(self, "heartbeat_timeout_seconds", "stall_timeout_seconds", "peak_tflops")
        if self.metrics_port is not None and not 0 <= self.metrics_port < 2**16:
            raise ValueError(f"metrics_port must be from 0 to {2**16 - 1}, not {self.metrics_port}")


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(
    LivenessSettings, CheckpointSettings, PrecisionSettings, BatchSettings, OptimizerSettings
):
    """Settings of a training, part by part. A change makes another job, unless the setting changes no weights."""

    __pydantic_config__ = OptimizerSettings.__pydantic_config__

    parallel: Parallel = field(default_factory=Parallel)
    """Layout of the model over the workers."""

    def __post_init__(self) -> None:
        for part in (
            OptimizerSettings,
            BatchSettings,
            PrecisionSettings,
            CheckpointSettings,
            LivenessSettings,
        ):
            part.__post_init__(self)
        _require_compatible(self, self.parallel, self, self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read settings from JSON or YAML. Raise `ValueError` for contradictions, `TypeError` for an unknown key."""
        facts = dict(document)
        parallel: Any = facts.pop("parallel", {})
        if not isinstance(parallel, dict):
            raise ValueError(
                f"parallel must be a mapping with keys shard, tensor and pipeline, not {parallel!r}"
            )
        average: Any = facts.pop("average", None)
        if not isinstance(average, dict | None):
            raise ValueError(f"average must be a mapping with the key decay, not {average!r}")
        return cls(
            **facts,
            parallel=Parallel(**cast(dict[str, Any], parallel)),
            average=None if average is None else AverageSettings(**cast(dict[str, Any], average)),
        )

    @property
    def identity(self) -> dict[str, Any]:
        """Return the settings that can change the weights. Other values make another training."""
        facts = dataclasses.asdict(self)
        facts["lanes"] = self.lane_count
        if self.determinism == "bitwise":
            del facts["workers"]
        if self.average is None:
            del facts["average"]
        if not self.compile:  # without it, activation checkpointing gives the same bits
            facts["activation_checkpointing"] = "none"
        if self.checkpoint_storage == "compressed":  # lossless
            facts["checkpoint_storage"] = "fp32"
        return {name: value for name, value in facts.items() if name not in _CHANGE_NO_WEIGHTS}


def _names(part: type[LivenessSettings | CheckpointSettings]) -> set[str]:
    return {each.name for each in dataclasses.fields(part)}


_CHANGE_NO_WEIGHTS = (
    _names(LivenessSettings) | (_names(CheckpointSettings) - {"checkpoint_storage"}) | {"decode_threads"}
)


def _require_compatible(
    batch: BatchSettings, parallel: Parallel, precision: PrecisionSettings, checkpoint: CheckpointSettings
) -> None:
    """Raise `ValueError` if parts contradict each other, with the arithmetic or the reason and a change that helps."""
    _require_whole_models(batch, parallel)
    if precision.determinism == "bitwise":
        _require_bitwise(batch, parallel, precision, checkpoint)
    _require_rows_for_each_pass(batch, parallel)
    if not parallel.has_replicas:
        _refuse_what_needs_replicas(parallel, precision)
    if precision.precision == "fp16" and precision.device == "cpu":
        raise ValueError(
            "precision fp16 needs GPUs, and device is cpu: use precision bf16 or fp32, or device auto"
        )
    if precision.precision == "fp16" and precision.gradient_compression == "powersgd":
        raise ValueError(
            "gradient_compression powersgd carries the error of each gradient over to the next step, and an overflow "
            "in fp16 would make that error infinite for ever: use precision bf16, or gradient_compression bf16"
        )


def _require_whole_models(batch: BatchSettings, parallel: Parallel) -> None:
    workers, each = batch.workers, parallel.model_workers
    if workers % each:
        raise ValueError(
            f"workers {workers} cannot be divided into models of parallel.tensor x pipeline = {each} workers: "
            f"{workers} / {each} = {workers / each:g}; use {-(-workers // each) * each}"
        )
    if workers > batch.lane_count * each:
        per_model = f" / {each} that read the same rows" * (each > 1)
        raise ValueError(
            f"workers {workers}{per_model} are more than lanes {batch.lane_count}, and each worker needs a "
            f"lane: lower workers, or set lanes to a divisor of global_batch {batch.global_batch} that is at least "
            f"{workers // each}"
        )


def _require_rows_for_each_pass(batch: BatchSettings, parallel: Parallel) -> None:
    passes, stages = batch.gradient_accumulation_steps, parallel.pipeline
    lanes = batch.lane_count // (batch.workers // parallel.model_workers)
    rows = batch.global_batch // batch.lane_count * lanes
    if passes > rows:
        raise ValueError(
            f"gradient_accumulation_steps {passes} is more than the {rows} rows of a worker's share: global_batch "
            f"{batch.global_batch} / lanes {batch.lane_count} × {lanes} lanes of a worker; use {rows} at most"
        )
    if passes < stages:
        good = 4 * stages
        raise ValueError(
            f"parallel.pipeline {stages} with gradient_accumulation_steps {passes} leaves workers idle: each "
            f"computes in {passes} of {passes + stages - 1} turns. Use at least {stages}; with {good} it computes "
            f"{good} / {good + stages - 1} = {good / (good + stages - 1):.0%} of the time"
        )


def _require_bitwise(
    batch: BatchSettings, parallel: Parallel, precision: PrecisionSettings, checkpoint: CheckpointSettings
) -> None:
    if parallel != Parallel():
        raise ValueError(
            "determinism bitwise adds up the gradients of whole models, lane by lane, and with parallel no worker "
            "has a whole model: use determinism tolerance, or leave parallel out"
        )
    if checkpoint.checkpoint_storage == "bf16":
        raise ValueError(
            "checkpoint_storage bf16 rounds the state from which training resumes, but determinism bitwise promises "
            "that a resume changes no bit: set checkpoint_storage to compressed, or determinism to tolerance"
        )
    passes, lanes = batch.gradient_accumulation_steps, batch.lane_count
    compression = precision.gradient_compression
    for is_set, setting, why in (
        (
            passes > 1,
            f"gradient_accumulation_steps {passes}",
            f"a step already has a pass for each of the {lanes} lanes. Use more lanes",
        ),
        (
            precision.precision == "fp16",
            "precision fp16",
            "the scale of the loss decides which small gradients vanish. Use bf16",
        ),
        (
            compression != "none",
            f"gradient_compression {compression}",
            "the error of a compressed gradient depends on the number of workers. Use none",
        ),
        (
            precision.compile,
            "compile",
            "compiled code depends on the number of rows of a worker, and adds up in its own order. Use false",
        ),
    ):
        if is_set:
            raise ValueError(
                f"determinism bitwise cannot be combined with {setting}: {why}, or determinism tolerance"
            )


def _refuse_what_needs_replicas(parallel: Parallel, precision: PrecisionSettings) -> None:
    compression = precision.gradient_compression
    for is_set, setting, why in (
        (
            precision.precision == "fp16",
            "precision fp16",
            "a worker does not see an overflow in another worker's part of a gradient. Use bf16",
        ),
        (
            compression != "none",
            f"gradient_compression {compression}",
            "workers send parts of a model. Use none",
        ),
        (precision.compile, "compile", "workers load and free parts of a model while it computes. Use false"),
    ):
        if is_set:
            raise ValueError(
                f"parallel with shard {parallel.shard}, tensor {parallel.tensor} and pipeline "
                f"{parallel.pipeline} cannot be combined with {setting}: {why}, or leave parallel out"
            )


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
