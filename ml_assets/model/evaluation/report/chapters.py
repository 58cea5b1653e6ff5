"""Chapters that report, asset page and model card share. Each yields nothing if its part was not measured."""

from collections.abc import Iterator

from ml_assets.foundation.objective_facts import ObjectiveName, facts_of
from ml_assets.foundation.reports.page import Block, Chapter, Drawing, Grid, Paragraph
from ml_assets.foundation.reports.text import count, number, share
from ml_assets.model.evaluation.comparison.sentences import gain, with_interval
from ml_assets.model.evaluation.evaluation_document import (
    BiasFigures,
    Evaluation,
    GroupFigures,
    Part,
    Role,
    ServingCost,
)
from ml_assets.model.evaluation.metrics.bootstrap import Interval
from ml_assets.model.evaluation.metrics.metrics import metric_named
from ml_assets.model.evaluation.report.pictures import dependence_drawn_later
from ml_assets.model.evaluation.report_document import (
    Explanations,
    NaiveChoice,
    ThresholdFigures,
    ThresholdTable,
    WorstSlice,
    WorstSlices,
)
from resources.words import counted


def naive_chapters(choice: NaiveChoice | None, objective: ObjectiveName) -> Iterator[Chapter]:
    """Yield the chapter of a pipeline with `baseline.entity`."""
    if choice is None:
        return
    metric = metric_named(choice.metric, objective)
    rows = tuple(
        (one.name, number(one.value), "naive baseline" if one.name == choice.chosen else "")
        for one in choice.guesses
    )
    arrow = "↑" if metric.higher_is_better else "↓"
    yield Chapter(
        "Naive guesses",
        (Grid(("guess", f"{metric.label} {arrow}", ""), rows, numbers=frozenset({1})),),
        f"on {counted(choice.rows, 'validation row')}; the best one is the naive baseline. A label counts for a row if "
        "it was known when the row was predicted",
    )


def threshold_chapters(table: ThresholdTable | None) -> Iterator[Chapter]:
    """Yield the chapter of a pipeline with `costs`."""
    if table is None:
        return
    columns = ("threshold", "decided positive", "precision", "recall", "cost of 1,000 rows", "")
    rows = tuple(_threshold_row(one, table) for one in table.listed)
    yield Chapter(
        "Thresholds",
        (Grid(columns, rows, numbers=frozenset({0, 1, 2, 3, 4})), Paragraph(_of_thresholds(table))),
        f"decided positive from this probability; {_declared_costs(table)}",
    )


def _threshold_row(one: ThresholdFigures, table: ThresholdTable) -> tuple[str, ...]:
    return (
        "no row" if one.threshold is None else "all rows" if one.threshold == 0 else number(one.threshold),
        share(one.positive),
        share(one.precision),
        share(one.recall),
        with_interval(one.cost),
        "chosen" if one == table.chosen else "",
    )


def _of_thresholds(table: ThresholdTable) -> str:
    chosen, costs = table.chosen, table.declared
    at = f"the threshold {number(chosen.threshold)}"
    if chosen.threshold is None:
        at = "deciding no row positive"
    unit = f" {costs.unit}" if costs.unit else ""
    return (
        f"On {counted(table.validation_rows, 'validation row')}, {at} costs least. On the holdout it costs "
        f"{with_interval(chosen.cost)}{unit} for 1,000 rows. With exact probabilities the cheapest threshold would be "
        f"{number(costs.break_even)}."
    )


def _declared_costs(table: ThresholdTable) -> str:
    costs = table.declared
    unit = f" {costs.unit}" if costs.unit else ""
    parts = [f"a false positive costs {costs.false_positive:g}{unit}"]
    if costs.false_negative:
        parts.append(f"a false negative {costs.false_negative:g}{unit}")
    if costs.benefit:
        parts.append(f"a true positive gains {costs.benefit:g}{unit}")
    return ", ".join(parts)


MOST_COLUMNS = 15
"""Columns that a page shows: the most important ones. `evaluation.json` has all."""


