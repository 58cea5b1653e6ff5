"""Change of metrics between two models on the same rows."""

from ml_assets.evaluation.gates import Champion
from ml_assets.evaluation.holdout import evaluate
from ml_assets.evaluation.model_difference import difference
from ml_assets.evaluation.spec import EvaluationSpec
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


def test_a_model_against_itself_does_not_move(case: HoldoutCase) -> None:
    found = difference(case.holdout, case.champion, case.champion, SPEC, label="label")
    assert {(one.improvement.low, one.improvement.high) for one in (*found.overall, *found.slices)} == {
        (0, 0)
    }
