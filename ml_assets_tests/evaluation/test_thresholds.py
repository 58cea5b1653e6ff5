"""Thresholds with costs: chosen on validation rows, measured on the holdout."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ml_assets.model.evaluation.comparison.curves import SHARES, ScoredRows, cheapest, threshold_table
from ml_assets.model.evaluation.comparison.holdout import evaluate
from ml_assets.model.evaluation.metrics.bootstrap import draw_blocks
from ml_assets.model.evaluation.report.report import render, summary_markdown
from ml_assets.model.evaluation.report_document import Report
from ml_assets.model.evaluation.spec import CostSection, EvaluationSpec
from ml_assets_tests.evaluation.holdout_case import HoldoutCase, make_holdout, model_facts

COSTS = CostSection(false_positive=1, false_negative=4, benefit=2, unit="EUR")


def cost(costs: CostSection, rows: ScoredRows, threshold: float | None) -> float:
    """Return the cost of all rows, one after the other."""
    total = 0.0
    for y, p, w in zip(rows.y, rows.p, rows.w, strict=True):
        if threshold is not None and p >= threshold:
            total += w * (-costs.benefit if y else costs.false_positive)
        else:
            total += w * (costs.false_negative if y else 0)
    return total


def scored(case: HoldoutCase) -> ScoredRows:
    return ScoredRows.of(case.holdout["label"], case.challenger, np.ones(len(case.challenger)))


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 10), st.integers(1, 3)), min_size=1, max_size=30
    ),
    false_positive=st.integers(1, 5),
    false_negative=st.integers(0, 5),
    benefit=st.integers(0, 5),
)
def test_no_threshold_is_cheaper_on_the_rows_that_choose(
    rows: list[tuple[int, int, int]], false_positive: int, false_negative: int, benefit: int
) -> None:
    costs = CostSection.model_construct(
        false_positive=false_positive, false_negative=false_negative, benefit=benefit
    )
    y, tenths, w = np.array(rows, dtype=np.float64).T
    drawn = ScoredRows(y=y, p=tenths / 10, w=w)
    least = cost(costs, drawn, cheapest(costs, drawn))
    assert least == min(cost(costs, drawn, one) for one in (None, *(tenth / 10 for tenth in range(11))))


def test_listed_thresholds_decide_exactly_their_shares() -> None:
    p = np.random.default_rng(3).permutation(200) / 200
    rows = ScoredRows(y=np.zeros(200), p=p, w=np.ones(200))
    redraws = np.arange(200, dtype=np.intp) % 10, draw_blocks(10, 20, 0)
    listed = threshold_table(COSTS, rows, rows, redraws, 0.95).listed
    shares = [float((p >= one.threshold).mean()) for one in listed if one.threshold]
    assert sorted(shares) == pytest.approx(sorted(SHARES), abs=1e-12)


def test_the_holdout_measures_and_does_not_choose(case: HoldoutCase) -> None:
    validation = make_holdout(seed=1)
    chosen_by = scored(validation)
    measured_on = scored(case)
    days = case.holdout["date"].rank("dense").to_numpy().astype(np.intp) - 1
    table = threshold_table(COSTS, chosen_by, measured_on, (days, draw_blocks(40, 200, 0)), 0.95)
    best = cheapest(COSTS, chosen_by)
    assert table.chosen.threshold == best
    assert best != cheapest(COSTS, measured_on)
    assert table.listed[0].threshold is None
    assert (table.listed[0].positive, table.listed[-1].positive) == (0, 1)
    assert table.listed[-1].recall == 1
    assert table.listed[-1].precision == pytest.approx(measured_on.y.mean())
    for one in table.listed:
        assert one.cost.value == pytest.approx(
            1000 * cost(COSTS, measured_on, one.threshold) / len(measured_on.y)
        )
        assert one.cost.low is not None
        assert one.cost.low < (one.cost.value or 0)

    spec = EvaluationSpec.model_validate(
        {"objective": "binary", "draws": 100, "gates": [{"name": "g", "metric": "auc", "at_least": 0.5}]}
    )
    report = Report(
        title="m",
        partition="p",
        lineage={},
        model=model_facts(),
        evaluation=evaluate(case.holdout, case.predictions(champion=False), spec),
        thresholds=table,
    )
    for page in (render(report), summary_markdown(report, {})):
        assert "a false positive costs 1 EUR, a false negative 4 EUR, a true positive gains 2 EUR" in page
        assert f"On 2,400 validation rows, the threshold {best:.4f} costs least." in page
        assert "With exact probabilities the cheapest threshold would be 0.1429." in page


@pytest.mark.parametrize(
    ("costs", "objective", "complaint"),
    [
        ({"false_positive": 1}, "binary", "costs needs `false_negative` or `benefit`"),
        ({"false_positive": 0, "false_negative": 1}, "binary", "greater than 0"),
        (
            {"false_positive": 1, "false_negative": 1},
            "regression",
            "objective binary; regression decides nothing",
        ),
        ({"false_positive": 1, "false_negativ": 1}, "binary", "did you mean 'false_negative'"),
    ],
)
def test_costs_that_cannot_be_meant_are_refused(
    costs: dict[str, float], objective: str, complaint: str
) -> None:
    metric = "auc" if objective == "binary" else "rmse"
    gates = [{"name": "g", "metric": metric, "at_most": 1}]
    with pytest.raises(ValidationError, match=complaint):
        EvaluationSpec.model_validate({"objective": objective, "costs": costs, "gates": gates})
