"""Comparison of a canary with the champion: each watched metric as e-processes over the rows that they answered.

Here: bounded outcomes of a metric, and the verdict. Not here: rows (`canary_record`), what follows (`canary_watch`).
A canary counts as worse as soon as the e-process of one metric has reached the number of metrics / alpha, so the
probability of a wrong decision is at most alpha for all metrics together. `compare` adds rows to what an earlier look
counted. The largest value so far decides.

A second e-process bets against "the canary is worse by twice what is allowed, or more". When it reaches 1 / `MISSED`,
the canary counts as no worse. The first one goes on after that.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from ml_assets.model.release.rules import CanarySection, CanaryWatchSection
from ml_assets.use.live.e_process import Floats, Sides, Wealth, advance, block_ends

Verdict: TypeAlias = Literal["worse", "no worse", "undecided"]

MISSED = 0.1
"""Largest probability that a canary which is worse by twice the allowed difference counts as no worse."""
LATENCIES = 10_000
"""Newest latencies of a version that give its quantile."""


@dataclass(frozen=True, kw_only=True)
class Requests:
    """First requests of entities in the order in which they count, arrays `[requests]`."""

    is_canary: Sides
    failed: Sides
    latency_ms: Floats
    """NaN if it is not compared: the request failed, or had several rows."""


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """Answered rows whose label is known, in the order in which they count."""

    is_canary: Sides
    """`[rows]`."""
    prediction: Floats
    """`[rows]`, or `[rows, classes]`."""
    label: Floats
    """`[rows]`; of a class, its index, and -1 if the model does not know it."""
    weight: Floats | None = None
    """`[rows]`, above 0; None if the pipeline declares none."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Side(_Part):
    """Rows of one version in full blocks."""

    rows: int = 0
    weight: float = 0.0
    total: float = 0.0
    """Sum of the metric's values, by weight."""
    latencies: tuple[float, ...] = ()
    """Newest latencies in milliseconds; empty for other metrics."""


class MetricState(_Part):
    """One watched metric after the rows that counted so far: all that later rows need of them."""

    champion: Side = Side()
    canary: Side = Side()
    waiting: tuple[tuple[bool, float, float], ...] = ()
    """Rows after the last full block: True for the canary, value, weight."""
    worse: tuple[Wealth, ...] = ()
    """E-processes against "no worse than allowed"."""
    fine: Wealth = Wealth()
    """E-process against "worse by twice what is allowed"."""
    log_worse: float = Field(default=0.0, ge=0)
    """Logarithm of the largest value of the first so far."""
    log_fine: float = Field(default=0.0, ge=0)
    slow_above: float | None = None
    """Latency above which the champion's requests are slow; None without earlier blocks."""
    slow_of: int = 0
    """Champion's requests that gave it."""


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
    is_fine: bool
    """True if the canary is shown not to be worse by twice `no_worse_by`."""

    @property
    def is_worse(self) -> bool:
        """True if the canary is shown to be worse than allowed."""
        return self.log_e >= self.log_limit

    @property
    def verdict(self) -> Verdict:
        return "worse" if self.is_worse else "no worse" if self.is_fine else "undecided"

    def __str__(self) -> str:
        return (
            f"{self.metric}: {self.verdict}; canary {_figure(self.canary)} on {self.canary_rows} entities, champion "
            f"{_figure(self.champion)} on {self.champion_rows}; allowed difference {self.no_worse_by:g}; e-value "
            f"{_e_value(self.log_e)} of {_e_value(self.log_limit)}"
        )


@dataclass(frozen=True)
class _Rows:
    is_canary: Sides
    value: Floats
    weight: Floats

    def __getitem__(self, chosen: slice) -> "_Rows":
        return _Rows(self.is_canary[chosen], self.value[chosen], self.weight[chosen])


def compare(
    section: CanarySection,
    before: Sequence[MetricState],
    requests: Requests | None = None,
    labelled: Labelled | None = None,
) -> tuple[MetricState, ...]:
    """Return the state of each watched metric after further rows. `before` is empty at the first look.

    Raises `ValueError` for a value or a weight that is not finite.
    """
    found: list[MetricState] = []
    for watch, state in zip(section.watch, before or [MetricState()] * len(section.watch), strict=True):
        rows = _of_labels(watch, labelled) if watch.needs_labels else _of_requests(watch, requests)
        is_weighted = labelled is not None and labelled.weight is not None
        found.append(state if rows is None else _advanced(watch, state, rows, is_weighted))
    return tuple(found)


