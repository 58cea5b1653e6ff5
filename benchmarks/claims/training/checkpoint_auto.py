"""Goodput of `checkpoint_every_minutes: auto` against fixed intervals, with ranks killed by SIGKILL at random moments.

Part 1 is real: trainings of a model of a million parameters on two ranks. The time between kills is exponential, with
the same seeds for each interval; training goes on from the last checkpoint each time. First trainings without and with
kills make the history that `auto` reads from the records of their attempts. It measures the time of a step, what a save
takes from the steps, how long a save is in the making, and how long a restart takes.

A few kills say little about a difference of 2 %: each loses anything from nothing to a whole interval. So part 2
simulates 100,000 losses with the measured figures, for `auto`'s own choice and for a grid of fixed intervals.

Scale: machines fail after days, not every 60 s, but a restart takes as long here as after days. So the bar judges the
time in which workers train: the interval decides about lost steps and saves, not about the restart. The share of the
whole time, with restarts, is shown beside it.
"""

import itertools
import os
import random
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import nn

from benchmarks._report import Result, emit, parse_args
from ml_assets.data.snapshots.split_reader import InputSpec
from ml_assets.model.steps.loss_history import history_of
from ml_assets.model.steps.usage import Usage, UsageRecord, read_usage
from ml_assets.model.training.attempt.pace import MeasuredPace
from ml_assets_tests.training.small_jobs import feature_table, small_job, small_snapshot
from resources.artifacts import artifacts_of
from resources.job.events import TrainingEvent, read_events, training_folder_name
from resources.job.job import LossHistory
from resources.launcher.local import LocalLauncher

LOSS_SECONDS = 60.0
"""Mean time between losses in the simulation, and in the bar."""
KILL_SECONDS = 4.0
"""Mean time between kills in the real trainings, so that a short training has some."""
FIXED_SECONDS = (0.1, 4.0)
ROUNDS = 3
STEPS = 600
WIDTH = 1000
LEAST_OF_BEST, LEAST_GOODPUT = 0.98, 0.97
_LOSSES = 100_000
Minutes = float | Literal["auto"]


