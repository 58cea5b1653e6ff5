"""A metric of the project's own code is measured as a built-in one: intervals, slices, gates, and an identity."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from ml_assets.model.evaluation.comparison.declared_metrics import OwnMetric
from ml_assets.model.evaluation.comparison.holdout import evaluate
from ml_assets.model.evaluation.evaluation_document import Evaluation
from ml_assets.model.evaluation.metrics.bootstrap import draw_blocks
from ml_assets.model.evaluation.metrics.row_weights import EvaluationInputError
from ml_assets.model.evaluation.report.report import render
from ml_assets.model.evaluation.report_document import Report
from ml_assets.model.evaluation.spec import EvaluationSpec, OwnMetricSection
from ml_assets.model.release.bundle_store import Bundle
from ml_assets.model.steps.record import UnrecordedEvaluation
from ml_assets_tests.evaluation.holdout_case import model_facts

ROWS = 600
RANDOM = np.random.default_rng(3)
LABEL = RANDOM.normal(50, 10, ROWS)
HOLDOUT = pl.DataFrame(
    {
        "label": LABEL,
        "date": np.arange(ROWS) // 20,
        "store": np.where(np.arange(ROWS) % 3 == 0, "north", "south"),
    }
)
PREDICTIONS = {
    "challenger": LABEL + RANDOM.normal(0, 1, ROWS),
    "baseline": np.full(ROWS, 50.0),
    "reference": LABEL + RANDOM.normal(0, 1.2, ROWS),
}
GATES = [
    {"name": "near", "metric": "far_off", "better_than": "baseline", "margin": "50%"},
    {"name": "near in each store", "metric": "far_off", "at_most": 2, "slice": {"store": "*"}},
]


def far_off(label: Any, prediction: Any, group: Any, weight: Any) -> float:
    return float(np.average(np.abs(label - prediction), weights=weight))


def northern(label: Any, prediction: Any, group: Any, weight: Any) -> float:
    """Not defined without rows of the north."""
    there = group == "north"
    return far_off(label[there], prediction[there], group, weight[there]) if weight[there].any() else np.nan


def measured(function: Callable[..., Any], *, version: str = "1", **changes: Any) -> Evaluation:
    declared = {"function": f"project.metrics.{function.__name__}", "better": "lower", "group": "store"}
    spec = EvaluationSpec.model_validate(
        {
            "objective": "regression",
            "draws": 100,
            "min_slice_rows": 50,
            "slices": ["store"],
            "metrics": [declared],
            "gates": GATES,
        }
        | changes
    )
    own = OwnMetric(declared=spec.metrics[0], function=function, code_version=version)
    return evaluate(HOLDOUT, PREDICTIONS, spec, own_metrics=[own])


def test_an_own_metric_has_the_intervals_and_gates_of_a_built_in_one() -> None:
    found = measured(far_off)
    assert found.decision.status == "blessed", found.decision.reasons
    for part in (found.overall, *found.slices):
        for of_model in (*part.metrics.values(), *part.improvements.values()):
            own, peer = of_model["far_off"], of_model["mae"]
            assert (own.value, own.low, own.high) == pytest.approx((peer.value, peer.low, peer.high))
    assert found.values()["far_off"] == pytest.approx(found.values()["mae"])
    page = render(
        Report(title="m", partition="2013-01-10", lineage={}, evaluation=found, model=model_facts())
    )
    assert "far off" in page
    other = found.model_copy(update={"own_metrics": measured(far_off, version="2").own_metrics})
    reports = [
        Report(title="m", partition="p", lineage={}, evaluation=one, model=model_facts())
        for one in (found, other)
    ]
    assert len({report.digest for report in reports}) == 2  # other code is another evaluation
    spec = EvaluationSpec.model_validate({"objective": "regression", "gates": [GATES[0] | {"metric": "mae"}]})
    bundle = Bundle("b" * 64, Path(), "")
    unrecorded = [
        UnrecordedEvaluation(
            bundle=bundle, report=report, champion_digest=None, rules=spec, transitions={}, read=""
        )
        for report in reports
    ]
    assert len({one.decided_by for one in unrecorded}) == 2  # and another data version of its asset


def test_a_slice_without_a_value_is_undecided_by_name() -> None:
    gates = [{"name": "near in each store", "metric": "northern", "at_most": 2, "slice": {"store": "*"}}]
    found = measured(northern, gates=gates)
    assert found.decision.status == "undecided"
    north, south = found.decision.rules
    assert (north.slice, north.status) == ("store=north", "passed")
    assert (south.slice, south.status, south.metric) == ("store=south", "undecided", "northern")
    assert south.measured is not None
    assert south.measured.value is None
    assert "northern on store=south" in south.explanation
    assert south.would_pass is not None
    assert "northern returns a number" in south.would_pass


def test_a_group_without_a_value_has_a_name() -> None:
    declared = OwnMetricSection.model_validate(
        {"function": "project.metrics.far_off", "better": "lower", "group": "store"}
    )
    own = OwnMetric(declared=declared, function=far_off, code_version="1")
    assert list(own.groups_of(pl.DataFrame({"store": ["north", None]}))) == ["north", "(none)"]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda label, prediction, group, weight: float(np.abs(label - prediction).mean()), "gives .* for 600 rows wh"),
        (lambda label, prediction, group, weight: 1 / 0, "failed on 600 rows: ZeroDivisionError: division by zero"),
        (lambda label, prediction, group, weight: float(np.ravel(label).__isub__(prediction).mean()),
         "failed on 600 rows: ValueError: output array is read-only"),
        (lambda label, prediction, group, weight: label, "returned ndarray: return one number"),
    ],
)  # fmt: skip
def test_a_function_that_cannot_measure_is_refused(function: Callable[..., Any], said: str) -> None:
    function.__name__ = "far_off"
    with pytest.raises(EvaluationInputError, match=rf"metric far_off \(project.metrics.far_off\) {said}"):
        measured(function)


def far(label: Any, prediction: Any, group: Any, weight: Any) -> float:
    """Ignores `weight`. One row of the holdout counts."""
    return float((np.abs(label - prediction) > np.abs(label - prediction).max() - 1e-9).mean())


def largest(label: Any, prediction: Any, group: Any, weight: Any) -> float:
    """Ignores `weight`."""
    return float(np.abs(label - prediction).max())


def tiny(label: Any, prediction: Any, group: Any, weight: Any) -> float:
    """Ignores `weight`, and is far below 1."""
    return float(np.abs(label - prediction).mean() * 1e-9)


def of_many(label: Any, prediction: Any, group: Any, weight: Any) -> float:
    """Ignores `weight`, and is not defined on few rows."""
    return float(np.abs(label - prediction).mean()) if len(label) > 550 else np.nan


@pytest.mark.parametrize("function", [far, largest, tiny, of_many])
def test_a_function_that_ignores_the_weights_is_refused(function: Callable[..., Any]) -> None:
    gates = [{"name": "near", "metric": function.__name__, "at_most": 100}]
    with pytest.raises(EvaluationInputError, match="its `weight` says"):
        measured(function, gates=gates)


def test_a_sum_that_cancels_is_not_refused() -> None:
    def bias(label: Any, prediction: Any, group: Any, weight: Any) -> float:
        return float(np.average(label - prediction, weights=weight))

    declared = OwnMetricSection(function="project.metrics.bias", better="lower")
    label, blocks = np.tile([0.1, 0.2, -0.3, 0.7, -0.7], 8), np.repeat(np.arange(8), 5)
    own = OwnMetric(declared=declared, function=bias, code_version="1")
    own.require_weights(label, np.zeros(40), np.zeros(40), np.ones(40), blocks, draw_blocks(8, 100, 0))


@pytest.mark.parametrize(
    "gate",
    [
        {"at_most": 100, "on_undefined": "pass"},
        {"better_than": "reference", "margin": -100, "on_undecided": "pass", "on_undefined": "pass"},
    ],
)
def test_an_infinite_loss_fails_a_rule(gate: dict[str, Any]) -> None:
    def unbounded(label: Any, prediction: Any, group: Any, weight: Any) -> float:
        impossible = (label == LABEL[0]) & (prediction == PREDICTIONS["challenger"][0])
        return np.inf if weight[impossible].any() else far_off(label, prediction, group, weight)

    found = measured(unbounded, gates=[{"name": "bounded", "metric": "unbounded", **gate}], slices=[])
    assert found.decision.status == "rejected", found.decision.reasons
    assert "unbounded is infinite;" in found.decision.rules[0].explanation


def test_names_that_mean_two_metrics_or_none_are_refused() -> None:
    with pytest.raises(ValueError, match="rename the function mae"):
        measured(far_off, metrics=[{"function": "project.mae", "better": "lower"}])
    gates = [{"name": "near", "metric": "near_by", "at_most": 2}]
    with pytest.raises(ValueError, match=r"'near_by' .*rmse, mae, r2, far_off"):
        measured(far_off, gates=gates)
