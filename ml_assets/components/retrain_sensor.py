"""Sensor that requests a training when a limit of `scoring.retrain` is broken, of live performance or of the features.

Here: Dagster's side, which shows the reason on the page of live performance. Not here: the decision (`live.retrain`).
"""

from collections.abc import Sequence
from datetime import UTC, datetime

import dagster as dg

from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.components.tags import RETRAINS
from ml_assets.data.tables.declared import DeclaredTables
from ml_assets.model.steps.retraining import RetrainSection
from resources.artifacts import ArtifactsError
from resources.lake import LakeError
from resources.ledger import LedgerError
from resources.platform import Platform

EVERY_SECONDS = 300


def retrain_sensor(
    spec: TrainingPipelineSpec, section: RetrainSection, stages: Sequence[dg.AssetKey], page: dg.AssetKey
) -> dg.SensorDefinition:
    """Return the sensor, which requests runs of `stages` and shows their reason on `page`.

    The name of a request is the key of its run, and the cursor. A daemon that dies before Dagster has stored the cursor
    requests the same key again, and Dagster makes one run of it.
    """

    @dg.sensor(
        name=f"{spec.name}_retraining",
        asset_selection=[*stages],
        minimum_interval_seconds=EVERY_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Requests a training of {spec.name} when its live performance breaks a limit of scoring.retrain, "
        f"at most once in {section.cool_down_hours:g} hours.",
    )
    def retraining(
        context: dg.SensorEvaluationContext,
        platform: dg.ResourceParam[Platform],
        tables: dg.ResourceParam[DeclaredTables],
    ) -> dg.SensorResult:
        from ml_assets.use.live.retrain import next_request

        made = context.cursor or ""
        try:
            found = next_request(
                spec, section, platform, tables, made=made, now=datetime.now(UTC), skew=spec.skew
            )
        except (ArtifactsError, LakeError, LedgerError) as error:
            return dg.SensorResult(skip_reason=f"not compared this time: {error}", cursor=made)
        if (request := found.request) is None:
            return dg.SensorResult(skip_reason=found.said, cursor=made)
        shown = dg.AssetObservation(
            page,
            description=f"training of {request.partition} requested: {request.reason}",
            metadata={"requested": request.partition, "reason": request.reason},
        )
        return dg.SensorResult(
            run_requests=[
                dg.RunRequest(
                    run_key=request.name, partition_key=request.partition, tags={RETRAINS: request.reason}
                )
            ],
            asset_events=[shown],
            cursor=request.name,
        )

    return retraining
