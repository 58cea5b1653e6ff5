"""Decisions compared between groups: the differences of scikit-learn's counts, with intervals, gates and names."""

from datetime import date, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest
from pydantic import ValidationError
from sklearn.metrics import confusion_matrix

from ml_assets.model.evaluation.comparison.declared_metrics import groupings_of
from ml_assets.model.evaluation.comparison.holdout import evaluate
from ml_assets.model.evaluation.evaluation_document import Evaluation, GateDecision
from ml_assets.model.evaluation.metrics.bootstrap import draw_blocks
from ml_assets.model.evaluation.metrics.metrics import Vector
from ml_assets.model.evaluation.metrics.row_weights import EvaluationInputError
from ml_assets.model.evaluation.report.chapters import bias_chapters
from ml_assets.model.evaluation.report.report import render, summary_markdown
from ml_assets.model.evaluation.report_document import Report
from ml_assets.model.evaluation.spec import BiasSection, EvaluationSpec
from ml_assets_tests.evaluation.holdout_case import model_facts

DAYS, ROWS = 30, 3_000
RANDOM = np.random.default_rng(14)
REGION = RANDOM.choice(["east", "north", "south"], ROWS)
LABEL = (RANDOM.random(ROWS) < 0.4).astype(np.float64)
SCORE = np.clip(0.25 + 0.4 * LABEL + 0.15 * (REGION == "south") + RANDOM.normal(0, 0.2, ROWS), 0, 1)
THRESHOLD = 0.55
PARITY, OPPORTUNITY = "demographic_parity_region", "equal_opportunity_region"
OF_LOSS = {"name": "not absurd", "metric": "logloss", "at_most": 100}
"""A gate that always passes. Gates on bias alone are refused."""
HOLDOUT = pl.DataFrame(
    {
        "date": [date(2024, 1, 1) + timedelta(days=int(day)) for day in np.arange(ROWS) % DAYS],
        "region": REGION,
        "half": np.where(np.arange(ROWS) < ROWS // 2, "first", "second"),
        "label": LABEL,
    }
)


def spec_of(**changes: Any) -> EvaluationSpec:
    spec = {
        "objective": "binary",
        "draws": 200,
        "slices": ["half"],
        "bias": [{"column": "region", "threshold": THRESHOLD}],
        "gates": [{"name": "alike", "metric": PARITY, "at_most": 0.5}],
    } | changes
    return EvaluationSpec.model_validate(spec | {"gates": [*spec["gates"], OF_LOSS]})


def measured(holdout: pl.DataFrame = HOLDOUT, score: Vector = SCORE, **changes: Any) -> Evaluation:
    predictions = {
        "challenger": score,
        "baseline": np.full(len(score), 0.4),
        "reference": np.clip(score + 0.1, 0, 1),
    }
    return evaluate(holdout, predictions, spec_of(**changes))


def rule(decision: GateDecision) -> tuple[str, str]:
    found, _ = decision.rules
    return found.status, found.explanation


def shares(rows: Any) -> dict[str, tuple[float, float]]:
    """Group → share decided positive and true positive rate among `rows`, from scikit-learn's counts."""
    found: dict[str, tuple[float, float]] = {}
    for group in ("east", "north", "south"):
        inside = rows & (group == REGION)
        tn, fp, fn, tp = confusion_matrix(LABEL[inside], SCORE[inside] >= THRESHOLD).ravel()
        found[group] = (tp + fp) / (tn + fp + fn + tp), tp / (tp + fn)
    return found


def test_differences_are_those_of_the_counts_of_each_group() -> None:
    found = measured()
    every = np.ones(ROWS, dtype=np.bool)
    halves = [(HOLDOUT["half"] == name).to_numpy() for name in ("first", "second")]
    for part, rows in zip((found.overall, *found.slices), (every, *halves), strict=True):
        for at, name in enumerate((PARITY, OPPORTUNITY)):
            of_groups = [one[at] for one in shares(rows).values()]
            one = part.metrics["challenger"][name]
            assert one.value == pytest.approx(max(of_groups) - min(of_groups), abs=1e-12)
            assert 0 <= (one.low or 0) < (one.value or 0) < (one.high or 0) <= 1
    # A constant prediction decides alike for all; it is better by the whole difference, with an interval.
    assert found.overall.metrics["baseline"][PARITY].value == 0
    improvement = found.overall.improvements["baseline"][PARITY]
    assert improvement.value == pytest.approx(-(found.values()[PARITY]))
    assert improvement.high is not None
    (figures,) = found.bias
    for group, (positive, rate) in zip(figures.groups, shares(every).values(), strict=True):
        assert (group.decided_positive.share.value, group.true_positives.share.value) == pytest.approx(
            (positive, rate)
        )
        assert group.decided_positive.left_out == group.true_positives.left_out == ""
        assert (group.true_positives.share.low or 0) < rate < (group.true_positives.share.high or 0)


def test_redraws_are_differences_of_repeated_rows() -> None:
    """The interval's redraws equal the difference on rows repeated as often as their block was drawn."""
    spec = EvaluationSpec.model_validate(
        {
            "objective": "binary",
            "bias": [{"column": "region", "threshold": THRESHOLD}],
            "gates": [{"name": "g", "metric": "auc", "at_least": 0.5}],
        }
    )
    (grouping,) = groupings_of(HOLDOUT, spec)
    blocks = (np.arange(ROWS) % DAYS).astype(np.intp)
    counts = draw_blocks(DAYS, 3, seed=1)
    forms = {
        name: form
        for name, form, _ in grouping.forms(np.arange(ROWS), LABEL, SCORE, np.ones(ROWS), blocks, DAYS)
    }
    for draw, drawn in enumerate(counts):
        again = np.repeat(np.arange(ROWS), drawn[blocks].astype(np.intp))
        region, right = REGION[again], SCORE[again] >= THRESHOLD
        positives = [float(right[region == one].mean()) for one in np.unique(region)]
        rates = [float(right[(region == one) & (LABEL[again] > 0)].mean()) for one in np.unique(region)]
        assert forms[PARITY](counts)[draw] == pytest.approx(max(positives) - min(positives))
        assert forms[OPPORTUNITY](counts)[draw] == pytest.approx(max(rates) - min(rates))


def test_gates_limit_and_compare_them_as_every_metric() -> None:
    wide = measured(gates=[{"name": "alike", "metric": PARITY, "at_most": 0.05}]).decision
    assert wide.status == "rejected"
    assert "by region is 0." in rule(wide)[1]
    harm = {"name": "as fair", "metric": OPPORTUNITY, "better_than": "reference", "on_undecided": "pass"}
    assert (
        measured(gates=[harm]).decision.status == "rejected"
    )  # shown: the reference decides almost all positive
    same = measured(score=np.full(ROWS, 0.4), gates=[harm | {"better_than": "baseline"}])
    assert same.decision.status == "blessed"  # no harm is shown


def test_a_group_of_one_row_or_without_positives_is_named() -> None:
    few = HOLDOUT.with_columns(
        region=pl.when(pl.int_range(pl.len()) == 7)
        .then(pl.lit("alone"))
        .when((pl.col("region") == "north") & (pl.col("label") == 0))
        .then(pl.lit("never"))
        .when(pl.col("region") == "east")
        .then(None)
        .otherwise("region")
    )
    found = measured(few)
    by_name = {one.name: one for one in found.bias[0].groups}
    alone, never = by_name["alone"].decided_positive.left_out, by_name["never"].true_positives.left_out
    assert (alone.startswith("1 row,"), never.startswith("0 rows of label 1,")) == (True, True)
    assert all(one.endswith(" 100") for one in (alone, never))
    assert by_name["never"].decided_positive.left_out == ""
    assert by_name["never"].true_positives.share.value is None
    assert by_name["(none)"].decided_positive.share.high is not None  # rows without a value
    report = Report(title="m", partition="p", lineage={}, evaluation=found, model=model_facts())
    for page in (render(report), summary_markdown(report, {})):
        assert f"parity: {alone}" in page
        assert f"opportunity: {never}" in page
        assert "Decisions by region" in page


def test_a_group_in_few_blocks_does_not_decide() -> None:
    """A third of the redraws would lack a group of one day."""
    one_day = HOLDOUT.with_columns(
        region=pl.when(pl.col("date") == date(2024, 1, 3)).then(pl.lit("guest")).otherwise("region")
    )
    found = measured(one_day, bias=[{"column": "region", "threshold": THRESHOLD, "min_rows": 20}])
    by_name = {one.name: one for one in found.bias[0].groups}
    assert "in 1 block," in by_name["guest"].decided_positive.left_out
    assert found.overall.metrics["challenger"][PARITY].high is not None


def test_without_two_groups_a_gate_is_undecided_with_the_remedy() -> None:
    alone = measured(HOLDOUT.with_columns(region=pl.lit("north")))
    assert alone.decision.status == "undecided"
    only, _ = alone.decision.rules
    assert (only.metric, only.status, only.measured and only.measured.value) == (PARITY, "undecided", None)
    assert "parity by region" in only.explanation
    assert only.would_pass is not None
    assert only.would_pass.startswith("two groups of region")
    assert "100 rows" in only.would_pass


def test_a_column_of_numbers_is_no_group() -> None:
    with pytest.raises(EvaluationInputError, match="'region', which has 3,000"):
        measured(HOLDOUT.with_columns(region=pl.int_range(ROWS)))


def test_a_page_shows_the_largest_groups_and_counts_the_others() -> None:
    many = HOLDOUT.with_columns(region=pl.Series([f"r{number % 50}|<b>" for number in range(ROWS)]))
    (chapter,) = bias_chapters(measured(many))
    text = "\n".join(chapter.to_markdown())
    assert text.count("fewer than 100") == 40
    assert "30 smaller groups" in text
    assert "r1\\|\\<b>" in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"objective": "regression"},
            "bias compares decisions of objective binary; regression decides nothing",
        ),
        ({"bias": [{"column": "region", "threshold": 0.5}] * 2}, "bias must name each column once: region"),
        ({"bias": [{"column": "region", "threshold": 50}]}, "less than 1"),
        ({"bias": []}, "no metric 'demographic_parity_region' for objective 'binary'"),
    ],
)
def test_a_comparison_that_cannot_be_made_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        measured(**changes)


def test_a_first_model_need_not_be_less_biased_than_a_constant() -> None:
    """A gate on bias against the champion has a metric of skill in its place."""
    gates = [{"name": "no more bias", "metric": OPPORTUNITY, "better_than": "champion", "margin": -0.02}]
    decision = measured(gates=gates).decision
    rule_of_bias, _, instead = decision.rules
    assert rule_of_bias.status == "not_applicable"
    assert (instead.metric, instead.status) == ("auc", "passed")


def test_a_difference_is_as_uncertain_as_its_rarest_group() -> None:
    """Its rows of label 1 lie in 6 of 30 days."""
    y = np.where((REGION == "south") & (np.arange(ROWS) % DAYS > 5), 0.0, LABEL)
    spec = BiasSection(column="region", threshold=THRESHOLD, min_rows=20)
    (grouping,) = groupings_of(HOLDOUT, spec_of(bias=[spec.model_dump()]))
    blocks = (np.arange(ROWS) % DAYS).astype(np.intp)
    forms = grouping.forms(np.arange(ROWS), y, SCORE, np.ones(ROWS), blocks, DAYS)
    assert {name: blocks for name, _, blocks in forms} == {PARITY: DAYS, OPPORTUNITY: 6}
