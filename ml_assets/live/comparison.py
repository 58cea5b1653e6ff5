"""Comparison of a canary with the champion: each watched metric as an e-process over the rows that they answered.

Here: bounded outcomes of a metric, and the decision. Not here: the rows (`canary_rows`), what follows (`canary_watch`).
A canary counts as worse as soon as the e-process of one metric has reached the number of metrics / alpha, so the
probability of a wrong decision is at most alpha for all metrics together. That holds if rows are only ever appended to
those that were compared before: each comparison begins at the first row and counts the largest value so far.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ml_assets.live.e_process import block_ends, log_e_process
from ml_assets.release.rules import CanarySection, CanaryWatchSection

Floats: TypeAlias = npt.NDArray[np.float64]
Sides: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Requests:
    """Requests in order of arrival, arrays `[requests]`."""

    is_canary: Sides
    failed: Sides
    latency_ms: Floats


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """Answered rows whose label is known, in the order in which they count."""

    is_canary: Sides
    """`[rows]`."""
    prediction: Floats
    """`[rows]`, or `[rows, classes]`."""
    label: Floats
    """`[rows]`; of a class, its index, and -1 if the model does not know it."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One watched metric so far."""

    metric: str
    champion_rows: int
    canary_rows: int
    champion: float
    """Metric of the champion's rows; NaN without rows."""
    canary: float
    log_e: float
    """Logarithm of the largest value that the e-process has had."""
    log_limit: float
    """Logarithm of the value at which the canary counts as worse."""
    no_worse_by: float

    @property
    def is_worse(self) -> bool:
        """True if the canary is shown to be worse than allowed."""
        return self.log_e >= self.log_limit

    def __str__(self) -> str:
        """Return the figures in one line."""
        return (
            f"{self.metric}: canary {_figure(self.canary)} on {self.canary_rows} rows, champion "
            f"{_figure(self.champion)} on {self.champion_rows}; allowed difference {self.no_worse_by:g}; e-value "
            f"{_e_value(self.log_e)} of {_e_value(self.log_limit)}"
        )


def compare(section: CanarySection, requests: Requests, labelled: Labelled | None) -> tuple[Comparison, ...]:
    """Compare the versions by each watched metric; metrics of labels are left out if `labelled` is None."""
    limit = math.log(len(section.watch) / section.alpha) if section.watch else math.inf
    found: list[Comparison] = []
    for watch in section.watch:
        if not watch.needs_labels:
            found.append(_of_requests(watch, requests, limit))
        elif labelled is not None:
            found.append(_of_labels(watch, labelled, limit))
    return tuple(found)


def worst(compared: Sequence[Comparison]) -> Comparison | None:
    """Return the metric with the most evidence among those that show the canary to be worse; None if none does."""
    return max((one for one in compared if one.is_worse), key=lambda one: one.log_e, default=None)


def _of_requests(watch: CanaryWatchSection, requests: Requests, limit: float) -> Comparison:
    if watch.metric == "error_rate":
        outcome = requests.failed.astype(float)
        log_e = log_e_process(
            outcome, requests.is_canary, margin=watch.no_worse_by, smallest=watch.no_worse_by
        )
        return _compared(watch, requests.is_canary, outcome, log_e, limit)
    answered = ~requests.failed
    is_canary, latency = requests.is_canary[answered], requests.latency_ms[answered]
    slow = _slower_than_champion(latency, is_canary, watch.of_latency, watch.no_worse_by)
    # Slow requests that are twice as frequent as the quantile says are the smallest difference that matters.
    log_e = log_e_process(slow, is_canary, margin=0.0, smallest=1 - watch.of_latency)
    return Comparison(
        metric=f"latency_ms at quantile {watch.of_latency:g}",
        champion_rows=int((~is_canary).sum()),
        canary_rows=int(is_canary.sum()),
        champion=_quantile(latency[~is_canary], watch.of_latency),
        canary=_quantile(latency[is_canary], watch.of_latency),
        log_e=max((0.0, *log_e.tolist())),
        log_limit=limit,
        no_worse_by=watch.no_worse_by,
    )


