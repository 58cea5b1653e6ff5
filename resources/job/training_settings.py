"""Training settings: the `training` section of a pipeline, and part of a training job.

Here: the settings with their bounds, the identity of a training, and the rules across settings. Not here: the data
(job), the machines (resource_profile).
"""

import dataclasses
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator
from pydantic.dataclasses import dataclass

from resources.documented import Documented

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

_CHANGE_NO_WEIGHTS = (
    "decode_threads",
    "checkpoint_every_steps",
    "checkpoint_every_minutes",
    "keep_checkpoints",
    "log_every_steps",
    "max_attempts",
    "heartbeat_timeout_seconds",
    "stall_timeout_seconds",
    "metrics_port",
    "peak_tflops",
)

_DEFAULT_LANES = 8
"""Default number of lanes: enough for the devices of a machine. With determinism bitwise each lane is a pass of its
own, so more lanes cost time."""

_DEFAULT_STEPS_UNSAVED = 1000
"""Default of `checkpoint_every_steps` beside fixed minutes."""

_CONFIG = ConfigDict(extra="forbid", allow_inf_nan=False)
"""Configuration of all sections."""


@dataclass(frozen=True, kw_only=True, config=_CONFIG)
class AverageSettings(Documented):
    """Moving average of the weights. Steps go on with the weights themselves."""

    decay: Annotated[float, Field(gt=0, lt=1)]
    """Share of the average that a step keeps, above 0 and below 1: 0.999 averages about the newest 1000 steps. In the
    first steps it is at most (1 + n) / (10 + n) after n steps, so that the random first weights fade."""


@dataclass(frozen=True, kw_only=True, config=_CONFIG)
class Parallel(Documented):
    """Layout of a model over the workers. By default each worker has the whole model. docs/concepts/training.md
    compares the layouts."""

    shard: Shard = "none"
    """State that is divided among the workers that read different rows. `none`: nothing. `optimizer`: the optimizer
    state (ZeRO 1). `gradients`: also the gradients (ZeRO 2). `full`: also the parameters (ZeRO 3)."""
    tensor: PositiveInt = 1
    """Workers that read the same rows. Each computes its part of every layer that the model declares divisible."""
    pipeline: PositiveInt = 1
    """Workers that read the same rows. Each computes some of the layers and sends its output to the next worker."""

    @model_validator(mode="after")
    def _optimizer_has_whole_parameters(self) -> Self:
        if self.shard == "optimizer" and self.model_workers > 1:
            raise ValueError(
                "parallel.shard optimizer gives each worker whole parameters, and with tensor or pipeline no worker "
                "has them all: use shard gradients or full"
            )
        return self

    @property
    def model_workers(self) -> int:
        """Number of workers that read the same rows and together compute one model."""
        return self.tensor * self.pipeline

    @property
    def has_replicas(self) -> bool:
        """True if each worker has all parameters and their gradients."""
        return self.model_workers == 1 and self.shard in ("none", "optimizer")