class Million(nn.Module):
    """Model with a million parameters in one matrix."""

    def __init__(self, inputs: InputSpec) -> None:
        super().__init__()
        width = len(inputs.numeric)
        self.layers = nn.Sequential(
            nn.Linear(width, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)
        )

    def forward(self, numeric: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        return self.layers(numeric).squeeze(1)


def million(inputs: InputSpec) -> nn.Module:
    """Return the model of the trainings."""
    return Million(inputs)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One real training."""

    events: Sequence[TrainingEvent]
    record: UsageRecord
    seconds: float
    steps: int

    @property
    def restarts(self) -> list[float]:
        """Seconds from the last sign of life to the next step, for each kill."""
        return [float(one.values["seconds"]) for one in self.events if one.kind == "recovered"]

    @cached_property
    def trained_seconds(self) -> float:
        """Seconds in which workers trained, whatever came of it."""
        return sum(one.trained_seconds for one in self.record.attempts)

    def useful_share(self, cost: float) -> float:
        """Return the share of the trained time that neither lost steps nor saves took; `cost`: seconds of a save.

        Steps are counted, not timed: other work on the machine makes them slower in one training than in the next.
        """
        lost = sum(int(one.values["steps_lost"]) for one in self.events if one.kind == "recovered")
        saves = sum(one.kind == "checkpoint" for one in self.events)
        return self.steps / (self.steps + lost) * (1 - saves * cost / self.trained_seconds)


class Trainings:
    """Real trainings of one job, each in a home of its own."""

    def __init__(self, folder: Path, steps: int) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        rows = 32 * steps // 10  # one epoch, whose end saves
        snapshot = small_snapshot(folder / "snapshot", feature_table(rows_a_day=rows), shard_bytes=10**6)
        self._job = small_job(
            snapshot,
            "benchmarks.claims.training.checkpoint_auto.million",
            epochs=1,
            global_batch=32,
            learning_rate=1e-4,
            checkpoint_every_steps=None,
            log_every_steps=10,
            max_attempts=1000,
        )

    def train(self, minutes: Minutes, kills: int | None, history: LossHistory | None = None) -> Measured:
        """Train with an interval; `kills` seeds the moments of the kills, None: no kill."""
        settings = replace(
            self._job.settings,
            checkpoint_every_minutes=minutes,
            checkpoint_every_steps=None if minutes == "auto" else 10**9,
        )
        job = replace(self._job, settings=settings, loss_history=history)
        artifacts = artifacts_of(None, self._folder / f"{next(self._numbers)}")
        folder = artifacts.folder(training_folder_name(job))
        usage = Usage(artifacts=artifacts, job=job, environment="local", env="", run_id="run", author="bench")
        killer = _Killer(kills)

        def hear(event: TrainingEvent) -> None:
            usage.hear(event)
            killer.hear(event)

        began = time.monotonic()
        try:
            with usage.recording():
                result = LocalLauncher().run(job, folder, hear, lambda _: None)
        finally:
            killer.rest()
        seconds = time.monotonic() - began
        record = read_usage(artifacts, job.model, job.fingerprint)
        if record is None:
            raise RuntimeError(f"{folder}: the training left no record of its attempts")
        return Measured(events=read_events(folder), record=record, seconds=seconds, steps=result.steps)


class _Killer:
    """Kills a rank of each attempt after an exponential time; the seed decides all moments and ranks."""

    def __init__(self, seed: int | None) -> None:
        self._random = None if seed is None else random.Random(seed)
        self._timer: threading.Timer | None = None

    def hear(self, event: TrainingEvent) -> None:
        """Arm the next kill at the start of an attempt."""
        if event.kind == "finished":
            self.rest()
        if event.kind != "started" or self._random is None:
            return
        self.rest()
        after, pid = self._random.expovariate(1 / KILL_SECONDS), self._random.choice(event.values["pids"])
        self._timer = threading.Timer(after, os.kill, (pid, signal.SIGKILL))
        self._timer.start()

    def rest(self) -> None:
        """Kill nobody any more."""
        if self._timer is not None:
            self._timer.cancel()


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Measured figures with which the simulation reckons, in seconds."""

    cost: float
    """Time that a save takes from the steps."""
    write: float
    """Time from the begin of a save until it counts."""
    restart: float


def simulated(interval: float, figures: Figures, losses: int = _LOSSES) -> tuple[float, float]:
    """Return the share of useful time in the time in which workers train, and in the whole time.

    Draws exponential times between losses. A save begins `interval` after the one before had held up the steps; it
    counts `write` after its begin.
    """
    lived = np.random.default_rng(1).exponential(LOSS_SECONDS, losses)
    cycle = interval + figures.cost
    # The save number k begins at k * interval + (k - 1) * cost, and counts `write` later.
    counted = np.maximum(0, np.floor((lived - figures.write + figures.cost) / cycle))
    useful = counted * interval
    return float(useful.sum() / lived.sum()), float(useful.sum() / (lived.sum() + losses * figures.restart))


def chosen_with(figures: Figures) -> float:
    """Return the interval that `auto` chooses with this cost after a hundred losses, one every 60 s."""
    history = LossHistory(losses=100, worker_seconds=2 * 100 * LOSS_SECONDS, save_seconds=figures.cost)
    pace = MeasuredPace(
        losses=history.losses,
        worker_seconds=history.worker_seconds,
        save_seconds=history.save_seconds,
        workers=2,
        step=0,
        tell=lambda *_: None,
    )
    return pace.seconds


def main() -> int:
    """Measure, simulate, print, decide."""
    asked = parse_args(__doc__)
    rounds, steps = (1, 300) if asked.quick else (ROUNDS, STEPS)
    with tempfile.TemporaryDirectory(prefix="auto-") as folder:
        trainings = Trainings(Path(folder), steps)
        undisturbed = trainings.train(10**6, None)
        histories = [trainings.train("auto", seed) for seed in (1, 2)]
        history = history_of(one.record for one in histories)
        by_way: dict[str, list[Measured]] = {}
        every = list(histories)
        for number in range(rounds):
            for way in ("auto", *FIXED_SECONDS):
                minutes: Minutes = "auto" if isinstance(way, str) else way / 60
                one = trainings.train(minutes, 10 + number, history if minutes == "auto" else None)
                every.append(one)
                name = way if isinstance(way, str) else f"{way:g} s"
                by_way.setdefault(name, []).append(one)
    figures = _figures(every)
    step_seconds = undisturbed.trained_seconds / undisturbed.steps
    return emit([_real(by_way, figures), *_simulations(figures, step_seconds)], json=asked.json)


def _figures(every: Sequence[Measured]) -> Figures:
    costs = [
        it.interval.checkpoint_cost_seconds
        for one in every
        for it in one.record.attempts
        if it.interval is not None and it.interval.is_save_measured
    ]
    saves = [it for one in every for it in one.events if it.kind == "checkpoint"]
    return Figures(
        cost=statistics.median(costs),
        write=statistics.median(float(it.values["checkpoint_duration_ms"]) / 1000 for it in saves),
        restart=statistics.median([seconds for one in every for seconds in one.restarts]),
    )


def _real(by_way: dict[str, list[Measured]], figures: Figures) -> Result:
    kills = statistics.fmean(len(one.restarts) for one in by_way["auto"])
    chosen = [
        it.interval.checkpoint_interval_seconds
        for one in by_way["auto"]
        for it in one.record.attempts
        if it.interval is not None
    ]
    shares = {name: [one.useful_share(figures.cost) for one in found] for name, found in by_way.items()}
    auto = shares["auto"]
    return Result(
        name=f"real trainings, a rank killed every {KILL_SECONDS:g} s on average ({kills:.1f} kills a training): share "
        f"of the trained time that counts, by auto ({min(auto):.1%} to {max(auto):.1%} in {len(auto)} rounds; "
        f"{min(chosen):.2g} to {max(chosen):.2g} s apart)",
        value=100 * statistics.median(auto),
        unit="%",
        peers={
            f"{name} ({100 * min(found):.1f} to {100 * max(found):.1f})": 100 * statistics.median(found)
            for name, found in shares.items()
            if name != "auto"
        },
        bar="shown",
        ok=True,
    )


def _simulations(figures: Figures, step_seconds: float) -> list[Result]:
    grid = np.geomspace(0.05, LOSS_SECONDS, 60)
    by_interval = {float(one): simulated(float(one), figures)[0] for one in grid}
    best = max(by_interval, key=by_interval.__getitem__)
    chosen = chosen_with(figures)
    trained, whole = simulated(chosen, figures)
    measured = (
        f"a save takes {1000 * figures.cost:.3g} ms from steps of {1000 * step_seconds:.3g} ms and counts after "
        f"{figures.write:.2g} s, a restart takes {figures.restart:.2g} s"
    )
    return [
        Result(
            name=f"simulated with the measured figures ({measured}), a loss every {LOSS_SECONDS:g} s: share of the "
            f"trained time that counts, auto ({chosen:.2g} s apart) and the best fixed interval ({best:.2g} s)",
            value=100 * trained,
            unit="%",
            peers={"best fixed": 100 * by_interval[best], "every 10 s": 100 * simulated(10.0, figures)[0]},
            ratio=trained / by_interval[best],
            bar=f"≥ {LEAST_OF_BEST:g} × best fixed",
            ok=trained >= LEAST_OF_BEST * by_interval[best],
        ),
        Result(
            name=f"the same, goodput without restarts; with them {whole:.1%}",
            value=100 * trained,
            unit="%",
            bar=f"≥ {LEAST_GOODPUT:.0%}",
            ok=trained >= LEAST_GOODPUT,
        ),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
