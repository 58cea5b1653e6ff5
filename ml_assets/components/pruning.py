"""Sensor that removes abandoned trainings from the cluster: their launcher is gone and their run has ended."""

import dagster as dg
from dagster._core.storage.tags import AUTO_RETRY_RUN_ID_TAG, WILL_RETRY_TAG

from resources.platform import Platform

EVERY_SECONDS = 10
NOTHING_TO_PRUNE = "nothing to remove: every training has a launcher, or a run that may resume it"


@dg.sensor(
    name="prune_trainings",
    minimum_interval_seconds=EVERY_SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Removes trainings from the cluster whose launcher is gone and whose run has ended; checkpoints stay.",
)
def prune_trainings(
    context: dg.SensorEvaluationContext, platform: dg.ResourceParam[Platform]
) -> dg.SkipReason:
    """Remove abandoned trainings. Request no run: a training resumes when its model is materialized again."""
    pruned = platform.launcher.prune(lambda run: has_ended(context.instance, run), context.log.warning)
    for name in pruned:
        context.log.info(f"removed {name}, whose launcher is gone")
    return dg.SkipReason(f"removed {', '.join(pruned)}" if pruned else NOTHING_TO_PRUNE)


def has_ended(instance: dg.DagsterInstance, run_id: str) -> bool:
    """True if neither this run nor an automatic retry of it can resume its training.

    A run that `instance` does not know may belong to another installation, so it counts as not ended.
    """
    run = instance.get_run_by_id(run_id)
    while run is not None and run.is_finished:
        if run.tags.get(WILL_RETRY_TAG) != "true":
            return True
        retried_as = run.tags.get(AUTO_RETRY_RUN_ID_TAG)
        run = instance.get_run_by_id(retried_as) if retried_as else None
    return False