@dataclass(frozen=True, kw_only=True, config=_CONFIG)
class TrainingSettings(Documented):
    """Settings of a training. A change makes another job, unless the setting changes no weights."""

    # Length of a training, its learning rate and its regularization.

    epochs: PositiveInt = 5
    """Greatest number of epochs. `patience` may stop the training earlier."""
    patience: PositiveInt = 2
    """Epochs without a better validation loss before training stops."""
    learning_rate: PositiveFloat = 1e-3
    """Peak of the one-cycle schedule (linear warm-up, cosine decay)."""
    weight_decay: NonNegativeFloat = 1e-2
    """Decoupled weight decay of AdamW."""
    warmup_fraction: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Share of all steps spent warming up, 0 to 1."""
    clip_norm: PositiveFloat = 1.0
    """Upper limit of the global gradient norm; a larger gradient is scaled down to it."""
    category_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Share of the categories that training replaces by the unknown category, from 0 to below 1. So the model learns an
    answer for categories that it has not seen. At 0 the unknown category keeps its initial weights."""
    average: AverageSettings | None = None
    """Moving average of the weights (EMA): validation measures it, and the registered model has it. Default: none."""

    # Rows of a step, and their distribution over workers, lanes and passes.

    global_batch: PositiveInt = 1024
    """Rows per optimizer step over all workers; lists with objective ranking. It does not depend on the number of
    workers."""
    workers: PositiveInt = 2
    """Number of worker processes, one per device."""
    lanes: PositiveInt | None = None
    """Virtual workers, a fixed number for the job. Each step takes the same number of rows from each lane, and each
    worker has some of the lanes. Default: the largest divisor of `global_batch` up to 8."""
    gradient_accumulation_steps: PositiveInt = 1
    """Passes in which a worker computes its share of a step. With n passes, about 1/n of the rows are in its memory at
    once."""
    decode_threads: PositiveInt = 1
    """Threads of a worker that decode blobs. More threads help if `decode` releases Python's lock (GIL), as decoders
    of images and sound do."""

    # Arithmetic of a step: device, number formats, determinism, savings of memory and network traffic.

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

    # Frequency, number and format of checkpoints.

    checkpoint_every_steps: PositiveInt | None = None
    """Greatest number of steps between two checkpoints. Default: 1000; no limit with `checkpoint_every_minutes: auto`.
    """
    checkpoint_every_minutes: PositiveFloat | Literal["auto"] = 10.0
    """Greatest number of minutes between two checkpoints. `auto`: the interval that loses the least time, from the cost
    of a save and the time between losses of a worker, both measured."""
    keep_checkpoints: Annotated[int, Field(ge=2)] = 3
    """Number of newest checkpoints to keep, at least 2: the newest may be incomplete. The best checkpoint that each of
    them names is kept, too."""
    checkpoint_storage: CheckpointStorage = "fp32"
    """`fp32`: unchanged. `compressed`: lossless, fewer bytes, more time. `bf16`: half the bytes, but weights (also the
    final weights) and optimizer state lose 16 of 24 bits."""

    # Signs of life, timeouts and retries.

    log_every_steps: PositiveInt = 20
    """Steps between two readings of the metrics."""
    max_attempts: PositiveInt = 3
    """Failed attempts after which the launcher gives up. Preemptions do not count."""
    heartbeat_timeout_seconds: PositiveFloat = 15.0
    """Seconds without a heartbeat after which the agent kills a worker. Training resumes from its checkpoint."""
    stall_timeout_seconds: PositiveFloat | None = None
    """Seconds without a step after which the agent kills a live worker. It waits at least ten times the longest step.
    Default: 120; 600 for a script, whose calls count as steps."""
    metrics_port: Annotated[int, Field(ge=0, lt=2**16)] | None = None
    """Port on which rank 0 serves its newest metrics to Prometheus (`/metrics`). 0: any free port, named in the log."""
    peak_tflops: PositiveFloat | None = None
    """Peak speed of a worker's device in 10¹² operations per second, in the precision of the training. Needed for the
    metric `mfu` if the device is not a known GPU."""

    parallel: Parallel = Parallel()
    """Layout of the model over the workers."""

    @model_validator(mode="after")
    def _lanes_divide_the_batch(self) -> Self:
        if self.global_batch % self.lane_count:
            raise ValueError(
                f"global_batch {self.global_batch} is not divisible by lanes {self.lanes}: "
                f"{self.global_batch} / {self.lanes} = {self.global_batch / self.lane_count:g}; "
                f"use {self.global_batch // self.lane_count * self.lane_count or self.lane_count}"
            )
        return self

    @property
    def lane_count(self) -> int:
        """`lanes`, or its default. The default depends only on the batch, so the number of workers may change."""
        small = range(min(_DEFAULT_LANES, self.global_batch), 0, -1)
        return self.lanes or next(lanes for lanes in small if self.global_batch % lanes == 0)

    @property
    def most_steps_unsaved(self) -> int | None:
        """`checkpoint_every_steps`, or its default; None for no limit."""
        if self.checkpoint_every_steps is None and self.checkpoint_every_minutes != "auto":
            return _DEFAULT_STEPS_UNSAVED
        return self.checkpoint_every_steps

    @model_validator(mode="after")
    def _parts_are_compatible(self) -> Self:
        _require_whole_models(self)
        if self.determinism == "bitwise":
            _require_bitwise(self)
        _require_rows_for_each_pass(self)
        if not self.parallel.has_replicas:
            _refuse_what_needs_replicas(self)
        if self.precision == "fp16" and self.device == "cpu":
            raise ValueError(
                "precision fp16 needs GPUs, and device is cpu: use precision bf16 or fp32, or device auto"
            )
        if self.precision == "fp16" and self.gradient_compression == "powersgd":
            raise ValueError(
                "gradient_compression powersgd carries the error of each gradient over to the next step, and an "
                "overflow in fp16 would make that error infinite for ever: use precision bf16, or "
                "gradient_compression bf16"
            )
        return self

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


