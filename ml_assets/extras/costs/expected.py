"""Expectation of a training before its launch: hours, money, and the wait for its start, from the history of its
pipeline.

Trainings that completed in this environment count: those of the same model function on as many workers if there are
enough, else all of the pipeline. The middle is the median. The interval is meant to hold four of five next values:

* From nine values on it lies between order statistics. If the next value is one of the same kind, it falls between the
  k-th smallest and the k-th largest of n with probability (n + 1 - 2k) / (n + 1), whatever the distribution (Wilks
  1941).
* Fewer values say nothing about their tenth parts, so their logarithms count as normal: mean ± t · s · √(1 + 1/n).

`benchmarks/claims/pipelines/expected.py` measures how many it holds. Not here: the records (model.steps.usage), prices.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from resources.artifacts import ArtifactsError
from resources.job.events import USAGE

if TYPE_CHECKING:
    from ml_assets.extras.costs.prices import PriceTable
    from ml_assets.model.steps.spec import PipelineSpec
    from ml_assets.model.steps.usage import UsageRecord
    from resources.platform import Platform

_TAIL = 0.1
"""Share of next values on each side of an interval."""
_T = (3.078, 1.886, 1.638, 1.533, 1.476, 1.440, 1.415)
"""Quantile 0.9 of Student's t with 1 to 7 degrees of freedom."""
_LEAST_ALIKE = 3
"""Trainings of the same kind from which others of the pipeline do not count."""
_NEWEST = 50
"""Newest trainings that count: a pipeline changes over the months."""


@dataclass(frozen=True, kw_only=True)
class ExpectedValue:
    """Expected value."""

    middle: float
    low: float | None
    """Lower end of the interval of 80 %; None from a single value."""
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """Expectation of a training that a launch would begin."""

    trainings: int = 0
    """Trainings that completed and count; 0: no history."""
    is_alike: bool = False
    """True if they had the same model function and as many workers; else they are all of the pipeline."""
    hours: ExpectedValue | None = None
    """Hours in which it holds places, with start and interruptions; None without a history."""
    money: ExpectedValue | None = None
    """By the declared prices of now; None without a table of prices."""
    currency: str = ""
    start_hours: ExpectedValue | None = None
    """Hours from the launch to its first place; None without a queue."""
    fault: str = ""
    """Reason for which the history could not be read."""


@dataclass(frozen=True, kw_only=True)
class PastTraining:
    """One training of the history."""

    at: float
    """Time of its end, for the order."""
    kind: tuple[str, int]
    """Model function or script, and workers."""
    hours: float
    money: float | None
    start_hours: float


def expected_of(platform: "Platform", spec: "PipelineSpec", partition: str) -> Expectation:
    """Return what a training of a pipeline at a partition is expected to take.

    A store that is away, a damaged record or a table of prices with a fault is a `fault` of the answer.
    """
    try:
        if not platform.artifacts.files(f"{USAGE}/{spec.name}"):
            return Expectation()  # most plans, without the imports for a record
    except ArtifactsError as error:
        return Expectation(fault=f"{error}")
    from ml_assets.extras.costs.costs import read_records
    from ml_assets.extras.costs.prices import PricesRefused, read_prices

    try:
        prices = read_prices(platform.settings.prices)
        records = read_records(platform.artifacts, platform.settings.environment, model=spec.name)
    except (ArtifactsError, PricesRefused) as error:
        return Expectation(fault=f"{error}")
    finished = [one for record in records if (one := _finished(record, prices)) is not None]
    has_queue = platform.settings.launcher == "kubernetes" and spec.resources.of(partition).queue is not None
    kind = (spec.model.function or spec.model.script or "", spec.training.workers)
    return expected_from(finished, kind, "" if prices is None else prices.currency, has_queue=has_queue)


def expected_from(
    finished: Sequence[PastTraining], kind: tuple[str, int], currency: str = "", *, has_queue: bool = False
) -> Expectation:
    """Return the expectation of a training of a `kind` from trainings of the same pipeline."""
    alike = [one for one in finished if one.kind == kind]
    is_alike = len(alike) >= _LEAST_ALIKE or len(alike) == len(finished)
    counting = sorted(alike if is_alike else finished, key=lambda one: one.at)[-_NEWEST:]
    if not counting:
        return Expectation()
    money = [one.money for one in counting if one.money is not None]
    return Expectation(
        trainings=len(counting),
        is_alike=is_alike,
        hours=estimate([one.hours for one in counting]),
        money=estimate(money) if money else None,
        currency=currency if money else "",
        start_hours=estimate([one.start_hours for one in counting]) if has_queue else None,
    )


def estimate(values: Sequence[float]) -> ExpectedValue:
    """Return median and interval of the next value; `values` are at least 0, one or more of them."""
    middle, count = statistics.median(values), len(values)
    if count == 1:
        return ExpectedValue(middle=middle, low=None, high=None)
    place = (count + 1) * _TAIL
    if place >= 1:
        in_order = sorted(values)
        return ExpectedValue(middle=middle, low=_at(in_order, place), high=_at(in_order, count + 1 - place))
    if not max(values):
        return ExpectedValue(middle=0.0, low=0.0, high=0.0)
    least = max(values) / 1000  # a wait may be 0, which has no logarithm
    logs = [math.log(max(one, least)) for one in values]
    mean, reach = statistics.fmean(logs), _T[count - 2] * statistics.stdev(logs) * math.sqrt(1 + 1 / count)
    low, high = math.exp(mean - reach), math.exp(mean + reach)
    return ExpectedValue(middle=middle, low=0.0 if low <= least else low, high=high)


def _at(in_order: Sequence[float], place: float) -> float:
    """Return the value at a place, counted from 1, between two neighbours."""
    before = math.floor(place)
    share = place - before
    after = min(before, len(in_order) - 1)
    return (1 - share) * in_order[before - 1] + share * in_order[after]


def _finished(record: "UsageRecord", prices: "PriceTable | None") -> PastTraining | None:
    from ml_assets.extras.costs.costs import cost_of

    if record.attempts[-1].state != "completed":
        return None
    return PastTraining(
        at=record.at,
        kind=(record.function, record.attempts[-1].workers),
        hours=(record.goodput.seconds - record.goodput.queue) / 3600,
        money=cost_of(record, prices).spent.money,
        start_hours=max(0.0, record.attempts[0].reading.began - record.launches[0].began) / 3600,
    )
