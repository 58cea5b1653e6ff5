"""Batch scoring of a model's days, from `defs.yaml` to rows on main: by production, with the canary beside it."""

import polars as pl
import pytest

from ml_assets.pipeline.scoring import ONE_NUMBER
from ml_assets.release.of_platform import releases_of
from ml_assets.release.rules import CanarySection, ReleaseSection
from ml_assets_tests.components.installation import (
    Installation,
    failure_of,
    materialized,
    readings_components,
)
from ml_assets_tests.components.model_run import CHECKPOINT, EVALUATION, ModelRun, train
from ml_assets_tests.components.noise_champion import randomize_weights
from ml_assets_tests.components.readings_pipeline import (
    FEATURES,
    MODEL,
    READINGS,
    WINDOW,
    Source,
    days,
)
from ml_assets_tests.release.recorded_evaluations import record_evaluation

DAY, NEXT_DAY = days(2, start=WINDOW)
PREDICTIONS = f"{MODEL}/predictions"
KEY = ["at", "machine"]


@pytest.fixture(scope="module")
def installation(shared_installation: Installation) -> Installation:
    """Tables of two days, and a pipeline that declares `scoring`."""
    scoring = {"volume": {"kind": "previous", "warn": 0.1, "block": 0.1}}
    components = readings_components(features={"volume": "off"}, pipeline={"scoring": scoring})
    return shared_installation.declared_as(components).with_tables(2)


@pytest.fixture(scope="module")
def promoted(installation: Installation) -> ModelRun:
    """Run that makes the first version, which is then in production."""
    run = train(installation, DAY)
    releases_of(installation.platform).promote(MODEL, 1, author="ada", reason="the first")
    return run


@pytest.fixture(scope="module")
def scored(installation: Installation, promoted: ModelRun) -> pl.DataFrame:
    """Predictions of both days, made by one run over the range."""
    result = installation.run(PREDICTIONS, partition=DAY, last=NEXT_DAY)
    assert result.success, failure_of(result)
    assert list(materialized(result, PREDICTIONS)) == [DAY, NEXT_DAY]
    return installation.main.scan(PREDICTIONS, [DAY, NEXT_DAY]).collect()


def test_nothing_in_production_is_refused_by_name(installation: Installation) -> None:
    fresh = installation.declared_as(readings_components(pipeline={"name": "fresh", "scoring": {}}))
    said = failure_of(fresh.run("fresh/predictions", partition=DAY))
    assert said.startswith("no version of fresh is in production")
    assert "ml-assets promote fresh --reason" in said


def test_each_row_has_the_prediction_of_production(
    installation: Installation, promoted: ModelRun, scored: pl.DataFrame
) -> None:
    rows = installation.main.scan(FEATURES, [DAY, NEXT_DAY]).collect()
    assert scored.columns[:5] == [*KEY, "output", "prediction", "version"]
    assert scored["output"].unique().to_list() == [ONE_NUMBER]
    assert scored["version"].unique().to_list() == [1]
    assert scored["bundle_digest"].unique().to_list() == [promoted.facts[EVALUATION]["bundle"]]
    assert scored["canary_prediction"].is_null().all()
    expected = rows.select(KEY).with_columns(pl.Series("expected", promoted.served.predict(rows)))
    both = scored.join(expected, on=KEY)
    assert both.height == rows.height
    assert (both["prediction"] - both["expected"]).abs().max() < 1e-6


def test_scoring_again_changes_nothing(installation: Installation, scored: pl.DataFrame) -> None:
    before = installation.main.digests(PREDICTIONS)
    again = installation.run(PREDICTIONS, partition=DAY)
    assert again.success
    assert installation.main.digests(PREDICTIONS) == before


def test_a_manifest_names_features_and_bundle(
    installation: Installation, promoted: ModelRun, scored: pl.DataFrame
) -> None:
    reader = installation.main
    manifest = reader.manifest(PREDICTIONS, DAY)
    assert manifest.inputs == {FEATURES: reader.input_digests(FEATURES, [DAY])}
    assert manifest.code_version == promoted.facts[EVALUATION]["bundle"]
    assert READINGS in {table for table, _, _ in manifest.behind}


def test_a_canary_predicts_beside_production(
    installation: Installation, promoted: ModelRun, scored: pl.DataFrame
) -> None:
    releases = releases_of(installation.platform)
    other = randomize_weights(installation, promoted.facts[EVALUATION]["bundle"], DAY)
    window = releases.evaluations(MODEL)[0].trained_on
    record_evaluation(installation.platform.ledger, other, partition=DAY, trained_on=window)
    version = releases.register(other, run_id=promoted.facts[CHECKPOINT]["mlflow/run"], links={})
    rules = ReleaseSection(canary=CanarySection(bake_hours=1))
    releases.promote(MODEL, version.number, author="ada", reason="try it", rules=rules)
    result = installation.run(PREDICTIONS, partition=DAY)
    assert result.success, failure_of(result)
    rows = installation.main.scan(PREDICTIONS, [DAY]).collect()
    assert rows.height == scored.height // 2
    assert rows["version"].unique().to_list() == [1]
    assert rows["canary_version"].unique().to_list() == [version.number]
    assert rows["canary_bundle_digest"].unique().to_list() == [other.digest]
    assert rows["canary_prediction"].null_count() == 0
    assert (rows["canary_prediction"] - rows["prediction"]).abs().max() > 1
    releases.demote(MODEL, author="ada", reason="enough", role="canary")


def test_a_day_with_too_few_rows_is_rejected(
    installation: Installation, scored: pl.DataFrame, source: Source
) -> None:
    """The partition stays on its branch, and main keeps the rows it held."""
    before = installation.main.digests(PREDICTIONS)[NEXT_DAY]
    source.spoiled[NEXT_DAY] = lambda rows: rows.head(rows.height // 2)
    for table in (READINGS, FEATURES):
        assert installation.run(table, partition=NEXT_DAY).success
    result = installation.run(PREDICTIONS, partition=NEXT_DAY)
    assert f"{PREDICTIONS}: rejected and not merged into main: {NEXT_DAY}" in failure_of(result)
    checks = {check.check_name: check.passed for check in result.get_asset_check_evaluations()}
    assert checks["volume"] is False
    assert installation.main.digests(PREDICTIONS)[NEXT_DAY] == before


def test_a_day_without_features_is_refused(installation: Installation, scored: pl.DataFrame) -> None:
    (later,) = days(1, start=WINDOW + 5)
    said = failure_of(installation.run(PREDICTIONS, partition=later))
    assert f"{PREDICTIONS} {later}" in said
    assert f"{FEATURES} {later}" in said
