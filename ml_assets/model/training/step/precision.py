"""Arithmetic of a training: float32, or 16 bits for matrix products; and code compiled by torch.

Weights, optimizer state, gradients between the ranks, and the loss stay float32 in every setting. Only products, and
the values they keep for backward, are `bf16` or `fp16`. Preprocessing and validation are float32 too, so that
validation measures the model that will be served. Sharded models are an exception: FSDP casts shards when it gathers
them, in validation as well.

Here: the context of a forward pass, the loss scale that fp16 needs, and the request of `compile`. Not here: the passes
(training.gradients).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (the annotations of torch are partial)

import os
import shutil
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed.fsdp import MixedPrecisionPolicy

from resources.job.errors import BadConfiguration
from resources.job.training_settings import Precision

_HALVES: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


def refuse_unable(precision: Precision, device: torch.device) -> None:
    """Raise `BadConfiguration` if `device` cannot compute in `precision`."""
    if precision == "bf16" and device.type == "cuda":
        if not torch.cuda.is_bf16_supported(including_emulation=False):
            raise BadConfiguration(
                f"precision bf16: {torch.cuda.get_device_name(device)} does not support it (GPUs since Ampere "
                "do). Use fp16, or fp32"
            )
    elif precision == "fp16" and device.type != "cuda":
        raise BadConfiguration(
            f"precision fp16 needs a GPU, and this rank computes on the {device.type.upper()}: there fp16 would "
            "be slower than fp32. Use bf16, or fp32"
        )


def computing(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Return the context of a replica's forward pass: torch decides for each operation if it stays float32."""
    half = _HALVES.get(precision)
    return nullcontext() if half is None else torch.autocast(device.type, half)


def shard_policy(precision: Precision) -> MixedPrecisionPolicy:
    """Return the policy of a model with sharded parameters: gather and compute in `precision`, sum gradients in
    float32."""
    half = _HALVES.get(precision)
    return MixedPrecisionPolicy(param_dtype=half, reduce_dtype=None if half is None else torch.float32)


class HasScale(Protocol):
    """Part of a training's progress that fp16 needs."""

    loss_scale: float
    """Factor of the loss."""
    loss_scale_steps: int
    """Steps since the last change of the factor, which doubles after 2000."""


class LossScale:
    """Loss scale that keeps small fp16 gradients from vanishing: multiply the loss before backward, divide gradients
    after.

    If the factor is too large for a step, halve it and compute the step again. Torch would skip that step, and its rows
    would still count as trained.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device, progress: HasScale) -> None:
        """Update `progress` with each change of the scale."""
        self._optimizer, self._progress = optimizer, progress
        self._scaler = GradScaler(device.type, init_scale=progress.loss_scale)
        self._scaler.load_state_dict(
            self._scaler.state_dict() | {"_growth_tracker": progress.loss_scale_steps}
        )

    def __call__(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the scaled loss, for backward."""
        return self._scaler.scale(loss)

    def fits(self) -> bool:
        """Divide the gradients after backward; return False if they are not finite and a smaller factor may help.

        The answer is the same on all ranks, since their gradients are equal. Waits for the device.
        """
        self._scaler.unscale_(self._optimizer)
        self._scaler.update()
        progress, before, after = self._progress, self._progress.loss_scale, self._scaler.get_scale()
        progress.loss_scale = after
        progress.loss_scale_steps = progress.loss_scale_steps + 1 if after == before else 0
        # At a factor of 1 or less, the factor is not the cause: the loop stops at such a gradient.
        return after >= before or before <= 1


_FOLDER = "compiled"


def compile_core(core: nn.Module, device: torch.device, folder: Path) -> None:
    """Compile `core` at its first call; in place, names stay.

    The code is kept in the job's folder, where another attempt finds it. Raises `BadConfiguration` without a compiler.
    """
    compiler = os.environ.get("CXX", "g++")
    if device.type == "cpu" and shutil.which(compiler) is None:
        raise BadConfiguration(
            f"compile needs a C++ compiler, and there is no {compiler}: install one, name it in CXX, or leave "
            "compile out"
        )
    import torch._inductor.config as inductor  # costs a second

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / _FOLDER)
    inductor.compile_threads = 1  # no processes that could outlive this one
    # A single compilation for all batch sizes: they differ by a row, and their order must not change the bits.
    core.compile(dynamic=True)
