"""The part of a declaration that a holdout of earlier days can be measured by, since it may lack columns of today."""

from collections.abc import Collection

from ml_assets.model.evaluation.spec import EvaluationSpec
from resources.words import name_some


def measurable(spec: EvaluationSpec, columns: Collection[str]) -> tuple[EvaluationSpec, tuple[str, ...]]:
    """Return `spec` without slices, metrics and gates that need other columns; and a sentence about them, if any."""
    cuts = tuple(cut for cut in spec.sliced_by if cut.column in columns)
    metrics = tuple(one for one in spec.metrics if one.group is None or one.group in columns)
    bias = tuple(one for one in spec.bias if one.column in columns)
    found = spec.model_copy(update={"slices": cuts, "metrics": metrics, "bias": bias})
    sliced, measured = {cut.name for cut in cuts}, {metric.name for metric in found.measured}
    gates = tuple(
        gate
        for gate in spec.gates
        if (gate.sliced is None or gate.sliced[0] in sliced)
        and (gate.is_about_serving or gate.metric in measured)
    )
    lost = [
        *(f"slices by {cut.name}" for cut in spec.sliced_by if cut not in cuts),
        *(metric.label for metric in spec.measured if metric.name not in measured),
    ]
    said = (
        f"These rows lack a column of today's defs.yaml, and are measured without: {name_some(lost, 12)}.",
    )
    return found.model_copy(update={"gates": gates}), said if lost else ()
