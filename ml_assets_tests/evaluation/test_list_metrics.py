"""Metrics of lists: they agree with scikit-learn, do not depend on the order of tied rows, and follow the law of
blocks."""

import itertools
import math
from datetime import date, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score

from ml_assets.model.evaluation.comparison.holdout import evaluate
from ml_assets.model.evaluation.comparison.holdout_rows import places_of_few_lists
from ml_assets.model.evaluation.metrics.bootstrap import block_form
from ml_assets.model.evaluation.metrics.list_metrics import ListFigures, gain, reciprocal_rank, share_found
from ml_assets.model.evaluation.metrics.metrics import metric_named
from ml_assets.model.evaluation.metrics.row_weights import EvaluationInputError
from ml_assets.model.evaluation.report.report import render, summary_markdown
from ml_assets.model.evaluation.report_document import Report
from ml_assets.model.evaluation.spec import EvaluationSpec
from ml_assets_tests.evaluation.holdout_case import model_facts


@st.composite
def lists_of_rows(draw: st.DrawFn, most_rows: int = 40) -> tuple[Any, Any, Any]:
    """Relevance, scores (with many ties) and the list of each row, in any order."""
    rows = draw(st.integers(1, most_rows))
    y = draw(st.lists(st.sampled_from([0.0, 0.0, 0.5, 1.0, 3.0]), min_size=rows, max_size=rows))
    p = draw(st.lists(st.integers(-3, 3).map(float), min_size=rows, max_size=rows))
    lists = draw(st.lists(st.integers(0, 5), min_size=rows, max_size=rows))
    return np.array(y), np.array(p), np.array(lists, dtype=np.intp)


def singly(y: Any, p: Any, lists: Any) -> list[tuple[Any, Any]]:
    return [(y[lists == number], p[lists == number]) for number in np.unique(lists)]


@given(drawn=lists_of_rows(), places=st.integers(1, 12))
def test_ndcg_is_that_of_scikit_learn_for_every_list_whose_order_matters(drawn: Any, places: int) -> None:
    y, p, lists = drawn
    for found, (labels, scores) in zip(gain(y, p, lists, places), singly(y, p, lists), strict=True):
        if len(set(labels)) < 2:
            assert math.isnan(found)
        else:
            assert found == pytest.approx(ndcg_score([labels], [scores], k=places), abs=1e-9)


@given(drawn=lists_of_rows(most_rows=6), places=st.integers(1, 4))
def test_tied_rows_count_as_the_mean_over_all_their_orders(drawn: Any, places: int) -> None:
    y, p, _ = drawn
    if len(set(y)) < 2:
        return
    one = np.zeros(len(y), dtype=np.intp)
    ranks: list[float] = []
    shares: list[float] = []
    for order in itertools.permutations(range(len(y))):
        if all(p[a] >= p[b] for a, b in itertools.pairwise(order)):
            relevant = [place for place, row in enumerate(order) if y[row] > 0]
            ranks.append(1 / (1 + relevant[0]))
            shares.append(sum(place < places for place in relevant) / len(relevant))
    assert reciprocal_rank(y, p, one)[0] == pytest.approx(np.mean(ranks))
    assert share_found(y, p, one, places)[0] == pytest.approx(np.mean(shares))


@pytest.mark.parametrize("name", ["ndcg", "mrr", "recall"])
@given(drawn=lists_of_rows(), counts=st.lists(st.integers(0, 3), min_size=3, max_size=3))
def test_a_metric_of_counts_is_that_of_repeated_lists(name: str, drawn: Any, counts: list[int]) -> None:
    y, p, lists = drawn
    metric, blocks = metric_named(name, "ranking 3"), (lists % 3).astype(np.intp)
    [found] = block_form(metric, y, p, blocks, 3, lists=lists)(np.array([counts], dtype=np.float64))
    copies = [
        (np.flatnonzero(lists == number), copy)
        for number in np.unique(lists)
        for copy in range(counts[number % 3])
    ]
    again = np.concatenate([rows for rows, _ in copies]) if copies else np.empty(0, dtype=np.intp)
    of = np.concatenate([np.full(len(rows), at) for at, (rows, _) in enumerate(copies)] or [again])
    expected = metric.value(y[again], p[again], lists=of.astype(np.intp))
    assert found == pytest.approx(expected, nan_ok=True)


def test_lists_whose_order_does_not_matter_are_counted_by_reason() -> None:
    """A single row, no relevant row, equally relevant rows: any model orders them equally well."""
    labels = {0: [1.0], 1: [0.0], 2: [0.0, 0.0], 3: [2.0, 2.0, 2.0], 4: [0.0, 1.0], 5: [1.0, 2.0]}
    y = np.concatenate([np.array(one) for one in labels.values()])
    lists = np.repeat(list(labels), [len(one) for one in labels.values()]).astype(np.intp)
    assert ListFigures.of(y, lists) == ListFigures(lists=6, one_row=2, none_relevant=1, equally_relevant=1)
    for found in (gain(y, y, lists, 3), share_found(y, y, lists, 3), reciprocal_rank(y, y, lists)):
        assert np.isnan(found).tolist() == [True, True, True, True, False, False]
        assert found[4:].tolist() == [1.0, 1.0]


