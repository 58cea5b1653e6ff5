"""The reference model: a regression on the challenger's columns, held against scikit-learn's, and what reports say."""

import re
from typing import Any

import numpy as np
import polars as pl
import pytest

from ml_assets.data.features.encoding import FittedState, fit
from ml_assets.foundation.objective_facts import ObjectiveName, facts_of
from ml_assets.model.evaluation.comparison import reference
from ml_assets.model.evaluation.comparison.holdout import evaluate
from ml_assets.model.evaluation.comparison.reference import PENALTIES, LinearReference, reference_model
from ml_assets.model.evaluation.comparison.sentences import plain_findings
from ml_assets.model.evaluation.metrics.metrics import METRICS, metric_named
from ml_assets.model.evaluation.report.report import summary_markdown
from ml_assets.model.evaluation.report_document import Report
from ml_assets.model.evaluation.spec import EvaluationSpec
from ml_assets_tests.evaluation.holdout_case import model_facts

OBJECTIVES: tuple[ObjectiveName, ...] = ("binary", "regression", "count")


def weather(rows: int, seed: int) -> pl.DataFrame:
    """Linear in two numbers, one of them missing at times with a meaning of its own, and a category."""
    random = np.random.default_rng(seed)
    wind, rain = random.normal(20, 8, rows), random.exponential(3, rows)
    gauge_is_out, place = random.random(rows) < 0.1, random.integers(0, 5, rows)
    level = 0.1 * (wind - 20) + 0.2 * (rain - 3) + 1.5 * gauge_is_out + 0.5 * (place - 2)
    return pl.DataFrame(
        {
            "wind": wind,
            "rain": np.where(gauge_is_out, np.nan, rain),
            "place": [f"place {one}" for one in place],
            "binary": (random.random(rows) < 1 / (1 + np.exp(-level))).astype(np.float64),
            "regression": 1000 + 50 * (level + random.normal(0, 0.5, rows)),
            "count": random.poisson(4000 * np.exp(0.3 * level)),
        }
    ).with_columns(pl.col("rain").fill_nan(None))


TRAIN, VALIDATION, HOLDOUT = (weather(rows, seed) for seed, rows in enumerate((3000, 500, 1000)))
STATE = fit(TRAIN, ["wind", "rain"], ["place"])


