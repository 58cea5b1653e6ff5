"""Schedules of models. Each tick asks the source for its latest day."""

import dagster as dg

from ml_assets.components.specs import TrainingPipelineSpec
from ml_assets.data.tables.imports import resolve_latest

TRAINS = "train_"
"""Begin of the name of a model's job, which its schedule runs."""


def nightly_training(
    spec: TrainingPipelineSpec, job_name: str, evaluation: dg.AssetKey
) -> dg.ScheduleDefinition:
    """Return the schedule that trains the newest complete partition of the source.

    A tick skips, with the reason, if that partition is trained already.
    """
    schedule = spec.schedule
    if schedule is None:
        raise ValueError(f"{spec.name} declares no schedule")
    latest = resolve_latest(schedule.latest)
    cadence = spec.partitions.as_cadence

    @dg.schedule(
        name=f"{job_name}_schedule",
        cron_schedule=schedule.cron,
        execution_timezone=schedule.time_zone,
        job_name=job_name,
        default_status=dg.DefaultScheduleStatus.RUNNING
        if schedule.enabled
        else dg.DefaultScheduleStatus.STOPPED,
        description=f"Trains {spec.name} on the latest day of its source.",
    )
    def tick(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        day = latest()
        complete = cadence.complete(day)
        if not complete:
            return dg.SkipReason(
                f"the latest day of the source, {day}, is before the first partition of {spec.name}"
            )
        if complete[-1] in context.instance.get_materialized_partitions(evaluation):
            return dg.SkipReason(
                f"nothing new: {spec.name} {complete[-1]} is trained, and the latest day of the source is {day}"
            )
        return dg.RunRequest(run_key=complete[-1], partition_key=complete[-1])

    return tick
