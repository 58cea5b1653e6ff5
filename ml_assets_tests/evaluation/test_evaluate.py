"""The one function the pipeline calls, on a holdout small enough to know."""

import inspect
import json
import tracemalloc
from typing import Any

import numpy as np
import polars as pl
import pytest

from ml_assets.model.evaluation.comparison.gates import Champion
from ml_assets.model.evaluation.comparison.holdout import evaluate
from ml_assets.model.evaluation.comparison.holdout_rows import in_range, prediction_fault
from ml_assets.model.evaluation.evaluation_document import Evaluation
from ml_assets.model.evaluation.metrics.metrics import METRICS, log_losses
from ml_assets.model.evaluation.metrics.row_weights import EvaluationInputError
from ml_assets.model.evaluation.spec import EvaluationSpec
from ml_assets_tests.evaluation.holdout_case import HoldoutCase, make_holdout

SPEC = EvaluationSpec.model_validate(
    {
        "objective": "binary",
        "slices": ["origin", "carrier", {"column": "date", "by": "month"}],
        "min_slice_rows": 100,
        "draws": 300,
        "gates": [
            {"name": "ranks", "metric": "auc", "at_least": 0.65},
            {"name": "beats the baseline", "metric": "logloss", "better_than": "baseline"},
            {"name": "beats the champion", "metric": "logloss", "better_than": "champion"},
        ],
    }
)
CHAMPION = Champion("version 7")


@pytest.fixture(scope="module")
def evaluation(case: HoldoutCase) -> Evaluation:
    return evaluate(case.holdout, case.predictions(), SPEC, champion=CHAMPION)


def test_metrics_are_those_of_the_rows(case: HoldoutCase, evaluation: Evaluation) -> None:
    y = case.holdout.get_column("label").to_numpy()
    for role, p in case.predictions().items():
        for name, one in evaluation.overall.metrics[role].items():  # pyright: ignore
            assert one.value == pytest.approx(METRICS[name].value(y, p), rel=1e-9)
            assert None not in (one.low, one.value, one.high)
            assert one.low <= one.value <= one.high  # pyright: ignore
    assert evaluation.values()["auc"] == evaluation.overall.metrics["challenger"]["auc"].value


def test_slices_are_measured_on_their_rows(case: HoldoutCase, evaluation: Evaluation) -> None:
    [part] = [one for one in evaluation.slices if (one.slice, one.value) == ("origin", "JFK")]
    inside = (case.holdout.get_column("origin") == "JFK").to_numpy()
    y, p = case.holdout.get_column("label").to_numpy()[inside], case.challenger[inside]
    assert part.rows == inside.sum()
    assert part.blocks == 40
    assert part.metrics["challenger"]["auc"].value == pytest.approx(METRICS["auc"].value(y, p))
    assert part.label_mean == pytest.approx(y.mean())
    assert part.prediction_mean["challenger"] == pytest.approx(p.mean())
    improvement = part.improvements["champion"]["logloss"].value
    champion = METRICS["logloss"].value(y, case.champion[inside])
    assert improvement == pytest.approx(champion - METRICS["logloss"].value(y, p))


def test_small_slices_are_listed_and_not_measured(evaluation: Evaluation) -> None:
    [part] = [one for one in evaluation.slices if one.value == "HA"]
    assert part.rows < 100
    assert not part.metrics
    assert {one.value for one in evaluation.slices if one.slice == "month"} == {"2013-11", "2013-12"}


def test_better_challenger_is_blessed(evaluation: Evaluation) -> None:
    assert evaluation.decision.status == "blessed"
    assert evaluation.names["champion"] == "champion (version 7)"


def test_same_input_gives_the_same_document(case: HoldoutCase, evaluation: Evaluation) -> None:
    again = evaluate(case.holdout, case.predictions(), SPEC, champion=CHAMPION)
    assert again.model_dump_json() == evaluation.model_dump_json()


def test_document_survives_json_and_holds_no_nan(evaluation: Evaluation) -> None:
    text = evaluation.model_dump_json()
    json.loads(text, parse_constant=pytest.fail)
    assert Evaluation.model_validate_json(text) == evaluation


