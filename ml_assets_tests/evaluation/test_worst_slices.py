"""The worst slices are found among many, and none is named where chance alone makes a difference."""

from typing import Any

import numpy as np
import polars as pl
import pytest

from ml_assets.foundation.objective_facts import NAMES
from ml_assets.model.evaluation.comparison.holdout import evaluate
from ml_assets.model.evaluation.comparison.worst_slices import (
    MOST_MERGED_BLOCKS,
    MOST_PARTS,
    MOST_SHOWN,
    coded_columns,
    worst_slices,
)
from ml_assets.model.evaluation.metrics.metrics import row_loss_of
from ml_assets.model.evaluation.report.report import render, summary_markdown
from ml_assets.model.evaluation.report_document import Report, WorstSlices
from ml_assets.model.evaluation.spec import EvaluationSpec, SliceBy
from ml_assets_tests.evaluation.holdout_case import HoldoutCase, model_facts

ROWS = 2_400
FEATURES = ["region", "kind", "age", "size"]


def holdout(seed: int, *, planted: float = 0.0, days: int = 30, hardness: float = 0.5) -> pl.DataFrame:
    """Rows with the error of a model in `error`, by days of which some are hard.

    If `planted` is positive, errors of the north's third kind are larger by this share.
    """
    random = np.random.default_rng(seed)
    day = random.integers(0, days, ROWS)
    region, kind = random.choice(["north", "south", "west"], ROWS), random.integers(0, 4, ROWS)
    error = np.exp(random.normal(0, 0.5, ROWS) + random.normal(0, hardness, days)[day])
    return pl.DataFrame(
        {
            "date": day,
            "region": region,
            "kind": kind,
            "age": random.normal(0, 1, ROWS) + random.normal(0, 1, days)[day],
            "size": random.normal(0, 1, ROWS),
            "error": error * (1 + planted * ((region == "north") & (kind == 2))),
            "label": 0.0,
        }
    )


def spec(**changes: Any) -> EvaluationSpec:
    return EvaluationSpec.model_validate(
        {
            "objective": "regression",
            "draws": 300,
            "min_slice_rows": 100,
            "slices": ["region"],
            "gates": [{"name": "g", "metric": "mae", "at_most": 9}],
        }
        | changes
    )


def found(rows: pl.DataFrame, features: list[str] = FEATURES, **changes: Any) -> WorstSlices:
    """Search in predictions whose absolute errors are the column `error`."""
    predictions = {"challenger": rows["error"].to_numpy(), "baseline": np.full(rows.height, 1.0)}
    columns = rows.select(features).iter_columns()
    one = worst_slices(rows, predictions, spec(**changes), label="label", features=columns)
    assert one is not None
    return one


@pytest.mark.parametrize(("days", "hardness"), [(30, 0.5), (8, 0.5), (ROWS, 0.0)])
def test_no_slice_is_named_by_chance(days: int, hardness: float) -> None:
    """At most 5 % of holdouts without a worse slice name one, by few hard days as by single rows."""
    named = [
        seed for seed in range(60) if found(holdout(seed, days=days, hardness=hardness), seed=seed).worse
    ]
    assert len(named) <= 3


def test_a_planted_slice_is_found_with_its_figures() -> None:
    right = 0
    for seed in range(20):
        rows = holdout(seed, planted=1.0)
        first = next(iter(found(rows).shown), None)
        right += first is not None and dict(first.where) == {"region": "north", "kind": "2"}
    assert right >= 16
    inside = ((rows["region"] == "north") & (rows["kind"] == 2)).to_numpy()  # pyright: ignore
    errors = rows["error"].to_numpy()  # pyright: ignore
    search = found(rows)  # pyright: ignore
    first = search.shown[0]
    assert (first.rows, first.blocks, search.loss) == (inside.sum(), 30, "MAE")
    assert first.losses["challenger"] == pytest.approx(errors[inside].mean())
    assert first.losses["baseline"] == pytest.approx(1.0)
    assert first.elsewhere == pytest.approx(errors[~inside].mean())
    low, value, high = first.difference.low, first.difference.value, first.difference.high
    assert value == pytest.approx(errors[inside].mean() - errors[~inside].mean())
    assert None not in (low, value, high)
    assert 0 < low < value < high  # pyright: ignore


