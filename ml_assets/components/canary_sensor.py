"""Sensor that compares a model's canary with the champion, and takes it back if it is worse than allowed.

Here: Dagster's side, which shows the evidence on the model's page. Not here: the comparison and the demotion
(`live.canary_watch`).
"""

import json
import time

import dagster as dg

from ml_assets.components.specs import TrainingPipelineSpec
from resources.artifacts import ArtifactsError
from resources.lake import LakeError
from resources.ledger import LedgerError
from resources.platform import Platform

SHOW_EVERY_SECONDS = 600
"""Least time between two observations of the same canary, since each is a row in Dagster's event log."""


def canary_sensor(spec: TrainingPipelineSpec, every_seconds: int, page: dg.AssetKey) -> dg.SensorDefinition:
    """Return the sensor of a model whose `release.canary` has `watch`. It requests no run.

    `page` is the asset that shows the evidence. A tick without canary, log or ledger is skipped with the reason; the
    next one looks again.
    """

    @dg.sensor(
        name=f"{spec.name}_canary",
        asset_selection=[page],
        minimum_interval_seconds=every_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Compares the canary of {spec.name} with the champion; takes it back if it is worse than allowed.",
    )
    def watch(context: dg.SensorEvaluationContext, platform: dg.ResourceParam[Platform]) -> dg.SensorResult:
        from ml_assets.use.live.canary_watch import watch_canary

        try:
            state = watch_canary(spec, platform)
        except (ArtifactsError, LakeError, LedgerError) as error:
            return dg.SensorResult(skip_reason=f"not compared this time: {error}", cursor=context.cursor)
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

    return watch
