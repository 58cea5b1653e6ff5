"""Ended launches of tables and models: for the digest of a day, and the notice of a failure at once.

A launch is a run with its repetitions: retries of Dagster, and the run that `build_missing_upstream` requests again.
The newest of them decides.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

import dagster as dg

from ml_assets.components.failures import REFUSED
from ml_assets.components.notices import claim
from ml_assets.components.schedules import TRAINS
from ml_assets.components.tags import (
    ASKED_BY,
    PARTITION,
    RANGE_END,
    RANGE_START,
    ROOT_RUN,
    SCHEDULE,
    WILL_RETRY,
)
from ml_assets.model.steps.digest import EndedLaunch
from resources.addresses import hide_credentials
from resources.platform import Platform
from resources.web.webhook import send

_MODEL_ASSET = "registered_model"
_ENDED = {
    dg.DagsterRunStatus.SUCCESS: "completed",
    dg.DagsterRunStatus.FAILURE: "failed",
    dg.DagsterRunStatus.CANCELED: "canceled",
}
_WHY_CHARACTERS = 500


def ended_launches(instance: dg.DagsterInstance, first: datetime, until: datetime) -> list[EndedLaunch]:
    """Return the launches whose newest run ended from `first` up to and without `until` (UTC), oldest first."""
    found = instance.get_run_records(
        dg.RunsFilter(statuses=list(_ENDED), updated_after=first), ascending=True, order_by="update_timestamp"
    )
    runs = {
        one.dagster_run.run_id: one.dagster_run
        for one in found
        if one.end_time is not None and first.timestamp() <= one.end_time < until.timestamp()
    }
    launches: dict[str, list[dg.DagsterRun]] = {}
    for run in runs.values():
        launches.setdefault(_first_run_of(run, runs), []).append(run)
    return [
        launch for repeated in launches.values() if (launch := _launch_of(instance, repeated)) is not None
    ]


def _first_run_of(run: dg.DagsterRun, runs: Mapping[str, dg.DagsterRun]) -> str:
    """Return the id of the run that a person, a schedule or a sensor requested first."""
    root = run.tags.get(ROOT_RUN, run.run_id)
    asked_by = run.tags.get(ASKED_BY)
    if asked_by is None or asked_by == root:
        return root
    return runs[asked_by].tags.get(ROOT_RUN, asked_by) if asked_by in runs else asked_by


def _launch_of(instance: dg.DagsterInstance, repeated: Iterable[dg.DagsterRun]) -> EndedLaunch | None:
    """Return the launch of these runs, oldest first; None if they made neither a table nor a model."""
    runs = [run for run in repeated if subject_of(run) is not None]
    if not runs:
        return None
    newest = runs[-1]
    status = _ENDED[newest.status]
    why, is_refused = reason_of(instance, newest.run_id) if status == "failed" else ("", False)
    return EndedLaunch(
        subject=subject_of(newest) or "",
        partition=partition_of(newest),
        status="refused" if is_refused else status,
        why=why,
        is_scheduled_training=any(SCHEDULE in run.tags and run.job_name.startswith(TRAINS) for run in runs),
    )


def subject_of(run: dg.DagsterRun) -> str | None:
    """Return the model or table that a run makes; None for another run, such as that of the digest."""
    if run.job_name.startswith(TRAINS):
        return run.job_name.removeprefix(TRAINS)
    names = sorted(key.to_user_string() for key in run.asset_selection or ())
    models = [name.removesuffix(f"/{_MODEL_ASSET}") for name in names if name.endswith(f"/{_MODEL_ASSET}")]
    return next(iter([*models, *(name for name in names if "/" in name)]), None)


def partition_of(run: dg.DagsterRun) -> str:
    """Return the partition, or the range of partitions, as `ml-assets launch` takes it; empty without partitions."""
    if PARTITION in run.tags:
        return run.tags[PARTITION]
    bounds = [run.tags[tag] for tag in (RANGE_START, RANGE_END) if tag in run.tags]
    return "..".join(dict.fromkeys(bounds))


def reason_of(instance: dg.DagsterInstance, run_id: str) -> tuple[str, bool]:
    """Return why a run failed, in one line without credentials; True beside it if inputs were refused."""
    steps = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.STEP_FAILURE).records
    for record in steps:
        event = record.event_log_entry.dagster_event
        if event is None:
            continue
        failure = event.step_failure_data
        given = failure.user_failure_data
        said = (given.description if given else None) or (failure.error.message if failure.error else "")
        return _line(said), given is not None and REFUSED in given.metadata
    ends = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.RUN_FAILURE).records
    return _line(ends[-1].event_log_entry.user_message if ends else ""), False


def _line(text: str) -> str:
    line = " ".join(hide_credentials(text).split())
    return line if len(line) <= _WHY_CHARACTERS else f"{line[:_WHY_CHARACTERS]}…"


@dg.run_failure_sensor(
    name="tell_failures",
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=15,
    description="Sends a failed or refused run to ML_ASSETS_WEBHOOK at once, with its reason and the next command.",
)
def tell_failures(context: dg.RunFailureSensorContext, platform: dg.ResourceParam[Platform]):
    """Send one notice for each failed run that Dagster does not repeat."""
    run, webhook = context.dagster_run, platform.settings.webhook
    launch = _launch_of(context.instance, [run])
    if launch is None:
        return dg.SkipReason("the run made neither a table nor a model")
    if run.tags.get(WILL_RETRY) == "true":
        return dg.SkipReason("Dagster repeats the run")
    if webhook is None:
        return dg.SkipReason("nobody is told: ML_ASSETS_WEBHOOK is not set")
    if not claim(context.instance, f"failure/{run.run_id}"):
        return dg.SkipReason("the failure was sent before")
    notice = {
        "text": launch.line.what,
        "subject": launch.subject,
        "partition": launch.partition,
        "status": launch.status,
        "why": launch.why,
        "run": run.run_id,
        "command": launch.line.next,
    }
    return dg.SkipReason(send(webhook.get_secret_value(), notice) or "told the webhook")