def fitted(
    objective: ObjectiveName, state: FittedState = STATE, train: pl.DataFrame = TRAIN
) -> LinearReference:
    found = reference_model(train, VALIDATION, state.encode, objective, label=objective)
    assert isinstance(found, LinearReference)
    return found


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_predicts_what_scikit_learn_does(objective: ObjectiveName) -> None:
    from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge

    found = fitted(objective)

    def matrix(frame: pl.DataFrame) -> Any:
        numeric, category = STATE.encode(frame)
        return np.hstack([np.nan_to_num(numeric), np.isnan(numeric[:, 1:]), np.eye(6)[category[:, 0]][:, 1:]])

    y = TRAIN[objective].to_numpy()
    if objective == "binary":
        peer = LogisticRegression(C=1 / found.penalty, tol=1e-10, max_iter=10_000).fit(matrix(TRAIN), y)
        expected = peer.predict_proba(matrix(HOLDOUT))[:, 1]
    elif objective == "count":
        # scikit-learn divides the loss by the rows; here it is divided by the mean count.
        peer = PoissonRegressor(alpha=found.penalty * y.mean() / len(y), solver="newton-cholesky", tol=1e-10)
        expected = peer.fit(matrix(TRAIN), y).predict(matrix(HOLDOUT))
    else:
        expected = Ridge(alpha=found.penalty).fit(matrix(TRAIN), y).predict(matrix(HOLDOUT))
    assert found.predict(HOLDOUT) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_same_rows_give_the_same_bytes_and_the_best_penalty(
    objective: ObjectiveName, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = fitted(objective)
    assert found.predict(HOLDOUT).tobytes() == fitted(objective).predict(HOLDOUT).tobytes()
    y = VALIDATION[objective].to_numpy()
    loss = METRICS[facts_of(objective).chosen_by].value
    losses: dict[float, float] = {}
    for penalty in PENALTIES:
        monkeypatch.setattr(reference, "PENALTIES", (penalty,))
        losses[penalty] = loss(y, fitted(objective).predict(VALIDATION))
    assert min(losses, key=lambda penalty: losses[penalty]) == found.penalty


def test_classes_are_fitted_one_against_the_rest() -> None:
    """Two classes give the logistic regression itself; three beat the shares of the classes."""
    two = reference_model(TRAIN, VALIDATION, STATE.encode, "multiclass", label="binary", classes=2)
    assert two.predict(HOLDOUT)[:, 1] == pytest.approx(fitted("binary").predict(HOLDOUT), abs=1e-6)
    thirds = [
        frame.with_columns(
            pl.sum_horizontal(pl.col("regression") > 970, pl.col("regression") > 1030).alias("third")
        )
        for frame in (TRAIN, VALIDATION, HOLDOUT)
    ]
    three = reference_model(*thirds[:2], STATE.encode, "multiclass", label="third", classes=3)
    probabilities = three.predict(thirds[2])
    assert probabilities.sum(axis=1) == pytest.approx(np.ones(1000))
    y = thirds[2]["third"].cast(pl.Float64).to_numpy()
    assert METRICS["logloss"].value(y, probabilities) < 0.8
    assert three.name.startswith("logistic regression of each class")
    assert "(penalty " in three.name


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_quantile_regression_is_as_good_as_scikit_learns(share: float) -> None:
    """The kink of the loss is rounded, so weights differ a little; the loss and the share of labels below do not."""
    from sklearn.linear_model import QuantileRegressor

    objective = f"quantile {share}"
    found = reference_model(TRAIN, VALIDATION, STATE.encode, objective, label="regression")
    matrix = [
        np.hstack([np.nan_to_num(numeric), np.isnan(numeric[:, 1:]), np.eye(6)[category[:, 0]][:, 1:]])
        for numeric, category in map(STATE.encode, (TRAIN, HOLDOUT))
    ]
    peer = QuantileRegressor(quantile=share, alpha=0).fit(matrix[0], TRAIN["regression"].to_numpy())
    y, predicted = HOLDOUT["regression"].to_numpy(), found.predict(HOLDOUT)
    loss = metric_named("pinball", objective).value
    assert loss(y, predicted) < 1.01 * loss(y, peer.predict(matrix[1]))
    below = (TRAIN["regression"].to_numpy() <= found.predict(TRAIN)).mean()
    assert below == pytest.approx(share, abs=1e-3)


def test_a_count_far_from_all_training_rows_stays_finite() -> None:
    """A sensor gone wild: e to the power of a million would end the evaluation of a trained model."""
    wild = HOLDOUT.with_columns(pl.lit(1e9).alias("wind"))
    assert np.isfinite(fitted("count").predict(wild)).all()


def test_categories_not_seen_and_of_no_weight_count_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    new = HOLDOUT.with_columns(pl.lit("elsewhere").alias("place"))
    found = fitted("regression")
    numbers_only = found.columns.dense(STATE.encode(new)[0]) @ found.weights[:4]
    assert found.predict(new) == pytest.approx(found.offset + found.scale * numbers_only)
    monkeypatch.setattr(reference, "MOST_CATEGORIES", 2)
    few = fitted("regression")
    assert len(few.weights) == 4 + 2
    assert np.isfinite(few.predict(HOLDOUT)).all()


def test_a_fit_on_some_rows_of_a_long_window_says_so() -> None:
    found = reference_model(TRAIN[::3], VALIDATION, STATE.encode, "binary", label="binary", all_rows=3000)
    assert "1,000 of 3,000 rows" in found.name
    assert METRICS["auc"].value(HOLDOUT["binary"].to_numpy(), found.predict(HOLDOUT)) > 0.7


def test_without_columns_it_is_the_mean() -> None:
    found = fitted("binary", fit(TRAIN, [], []))
    assert found.name.startswith("logistic regression without columns")
    assert found.predict(HOLDOUT) == pytest.approx(np.full(1000, TRAIN["binary"].to_numpy().mean()), rel=1e-5)


def test_labels_that_numbers_tell_apart_are_no_trouble() -> None:
    apart = TRAIN.with_columns((pl.col("wind") > 20).cast(pl.Float64).alias("binary"))
    found = fitted("binary", train=apart).predict(HOLDOUT)
    assert np.isfinite(found).all()
    assert METRICS["auc"].value((HOLDOUT["wind"] > 20).cast(pl.Float64).to_numpy(), found) > 0.99


def test_a_reference_that_is_better_is_said_and_fails_its_gate() -> None:
    found = fitted("regression")
    spec = EvaluationSpec.model_validate(
        {
            "objective": "regression",
            "bootstrap_unit": "day",
            "draws": 100,
            "gates": [{"name": "worth a network", "metric": "rmse", "better_than": "reference"}],
        }
    )
    day = pl.Series("day", np.arange(1000) // 50)
    flat = np.full(1000, TRAIN["regression"].to_numpy().mean())
    evaluation = evaluate(
        HOLDOUT.with_columns(day),
        {"challenger": flat, "baseline": flat, "reference": found.predict(HOLDOUT)},
        spec,
        label="regression",
        reference_name=found.name,
    )
    assert evaluation.decision.status == "rejected"
    assert "over the reference model" in evaluation.decision.reasons[0]
    (said,) = [one for one in plain_findings(evaluation) if "regression on the" in one]
    assert said.startswith("A linear regression")
    assert "is better: RMSE " in said
    report = Report(title="m", partition="p", lineage={}, model=model_facts(), evaluation=evaluation)
    page = summary_markdown(report, {})
    assert said in page
    assert re.search(r"\| metric +\| challenger +\| baseline +\| reference +\|", page)
