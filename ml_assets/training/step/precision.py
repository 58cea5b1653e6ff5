"""Number formats of a training: float32, or half its bits where matrices are multiplied.

Weights, what the optimizer keeps, gradients between the ranks, and the loss stay float32 whatever the setting: only the
products, and what they leave for backward, are `bf16` or `fp16`. Preprocessing and validation are float32, too: what is
judged is what will be served. Of shards it is nearly: they are cast where they are gathered, in validation as well.

Here: what a forward pass runs under, and a scale for the loss, which fp16 needs. Not here: when (gradients).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (the annotations of torch are partial)

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch.amp.grad_scaler import GradScaler
from torch.distributed.fsdp import MixedPrecisionPolicy

from resources.job.errors import BadConfiguration
from resources.job.setting_parts import Precision

_HALVES: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


def refuse_unable(precision: Precision, device: torch.device) -> None:
    """Raise `BadConfiguration` where `device` cannot compute so."""
    if precision == "bf16" and device.type == "cuda":
        if not torch.cuda.is_bf16_supported(including_emulation=False):
            raise BadConfiguration(
                f"precision bf16: {torch.cuda.get_device_name(device)} has no such numbers (Ampere is the first "
                "that does). Use fp16, or fp32"
            )
    elif precision == "fp16" and device.type != "cuda":
        raise BadConfiguration(
            f"precision fp16 needs a GPU, and this rank computes on the {device.type.upper()}: products of fp16 would "
            "be slower there than those of fp32. Use bf16, or fp32"
        )


def computing(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Return the context of a replica's forward pass: torch decides for each operation whether it stays float32."""
    half = _HALVES.get(precision)
    return nullcontext() if half is None else torch.autocast(device.type, half)


def shard_policy(precision: Precision) -> MixedPrecisionPolicy:
    """The same of a model whose parameters are sharded: gathered, and computed with, in `precision`. Gradients are
    added up in float32."""
    half = _HALVES.get(precision)
    return MixedPrecisionPolicy(param_dtype=half, reduce_dtype=None if half is None else torch.float32)


class HasScale(Protocol):
    """Part of a training's progress that fp16 needs."""

    loss_scale: float
    """Factor of the loss."""
    loss_scale_steps: int
    """Steps with it: it is doubled after 2000."""


class LossScale:
    """Keeps small gradients of fp16 from vanishing: the loss is multiplied before backward, gradients divided after.

    Where the factor was too large for a step, it is halved, and the step is to be computed again: torch's own way is
    to leave it out, whose rows would then count as learned from.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device, progress: HasScale) -> None:
        """`progress` is kept up to date."""
        self._optimizer, self._progress = optimizer, progress
        self._scaler = GradScaler(device.type, init_scale=progress.loss_scale)
        self._scaler.load_state_dict(
            self._scaler.state_dict() | {"_growth_tracker": progress.loss_scale_steps}
        )

    def __call__(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the scaled loss, for backward."""
        return self._scaler.scale(loss)

    def fits(self) -> bool:
        """After backward: divide the gradients; False where they are not finite and a smaller factor may help.

        The same on all ranks, as the gradients are. Waits for the device.
        """
        self._scaler.unscale_(self._optimizer)
        self._scaler.update()
        progress, before, after = self._progress, self._progress.loss_scale, self._scaler.get_scale()
        progress.loss_scale = after
        progress.loss_scale_steps = progress.loss_scale_steps + 1 if after == before else 0
        # From 1 on it is not the factor: the loop stops at such a gradient.
        return after >= before or before <= 1