def comparisons(section: CanarySection, states: Sequence[MetricState]) -> tuple[Comparison, ...]:
    """Return the watched metrics for people; those without a row that has a value are in it with no rows.

    Rows and figures include the rows after the last full block, on which nothing is bet yet.
    """
    return tuple(
        _comparison(section, watch, state) for watch, state in zip(section.watch, states, strict=True)
    )


def _comparison(section: CanarySection, watch: CanaryWatchSection, state: MetricState) -> Comparison:
    open_rows = _rows_of(state.waiting)
    champion = _grown(watch, state.champion, open_rows, False)
    canary = _grown(watch, state.canary, open_rows, True)
    return Comparison(
        metric=f"latency_ms at quantile {watch.of_latency:g}"
        if watch.metric == "latency_ms"
        else watch.metric,
        champion_rows=champion.rows,
        canary_rows=canary.rows,
        champion=_shown(watch, champion),
        canary=_shown(watch, canary),
        log_e=state.log_worse,
        log_limit=math.log(len(section.watch) / section.alpha),
        no_worse_by=watch.no_worse_by,
        is_fine=state.log_fine >= -math.log(MISSED),
    )


def worst(compared: Sequence[Comparison]) -> Comparison | None:
    """Return the metric with the most evidence among those that show the canary to be worse; None if none does."""
    return max((one for one in compared if one.is_worse), key=lambda one: one.log_e, default=None)


def _advanced(watch: CanaryWatchSection, state: MetricState, new: _Rows, is_weighted: bool) -> MetricState:
    if not np.isfinite(new.value).all() or not np.isfinite(new.weight).all():
        raise ValueError(f"{watch.metric}: a value or a weight of a row is not a finite number")
    before = _rows_of(state.waiting)
    rows = _Rows(
        np.append(before.is_canary, new.is_canary),
        np.append(before.value, new.value),
        np.append(before.weight, new.weight),
    )
    ends = block_ends(rows.is_canary)
    counted = int(ends[-1]) + 1 if ends.size else 0
    left = rows[counted:]
    changed: dict[str, object] = {
        "champion": _grown(watch, state.champion, rows[:counted], False),
        "canary": _grown(watch, state.canary, rows[:counted], True),
        "waiting": tuple(
            zip(left.is_canary.tolist(), left.value.tolist(), left.weight.tolist(), strict=True)
        ),
    }
    rows = rows[:counted]
    if watch.metric == "latency_ms":
        outcome, changed["slow_above"], changed["slow_of"] = _slow(watch, state, rows, ends)
        margin, smallest = 0.0, 1 - watch.of_latency
        # Slow requests that are twice as frequent as the quantile says are the smallest difference that matters.
    elif watch.metric == "calibration":
        outcome, margin = (1 + rows.value) / 2, watch.no_worse_by / 2
        smallest = margin
    else:
        outcome, margin = rows.value / watch.range, watch.no_worse_by / watch.range
        smallest = margin
    weights = rows.weight if is_weighted else None

    def bet(
        wealth: Wealth, outcome: Floats, margin: float, smallest: float = smallest
    ) -> tuple[Wealth, Floats]:
        return advance(
            wealth, outcome, rows.is_canary, ends, margin=margin, smallest=smallest, weights=weights
        )

    if watch.metric == "calibration":
        # Its sides are four hypotheses; "no worse" would need an e-process against each, and has none.
        mirrored = np.where(rows.is_canary, outcome, 1 - outcome)
        after, series = zip(
            *(
                bet(wealth, one, margin)
                for wealth, one in zip(
                    state.worse or [Wealth()] * 4, (outcome, mirrored, 1 - outcome, 1 - mirrored), strict=True
                )
            ),
            strict=True,
        )
        log_worse = np.logaddexp(np.minimum(*series[:2]), np.minimum(*series[2:])) - math.log(2)
    else:
        (wealth, log_worse) = bet(state.worse[0] if state.worse else Wealth(), outcome, margin)
        after = (wealth,)
        at_most = margin + min(smallest, (1 - margin) / 2)
        changed["fine"], log_fine = bet(state.fine, 1 - outcome, -at_most, at_most - margin)
        changed["log_fine"] = max((state.log_fine, *log_fine.tolist()))
    changed |= {"worse": after, "log_worse": max((state.log_worse, *log_worse.tolist()))}
    return state.model_copy(update=changed)


