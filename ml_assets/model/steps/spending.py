"""Cost of a training: per attempt from its workers' reports, and in total as metrics of its MLflow run.

Here: costs of trainings that finished, failed, diverged or were cancelled. Not here: the duration of an attempt
(training.attempt.attempts).
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Self

from ml_assets.model.training.attempt.attempts import seconds_between, sign_of
from resources.job.events import TrainingEvent
from resources.job.job import TrainingResult

_OF_AN_ATTEMPT = ("world_size", "device", "gpu", "gpus", "gpu_driver", "torch")
"""Values of a `started` event that are recorded."""


_FREQUENT = ("metrics", "system")
"""Kinds of events of which only the newest one matters to a cost."""


class Reports:
    """Events of a running training that decide its cost so far: a few, however long it trains."""

    def __init__(self) -> None:
        self._rare: list[TrainingEvent] = []
        self._newest: TrainingEvent | None = None

    def hear(self, event: TrainingEvent) -> None:
        """Note an event."""
        if event.kind in _FREQUENT:
            self._newest = event
            return
        if self._newest is not None:  # may be the last sign of an attempt before the next start
            self._rare.append(self._newest)
        self._rare.append(event)
        self._newest = None

    @property
    def kept(self) -> list[TrainingEvent]:
        """Return the events to count with."""
        return [*self._rare, *([] if self._newest is None else [self._newest])]


class Attempts:
    """Attempts of a training, from its events."""

    def __init__(self) -> None:
        self._started: dict[int, TrainingEvent] = {}
        self._signs: list[float] = []
        self._reserved: dict[str, list[TrainingEvent]] = {}
        self.step = 0
        """Highest step of an event that shows the workers alive."""

    @classmethod
    def of(cls, events: Iterable[TrainingEvent]) -> Self:
        """Return the attempts that `events` report."""
        attempts = cls()
        for event in events:
            attempts.hear(event)
        return attempts

    def hear(self, event: TrainingEvent) -> None:
        """Note an event; a repeated event changes nothing."""
        if event.kind == "started":
            self._started.setdefault(int(event.values.get("attempt", 1)), event)
        if event.kind == "reserved":
            self._reserved.setdefault(str(event.values["job"]), []).append(event)
        if (sign := sign_of(event)) is not None:
            self._signs.append(sign)
            self.step = max(self.step, event.step)

    @property
    def last_sign(self) -> float | None:
        """Return the time of the workers' last sign of life, in seconds since the epoch; None without one."""
        return max(self._signs, default=None)

    def facts(self) -> dict[str, str]:
        """Return a tag for each attempt, `attempt/<number>`: its devices, its first step, its start."""
        return {
            f"attempt/{number}": json.dumps(
                {
                    "from_step": event.step,
                    "started": datetime.fromtimestamp(event.time, UTC).isoformat(timespec="seconds"),
                    **{name: event.values[name] for name in _OF_AN_ATTEMPT if name in event.values},
                }
            )
            for number, event in sorted(self._started.items())
        }

    def spent(self, gpu_hour_price: float | None) -> dict[str, float]:
        """Return the cost of all attempts up to their last signs of life; empty if none began or held GPUs."""
        events = self._in_order()
        if not events and not self._reserved:
            return {}
        hours, devices = self.worker_seconds / 3600, events[-1].values if events else {}
        return _figures(hours, len(events), self.gpu_hours(hours, devices), gpu_hour_price)

    def gpu_hours(self, worker_hours: float, devices: Mapping[str, Any]) -> float | None:
        """Return the GPU hours of all attempts: those that a launcher reserved, from the placement of the pods on.

        Without reservations, as on one machine, return `worker_hours` if the workers had GPUs; None if they did not
        report their `devices`.
        """
        if self._reserved:
            return sum(map(self._reserved_seconds, self._reserved.values())) / 3600
        if "device" not in devices:
            return None
        return worker_hours if devices["device"] == "cuda" else 0.0

    def _reserved_seconds(self, readings: Sequence[TrainingEvent]) -> float:
        """Return the GPU seconds of one Job by its newest reading. A launcher that died left GPUs held."""
        newest = max(readings, key=lambda one: one.time)
        begins = (min(one.time for one in job) for job in self._reserved.values())
        until = min((begin for begin in begins if begin > newest.time), default=math.inf)
        held_until = max([newest.time, *(sign for sign in self._signs if sign < until)])
        return float(newest.values["gpu_seconds"] + newest.values["gpus"] * (held_until - newest.time))

    @property
    def seconds(self) -> float:
        """Wall time of all attempts up to their last signs of life."""
        return sum(self._seconds_of_each())

    @property
    def worker_seconds(self) -> float:
        """Seconds of all workers of all attempts up to their last signs of life."""
        workers = (int(event.values["world_size"]) for event in self._in_order())
        return sum(count * took for count, took in zip(workers, self._seconds_of_each(), strict=True))

    def _in_order(self) -> list[TrainingEvent]:
        """Return the start of each attempt, oldest first."""
        return sorted(self._started.values(), key=lambda event: event.time)

    def _seconds_of_each(self) -> list[float]:
        return seconds_between([event.time for event in self._in_order()], self._signs)


def spent(
    result: TrainingResult, attempts: Attempts, devices: Mapping[str, Any], gpu_hour_price: float | None
) -> dict[str, float]:
    """Return the cost of a finished training, over all its attempts, as metrics of its run.

    `worker_hours` counts each attempt with its own number of workers, and repeated steps each time. For `gpu_hours` see
    `Attempts.gpu_hours`; `cost` also requires the price of an hour of one GPU.
    """
    hours = result.worker_seconds / 3600
    return {
        "training_seconds": result.seconds,
        **_figures(hours, result.attempts, attempts.gpu_hours(hours, devices), gpu_hour_price),
        **_speed(result),
    }


def _figures(
    hours: float, attempts: int, gpu_hours: float | None, gpu_hour_price: float | None
) -> dict[str, float]:
    taken = {"attempts": float(attempts), "worker_hours": hours}
    if gpu_hours is not None:
        taken["gpu_hours"] = gpu_hours
        if gpu_hour_price is not None:
            taken["cost"] = gpu_hours * gpu_hour_price
    return taken


def _speed(result: TrainingResult) -> dict[str, float]:
    """Return the rows per second; empty if a script did not report its number of epochs."""
    return {"training_throughput_samples_per_sec": result.rows_per_second} if result.epochs else {}
