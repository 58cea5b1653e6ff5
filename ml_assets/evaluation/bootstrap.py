"""Redraws of whole blocks, and the intervals read from them. What a metric is does not belong here.

Flights of one day share its weather, so their errors are not independent: resampling single rows makes
intervals several times too narrow. Whole blocks (days) are drawn with replacement instead, the same draws for
every model and every slice, so that differences are paired.

The interval is symmetric about the measured value: measured ± the half-width that holds `confidence` of the
redraws. Two reasons against plain percentiles: it always contains the measured value (the redraws of a
calibration error lie above it), and it extends to several slices at once (`joint_intervals`). Few blocks make
redraws too narrow; the half-width is widened by √(B/(B−1)) and the ratio of Student's to the normal quantile.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from ml_assets.evaluation.block_counts import BlockForm, Matrix
from ml_assets.evaluation.metrics import Vector

UNDEFINED_SHARE = 0.05
"""A metric that is undefined (one class only) in more than this share of redraws gets no interval."""


@dataclass(frozen=True)
class Interval:
    """A measured value and where it could as well have been; None where that is not defined."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Sample:
    """A statistic on the holdout and on each redraw of its blocks."""

    value: float
    draws: Vector
    """`[D]`, NaN where a redraw leaves the statistic undefined."""
    blocks: int
    """Blocks that hold rows of it."""


def draw_blocks(blocks: int, draws: int, seed: int) -> Matrix:
    """Return the number of times each block is drawn, float64 `[draws, blocks]`; each row sums to `blocks`."""
    generator = np.random.default_rng(seed)
    return generator.multinomial(blocks, np.full(blocks, 1 / blocks), size=draws).astype(np.float64)


def sample(form: BlockForm, counts: Matrix, blocks: int) -> Sample:
    """Measure `form` on the holdout as it is and on every redraw in `counts` `[D, B]`."""
    measured = form(np.ones((1, counts.shape[1])))
    return Sample(float(measured[0]), form(counts), blocks)


def paired(
    challenger: Sample, reference: Sample, *, higher_is_better: bool, relative: bool = False
) -> Sample:
    """The improvement of the challenger over the reference, positive where better, redraw by redraw.

    `relative`: as a share of the reference's own value (0.005 for half a percent).
    """
    sign = 1.0 if higher_is_better else -1.0
    value = sign * (challenger.value - reference.value)
    draws = sign * (challenger.draws - reference.draws)
    if relative:
        draws = draws / np.where(reference.draws != 0, np.abs(reference.draws), np.nan)
        value = value / abs(reference.value) if reference.value else math.nan
    return Sample(value, draws, challenger.blocks)


def interval(
    one: Sample, confidence: float, *, lowest: float = -math.inf, highest: float = math.inf
) -> Interval:
    """The interval of one statistic, cut to its range."""
    (found,) = joint_intervals([one], confidence)
    if found.low is None or found.high is None:
        return found
    return Interval(found.value, max(found.low, lowest), min(found.high, highest))


def joint_intervals(samples: Sequence[Sample], confidence: float) -> list[Interval]:
    """Intervals that hold together: in `confidence` of the redraws *all* statistics lie within theirs.

    Each is `value ± c × standard error` with one c for all (the max-t method), so looking at fourteen
    carriers does not find one of them worse by luck. For one statistic it is its plain symmetric interval.
    """
    usable = [one for one in samples if _defined(one)]
    if not usable:
        return [Interval(_finite(one.value)) for one in samples]
    distance = np.stack([np.abs(one.draws - one.value) for one in usable])
    errors = np.sqrt(np.nanmean(distance**2, axis=1))
    # A statistic that never moves (a model against itself) has no error; any scale will do for it.
    scale = np.where(errors > 0, errors, 1.0)
    farthest = np.where(np.isnan(distance), -1.0, distance / scale[:, None]).max(axis=0)
    critical = float(np.quantile(farthest[farthest >= 0], confidence))
    intervals: list[Interval] = []
    for one in samples:
        if not _defined(one):
            intervals.append(Interval(_finite(one.value)))
            continue
        error = float(np.sqrt(np.nanmean((one.draws - one.value) ** 2)))
        half = critical * error * widening(one.blocks, confidence)
        intervals.append(Interval(one.value, one.value - half, one.value + half))
    return intervals


def widening(blocks: int, confidence: float) -> float:
    """Factor on a half-width that makes up for few blocks; 1.03 for 61 blocks, 1.28 for 8, at 95 %.

    √(B/(B−1)) for the variance of a mean of B, times Student's quantile over the normal one (Cornish–Fisher
    expansion, within 1 % from 4 degrees of freedom on).
    """
    free = blocks - 1
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    student = z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    student += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * free**3)
    return math.sqrt(blocks / free) * student / z


def _defined(one: Sample) -> bool:
    return (
        one.blocks > 1 and math.isfinite(one.value) and float(np.isnan(one.draws).mean()) <= UNDEFINED_SHARE
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
