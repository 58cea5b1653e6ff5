"""Laws of row weights: equal weights count as none, a row of weight 2 as two rows, a row of weight 0 as absent."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.foundation.objective_facts import ObjectiveName, facts_of
from ml_assets.model.evaluation.comparison.baseline import GroupMeans, LabelSums, naive_baseline
from ml_assets.model.evaluation.comparison.curves import ScoredRows, threshold_table
from ml_assets.model.evaluation.comparison.declared_metrics import OwnMetric
from ml_assets.model.evaluation.comparison.explanations import explain
from ml_assets.model.evaluation.comparison.holdout import evaluate
from ml_assets.model.evaluation.comparison.model_difference import difference
from ml_assets.model.evaluation.comparison.reference import reference_model
from ml_assets.model.evaluation.comparison.worst_slices import worst_slices
from ml_assets.model.evaluation.evaluation_document import Evaluation
from ml_assets.model.evaluation.metrics.bootstrap import block_form, draw_blocks
from ml_assets.model.evaluation.metrics.metrics import Metric, Vector, metrics_of
from ml_assets.model.evaluation.metrics.row_weights import EvaluationInputError, weights_of
from ml_assets.model.evaluation.spec import BaselineSpec, CostSection, EvaluationSpec, OwnMetricSection
from ml_assets_tests.evaluation.holdout_case import HoldoutCase, make_holdout

OBJECTIVES = ("binary", "regression", "quantile 0.8", "count", "multiclass")
ALL = [(name, metric) for name in OBJECTIVES for metric in metrics_of(name)]
SPEC = EvaluationSpec.model_validate(
    {
        "objective": "binary",
        "slices": ["origin", {"column": "date", "by": "month"}],
        "min_slice_rows": 20,
        "min_blocks": 2,
        "bias": [{"column": "origin", "threshold": 0.3, "min_rows": 10}],
        "draws": 200,
        "gates": [{"name": "better", "metric": "logloss", "better_than": "champion"}],
    }
)


@st.composite
def weighted_rows(draw: st.DrawFn, objective: ObjectiveName) -> tuple[Vector, Vector, Vector]:
    """Labels, predictions with ties, and whole weights from 0 of which one is above 0."""
    rows = draw(st.integers(1, 40))
    of = facts_of(objective)
    labels = {"zero or one": 1, "classes": 2}.get(of.labels, 20)
    y = np.array(draw(st.lists(st.integers(0, labels), min_size=rows, max_size=rows)), dtype=np.float64)
    w = np.array(draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows)), dtype=np.float64)
    w[draw(st.integers(0, rows - 1))] = 1
    parts = draw(st.lists(st.tuples(*[st.integers(1, 4)] * 3), min_size=rows, max_size=rows))
    shares = np.array(parts, dtype=np.float64)
    if of.has_classes:
        return y, shares / shares.sum(axis=1, keepdims=True), w
    return y, shares[:, 0] / 5 if of.is_zero_or_one else shares[:, 0] * 4, w


@pytest.mark.parametrize(("objective", "metric"), ALL, ids=lambda one: getattr(one, "name", one))
@given(data=st.data(), unit=st.sampled_from([0.1, 1 / 3, 7.0, 1e6]))
def test_a_row_of_weight_n_counts_as_n_rows(
    objective: ObjectiveName, metric: Metric, data: st.DataObject, unit: float
) -> None:
    """Weights are in any unit, and a row counts as often as its block is drawn."""
    y, p, w = data.draw(weighted_rows(objective))
    again = np.repeat(np.arange(len(y)), w.astype(int))
    expected = metric.value(y[again], p[again])
    assert metric.value(y, p, w=unit * w) == pytest.approx(expected, rel=1e-9, abs=1e-9, nan_ok=True)
    blocks = np.arange(len(y)) % 3
    counts = np.array([[1, 1, 1], [2, 0, 1], [0, 3, 1]], dtype=np.float64)
    weighted = block_form(metric, y, p, blocks, 3, w=unit * w)(counts)
    repeated = block_form(metric, y[again], p[again], blocks[again], 3)(counts)
    assert weighted == pytest.approx(repeated, rel=1e-9, abs=1e-9, nan_ok=True)


@pytest.mark.parametrize(("objective", "metric"), ALL, ids=lambda one: getattr(one, "name", one))
@given(data=st.data())
def test_equal_weights_count_as_none(objective: ObjectiveName, metric: Metric, data: st.DataObject) -> None:
    y, p, _ = data.draw(weighted_rows(objective))
    equal = metric.value(y, p, w=np.full(len(y), 0.1))
    assert equal == pytest.approx(metric.value(y, p), rel=1e-9, abs=1e-9, nan_ok=True)


def repeated(case: HoldoutCase, w: Vector) -> HoldoutCase:
    again = np.repeat(np.arange(len(w)), w.astype(int))
    scores = (case.challenger, case.champion, case.baseline, case.reference)
    return HoldoutCase(case.holdout[again], *(one[again] for one in scores))


def weighted_case(seed: int = 0) -> tuple[HoldoutCase, Vector, HoldoutCase]:
    """A holdout with the column `weight`, its weights, and the same with repeated rows."""
    case = make_holdout(days=12, rows_a_day=80, seed=seed)
    w = np.random.default_rng(seed).integers(1, 4, case.holdout.height).astype(np.float64)
    again = repeated(case, w)
    scores = (case.challenger, case.champion, case.baseline, case.reference)
    return HoldoutCase(case.holdout.with_columns(pl.Series("weight", w / 5)), *scores), w, again


def alike(one: Any, other: Any, at: str = "") -> None:
    """Assert that two documents say the same, up to rounding, numbers of rows and words about them."""
    if isinstance(one, Mapping):
        said = {"rows", "weight", "validation_rows", "explanation", "reasons", "summary"}
        assert one.keys() == other.keys(), at
        for key in one.keys() - said:
            alike(one[key], other[key], f"{at}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), at
        for place, both in enumerate(zip(one, other, strict=True)):
            alike(*both, f"{at}.{place}")
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=1e-5, abs=2e-5, nan_ok=True), at
    else:
        assert one == other, at


def measured(case: HoldoutCase, weight: str | None) -> Evaluation:
    from ml_assets.model.evaluation.comparison.gates import Champion

    return evaluate(case.holdout, case.predictions(), SPEC, champion=Champion("version 1"), weight=weight)


def test_an_evaluation_of_weighted_rows_is_that_of_repeated_rows() -> None:
    """Metrics with intervals, slices, bias, calibration, curves and the decision."""
    case, _, again = weighted_case()
    weighted, rows = measured(case, "weight"), measured(again, None)
    assert (weighted.weight, rows.weight) == ("weight", "")
    assert weighted.rows == case.holdout.height < rows.rows
    assert weighted.model_dump() != measured(case, None).model_dump()
    alike(rows.model_dump(), weighted.model_dump())


def test_an_evaluation_with_equal_weights_is_that_without() -> None:
    case = make_holdout(days=12, rows_a_day=80)
    same = HoldoutCase(
        case.holdout.with_columns(weight=pl.lit(0.1)),
        case.challenger,
        case.champion,
        case.baseline,
        case.reference,
    )
    alike(measured(case, None).model_dump(), measured(same, "weight").model_dump())


def test_classes_of_weighted_rows_are_those_of_repeated_rows() -> None:
    case, w, again = weighted_case(1)
    random = np.random.default_rng(2)
    label = random.integers(0, 3, len(w))
    shares = random.dirichlet([2, 2, 2], len(w)) + np.eye(3)[label] / 2
    shares /= shares.sum(axis=1, keepdims=True)
    spec = EvaluationSpec.model_validate(
        {
            "objective": "multiclass",
            "gates": [{"name": "good", "metric": "accuracy", "at_least": 0.1}],
            "draws": 200,
        }
    )
    rows = np.repeat(np.arange(len(w)), w.astype(int))

    def of(holdout: pl.DataFrame, at: Any, weight: str | None) -> Evaluation:
        given = {"challenger": shares[at], "baseline": shares[at], "reference": shares[at]}
        labelled = holdout.with_columns(pl.Series("label", label[at]))
        return evaluate(labelled, given, spec, weight=weight, classes=("a", "b", "c"))

    weighted, twice = of(case.holdout, slice(None), "weight"), of(again.holdout, rows, None)
    alike(twice.model_dump(), weighted.model_dump())
    assert [sum(row) for row in weighted.curves.confusion] == pytest.approx([1, 1, 1], abs=1e-4)


def test_thresholds_of_weighted_rows_are_those_of_repeated_rows() -> None:
    (case, w, again), (other, v, more) = weighted_case(), weighted_case(1)
    costs = CostSection(false_positive=1, false_negative=4)

    def table(validation: HoldoutCase, of_it: Vector, holdout: HoldoutCase, of_holdout: Vector) -> Any:
        days = holdout.holdout["date"].rank("dense").to_numpy().astype(np.intp) - 1
        first, second = (
            ScoredRows.of(one.holdout["label"], one.challenger, weights)
            for one, weights in ((validation, of_it), (holdout, of_holdout))
        )
        return threshold_table(costs, first, second, (days, draw_blocks(12, 200, 0)), 0.95).model_dump()

    ones = np.ones(more.holdout.height), np.ones(again.holdout.height)
    alike(table(more, ones[0], again, ones[1]), table(other, v / 3, case, w / 5))


def test_worst_slices_of_weighted_rows_are_those_of_repeated_rows() -> None:
    case, _, again = weighted_case()
    # A slice on which the model fails, so that the search has something to name.
    wrong = np.where(case.holdout["carrier"] == "AA", 1 - case.challenger, case.challenger)
    wrong_again = np.where(again.holdout["carrier"] == "AA", 1 - again.challenger, again.challenger)

    def found(one: HoldoutCase, challenger: Vector, weight: str | None) -> Any:
        given = one.predictions() | {"challenger": challenger}
        carriers = [one.holdout["carrier"]]
        some = worst_slices(one.holdout, given, SPEC, label="label", weight=weight, features=carriers)
        assert some is not None
        assert some.worse
        return some.model_dump()

    alike(found(again, wrong_again, None), found(case, wrong, "weight"))


def test_a_difference_of_versions_counts_weights() -> None:
    case, _, again = weighted_case()
    weighted, rows = (
        difference(one.holdout, one.champion, one.challenger, SPEC, label="label", weight=weight)
        for one, weight in ((case, "weight"), (again, None))
    )
    for one, other in zip(weighted.overall, rows.overall, strict=True):
        assert (one.before, one.after) == pytest.approx((other.before, other.after))
        assert one.improvement.low == pytest.approx(other.improvement.low)
    assert weighted.weight == "weight"


def test_an_own_metric_gets_the_weights_of_the_rows() -> None:
    case, _, again = weighted_case()

    def loss(label: Any, prediction: Any, group: Any, weight: Any) -> float:
        return float(np.average((label - prediction) ** 2, weights=weight))

    declared = OwnMetricSection(function="project.metrics.loss", better="lower")
    own = OwnMetric(declared=declared, function=loss, code_version="1")
    spec = SPEC.model_copy(update={"metrics": (declared,), "bias": (), "gates": ()})
    values = [
        evaluate(
            one.holdout, one.predictions(champion=False), spec, own_metrics=[own], weight=weight
        ).overall.metrics["challenger"]
        for one, weight in ((case, "weight"), (again, None))
    ]
    assert values[0]["loss"].value == pytest.approx(values[0]["brier"].value)
    assert values[0]["loss"].value == pytest.approx(values[1]["loss"].value)
    assert values[0]["loss"].low == pytest.approx(values[1]["loss"].low)


def test_explanations_count_weights() -> None:
    """A column whose effect only rows of much weight have is as important as that weight."""
    case, _, _ = weighted_case()
    holdout = case.holdout.with_columns(known=case.challenger, weight=pl.lit(1.0))
    heavy = pl.when(pl.col("origin") == "EWR").then(1000.0).otherwise(1.0)

    def predict(rows: pl.DataFrame) -> Vector:
        return np.where(rows["origin"] == "EWR", rows["known"], 0.25)

    def added(frame: pl.DataFrame) -> float:
        found = explain(frame, predict, {"known": "numeric"}, SPEC, label="label", weight="weight", shown=())
        return found.columns[0].added.value or 0.0

    inside = holdout.filter(pl.col("origin") == "EWR")
    assert added(holdout.with_columns(heavy.alias("weight"))) > 2 * added(holdout)
    assert added(inside) > 2 * added(holdout)


@given(
    rows=st.lists(
        st.tuples(st.integers(-5, 5), st.sampled_from("abc"), st.integers(1, 4)), min_size=1, max_size=30
    ),
    prior=st.floats(0.1, 100),
    quantile=st.sampled_from([None, 0.5, 0.9]),
)
def test_baseline_of_weighted_rows_is_that_of_repeated_rows(
    rows: list[tuple[int, str, int]], prior: float, quantile: float | None
) -> None:
    """`prior_rows` is in rows: of rows repeated n times on average, n times the prior counts the same."""
    train = pl.DataFrame(rows, schema={"label": pl.Float64, "g": pl.String, "w": pl.Float64}, orient="row")
    times = train["w"].to_numpy()
    again = train[np.repeat(np.arange(train.height), times.astype(int))]

    def fitted(frame: pl.DataFrame, weight: str | None, prior: float) -> GroupMeans:
        sums = LabelSums.of([frame], weight=weight, groups=["g"], by_label=quantile is not None)
        return GroupMeans.fit(sums, prior_rows=prior, quantile=quantile)

    weighted, other = fitted(train, "w", prior), fitted(again, None, prior * times.mean())
    assert weighted.predict(train) == pytest.approx(other.predict(train))
    scaled = train.with_columns(pl.col("w") * 1e-3)
    assert fitted(scaled, "w", prior).predict(train) == pytest.approx(weighted.predict(train))


def regression_rows(objective: ObjectiveName, seed: int) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    x, w = random.normal(0, 1, 400), random.integers(1, 4, 400)
    # The rows of large weight follow another line.
    signal = np.where(w > 2, -x, x)
    drawn = {
        "binary": (random.random(400) < 1 / (1 + np.exp(-2 * signal))).astype(np.float64),
        "regression": signal + random.normal(0, 0.1, 400),
        "quantile 0.8": signal + random.normal(0, 0.1, 400),
        "count": random.poisson(np.exp(signal / 2)).astype(np.float64),
        "multiclass": (signal > 0).astype(np.float64) + (x > 1),
    }
    return pl.DataFrame({"x": x, "w": w / 2, "times": w, "label": drawn[objective]})


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_reference_and_baseline_fit_and_choose_by_weights(objective: ObjectiveName) -> None:
    """The regression of weighted rows is that of repeated rows, up to the unit of its penalty."""
    train, validation = (regression_rows(objective, seed) for seed in (0, 1))
    classes = 3 if facts_of(objective).has_classes else 0

    def encode(frame: pl.DataFrame) -> Any:
        return frame.select("x").to_numpy().astype(np.float32), np.empty((frame.height, 0), np.int32)

    def fitted(of: list[pl.DataFrame], weight: str | None) -> Vector:
        model = reference_model(
            of[0], of[1], encode, objective, label="label", weight=weight, classes=classes
        )
        return model.predict(validation)

    again = [
        frame[np.repeat(np.arange(frame.height), frame["times"].to_numpy())] for frame in (train, validation)
    ]
    weighted, unweighted = fitted([train, validation], "w"), fitted([train, validation], None)
    assert weighted == pytest.approx(fitted(again, None), abs=0.05, rel=0.05)
    assert np.abs(weighted - unweighted).max() > 0.1
    constant = [frame.with_columns(w=pl.lit(0.3)) for frame in (train, validation)]
    assert fitted(constant, "w") == pytest.approx(unweighted, rel=1e-6, abs=1e-6)
    spec = BaselineSpec()
    means = [
        naive_baseline([of[0]], of[1], spec, objective, weight=weight, classes=classes).predict(validation)
        for of, weight in ((again, None), ([train, validation], "w"))
    ]
    assert means[0] == pytest.approx(means[1])


@pytest.mark.parametrize("weight", [0.0, -1.0, None, float("nan"), float("inf")])
def test_a_weight_that_is_not_above_zero_is_refused(weight: float | None) -> None:
    case = make_holdout(days=2)
    w = [weight, *[1.0] * (case.holdout.height - 1)]
    holdout = case.holdout.with_columns(pl.Series("w", w, dtype=pl.Float64))
    given = case.predictions(champion=False)
    with pytest.raises(EvaluationInputError, match=r"1 of 120 rows .* 'w'"):
        evaluate(holdout, given, SPEC, weight="w")
    with pytest.raises(EvaluationInputError, match="no column 'v'"):
        evaluate(holdout, given, SPEC, weight="v")


@pytest.mark.parametrize("unit", [0.1, 1e-170, 1e307])
def test_weights_in_any_unit_are_one_on_average(unit: float) -> None:
    """Equal weights are exactly 1, so metrics keep their bits."""
    assert weights_of(pl.DataFrame({"w": [unit] * 60}), "w").tolist() == [1.0] * 60
    assert weights_of(pl.DataFrame({"w": [unit, 3 * unit]}), "w") == pytest.approx([0.5, 1.5])
    with pytest.raises(EvaluationInputError, match=r"1 of 2 rows .* 'w' .* too small"):
        weights_of(pl.DataFrame({"w": [1e-50, 1.0]}), "w")
