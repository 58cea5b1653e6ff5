"""Runs of Dagster, whoever launched them: state, persons behind them, and the metrics of a training while it runs.

Not here: launching (`context.launch`), runs of MLflow (`resources.tracking.tracker`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import dagster as dg

from ml_assets.components.behind import TABLES
from ml_assets.components.metadata import TRAINS, partition_of
from ml_assets.components.restores import NoSuchState, Restores
from ml_assets.components.training_pipeline import CHECKPOINT, TRAINING_SET
from ml_assets.context.checkpoints import ListedCheckpoint, listed
from ml_assets.context.errors import NotFound
from ml_assets.context.news import versions_of, why_run_failed
from ml_assets.context.project import Project
from resources.ledger import Person

State = Literal["queued", "running", "completed", "failed", "killed"]
"""States of a run, as `resources.tracking.tracker` has them."""
ENDED: tuple[State, ...] = ("completed", "failed", "killed")
_STATES: Mapping[dg.DagsterRunStatus, State] = {
    dg.DagsterRunStatus.STARTED: "running",
    dg.DagsterRunStatus.CANCELING: "running",
    dg.DagsterRunStatus.SUCCESS: "completed",
    dg.DagsterRunStatus.FAILURE: "failed",
    dg.DagsterRunStatus.CANCELED: "killed",
}
"""Dagster's status → state; `queued` for those before a run starts."""
MOST_POINTS = 500
"""Points of metrics that one look returns."""


@dataclass(frozen=True, kw_only=True)
class ShownRun:
    """One run."""

    id: str
    state: State
    assets: tuple[str, ...]
    """Assets that it materializes, sorted; empty for a run of a whole job."""
    model: str
    """Model that it trains; empty if it trains none."""
    partitions: str
    """`KEY` or `FIRST..LAST`; empty without partitions."""
    created_at: datetime
    """UTC, as are the next two."""
    started_at: datetime | None
    ended_at: datetime | None
    why: str
    """Sentence of the step that failed; empty unless the run failed."""
    launched_by: Person | None
    """Person who launched it through the API or the proxy."""
    stopped_by: Person | None
    """Person who stopped it through the API."""
    version: int | None
    """Number of the version that it registered."""
    rejected: str
    """Sentence of the gates that rejected its model; empty if they did not."""
    restored_from: str
    """`RUN/STEP` of the checkpoint with which its training began; empty if it began at step 0."""


@dataclass(frozen=True, kw_only=True)
class MetricsPoint:
    """Metrics of one step of a training."""

    place: int
    """Place among Dagster's events; grows with time."""
    at: datetime
    """UTC."""
    step: int
    values: Mapping[str, float]
    """Metric → value, as the run's page shows them."""