def explanation_chapters(found: Explanations | None, objective: ObjectiveName) -> Iterator[Chapter]:
    """Yield the chapter of a pipeline with `explanations`."""
    if found is None:
        return
    metric = metric_named(found.metric, objective)
    shown = found.columns[:MOST_COLUMNS]
    rows = tuple((one.column, with_interval(one.added, signed=True)) for one in shown)
    change = "lost" if metric.higher_is_better else "added"
    blocks: list[Block] = [Grid(("column", f"{change} {metric.label}"), rows, numbers=frozenset({1}))]
    if hidden := len(found.columns) - len(shown):
        blocks.append(Paragraph(f"{counted(hidden, 'less important column')} in evaluation.json."))
    blocks += [
        Drawing(name, draw, "Mean prediction if all rows had this value.")
        for name, draw in dependence_drawn_later(found, "svg").items()
    ]
    yield Chapter(
        "Columns the model uses",
        tuple(blocks),
        f"{metric.label} that is {change} if a column is shuffled among {counted(found.rows, 'holdout row')}; "
        "intervals hold jointly; correlated columns share their importance",
    )


MOST_GROUPS_SHOWN = 20
"""Groups of a column that a page shows: those with most rows. `evaluation.json` has all."""


def bias_chapters(evaluation: Evaluation) -> Iterator[Chapter]:
    """Yield a chapter for each column of `bias`."""
    for one in evaluation.bias:
        yield Chapter(
            f"Decisions by {one.declared.column}",
            tuple(_groups(one)),
            f"of this model: positive from a probability of {one.declared.threshold:g}; intervals hold jointly; the "
            "differences are among the metrics",
        )


def _groups(one: BiasFigures) -> Iterator[Block]:
    most = sorted(one.groups, key=lambda group: -group.decided_positive.rows)[:MOST_GROUPS_SHOWN]
    rows = tuple(_group_row(group) for group in one.groups if group in most)
    columns = (
        "group",
        "rows",
        "decided positive",
        "rows of label 1",
        "of these decided positive",
        "not compared",
    )
    yield Grid(columns, rows, numbers=frozenset({1, 2, 3, 4}))
    if hidden := len(one.groups) - len(most):
        yield Paragraph(f"{hidden} smaller groups are in evaluation.json.")


def _group_row(group: GroupFigures) -> tuple[str, ...]:
    every, positives = group.decided_positive, group.true_positives
    left_out = (("parity", every.left_out), ("opportunity", positives.left_out))
    return (
        group.name,
        *(
            cell
            for of in (every, positives)
            for cell in (count(of.rows), with_interval(of.share, relative=True))
        ),
        "; ".join(f"{name}: {why}" for name, why in left_out if why),
    )


MOST_CALIBRATED = 12
"""Slices that a page shows: those that are most certainly off."""
_ECE = "ece"


def calibration_chapters(evaluation: Evaluation) -> Iterator[Chapter]:
    """Yield the chapter, if a slice was measured."""
    measured = [(part, part.calibration) for part in evaluation.slices if part.calibration is not None]
    if measured:
        yield Chapter(
            "Calibration by slice",
            tuple(_slice_calibration(measured, evaluation)),
            f"{facts_of(evaluation.objective).calibration}, of this model; {evaluation.confidence:.0%} intervals "
            "that hold jointly for all slices",
        )


