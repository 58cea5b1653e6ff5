"""Limits of live performance: which days break them, and declarations that are refused."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.model.steps.retraining import RetrainRequest, RetrainRule, record_request, requests_since
from ml_assets.use.live.performance import DayFigures, OutputDrift, VersionFigures
from ml_assets.use.live.performance_history import store_day, stored_days
from ml_assets.use.live.retrain import broken_limits
from ml_assets_tests.components.readings_pipeline import MODEL, PIPELINE, days
from resources.artifacts import FolderArtifacts

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)


def day(
    partition: str,
    drift: float | None,
    rmse: float | None = None,
    bundle: str = "a",
    holdout: float | None = None,
) -> DayFigures:
    moved = OutputDrift(
        output="prediction", psi=1.0, psi_excess=drift or 0.0, ks=None, mean=0.0, reference_mean=0.0
    )
    one = VersionFigures(
        role="production",
        version=1,
        bundle_digest=bundle,
        rows=10,
        stands_for=10,
        left_out={},
        reference=(),
        drift=() if drift is None else (moved,),
        labelled=0 if rmse is None else 10,
        unknown_classes=0,
        metrics={} if rmse is None else {"rmse": rmse},
        holdout_drift=() if holdout is None else (moved.model_copy(update={"psi_excess": holdout}),),
        no_holdout="",
        slices=(),
        profiles=(),
    )
    return DayFigures(
        model=MODEL,
        partition=partition,
        objective="regression",
        source="predictions",
        versions=(one,),
        measured_at=NOON,
    )


def broken(rule: dict[str, Any], *figures: DayFigures) -> list[tuple[str, dict[str, str], str]]:
    """Return each broken limit: its metric, partition → value, and the limit."""
    found = list(broken_limits([RetrainRule.model_validate(rule)], figures, "a"))
    limits = [re.findall(r"at (?:most|least) \S+", said) for said in found]
    values = [{key: value for value, key in re.findall(r"([\d.]+) on (\d+)", said)} for said in found]
    return [
        (said.split()[0], facts, limit) for said, facts, (limit,) in zip(found, values, limits, strict=True)
    ]


def test_a_limit_must_be_broken_on_enough_days_in_a_row() -> None:
    rule = {"metric": "drift", "at_most": 0.2, "partitions": 2}
    assert broken(rule, day("1", 0.1), day("2", 0.3)) == []
    assert broken(rule, day("2", 0.3)) == []
    assert broken(rule, day("1", 0.3), day("2", 0.1), day("3", 0.3)) == []
    assert broken(rule, day("1", 0.1), day("2", 0.3), day("3", 0.4)) == [
        ("drift", {"2": "0.3", "3": "0.4"}, "at most 0.2")
    ]


def test_days_without_labels_and_of_other_versions_do_not_count() -> None:
    rule = {"metric": "rmse", "at_most": 5}
    assert broken(rule, day("1", 0.0, 9.0), day("2", 0.0)) == [("rmse", {"1": "9"}, "at most 5")]
    assert broken(rule, day("1", 0.0, 9.0), day("2", 0.0, 4.0)) == []
    assert broken(rule, day("1", 0.0, 9.0, bundle="b")) == []
    assert broken({"metric": "drift", "at_most": 0.2}, day("1", None)) == []


def test_drift_from_the_holdout_has_a_limit_of_its_own() -> None:
    rule = {"metric": "holdout_drift", "at_most": 0.2}
    assert broken(rule, day("1", 0.9, holdout=0.1)) == []
    assert broken(rule, day("1", None, holdout=0.3)) == [("holdout_drift", {"1": "0.3"}, "at most 0.2")]


def test_a_value_at_the_limit_keeps_it() -> None:
    assert RetrainRule(metric="auc", at_least=0.7).allows(0.7)
    assert not RetrainRule(metric="auc", at_least=0.7).allows(0.69)
    assert RetrainRule(metric="rmse", at_most=0.0).allows(0.0)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"metric": "rsme", "at_most": 1}, "'rsme' is not measured: did you mean 'rmse'?"),
        ({"metric": "auc", "at_least": 1}, "'auc' is not measured"),
        ({"metric": "rmse", "at_least": 1}, "lower values of rmse are better: give at_most"),
        ({"metric": "r2", "at_most": 1}, "higher values of r2 are better: give at_least"),
        ({"metric": "drift", "at_least": 1}, "lower values of drift are better: give at_most"),
        ({"metric": "drift"}, "give one of at_least and at_most"),
        ({"metric": "drift", "at_least": 1, "at_most": 2}, "give one of at_least and at_most"),
        ({"metric": "drift", "at_most": 1, "partitions": 0}, "greater than or equal to 1"),
    ],
)
def test_a_limit_that_cannot_be_measured_is_refused(rule: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as refused:
        TrainingPipelineSpec.model_validate(PIPELINE | {"scoring": {"retrain": {"when": [rule]}}})
    assert said in str(refused.value)


def test_requests_are_read_from_a_moment_on(tmp_path: Path) -> None:
    artifacts = FolderArtifacts(tmp_path)
    assert requests_since(artifacts, MODEL, NOON) == []
    made = [
        RetrainRequest(
            model=MODEL, partition="2024-01-19", at=NOON + n * timedelta(days=1), version=1, reason="r"
        )
        for n in range(3)
    ]
    for one in reversed(made):
        record_request(artifacts, one)
    assert requests_since(artifacts, MODEL, NOON) == made
    assert requests_since(artifacts, MODEL, NOON + timedelta(hours=25)) == made[2:]


def test_stored_days_after_a_partition_are_read(tmp_path: Path) -> None:
    artifacts = FolderArtifacts(tmp_path)
    first, second, third = days(3)
    for one in (third, first, second):
        store_day(artifacts, day(one, 0.1))
    assert [one.partition for one in stored_days(artifacts, MODEL, after=first)] == [second, third]
    assert len(stored_days(artifacts, MODEL, after="")) == 3