def test_slices_are_those_of_one_or_two_columns_with_enough_rows() -> None:
    rows = holdout(0).with_columns(
        twin=pl.when(pl.col("region") == "north").then(pl.lit("N")).otherwise(pl.lit("other")),
        constant=pl.lit("same"),
        name=pl.int_range(ROWS).cast(pl.String),
        nested=pl.Series([[1.0]] * ROWS),
        gone=pl.Series([None, 1.0] * (ROWS // 2)),
    )
    search = found(rows, [*FEATURES, "twin", "constant", "name", "nested", "gone"])
    # Slices first, each once; nothing to compare in a constant, single names or lists.
    assert search.columns == ("region", "kind", "age", "size", "twin", "gone")
    one, two = found(rows, ["kind"]), found(rows, ["kind", "twin"])
    assert one.candidates == 3 + 4 + 3 * 4
    # The north is the same rows under both names; the others of `twin` are new, alone and with each kind.
    assert two.candidates == one.candidates + 1 + 4
    assert found(rows, min_slice_rows=1500).candidates == 0
    assert found(rows, min_slice_rows=1500).worse == 0


def test_numbers_are_cut_at_quantiles_and_lose_no_row() -> None:
    rows = pl.DataFrame(
        {"n": [None, float("nan"), *[0.0] * 50, *range(1, 49)], "t": ["a", None] * 50}, strict=False
    )
    number, text = coded_columns(rows, [SliceBy(column="t")], [rows["n"]], least_rows=1)[::-1]
    assert number.parts[0] == "0 to 0"
    assert "(none)" in number.parts
    assert number.code.max() < len(number.parts)
    assert sorted(text.parts) == ["(none)", "a"]
    many = pl.DataFrame({"t": [f"v{index % 40}" for index in range(4_000)]})
    (column,) = coded_columns(many, [], [many["t"]], least_rows=100)
    assert len(column.parts) == MOST_PARTS
    assert (column.code == MOST_PARTS).sum() == 2_800


def test_a_named_slice_is_not_told_twice() -> None:
    """Every pair within a bad region is bad, too. Most of its rows are told by the region."""
    rows = holdout(3).with_columns(
        error=pl.col("error") * pl.when(pl.col("region") == "north").then(4.0).otherwise(1.0)
    )
    search = found(rows)
    assert search.worse > 10
    assert search.shown[0].where == (("region", "north"),)
    assert len(search.shown) <= 3 < MOST_SHOWN


def test_many_blocks_are_redrawn_together() -> None:
    rows = holdout(4, planted=1.5, days=ROWS, hardness=0.0)
    assert rows["date"].n_unique() > MOST_MERGED_BLOCKS
    first = found(rows).shown[0]
    assert dict(first.where) == {"region": "north", "kind": "2"}


def test_equal_predictions_have_no_worst_slice() -> None:
    search = found(holdout(5).with_columns(error=pl.lit(1.0)))
    assert (search.worse, search.shown) == (0, ())


def test_every_objective_has_a_loss_of_rows() -> None:
    losses = {name: loss.name for name in NAMES if (loss := row_loss_of(name)) is not None}
    assert losses == {
        "binary": "logloss", "regression": "mae", "quantile 0.9": "pinball", "count": "poisson_deviance",
        "multiclass": "logloss",
    }  # fmt: skip


def test_report_and_asset_page_name_them_with_the_number_looked_at(case: HoldoutCase) -> None:
    rules = spec(
        objective="binary", slices=["origin"], gates=[{"name": "g", "metric": "auc", "at_least": 0.5}]
    )
    predictions = case.predictions(champion=False)
    bad = (case.holdout["carrier"] == "UA").to_numpy()
    for worse in (True, False):
        if worse:
            predictions |= {"challenger": np.where(bad, 1 - case.challenger, case.challenger)}
        else:
            predictions |= {"challenger": case.challenger}
        carriers = [case.holdout["carrier"]]
        search = worst_slices(case.holdout, predictions, rules, label="label", features=carriers)
        report = Report(
            title="m",
            partition="p",
            lineage={},
            evaluation=evaluate(case.holdout, predictions, rules),
            model=model_facts(),
            worst_slices=search,
        )
        for text in (render(report), summary_markdown(report, {})):
            assert "Worst slices found" in text
            # Three origins, two large carriers (the third has too few rows outside of it), and pairs.
            assert "11 slices of at least 100 rows, of one or two of 2 columns, were looked at" in text
            assert ("carrier=UA" in text) == worse
            assert ("none is worse than the other rows by more than chance" in text) != worse