def _rows_of(waiting: Sequence[tuple[bool, float, float]]) -> _Rows:
    return _Rows(
        np.array([one[0] for one in waiting], dtype=bool),
        np.array([one[1] for one in waiting], dtype=float),
        np.array([one[2] for one in waiting], dtype=float),
    )


def _grown(watch: CanaryWatchSection, side: Side, new: _Rows, is_canary: bool) -> Side:
    """Return a side with its rows among `new`."""
    chosen = new.is_canary == is_canary
    value, weight = new.value[chosen], new.weight[chosen]
    latencies = (*side.latencies, *value.tolist())[-LATENCIES:] if watch.metric == "latency_ms" else ()
    return Side(
        rows=side.rows + len(value),
        weight=side.weight + float(weight.sum()),
        total=side.total + float((value * weight).sum()),
        latencies=latencies,
    )


def _of_requests(watch: CanaryWatchSection, requests: Requests | None) -> _Rows | None:
    if requests is None:
        return None
    if watch.metric == "error_rate":
        return _Rows(requests.is_canary, requests.failed.astype(float), np.ones(len(requests.failed)))
    known = np.isfinite(requests.latency_ms)
    return _Rows(requests.is_canary[known], requests.latency_ms[known], np.ones(int(known.sum())))


def _slow(
    watch: CanaryWatchSection, state: MetricState, rows: _Rows, ends: npt.NDArray[np.intp]
) -> tuple[Floats, float | None, int]:
    """Return 1 for each champion's request above the champion's quantile, and for each canary's above it by more than
    allowed, then the quantile and the number of champion's requests behind it.

    The quantile is that of the champion's requests in earlier blocks, because a bet may not see its own block. If the
    canary's latency is that of the champion plus at most the allowed difference, its requests are 1 no more often. It
    is computed anew when the champion's requests have grown by a tenth.
    """
    seen_before, earlier = state.champion.rows, state.champion.latencies
    history = np.append(earlier, rows.value[~rows.is_canary])
    slow = np.zeros(len(rows.value))
    champions = np.cumsum(~rows.is_canary)
    limit = math.inf if state.slow_above is None else state.slow_above
    known, begin = state.slow_of, 0
    for end in ends.tolist():
        counted = int(champions[begin - 1]) if begin else 0
        if seen_before + counted > 1.1 * known:
            known = seen_before + counted
            newest = history[: len(earlier) + counted][-LATENCIES:]
            limit = float(np.quantile(newest, watch.of_latency))
        part = slice(begin, end + 1)
        slow[part] = rows.value[part] > limit + np.where(rows.is_canary[part], watch.no_worse_by, 0.0)
        begin = end + 1
    return slow, limit if math.isfinite(limit) else None, known


def _of_labels(watch: CanaryWatchSection, rows: Labelled | None) -> _Rows | None:
    if rows is None:
        return None
    weight = np.ones(len(rows.label)) if rows.weight is None else rows.weight
    if watch.metric == "calibration":
        return _Rows(rows.is_canary, _error(rows), weight)
    return _Rows(rows.is_canary, _loss(watch, rows), weight)


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


def _error(rows: Labelled) -> Floats:
    """Return prediction minus label of each row, from -1 to 1.

    Calibration compares the distance of mean prediction and observed rate, above and below. The canary's error e is
    further from 0 than the champion's error c by more than the allowed difference m if e > c + m and e > -c + m, or the
    same for -e. Otherwise one comparison of each pair is a true hypothesis, so the smaller e-process of the pair
    counts; the stake is divided between the two pairs. This takes for granted that the champion's mean error keeps its
    sign from block to block.
    """
    finite = np.where(np.isfinite(rows.prediction), rows.prediction, 1.0)
    return np.clip(finite, 0.0, 1.0) - rows.label


def _shown(watch: CanaryWatchSection, side: Side) -> float:
    """Return the metric of a side; NaN without rows."""
    if watch.metric == "latency_ms":
        return float(np.quantile(side.latencies, watch.of_latency)) if side.latencies else math.nan
    if not side.weight:
        return math.nan
    mean = side.total / side.weight
    return 1 - mean if watch.metric == "accuracy" else mean


def _figure(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "unknown"


def _e_value(log_e: float) -> str:
    return f"{math.exp(log_e):.3g}" if log_e < 20 else f"1e{log_e / math.log(10):.0f}"
