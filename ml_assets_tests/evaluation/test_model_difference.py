"""Change of metrics between two models on the same rows."""

from ml_assets.model.evaluation.comparison.declared_metrics import OwnMetric
from ml_assets.model.evaluation.comparison.gates import Champion
from ml_assets.model.evaluation.comparison.holdout import evaluate
from ml_assets.model.evaluation.comparison.model_difference import difference
from ml_assets.model.evaluation.spec import EvaluationSpec
from ml_assets_tests.evaluation.holdout_case import HoldoutCase

SPEC = EvaluationSpec.model_validate(
    {
        "objective": "binary",
        "slices": ["origin", "carrier"],
        "min_slice_rows": 100,
        "draws": 200,
        "gates": [{"name": "g", "metric": "auc", "at_least": 0.1}],
    }
)


def test_it_measures_what_the_evaluation_measures(case: HoldoutCase) -> None:
    """Same draws, same blocks: improvement and interval are those of a report with the first model as champion."""
    found = difference(case.holdout, case.champion, case.challenger, SPEC, label="label")
    report = evaluate(case.holdout, case.predictions(), SPEC, champion=Champion("v1"))
    told = report.overall.improvements["champion"]
    assert {one.metric.name: one.improvement for one in found.overall} == told
    assert [str(one.slice) for one in found.slices] == [
        f"{part.slice}={part.value}" for part in report.slices if part.metrics
    ]


def test_intervals_of_slices_hold_jointly(case: HoldoutCase) -> None:
    found = difference(case.holdout, case.champion, case.challenger, SPEC, label="label")
    alone = evaluate(case.holdout, case.predictions(), SPEC, champion=Champion("v1")).slices
    single = {f"{part.slice}={part.value}": part.improvements for part in alone}
    for one in found.slices:
        narrow = single[str(one.slice)]["champion"]["auc"]
        assert one.improvement.high is not None
        assert narrow.high is not None
        assert one.improvement.high > narrow.high


def test_few_blocks_call_no_metric_better(case: HoldoutCase) -> None:
    spec = SPEC.model_copy(update={"min_blocks": 41})  # the holdout has 40
    found = difference(case.holdout, case.champion, case.challenger, spec, label="label")
    assert {one.improvement.high for one in (*found.overall, *found.slices)} == {None}
    assert found.overall[0].improvement.value is not None


def test_rows_without_a_column_of_today_are_measured_without_it(case: HoldoutCase) -> None:
    today = EvaluationSpec.model_validate(
        SPEC.model_dump()
        | {
            "slices": ["origin", "terminal"],
            "bias": [{"column": "gate", "threshold": 0.5}],
            "metrics": [{"function": "project.cost", "better": "lower", "group": "terminal"}],
            "gates": [
                {"name": "a", "metric": "auc", "at_least": 0.1, "slice": {"terminal": 4}},
                {"name": "b", "metric": "demographic_parity_gate", "at_most": 0.1},
                {"name": "c", "metric": "cost", "at_most": 1},
            ],
        }
    )
    own = OwnMetric(declared=today.metrics[0], function=lambda *_: 0.0, code_version="1")
    found = difference(case.holdout, case.champion, case.challenger, today, own_metrics=[own], label="label")
    assert [one.metric.name for one in found.overall] == ["auc", "logloss", "brier", "ece"]
    assert {one.slice.name for one in found.slices if one.slice} == {"origin"}
    (said,) = found.left_out
    for left in ("slices by terminal", " cost,", "demographic parity by gate", "equal opportunity by gate"):
        assert left in said


def test_a_model_against_itself_does_not_move(case: HoldoutCase) -> None:
    found = difference(case.holdout, case.champion, case.champion, SPEC, label="label")
    assert {(one.improvement.low, one.improvement.high) for one in (*found.overall, *found.slices)} == {
        (0, 0)
    }