def _slower_than_champion(latency: Floats, is_canary: Sides, quantile: float, more: float) -> Floats:
    """Return 1 for each champion's request above the champion's quantile, and for each canary's above it by `more`.

    The quantile is that of the champion's requests in earlier blocks, because a bet may not see its own block. If the
    canary's latency is that of the champion plus at most `more`, its requests are 1 no more often. It is computed anew
    when the champion's requests have grown by a tenth.
    """
    slow = np.zeros(len(latency))
    begins = np.append(0, block_ends(is_canary) + 1)
    champions = np.cumsum(~is_canary)
    known, limit = 0, math.inf
    for begin, end in zip(begins, np.append(begins[1:], len(latency)), strict=True):
        before = int(champions[begin - 1]) if begin else 0
        if before > 1.1 * known:
            known, limit = before, _quantile(latency[:begin][~is_canary[:begin]], quantile)
        slow[begin:end] = latency[begin:end] > limit + np.where(is_canary[begin:end], more, 0.0)
    return slow


def _of_labels(watch: CanaryWatchSection, rows: Labelled, limit: float) -> Comparison:
    if watch.metric == "calibration":
        return _of_calibration(watch, rows, limit)
    loss = _loss(watch, rows)
    margin = watch.no_worse_by / watch.range
    log_e = log_e_process(loss / watch.range, rows.is_canary, margin=margin, smallest=margin)
    value = 1 - loss if watch.metric == "accuracy" else loss
    return _compared(watch, rows.is_canary, value, log_e, limit)


def _loss(watch: CanaryWatchSection, rows: Labelled) -> Floats:
    """Return the loss of each row, from 0 to `watch.range`; larger is worse. A prediction that is no number costs most.

    Otherwise a canary that answers NaN could never be compared.
    """
    prediction, label = rows.prediction, rows.label
    match watch.metric:
        case "brier":
            loss = (prediction - label) ** 2
        case "mae":
            loss = np.abs(prediction - label)
        case "accuracy":
            loss = (prediction.argmax(axis=1) != label).astype(float)
        case _:
            loss = -np.log(np.maximum(_probability_of_label(prediction, label), 1e-300))
    finite = np.isfinite(prediction if prediction.ndim == 1 else prediction.sum(axis=1))
    return np.where(finite, np.clip(loss, 0.0, watch.range), watch.range)


def _probability_of_label(prediction: Floats, label: Floats) -> Floats:
    if prediction.ndim == 1:
        return np.where(label == 1, prediction, 1 - prediction)
    known = label >= 0
    chosen = prediction[np.arange(len(label)), np.where(known, label, 0).astype(int)]
    return np.where(known, chosen, 0.0)


def _of_calibration(watch: CanaryWatchSection, rows: Labelled, limit: float) -> Comparison:
    """Compare the distance of mean prediction and observed rate, above and below.

    The canary's error e is further from 0 than the champion's error c by more than the allowed difference m if
    e > c + m and e > -c + m, or the same for -e. Otherwise one comparison of each pair is a true hypothesis, so the
    smaller e-process of the pair counts; the stake is divided between the two pairs. This takes for granted that the
    champion's mean error keeps its sign from block to block.
    """
    error = np.clip(np.where(np.isfinite(rows.prediction), rows.prediction, 1.0), 0.0, 1.0) - rows.label
    mirrored = np.where(rows.is_canary, error, -error)
    margin = watch.no_worse_by / 2

    def shown(signed: Floats) -> Floats:
        return log_e_process((1 + signed) / 2, rows.is_canary, margin=margin, smallest=margin)

    sides = [np.minimum(shown(sign * error), shown(sign * mirrored)) for sign in (1.0, -1.0)]
    log_e = np.logaddexp(*sides) - math.log(2)
    return _compared(watch, rows.is_canary, error, log_e, limit)


def _compared(
    watch: CanaryWatchSection, is_canary: Sides, values: Floats, log_e: Floats, limit: float
) -> Comparison:
    return Comparison(
        metric=watch.metric,
        champion_rows=int((~is_canary).sum()),
        canary_rows=int(is_canary.sum()),
        champion=_mean(values[~is_canary]),
        canary=_mean(values[is_canary]),
        log_e=max((0.0, *log_e.tolist())),
        log_limit=limit,
        no_worse_by=watch.no_worse_by,
    )


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else math.nan


def _quantile(values: Floats, share: float) -> float:
    return float(np.quantile(values, share)) if len(values) else math.inf


def _figure(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "unknown"


def _e_value(log_e: float) -> str:
    return f"{math.exp(log_e):.3g}" if log_e < 20 else f"1e{log_e / math.log(10):.0f}"
