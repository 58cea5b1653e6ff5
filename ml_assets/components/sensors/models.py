"""Asset `<model>/production`, and the sensors of a model: decisions, canary, requested trainings.

Here: Dagster's side, which shows the facts on the model's pages. Not here: the decisions (`live.canary_watch`,
`live.retrain`, commands), the facts (`pages.digest`).
"""

import json
from collections.abc import Sequence
from typing import Any

import dagster as dg

from ml_assets.components.metadata import RELEASE, RETRAINS
from ml_assets.components.pages import report_facts
from ml_assets.components.sensors.ended_runs import claim, told
from ml_assets.components.sensors.ticks import Tick, TickAnswer, ticking_sensor
from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.data.tables.declared import DeclaredTables
from ml_assets.foundation.links import report_name, report_page, review_page
from ml_assets.model.steps.retraining import RetrainSection
from ml_assets.pages.digest import (
    newest_registered,
    production_of,
    release_facts,
    waiting_for_approval,
)
from ml_assets.use.live.retrain import next_request, seen_by_next_request
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

    def evaluate(tick: Tick, platform: dg.ResourceParam[Platform]) -> TickAnswer:
        tick.saw(
            decided=platform.ledger.models.head().place,
            registered=newest_registered(platform, spec.name, spec.rules),
        )
        events: list[dg.AssetObservation | dg.AssetMaterialization] = []
        shown_place = tick.own
        try:
            live = production_of(platform, spec.name)
            if live is not None and str(live.place) != shown_place:
                shown: dict[str, Any] = dict(live.facts)
                if live.report:
                    page = report_page(platform.settings.ui_url, live.report)
                    shown |= {"report": dg.MetadataValue.url(page)}
                events.append(dg.AssetMaterialization(production, description=live.headline, metadata=shown))
                shown_place = str(live.place)
            for version, row in waiting_for_approval(platform, spec.name, spec.rules):
                if claim(tick.context.instance, f"waits/{row.evaluation_digest}"):
                    events.append(_notify(platform, production, version.number, row))
        except (LedgerError, TrackerError) as error:  # the events before it are shown
            return TickAnswer(
                asset_events=events, said=f"not shown: {error}", own=shown_place, again_at=tick.now
            )
        said = "; ".join(event.description or "" for event in events) or "nothing new was decided"
        return TickAnswer(asset_events=events, said=said, own=shown_place, again_at=None)

    return ticking_sensor(
        evaluate,
        name=f"{spec.name}_releases",
        asset_selection=[production],
        every_seconds=60,
        otherwise="not shown",
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

    def evaluate(tick: Tick, platform: dg.ResourceParam[Platform]) -> TickAnswer:
        from ml_assets.use.live.canary_watch import watch_canary

        tick.saw(decided=platform.ledger.models.head().place)
        state = watch_canary(spec, platform)
        said = "; ".join([*map(str, state.compared), *state.missing])
        if state.canary is None or not state.compared:
            # Without a canary only a decision brings one. With one, its requests come at any time.
            return TickAnswer(said=said, own=tick.own, again_at=None if state.canary is None else tick.now)
        decision = (
            f"version {state.canary.version} {'is taken back' if state.demotion else 'stays the canary'}"
        )
        shown, now = json.loads(tick.own or "{}"), tick.now.timestamp()
        is_news = state.demotion is not None or shown.get("canary") != state.canary.place
        if not is_news and tick.seconds_since(shown["at"]) < SHOW_EVERY_SECONDS:
            return TickAnswer(said=f"{decision}: {said}", own=tick.own, again_at=tick.now)
        metadata = {one.metric: dg.MetadataValue.text(str(one)) for one in state.compared}
        if state.missing:
            metadata["missing"] = dg.MetadataValue.text("; ".join(state.missing))
        return TickAnswer(
            asset_events=[dg.AssetObservation(page, description=decision, metadata=metadata)],
            said=f"{decision}: {said}",
            own=json.dumps({"canary": state.canary.place, "at": now}),
            again_at=tick.now,
        )

    return ticking_sensor(
        evaluate,
        name=f"{spec.name}_canary",
        asset_selection=[page],
        every_seconds=every_seconds,
        otherwise="not compared this time",
        description=f"Compares the canary of {spec.name} with the champion; takes it back if it is worse than allowed.",
    )


def retrain_sensor(
    spec: TrainingPipelineSpec, section: RetrainSection, stages: Sequence[dg.AssetKey], page: dg.AssetKey
) -> dg.SensorDefinition:
    """Return the sensor that requests runs of `stages` when a limit of `section` is broken. `page` shows the reason.

    The name of a request is the key of its run, and the cursor. A daemon that dies before Dagster has stored the cursor
    requests the same key again, and Dagster makes one run of it.
    """

    def evaluate(
        tick: Tick,
        platform: dg.ResourceParam[Platform],
        tables: dg.ResourceParam[DeclaredTables],
    ) -> TickAnswer:
        tick.saw(**seen_by_next_request(spec, platform, tables))
        made = tick.own
        found = next_request(spec, section, platform, tables, made=made, now=tick.now, skew=spec.skew)
        if (request := found.request) is None:
            return TickAnswer(said=found.said, own=made, again_at=found.until)
        shown = dg.AssetObservation(
            page,
            description=f"training of {request.partition} requested: {request.reason}",
            metadata={"requested": request.partition, "reason": request.reason},
        )
        run = dg.RunRequest(
            run_key=request.name, partition_key=request.partition, tags={RETRAINS: request.reason}
        )
        # The record of the request is new: the next tick says until when it holds.
        return TickAnswer(
            run_requests=[run], said=request.reason, asset_events=[shown], own=request.name, again_at=tick.now
        )

    return ticking_sensor(
        evaluate,
        name=f"{spec.name}_retraining",
        asset_selection=[*stages],
        every_seconds=300,
        otherwise="not compared this time",
        description=f"Requests a training of {spec.name} when its live performance breaks a limit of scoring.retrain, "
        f"at most once in {section.cool_down_hours:g} hours.",
    )
