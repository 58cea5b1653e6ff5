"""Figures of a day, from tables of a real lake: one number and classes, late labels, and the days behind a drift."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.data.tables.declared import NOTHING_DECLARED
from ml_assets.data.tables.publish.publish import publish
from ml_assets.data.tables.reader import TableReader
from ml_assets.data.tables.spec import Incoming, PublishingRun, TableSpec
from ml_assets.data.validation.contract import Contract
from ml_assets.data.validation.volume import VolumeRule
from ml_assets.foundation.objective_facts import facts_of
from ml_assets.use.live.performance import DayFigures, HoldoutReference, VersionFigures, measure_day
from ml_assets.use.live.performance_history import days_up_to, pictures, store_day
from ml_assets.use.live.retrain import value_of
from ml_assets.use.live.scored_rows import REFERENCE_DAYS, scored_of_table
from ml_assets_tests.components.readings_pipeline import FEATURES, MODEL, PIPELINE, days
from resources.artifacts import FolderArtifacts
from resources.lake.local import LocalStore
from resources.ledger import Ledger

DAYS = days(REFERENCE_DAYS + 3)
ROWS = 400
KINDS = {pl.String: "string", pl.Float64: "float64", pl.Int64: "int64"}
NO_HOLDOUT = HoldoutReference(why_none="the bundle has no evaluation")
RUN = PublishingRun(run_id="run00001", url="http://127.0.0.1:3000/runs/run00001")


class Tables:
    """A lake with the features and the predictions of a model."""

    def __init__(self, folder: Path, objective: str = "regression", **evaluation: Any) -> None:
        self.lake, self.ledger = LocalStore(folder / "lake"), Ledger(f"sqlite:///{folder / 'ledger.db'}")
        features = PIPELINE["features"] | {"primary_key": ["id"]}
        gate = {"name": "learned", "metric": facts_of(objective).metrics[0], "better_than": "baseline"}
        asked = {"objective": objective, "bootstrap_unit": "id", "gates": [gate]} | evaluation
        self.spec = TrainingPipelineSpec.model_validate(
            PIPELINE | {"features": features, "evaluation": asked, "scoring": {}}
        )

    def put(self, table: str, frames: Mapping[str, pl.DataFrame], made_by: str = "code") -> None:
        """Publish the days of a table; `made_by` is its code version."""
        kind, name = table.split("/")
        first = next(iter(frames.values()))
        key = ["id", "output"] if "output" in first.columns else ["id"]
        columns = [
            {"name": column, "dtype": KINDS[type(dtype)], "nullable": column not in key}
            for column, dtype in first.schema.items()
        ]
        spec = TableSpec(
            kind=kind,
            name=name,
            contract=Contract.model_validate({"columns": columns, "primary_key": key}),
            cadence=self.spec.partitions.as_cadence,
            volume=VolumeRule(kind="none"),
            code_version=made_by,
        )
        result = publish(
            self.lake,
            self.ledger,
            spec,
            [Incoming(key=k, data=f) for k, f in frames.items()],
            RUN,
            NOTHING_DECLARED,
        )
        assert not result.rejected

    def score(
        self, day: str, production: pl.DataFrame, canary: pl.DataFrame | None = None, bundles: str = "a"
    ) -> None:
        """Publish the predictions of a day; the frames have columns id, output and number."""
        self.put(f"{MODEL}/predictions", {day: self._scored(production, canary, bundles)}, made_by=bundles)

    def score_all(self, days: Mapping[str, pl.DataFrame]) -> None:
        """Publish the predictions of several days by the version `a`, at once."""
        rows = {day: self._scored(frame, None, "a") for day, frame in days.items()}
        self.put(f"{MODEL}/predictions", rows, made_by="a")

    @staticmethod
    def _scored(production: pl.DataFrame, canary: pl.DataFrame | None, bundles: str) -> pl.DataFrame:
        first, _, second = bundles.partition("+")
        number = None if canary is None else canary["number"]
        return production.rename({"number": "prediction"}).with_columns(
            pl.lit(1, pl.Int64).alias("version"),
            pl.lit(first).alias("bundle_digest"),
            pl.Series(
                "canary_prediction", [None] * production.height if number is None else number, pl.Float64
            ),
            pl.lit(2 if second else None, pl.Int64).alias("canary_version"),
            pl.lit(second or None, pl.String).alias("canary_bundle_digest"),
        )

    def measured(self, day: str) -> tuple[VersionFigures, ...]:
        """Measure a day at main."""
        return self.day(day).versions

    def day(self, day: str, holdout: HoldoutReference = NO_HOLDOUT) -> DayFigures:
        """Measure a day at main, beside a holdout."""
        scored = scored_of_table(self.spec, TableReader.at(self.lake), day)
        return measure_day(self.spec, day, scored, lambda _: holdout)


def numbers(seed: int, shift: float = 0.0) -> pl.DataFrame:
    draw = np.random.default_rng(seed)
    return pl.DataFrame(
        {"id": [f"r{n}" for n in range(ROWS)], "output": "prediction", "number": draw.normal(shift, 1, ROWS)}
    )


def labels(values: Any) -> pl.DataFrame:
    return pl.DataFrame({"id": [f"r{n}" for n in range(ROWS)], "made": values}, strict=False)


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path)


def test_a_day_is_compared_with_the_first_days_of_its_version(tables: Tables) -> None:
    """So a slow drift is seen, and days that another version scored do not count."""
    *usual, moved = DAYS
    tables.score(usual[0], numbers(0, shift=5), bundles="other")
    same_version = {day: numbers(seed) for seed, day in enumerate(usual[1:])}
    tables.score_all(same_version | {moved: numbers(99, shift=1)})
    tables.put(FEATURES, dict.fromkeys((usual[1], usual[-1], moved), labels(np.zeros(ROWS))))
    (first,) = tables.measured(usual[1])
    assert (first.reference, first.drift) == ((), ())
    (same,), (other,) = tables.measured(usual[-1]), tables.measured(moved)
    assert same.reference == tuple(usual[1 : 1 + REFERENCE_DAYS])
    assert same.largest_drift is not None
    assert same.largest_drift.psi_excess < 0.05
    assert other.largest_drift is not None
    assert other.largest_drift.psi_excess > 0.5
    assert other.largest_drift.mean - other.largest_drift.reference_mean == pytest.approx(1, abs=0.2)


def test_a_promoted_canary_keeps_the_days_it_scored(tables: Tables) -> None:
    before, day = DAYS[:2]
    tables.score(before, numbers(1, shift=9), numbers(2), bundles="old+new")
    tables.score(day, numbers(3), bundles="new")
    tables.put(FEATURES, dict.fromkeys((before, day), labels(np.zeros(ROWS))))
    old, canary = tables.measured(before)
    assert (old.role, old.version, canary.role, canary.version) == ("production", 1, "canary", 2)
    (promoted,) = tables.measured(day)
    assert promoted.reference == (before,)
    assert promoted.largest_drift is not None
    assert promoted.largest_drift.psi_excess < 0.1


def test_only_rows_with_a_label_are_measured(tables: Tables) -> None:
    said = numbers(1)
    tables.score(DAYS[0], said)
    wanted = [x + 1.0 if n < 100 else None for n, x in enumerate(said["number"])]
    tables.put(FEATURES, {DAYS[0]: labels(wanted)})
    (one,) = tables.measured(DAYS[0])
    assert (one.rows, one.labelled) == (ROWS, 100)
    assert one.metrics["mae"] == pytest.approx(1)
    tables.put(FEATURES, {DAYS[0]: labels(pl.Series([None] * ROWS, dtype=pl.Float64))})
    (none,) = tables.measured(DAYS[0])
    assert (none.labelled, none.metrics, none.labels_in_words) == (0, {}, "no labels yet")


def test_classes_are_measured_and_an_unknown_one_is_counted(tmp_path: Path) -> None:
    tables = Tables(tmp_path, objective="multiclass")
    share = np.random.default_rng(0).random(ROWS)
    ids = [f"r{n}" for n in range(ROWS)]
    said = pl.concat(
        pl.DataFrame({"id": ids, "output": name, "number": p})
        for name, p in (("id", share), ("b", 1 - share))
    )
    tables.score(DAYS[0], said)
    tables.score(DAYS[1], said)
    right = ["id" if p > 0.5 else "b" for p in share]
    tables.put(FEATURES, dict.fromkeys(DAYS[:2], labels(["never seen", *right[1:]])))
    (one,) = tables.measured(DAYS[1])
    assert (one.rows, one.labelled, one.unknown_classes) == (ROWS, ROWS - 1, 1)
    assert one.metrics["accuracy"] == 1
    assert {moved.output for moved in one.drift} == {"id", "b"}
    assert one.largest_drift is not None
    assert one.largest_drift.psi == pytest.approx(0, abs=1e-9)


def test_a_metric_that_is_not_defined_is_none(tmp_path: Path) -> None:
    """A day whose labels are all equal has no AUC."""
    tables = Tables(tmp_path, objective="binary")
    tables.score(DAYS[0], numbers(1).with_columns(pl.lit(0.25).alias("number")))
    tables.put(FEATURES, {DAYS[0]: labels(np.zeros(ROWS))})
    (one,) = tables.measured(DAYS[0])
    assert one.metrics["auc"] is None
    assert one.metrics["brier"] == pytest.approx(0.0625)


def test_a_metric_of_the_project_is_measured(tmp_path: Path) -> None:
    """So a rule of `scoring.retrain` on it is decided. Only rows with a label reach the function, with their group."""
    own = {
        "function": "ml_assets_tests.components.objectives_pipeline.missing",
        "better": "lower",
        "group": "shop",
    }
    tables = Tables(tmp_path, metrics=[own])
    said = numbers(1)
    tables.score(DAYS[0], said)
    # The shop "a" lacks 1 in 100 rows, the shop "b" 4 in 50: each counts the same.
    lacking = pl.Series([1.0] * 100 + [4.0] * 50 + [None] * (ROWS - 150), dtype=pl.Float64)
    shops = pl.Series(["a"] * 100 + ["b"] * 50 + ["never labelled"] * (ROWS - 150))
    tables.put(FEATURES, {DAYS[0]: labels(said["number"] + lacking).with_columns(shops.alias("shop"))})
    (one,) = tables.measured(DAYS[0])
    assert one.labelled == 150
    assert value_of(one, "missing") == pytest.approx(2.5)


def test_stored_days_are_read_in_order_and_drawn(tables: Tables, tmp_path: Path) -> None:
    artifacts = FolderArtifacts(tmp_path / "artifacts")
    assert days_up_to(artifacts, MODEL, DAYS[2]) == []
    tables.put(FEATURES, dict.fromkeys(DAYS[:3], labels(np.zeros(ROWS))))
    tables.score_all({day: numbers(seed) for seed, day in enumerate(DAYS[:3])})
    measured = {day: tables.day(day) for day in DAYS[:3]}
    for day in reversed(DAYS[:3]):
        store_day(artifacts, measured[day])
    stored = days_up_to(artifacts, MODEL, DAYS[1])
    assert [one.partition for one in stored] == list(DAYS[:2])
    assert stored[1] == measured[DAYS[1]]
    assert list(pictures(stored[:1])) == ["rmse"]
    assert list(pictures(stored)) == ["drift", "rmse"]
