"""The naive baseline is the strongest simple guess on the validation rows, and knows nothing that came later."""

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from pydantic import ValidationError

from ml_assets.data.snapshots.builder import build_snapshot
from ml_assets.data.snapshots.partitions import store_partitions
from ml_assets.data.snapshots.spec import InputColumns
from ml_assets.data.snapshots.split_reader import SPLITS, SourceValues, SplitName
from ml_assets.data.snapshots.split_rows import SplitScan
from ml_assets.foundation.objective_facts import facts_of
from ml_assets.model.evaluation.comparison.holdout_rows import prediction_fault
from ml_assets.model.evaluation.spec import BaselineSpec
from ml_assets.model.release.bundle_store import Question
from ml_assets.model.steps.champion import MeasuredRows
from ml_assets.model.steps.comparators import Comparators, fitted_comparators
from ml_assets.model.steps.snapshot import row_choice
from ml_assets.model.steps.spec import PipelineSpec
from ml_assets_tests.snapshots.chosen_rows import chosen_rows

FIRST, DAYS, SHOPS = date(2024, 1, 1), 60, 6
KEYS = [(FIRST + timedelta(n)).isoformat() for n in range(DAYS)]


@dataclass(frozen=True)
class Series:
    """A label of each shop and day."""

    labels: Any
    """`[DAYS, SHOPS]`"""
    objective: str = "regression"
    known_after: timedelta = timedelta(days=1)
    """From the moment of prediction, the midnight that begins the day."""
    embargo: int = 0
    entity: list[str] | None = None

    @property
    def spec(self) -> PipelineSpec:
        """The pipeline."""
        facts = facts_of(self.objective)
        return PipelineSpec.model_validate(
            {
                "name": "series",
                "partitions": {"cadence": "daily", "start": KEYS[0], "end": KEYS[-1]},
                "features": {
                    "table": "features/series",
                    "numeric": ["x"],
                    "label": "label",
                    "label_known_at": "known_at",
                    "primary_key": ["partition_date", "shop"],
                },
                "window": {"train": 39, "validation": 7, "holdout": 14, "embargo": self.embargo},
                "model": {"function": "ml_assets_tests.components.readings_pipeline.build"},
                "evaluation": {
                    "objective": self.objective,
                    "baseline": {
                        "groups": ["shop"],
                        "entity": ["shop"] if self.entity is None else self.entity,
                    },
                    "gates": [{"name": "better", "metric": facts.chosen_by, "better_than": "baseline"}],
                    **({"group": "partition_date"} if facts.has_lists else {}),
                },
            }
        )

    def table(self) -> pl.DataFrame:
        """Return all rows, by day and shop."""
        day, shop = np.divmod(np.arange(DAYS * SHOPS), SHOPS)
        moments = [datetime(2024, 1, 1, tzinfo=UTC) + timedelta(int(n)) for n in day]
        label = pl.Series("label", np.asarray(self.labels).reshape(-1))
        frame = pl.DataFrame(
            {
                "partition_date": [FIRST + timedelta(int(n)) for n in day],
                "shop": [f"shop {n}" for n in shop],
                "predicted_at": moments,
                "known_at": [at + self.known_after for at in moments],
                "x": np.sin(np.arange(len(day))),
            }
        ).with_columns(label)
        if facts_of(self.objective).has_classes:
            frame = frame.with_columns(pl.format("class {}", pl.col("label").cast(pl.Int64)).alias("label"))
        return frame

    def compared(self, folder: Path, table: pl.DataFrame | None = None) -> Comparators:
        """Return the models beside a challenger on this table, or on `table` with the same rows."""
        frame = self.table() if table is None else table
        chosen = chosen_rows(
            frame, *row_choice(self.spec, KEYS), InputColumns(numeric=("x",), categorical=())
        )
        source = SourceValues(table="features/series", columns=("label",), partitions={KEYS[0]: "0" * 32})
        snapshot = build_snapshot(chosen, source=source, into=folder)
        days = store_partitions(frame, "partition_date", folder / "table")
        rows: dict[SplitName, SplitScan] = {
            split: SplitScan(snapshot=snapshot, split=split, table=frame.lazy(), partitions=days)
            for split in SPLITS
        }
        asked = Question(label="label", objective=self.objective, classes=chosen.fitted.classes)
        measured = MeasuredRows.of(self.spec, snapshot, rows["holdout"], asked)
        return fitted_comparators(self.spec, rows, chosen.fitted, measured)


def walk(step: float) -> Any:
    """Series that keep their last value and change it a little, around levels of their own."""
    draw = np.random.default_rng(5)
    return 10 * np.arange(SHOPS) + np.cumsum(draw.normal(0, step, (DAYS, SHOPS)), axis=0)


def weekly() -> Any:
    """Series that repeat every week, with some noise."""
    draw = np.random.default_rng(5)
    return np.tile(draw.normal(0, 9, (7, SHOPS)), (9, 1))[:DAYS] + draw.normal(0, 0.1, (DAYS, SHOPS))


