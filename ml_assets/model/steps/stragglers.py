"""Report, once and in words, of a worker that delays the others; the numbers themselves are metrics.

Not here: measuring (ml_assets.model.training.telemetry.meter).
"""

from resources.job.events import TrainingEvent

_FACTOR = 1.5
"""Least work per step of a straggler, as a multiple of the median of the other workers."""
_SHARE = 0.1
"""Least delay of a straggler, as a share of a step."""
_IN_A_ROW = 3
"""Number of readings in a row; a single reading may be a pause of the machine."""


class Stragglers:
    """Finds stragglers in the events of a training."""

    def __init__(self) -> None:
        self._forget()

    def hear(self, event: TrainingEvent) -> str | None:
        """Return a sentence for people at the third slow reading in a row of a worker, once per worker and attempt."""
        if event.kind == "started":
            self._forget()
        if event.kind != "metrics":
            return None
        rank = _slow_rank(event)
        self._times = self._times + 1 if rank == self._rank else 1
        self._rank = rank
        if rank is None or self._times != _IN_A_ROW or rank in self._named:
            return None
        self._named.add(rank)
        return (
            f"straggler: rank {rank} works {event.values['slowest_rank_factor']:.1f} times as long as the "
            f"others, {event.values['slowest_rank_lag_ms']:.0f} ms more a step, and they wait for it. Look at "
            f"its machine: the "
            "system figures say what else that does"
        )

    def _forget(self) -> None:
        self._rank: int | None = None
        self._times = 0
        self._named: set[int] = set()


def _slow_rank(event: TrainingEvent) -> int | None:
    figures = event.values
    if "slowest_rank" not in figures:  # a script's own loop
        return None
    is_slow = figures["slowest_rank_factor"] >= _FACTOR
    is_felt = figures["slowest_rank_lag_ms"] >= _SHARE * figures["step_ms_p50"]
    return int(figures["slowest_rank"]) if is_slow and is_felt else None
