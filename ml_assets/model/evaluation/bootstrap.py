"""Redraws of whole blocks, and intervals from them. Metrics are in `metrics.py`.

Flights of one day share its weather, so their errors are not independent. Resampling single rows would make intervals
several times too narrow. Instead, whole blocks (days) are drawn with replacement. Every model and every slice uses the
same draws, so differences are paired.

The interval is symmetric: measured value ± the half-width that contains `confidence` of the redraws. It has two
advantages over plain percentiles. It always contains the measured value, although the redraws of a calibration error
lie above it. It also extends to several slices at once (`joint_intervals`). With few blocks the redraws vary too
little, so the half-width is multiplied by √(B/(B−1)) and by the ratio of Student's to the normal quantile.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from ml_assets.model.evaluation.block_counts import BlockForm, Matrix
from ml_assets.model.evaluation.metrics import Vector

UNDEFINED_SHARE = 0.05
"""Share of undefined redraws (one class only) above which a metric gets no interval. One infinite redraw is enough."""

_LARGEST_LEVEL = 1 - 1e-12
"""Confidence of one interval above which Student's quantile is not computed exactly."""


@dataclass(frozen=True)
class Interval:
    """A measured value and its confidence interval; None where they are not defined or not finite."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Estimate:
    """A statistic on the holdout and on each redraw of its blocks."""

    value: float
    draws: Vector
    """`[D]`; NaN for redraws on which the statistic is undefined."""
    blocks: int
    """Blocks that hold the statistic's rows."""


def draw_blocks(blocks: int, draws: int, seed: int) -> Matrix:
    """Return the number of times each block is drawn, float64 `[draws, blocks]`; each row sums to `blocks`."""
    generator = np.random.default_rng(seed)
    return generator.multinomial(blocks, np.full(blocks, 1 / blocks), size=draws).astype(np.float64)


def estimate(form: BlockForm, counts: Matrix, blocks: int) -> Estimate:
    """Measure `form` on the holdout itself and on every redraw in `counts` `[D, B]`."""
    measured = form(np.ones((1, counts.shape[1])))
    return Estimate(float(measured[0]), form(counts), blocks)


def paired(
    challenger: Estimate, comparator: Estimate, *, higher_is_better: bool, relative: bool = False
) -> Estimate:
    """Return the challenger's improvement over the comparator for each redraw; positive if the challenger is better.

    `relative`: as a share of the comparator's value (0.005 is half a percent).
    """
    sign = 1.0 if higher_is_better else -1.0
    value = sign * (challenger.value - comparator.value)
    with np.errstate(invalid="ignore"):  # two infinite losses have no difference
        draws = sign * (challenger.draws - comparator.draws)
        if relative:
            draws = draws / np.where(comparator.draws != 0, np.abs(comparator.draws), np.nan)
            value = value / abs(comparator.value) if comparator.value else math.nan
    return Estimate(value, draws, challenger.blocks)


def interval(
    one: Estimate, confidence: float, *, lowest: float = -math.inf, highest: float = math.inf
) -> Interval:
    """Return the interval of one statistic, cut to the range `lowest`..`highest`."""
    (found,) = joint_intervals([one], confidence, lowest=lowest, highest=highest)
    return found


def joint_intervals(
    estimates: Sequence[Estimate],
    confidence: float,
    *,
    lowest: float = -math.inf,
    highest: float = math.inf,
) -> list[Interval]:
    """Return joint intervals: in `confidence` of the redraws, *all* statistics lie within their intervals.

    Intervals are cut to the range `lowest`..`highest`.

    Each interval is `value ± c × standard error` with the same c for all (the max-t method). Without it, one of
    fourteen carriers would look worse by luck. For a single statistic, it is the plain symmetric interval.
    """
    usable = [one for one in estimates if _defined(one)]
    if not usable:
        return [Interval(_finite(one.value)) for one in estimates]
    distance = np.stack([np.abs(one.draws - one.value) for one in usable])
    errors = np.sqrt(np.nanmean(distance**2, axis=1))
    # A statistic that never varies (a model against itself) has error 0, so any scale works.
    scale = np.where(errors > 0, errors, 1.0)
    farthest = np.where(np.isnan(distance), -1.0, distance / scale[:, None]).max(axis=0)
    critical = float(np.quantile(farthest[farthest >= 0], confidence))
    level = confidence if len(usable) == 1 else level_of(critical, confidence)
    intervals: list[Interval] = []
    for one in estimates:
        if not _defined(one):
            intervals.append(Interval(_finite(one.value)))
            continue
        error = float(np.sqrt(np.nanmean((one.draws - one.value) ** 2)))
        half = critical * error * widening(one.blocks, level)
        intervals.append(Interval(one.value, max(one.value - half, lowest), min(one.value + half, highest)))
    return intervals


def among(one: Interval, statistics: int, blocks: int, confidence: float) -> Interval:
    """Return the interval of one statistic, widened so that those of `statistics` hold jointly (Bonferroni).

    For intervals whose redraws are gone; with redraws, `joint_intervals` is narrower.
    """
    if one.value is None or one.low is None or one.high is None or blocks < 2:
        return one
    level = 1 - (1 - confidence) / statistics
    wider = NormalDist().inv_cdf((1 + level) / 2) / NormalDist().inv_cdf((1 + confidence) / 2)
    wider *= widening(blocks, level) / widening(blocks, confidence)
    return Interval(
        one.value, one.value - wider * (one.value - one.low), one.value + wider * (one.high - one.value)
    )


def level_of(critical: float, confidence: float) -> float:
    """Return the confidence of one interval among several with this joint critical value.

    Few blocks matter most far out: with 40 blocks and 12 slices, a correction at 95 % missed in 8 % of simulations.
    """
    return min(max(confidence, 2 * NormalDist().cdf(critical) - 1), _LARGEST_LEVEL)


def widening(blocks: int, confidence: float) -> float:
    """Return the factor on a half-width that corrects for few blocks: 1.03 for 61 blocks, 1.28 for 8, at 95 %.

    The factor is √(B/(B−1)), for the variance of a mean of B, times the ratio of Student's to the normal quantile
    (Cornish–Fisher expansion, within 1 % for 4 degrees of freedom or more).
    """
    free = blocks - 1
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    student = z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    student += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * free**3)
    return math.sqrt(blocks / free) * student / z


def _defined(one: Estimate) -> bool:
    if one.blocks <= 1 or not math.isfinite(one.value) or np.isinf(one.draws).any():
        return False
    return float(np.isnan(one.draws).mean()) <= UNDEFINED_SHARE


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