def test_a_series_that_drifts_is_guessed_by_its_last_label(tmp_path: Path) -> None:
    labels = walk(1.0)
    found = Series(labels).compared(tmp_path)
    assert np.array_equal(found.predictions["baseline"].reshape(14, SHOPS), labels[-15:-1])
    assert found.naive is not None
    assert found.naive.chosen == "last known label of shop"
    values = {one.name: one.value for one in found.naive.guesses if one.value is not None}
    assert found.naive.guesses[0].name.startswith("mean by shop")
    assert min(values.values()) == values["last known label of shop"]
    assert "same hour" not in " ".join(values), (
        "all rows are predicted at one hour: the guess is there already"
    )
    assert (
        found.baseline_name
        == f"naive baseline (last known label of shop, the best of {len(values)} guesses on validation)"
    )


def test_a_series_of_weeks_is_guessed_by_the_weekday(tmp_path: Path) -> None:
    labels = weekly()
    found = Series(labels).compared(tmp_path)
    assert found.guess == "mean of the last 4 known labels of shop on the same weekday"
    means = np.mean([labels[-14 - 7 * back : DAYS - 7 * back] for back in (1, 2, 3, 4)], axis=0)
    # In the second week of the holdout, the first one is known.
    assert found.predictions["baseline"].reshape(14, SHOPS) == pytest.approx(means)


def test_entities_without_a_past_get_the_mean_of_their_group(tmp_path: Path) -> None:
    """Each row is an entity of its own here. Guesses that predict what the mean predicts are left out."""
    found = Series(walk(1.0), entity=["partition_date", "shop"]).compared(tmp_path)
    assert found.naive is not None
    assert [one.name for one in found.naive.guesses] == [found.naive.chosen]
    assert found.naive.chosen.startswith("mean by shop")


def test_a_label_counts_from_the_moment_it_is_known(tmp_path: Path) -> None:
    """A microsecond later than the prediction, yesterday's label is unknown: the one before counts."""
    labels = walk(1.0)
    late = Series(labels, known_after=timedelta(days=1, microseconds=1)).compared(tmp_path)
    # Labels of the last day are known after the holdout's end, so that day has no row.
    assert np.array_equal(late.predictions["baseline"].reshape(13, SHOPS), labels[-16:-3])


def test_labels_of_rows_that_training_leaves_out_count(tmp_path: Path) -> None:
    """With an embargo, labels of the last training rows were known only after the cutoff. Production knows them."""
    labels = walk(1.0)
    found = Series(labels, embargo=5).compared(tmp_path)
    assert np.array_equal(found.predictions["baseline"].reshape(14, SHOPS), labels[-15:-1])


def test_later_labels_change_no_bit_of_a_prediction(tmp_path: Path) -> None:
    series = Series(walk(1.0))
    cut = DAYS - 7
    changed = series.table().with_columns(
        pl.when(pl.col("partition_date") >= FIRST + timedelta(cut))
        .then(pl.col("label").reverse() * 3)
        .otherwise("label")
        .alias("label")
    )
    before = series.compared(tmp_path / "before").predictions["baseline"].reshape(14, SHOPS)
    after = series.compared(tmp_path / "after", changed).predictions["baseline"].reshape(14, SHOPS)
    assert np.array_equal(before[:8], after[:8])
    assert not np.array_equal(before[8:], after[8:])


@pytest.mark.parametrize("objective", ["binary", "count", "multiclass", "quantile 0.8", "ranking 3"])
def test_every_objective_has_recent_guesses(objective: str, tmp_path: Path) -> None:
    """Labels of two levels that change every ten days: recent labels say which one holds. Guesses stay in the range of
    the objective, so no loss is infinite."""
    draw = np.random.default_rng(3)
    high = (np.arange(DAYS)[:, None] // 10 + np.arange(SHOPS)) % 2 == 1
    labels = np.where(draw.random((DAYS, SHOPS)) < 0.95, high, ~high).astype(float)
    if objective == "quantile 0.8":
        labels = walk(1.0)
    if objective in ("count", "ranking 3"):
        labels = np.floor(5 * labels + 2 * draw.random((DAYS, SHOPS)))
    series = replace(Series(labels), objective=objective)
    found = series.compared(tmp_path)
    assert found.naive is not None
    assert "known label" in found.naive.chosen
    assert all(one.value is not None for one in found.naive.guesses)
    assert prediction_fault(found.predictions["baseline"], objective) == ""
    is_shrunk = objective != "quantile 0.8"
    assert ("prior of" in found.naive.chosen) == is_shrunk


def test_all_rows_may_be_one_series(tmp_path: Path) -> None:
    """The last of them is that of the last shop: its label became known at the same moment, and it is later in the
    table."""
    labels = np.arange(DAYS)[:, None] + np.arange(SHOPS) * 1e-3
    found = Series(labels, entity=[]).compared(tmp_path)
    assert found.guess == "last known label"
    assert np.array_equal(found.predictions["baseline"][::SHOPS], labels[-15:-1, -1])


def test_a_moment_without_an_entity_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"baseline\.entity"):
        BaselineSpec.model_validate({"predicted_at": "asked_at"})
    stored = BaselineSpec().model_dump(mode="json")
    assert BaselineSpec.model_validate(stored) == BaselineSpec()


def test_the_entity_decides_about_releases() -> None:
    """Evaluations that were recorded before there were entities keep the settings that decided about them."""
    declared, without = Series(walk(1.0)).spec.evaluation, BaselineSpec(groups=("shop",))
    assert declared.deciding()["baseline"]["entity"] == ["shop"]
    assert declared.model_copy(update={"baseline": without}).deciding()["baseline"] == {
        "groups": ["shop"],
        "prior_rows": None,
    }
