"""Training settings: the `training` section of a pipeline, and part of a training job. Standard library only.

Here: the settings, their defaults, what contradicts itself. Not here: what is trained on (job), where (profile).
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, cast, get_args

Shard = Literal["none", "optimizer", "gradients", "full"]
Determinism = Literal["bitwise", "tolerance"]
Precision = Literal["fp32", "bf16", "fp16"]
ActivationCheckpointing = Literal["none", "selective", "full"]
GradientCompression = Literal["none", "bf16", "powersgd"]
CheckpointStorage = Literal["fp32", "bf16", "compressed"]

_DEFAULT_LANES = 8
"""Enough for a machine's devices; each lane is a pass of its own where bits are to be the same."""

_CHANGES_NO_WEIGHTS = (
    "checkpoint_every_steps",
    "checkpoint_every_minutes",
    "keep_checkpoints",
    "log_every_steps",
    "max_attempts",
    "heartbeat_timeout_seconds",
    "stall_timeout_seconds",
    "metrics_port",
    "peak_tflops",
    "decode_threads",
)
_NEW = (
    "parallel",
    "precision",
    "gradient_accumulation_steps",
    "activation_checkpointing",
    "gradient_compression",
    "compile",
    "checkpoint_storage",
)
"""Came after trainings had been identified without them, and are left out where they hold their default."""


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """Layout of a model on the workers; by default each has the whole. docs/concepts/training.md compares them."""

    __pydantic_config__ = {  # noqa: RUF012 - read by pydantic when YAML is validated
        "extra": "forbid",
        "use_attribute_docstrings": True,
    }

    shard: Shard = "none"
    """State that is divided among the workers that read different rows: none; the optimizer's (ZeRO 1); gradients, too
    (ZeRO 2); parameters, too (ZeRO 3)."""
    tensor: int = 1
    """So many workers read the same rows; each computes its part of every layer that the model says can be cut."""
    pipeline: int = 1
    """So many workers read the same rows; each computes some of the layers and hands on to the next."""

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


_CHOICES: dict[str, tuple[str, ...]] = {
    "determinism": get_args(Determinism),
    "precision": get_args(Precision),
    "activation_checkpointing": get_args(ActivationCheckpointing),
    "gradient_compression": get_args(GradientCompression),
}

