"""Sensor that sends the trace of each run that ended to ML_ASSETS_TRACES_URL.

Here: runs and steps of Dagster as spans. Not here: the spans of a training, the message (`extras.traces`).
"""

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

import dagster as dg

from ml_assets.components.metadata import ROOT_RUN, TRACE_PARENT, partition_of
from ml_assets.components.sensors.ended_runs import subject_of
from ml_assets.components.sensors.ticks import Tick, TickAnswer, ticking_sensor
from ml_assets.model.steps.usage import UsageDamaged, read_usage
from resources.artifacts import ArtifactMissing, Artifacts, read_artifact
from resources.extras import require
from resources.job.events import EVENTS, TrainingEvent, folder_of_training
from resources.platform import Platform
from resources.settings import Settings
from resources.words import counted

if TYPE_CHECKING:
    from ml_assets.extras.traces.otlp import Trace
    from ml_assets.extras.traces.span import TraceSpan

_ENDED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
_AT_ONCE = 20
"""Runs of one message."""
_EVERY_SECONDS = 30


def _send(tick: Tick, platform: dg.ResourceParam[Platform]) -> TickAnswer:
    instance = tick.context.instance
    newest = instance.get_run_records(dg.RunsFilter(statuses=_ENDED), limit=1, order_by="update_timestamp")
    tick.saw(newest=[f"{one.storage_id} {one.update_timestamp}" for one in newest])
    if not tick.own:
        return TickAnswer(
            said="sends the traces of runs that end from now on", own=tick.now.isoformat(), again_at=None
        )
    found = instance.get_run_records(
        dg.RunsFilter(statuses=_ENDED, updated_after=datetime.fromisoformat(tick.own)),
        limit=_AT_ONCE,
        ascending=True,
        order_by="update_timestamp",
    )
    if not found:
        return TickAnswer(said="no run ended", own=tick.own, again_at=None)
    from ml_assets.extras.traces.otlp import send

    settings = platform.settings
    assert settings.traces_url is not None  # else there is no such sensor
    traces = [_trace(instance, platform.artifacts, one) for one in found]
    if why := send(settings.traces_url, traces, settings.environment):
        return TickAnswer(said=f"the traces wait: {why}", own=tick.own, again_at=tick.now)
    return TickAnswer(
        said=f"sent the traces of {counted(len(traces), 'run')}",
        own=found[-1].update_timestamp.isoformat(),
        again_at=tick.now if len(found) == _AT_ONCE else None,
    )


def trace_sensors(settings: Settings) -> list[dg.SensorDefinition]:
    """Return the sensor, if `settings` name a collector. Raises `ModuleNotFoundError` without its extra."""
    if settings.traces_url is None:
        return []
    require("opentelemetry.exporter.otlp.proto.http")
    return [
        ticking_sensor(
            _send,
            name="send_traces",
            every_seconds=_EVERY_SECONDS,
            description="Sends the trace of each run that ended to ML_ASSETS_TRACES_URL.",
            otherwise="the traces wait",
        )
    ]


def _trace(instance: dg.DagsterInstance, artifacts: Artifacts, record: dg.RunRecord) -> "Trace":
    from ml_assets.extras.traces.otlp import Trace
    from ml_assets.extras.traces.span import TraceSpan

    run = record.dagster_run
    asked = record.create_timestamp.timestamp()
    ended = record.end_time or record.update_timestamp.timestamp()
    began = record.start_time or ended
    about, partition = subject_of(run), partition_of(run)
    failed = run.status is dg.DagsterRunStatus.FAILURE
    span = TraceSpan(
        name=f"run of {about or run.job_name} {partition}".rstrip(),
        began=asked,
        ended=ended,
        attributes={"dagster.run_id": run.run_id, "ml_assets.state": run.status.value.lower()},
        error="failed" if failed else "",
        parts=[
            TraceSpan(name="queued", began=asked, ended=began),
            *_steps(instance, artifacts, run.run_id),
        ],
    )
    return Trace(
        run_id=run.run_id,
        root_run_id=run.tags.get(ROOT_RUN, run.run_id),
        span=span,
        parent=run.tags.get(TRACE_PARENT, ""),
    )


def _steps(instance: dg.DagsterInstance, artifacts: Artifacts, run_id: str) -> "Iterator[TraceSpan]":
    from ml_assets.extras.traces.span import TraceSpan

    launches = list(_launches(instance, artifacts, run_id))
    for one in instance.get_run_step_stats(run_id):
        if one.start_time is None:
            continue
        ended = one.end_time or one.start_time
        yield TraceSpan(
            name=f"step {one.step_key}",
            began=one.start_time,
            ended=ended,
            error="failed" if one.status is not None and one.status.value == "FAILURE" else "",
            parts=[it for it in launches if one.start_time <= it.began <= ended],
        )


def _launches(instance: dg.DagsterInstance, artifacts: Artifacts, run_id: str) -> "Iterator[TraceSpan]":
    """Yield the spans of the trainings of a run. A record that is damaged has none."""
    from ml_assets.extras.traces.training_spans import training_spans

    made = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION).records
    for one in made:
        materialization = one.asset_materialization
        fingerprint = materialization and materialization.metadata.get("fingerprint")
        if (
            materialization is None
            or fingerprint is None
            or materialization.asset_key.path[-1] != "training_set"
        ):
            continue
        model = materialization.asset_key.path[0]
        try:
            usage = read_usage(artifacts, model, str(fingerprint.value))
        except UsageDamaged:
            continue
        if usage is not None:
            yield from training_spans(usage, run_id, _events(artifacts, model, usage.fingerprint))


def _events(artifacts: Artifacts, model: str, fingerprint: str) -> list[TrainingEvent]:
    try:
        text = read_artifact(artifacts, folder_of_training(model, fingerprint), EVENTS).decode()
    except ArtifactMissing:
        return []
    return [event for event in map(TrainingEvent.from_line, text.splitlines()) if event is not None]
