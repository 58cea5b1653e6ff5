"""Sensor that sends the trace of each run that ended to ML_ASSETS_TRACES_URL.

Here: runs and steps of Dagster as spans. Not here: the spans of a training, the message (`extras.traces`).
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import BaseModel

from ml_assets.components.metadata import REQUESTED, ROOT_RUN, TRACE_PARENT, partition_of
from ml_assets.components.sensors.ended_runs import ENDED, subject_of
from ml_assets.components.sensors.ticks import Tick, TickAnswer, ticking_sensor
from ml_assets.model.steps.usage import UsageDamaged, read_usage
from resources.artifacts import ArtifactMissing, Artifacts, read_artifact
from resources.extras import require
from resources.job.events import EVENTS, TrainingEvent, events_in, folder_of_training
from resources.platform import Platform
from resources.settings import Settings
from resources.words import counted

if TYPE_CHECKING:
    from ml_assets.extras.traces.otlp import Trace
    from ml_assets.extras.traces.span import TraceSpan

_AT_ONCE = 20
"""Runs of one message."""
_COLLECT_SECONDS = 20.0
"""Seconds after which a message is sent with the runs that it has: Dagster ends a tick after 60."""
_METRICS = '"kind":"metrics"'
_EVERY_SECONDS = 30
_OVERLAP = timedelta(minutes=10)
"""Time before the newest sent run in which runs are looked up again. The end of a run is told by the clock of its
machine, and may be written later than that of another run."""


class _Progress(BaseModel):
    """Runs whose traces need not be sent, as the cursor keeps them."""

    after: datetime
    """Runs that ended at this time (UTC) or before it."""
    sent: dict[str, datetime] = {}
    """Id → end of the runs after it that were sent."""

    def with_sent(self, records: Sequence[dg.RunRecord], now: datetime) -> "_Progress":
        """Return the progress after these runs, oldest first, were sent. An end after `now` is that of a clock that is
        ahead."""
        sent = self.sent | {one.dagster_run.run_id: one.update_timestamp for one in records}
        after = max(self.after, min(records[-1].update_timestamp, now) - _OVERLAP)
        return _Progress(after=after, sent={run: end for run, end in sent.items() if end > after})


def _send(tick: Tick, platform: dg.ResourceParam[Platform]) -> TickAnswer:
    instance = tick.context.instance
    known = _Progress.model_validate_json(tick.own) if tick.own else _Progress(after=tick.now - _OVERLAP)
    # After the clock was set back.
    known = known.model_copy(update={"after": min(known.after, tick.now)})
    ended = dg.RunsFilter(statuses=list(ENDED), updated_after=known.after)
    newest = instance.get_run_records(ended, limit=1, order_by="update_timestamp")
    tick.saw(
        newest=[f"{one.storage_id} {one.update_timestamp}" for one in newest],
        number=instance.get_runs_count(ended),
    )
    looked_up = instance.get_run_records(
        ended, limit=_AT_ONCE + len(known.sent), ascending=True, order_by="update_timestamp"
    )
    found = [one for one in looked_up if one.dagster_run.run_id not in known.sent][:_AT_ONCE]
    if not found:
        return TickAnswer(said="no run ended", own=known.model_dump_json(), again_at=None)
    from ml_assets.extras.traces.otlp import CollectorAway, send

    settings = platform.settings
    assert settings.traces_url is not None  # else there is no such sensor
    traces: list[Trace] = []
    until = time.monotonic() + _COLLECT_SECONDS
    for one in found:
        traces.append(_trace(tick.context, platform.artifacts, one))
        if time.monotonic() > until:
            break
    try:
        refused = send(settings.traces_url, traces, settings.environment)
    except CollectorAway as error:
        return TickAnswer(said=f"the traces wait: {error}", own=known.model_dump_json(), again_at=tick.now)
    said = f"sent the traces of {counted(len(traces) - refused, 'run')}"
    return TickAnswer(
        said=f"{said}; the collector refused {counted(refused, 'run')}" if refused else said,
        own=known.with_sent(found[: len(traces)], tick.now).model_dump_json(),
        again_at=tick.now,
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


def _trace(context: dg.SensorEvaluationContext, artifacts: Artifacts, record: dg.RunRecord) -> "Trace":
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
            *_steps(context, artifacts, run.run_id),
        ],
    )
    return Trace(
        run_id=run.run_id,
        root_run_id=run.tags.get(ROOT_RUN, run.run_id),
        span=span,
        parent=run.tags.get(TRACE_PARENT, ""),
        request=_request(run.tags, asked),
    )


def _request(tags: Mapping[str, str], created: float) -> "TraceSpan | None":
    """Return the span of the request to the API that launched a run; None if none did."""
    from ml_assets.extras.traces.span import TraceSpan

    try:
        return TraceSpan(name="request to the API", began=float(tags[REQUESTED]), ended=created)
    except (KeyError, ValueError):  # a person may write any tag in Dagster's pages
        return None


def _steps(context: dg.SensorEvaluationContext, artifacts: Artifacts, run_id: str) -> "Iterator[TraceSpan]":
    from ml_assets.extras.traces.span import TraceSpan

    launches = list(_launches(context, artifacts, run_id))
    for one in context.instance.get_run_step_stats(run_id):
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


def _launches(
    context: dg.SensorEvaluationContext, artifacts: Artifacts, run_id: str
) -> "Iterator[TraceSpan]":
    """Yield the spans of the trainings of a run. A training whose record or events are damaged has none."""
    from ml_assets.extras.traces.training_spans import training_spans

    kind = dg.DagsterEventType.ASSET_MATERIALIZATION
    for one in context.instance.get_records_for_run(run_id, of_type=kind).records:
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
            if usage is not None:
                yield from training_spans(usage, run_id, _events(artifacts, model, usage.fingerprint))
        except (UsageDamaged, ArithmeticError, TypeError, ValueError) as error:
            # Events have any values that are JSON.
            context.log.warning(
                f"the trace of run {run_id} is without its training, whose record is damaged: {error}"
            )


def _events(artifacts: Artifacts, model: str, fingerprint: str) -> list[TrainingEvent]:
    try:
        text = read_artifact(artifacts, folder_of_training(model, fingerprint), EVENTS).decode()
    except ArtifactMissing:
        return []
    # Of the reports of steps in a row, the last tells when the workers were alive: there may be a million.
    lines = text.splitlines()
    nexts = [*lines[1:], ""]
    return events_in(
        one for one, after in zip(lines, nexts, strict=True) if _METRICS not in one or _METRICS not in after
    )
