"""Live report of a training: its events, for the person at the page and for the tracker; stragglers; its cost.

Here: the events to show, how often, and the cost of a training that finished, failed, diverged or was cancelled. Not
here: Dagster's page (`components.pipeline_steps`), the tracker's queue (resources.tracking.sink), measuring
(ml_assets.model.training.telemetry.meter), the duration of an attempt (training.attempt.attempts).
"""

import json
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Protocol, Self

from ml_assets.model.training.attempt.attempts import seconds_between, sign_of
from ml_assets.model.training.attempt.pace import INTERVAL, SaveInterval
from resources.job.events import Recovery, TrainingEvent
from resources.job.job import TrainingResult
from resources.job.reserved import RESERVED, Reserved
from resources.tracking.tracker import TrackedRun
from resources.words import counted

OBSERVE_EVERY_SECONDS = 1.0
"""Least time between observations, since each is a row in Dagster's event log. The tracker receives every point."""
_MEASURING = {
    "metrics": None,
    "epoch": None,
    "checkpoint": {"checkpoint_duration_ms": "checkpoint_duration_ms", "blocked_ms": "checkpoint_blocked_ms"},
    "recovered": {"seconds": "recovery_seconds", "steps_lost": "recovery_steps_lost"},
    "system": None,
    INTERVAL: {
        name: name
        for name in ("checkpoint_interval_seconds", "checkpoint_cost_seconds", "loss_interval_seconds")
    },
}
"""Kinds of events whose numbers are metrics → the numbers to keep, with their metric names; None for all numbers."""
_OF_A_STEP = ("metrics", "epoch")
"""Kinds whose numbers belong to their step: a repeated step reports the same numbers. Other kinds are readings in time.
"""
_DEVICES = ("device", "gpu", "gpus", "gpu_driver")
"""Values of a `started` event about the machine."""


class TrainingPage(Protocol):
    """Page on which people follow a training while it runs."""

    def info(self, text: str) -> None:
        """Show a message."""
        ...

    def warning(self, text: str) -> None:
        """Show a message that needs attention."""
        ...

    def observe(self, step: int, numbers: Mapping[str, float]) -> None:
        """Show the metrics of a step."""
        ...


class StudyPage(Protocol):
    """Page on which people follow a study while it runs."""

    def info(self, text: str) -> None:
        """Show a message."""
        ...

    def of_trial(self, number: int) -> TrainingPage:
        """Return the page of one trial."""
        ...


class LiveReport:
    """Live report of a training: at most one observation per second, every point to the tracker."""

    def __init__(self, page: TrainingPage, tracked: TrackedRun) -> None:
        self._page = page
        self._tracked = tracked
        self.attempts = Attempts()
        self._observed_at = 0.0
        self._stragglers = Stragglers()
        self.events = 0
        """Number of events; 0 if an earlier run had already finished the job."""
        self.devices: dict[str, str] = {}
        """Devices of rank 0's machine, as it reported at its start."""
        self.finished_at: float | None = None
        """Time at which the workers finished, in seconds since the epoch; the same for each run that follows the
        job."""

    def catch_up(self, events: Iterable[TrainingEvent]) -> None:
        """Send the events of earlier runs of this job to the tracker, which keeps each point once. A killed run may not
        have sent its last events."""
        for event in events:
            self._note(event)
            self._track(event)

    def tell_spent(self, gpu_hour_price: float | None) -> None:
        """Record the cost of a training that did not finish."""
        taken = self.attempts.spent(gpu_hour_price)
        if not taken:
            return
        self._tracked.log(taken, self.attempts.step, self.attempts.last_sign, once_a_step=False)
        cost = f", cost {taken['cost']:.2f}" if "cost" in taken else ""
        self._page.info(
            f"not finished: {taken['worker_hours']:.3f} worker hours in {counted(int(taken['attempts']), 'attempt')}"
            f"{cost}"
        )

    def event(self, event: TrainingEvent) -> None:
        """Report one event of the workers; the launcher calls this for each event."""
        self.events += 1
        numbers = _numbers(event)
        self._note(event)
        self._track(event)
        if event.kind in ("resumed", "checkpoint", "started"):
            self._page.info(f"{event.kind} at step {event.step}")
        if event.kind == INTERVAL:
            self._page.info(SaveInterval.of(event).in_words())
        if event.kind == "warning":
            self._page.warning(str(event.values["message"]))
        if event.kind == "recovered":
            self._page.warning(Recovery.of(event).in_words())
        if (straggler := self._stragglers.hear(event)) is not None:
            self._page.warning(straggler)
        is_due = event.kind == "metrics" and time.monotonic() - self._observed_at >= OBSERVE_EVERY_SECONDS
        if is_due or event.kind == "epoch":
            self._observed_at = time.monotonic()
            self._page.observe(event.step, numbers)

    def _track(self, event: TrainingEvent) -> None:
        if event.kind in _MEASURING:
            once = event.kind in _OF_A_STEP
            self._tracked.log(_numbers(event), event.step, event.time, once_a_step=once)

    def _note(self, event: TrainingEvent) -> None:
        self.attempts.hear(event)
        if event.kind == "started":
            self.devices = {name: str(event.values[name]) for name in _DEVICES if name in event.values}
        if event.kind == "finished":
            self.finished_at = event.time


def _numbers(event: TrainingEvent) -> dict[str, float]:
    numbers = {name: float(v) for name, v in event.values.items() if isinstance(v, int | float)}
    names = _MEASURING.get(event.kind)
    return numbers if names is None else {names[name]: v for name, v in numbers.items() if name in names}


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
        self._reserved: dict[str, Reserved] = {}
        """Newest reading of each attempt."""
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
        if (
            event.kind == RESERVED and "places" in event.values
        ):  # readings of releases before 2026-11-30 lack it
            reading = Reserved.of(event)
            known = self._reserved.get(reading.job)
            if known is None or known.at < reading.at:
                self._reserved[reading.job] = reading
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

        On one machine, each process held a GPU if the workers had GPUs; without reservations, these are `worker_hours`.
        None if the workers did not report their `devices`, and no reservation tells.
        """
        held = self.held()
        if held and all(one.gpus is not None for one in held):
            return sum(one.place_seconds * (one.gpus or 0) for one in held) / 3600
        if "device" not in devices:
            return None
        if devices["device"] != "cuda":
            return 0.0
        return sum(one.place_seconds for one in held) / 3600 if held else worker_hours

    def held(self) -> list[Reserved]:
        """Return the newest reading of each attempt, in the order in which they got their places.

        A launcher that died left places held: they count up to the workers' last sign of life.
        """
        found = sorted(self._reserved.values(), key=lambda one: one.began)
        nexts = [*(one.began for one in found[1:]), math.inf]
        return [self._until_last_sign(one, until) for one, until in zip(found, nexts, strict=False)]

    def _until_last_sign(self, one: Reserved, until: float) -> Reserved:
        if not one.places:
            return one
        now = max([one.at, *(sign for sign in self._signs if sign < until)])
        return replace(one, at=now, place_seconds=one.place_seconds + one.places * (now - one.at))

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
        # A script may not report its number of epochs.
        **({"training_throughput_samples_per_sec": result.rows_per_second} if result.epochs else {}),
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
