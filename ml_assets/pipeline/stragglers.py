"""Report of a worker that holds the others up, once, in words; the figures themselves are metrics.

Not here: measuring (ml_assets.training.telemetry.meter).
"""

from resources.job.events import TrainingEvent

_FACTOR = 1.5
"""Times the typical other worker's work a step, and…"""
_SHARE = 0.1
"""…a delay of so much of a step."""
_IN_A_ROW = 3
"""Readings; one alone may be a pause of the machine."""


class Stragglers:
    """Listens to the events of a training."""

    def __init__(self) -> None:
        self._forget()

    def hear(self, event: TrainingEvent) -> str | None:
        """Return a sentence for people the first time a worker of an attempt was slow too many times in a row."""
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
            f"straggler: rank {rank} works {event.values['slowest_rank_factor']:.1f} times as long as the others, "
            f"{event.values['slowest_rank_lag_ms']:.0f} ms more a step, and they wait for it. Look at its machine: the "
            "system figures say what else that does"
        )

    def _forget(self) -> None:
        self._rank: int | None = None
        self._times = 0
        self._named: set[int] = set()


def _slow_rank(event: TrainingEvent) -> int | None:
    figures = event.values
    if "slowest_rank" not in figures:  # a loop of somebody's own
        return None
    is_slow = figures["slowest_rank_factor"] >= _FACTOR
    is_felt = figures["slowest_rank_lag_ms"] >= _SHARE * figures["step_ms_p50"]
    return int(figures["slowest_rank"]) if is_slow and is_felt else None
