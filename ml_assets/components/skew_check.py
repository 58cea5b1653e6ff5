"""Check `skew` of `<model>/production`, and the sensor that runs it when production or the features changed.

The check runs in the sensor's tick, because it reads profiles alone, and on a click. Not here: the comparison
(`live.training_skew`), the request of a training (`retrain_sensor`).
"""

from typing import Any

import dagster as dg

from ml_assets.components.drift_page import drift_in_markdown
from ml_assets.components.failures import final_unless_transient
from ml_assets.components.pages import readable
from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.data.validation.drift_rule import SkewRule
from resources.lake import LakeError
from resources.ledger import LedgerError
from resources.platform import Platform

SKEW = "skew"
"""Name of the check."""
EVERY_SECONDS = 300


def skew_check(
    spec: TrainingPipelineSpec, rule: SkewRule, production: dg.AssetKey
) -> dg.AssetChecksDefinition:
    """Return the check of a model's features against the training of its version in production."""

    @dg.asset_check(
        asset=production,
        name=SKEW,
        description=f"The newest {rule.partitions} partitions of {spec.features.table} are like those that the version "
        "in production was trained on.",
    )
    def skew(platform: dg.ResourceParam[Platform]) -> dg.AssetCheckResult:
        with final_unless_transient():
            return dg.AssetCheckResult(**_result(spec, rule, platform))

    return skew


def skew_sensor(spec: TrainingPipelineSpec, rule: SkewRule, production: dg.AssetKey) -> dg.SensorDefinition:
    """Return the sensor, which reports the check when main or the version in production changed."""

    @dg.sensor(
        name=f"{spec.name}_skew",
        asset_selection=dg.AssetSelection.checks(dg.AssetCheckKey(production, SKEW)),
        minimum_interval_seconds=EVERY_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Compares the newest features of {spec.name} with those of the training of the version in "
        "production.",
    )
    def watch(context: dg.SensorEvaluationContext, platform: dg.ResourceParam[Platform]) -> dg.SensorResult:
        from ml_assets.use.live.training_skew import NotCompared

        try:
            promotion = platform.ledger.models.in_production(spec.name)
            seen = f"{platform.lake.resolve('main')} {promotion.place if promotion else ''}"
            if seen == context.cursor:
                return dg.SensorResult(skip_reason="neither main nor production changed", cursor=seen)
            found = _result(spec, rule, platform)
        except NotCompared as error:
            return dg.SensorResult(skip_reason=f"not compared: {error}", cursor=context.cursor)
        except (LakeError, LedgerError) as error:
            return dg.SensorResult(skip_reason=f"not compared this time: {error}", cursor=context.cursor)
        shown = dg.AssetCheckEvaluation(
            asset_key=production,
            check_name=SKEW,
            **found,
        )
        return dg.SensorResult(asset_events=[shown], skip_reason=found["description"], cursor=seen)

    return watch


def _result(spec: TrainingPipelineSpec, rule: SkewRule, platform: Platform) -> dict[str, Any]:
    """Return passed, severity, description and metadata of the check."""
    from ml_assets.use.live.training_skew import skew_of

    found = skew_of(spec, rule, platform)
    newest = f"{found.now[0]} to {found.now[-1]}"
    return {
        "passed": not found.changes,
        "severity": dg.AssetCheckSeverity.ERROR if rule.severity == "error" else dg.AssetCheckSeverity.WARN,
        "description": str(found),
        "metadata": {
            "skew": dg.MetadataValue.float(readable(found.drift.largest)),
            "columns": dg.MetadataValue.md(drift_in_markdown(newest, found.drift, "block")),
        },
    }