def test_order_of_rows_does_not_matter(case: HoldoutCase, evaluation: Evaluation) -> None:
    order = np.random.default_rng(0).permutation(case.holdout.height)
    shuffled = {role: p[order] for role, p in case.predictions().items()}
    again = evaluate(case.holdout[order.tolist()], shuffled, SPEC, champion=CHAMPION)
    for name, one in again.overall.improvements["champion"].items():
        before = evaluation.overall.improvements["champion"][name]
        assert (one.low, one.high) == pytest.approx((before.low, before.high), rel=1e-9)


class TestChampionIsWhatItPredicts:
    """The gate compares predictions on this holdout. Numbers stored with the champion have no way in."""

    def test_champion_brings_no_metrics(self) -> None:
        assert list(inspect.signature(Champion).parameters) == ["name", "seen", "cannot_score", "weight"]
        given = set(inspect.signature(evaluate).parameters)
        assert given == {
            "holdout",
            "predictions",
            "spec",
            "champion",
            "own_metrics",
            "label",
            "weight",
            "classes",
            "baseline_name",
            "guess",  # of the baseline
            "reference_name",
            "serving",  # of the challenger
            "texts",  # of the challenger and of models that count
            "transitions",  # gates of single transitions
        }

    def test_noise_in_its_place_changes_the_decision(self, case: HoldoutCase) -> None:
        challenger, strong = case.champion, case.challenger
        against_strong = case.predictions() | {"challenger": challenger, "champion": strong}
        noise = np.random.default_rng(1).random(len(strong))
        against_noise = against_strong | {"champion": noise}
        decisions = [
            evaluate(case.holdout, some, SPEC, champion=CHAMPION).decision.status
            for some in (against_strong, against_noise)
        ]
        assert decisions == ["rejected", "blessed"]

    def test_its_name_changes_nothing(self, case: HoldoutCase, evaluation: Evaluation) -> None:
        renamed = evaluate(case.holdout, case.predictions(), SPEC, champion=Champion("auc=0.99 logloss=0.01"))
        assert renamed.decision == evaluation.decision
        assert renamed.overall == evaluation.overall


def test_first_model_needs_no_champion(case: HoldoutCase) -> None:
    found = evaluate(case.holdout, case.predictions(champion=False), SPEC)
    assert found.decision.status == "blessed"
    assert found.decision.rules[2].status == "not_applicable"
    assert list(found.overall.improvements) == ["baseline", "reference"]


def test_champion_that_has_seen_the_holdout_is_told(case: HoldoutCase) -> None:
    found = evaluate(case.holdout, case.predictions(), SPEC, champion=Champion("version 7", ("2013-11-01",)))
    assert found.decision.status == "undecided"
    assert found.champion_seen == ("2013-11-01",)


def test_blocks_may_be_any_column(case: HoldoutCase) -> None:
    text = case.holdout.with_columns(pl.col("date").cast(pl.String))
    spec = EvaluationSpec.model_validate(SPEC.model_dump(exclude_unset=True) | {"slices": ["origin"]})
    found = evaluate(text, case.predictions(), spec, champion=CHAMPION)
    assert (found.blocks, found.first_block, found.last_block) == (40, "2013-11-01", "2013-12-10")


def test_slice_of_one_class_has_no_auc_and_does_no_harm(case: HoldoutCase) -> None:
    lucky = case.holdout.with_columns(
        pl.when(pl.col("origin") == "JFK").then(0.0).otherwise("label").alias("label")
    )
    found = evaluate(lucky, case.predictions(), SPEC, champion=CHAMPION)
    [part] = [one for one in found.slices if one.value == "JFK"]
    assert part.metrics["challenger"]["auc"].value is None
    assert part.metrics["challenger"]["logloss"].low is not None