@dataclass(frozen=True)
class Runs:
    """Runs of a project."""

    project: Project

    def show(self, run_id: str) -> ShownRun:
        """Return a run. Raises `NotFound`."""
        record = self._record(run_id)
        run, launches = record.dagster_run, self.project.platform.ledger.launches
        launch, stop = launches.of(run_id), launches.stop_of(run_id)
        state = _STATES.get(run.status, "queued")
        model = _model_of(run)
        registered = [*versions_of(self.project.instance, run_id)] if model and state == "completed" else []
        is_rejected = model and state == "completed" and not registered
        return ShownRun(
            id=run.run_id,
            state=state,
            assets=tuple(sorted(key.to_user_string() for key in run.asset_selection or ())),
            model=model,
            partitions=partition_of(run),
            created_at=record.create_timestamp.replace(tzinfo=UTC),
            started_at=_moment(record.start_time),
            ended_at=_moment(record.end_time) if state in ENDED else None,
            why=why_run_failed(self.project.instance, run_id) if state == "failed" else "",
            launched_by=launch.by if launch is not None else None,
            stopped_by=stop.by if stop is not None else None,
            version=next((number for _, number in registered), None),
            rejected=self._rejection(model, run_id) if is_rejected else "",
            restored_from=_restored_from(run.tags),
        )

    def _rejection(self, model: str, run_id: str) -> str:
        """Return the decision about the model that a run evaluated, with each failed rule; empty unless it rejects."""
        made = [one for one in self.project.platform.ledger.models.evaluations(model) if one.run_id == run_id]
        if not made or made[-1].status != "rejected":
            return ""
        failed = (one for one in made[-1].rules if one.result == "failed")
        told = [f"“{one.rule}” on {one.slice}: {one.found}; would pass: {one.would_pass}" for one in failed]
        return " ".join([made[-1].summary, *told])

    def state(self, run_id: str) -> State:
        """Return the state of a run. Raises `NotFound`."""
        return _STATES.get(self._record(run_id).dagster_run.status, "queued")

    def training(self, run_id: str) -> ShownRun:
        """Return a run that trains a model. Raises `NotFound` for any other."""
        run = self.show(run_id)
        if not run.model:
            raise NotFound(f"the run {run_id} trains no model: ask for it among the runs of pipelines")
        return run

    def metrics(self, training: ShownRun, after: int = 0) -> Sequence[MetricsPoint]:
        """Return the first `MOST_POINTS` points of a training whose place is above `after`, oldest first."""
        key = dg.AssetKey([training.model, CHECKPOINT])
        while True:
            asked = dg.AssetRecordsFilter(
                key,
                asset_partitions=[training.partitions] if training.partitions else None,
                after_storage_id=after or None,
                after_timestamp=training.created_at.timestamp(),
            )
            found = self.project.instance.fetch_observations(asked, limit=MOST_POINTS, ascending=True).records
            own = [_point(one) for one in found if one.event_log_entry.run_id == training.id]
            if own or len(found) < MOST_POINTS:
                return own
            after = found[-1].storage_id  # all were of another run of this partition

    def checkpoints(self, training: ShownRun) -> Sequence[ListedCheckpoint]:
        """Return the checkpoints of a training, newest first; none before its first. Raises `ArtifactsError`."""
        found = self.training_set(training)
        if not found:
            return ()
        return listed(self.project.platform.artifacts, training.model, str(found["fingerprint"]))

    def training_set(self, training: ShownRun) -> Mapping[str, Any]:
        """Return the metadata of a training's set as plain values; empty before the run froze it."""
        return self.made(training, dg.AssetKey([training.model, TRAINING_SET]))

    def made(self, run: ShownRun, key: dg.AssetKey) -> Mapping[str, Any]:
        """Return the metadata of what a run made of an asset, as plain values; empty before."""
        return self._made(run.id, key, run.partitions, after=run.created_at)

    def frozen_by(self, run_id: str, model: str, partition: str) -> Mapping[str, Any]:
        """Return the metadata of the training set that a run froze, as plain values; empty if Dagster lost the run."""
        return self._made(run_id, dg.AssetKey([model, TRAINING_SET]), partition)

    def _made(
        self, run_id: str, key: dg.AssetKey, partition: str, after: datetime | None = None
    ) -> Mapping[str, Any]:
        """Look from the moment `after` on if it is known, else back from now."""
        found = self.project.instance.fetch_materializations(
            dg.AssetRecordsFilter(
                key,
                asset_partitions=[partition] if partition else None,
                after_timestamp=None if after is None else after.timestamp(),
            ),
            limit=MOST_POINTS,
            ascending=after is not None,
        ).records
        for one in found:
            if one.event_log_entry.run_id == run_id and one.asset_materialization is not None:
                return {name: value.value for name, value in one.asset_materialization.metadata.items()}
        return {}

    def tagged(self, tag: str, value: str) -> dg.DagsterRun | None:
        """Return the newest run with a tag; None if there is none."""
        found = self.project.instance.get_runs(dg.RunsFilter(tags={tag: value}), limit=1)
        return found[0] if found else None

    def _record(self, run_id: str) -> dg.RunRecord:
        found = self.project.instance.get_run_records(dg.RunsFilter(run_ids=[run_id]), limit=1)
        if not found:
            raise NotFound(f"Dagster knows no run {run_id!a}")
        return found[0]


def _model_of(run: dg.DagsterRun) -> str:
    """Return the model that a run trains, by its assets, or by the job of its schedule; empty if it trains none."""
    if not run.asset_selection:
        return run.job_name.removeprefix(TRAINS) if run.job_name.startswith(TRAINS) else ""
    for key in sorted(run.asset_selection):
        if len(key.path) == 2 and key.path[1] == CHECKPOINT and key.path[0] not in TABLES:
            return key.path[0]
    return ""


def _restored_from(tags: Mapping[str, str]) -> str:
    try:
        restores = Restores.of(tags)
    except NoSuchState:  # a tag that a person wrote
        return ""
    return "" if restores is None else f"{restores.run}/{restores.state.step}"


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _point(record: dg.EventLogRecord) -> MetricsPoint:
    observation = record.asset_observation
    facts = {} if observation is None else {name: one.value for name, one in observation.metadata.items()}
    numbers = {
        name: float(value)
        for name, value in facts.items()
        if isinstance(value, int | float) and name != "step"
    }
    step = facts.get("step", 0)
    return MetricsPoint(
        place=record.storage_id,
        at=datetime.fromtimestamp(record.timestamp, UTC),
        step=int(step) if isinstance(step, int | float) else 0,
        values=numbers,
    )
