"""Chapter about thresholds and their costs: of the report, the asset page and the model card."""

from collections.abc import Iterator

from ml_assets.foundation.reports.numbers import number, share
from ml_assets.foundation.reports.written_page import Chapter, Grid, Paragraph
from ml_assets.model.evaluation.sentences import with_interval
from ml_assets.model.evaluation.thresholds import ThresholdFigures, ThresholdTable
from resources.words import counted


def threshold_chapters(table: ThresholdTable | None) -> Iterator[Chapter]:
    """Yield the chapter of a pipeline with `costs`."""
    if table is None:
        return
    columns = ("threshold", "decided positive", "precision", "recall", "cost of 1,000 rows", "")
    rows = tuple(_row(one, table) for one in table.listed)
    yield Chapter(
        "Thresholds",
        (Grid(columns, rows, numbers=frozenset({0, 1, 2, 3, 4})), Paragraph(_summary(table))),
        f"decided positive from this probability; {_declared(table)}",
    )


def _row(one: ThresholdFigures, table: ThresholdTable) -> tuple[str, ...]:
    return (
        "no row" if one.threshold is None else "all rows" if one.threshold == 0 else number(one.threshold),
        share(one.positive),
        share(one.precision),
        share(one.recall),
        with_interval(one.cost),
        "chosen" if one == table.chosen else "",
    )


def _summary(table: ThresholdTable) -> str:
    chosen, costs = table.chosen, table.declared
    at = (
        "deciding no row positive"
        if chosen.threshold is None
        else f"the threshold {number(chosen.threshold)}"
    )
    unit = f" {costs.unit}" if costs.unit else ""
    return (
        f"On {counted(table.validation_rows, 'validation row')}, {at} costs least. On the holdout it costs "
        f"{with_interval(chosen.cost)}{unit} for 1,000 rows. With exact probabilities the cheapest threshold would be "
        f"{number(costs.break_even)}."
    )


def _declared(table: ThresholdTable) -> str:
    costs = table.declared
    unit = f" {costs.unit}" if costs.unit else ""
    parts = [f"a false positive costs {costs.false_positive:g}{unit}"]
    if costs.false_negative:
        parts.append(f"a false negative {costs.false_negative:g}{unit}")
    if costs.benefit:
        parts.append(f"a true positive gains {costs.benefit:g}{unit}")
    return ", ".join(parts)
