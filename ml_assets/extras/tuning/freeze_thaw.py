"""Freeze-thaw: the trial of a study that trains next. Since a trial continues exactly, a pause loses nothing.

First rounds: all trials train a few epochs, the better half of them more, and so on, until a few are finished. Every
round compares losses of all trials at the same epoch. Then extrapolated learning curves decide: a paused trial with a
fair chance of beating the best finished one continues. Not here: the extrapolation (`learning_curves`), the records of
trials (`study`).
"""

from collections.abc import Mapping
from dataclasses import replace

from ml_assets.extras.tuning.learning_curves import LearningCurve, forecast

FIRST = 1 / 27
"""Share of their epochs that all trials train."""
ROUNDS = ((1 / 9, 1 / 2), (2 / 9, 1 / 5), (1 / 2, 1 / 12), (1.0, 1 / 32))
"""Share of its epochs to which a round takes a trial, and the share of the trials that it takes there."""
FAIR_CHANCE = 0.3
"""Probability of beating the best finished trial from which a paused trial continues after the rounds."""
BETTER_BY = 0.002
"""Part of the best loss by which a trial must be better to count: a smaller gain is not worth a training."""

Curves = Mapping[int, LearningCurve]
"""Number of a trial → its learning curve so far. Trials that failed are left out."""


def should_pause(curves: Curves, number: int) -> bool:
    """True if trial `number`, which runs and has just reached an epoch, should be paused there."""
    curve = curves[number]
    epochs = len(curve.losses)
    if epochs <= (first := curve.epochs_of(FIRST)):
        return epochs == first
    as_paused = {**curves, number: replace(curve, state="paused")}
    if epochs in {curve.epochs_of(share) for share, _ in ROUNDS}:
        return next_trial(as_paused) != number
    return _next_of_rounds(as_paused) is None and _chances(as_paused)[number] < FAIR_CHANCE


def next_trial(curves: Curves) -> int | None:
    """Return the paused trial to continue; None if none has a fair chance."""
    if (number := _next_of_rounds(curves)) is not None:
        return number
    fair = {number: chance for number, chance in _chances(curves).items() if chance >= FAIR_CHANCE}
    return max(fair, key=lambda number: (fair[number], -number), default=None)


def best_paused(curves: Curves) -> int | None:
    """Return the paused trial with the lowest loss so far; None if none is paused."""
    paused = {number: curve.last for number, curve in curves.items() if curve.state == "paused"}
    return min(paused, key=lambda number: (paused[number], number), default=None)


def _next_of_rounds(curves: Curves) -> int | None:
    """Return the trial that the first incomplete round takes on; None after the rounds."""
    before = FIRST
    for share, of_trials in ROUNDS:
        waiting = {
            number: curve.losses[curve.epochs_of(before) - 1]
            for number, curve in curves.items()
            if curve.state == "paused"
            and curve.epochs_of(before) <= len(curve.losses) < curve.epochs_of(share)
        }
        arrived = sum(
            curve.state != "paused" or len(curve.losses) >= curve.epochs_of(share)
            for curve in curves.values()
        )
        if waiting and arrived < max(1, round(of_trials * len(curves))):
            return min(waiting, key=lambda number: (waiting[number], number))
        before = share
    return None


def _chances(curves: Curves) -> dict[int, float]:
    """Return each paused trial's probability of beating the best finished trial; 1 if none has finished."""
    paused = [number for number, curve in curves.items() if curve.state == "paused"]
    ended = [curve.last for curve in curves.values() if curve.state == "ended"]
    if not ended or not paused:
        return dict.fromkeys(paused, 1.0)
    bar = min(ended) - BETTER_BY * abs(min(ended))
    expected = forecast(curves)
    return {number: expected.chance(number, bar) for number in paused}
