"""Weights of a snapshot's rows: checked before the launch, stored beside the rows, never a feature."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from ml_assets.data.snapshots.row_choice import WEIGHT
from ml_assets.data.snapshots.row_rules import NO_WEIGHT
from ml_assets.data.snapshots.split_reader import SPLITS, SnapshotError, open_snapshot
from ml_assets_tests.snapshots.chosen_rows import chosen_rows, taken
from ml_assets_tests.training.small_jobs import (
    ROW_SPEC,
    feature_table,
    small_snapshot,
    split_of,
    with_weights,
)

SPEC = dataclasses.replace(ROW_SPEC, weight="weight", primary_key=("date", "id"))


@pytest.mark.parametrize(
    ("weight", "said"),
    [
        (
            pl.when(pl.col("id") == 7).then(None).otherwise(1.0),
            "weight 'weight' (features.weight) is null in 1 of 300 rows: date=2024-01-01, id=7 has None; give each row "
            "with a label a weight, 0 if it should not count",
        ),
        (
            pl.when(pl.col("id").is_in([7, 250])).then(-0.5).otherwise(1.0),
            "weight 'weight' (features.weight) is negative in 2 of 300 rows: date=2024-01-01, id=7 has -0.5; "
            "date=2024-01-03, id=250 has -0.5; give each row a number from 0; 0 leaves it out",
        ),
        (
            pl.when(pl.col("id") == 7).then(float("nan")).otherwise(1.0),
            "is NaN or infinite in 1 of 300 rows: date=2024-01-01, id=7 has nan; give each row a number from 0",
        ),
        (
            pl.when(pl.col("id") == 7).then(1e-39).otherwise(1.0),
            "weight 'weight' (features.weight) is too small beside the largest in 1 of 100 train rows: "
            "date=2024-01-01, id=7 has 1e-39; give such rows the weight 0",
        ),
        (pl.lit("much"), "weight 'weight' is String: it must be a number from 0, or a boolean"),
        (
            pl.when(pl.col("id") < 200).then(1.0).otherwise(0.0),
            "the holdout split (2024-01-03 to 2024-01-03) has no row. Left out: weight is 0: 100.",
        ),
    ],
    ids=["null", "negative", "not a number", "too small", "a text", "a split of no weight"],
)
def test_a_weight_that_cannot_be_used_is_refused_with_its_rows(weight: pl.Expr, said: str) -> None:
    table = feature_table(days=3).with_columns(id=pl.int_range(pl.len())).with_columns(weight=weight)
    with pytest.raises(SnapshotError) as refused:
        chosen_rows(table, split_of(table, 1, 1), SPEC)
    assert said in str(refused.value)


def test_a_weight_may_be_unknown_as_long_as_the_label_is() -> None:
    """So a weight may become known after the prediction, such as the amount of a sale."""
    is_late = pl.col("id") == 7
    table = feature_table(days=3).with_columns(id=pl.int_range(pl.len()))
    unknown = table.with_columns(
        label=pl.when(is_late).then(None).otherwise(pl.col("label")),
        weight=pl.when(is_late).then(None).otherwise(1.0),
    )
    chosen = chosen_rows(unknown, split_of(table, 1, 1), SPEC)
    assert taken(chosen, "train").height == 99
    assert {"label unknown": 1} in [one.excluded for one in chosen.index()]
    wrong = unknown.with_columns(weight=pl.when(is_late).then(-1.0).otherwise(1.0))
    with pytest.raises(SnapshotError, match=r"negative.*1 of 300 rows"):
        chosen_rows(wrong, split_of(table, 1, 1), SPEC)


@pytest.mark.parametrize("unit", [1e-170, 1e300])
def test_weights_may_have_any_unit(unit: float) -> None:
    table = feature_table(days=3).with_columns(weight=pl.lit(unit))
    chosen = chosen_rows(table, split_of(table, 1, 1), dataclasses.replace(ROW_SPEC, weight="weight"))
    assert set(taken(chosen, "train")[WEIGHT]) == {1.0}


def test_a_boolean_counts_rows_or_leaves_them_out() -> None:
    table = feature_table(days=3).with_columns(weight=pl.int_range(pl.len()) % 3 > 0)
    chosen = chosen_rows(table, split_of(table, 1, 1), dataclasses.replace(ROW_SPEC, weight="weight"))
    assert taken(chosen, "train").height == 66
    assert set(taken(chosen, "train")[WEIGHT]) == {1.0}


def test_a_table_without_the_column_of_weights_is_refused() -> None:
    table = feature_table(days=3)
    with pytest.raises(SnapshotError, match=r"no column \['weight'\]"):
        chosen_rows(table, split_of(table, 1, 1), SPEC)


def test_weights_lie_beside_the_rows_and_are_one_on_average(tmp_path: Path) -> None:
    table = with_weights(feature_table())
    snapshot = open_snapshot(small_snapshot(tmp_path, table, weight="weight").folder)
    weight, label = (table[name].to_numpy() for name in ("weight", "label"))
    read = [snapshot.read(split) for split in SPLITS]
    for rows in read:
        assert rows.weight is not None
        assert rows.weight.mean() == pytest.approx(1, abs=1e-6)
        of_table = weight[rows.row]
        assert rows.weight == pytest.approx(of_table / of_table.mean(), rel=1e-6)
        assert rows.label.tolist() == label[rows.row].tolist()
        assert (of_table > 0).all()
    assert "weight" not in (*snapshot.inputs.numeric, *snapshot.inputs.categorical)
    rows = np.concatenate([rows.row for rows in read])
    assert sorted(rows) == np.flatnonzero(weight > 0).tolist()
    assert snapshot.excluded == {NO_WEIGHT: int((weight == 0).sum())}


def test_rows_of_weight_zero_are_as_absent(tmp_path: Path) -> None:
    """Standardised numbers, categories and rows of each shard are those of the table without them."""
    table = with_weights(feature_table())
    kept = table.filter(pl.col("weight") > 0)
    one, other = (small_snapshot(tmp_path, some, weight="weight") for some in (table, kept))
    assert one.fitted_digest == other.fitted_digest
    for split in SPLITS:
        for name in ("numeric", "category", "label", "weight"):
            assert getattr(one.read(split), name).tobytes() == getattr(other.read(split), name).tobytes()


def test_the_column_and_the_weights_are_part_of_the_digest(tmp_path: Path) -> None:
    table = with_weights(feature_table()).with_columns(other=pl.col("weight"))
    digests = {
        small_snapshot(tmp_path, some, weight=name).digest
        for some, name in (
            (table, "weight"),
            (table, "other"),
            (table, None),
            (table.with_columns(pl.col("weight").reverse()), "weight"),
        )
    }
    assert len(digests) == 4
    scaled = table.with_columns(pl.col("weight") * 2)
    assert small_snapshot(tmp_path, scaled, weight="weight").digest in digests


def test_a_manifest_without_weights_is_as_it_was_before(tmp_path: Path) -> None:
    """So branches of registered versions keep their digests."""
    facts: dict[str, Any] = json.loads(small_snapshot(tmp_path).to_json())
    assert "weight" not in facts
