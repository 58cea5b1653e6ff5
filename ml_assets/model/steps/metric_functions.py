"""Own metrics of a pipeline: the functions behind `evaluation.metrics`, with the versions of their code.

Steps of a run and `ml-assets diff` import them, definitions do not. Not here: calling them
(`evaluation.comparison.declared_metrics`).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ml_assets.data.tables.imports import FunctionNotFound, resolve_function
from ml_assets.data.tables.refusal import BuildRefused
from ml_assets.foundation.code.code_version import code_version
from ml_assets.foundation.code.reach import SourceUnavailable
from ml_assets.model.evaluation.spec import EvaluationSpec
from ml_assets.model.steps.model_functions import find_signature

if TYPE_CHECKING:
    from ml_assets.model.evaluation.comparison.declared_metrics import OwnMetric

_ARGUMENTS = 4


class MetricUnusable(BuildRefused):
    """The module of an own metric cannot be imported."""


def own_metric_faults(spec: EvaluationSpec) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield (path of keys, sentence) for each function that does not exist. Reads source only."""
    for number, one in enumerate(spec.metrics):
        try:
            signature = find_signature(one.function)
            code_version(one.function)
        except (FunctionNotFound, SourceUnavailable) as error:
            yield ("evaluation", "metrics", number, "function"), str(error)
            continue
        # The text shows the arguments after the first.
        if signature is not None and not signature.takes_any and len(signature.names) != _ARGUMENTS - 1:
            yield (
                ("evaluation", "metrics", number, "function"),
                f"{one.function} must take (label, prediction, group, weight)",
            )


def require_own_metrics(model: str, spec: EvaluationSpec) -> None:
    """Import the functions, so that no training runs whose evaluation must fail. Raises `MetricUnusable`."""
    for number, one in enumerate(spec.metrics):
        try:
            resolve_function(one.function)
        except FunctionNotFound as error:
            raise MetricUnusable(
                f"{model} would fail after its training: evaluation.metrics[{number}].function {error}. Mend the "
                "module, or remove the metric"
            ) from error


def own_metrics(spec: EvaluationSpec) -> "tuple[OwnMetric, ...]":
    """Import the functions. Raises `FunctionNotFound`."""
    from ml_assets.model.evaluation.comparison.declared_metrics import OwnMetric

    return tuple(
        OwnMetric(
            declared=one, function=resolve_function(one.function), code_version=code_version(one.function)
        )
        for one in spec.metrics
    )
