"""The law of blocks: a metric over counts equals the metric over the rows repeated so often."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.foundation.objective_facts import facts_of
from ml_assets.model.evaluation.metrics.bootstrap import block_form
from ml_assets.model.evaluation.metrics.metrics import METRICS, Metric, calibration_edges, ece, metrics_of


@st.composite
def resamples(draw: st.DrawFn, binary: bool) -> tuple[Any, Any, Any, Any]:
    """Labels, predictions (with many ties), blocks and how often each block is drawn."""
    rows = draw(st.integers(1, 60))
    blocks = draw(st.integers(1, 6))
    labels = st.sampled_from([0.0, 1.0]) if binary else st.integers(-50, 50).map(float)
    scores = st.integers(0, 8).map(lambda n: n / 8) if binary else st.integers(-50, 50).map(float)
    y = draw(st.lists(labels, min_size=rows, max_size=rows))
    p = draw(st.lists(scores, min_size=rows, max_size=rows))
    ids = draw(st.lists(st.integers(0, blocks - 1), min_size=rows, max_size=rows))
    counts = draw(st.lists(st.integers(0, 3), min_size=blocks, max_size=blocks))
    return np.array(y), np.array(p), np.array(ids, dtype=np.intp), np.array(counts)


@st.composite
def resamples_of_classes(draw: st.DrawFn) -> tuple[Any, Any, Any, Any]:
    """Draw like `resamples`, with class numbers as labels. Each row of predictions adds up to 1."""
    y, _, ids, counts = draw(resamples(binary=False))
    classes = draw(st.integers(2, 4))
    weights = st.lists(st.integers(1, 4), min_size=classes, max_size=classes)
    drawn = np.array(draw(st.lists(weights, min_size=len(y), max_size=len(y))), dtype=np.float64)
    return np.abs(y) % classes, drawn / drawn.sum(axis=1, keepdims=True), ids, counts


def check(metric: Metric, drawn: tuple[Any, Any, Any, Any]) -> None:
    y, p, ids, counts = drawn
    form = block_form(metric, y, p, ids, len(counts))
    [found] = form(counts[None].astype(np.float64))
    repeated = np.repeat(np.arange(len(y)), counts[ids])
    if metric.name == "ece":
        # The bins are those of the holdout, not of each redraw.
        expected = ece(
            y[repeated], p[repeated], np.ones(len(repeated)), calibration_edges(p, np.ones(len(p)))
        )
    else:
        expected = metric.value(y[repeated], p[repeated])
    if math.isnan(expected):
        assert math.isnan(found)
    else:
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", ["auc", "logloss", "brier", "ece"])
@given(drawn=resamples(binary=True))
def test_binary_metric_of_counts_is_that_of_repeated_rows(name: str, drawn: Any) -> None:
    check(METRICS[name], drawn)


@pytest.mark.parametrize("name", ["rmse", "mae", "r2"])
@given(drawn=resamples(binary=False))
def test_regression_metric_of_counts_is_that_of_repeated_rows(name: str, drawn: Any) -> None:
    check(METRICS[name], drawn)


@pytest.mark.parametrize("metric", metrics_of("quantile 0.8"), ids=lambda metric: metric.name)
@given(drawn=resamples(binary=False))
def test_metric_of_a_quantile_of_counts_is_that_of_repeated_rows(metric: Metric, drawn: Any) -> None:
    check(metric, drawn)


@given(drawn=resamples(binary=False))
def test_deviance_of_counts_is_that_of_repeated_rows(drawn: Any) -> None:
    y, p, ids, counts = drawn
    check(METRICS["poisson_deviance"], (np.abs(y), np.abs(p), ids, counts))


@pytest.mark.parametrize("name", facts_of("multiclass").metrics)
@given(drawn=resamples_of_classes())
def test_metric_of_classes_of_counts_is_that_of_repeated_rows(name: str, drawn: Any) -> None:
    check(METRICS[name], drawn)


def test_r2_keeps_its_digits_far_from_zero() -> None:
    random = np.random.default_rng(0)
    y = 1e8 + random.normal(size=500)
    p = y + 0.1 * random.normal(size=500)
    form = block_form(METRICS["r2"], y, p, np.arange(500, dtype=np.intp) % 10, 10)
    assert form(np.ones((1, 10)))[0] == pytest.approx(METRICS["r2"].value(y, p), rel=1e-6)
