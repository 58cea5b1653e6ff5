"""Metrics on rows: against scikit-learn, and by hand where it has none."""

import math

import numpy as np
import pytest
import sklearn.metrics as sk

from ml_assets.foundation.objective_facts import facts_of
from ml_assets.model.evaluation.metrics.metrics import (
    METRICS,
    UnknownMetric,
    Vector,
    ece,
    metric_named,
    metrics_of,
)

RANDOM = np.random.default_rng(5)
ROWS = 3000
# Rounded, so that many scores tie, with both ends of the range among them.
SCORES = np.clip(RANDOM.random(ROWS).round(2), 0, 1)
LABELS = (RANDOM.random(ROWS) < 0.2 + 0.5 * SCORES).astype(np.float64)
VALUES = 20 + 7 * RANDOM.normal(size=ROWS)
GUESSES = VALUES + RANDOM.normal(size=ROWS)
SHARES = RANDOM.dirichlet((2, 1, 1), ROWS).round(2) + 0.01
SHARES /= SHARES.sum(axis=1, keepdims=True)
CLASSES = (SHARES.cumsum(axis=1) < RANDOM.random((ROWS, 1))).sum(axis=1).astype(np.float64)
"""A class drawn from each row's shares."""
COUNTS = RANDOM.poisson(1 + VALUES.clip(0) / 10).astype(np.float64)
WIDE = (*facts_of("multiclass").metrics, *facts_of("next_token").metrics)
"""Metrics of predictions with several numbers a row."""


@pytest.mark.parametrize(
    ("name", "y", "p", "expected"),
    [
        ("auc", LABELS, SCORES, sk.roc_auc_score(LABELS, SCORES)),
        ("logloss", LABELS, SCORES, sk.log_loss(LABELS, SCORES)),
        ("brier", LABELS, SCORES, sk.brier_score_loss(LABELS, SCORES)),
        ("rmse", VALUES, GUESSES, sk.root_mean_squared_error(VALUES, GUESSES)),
        ("mae", VALUES, GUESSES, sk.mean_absolute_error(VALUES, GUESSES)),
        ("r2", VALUES, GUESSES, sk.r2_score(VALUES, GUESSES)),
        ("quantile 0.9 pinball", VALUES, GUESSES, sk.mean_pinball_loss(VALUES, GUESSES, alpha=0.9)),
        ("quantile 0.9 coverage_error", VALUES, GUESSES, 0.9 - (VALUES <= GUESSES).mean()),
        ("poisson_deviance", COUNTS, VALUES.clip(0.1), sk.mean_poisson_deviance(COUNTS, VALUES.clip(0.1))),
        ("logloss", CLASSES, SHARES, sk.log_loss(CLASSES, SHARES)),
        ("accuracy", CLASSES, SHARES, sk.accuracy_score(CLASSES, SHARES.argmax(axis=1))),
        ("macro_auc", CLASSES, SHARES, sk.roc_auc_score(CLASSES, SHARES, multi_class="ovr")),
        ("macro_f1", CLASSES, SHARES, sk.f1_score(CLASSES, SHARES.argmax(axis=1), average="macro")),
    ],
)
def test_agrees_with_scikit_learn(name: str, y: Vector, p: Vector, expected: float) -> None:
    objective, _, metric = name.rpartition(" ")
    found = metric_named(metric, objective) if objective else METRICS[metric]
    assert found.value(y, p) == pytest.approx(expected, rel=1e-12)


def test_calibration_error_of_two_bins_by_hand() -> None:
    p = np.array([0.1, 0.2, 0.7, 0.8])
    y = np.array([0.0, 1.0, 1.0, 1.0])
    # Bins {0.1, 0.2} and {0.7, 0.8}: gaps |0.15 − 0.5| and |0.75 − 1|, half of the rows each.
    assert ece(y, p, np.ones(4), np.array([0.5])) == pytest.approx(0.5 * 0.35 + 0.5 * 0.25)


def test_calibration_error_sees_only_calibration() -> None:
    right_on_average = np.full(ROWS, LABELS.mean())
    assert METRICS["ece"].value(LABELS, right_on_average) == pytest.approx(0, abs=1e-12)
    assert METRICS["ece"].value(LABELS, np.clip(right_on_average + 0.2, 0, 1)) == pytest.approx(0.2)


def test_calibration_bins_hold_equally_many_rows() -> None:
    from ml_assets.model.evaluation.metrics.metrics import calibration_bin, calibration_edges

    p = RANDOM.random(1500)
    counts = np.bincount(calibration_bin(p, calibration_edges(p, np.ones(len(p)))))
    assert counts.tolist() == [100] * 15


@pytest.mark.parametrize("name", METRICS)
def test_undefined_without_rows(name: str) -> None:
    nothing = np.zeros(0)
    predicted = np.zeros((0, 3)) if name in WIDE else nothing
    assert math.isnan(METRICS[name].value(nothing, predicted))


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_auc_of_one_class_is_undefined(label: float) -> None:
    assert math.isnan(METRICS["auc"].value(np.full(3, label), np.array([0.1, 0.2, 0.3])))


def test_macro_metrics_leave_out_classes_that_the_rows_lack() -> None:
    y, p = np.array([0.0, 0.0, 2.0]), np.array([[0.8, 0.1, 0.1], [0.2, 0.1, 0.7], [0.1, 0.2, 0.7]])
    assert METRICS["macro_auc"].value(y, p) == pytest.approx((1 + 0.75) / 2)
    assert METRICS["macro_f1"].value(y, p) == pytest.approx(2 / 3)


def test_r2_of_a_constant_label_is_undefined() -> None:
    assert math.isnan(METRICS["r2"].value(np.full(3, 7.0), np.array([6.0, 7.0, 8.0])))


def test_improvement_is_positive_where_the_challenger_is_better() -> None:
    assert METRICS["auc"].improvement(0.8, 0.7) == pytest.approx(0.1)
    assert METRICS["logloss"].improvement(0.4, 0.5) == pytest.approx(0.1)


def test_unknown_metric_names_those_that_would_do() -> None:
    with pytest.raises(UnknownMetric, match="auc, logloss, brier, ece"):
        metric_named("rmse", "binary")
    assert [one.name for one in metrics_of("regression")] == ["rmse", "mae", "r2"]