OF_SCRIPTS = (
    "workers",
    "lanes",  # for the workers alone, which may not be more
    "category_dropout",
    "keep_checkpoints",
    "max_attempts",
    "heartbeat_timeout_seconds",
    "stall_timeout_seconds",
    "metrics_port",
)
"""Settings that count for a script that keeps its own loop. The others are about a loop, and the script's own affair.
"""


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Training settings. A change makes another job, except of settings that change no weights."""

    __pydantic_config__ = {  # noqa: RUF012 - read by pydantic when YAML is validated
        "extra": "forbid",
        "allow_inf_nan": False,
        "use_attribute_docstrings": True,
    }

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
    category_dropout: float = 0.05
    """Share of the categories that read as unknown in training, from 0 to below 1, so that the model learns what to
    answer where a category was not seen. At 0 the unknown category keeps the weights it began with."""
    workers: int = 2
    """Processes, one per device."""
    lanes: int | None = None
    """Virtual workers, fixed for the job: each step takes its rows lane by lane, and a worker has some of the lanes. By
    default the largest divisor of `global_batch` up to 8."""
    parallel: Parallel = field(default_factory=Parallel)
    """Layout of the model on the workers."""
    determinism: Determinism = "tolerance"
    """`bitwise`: the same weights to the bit for any number of workers, also when that changes on the way. `tolerance`:
    faster, the same bits for the same number of workers only."""
    precision: Precision = "fp32"
    """Number format of matrix products. Weights, gradients and loss stay float32; `fp16` needs GPUs."""
    gradient_accumulation_steps: int = 1
    """Passes a worker makes over its share of a step: so many times fewer rows are in its memory at once."""
    activation_checkpointing: ActivationCheckpointing = "none"
    """Activations that blocks of the model compute again in backward instead of keeping them: `full` all, `selective`
    all but products of matrices."""
    gradient_compression: GradientCompression = "none"
    """Compression of the gradients that replicas exchange: half their bits, or two thin matrices each."""
    compile: bool = False
    """Compile the model by `torch.compile`, which takes a minute at the start of the first attempt."""
    checkpoint_every_steps: int = 1000
    """A checkpoint at least every so many steps…"""
    checkpoint_every_minutes: float = 10.0
    """…and at most so many minutes apart."""
    keep_checkpoints: int = 3
    """The newest so many are kept, and the best one that each of them names."""
    checkpoint_storage: CheckpointStorage = "fp32"
    """`fp32`: as it is. `compressed`: as it is, in fewer bytes and more time. `bf16`: half the bytes; weights, also the
    final ones, and what the optimizer keeps lose 16 of 24 bits."""
    log_every_steps: int = 20
    """Metrics are emitted every so many steps."""
    max_attempts: int = 3
    """Attempts of the launcher before it gives up; preemptions do not count."""
    heartbeat_timeout_seconds: float = 15.0
    """A worker that gives no sign of life for so long is ended, and the job goes on from its checkpoint."""
    stall_timeout_seconds: float | None = None
    """So is one that lives and does no step for so long, and for ten times as long as its longest step; by default 120,
    and 600 for a script, whose steps are what it tells of."""
    metrics_port: int | None = None
    """Port at which rank 0 serves its newest figures to Prometheus (`/metrics`); 0: any free port, named in the log."""
    peak_tflops: float | None = None
    """10¹² operations a second a worker's device can do at most, in the precision of the training: for the figure `mfu`
    where the card is not among those known."""
    decode_threads: int = 1
    """Threads of a worker that decode samples. More help where `decode` lets others run meanwhile, as
    decoders of pictures and sound do."""

    def __post_init__(self) -> None:
        counts = (
            "epochs",
            "patience",
            "global_batch",
            "workers",
            "lanes",
            "gradient_accumulation_steps",
            "checkpoint_every_steps",
            "log_every_steps",
            "max_attempts",
            "decode_threads",
        )
        for name in counts:
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        for name in (each.name for each in dataclasses.fields(self)):
            if isinstance(value := getattr(self, name), float) and not math.isfinite(value):
                raise ValueError(f"{name} must be a finite number, not {value:g}")
        for name in (
            "learning_rate",
            "clip_norm",
            "checkpoint_every_minutes",
            "heartbeat_timeout_seconds",
            "stall_timeout_seconds",
        ):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise ValueError(f"{name} must be above 0, not {value:g}")
        if not 0 <= self.category_dropout < 1:
            raise ValueError(
                f"category_dropout is a share of the categories, from 0 to below 1, not {self.category_dropout:g}"
            )
        if self.weight_decay < 0:
            raise ValueError(f"weight_decay must be at least 0, not {self.weight_decay:g}")
        if self.metrics_port is not None and not 0 <= self.metrics_port < 2**16:
            raise ValueError(f"metrics_port is a port, 0 to {2**16 - 1}, not {self.metrics_port}")
        if not 0 <= self.warmup_fraction <= 1:
            raise ValueError(
                f"warmup_fraction is a share of all steps, from 0 to 1, not {self.warmup_fraction:g}"
            )
        if self.global_batch % self.lane_count:
            raise ValueError(
                f"global_batch {self.global_batch} is not divisible by lanes {self.lanes}: "
                f"{self.global_batch} / {self.lanes} = {self.global_batch / self.lane_count:g}; "
                f"use {self.global_batch // self.lane_count * self.lane_count or self.lane_count}"
            )
        each = self.parallel.model_workers
        if self.workers % each:
            raise ValueError(
                f"workers {self.workers} cannot be divided into models of parallel.tensor x pipeline = {each} workers: "
                f"{self.workers} / {each} = {self.workers / each:g}; use {-(-self.workers // each) * each}"
            )
        if self.workers > self.lane_count * each:
            per_model = f" / {each} that read the same rows" * (each > 1)
            raise ValueError(
                f"workers {self.workers}{per_model} are more than lanes {self.lane_count}, and a worker needs one: "
                f"lower workers, or set lanes to a divisor of global_batch {self.global_batch} from "
                f"{self.workers // each} on"
            )
        for name, choices in _CHOICES.items():
            if (chosen := getattr(self, name)) not in choices:
                raise ValueError(f"{name} is {' or '.join(choices)}, not {chosen!r}")
        if self.checkpoint_storage not in get_args(CheckpointStorage):
            raise ValueError(
                f"checkpoint_storage is fp32, bf16 or compressed, not {self.checkpoint_storage!r}"
            )
        if self.peak_tflops is not None and not self.peak_tflops > 0:
            raise ValueError(f"peak_tflops must be above 0, not {self.peak_tflops:g}")
        if self.keep_checkpoints < 2:
            raise ValueError("keep_checkpoints must be at least 2: the newest may still be being written")
        if self.determinism == "bitwise":
            self._refuse_what_is_not_bitwise()
        lanes = self.lane_count // (self.workers // each)
        rows = self.global_batch // self.lane_count * lanes
        if self.gradient_accumulation_steps > rows:
            raise ValueError(
                f"gradient_accumulation_steps {self.gradient_accumulation_steps} is more than the {rows} rows of a "
                f"worker's share: global_batch {self.global_batch} / lanes {self.lane_count} × {lanes} lanes of a "
                f"worker; use {rows} at most"
            )
        if (passes := self.gradient_accumulation_steps) < (stages := self.parallel.pipeline):
            good = 4 * stages
            raise ValueError(
                f"parallel.pipeline {stages} with gradient_accumulation_steps {passes} leaves workers idle: each "
                f"computes {passes} of {passes + stages - 1} turns. Use at least {stages}; with {good} it is "
                f"{good} / {good + stages - 1} = {good / (good + stages - 1):.0%} of the time"
            )
        if not self.parallel.has_replicas:
            self._refuse_what_needs_replicas()
        if self.precision == "fp16" and self.gradient_compression == "powersgd":
            raise ValueError(
                "gradient_compression powersgd remembers what it left out of a gradient, which a step that overflows "
                "in fp16 would make infinite for ever: use precision bf16, or gradient_compression bf16"
            )

    def _refuse_what_is_not_bitwise(self) -> None:
        if self.parallel != Parallel():
            raise ValueError(
                "determinism bitwise adds up the gradients of whole models, lane by lane, and with parallel no worker "
                "has one: use determinism tolerance, or leave parallel out"
            )
        if self.checkpoint_storage == "bf16":
            raise ValueError(
                "checkpoint_storage bf16 rounds what training goes on from, determinism bitwise promises that going on "
                "changes no bit: set checkpoint_storage to compressed, or determinism to tolerance"
            )
        lanes = self.lane_count
        for differs, setting, why in (
            (
                self.gradient_accumulation_steps > 1,
                f"gradient_accumulation_steps {self.gradient_accumulation_steps}",
                f"a step is a pass for each of the {lanes} lanes already. Use more lanes",
            ),
            (
                self.precision == "fp16",
                "precision fp16",
                "what vanishes of a small gradient depends on the scale of the loss. Use bf16",
            ),
            (
                self.gradient_compression != "none",
                f"gradient_compression {self.gradient_compression}",
                "what is left out of a gradient depends on how many send one. Use none",
            ),
            (
                self.compile,
                "compile",
                "the code is made for the numbers of rows that a worker meets, and adds them up in its own order. "
                "Use false",
            ),
        ):
            if differs:
                raise ValueError(
                    f"determinism bitwise does not go with {setting}: {why}, or determinism tolerance"
                )

    def _refuse_what_needs_replicas(self) -> None:
        for asked, setting, why in (
            (
                self.precision == "fp16",
                "precision fp16",
                "a gradient that overflows in one worker's part is not seen by the others. Use bf16",
            ),
            (
                self.gradient_compression != "none",
                f"gradient_compression {self.gradient_compression}",
                "what is sent are parts of a model. Use none",
            ),
            (self.compile, "compile", "parts of a model come and go while it computes. Use false"),
        ):
            if asked:
                raise ValueError(
                    f"parallel with shard {self.parallel.shard}, tensor {self.parallel.tensor} and pipeline "
                    f"{self.parallel.pipeline} does not go with {setting}: {why}, or leave parallel out"
                )

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """From JSON or YAML. Raises `ValueError` for what contradicts itself, `TypeError` for an unknown key."""
        facts = dict(document)
        parallel: Any = facts.pop("parallel", {})
        if not isinstance(parallel, dict):
            raise ValueError(f"parallel has keys shard, tensor and pipeline, and is {parallel!r}")
        return cls(**facts, parallel=Parallel(**cast(dict[str, Any], parallel)))

    @property
    def lane_count(self) -> int:
        """`lanes`, or what stands for it: a matter of the batch alone, so that workers may come and go."""
        small = range(min(_DEFAULT_LANES, self.global_batch), 0, -1)
        return self.lanes or next(lanes for lanes in small if self.global_batch % lanes == 0)

    @property
    def identity(self) -> dict[str, Any]:
        """Return the settings that can change the weights: other values make another training."""
        facts = dataclasses.asdict(self)
        facts["lanes"] = self.lane_count
        if self.determinism == "bitwise":
            del facts["workers"]
        if not self.compile:  # then computing again gives the same bits
            facts["activation_checkpointing"] = "none"
        if self.checkpoint_storage == "compressed":  # loses nothing
            facts["checkpoint_storage"] = "fp32"
        default = dataclasses.asdict(type(self)())
        for name in (*_CHANGES_NO_WEIGHTS, *(new for new in _NEW if facts[new] == default[new])):
            del facts[name]
        return facts
