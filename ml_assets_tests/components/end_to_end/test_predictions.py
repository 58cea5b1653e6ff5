"""Scored days of a model, from `defs.yaml` to rows on main and figures: by production, with the canary beside it.

The last of the three days has no labels at first, and its loads have moved.
"""

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest

from ml_assets.components.assets.digest import declared_subjects
from ml_assets.components.metadata import RETRAINS, declared_tables
from ml_assets.data.tables.publish.prepare import MadePartition
from ml_assets.model.release.bundle_store import Bundle
from ml_assets.model.release.promotion import promote, register
from ml_assets.model.release.releases import releases_of
from ml_assets.model.release.reviews import accept_rules
from ml_assets.model.release.rollback import demote
from ml_assets.model.release.rules import CanarySection, Rules
from ml_assets.model.steps.scoring import ONE_NUMBER, predictions_table, scored_partitions, scorers_of
from ml_assets.pages.digest import digest_of
from ml_assets.use.live.retrain import next_request
from ml_assets_tests.components import readings_pipeline
from ml_assets_tests.components.installation import (
    STAGES,
    Installation,
    failure_of,
    key_of,
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
from resources.ledger import Person
from resources.platform import Platform

DAY, NEXT_DAY, LATE_DAY = days(3, start=WINDOW)
PREDICTIONS, LIVE = f"{MODEL}/predictions", f"{MODEL}/live"
KEY = ["at", "machine"]
LABELS = {"known": False}
Pages = dict[str | None, dg.AssetMaterialization]


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
    """Tables of three days, and a pipeline that declares `scoring`."""
    LABELS["known"] = False
    columns = [
        one | ({"nullable": True} if one["name"] == "made" else {})
        for one in readings_pipeline.FEATURE_TABLE["contract"]["columns"]
    ]
    components = readings_components(
        features={
            "contract": readings_pipeline.FEATURE_TABLE["contract"] | {"columns": columns},
            "function": f"{__name__}.late_shifts",
            "automation_condition": "none",
            "volume": "off",
        },
        pipeline={
            "scoring": {
                "volume": {"kind": "previous", "warn": 0.1, "block": 0.1},
                "automation_condition": "on_valid_inputs",
                "retrain": {
                    "when": [
                        {"metric": "drift", "at_most": 0.5},
                        {"metric": "mae", "at_most": 0.0, "partitions": 60},
                    ]
                },
            }
        },
    )
    return shared_installation.declared_as(components).with_tables(3)


@pytest.fixture(scope="module")
def promoted(installation: Installation) -> ModelRun:
    """Run that makes the first version, which is then in production."""
    run = train(installation, DAY)
    promote(releases_of(installation.platform), MODEL, 1, by=Person.unchecked("ada"), reason="the first")
    return run


@pytest.fixture(scope="module")
def scored(installation: Installation, promoted: ModelRun) -> pl.DataFrame:
    """Predictions of the first two days, made with those of the third by one run over the range."""
    result = installation.run(PREDICTIONS, partition=DAY, last=LATE_DAY)
    assert result.success, failure_of(result)
    assert list(materialized(result, PREDICTIONS)) == [DAY, NEXT_DAY, LATE_DAY]
    return installation.main.scan(PREDICTIONS, [DAY, NEXT_DAY]).collect()


@pytest.fixture(scope="module")
def measured(installation: Installation, scored: pl.DataFrame) -> Pages:
    """Page of each of the three days, measured by one run."""
    result = installation.run(LIVE, partition=DAY, last=LATE_DAY)
    assert result.success, failure_of(result)
    return materialized(result, LIVE)


@pytest.fixture(scope="module")
def canary(installation: Installation, promoted: ModelRun, measured: Pages) -> Iterator[tuple[int, Bundle]]:
    """Number and bundle of a canary that learned nothing."""
    releases = releases_of(installation.platform)
    other = randomize_weights(installation, promoted.facts[EVALUATION]["bundle"], DAY)
    window = releases.log.evaluations(MODEL)[0].trained_on
    record_evaluation(installation.platform.ledger, other, partition=DAY, trained_on=window)
    version = register(releases, other, run_id=promoted.facts[CHECKPOINT]["mlflow/run"], links={})
    rules = Rules(canary=CanarySection(bake_hours=1))
    accept_rules(releases, MODEL, rules, by=Person.unchecked("lead"), reason="with a canary")
    promote(releases, MODEL, version.number, by=Person.unchecked("ada"), reason="try it", rules=rules)
    yield version.number, other
    demote(releases, MODEL, by=Person.unchecked("ada"), reason="enough", role="canary")


def facts(page: dg.AssetMaterialization) -> dict[str, Any]:
    return {name: one.value for name, one in page.metadata.items()}


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


def test_a_day_that_was_not_scored_is_refused_by_name(installation: Installation) -> None:
    said = failure_of(installation.run(LIVE, partition=days(6, start=WINDOW)[-1]))
    assert f"{PREDICTIONS} {days(6, start=WINDOW)[-1]} (not scored yet)" in said


def test_labels_and_predictions_give_the_metrics(
    installation: Installation, promoted: ModelRun, measured: Pages
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
    measured: Pages,
) -> None:
    """The first day is compared with the version's holdout, each later one also with the days before it."""
    assert "against its holdout" in (measured[DAY].description or "")
    assert "production drift" not in facts(measured[DAY])
    of_holdout = [facts(measured[day])["production holdout drift"] for day in (DAY, LATE_DAY)]
    assert of_holdout[1] > 10 * max(of_holdout[0], 0.05)
    compared = [row.data["compared with"] for row in facts(measured[NEXT_DAY])["drift"].records]
    assert compared == ["1 earlier partition", "its holdout"]
    usual, moved = (facts(measured[day])["production drift"] for day in (NEXT_DAY, LATE_DAY))
    assert moved > 10 * max(usual, 0.05)
    assert "![drift](data:image/png" in facts(measured[LATE_DAY])["summary"]


def test_a_day_is_measured_again_when_its_labels_arrive(installation: Installation, measured: Pages) -> None:
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


def test_a_broken_limit_requests_one_training_of_the_newest_labelled_day(
    installation: Installation, measured: Pages
) -> None:
    """The drift of the late day does; a restarted daemon repeats no request, and the new training ends them."""
    sensor = installation.defs.get_repository_def().get_sensor_def(f"{MODEL}_retraining")
    resources = {"platform": installation.platform, "tables": declared_tables(installation.defs)}

    def tick(cursor: str | None) -> Any:
        return sensor(
            dg.build_sensor_context(instance=installation.instance, resources=resources, cursor=cursor)
        )

    assert facts(measured[LATE_DAY])["limits"].records[0].data["kept"] == "no"
    first = tick(None)
    (request,) = first.run_requests
    assert request.partition_key == LATE_DAY
    reason = request.tags[RETRAINS]
    assert reason.startswith("version 1: drift was ")
    assert reason.endswith(f" on {LATE_DAY}; at most 0.5 is allowed")
    (shown,) = first.asset_events
    assert (shown.asset_key, shown.metadata["reason"].value) == (key_of(LIVE), reason)
    again = tick(first.cursor)
    assert again.run_requests == []
    assert f"{LATE_DAY} was requested: none before" in str(again.skip_reason)
    # A daemon that died before it stored the cursor requests the same run, which Dagster makes once.
    assert [one.run_key for one in tick(None).run_requests] == [request.run_key]
    today = digest_of(
        installation.platform, declared_subjects(installation.defs).only(MODEL), datetime.now(UTC).date(), ()
    )
    assert [one.what for one in today.requested] == [
        f"{MODEL} {LATE_DAY} is trained again because of {reason}"
    ]

    result = installation.run(*STAGES, partition=request.partition_key, **request.tags)
    assert result.success, failure_of(result)
    spec: Any = installation._components[-1].spec
    later = next_request(
        spec,
        spec.scoring.retrain,
        installation.platform,
        resources["tables"],
        made=request.run_key,
        now=datetime.now(UTC) + timedelta(days=8),
    )
    assert later.request is None
    assert later.said == f"version 1 keeps its limits on the 0 measured partitions after {LATE_DAY}"


def test_a_canary_predicts_beside_production(
    installation: Installation, scored: pl.DataFrame, canary: tuple[int, Bundle]
) -> None:
    number, other = canary
    result = installation.run(PREDICTIONS, partition=DAY)
    assert result.success, failure_of(result)
    rows = installation.main.scan(PREDICTIONS, [DAY]).collect()
    assert rows.height == scored.height // 2
    assert rows["version"].unique().to_list() == [1]
    assert rows["canary_version"].unique().to_list() == [number]
    assert rows["canary_bundle_digest"].unique().to_list() == [other.digest]
    assert rows["canary_prediction"].null_count() == 0
    assert (rows["canary_prediction"] - rows["prediction"]).abs().max() > 1


def test_workers_score_what_the_run_scores(installation: Installation, canary: tuple[int, Bundle]) -> None:
    """By both versions, with the same files and manifests."""
    spec: Any = installation._components[-1].spec
    features = declared_tables(installation.defs).find(FEATURES)
    assert features is not None
    reader, found, faults = installation.main, list[list[MadePartition]](), dict[str, str]()
    for pool in ({"pool": "in-process"}, {"pool": "processes", "pool_workers": 2, "pool_after_seconds": 0}):
        platform = Platform(installation.settings.model_copy(update=pool))
        scorers = scorers_of(platform, MODEL)
        table = predictions_table(spec, spec.scoring.volume, dict(features.columns), scorers)
        keys = [DAY, NEXT_DAY, LATE_DAY]
        found.append([*scored_partitions(platform, spec, table, scorers, reader, keys, faults)])
    assert not faults
    for here, there in zip(*found, strict=True):
        assert here.ready is not None
        assert there.ready is not None
        assert there.ready.manifest == here.ready.manifest
        assert there.ready.stored == here.ready.stored
        assert here.ready.frame["canary_prediction"].null_count() == 0


def test_a_canary_is_measured_apart(installation: Installation, canary: tuple[int, Bundle]) -> None:
    assert installation.run(PREDICTIONS, partition=NEXT_DAY).success
    page = facts(materialized(installation.run(LIVE, partition=NEXT_DAY), LIVE)[NEXT_DAY])
    assert (page["production version"], page["canary version"]) == (1, canary[0])
    assert page["canary mae"] > 3 * page["production mae"]
    assert "production drift" in page


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
