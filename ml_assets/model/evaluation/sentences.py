"""Sentences of a gate decision: measurement, requirement, value that would pass. Decides nothing."""

import math

from ml_assets.foundation.reports.numbers import decimals, number, share
from ml_assets.model.evaluation.bootstrap import Interval
from ml_assets.model.evaluation.gate import Comparator, Gate, Margin
from ml_assets.model.evaluation.metrics import MetricFacts

THE: dict[Comparator, str] = {
    "champion": "the champion",
    "baseline": "the naive baseline",
    "reference": "the reference model",
}


def with_interval(one: Interval, *, signed: bool = False, relative: bool = False) -> str:
    """Format a value with its interval: `0.7290 [0.7021, 0.7559]`."""
    write = share if relative else number
    value = write(one.value, signed=signed)
    if one.low is None or one.high is None:
        return value
    return f"{value} [{write(one.low, signed=signed)}, {write(one.high, signed=signed)}]"


def half_width(one: Interval) -> str:
    """Format the half-width as `± 0.0127`, with the decimals of the value; empty without an interval.

    Measured at the upper end, because the lower end may be cut to the metric's range.
    """
    if one.value is None or one.high is None:
        return ""
    return f"± {one.high - one.value:,.{decimals(one.value)}f}"


def gain(one: Interval, relative: bool) -> str:
    """Format an improvement with its interval, signed."""
    return with_interval(one, signed=True, relative=relative)


def asks(gate: Gate) -> str:
    """Return a rule's demand in a few words."""
    if gate.at_least is not None:
        return f"at least {number(gate.at_least)}"
    if gate.at_most is not None:
        return f"at most {number(gate.at_most)}"
    amount = gate.required_margin.amount
    size = (share if gate.required_margin.relative else number)(abs(amount))
    if amount == 0:
        return f"better than {gate.better_than}"
    return f"{f'> {size} better' if amount > 0 else f'< {size} worse'} than {gate.better_than}"


def value_rule(
    metric: MetricFacts, measured: Interval, limit: float, *, least: bool, where: str
) -> tuple[str, str]:
    """Return the explanation of a value threshold's result, and the condition under which it would pass."""
    asked = f"at {'least' if least else 'most'} {number(limit)}"
    explanation = f"{metric.label}{where} is {with_interval(measured)}; the rule requires {asked}"
    if measured.value is None:
        return (
            f"{metric.label}{where} is not defined on these rows; the rule requires {asked}",
            metric.defined_on,
        )
    short = limit - measured.value if least else measured.value - limit
    would = f"{metric.label} of {asked}, {number(abs(short))} {'more' if least else 'less'} than measured"
    return (f"{explanation}, missed by {number(short)}" if short > 0 else explanation), would


def infinite(metric: MetricFacts, asked: str, *, where: str) -> tuple[str, str]:
    """Return the explanation of a rule that an infinite value fails, and the condition under which it would pass."""
    return f"{metric.label}{where} is infinite; the rule requires {asked}", f"a finite {metric.label}"


def change_rule(
    metric: MetricFacts,
    comparator: Comparator,
    measured: Interval,
    margin: Margin,
    blocks: int,
    *,
    where: str,
    joint: int,
) -> tuple[str, str]:
    """Return the explanation of a change threshold's result, and the condition under which it would pass.

    The improvement `measured` has an interval.
    """
    write = share if margin.relative else number
    low, high, value = measured.low or 0.0, measured.high or 0.0, measured.value or 0.0
    asked = write(margin.amount, signed=True) if margin.amount else "zero"
    together = f" (intervals of {joint} slices hold jointly)" if joint > 1 else ""
    lead = f"improvement of {metric.label}{where} over {THE[comparator]} is {gain(measured, margin.relative)}{together}"
    if low > margin.amount:
        explanation = f"{lead}; the whole interval is above {asked}"
    elif high < margin.amount:
        conclusion = (
            "it is worse" if high < 0 else "it is better, but not enough" if low > 0 else "it is not enough"
        )
        explanation = f"{lead}; even its upper end is below {asked}: {conclusion}"
    else:
        explanation = f"{lead}; {asked} is inside the interval, so these {blocks} blocks cannot decide"
    needed = f"an interval entirely above {asked}: at this width an improvement above "
    needed += write(margin.amount + value - low, signed=True)
    if margin.amount < value < math.inf and low <= margin.amount:
        # The half-width shrinks with the square root of the number of blocks.
        times = ((value - low) / (value - margin.amount)) ** 2
        needed += f", or at this improvement a holdout about {max(times, 1.1):.2g} times as long"
    return explanation, needed
