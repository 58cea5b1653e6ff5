"""The measured interval between checkpoints: the formula, its measurements, and what counts as a loss."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.model.training.attempt.pace import (
    PRIOR_LOSS_WORKER_SECONDS,
    MeasuredPace,
    SaveInterval,
    best_interval,
    loses_work,
)
from resources.job.events import TrainingEvent

STEP = 0.01


class Clock:
    """Seconds that pass as a test says."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Stepping:
    """A loop on rank 0 whose steps take 10 ms, and whose saves take what a test says."""

    def __init__(
        self,
        blocked: float,
        writes: float,
        slower: float,
        losses: int = 0,
        hours: float = 0,
        step: float = STEP,
    ) -> None:
        self.step = step
        self.clock, self.chosen = Clock(), list[SaveInterval]()
        self.blocked, self.writes, self.slower = blocked, writes, slower
        self.written_at = 0.0
        self.saves: list[float] = []
        self.pace = MeasuredPace(
            losses=losses,
            worker_seconds=3600 * hours,
            save_seconds=None,
            workers=2,
            step=0,
            tell=lambda _, interval: self.chosen.append(interval),
            clock=self.clock,
        )

    def run(self, seconds: float) -> None:
        step, until = 0, self.clock.now + seconds
        while self.clock.now < until:
            step += 1
            is_saving = self.clock.now < self.written_at
            self.clock.now += self.step * (1 + self.slower * is_saving)
            self.pace.stepped(step, is_saving=self.clock.now < self.written_at)
            if self.pace.is_due:
                self.saves.append(self.clock.now)
                with self.pace.saving():
                    self.clock.now += self.blocked
                self.written_at = self.clock.now + self.writes


@given(st.floats(1e-3, 100), st.floats(1e-1, 1e6))
def test_no_other_interval_loses_less_time(cost: float, between: float) -> None:
    """Against the exact expected time of an exponential time between losses (Daly 2006, equation 13)."""
    cost = min(cost, between)
    best = best_interval(cost, between)
    others = best * np.geomspace(0.2, 5, 41)
    wall = (np.exp((others + cost) / between) - 1) / others
    assert (math.exp((best + cost) / between) - 1) / best <= 1.02 * wall.min()


def test_the_cost_is_what_steps_lose_not_how_long_the_write_takes() -> None:
    """A write of 2 s in which steps are a tenth slower costs 0.2 s, and the wait for the copy."""
    loop = Stepping(blocked=0.05, writes=2.0, slower=0.1, losses=12, hours=2)
    loop.run(300)
    newest = loop.chosen[-1]
    assert newest.is_save_measured
    assert newest.checkpoint_cost_seconds == pytest.approx(0.05 + 2.0 * 0.1 / 1.1, rel=0.05)
    assert newest.loss_interval_seconds == pytest.approx(
        300, rel=0.1
    )  # of two workers in 12 losses per 2 hours
    assert np.diff(loop.saves)[-1] == pytest.approx(best_interval(0.23, 300), rel=0.1)


def test_an_unmeasured_save_is_measured_within_a_minute() -> None:
    loop = Stepping(blocked=0.02, writes=0.1, slower=0.0)
    loop.run(120)
    first, second = loop.chosen
    assert (first.is_save_measured, first.checkpoint_interval_seconds) == (False, 60.0)
    assert loop.saves == [pytest.approx(60, abs=0.1)]
    assert second.loss_interval_seconds == PRIOR_LOSS_WORKER_SECONDS / 2
    assert second.checkpoint_cost_seconds == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize(
    ("step", "writes"),
    [
        pytest.param(61, 5, id="each step is longer than the time to the first save"),
        pytest.param(59, 300, id="each write is longer"),
        pytest.param(3600, 5, id="a step of an hour"),
    ],
)
def test_saves_are_measured_if_all_is_long(step: float, writes: float) -> None:
    """A save of 20 s after each step of a minute took a quarter of the time, for ever."""
    loop = Stepping(blocked=20, writes=writes, slower=0.1, step=step)
    loop.run(800 * step)
    first, *_, newest = loop.chosen
    assert (first.is_save_measured, newest.is_save_measured) == (False, True)
    assert newest.checkpoint_cost_seconds == pytest.approx(20 + 0.1 * max(writes, step), rel=0.15)
    apart = np.diff(loop.saves)[-1] - newest.checkpoint_interval_seconds
    assert 0 <= apart <= 1.2 * step + 20


def test_an_interval_is_never_shorter_than_the_write() -> None:
    loop = Stepping(blocked=0.001, writes=5.0, slower=0.0, losses=1000, hours=1)
    loop.run(120)
    assert min(np.diff(loop.saves)) >= 5.0
    assert loop.chosen[-1].checkpoint_interval_seconds == pytest.approx(5.0, abs=0.1)


def _event(kind: str, step: int = 0, **values: object) -> TrainingEvent:
    return TrainingEvent(kind=kind, step=step, time=float(step), values=values)


STARTED = [_event("started", attempt=1, world_size=2), _event("checkpoint", 10), _event("metrics", 14)]


@pytest.mark.parametrize(
    ("end", "lost"),
    [
        pytest.param([_event("ended", code=137, cause="killed", place="")], True, id="killed"),
        pytest.param([], True, id="its machine vanished"),
        pytest.param([_event("checkpoint", 15), _event("ended", code=75, place="")], False, id="saved"),
        pytest.param([_event("ended", code=75, cause="node lost")], True, id="evicted without a save"),
        pytest.param([_event("ended", code=1, place="ValueError at x.py:3")], False, id="own error"),
        pytest.param([_event("ended", code=65, place="")], False, id="diverged"),
        pytest.param([_event("finished", 20)], False, id="finished"),
    ],
)
def test_only_an_end_that_loses_work_counts(end: list[TrainingEvent], lost: bool) -> None:
    assert loses_work([*STARTED, *end]) is lost
