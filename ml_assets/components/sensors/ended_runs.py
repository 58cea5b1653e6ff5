"""Sensors about runs that ended: missing inputs, notices of failures, abandoned trainings; and the launches of a day.

A launch is a run with its repetitions: retries of Dagster, and the run that `build_missing_upstream` requests again.
The newest of them decides.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import dagster as dg

from ml_assets.components.failures import REFUSED, missing_in
from ml_assets.components.metadata import (
    ASKED_BY,
    PARTITION,
    RETRIED_AS,
    ROOT_RUN,
    SCHEDULE,
    TRAINS,
    WILL_RETRY,
    partition_of,
)
from ml_assets.components.pages import ON_A_PAGE
from ml_assets.components.sensors.ticks import Tick, TickAnswer, ticking_sensor
from ml_assets.dagster_host.asset_graph import AssetKeyPartitionKey, BaseAssetGraph, request_backfill
from ml_assets.data.tables.cadence import UNPARTITIONED
from ml_assets.data.tables.declared import DeclaredTables
from ml_assets.data.tables.guard import validate_window
from ml_assets.data.tables.layout import MAIN
from ml_assets.data.tables.reader import TableReader
from ml_assets.pages.digest import EndedLaunch, ScheduledShare
from resources.addresses import hide_credentials
from resources.platform import Platform
from resources.web.webhook import send
from resources.words import name_some


def claim(instance: dg.DagsterInstance, notice: str) -> bool:
    """Return True once for each notice. Stored before the notice is sent: a process that dies sends nothing twice."""
    key = f"ml-assets/{notice}"
    storage = instance.run_storage
    if storage.get_cursor_values({key}):
        return False
    storage.set_cursor_values({key: "told"})
    return True


def told(platform: Platform, notice: Mapping[str, Any]) -> str:
    """Send a notice; return who was told, or why not."""
    webhook = platform.settings.webhook
    if webhook is None:
        return "nobody: ML_ASSETS_WEBHOOK is not set"
    return send(webhook.get_secret_value(), notice) or "the webhook"


_MODEL_ASSET = "registered_model"
ENDED = {
    dg.DagsterRunStatus.SUCCESS: "completed",
    dg.DagsterRunStatus.FAILURE: "failed",
    dg.DagsterRunStatus.CANCELED: "canceled",
}
"""Status of a run that ended → word for people."""
_WHY_CHARACTERS = 500


def ended_launches(instance: dg.DagsterInstance, first: datetime, until: datetime) -> list[EndedLaunch]:
    """Return the launches whose newest run ended from `first` up to and without `until` (UTC), oldest first."""
    repeated = _repeated(instance, first, until)
    return [launch for runs in repeated if (launch := _launch_of(instance, runs)) is not None]


def scheduled_shares(instance: dg.DagsterInstance, first: datetime, until: datetime) -> list[ScheduledShare]:
    """Return for each model how many trainings of its schedule completed, of the launches of `ended_launches`."""
    ends: dict[str, list[bool]] = {}
    for runs in _repeated(instance, first, until):
        if _is_scheduled(runs):
            model = next(run.job_name for run in runs if run.job_name.startswith(TRAINS))
            is_completed = runs[-1].status is dg.DagsterRunStatus.SUCCESS
            ends.setdefault(model.removeprefix(TRAINS), []).append(is_completed)
    return [
        ScheduledShare(model=model, completed=sum(found), ended=len(found))
        for model, found in sorted(ends.items())
    ]


def _repeated(instance: dg.DagsterInstance, first: datetime, until: datetime) -> list[list[dg.DagsterRun]]:
    """Return the runs of each launch, oldest first."""
    found = instance.get_run_records(
        dg.RunsFilter(statuses=list(ENDED), updated_after=first), ascending=True, order_by="update_timestamp"
    )
    runs = {
        one.dagster_run.run_id: one.dagster_run
        for one in found
        if one.end_time is not None and first.timestamp() <= one.end_time < until.timestamp()
    }
    launches: dict[str, list[dg.DagsterRun]] = {}
    for run in runs.values():
        launches.setdefault(_first_run_of(run, runs), []).append(run)
    return [*launches.values()]


def _is_scheduled(runs: Iterable[dg.DagsterRun]) -> bool:
    """True if the schedule of a model requested the first of these runs."""
    return any(SCHEDULE in run.tags and run.job_name.startswith(TRAINS) for run in runs)


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
    status = ENDED[newest.status]
    why, is_refused = reason_of(instance, newest.run_id) if status == "failed" else ("", False)
    return EndedLaunch(
        subject=subject_of(newest) or "",
        partition=partition_of(newest),
        status="refused" if is_refused else status,
        why=why,
        is_scheduled_training=_is_scheduled(runs),
    )


def subject_of(run: dg.DagsterRun) -> str | None:
    """Return the model or table that a run makes; None for another run, such as that of the digest."""
    if run.job_name.startswith(TRAINS):
        return run.job_name.removeprefix(TRAINS)
    names = sorted(key.to_user_string() for key in run.asset_selection or ())
    models = [name.removesuffix(f"/{_MODEL_ASSET}") for name in names if name.endswith(f"/{_MODEL_ASSET}")]
    return next(iter([*models, *(name for name in names if "/" in name)]), None)


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
    return _line(ends[-1].event_log_entry.message if ends else ""), False


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


PRUNE_EVERY_SECONDS = 10
NOTHING_TO_PRUNE = "nothing to remove: every training has a launcher, or a run that may resume it"


def _prune(tick: Tick, platform: dg.ResourceParam[Platform]) -> TickAnswer:
    """Remove abandoned trainings. Request no run: a training resumes when its model is materialized again."""
    tick.saw()
    context = tick.context
    pruned = platform.launcher.prune(lambda run: has_ended(context.instance, run), context.log.warning)
    for name in pruned:
        context.log.info(f"removed {name}, whose launcher is gone")
    # Only the cluster knows its trainings.
    return TickAnswer(said=f"removed {', '.join(pruned)}" if pruned else NOTHING_TO_PRUNE, again_at=tick.now)


prune_trainings = ticking_sensor(
    _prune,
    name="prune_trainings",
    every_seconds=PRUNE_EVERY_SECONDS,
    description="Removes trainings from the cluster whose launcher is gone and whose run has ended; checkpoints stay.",
)


def has_ended(instance: dg.DagsterInstance, run_id: str) -> bool:
    """True if neither this run nor an automatic retry of it can resume its training.

    A run that `instance` does not know may belong to another installation, so it counts as not ended.
    """
    run = instance.get_run_by_id(run_id)
    while run is not None and run.is_finished:
        if run.tags.get(WILL_RETRY) != "true":
            return True
        retried_as = run.tags.get(RETRIED_AS)
        run = instance.get_run_by_id(retried_as) if retried_as else None
    return False


@dg.run_failure_sensor(
    name="build_missing_upstream",
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=5,
    description="If a run was refused for missing inputs, requests one backfill of these inputs and of the run.",
)
def build_missing_upstream(
    context: dg.RunFailureSensorContext,
    platform: dg.ResourceParam[Platform],
    tables: dg.ResourceParam[DeclaredTables],
):
    """Request one backfill per refused run: the missing partitions, in order, then the assets of the run."""
    run = context.dagster_run
    if ASKED_BY in run.tags:
        return dg.SkipReason("this sensor requested the run itself")
    failures = [event.step_failure_data.user_failure_data for event in context.get_step_failure_events()]
    missing = [named for failure in failures if failure and (named := missing_in(failure.metadata))]
    if not missing or context.repository_def is None:
        return dg.SkipReason("the run failed for another reason than missing inputs")
    graph = context.repository_def.asset_graph
    wanted = _asked_for(context, graph) | {
        _partition(table, key) for named in missing for table, keys in named.items() for key in keys
    }
    wanted |= _to_build(platform, tables, graph, wanted)
    # The run's id names the backfill, so the sensor finds it when it is evaluated again and adds nothing.
    backfill_id, title = f"for-{run.run_id}", f"Missing inputs of run {run.run_id[:8]}"
    tags = {ASKED_BY: run.run_id}
    if not request_backfill(context.instance, graph, wanted, backfill_id=backfill_id, title=title, tags=tags):
        return dg.SkipReason(f"already requested as backfill {backfill_id}")
    named = name_some(sorted({each.asset_key.to_user_string() for each in wanted}), ON_A_PAGE)
    return dg.SkipReason(f"requested backfill {backfill_id}: {len(wanted)} partitions of {named}")


def _to_build(
    platform: Platform, tables: DeclaredTables, graph: BaseAssetGraph, wanted: Iterable[AssetKeyPartitionKey]
) -> set[AssetKeyPartitionKey]:
    """Return the partitions upstream of `wanted`, at any depth, that materializing can fix according to the guard."""
    wants: dict[str, set[str]] = {}
    for each in wanted:
        for parent in graph.get_parents_partitions(each.asset_key, each.partition_key).parent_partitions:
            table = "/".join(parent.asset_key.path)
            if tables.find(table) is not None:
                wants.setdefault(table, set()).add(parent.partition_key or UNPARTITIONED)
    reader = TableReader.at(platform.lake, MAIN)
    validations = [
        validate_window(reader, platform.ledger, tables, table, sorted(keys)) for table, keys in wants.items()
    ]
    return {
        _partition(table, key)
        for validation in validations
        for table, keys in validation.to_build.items()
        for key in keys
    }


def _partition(table: str, key: str) -> AssetKeyPartitionKey:
    return AssetKeyPartitionKey(dg.AssetKey(table.split("/")), None if key == UNPARTITIONED else key)


def _asked_for(context: dg.RunFailureSensorContext, graph: BaseAssetGraph) -> set[AssetKeyPartitionKey]:
    """Return the assets that the refused run did not make for its partition.

    Empty for a run over a range: a person has to request it again.
    """
    run, repository = context.dagster_run, context.repository_def
    partition = run.tags.get(PARTITION)
    if partition is None or repository is None:
        return set()
    # The run of a job names no assets, so take the assets of the job.
    selected = run.asset_selection or repository.get_job(run.job_name).asset_layer.executable_asset_keys
    made = {
        record.asset_key
        for record in context.instance.get_records_for_run(
            run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION
        ).records
    }
    return {
        AssetKeyPartitionKey(key, partition if graph.get(key).is_partitioned else None)
        for key in selected
        if key not in made
    }
