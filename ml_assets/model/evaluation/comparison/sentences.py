"""Sentences of a gate decision, and about a whole evaluation and its training. Decides nothing."""

import math
from collections.abc import Sequence

from ml_assets.foundation.reports.text import count, decimals, number, share
from ml_assets.model.evaluation.evaluation_document import Evaluation
from ml_assets.model.evaluation.metrics.bootstrap import Interval
from ml_assets.model.evaluation.metrics.list_metrics import ListFigures
from ml_assets.model.evaluation.metrics.metrics import MetricFacts
from ml_assets.model.evaluation.report_document import Report
from ml_assets.model.evaluation.spec import Comparator, Gate, Margin

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


def gain(one: Interval, relative: bool = False) -> str:
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
    against: str,
    measured: Interval,
    margin: Margin,
    blocks: int,
    *,
    where: str,
    joint: int,
) -> tuple[str, str]:
    """Return the explanation of a change threshold's result, and the condition under which it would pass.

    The improvement `measured` on the model `against`, in words, has an interval.
    """
    write = share if margin.relative else number
    low, high, value = measured.low or 0.0, measured.high or 0.0, measured.value or 0.0
    asked = write(margin.amount, signed=True) if margin.amount else "zero"
    together = f" (intervals of {joint} slices hold jointly)" if joint > 1 else ""
    lead = (
        f"improvement of {metric.label}{where} over {against} is {gain(measured, margin.relative)}{together}"
    )
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


def no_error(evaluation: Evaluation) -> str:
    """Return the warning about a challenger without an error on the whole holdout; empty for any other."""
    if not evaluation.decision.no_error:
        return ""
    return (
        f"The model makes no error on the {evaluation.rows:,} rows of the holdout. A real label is rarely so clear: "
        "look for a column that is known only with the label (ml-assets leaktest TABLE) before you rely on the model."
    )


def comparator_of(evaluation: Evaluation) -> Comparator:
    """Return the challenger's main comparator: the champion if it was measured here, otherwise the baseline."""
    return "champion" if "champion" in evaluation.overall.improvements else "baseline"


def plain_findings(evaluation: Evaluation) -> list[str]:
    """Return one sentence per comparator with the result of the comparison, for someone who reads nothing else."""
    found: list[str] = []
    if warning := no_error(evaluation):
        found.append(warning)
    if evaluation.champion_cannot_score:
        found.append(f"The challenger is not compared with the champion: {evaluation.champion_cannot_score}.")
    for comparator, improvements in evaluation.overall.improvements.items():
        if comparator == "champion" and evaluation.champion_seen:
            continue  # not a fair comparison; the decision explains why
        better: list[str] = []
        worse: list[str] = []
        level: list[str] = []
        for metric in evaluation.of_quality:
            one = improvements[metric.name]
            if one.low is None or one.high is None:
                continue
            (better if one.low > 0 else worse if one.high < 0 else level).append(metric.label)
        parts = [
            f"{how} in {_list(which)}"
            for how, which in (("better", better), ("worse", worse), ("not distinguishable", level))
            if which
        ]
        if comparator == "reference" and worse and not better:
            found.append(_reference_is_better(evaluation))
        elif parts:
            found.append(f"Against {THE[comparator]} the challenger is {'; '.join(parts)}.")
    return found


def lists_in_words(figures: ListFigures) -> str:
    """Return the number of lists, and the lists that no metric counts with the reason, as sentences."""
    reasons = {
        "a single row": figures.one_row,
        "no relevant row": figures.none_relevant,
        "rows of equal relevance": figures.equally_relevant,
    }
    unmeasured = sum(reasons.values())
    said = f"{count(figures.lists)} lists."
    if not unmeasured:
        return said
    why = ", ".join(f"{count(lists)} with {reason}" for reason, lists in reasons.items() if lists)
    return f"{said} Any order of {count(unmeasured)} of them is as good as any other, so no metric counts them: {why}."


def weighted(report: Report) -> str:
    """Return sentences about the weights of the rows, and about models trained with other weights than the challenger.

    Empty if each row counts once, here and in all trainings.
    """
    evaluation, said = report.evaluation, list[str]()
    if evaluation.weight:
        said.append(
            f"Rows are weighted by the column {evaluation.weight}, in the challenger's training as well: all metrics, "
            "means and shares use the weights, numbers of rows do not."
        )
    trained = {one.name: one.weight for one in report.compared if not one.cannot_score}
    if "champion" in evaluation.names:
        trained = {f"the {evaluation.names['champion']}": evaluation.champion_weight, **trained}
    for name, column in trained.items():
        if column != evaluation.weight:
            how = f"weighted rows by the column {column}" if column else "did not weight rows"
            said.append(f"The training of {name} {how}.")
    return " ".join(said)


def _reference_is_better(evaluation: Evaluation) -> str:
    metrics, improvements = evaluation.overall.metrics, evaluation.overall.improvements["reference"]
    by_metric = [
        f"{metric.label} {number(metrics['reference'][metric.name].value)} "
        f"against {number(metrics['challenger'][metric.name].value)}"
        for metric in evaluation.of_quality
        if (high := improvements[metric.name].high) is not None and high < 0
    ]
    return f"A {evaluation.names['reference']} is better: {', '.join(by_metric)}."


def survived(report: Report) -> str:
    """Return the total cost of the training's interruptions in one sentence; empty without interruptions."""
    told = report.recoveries
    if not told:
        return ""
    counts = [one.rows_repeated for one in told if one.rows_repeated is not None]
    twice = (
        f"{count(sum(counts))} rows trained twice"
        if len(counts) == len(told)
        else "repeated rows not counted"
    )
    left_out = "" if report.rows_lost is None else f", {count(report.rows_lost)} left out"
    return (
        f"interrupted {'once' if len(told) == 1 else f'{len(told)} times'}, "
        f"{sum(one.seconds for one in told):,.1f} s until it trained again, "
        f"{count(sum(one.steps_lost for one in told))} steps repeated, {twice}{left_out}"
    )


def left_out(report: Report) -> list[str]:
    """Return one sentence per split that left out rows, with their number and the reasons."""
    return [
        f"{count(one.lost)} of {count(one.rows + one.lost)} {one.split} rows are left out: "
        + ", ".join(f"{reason} ({count(rows)})" for reason, rows in one.left_out.items())
        + f". A label of this split counts if it was known by {one.known_by_in_words}."
        for one in report.splits
        if one.lost
    ]


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
