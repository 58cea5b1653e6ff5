"""Extrapolation of learning curves: the loss at which each trial of a study will end, with an uncertainty.

All curves of a study are one Gaussian process: a common curve, and a deviation of each trial. Deviations vary like
exponential decays with unknown rates (Swersky, Snoek & Adams, "Freeze-Thaw Bayesian Optimization", 2014), plus a level,
a random walk and noise. Several shapes of this covariance are averaged, weighted by the likelihood of the curves. Here:
curves and forecasts. Not here: decisions by them (`freeze_thaw`).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (the annotations of numpy.linalg are partial)

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]

POINTS = 32
"""Most points of a curve that are compared. A curve with more epochs is read at this many fractions of its length."""


@dataclass(frozen=True, kw_only=True)
class LearningCurve:
    """Losses of one trial so far."""

    losses: Sequence[float] = field(hash=False)
    """Lowest validation loss up to each epoch, from the first one on."""
    most_epochs: int
    """Epochs that the trial might train."""
    state: Literal["running", "paused", "ended"]
    """`ended`: the trial trains no further epoch."""

    @property
    def last(self) -> float:
        """Return the lowest loss so far."""
        return self.losses[-1]

    def epochs_of(self, share: float) -> int:
        """Return the number of epochs, at least 1, that a share of the trial's epochs amounts to."""
        return max(1, math.ceil(share * self.most_epochs - 1e-9))

    def at(self, points: int) -> list[float]:
        """Return the losses at those of `points` equal fractions of the epochs that the trial has reached."""
        reached = len(self.losses) * points // self.most_epochs
        return [self.losses[-(-at * self.most_epochs // points) - 1] for at in range(1, reached + 1)]


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Expected ends of trials, as normal distributions of a scaled loss."""

    means: Mapping[int, float] = field(hash=False)
    """Number of a trial → mean of its scaled loss after its last epoch. Less is better."""
    deviations: Mapping[int, float] = field(hash=False)
    """Number of a trial → standard deviation of that loss."""
    scale: "_Scale"

    def chance(self, number: int, loss: float) -> float:
        """Return the probability that trial `number` ends below `loss`."""
        distance = self.scale.of(loss) - self.means[number]
        deviation = self.deviations[number]
        return 0.5 * math.erfc(-distance / deviation / math.sqrt(2)) if deviation else float(distance > 0)


def forecast(curves: Mapping[int, LearningCurve]) -> Forecast:
    """Return the expected end of each trial by all curves so far; at least one must be given."""
    points = min(POINTS, max(curve.most_epochs for curve in curves.values()))
    scale = _Scale.of_curves(curves.values())
    scaled = np.zeros((points, len(curves)))
    is_known = np.zeros((points, len(curves)))
    for column, curve in enumerate(curves.values()):
        known = [scale.of(loss) for loss in curve.at(points)]
        scaled[: len(known), column] = known
        is_known[: len(known), column] = 1
    means, variances = _extrapolate(scaled, is_known)
    return Forecast(
        means=dict(zip(curves, means.tolist(), strict=True)),
        deviations=dict(zip(curves, np.sqrt(variances).tolist(), strict=True)),
        scale=scale,
    )


class _Scale(NamedTuple):
    """Scale that is linear among good losses and logarithmic among bad ones: these must not decide the forecast."""

    lowest: float
    width: float
    """Distance from the lowest loss to that of a good trial."""

    @classmethod
    def of_curves(cls, curves: Iterable[LearningCurve]) -> "_Scale":
        last = np.array([curve.last for curve in curves])
        lowest = float(last.min())
        return cls(lowest, max(float(np.quantile(last, 0.25)) - lowest, 1e-9 * abs(lowest), 1e-300))

    def of(self, loss: float) -> float:
        """Return the scaled loss: 0 for the lowest one."""
        return math.log1p(max((loss - self.lowest) / self.width, -0.9))


class _Shape(NamedTuple):
    """Covariance of a trial's deviation from the common curve, up to a factor."""

    root: Floats
    """Cholesky factor `[P, P]` of the covariance of the points."""
    inverse: Floats
    """Inverse of `root`: makes the points independent, each from the points before it."""
    common: Floats
    """Parts of the common curve `[P, 2]`: a level and a decay."""


@cache
def _shapes(points: int) -> tuple[_Shape, ...]:
    at = np.arange(1, points + 1) / points
    shapes: list[_Shape] = []
    for rate, walk, noise in product((0.03, 0.1, 0.3, 1.0), (0.03, 0.3), (1e-4, 1e-3, 1e-2)):
        decays = rate / (at[:, None] + at[None, :] + rate)
        root = np.linalg.cholesky(
            decays + 10.0 + walk * np.minimum(at[:, None], at[None, :]) + noise * np.eye(points)
        )
        common = np.stack([np.ones(points), rate / (at + rate)], axis=1)
        shapes.append(_Shape(root, np.linalg.inv(root), common))
    return tuple(shapes)


def _extrapolate(scaled: Floats, is_known: Floats) -> tuple[Floats, Floats]:
    """Return mean and variance `[N]` of the last point of each curve `[P, N]`, of which a first part is known.

    By the Cholesky factor of the covariance, a point is a sum of independent numbers, one for each point up to it. So
    one product serves curves of every length.
    """
    curves_at, known = is_known.sum(axis=1), float(is_known.sum())
    likelihoods: list[float] = []
    means: list[Floats] = []
    variances: list[Floats] = []
    for root, inverse, common in _shapes(len(scaled)):
        independent, parts = inverse @ scaled * is_known, inverse @ common
        normal = (parts * curves_at[:, None]).T @ parts + 1e-9 * np.eye(2)
        weights: Floats = np.linalg.inv(normal) @ (parts.T @ independent.sum(axis=1))
        surprise = (independent - np.dot(parts, weights)[:, None]) * is_known
        variance = float(np.vdot(surprise, surprise)) / known + 1e-12
        likelihoods.append(-0.5 * known * math.log(variance) - float(curves_at @ np.log(np.diag(root))))
        means.append(np.dot(common[-1], weights) + np.dot(root[-1], surprise))
        variances.append(variance * (root[-1] ** 2 @ (1 - is_known)))
    weight = np.exp(np.array(likelihoods) - max(likelihoods))
    weight /= weight.sum()
    mean = weight @ np.array(means)
    return mean, weight @ (np.array(variances) + (np.array(means) - mean) ** 2)