def _slice_calibration(measured: list[tuple[Part, Interval]], evaluation: Evaluation) -> Iterator[Block]:
    off = sum(bool(direction(one)) for _, one in measured)
    whole = evaluation.overall.calibration
    yield Paragraph(
        f"{count(off) if off else 'None'} of {counted(len(measured), 'slice')} {'are' if off > 1 else 'is'} off by "
        f"more than chance. All rows: {gain(whole) if whole else '–'}."
    )
    shown = sorted(measured, key=lambda one: _certainty(one[1]), reverse=True)[:MOST_CALIBRATED]
    has_ece = any(metric.name == _ECE for metric in evaluation.measured)
    rows = tuple(
        (
            f"{part.slice}={part.value}",
            count(part.rows),
            gain(one),
            direction(one),
            *([with_interval(part.metrics["challenger"][_ECE])] if has_ece else []),
        )
        for part, one in shown
    )
    columns = (
        "slice",
        "rows",
        "predicted − observed",
        "",
        *(["calibration error (each slice alone)"] if has_ece else []),
    )
    yield Grid(columns, rows, numbers=frozenset({1}))
    if hidden := len(measured) - len(shown):
        yield Paragraph(f"{counted(hidden, 'slice')} that are less certainly off are in evaluation.json.")


def direction(one: Interval) -> str:
    """Return `too high` or `too low` if the whole interval says so; else nothing."""
    if one.low is None or one.high is None:
        return ""
    return "too high" if one.low > 0 else "too low" if one.high < 0 else ""


def _certainty(one: Interval) -> float:
    """Return the distance from 0 in half-widths; 0 without an interval."""
    if one.value is None or one.high is None:
        return 0.0
    half = one.high - one.value
    return abs(one.value) / half if half > 0 else float("inf") if one.value else 0.0


def worst_slices_chapters(found: WorstSlices | None) -> Iterator[Chapter]:
    """Yield the chapter, unless nothing was looked for. It says how many slices were looked at if none is worse."""
    if found is None:
        return
    yield Chapter(
        "Worst slices found",
        tuple(_worst(found)),
        f"mean {found.loss} of a row, here and on all other rows; {found.confidence:.0%} intervals, which hold jointly "
        "for all slices looked at",
    )


def _worst(found: WorstSlices) -> Iterator[Block]:
    looked_at = (
        f"{counted(found.candidates, 'slice')} of at least {count(found.least_rows)} rows, of one or two of "
        f"{counted(len(found.columns), 'column')}, were looked at"
    )
    if found.paired < len(found.columns):
        looked_at += f" (pairs of the first {found.paired})"
    if not found.worse:
        yield Paragraph(f"{looked_at}: none is worse than the other rows by more than chance.")
        return
    listed = (
        "; the most certain of them that share few rows are listed" if found.worse > len(found.shown) else ""
    )
    yield Paragraph(
        f"{looked_at}; {count(found.worse)} {'is' if found.worse == 1 else 'are'} worse than the other rows{listed}. "
        "Rows can be hard for every model: compare with the others on the same rows."
    )
    others: list[Role] = [role for role in found.shown[0].losses if role != "challenger"]
    columns = ("slice", "rows", "this model", "on other rows", "difference", *others)
    rows = tuple(
        (
            name_of(one),
            count(one.rows),
            number(one.losses["challenger"]),
            number(one.elsewhere),
            gain(one.difference),
            *(number(one.losses[role]) for role in others),
        )
        for one in found.shown
    )
    yield Grid(columns, rows, numbers=frozenset({1, 2, 3, *range(5, 5 + len(others))}))


def name_of(one: WorstSlice) -> str:
    """Return the slice in words: `dep_hour=18 to 23, origin=EWR`."""
    return ", ".join(f"{column}={part}" for column, part in one.where)


def serving_chapters(cost: ServingCost | None) -> Iterator[Chapter]:
    """Yield the chapter, if the cost was measured."""
    if cost is None:
        return
    rows = tuple(
        (called, count(one.rows), count(one.calls), f"{number(one.p50_ms)} ms", f"{number(one.p99_ms)} ms")
        for called, one in (("one row", cost.row), ("a batch", cost.batch))
    )
    threads = counted(cost.threads, "thread")
    yield Chapter(
        "Serving",
        (
            Grid(("call", "rows", "calls", "p50", "p99"), rows, numbers=frozenset({1, 2, 3, 4})),
            Paragraph(f"The bundle has {number(cost.bundle_bytes / 1e6)} MB."),
        ),
        f"by the bundle's own runtime on {threads} of {cost.machine}, in the process of this evaluation",
    )
