"""Asset `<model>/production`, and the sensors of a model: decisions, canary, requested trainings.

Here: Dagster's side, which shows the facts on the model's pages. Not here: the decisions (`live.canary_watch`,
`live.retrain`, commands), the facts (`pages.digest`).
"""

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from ml_assets.components.failures import guarded_sensor
from ml_assets.components.metadata import RELEASE, RETRAINS
from ml_assets.components.pages import report_facts
from ml_assets.components.sensors.ended_runs import claim, told
from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.data.tables.declared import DeclaredTables
from ml_assets.foundation.links import report_name, report_page, review_page
from ml_assets.model.steps.retraining import RetrainSection
from ml_assets.pages.digest import production_of, release_facts, waiting_for_approval
from ml_assets.use.live.retrain import next_request
from resources.ledger import EvaluationRow, LedgerError
from resources.platform import Platform
from resources.tracking.mlflow_client import TrackerError

PRODUCTION = "production"
SHOW_EVERY_SECONDS = 600
"""Least time between two observations of the same canary, since each is a row in Dagster's event log."""


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
    """Return the sensor that shows decisions and tells who has to decide. It requests no run."""

    def tick(context: dg.SensorEvaluationContext, platform: dg.ResourceParam[Platform]) -> dg.SensorResult:
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
        except (LedgerError, TrackerError) as error:  # the events before it are shown
            return dg.SensorResult(asset_events=events, skip_reason=f"not shown: {error}", cursor=cursor)
        said = "; ".join(event.description or "" for event in events) or "nothing new was decided"
        return dg.SensorResult(asset_events=events, skip_reason=said, cursor=cursor)

    return guarded_sensor(
        tick,
        name=f"{spec.name}_releases",
        asset_selection=[production],
        every_seconds=60,
        description=f"Shows what is in production of {spec.name}, and tells when a version waits for an approval.",
    )


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
    report = report_page(of.ui_url, report_name(row.model, row.partition, row.evaluation_digest))
    return dg.AssetObservation(
        production,
        description=headline,
        metadata={
            "waits": f"version {number}",
            "why": row.summary,
            "next": command if page is None else page,
            "told": told(platform, notice),
            **report_facts(report, row.report),
        },
    )


def canary_sensor(spec: TrainingPipelineSpec, every_seconds: int, page: dg.AssetKey) -> dg.SensorDefinition:
    """Return the sensor that compares a canary with the champion, and takes it back if it is worse than allowed.

    For models whose `release.canary` has `watch`. It requests no run. `page` is the asset that shows the evidence.
    """

    def tick(context: dg.SensorEvaluationContext, platform: dg.ResourceParam[Platform]) -> dg.SensorResult:
        from ml_assets.use.live.canary_watch import watch_canary

        state = watch_canary(spec, platform)
        said = "; ".join([*map(str, state.compared), *state.missing])
        if state.canary is None or not state.compared:
            return dg.SensorResult(skip_reason=said, cursor=context.cursor)
        decision = (
            f"version {state.canary.version} {'is taken back' if state.demotion else 'stays the canary'}"
        )
        shown = json.loads(context.cursor or "{}")
        is_news = state.demotion is not None or shown.get("canary") != state.canary.place
        if not is_news and time.time() - shown["at"] < SHOW_EVERY_SECONDS:
            return dg.SensorResult(skip_reason=f"{decision}: {said}", cursor=context.cursor)
        metadata = {one.metric: dg.MetadataValue.text(str(one)) for one in state.compared}
        if state.missing:
            metadata["missing"] = dg.MetadataValue.text("; ".join(state.missing))
        return dg.SensorResult(
            asset_events=[dg.AssetObservation(page, description=decision, metadata=metadata)],
            skip_reason=f"{decision}: {said}",
            cursor=json.dumps({"canary": state.canary.place, "at": time.time()}),
        )

    return guarded_sensor(
        tick,
        name=f"{spec.name}_canary",
        asset_selection=[page],
        every_seconds=every_seconds,
        description=f"Compares the canary of {spec.name} with the champion; takes it back if it is worse than allowed.",
    )


def retrain_sensor(
    spec: TrainingPipelineSpec, section: RetrainSection, stages: Sequence[dg.AssetKey], page: dg.AssetKey
) -> dg.SensorDefinition:
    """Return the sensor that requests runs of `stages` when a limit of `section` is broken. `page` shows the reason.

    The name of a request is the key of its run, and the cursor. A daemon that dies before Dagster has stored the cursor
    requests the same key again, and Dagster makes one run of it.
    """

    def tick(
        context: dg.SensorEvaluationContext,
        platform: dg.ResourceParam[Platform],
        tables: dg.ResourceParam[DeclaredTables],
    ) -> dg.SensorResult:
        made = context.cursor or ""
        found = next_request(
            spec, section, platform, tables, made=made, now=datetime.now(UTC), skew=spec.skew
        )
        if (request := found.request) is None:
            return dg.SensorResult(skip_reason=found.said, cursor=made)
        shown = dg.AssetObservation(
            page,
            description=f"training of {request.partition} requested: {request.reason}",
            metadata={"requested": request.partition, "reason": request.reason},
        )
        run = dg.RunRequest(
            run_key=request.name, partition_key=request.partition, tags={RETRAINS: request.reason}
        )
        return dg.SensorResult(run_requests=[run], asset_events=[shown], cursor=request.name)

    return guarded_sensor(
        tick,
        name=f"{spec.name}_retraining",
        asset_selection=[*stages],
        every_seconds=300,
        description=f"Requests a training of {spec.name} when its live performance breaks a limit of scoring.retrain, "
        f"at most once in {section.cool_down_hours:g} hours.",
    )