def _holdout(bootstrap_unit: str = "date") -> tuple[pl.DataFrame, EvaluationSpec]:
    """Sixty sessions of five rows, three a day; one row of a session is relevant."""
    random = np.random.default_rng(1)
    session = np.repeat(np.arange(60), 5)
    label = np.zeros(300)
    label[np.arange(60) * 5 + random.integers(0, 5, 60)] = 1.0
    label[:5] = 0.0
    holdout = pl.DataFrame(
        {
            "session": session,
            "date": [date(2024, 1, 1) + timedelta(days=int(one) // 3) for one in session],
            "hour": random.integers(0, 24, 300),
            "age": session % 2,
            "label": label,
        }
    )
    spec = EvaluationSpec.model_validate(
        {
            "objective": "ranking 2",
            "group": "session",
            "bootstrap_unit": bootstrap_unit,
            "draws": 200,
            "slices": ["age"],
            "min_slice_rows": 20,
            "gates": [
                {"name": "better", "metric": "ndcg", "better_than": "baseline", "margin": "0.5%"},
                {"name": "each age", "metric": "mrr", "better_than": "baseline", "slice": {"age": "*"}},
            ],
        }
    )
    return holdout, spec


def test_gates_slices_and_intervals_of_lists_are_those_of_other_metrics() -> None:
    holdout, spec = _holdout()
    random = np.random.default_rng(2)
    score = holdout["label"].to_numpy() + random.normal(0, 0.5, 300)
    predictions = {"challenger": score, "baseline": np.zeros(300), "reference": random.random(300)}
    evaluation = evaluate(holdout, predictions, spec)
    assert evaluation.decision.status == "blessed", evaluation.decision.reasons
    assert list(evaluation.values()) == ["ndcg", "mrr", "recall"]
    assert evaluation.lists == ListFigures(lists=60, one_row=0, none_relevant=1, equally_relevant=0)
    [young, old] = evaluation.slices
    assert young.metrics["challenger"]["ndcg"].low is not None
    assert old.prediction_mean == {}
    # One score for all rows is a random order: each of the five places is as likely.
    assert evaluation.values("baseline")["mrr"] == pytest.approx(np.mean(1 / np.arange(1, 6)))
    assert evaluation.values("baseline")["recall"] == pytest.approx(2 / 5)
    report = Report(title="m", partition="p", lineage={}, model=model_facts(), evaluation=evaluation)
    page = render(report)
    assert (
        "60 lists. Any order of 1 of them is as good as any other, so no metric counts them: 1 with no"
        in page
    )
    assert '<img alt="depth"' in page
    assert "NDCG@2" in page
    assert ">predicted<" not in page
    assert "| recall@2 |" in summary_markdown(report)
    assert evaluation.curves.depth["challenger"][1] == pytest.approx(evaluation.values()["ndcg"], abs=1e-6)


def test_blocks_whose_lists_have_no_value_do_not_count() -> None:
    """Four sessions of sixty can be ordered: too few for any gate, however good their order is."""
    holdout, spec = _holdout("session")
    holdout = holdout.with_columns(label=pl.col("label") * (pl.col("session") <= 4))
    label = holdout["label"].to_numpy()
    decision = evaluate(
        holdout, {"challenger": label, "baseline": np.zeros(300), "reference": np.zeros(300)}, spec
    ).decision
    assert decision.status == "undecided"
    assert "there are 4 blocks," in decision.rules[0].explanation


def test_few_lists_are_whole_and_spread_evenly() -> None:
    holdout, _ = _holdout()
    few = holdout[places_of_few_lists(holdout["session"], 100)]
    assert few["session"].value_counts()["count"].to_list() == [5] * 20
    assert few["session"].max() == 59
    assert places_of_few_lists(holdout["session"], 1000).tolist() == list(range(holdout.height))


def test_a_list_in_two_blocks_is_refused_by_name() -> None:
    holdout, spec = _holdout("hour")
    same = np.zeros(300)
    with pytest.raises(EvaluationInputError, match=r"'hour': session 0, 1, 2, …"):
        evaluate(holdout, {"challenger": same, "baseline": same, "reference": same}, spec)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"group": None}, "objective 'ranking 2' orders lists: name the column"),
        (
            {"objective": "regression", "gates": [{"name": "g", "metric": "rmse", "at_most": 1}]},
            "group is for objective 'ranking', and the objective is 'regression': remove it",
        ),
    ],
)
def test_a_group_belongs_to_a_ranking(changes: dict[str, Any], said: str) -> None:
    spec = _holdout()[1].model_dump()
    with pytest.raises(ValueError, match=said):
        EvaluationSpec.model_validate(spec | changes)
