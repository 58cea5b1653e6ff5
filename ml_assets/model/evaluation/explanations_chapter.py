"""Chapter about the explanations of a model, with its pictures: of the report, the asset page and the model card."""

from collections.abc import Iterator, Sequence

from ml_assets.foundation.objective_facts import ObjectiveName
from ml_assets.foundation.reports.drawing import Axes, Form, encoded
from ml_assets.foundation.reports.plain_text import label
from ml_assets.foundation.reports.written_page import Block, Chapter, Drawing, Grid, Paragraph
from ml_assets.model.evaluation.explanation_document import Explanations, PartialDependence
from ml_assets.model.evaluation.metrics import metric_named
from ml_assets.model.evaluation.pictures import COLOURS
from ml_assets.model.evaluation.sentences import with_interval
from resources.words import counted

MOST_COLUMNS = 15
"""Columns that a page shows: the most important ones. `evaluation.json` has all."""
_LINES = ("-", "--", "-.", ":", (0, (1, 3)))
"""Line style of each class, so that readers do not depend on colours."""
_TURNED = 4
"""Categories from which their names are turned."""


def explanation_chapters(
    found: Explanations | None, objective: ObjectiveName, *, drawn: bool = True
) -> Iterator[Chapter]:
    """Yield the chapter of a pipeline with `explanations`; without the pictures if not `drawn`."""
    if found is None:
        return
    metric = metric_named(found.metric, objective)
    shown = found.columns[:MOST_COLUMNS]
    rows = tuple((one.column, with_interval(one.added, signed=True)) for one in shown)
    change = "lost" if metric.higher_is_better else "added"
    blocks: list[Block] = [Grid(("column", f"{change} {metric.label}"), rows, numbers=frozenset({1}))]
    if hidden := len(found.columns) - len(shown):
        blocks.append(Paragraph(f"{counted(hidden, 'less important column')} in evaluation.json."))
    if drawn:
        blocks += [
            Drawing(name, svg, "Mean prediction if all rows had this value.")
            for name, svg in dependence_pictures(found, "svg").items()
        ]
    yield Chapter(
        "Columns the model uses",
        tuple(blocks),
        f"{metric.label} that is {change} if a column is shuffled among {counted(found.rows, 'holdout row')}; "
        "intervals hold jointly; correlated columns share their importance",
    )


def dependence_pictures(found: Explanations | None, form: Form) -> dict[str, str]:
    """Return a picture in base64 for each of the most important columns, by `dependence on COLUMN`."""
    if found is None:
        return {}
    return {
        f"dependence on {one.column}": encoded(lambda axes, one=one: _dependence(axes, one), form)
        for one in found.dependence
    }


def _dependence(axes: Axes, one: PartialDependence) -> None:
    numbers = [value for value in one.values if isinstance(value, float)]
    at: Sequence[float] = numbers or range(len(one.values))
    for (name, means), line in zip(one.means.items(), _LINES, strict=False):
        axes.plot(
            at,
            means,
            linestyle=line if numbers else "none",
            marker="o",
            markersize=3.5,
            linewidth=1.3,
            color=COLOURS["challenger"] if len(one.means) == 1 else None,
            label=label(name),
        )
    if not numbers:
        axes.set_xticks(at, list(map(label, one.values)), rotation=45 if len(one.values) > _TURNED else 0)
    if len(one.means) > 1:
        axes.legend(loc="best")
    axes.set_title(f"Dependence on {label(one.column)}")
    axes.set_xlabel(label(one.column))
    axes.set_ylabel("mean probability of the class" if len(one.means) > 1 else "mean prediction")
