"""Live performance of a model's days, from `defs.yaml` to figures: drift, labels that arrive late, a canary apart."""

import json
from datetime import date
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest

from ml_assets.release.of_platform import releases_of
from ml_assets.release.rules import CanarySection, ReleaseSection
from ml_assets_tests.components import readings_pipeline
from ml_assets_tests.components.installation import (
    Installation,
    failure_of,
    key_of,
    materialized,
    readings_components,
)
from ml_assets_tests.components.model_run import CHECKPOINT, EVALUATION, ModelRun, train
from ml_assets_tests.components.noise_champion import randomize_weights
from ml_assets_tests.components.readings_pipeline import FEATURES, MODEL, WINDOW, days
from ml_assets_tests.release.recorded_evaluations import record_evaluation

FIRST_DAY, NEXT_DAY, LATE_DAY = days(3, start=WINDOW)
PREDICTIONS, LIVE = f"{MODEL}/predictions", f"{MODEL}/live"
LABELS = {"known": False}


def late_shifts(inputs: Any, first: date, last: date) -> pl.DataFrame:
    """The features, with the labels of the last day only once they are known, and its loads moved."""
    rows = readings_pipeline.shifts(inputs, first, last)
    is_late = pl.col("partition_date") == date.fromisoformat(LATE_DAY)
    return rows.with_columns(
        pl.when(is_late).then(pl.lit(1.0, pl.Float32)).otherwise("load").alias("load"),
        pl.when(is_late & pl.lit(not LABELS["known"])).then(None).otherwise("made").alias("made"),
    )


@pytest.fixture(scope="module")
def installation(shared_installation: Installation) -> Installation:
    """Tables of three days, of which the last has no labels yet, and a pipeline that declares `scoring`."""
    LABELS["known"] = False
    columns = [
        one | ({"nullable": True} if one["name"] == "made" else {})
        for one in readings_pipeline.FEATURE_TABLE["contract"]["columns"]
    ]
    contract = readings_pipeline.FEATURE_TABLE["contract"] | {"columns": columns}
    function = f"{__name__}.late_shifts"
    components = readings_components(
        features={"contract": contract, "function": function, "automation_condition": "none"},
        pipeline={"scoring": {"automation_condition": "on_valid_inputs"}},
    )
    return shared_installation.declared_as(components).with_tables(3)


@pytest.fixture(scope="module")
def promoted(installation: Installation) -> ModelRun:
    """Run that makes the first version, which is then in production."""
    run = train(installation, FIRST_DAY)
    releases_of(installation.platform).promote(MODEL, 1, author="ada", reason="the first")
    return run


@pytest.fixture(scope="module")
def measured(installation: Installation, promoted: ModelRun) -> dict[str | None, dg.AssetMaterialization]:
    """Page of each of the three days, scored and measured by one run each."""
    scored = installation.run(PREDICTIONS, partition=FIRST_DAY, last=LATE_DAY)
    assert scored.success, failure_of(scored)
    result = installation.run(LIVE, partition=FIRST_DAY, last=LATE_DAY)
    assert result.success, failure_of(result)
    return materialized(result, LIVE)


def facts(page: dg.AssetMaterialization) -> dict[str, Any]:
    return {name: one.value for name, one in page.metadata.items()}


def test_a_day_that_was_not_scored_is_refused_by_name(installation: Installation) -> None:
    said = failure_of(installation.run(LIVE, partition=days(6, start=WINDOW)[-1]))
    assert f"{PREDICTIONS} {days(6, start=WINDOW)[-1]} (not scored yet)" in said


def test_labels_and_predictions_give_the_metrics(
    installation: Installation, promoted: ModelRun, measured: dict[str | None, dg.AssetMaterialization]
) -> None:
    page = facts(measured[NEXT_DAY])
    rows = installation.main.scan(FEATURES, [NEXT_DAY]).collect()
    error = promoted.served.predict(rows) - rows["made"].cast(pl.Float64).to_numpy()
    assert page["production mae"] == pytest.approx(abs(error).mean(), rel=1e-4)
    assert page["production labelled"] == rows.height
    assert "canary rows" not in page
    document = json.loads(Path(page["document"].removeprefix("file://")).read_text())
    assert document["versions"][0]["metrics"]["mae"] == pytest.approx(abs(error).mean(), rel=1e-4)


def test_a_day_whose_predictions_moved_shows_it(
    measured: dict[str | None, dg.AssetMaterialization],
) -> None:
    """The first day has nothing to be compared with."""
    assert "scored no earlier partition" in (measured[FIRST_DAY].description or "")
    assert "production drift" not in facts(measured[FIRST_DAY])
    usual, moved = (facts(measured[day])["production drift"] for day in (NEXT_DAY, LATE_DAY))
    assert moved > 10 * max(usual, 0.05)
    assert "![drift](data:image/png" in facts(measured[LATE_DAY])["summary"]


def test_a_day_is_measured_again_when_its_labels_arrive(
    installation: Installation, measured: dict[str | None, dg.AssetMaterialization]
) -> None:
    assert "no labels yet" in (measured[LATE_DAY].description or "")
    assert "production mae" not in facts(measured[LATE_DAY])
    before = dg.evaluate_automation_conditions(defs=installation.defs, instance=installation.instance)
    LABELS["known"] = True
    assert installation.run(FEATURES, partition=LATE_DAY).success
    asked = dg.evaluate_automation_conditions(
        defs=installation.defs, instance=installation.instance, cursor=before.cursor
    )
    assert asked.get_requested_partitions(key_of(LIVE)) == {LATE_DAY}
    again = installation.run(LIVE, partition=LATE_DAY)
    page = facts(materialized(again, LIVE)[LATE_DAY])
    assert page["production labelled"] == page["production rows"]
    assert page["production mae"] > 0


def test_a_canary_is_measured_apart(
    installation: Installation, promoted: ModelRun, measured: dict[str | None, dg.AssetMaterialization]
) -> None:
    releases = releases_of(installation.platform)
    other = randomize_weights(installation, promoted.facts[EVALUATION]["bundle"], FIRST_DAY)
    window = releases.evaluations(MODEL)[0].trained_on
    record_evaluation(installation.platform.ledger, other, partition=FIRST_DAY, trained_on=window)
    version = releases.register(other, run_id=promoted.facts[CHECKPOINT]["mlflow/run"], links={})
    rules = ReleaseSection(canary=CanarySection(bake_hours=1))
    releases.promote(MODEL, version.number, author="ada", reason="try it", rules=rules)
    assert installation.run(PREDICTIONS, partition=NEXT_DAY).success
    page = facts(materialized(installation.run(LIVE, partition=NEXT_DAY), LIVE)[NEXT_DAY])
    assert (page["production version"], page["canary version"]) == (1, version.number)
    assert page["canary mae"] > 3 * page["production mae"]
    assert "production drift" in page
    assert "canary drift" not in page  # it scored no earlier day
