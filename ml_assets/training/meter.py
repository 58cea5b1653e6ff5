"""What the loop measures between two metric events: loss, speed, and the share of time spent on data.

Not here: sending it (events).
"""

import time
from collections.abc import Generator
from contextlib import contextmanager


class Meter:
    """Sums over the steps since the last `read`."""

    def __init__(self) -> None:
        self._reset()

    @contextmanager
    def waiting_for_data(self) -> Generator[None]:
        """Time spent inside counts as waiting for data."""
        started = time.monotonic()
        yield
        self._data_seconds += time.monotonic() - started

    def add(self, loss_sum: float, rows: int, gradient_norm: float) -> None:
        """One step over all ranks: its loss, summed over `rows`, and the norm before clipping."""
        self._loss_sum += loss_sum
        self._rows += rows
        self._norm = gradient_norm

    def read(self) -> dict[str, float]:
        """Mean loss, newest gradient norm, rows per second of all ranks, share of time on data (0–1)."""
        seconds = time.monotonic() - self._started
        values = {
            "loss": self._loss_sum / self._rows,
            "gradient_norm": self._norm,
            "rows_per_second": self._rows / seconds,
            "data_wait": self._data_seconds / seconds,
        }
        self._reset()
        return values

    def _reset(self) -> None:
        self._started = time.monotonic()
        self._loss_sum = self._norm = self._data_seconds = 0.0
        self._rows = 0
