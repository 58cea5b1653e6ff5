"""Model FLOPs utilization: the share of the devices' peak that the model's own operations used.

Operations are counted as in Chowdhery et al. 2022 (PaLM, appendix B): those that the model needs for a row, forward and
backward. Recomputed activations and other extra work do not count. A model declares its number, and nothing is
guessed: without a known peak of the card there is no metric. Not here: rows per second (meter).
"""

import re

import torch
from torch import nn

from ml_assets.model.training.process.group import Group
from resources.job.errors import BadConfiguration
from resources.job.training_settings import Precision, TrainingSettings

DECLARATION = "flops_per_row"
"""Attribute or method of a model: floating-point operations for one row, forward and backward. A layer that multiplies
by a matrix needs 6 for each element of the matrix and each position: 2 forward, 4 backward."""

_PEAKS = {
    ("H200", "NVL"): (60.0, 835.0),
    ("H200",): (67.0, 989.0),
    ("H100", "NVL"): (60.0, 835.0),
    ("H100", "PCIe"): (51.0, 756.0),
    ("H100",): (67.0, 989.0),
    ("A100",): (19.5, 312.0),
    ("A10",): (31.2, 125.0),
    ("L40S",): (91.6, 362.0),
    ("L4",): (30.3, 121.0),
    ("V100", "SXM2"): (15.7, 125.0),
    ("T4",): (8.1, 65.0),
}
"""Words of a card's name → 10¹² operations per second in float32 and in half precision (bfloat16; float16 on older
cards), without sparsity, from NVIDIA's data sheets. The first match wins."""


def mfu_of_a_row(core: nn.Module, settings: TrainingSettings, group: Group) -> float | None:
    """Return the utilization at one row per second over all ranks; None if the model's operations or the card's peak
    are unknown.

    Raises `BadConfiguration` if the model's declaration is not a positive number.
    """
    flops = _declared(core)
    peak = settings.peak_tflops or _peak_of(group.device, settings.precision)
    if flops is None or peak is None:
        return None
    return flops / (group.world_size * peak * 1e12)


def peak_of(card: str, precision: Precision) -> float | None:
    """Return 10¹² operations per second of the card with this name; None if it is unknown, or if MIG divides it."""
    words = re.split(r"[\s-]+", card)
    if "MIG" in words:
        return None
    for wanted, (single, half) in _PEAKS.items():
        if set(wanted) <= set(words):
            return single if precision == "fp32" else half
    return None


def _declared(core: nn.Module) -> float | None:
    declared = getattr(core, DECLARATION, None)
    if declared is None:
        return None
    value = declared() if callable(declared) else declared
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise BadConfiguration(
            f"{DECLARATION} of {type(core).__name__} is {value!r}: it must be the number of floating-point operations "
            "for one row, forward and backward"
        )
    return float(value)


def _peak_of(device: torch.device, precision: Precision) -> float | None:
    return peak_of(torch.cuda.get_device_name(device), precision) if device.type == "cuda" else None