def _require_whole_models(of: TrainingSettings) -> None:
    workers, each = of.workers, of.parallel.model_workers
    if workers % each:
        raise ValueError(
            f"workers {workers} cannot be divided into models of parallel.tensor x pipeline = {each} workers: "
            f"{workers} / {each} = {workers / each:g}; use {-(-workers // each) * each}"
        )
    if workers > of.lane_count * each:
        per_model = f" / {each} that read the same rows" * (each > 1)
        raise ValueError(
            f"workers {workers}{per_model} are more than lanes {of.lane_count}, and each worker needs a "
            f"lane: lower workers, or set lanes to a divisor of global_batch {of.global_batch} that is at least "
            f"{workers // each}"
        )


def _require_rows_for_each_pass(of: TrainingSettings) -> None:
    passes, stages = of.gradient_accumulation_steps, of.parallel.pipeline
    lanes = of.lane_count // (of.workers // of.parallel.model_workers)
    rows = of.global_batch // of.lane_count * lanes
    if passes > rows:
        raise ValueError(
            f"gradient_accumulation_steps {passes} is more than the {rows} rows of a worker's share: global_batch "
            f"{of.global_batch} / lanes {of.lane_count} × {lanes} lanes of a worker; use {rows} at most"
        )
    if passes < stages:
        good = 4 * stages
        raise ValueError(
            f"parallel.pipeline {stages} with gradient_accumulation_steps {passes} leaves workers idle: each "
            f"computes in {passes} of {passes + stages - 1} turns. Use at least {stages}; with {good} it computes "
            f"{good} / {good + stages - 1} = {good / (good + stages - 1):.0%} of the time"
        )


def _require_bitwise(of: TrainingSettings) -> None:
    if of.parallel != Parallel():
        raise ValueError(
            "determinism bitwise adds up the gradients of whole models, lane by lane, and with parallel no worker "
            "has a whole model: use determinism tolerance, or leave parallel out"
        )
    if of.checkpoint_storage == "bf16":
        raise ValueError(
            "checkpoint_storage bf16 rounds the state from which training resumes, but determinism bitwise promises "
            "that a resume changes no bit: set checkpoint_storage to compressed, or determinism to tolerance"
        )
    passes, lanes = of.gradient_accumulation_steps, of.lane_count
    compression = of.gradient_compression
    for is_set, setting, why in (
        (
            passes > 1,
            f"gradient_accumulation_steps {passes}",
            f"a step already has a pass for each of the {lanes} lanes. Use more lanes",
        ),
        (
            of.precision == "fp16",
            "precision fp16",
            "the scale of the loss decides which small gradients vanish. Use bf16",
        ),
        (
            compression != "none",
            f"gradient_compression {compression}",
            "the error of a compressed gradient depends on the number of workers. Use none",
        ),
        (
            of.compile,
            "compile",
            "compiled code depends on the number of rows of a worker, and adds up in its own order. Use false",
        ),
    ):
        if is_set:
            raise ValueError(
                f"determinism bitwise cannot be combined with {setting}: {why}, or determinism tolerance"
            )


def _refuse_what_needs_replicas(of: TrainingSettings) -> None:
    compression = of.gradient_compression
    for is_set, setting, why in (
        (
            of.precision == "fp16",
            "precision fp16",
            "a worker does not see an overflow in another worker's part of a gradient. Use bf16",
        ),
        (
            compression != "none",
            f"gradient_compression {compression}",
            "workers send parts of a model. Use none",
        ),
        (of.compile, "compile", "workers load and free parts of a model while it computes. Use false"),
    ):
        if is_set:
            raise ValueError(
                f"parallel with shard {of.parallel.shard}, tensor {of.parallel.tensor} and pipeline "
                f"{of.parallel.pipeline} cannot be combined with {setting}: {why}, or leave parallel out"
            )
