"""What keeps the cluster clean while nobody looks: trainings whose launcher died are removed."""

import dagster as dg

from resources.platform import Platform

EVERY_SECONDS = 10


@dg.sensor(
    name="sweep_trainings",
    minimum_interval_seconds=EVERY_SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Removes trainings from the cluster whose launcher shows no sign of life; checkpoints stay.",
)
def sweep_trainings(
    context: dg.SensorEvaluationContext, platform: dg.ResourceParam[Platform]
) -> dg.SkipReason:
    """Never requests a run: a training goes on when its model is materialized again."""
    swept = platform.launcher.sweep()
    for name in swept:
        context.log.info(f"removed {name}, whose launcher is gone")
    return dg.SkipReason(f"removed {', '.join(swept)}" if swept else "every training has its launcher")