def test_regression_is_measured_in_the_labels_unit() -> None:
    random = np.random.default_rng(0)
    rows = 2000
    known = random.normal(size=rows)
    holdout = pl.DataFrame(
        {"week": np.repeat(np.arange(20), 100), "label": 50 + 10 * known + random.normal(size=rows)}
    )
    spec = EvaluationSpec.model_validate(
        {
            "objective": "regression",
            "bootstrap_unit": "week",
            "gates": [
                {"name": "beats the mean", "metric": "rmse", "better_than": "baseline", "margin": "50%"}
            ],
        }
    )
    predictions = {
        "challenger": 50 + 10 * known,
        "baseline": np.full(rows, 50.0),
        "reference": 50 + 9 * known,
    }
    found = evaluate(holdout, predictions, spec)
    assert found.decision.status == "blessed"
    assert found.values() == pytest.approx({"rmse": 1, "mae": 0.8, "r2": 0.99}, rel=0.05)
    assert found.curves.density is not None
    assert not found.curves.roc


def scores(case: HoldoutCase, **changes: Any) -> dict[str, Any]:
    return case.predictions() | changes


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"challenger": np.zeros(3)}, r"have shape \(3,\), expected \(2400,\)"),
        (
            {"challenger": np.full(2400, np.nan)},
            "predictions of the challenger are not finite in 2400 of 2400 places",
        ),
        ({"champion": np.full(2400, 3.0)}, r"must be probabilities; .* \(raw output\? apply the sigmoid"),
        ({"challenger ": np.zeros(2400)}, "expected baseline, challenger, champion, reference"),
    ],
)
def test_bad_predictions_are_refused(case: HoldoutCase, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(EvaluationInputError, match=complaint):
        evaluate(case.holdout, scores(case, **changes), SPEC, champion=CHAMPION)


def test_rounding_may_move_a_prediction_out_of_its_range() -> None:
    """A script is accepted with the same tolerance. A champion with a larger fault cannot score."""
    rounded = np.array([-1e-7, 0.5])
    assert prediction_fault(rounded, "count") == ""
    assert in_range(rounded, "count").tolist() == [0, 0.5]
    fault = prediction_fault(np.array([-0.02, 0.5]), "count")
    assert "counts of at least 0" in fault
    assert "from -0.02 to 0.5" in fault
    assert prediction_fault(rounded - 5, "regression") == ""


def test_champion_and_its_predictions_go_together(case: HoldoutCase) -> None:
    with pytest.raises(EvaluationInputError, match="both or neither"):
        evaluate(case.holdout, case.predictions(), SPEC)
    with pytest.raises(EvaluationInputError, match="both or neither"):
        evaluate(case.holdout, case.predictions(champion=False), SPEC, champion=CHAMPION)


@pytest.mark.parametrize(
    ("holdout", "complaint"),
    [
        (lambda frame: frame.drop("label"), "no column 'label'"),
        (lambda frame: frame.drop("date"), "no column 'date'"),
        (lambda frame: frame.clear(), "no rows"),
        (lambda frame: frame.with_columns(pl.lit(None).cast(pl.Float64).alias("label")), "have no label"),
        (lambda frame: frame.with_columns(pl.lit(2.0).alias("label")), "must be 0 or 1"),
        (
            lambda frame: frame.with_columns(pl.lit(None).cast(pl.Date).alias("date")),
            "give each row its block",
        ),
    ],
)
def test_bad_holdouts_are_refused(case: HoldoutCase, holdout: Any, complaint: str) -> None:
    with pytest.raises(EvaluationInputError, match=complaint):
        evaluate(holdout(case.holdout), case.predictions(), SPEC, champion=CHAMPION)


def test_a_block_for_each_of_many_rows_takes_little_memory() -> None:
    """A session for each row: 1,000 redraws of 20,000 blocks took 160 MB, and several arrays as large beside them."""
    case = make_holdout(days=200, rows_a_day=100)
    rows = case.holdout.with_columns(session=pl.int_range(pl.len()))
    spec = SPEC.model_copy(update={"bootstrap_unit": "session", "draws": 1000, "slices": ()})
    tracemalloc.start()
    try:
        found = evaluate(rows, case.predictions(), spec, champion=CHAMPION)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 80e6
    assert found.blocks == 20_000
    losses = log_losses(rows["label"].to_numpy(), case.challenger)
    logloss = found.overall.metrics["challenger"]["logloss"]
    # Single rows are independent: the interval is that of their mean.
    half = 1.96 * losses.std() / np.sqrt(len(losses))
    assert (logloss.high or 0) - (logloss.value or 0) == pytest.approx(half, rel=0.12)
