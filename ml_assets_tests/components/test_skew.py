"""Skew of a model's features against the training of its version in production, and trainings that drift requests."""

from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import polars as pl
import pytest
from pydantic import ValidationError

from ml_assets.components.metadata import RETRAINS, declared_tables
from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.use.live.retrain import next_request
from ml_assets_tests.components.installation import Installation, readings_components
from ml_assets_tests.components.readings_pipeline import (
    FEATURES,
    MODEL,
    PIPELINE,
    READINGS,
    WINDOW,
    Source,
    days,
)
from resources.ledger import NewEvaluation, Person, TrainedOn

KEYS = days(WINDOW + 8)
TRAINED, LATER = KEYS[1 : WINDOW + 1], KEYS[WINDOW + 1 :]
PRODUCTION = dg.AssetKey([MODEL, "production"])
RETRAIN = {
    "when": [{"metric": "skew", "at_most": 1}, {"metric": "table_drift", "at_most": 0}],
    "cool_down_hours": 24,
}


def declared(installation: Installation) -> Installation:
    return installation.declared_as(
        readings_components(
            features={"drift": {"window": 16}, "leakage_check": "off"},
            pipeline={"skew": {"partitions": 2}, "scoring": {"retrain": RETRAIN}},
        )
    )


def in_production(installation: Installation) -> None:
    """Put a version into production that was trained on `TRAINED`, as main holds them now."""
    log = installation.platform.ledger.models
    row = log.record_evaluation(
        NewEvaluation(
            model=MODEL,
            partition=TRAINED[-1],
            bundle_digest="b" * 64,
            evaluation_digest="e" * 64,
            champion_digest=None,
            status="blessed",
            summary="Blessed.",
            rules=(),
            transitions=(),
            by=Person.unchecked("ada"),
            launched_in="terminal",
            report="file:///report.html",
            run_id="a-run",
            trained_on=TrainedOn(
                commit=installation.main.commit_id,
                table=FEATURES,
                first=TRAINED[0],
                last=TRAINED[-1],
                partitions=len(TRAINED),
            ),
        )
    )
    log.promote(
        MODEL,
        "1",
        "production",
        by=Person.unchecked("ada"),
        reason="the first",
        bundle_digest=row.bundle_digest,
        evaluation_digest=row.evaluation_digest,
    )


def with_days(installation: Installation, keys: list[str]) -> None:
    for table in (READINGS, FEATURES):
        assert installation.run(table, partition=keys[0], last=keys[-1]).success


def tick(installation: Installation, sensor: str, cursor: str | None = None) -> Any:
    resources = {"platform": installation.platform, "tables": declared_tables(installation.defs)}
    found = installation.defs.get_repository_def().get_sensor_def(f"{MODEL}_{sensor}")
    return found(dg.build_sensor_context(instance=installation.instance, resources=resources, cursor=cursor))


def test_unchanged_features_are_green_and_request_nothing(installation: Installation) -> None:
    installation = declared(installation)
    assert "no version of throughput is in production" in tick(installation, "skew").skip_reason.skip_message
    with_days(installation, KEYS[: WINDOW + 1])
    in_production(installation)
    assert "0 partitions after" in tick(installation, "skew").skip_reason.skip_message
    with_days(installation, LATER)
    shown = tick(installation, "skew")
    (check,) = shown.asset_events
    assert (check.asset_check_key, check.passed) == (dg.AssetCheckKey(PRODUCTION, "skew"), True)
    assert f"{LATER[-2]} to {LATER[-1]} against {TRAINED[0]} to {TRAINED[-1]}" in check.description
    assert tick(installation, "skew", shown.cursor).asset_events == []
    assert tick(installation, "retraining").run_requests == []


def test_moved_features_are_yellow_and_request_one_training_per_cool_down(
    installation: Installation, source: Source
) -> None:
    """Move an input from the third day after the training on: its day drifts, and the newest days differ."""
    installation = declared(installation)
    for day in LATER[2:]:
        source.spoiled[day] = lambda rows: rows.with_columns(pl.col("made") + 12)
    with_days(installation, KEYS[: WINDOW + 1])
    in_production(installation)
    with_days(installation, LATER)
    (check,) = tick(installation, "skew").asset_events
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "1 of 3 columns differ: made_yesterday (mean" in check.description
    assert check.metadata["skew"].value > 1
    assert "| made_yesterday |" in check.metadata["columns"].value

    first = tick(installation, "retraining")
    (request,) = first.run_requests
    assert request.partition_key == LATER[-1]
    assert request.tags[RETRAINS].startswith("version 1: skew was ")
    again = tick(installation, "retraining", first.cursor)
    assert again.run_requests == []
    assert "none before" in again.skip_reason.skip_message
    spec: Any = installation._components[-1].spec
    tables = declared_tables(installation.defs)

    def later(hours: float) -> Any:
        now = datetime.now(UTC) + timedelta(hours=hours)
        of = installation.platform
        return next_request(
            spec, spec.scoring.retrain, of, tables, made=request.run_key, now=now, skew=spec.skew
        ).request

    assert later(23) is None
    assert later(25) is not None


def test_a_drift_of_the_feature_table_requests_a_training(installation: Installation, source: Source) -> None:
    installation = declared(installation)
    source.spoiled[LATER[-2]] = lambda rows: rows.with_columns(pl.col("made") + 12)
    with_days(installation, KEYS[: WINDOW + 1])
    in_production(installation)
    with_days(installation, LATER)
    (request,) = tick(installation, "retraining").run_requests
    assert f"table_drift of {FEATURES} was 1 on {LATER[-1]}; at most 0 is allowed" in request.tags[RETRAINS]


@pytest.mark.parametrize(
    ("changes", "at", "said"),
    [
        ({"skew": {"window": 2}}, "skew.window", "unknown key 'window'"),
        (
            {"skew": {"partitions": 2, "ignore": ["made"]}},
            "skew.ignore.0",
            "'made' is not an input of the model",
        ),
        ({"skew": {"partitions": 2, "columns": {"lod": 1}}}, "skew.columns.lod", "did you mean 'load'?"),
        ({"skew": {}}, "skew.partitions", "fewer than 8 of them: write 2"),
        (
            {"scoring": {"retrain": {"when": [{"metric": "skew", "at_most": 1}]}}},
            "scoring.retrain.when.0.metric",
            "add the section `skew`",
        ),
    ],
)
def test_a_bad_policy_is_refused_at_its_key(changes: dict[str, Any], at: str, said: str) -> None:
    with pytest.raises(ValidationError) as refused:
        TrainingPipelineSpec.model_validate(PIPELINE | changes)
    (error,) = refused.value.errors()
    assert ".".join(map(str, error["loc"])) == at
    assert said in error["msg"]
