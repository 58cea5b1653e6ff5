"""Asset `<model>/production`, and the sensor that shows on it what people decided, and who has to decide.

Here: Dagster's side. Not here: the facts (`pipeline.digest`), the decisions.
"""

from typing import Any

import dagster as dg

from ml_assets.components.notices import claim
from ml_assets.components.pages import report_facts
from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.model.steps.digest import production_of, release_facts, waiting_for_approval
from ml_assets.model.steps.links import report_name, report_page, review_page
from resources.ledger import EvaluationRow, LedgerError
from resources.platform import Platform
from resources.tracking.mlflow_client import TrackerError
from resources.web.webhook import send

PRODUCTION = "production"
RELEASE = "release"
"""Metadata of the asset: the `release` section of the model."""
EVERY_SECONDS = 60


def production_asset(spec: TrainingPipelineSpec, registered_model: dg.AssetKey) -> dg.AssetSpec:
    """Return the asset that shows what is live. Nothing materializes it: people decide by commands."""
    return dg.AssetSpec(
        dg.AssetKey([spec.name, PRODUCTION]),
        deps=[registered_model],
        description="Version in production: since when, by whom, why, and on which data. Its events are promotions, "
        "rollbacks and demotions, and versions that wait for an approval.",
        group_name=spec.group_name,
        owners=list(spec.owners),
        kinds={"mlflow"},
        metadata={RELEASE: release_facts(spec)},
    )


def release_sensor(spec: TrainingPipelineSpec, production: dg.AssetKey) -> dg.SensorDefinition:
    """Return the sensor of a model. It requests no run. A tick without ledger or MLflow is skipped with the reason."""

    @dg.sensor(
        name=f"{spec.name}_releases",
        asset_selection=[production],
        minimum_interval_seconds=EVERY_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Shows what is in production of {spec.name}, and tells when a version waits for an approval.",
    )
    def watch(context: dg.SensorEvaluationContext, platform: dg.ResourceParam[Platform]) -> dg.SensorResult:
        events: list[dg.AssetObservation | dg.AssetMaterialization] = []
        cursor = context.cursor or ""
        try:
            live = production_of(platform, spec.name)
            if live is not None and str(live.place) != cursor:
                shown: dict[str, Any] = dict(live.facts)
                if live.report:
                    page = report_page(platform.settings.ui_url, live.report)
                    shown |= {"report": dg.MetadataValue.url(page)}
                events.append(dg.AssetMaterialization(production, description=live.headline, metadata=shown))
                cursor = str(live.place)
            for version, row in waiting_for_approval(platform, spec.name, spec.rules):
                if claim(context.instance, f"waits/{row.evaluation_digest}"):
                    events.append(_notify(platform, production, version.number, row))
        except (LedgerError, TrackerError) as error:
            return dg.SensorResult(asset_events=events, skip_reason=f"not shown: {error}", cursor=cursor)
        said = "; ".join(event.description or "" for event in events) or "nothing new was decided"
        return dg.SensorResult(asset_events=events, skip_reason=said, cursor=cursor)

    return watch


def _notify(
    platform: Platform, production: dg.AssetKey, number: int, row: EvaluationRow
) -> dg.AssetObservation:
    """Send the notice, and return the observation that says so."""
    of, headline = platform.settings, f"{row.model} version {number} waits for an approval"
    command = f"ml-assets approve {row.model} {number} --reason '…'"
    page = None if of.review_url is None else review_page(of.review_url, row.model, number)
    notice = {
        "text": f"{headline}: {row.summary}",
        "model": row.model,
        "version": number,
        "evaluation": row.name,
        "data": f"{row.trained_on.first} to {row.trained_on.last}",
        "command": command,
        **({} if page is None else {"review": page}),
    }
    if of.webhook is None:
        told = "nobody: ML_ASSETS_WEBHOOK is not set"
    else:
        told = send(of.webhook.get_secret_value(), notice) or "the webhook"
    report = report_page(of.ui_url, report_name(row.model, row.partition, row.evaluation_digest))
    return dg.AssetObservation(
        production,
        description=headline,
        metadata={
            "waits": f"version {number}",
            "why": row.summary,
            "next": command if page is None else page,
            "told": told,
            **report_facts(report, row.report),
        },
    )
