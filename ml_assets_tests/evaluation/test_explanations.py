"""Explanations: importance of columns and partial dependence, from predictions alone."""

from datetime import date, timedelta

import numpy as np
import polars as pl
import pytest

from ml_assets.foundation.reports.page import Paragraph
from ml_assets.model.evaluation.comparison.explanations import POINTS, NotPredicted, explain
from ml_assets.model.evaluation.metrics.metrics import Vector
from ml_assets.model.evaluation.report.chapters import explanation_chapters
from ml_assets.model.evaluation.report.pictures import dependence_drawn_later
from ml_assets.model.evaluation.report_document import Explanations
from ml_assets.model.evaluation.spec import EvaluationSpec
from ml_assets.model.steps.evaluate import most_rows

KINDS = {"strong": "numeric", "weak": "numeric", "kind": "category", "ignored": "numeric", "empty": "numeric"}
LEVELS = {"a": 0.0, "b": 0.5, "c": 1.0}


def spec(objective: str) -> EvaluationSpec:
    metric = "rmse" if objective == "regression" else "logloss"
    gates = [{"name": "g", "metric": metric, "at_most": 1}]
    return EvaluationSpec.model_validate({"objective": objective, "draws": 100, "gates": gates})


def value(rows: pl.DataFrame) -> Vector:
    """A model of three of the five columns."""
    level = rows["kind"].replace_strict(LEVELS, default=0.0).to_numpy()
    return 3 * rows["strong"].to_numpy() + 0.5 * rows["weak"].to_numpy() + level


def holdout_rows(seed: int = 0) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    days = [date(2024, 1, 1) + timedelta(days=at // 40) for at in range(800)]
    rows = pl.DataFrame(
        {
            "date": days,
            "strong": random.normal(0, 1, 800),
            "weak": random.normal(0, 1, 800),
            "kind": random.choice(["a", "b", "c", ""], 800, p=[0.5, 0.3, 0.1, 0.1]),
            "ignored": random.integers(0, 3, 800),
            "empty": [None] * 800,
        },
        schema_overrides={"kind": pl.String, "empty": pl.Float64},
    )
    rows = rows.with_columns(pl.col("kind").replace("", None))
    return rows.with_columns(label=value(rows) + random.normal(0, 0.5, 800))


@pytest.fixture(scope="module")
def numbers() -> Explanations:
    return explain(holdout_rows(), value, KINDS, spec("regression"), label="label", shown=list(KINDS))


def test_the_column_that_a_model_uses_most_comes_first(numbers: Explanations) -> None:
    assert [one.column for one in numbers.columns[:3]] == ["strong", "weak", "kind"]
    assert numbers.metric == "rmse"
    for one in numbers.columns[:3]:
        assert (one.added.low or 0) > 0
    for one in numbers.columns[3:]:
        assert (one.added.value, one.added.low, one.added.high) == (0, 0, 0)


def test_the_dependence_is_the_mean_over_all_other_columns(numbers: Explanations) -> None:
    by_column = {one.column: one for one in numbers.dependence}
    assert set(by_column) == set(KINDS) - {"empty"}
    strong, kind, ignored = by_column["strong"], by_column["kind"], by_column["ignored"]
    assert len(strong.values) == POINTS
    assert np.polyfit(np.array(strong.values, dtype=np.float64), strong.means["prediction"], 1)[
        0
    ] == pytest.approx(3)
    assert kind.values == ("a", "b", "c")
    assert np.diff(kind.means["prediction"]) == pytest.approx([0.5, 0.5])
    assert ignored.values == (0, 1, 2)
    assert np.ptp(ignored.means["prediction"]) == pytest.approx(0)


def test_classes_have_a_curve_each() -> None:
    def shares(rows: pl.DataFrame) -> Vector:
        raised = np.exp(np.stack([rows["strong"].to_numpy(), np.zeros(rows.height)], axis=1))
        return raised / raised.sum(axis=1, keepdims=True)

    rows = holdout_rows().with_columns(label=(pl.col("strong") < 0).cast(pl.Int64))
    found = explain(
        rows, shares, KINDS, spec("multiclass"), label="label", shown=list(KINDS), classes=["up", "down"]
    )
    assert found.columns[0].column == "strong"
    (strong,) = [one for one in found.dependence if one.column == "strong"]
    assert list(np.diff(strong.means["up"]) > 0) == [True] * (POINTS - 1)
    assert np.add(strong.means["up"], strong.means["down"]) == pytest.approx(np.ones(POINTS))


def test_equal_rows_give_equal_explanations_and_pictures(numbers: Explanations) -> None:
    again = explain(holdout_rows(), value, KINDS, spec("regression"), label="label", shown=list(KINDS))
    assert again == numbers == Explanations.model_validate_json(numbers.model_dump_json())
    few = numbers.model_copy(update={"dependence": numbers.dependence[:1]})
    first, second = dependence_drawn_later(few, "svg"), dependence_drawn_later(few, "svg")
    assert {name: draw() for name, draw in first.items()} == {name: draw() for name, draw in second.items()}


def test_values_of_a_sensitive_column_are_not_drawn() -> None:
    found = explain(holdout_rows(), value, KINDS, spec("regression"), label="label", shown=["weak", "kind"])
    assert found.columns[0].column == "strong"
    assert [one.column for one in found.dependence] == ["weak", "kind"]


def test_a_column_without_a_prediction_for_other_rows_is_not_measured() -> None:
    """Counts of shuffled rows may be infinite. A column may have any name."""
    rows, names = holdout_rows().rename({"kind": "rows"}), {"rows": "category"} | KINDS
    del names["kind"]
    strong = rows["strong"]

    def often(changed: pl.DataFrame) -> Vector:
        if not changed["strong"].equals(strong):
            raise NotPredicted("infinite")
        return value(changed.rename({"rows": "kind"}))

    found = explain(rows, often, names, spec("regression"), label="label", shown=list(names))
    by_column = {one.column: one.added for one in found.columns}
    assert by_column["strong"].value is None
    assert (by_column["weak"].low or 0) > 0
    assert {"rows", "weak"} <= {one.column for one in found.dependence} <= set(names) - {"strong"}


@pytest.mark.parametrize(
    ("columns", "has_blobs", "rows"),
    [(84, False, 2_000), (316, False, 2_000), (1_000, False, 200), (5_000, False, 100), (3, True, 100)],
)
def test_a_table_of_many_columns_is_explained_on_fewer_rows(columns: int, has_blobs: bool, rows: int) -> None:
    assert most_rows(2_000, columns, has_blobs=has_blobs) == rows
    assert most_rows(100, columns, has_blobs=has_blobs) == 100


def test_a_page_counts_the_columns_that_it_leaves_out(numbers: Explanations) -> None:
    many = numbers.model_copy(update={"columns": numbers.columns * 4})
    (chapter,) = explanation_chapters(many, "regression")
    assert Paragraph("5 less important columns in evaluation.json.") in chapter.blocks
