"""Chapters about the decisions for each group: of the report, the asset page and the model card."""

from collections.abc import Iterator

from ml_assets.foundation.reports.numbers import count, share
from ml_assets.foundation.reports.written_page import Block, Chapter, Grid, Paragraph
from ml_assets.model.evaluation.bootstrap import Interval
from ml_assets.model.evaluation.evaluation_document import BiasFigures, Evaluation, GroupFigures

MOST_GROUPS = 20
"""Groups of a column that a page shows: those with most rows. `evaluation.json` has all."""


def bias_chapters(evaluation: Evaluation) -> Iterator[Chapter]:
    """Yield a chapter for each column of `bias`."""
    for one in evaluation.bias:
        yield Chapter(
            f"Decisions by {one.declared.column}",
            tuple(_blocks(one)),
            f"of this model: positive from a probability of {one.declared.threshold:g}; intervals hold jointly; the "
            "differences are among the metrics",
        )


def _blocks(one: BiasFigures) -> Iterator[Block]:
    most = sorted(one.groups, key=lambda group: -group.decided_positive.rows)[:MOST_GROUPS]
    rows = tuple(_row(group) for group in one.groups if group in most)
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


def _row(group: GroupFigures) -> tuple[str, ...]:
    every, positives = group.decided_positive, group.true_positives
    left_out = (("parity", every.left_out), ("opportunity", positives.left_out))
    return (
        group.name,
        *(cell for of in (every, positives) for cell in (count(of.rows), _share(of.share))),
        "; ".join(f"{name}: {why}" for name, why in left_out if why),
    )


def _share(one: Interval) -> str:
    if one.low is None or one.high is None:
        return share(one.value)
    return f"{share(one.value)} [{share(one.low)}, {share(one.high)}]"
