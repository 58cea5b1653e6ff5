"""Measurements of the loop between two metric events: loss, speed, waiting for data, and which rank is slow.

Not here: sending it (events), the GPU's own figures (gpu), those of the machine (machine).
"""

import statistics
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import numpy as np

_STEPS = 1000
"""Newest steps that percentiles are taken of."""


class Meter:
    """Sums over the steps since the last `read`, and the newest step times.

    `mfu_of_a_row` is the share of the devices' peak that one row a second takes (see mfu), None where unknown; `clock`
    gives seconds since some moment.
    """

    def __init__(
        self, mfu_of_a_row: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._mfu_of_a_row = mfu_of_a_row
        self._clock = clock
        self._step_seconds: deque[float] = deque(maxlen=_STEPS)
        self._stepped = self._clock()
        self._reset()

    @contextmanager
    def waiting_for_data(self) -> Generator[None]:
        """Time spent inside counts as waiting for data."""
        started = self._clock()
        yield
        self._data_seconds += self._clock() - started

    def add(self, loss_sum: float, rows: int, gradient_norm: float, alone_seconds: float = 0.0) -> None:
        """One step of `rows` over all ranks: the loss of this rank's, summed, and the norm before clipping;
        `alone_seconds` is what this rank took before it first waited for another."""
        self._loss_sum += loss_sum
        self._rows += rows
        self._norm = gradient_norm
        self._alone_seconds += alone_seconds
        self._steps += 1
        now = self._clock()
        self._step_seconds.append(now - self._stepped)
        self._stepped = now

    def read(
        self, gather: Callable[[int], list[int]], add: Callable[[Sequence[float]], list[float]]
    ) -> dict[str, float]:
        """The figures since the last call. All ranks call it at once: `gather` gives a number of each of them, `add`
        the sums of theirs.

        Mean loss, newest gradient norm, rows per second of all ranks, mean wait for data a step, its share of the time
        (0–1), percentiles of the newest times from step to step (with the validation or save between them), and the
        rank that works slowest: how many times as long as the typical other one it takes (1: as fast), and how much
        longer a step. On a GPU work is what the host does: kernels it started run on. `mfu` (0–1) where the
        operations of the model and the peak of the devices are known.
        """
        seconds = self._clock() - self._started
        p50, p95, p99 = np.percentile(self._step_seconds, (50, 95, 99)) * 1000
        alone = gather(round((self._data_seconds + self._alone_seconds) * 1e6))
        slowest = max(range(len(alone)), key=alone.__getitem__)
        others = alone[:slowest] + alone[slowest + 1 :]
        typical = statistics.median(others or alone)
        values = {
            "loss": add([self._loss_sum])[0] / self._rows,
            "gradient_norm": self._norm,
            "training_throughput_samples_per_sec": self._rows / seconds,
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
            values["mfu"] = self._mfu_of_a_row * self._rows / seconds
        self._reset()
        return values

    def _reset(self) -> None:
        self._started = self._clock()
        self._loss_sum = self._norm = self._data_seconds = self._alone_seconds = 0.0
        self._rows = self._steps = 0
