"""Measurements of the loop between two metric events: loss, speed, waiting for data, and the slowest rank.

Model FLOPs utilization (MFU) is the share of the devices' peak that the model's own operations used.

Operations are counted as in Chowdhery et al. 2022 (PaLM, appendix B): those that the model needs for a row, forward and
backward. Recomputed activations and other extra work do not count. A model declares its number, and nothing is
guessed: without a known peak of the card there is no metric. Not here: sending the measurements (event_log), metrics
of the machine and its GPUs (machine).
"""

import re
import statistics
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from ml_assets.model.training.process.group import Group
from resources.job.errors import BadConfiguration
from resources.job.training_settings import Precision, TrainingSettings

_STEPS = 1000
"""Number of newest steps that percentiles cover."""


class Meter:
    """Sums over the steps since the last `read`, and the newest step times.

    `mfu_of_a_row` is the utilization at one row per second, None if unknown. `rows_of_a_unit` is the mean
    number of rows of a unit (`Shard.units`). `clock` returns seconds since
    any fixed moment.
    """

    def __init__(
        self,
        mfu_of_a_row: float | None = None,
        rows_of_a_unit: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mfu_of_a_row = mfu_of_a_row
        self._rows_of_a_unit = rows_of_a_unit
        self._clock = clock
        self._step_seconds: deque[float] = deque(maxlen=_STEPS)
        self._stepped = self._clock()
        self._reset()

    @contextmanager
    def waiting_for_data(self) -> Generator[None]:
        """Count the time inside the block as waiting for data."""
        started = self._clock()
        yield
        self._data_seconds += self._clock() - started

    def add(self, loss_sum: float, units: int, gradient_norm: float, alone_seconds: float = 0.0) -> None:
        """Add one step of `units` units over all ranks.

        `loss_sum` is the summed loss of this rank's units, `gradient_norm` the norm before clipping. `alone_seconds` is
        this rank's time until it first waited for another rank.
        """
        self._loss_sum += loss_sum
        self._units += units
        self._norm = gradient_norm
        self._alone_seconds += alone_seconds
        self._steps += 1
        now = self._clock()
        self._step_seconds.append(now - self._stepped)
        self._stepped = now

    def read(
        self, gather: Callable[[int], list[int]], add: Callable[[Sequence[float]], list[float]]
    ) -> dict[str, float]:
        """Return the metrics since the last call, on all ranks. Collective call: `gather` returns one number per rank,
        `add` sums over ranks.

        Mean loss of a unit, newest gradient norm, rows per second of all ranks, mean wait for data per step (ms), and
        the share of time that waits for data (0–1). Percentiles of the newest step times (ms) include validations and
        saves between steps. For the rank that works slowest: its time as a multiple of the median of the other ranks
        (1: equal), and its lag per step (ms). On a GPU this time is the host's: kernels it started still run. `mfu`
        (0–1) is present if the model's operations and the devices' peak are known.
        """
        seconds = self._clock() - self._started
        p50, p95, p99 = np.percentile(self._step_seconds, (50, 95, 99)) * 1000
        rows_per_second = self._units * self._rows_of_a_unit / seconds
        alone = gather(round((self._data_seconds + self._alone_seconds) * 1e6))
        slowest = max(range(len(alone)), key=alone.__getitem__)
        others = alone[:slowest] + alone[slowest + 1 :]
        typical = statistics.median(others or alone)
        values = {
            "loss": add([self._loss_sum])[0] / self._units,
            "gradient_norm": self._norm,
            "training_throughput_samples_per_sec": rows_per_second,
            "data_loading_latency_ms": self._data_seconds / self._steps * 1000,
            "data_wait_share": self._data_seconds / seconds,
            "step_ms_p50": float(p50),
            "step_ms_p95": float(p95),
            "step_ms_p99": float(p99),
            "slowest_rank": float(slowest),
            "slowest_rank_factor": alone[slowest] / max(1.0, typical),
            "slowest_rank_lag_ms": (alone[slowest] - typical) / self._steps / 1000,
        }
        if self._mfu_of_a_row is not None:
            values["mfu"] = self._mfu_of_a_row * rows_per_second
        self._reset()
        return values

    def _reset(self) -> None:
        self._started = self._clock()
        self._loss_sum = self._norm = self._data_seconds = self._alone_seconds = 0.0
        self._units = self._steps = 0


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
