"""`Tracker`: one MLflow run per training fingerprint, never two, never left RUNNING.

Here: runs, their parameters, tags, metrics and files. Not here: the queue of metrics (`sink`), opening MLflow
(`mlflow_client`, `mlflow_api`), registered versions (`ml_assets.model.release.registry`).

States of a training in Dagster and in MLflow:

| state     | Dagster run         | MLflow run |
|-----------|---------------------|------------|
| queued    | QUEUED, NOT_STARTED | none yet   |
| running   | STARTED             | RUNNING    |
| completed | SUCCESS             | FINISHED   |
| failed    | FAILURE             | FAILED     |
| killed    | CANCELED            | KILLED     |

A killed process cannot end its MLflow run. But the system releases the lock of its spool file. The next start of any
run (or `settle`) delivers the points in that spool and marks the run KILLED.
"""

import json
import logging
import re
import threading
import time
import uuid
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from resources.files import locked
from resources.tracking.mlflow_client import (
    TrackerError,
    TrackerRefused,
    TrackerUnavailable,
    embedded_file,
    open_client,
    reaching,
    write,
)
from resources.tracking.sink import EVERY, MetricSink, Point, Spool, SpoolCopies, SpoolFailed

if TYPE_CHECKING:
    from mlflow.entities import Run

Status = Literal["FINISHED", "FAILED", "KILLED"]
Value = TypeVar("Value")

_log = logging.getLogger(__name__)

FINGERPRINT = "fingerprint"
"""Tag by which `find` looks a run up."""

FILES = "mlflow"
"""Folder of the files of runs among the artifacts, where the platform chooses it."""
_LONGEST_NAME = 250
_PENDING = "pending"
"""Replaces the run id in the name of a spool while the run has not begun."""
MISSING_TAG = "metrics_missing"
"""Tag of a run whose metrics have a hole."""


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """Facts that identify and describe one training."""

    experiment: str
    """Name of the model."""
    fingerprint: str
    name: str
    """Name of the run for people, such as the partition key."""
    author: str
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Parameters. A later start with the same fingerprint adds missing parameters and changes none."""
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    """Links and facts of the first start. A later start adds missing tags and changes none. A tag `start/…` holds the
    tags of each start."""
    note: str = ""
    """Free text, shown at the top of the run."""
    parent: str = ""
    """Id of the run that shows this run as its child; empty for a run of its own. The first start decides."""
    dataset_name: str = ""
    dataset_digest: str = ""
    """Digest of the training data, shown in MLflow's dataset column."""


@dataclass(frozen=True, kw_only=True)
class EndedRun:
    """Run of a training that has ended."""

    name: str
    """Name for people, such as the partition key."""
    status: str
    """`FINISHED`, `FAILED` or `KILLED`."""
    metrics: Mapping[str, float]
    """Newest value of each metric."""
    is_trial: bool
    """True if the run is part of a study."""


class TrackedMissing(TrackerRefused):
    """The tracker has no such experiment or run."""


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """Run as the tracker has it."""

    run_id: str
    name: str
    status: str
    """`RUNNING`, `FINISHED`, `FAILED` or `KILLED`."""
    started_at: datetime | None
    """UTC."""
    ended_at: datetime | None
    """UTC; None while it runs."""
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    """Newest value of each metric."""
    tags: Mapping[str, str]


class Tracker:
    """MLflow behind one address. Cheap to make: the first call imports mlflow.

    `folder` holds the spools; `copies` keeps copies that outlive this machine. `files` is the address below which the
    files of runs lie, in a folder per experiment; None leaves the choice to MLflow. Every method may raise
    `TrackerUnavailable`.
    """

    def __init__(
        self, uri: str, folder: Path, files: str | None = None, copies: SpoolCopies | None = None
    ) -> None:
        self.uri = uri
        self.copies = copies
        self._folder = folder
        self._files = files

    def start(self, facts: RunFacts) -> "TrackedRun":
        """Open the run of this fingerprint, new or resumed. It is RUNNING until the returned context ends.

        If the tracker is away, all points wait in the spool, and the run begins as soon as the tracker is back. A
        FINISHED run stays FINISHED, also if a later start fails. Points that the run already has are not stored again.
        Raises `SpoolFailed` and `TrackerRefused`.
        """
        start = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:4]}"
        try:
            self.settle()
            begun = self.begin(facts, start)
        except TrackerUnavailable as error:
            _log.warning("%s; until then metrics wait on disk", error)
            begun = None
        spool = Spool.create(self.spool_of(begun.run_id if begun else _PENDING, start))
        if begun is None:
            spool.begin({**asdict(facts), "params": _as_text(facts.params), "start": start})
        return TrackedRun(self, facts, start, spool, begun)

    def begin(self, facts: RunFacts, start: str) -> "Begun":
        """Find or create the run of `facts`, write its parameters and tags, and record the tags of this `start`."""
        with reaching(self.uri):
            experiment = self._experiment(facts.experiment)
            run = self._run_of(experiment, facts)
            run_id = run.info.run_id
            self._describe(run, facts, start)
            if run.info.status not in ("RUNNING", "FINISHED"):
                self._client.update_run(run_id, status="RUNNING")
            # Read the newest points, which the run itself holds. Its history may have hundreds of thousands.
            seen = {point.key: point.step for point in run.data.to_proto().metrics}
        return Begun(run_id=run_id, seen=seen)

    def history(self, run_id: str, metric: str) -> set[tuple[int, int]]:
        """Return (step, time) of each stored point of a metric. Times are milliseconds since the epoch, UTC."""
        with reaching(self.uri):
            return {
                (point.step, point.timestamp) for point in self._client.get_metric_history(run_id, metric)
            }

    def find(self, experiment: str, fingerprint: str) -> str | None:
        """Return the run id of a fingerprint, or None."""
        with reaching(self.uri):
            known = self._client.get_experiment_by_name(experiment)
            runs = [] if known is None else self._runs(known.experiment_id, fingerprint)
        return runs[0].info.run_id if runs else None

    def ended(self, experiment: str, first: datetime, until: datetime) -> list[EndedRun]:
        """Return the runs that ended from `first` to before `until`, oldest first: the newest 1,000 at most."""
        low, high = (int(moment.timestamp() * 1000) for moment in (first, until))
        with reaching(self.uri):
            known = self._client.get_experiment_by_name(experiment)
            if known is None:
                return []
            wanted = f"attributes.end_time >= {low} and attributes.end_time < {high}"
            runs = self._client.search_runs([known.experiment_id], wanted)
        return [
            EndedRun(
                name=run.info.run_name or run.info.run_id,
                status=run.info.status,
                metrics=dict(run.data.metrics),
                is_trial="mlflow.parentRunId" in run.data.tags,
            )
            for run in sorted(runs, key=lambda run: run.info.end_time)
        ]

    def search(
        self, experiment: str, wanted: str, *, limit: int, after: str | None = None
    ) -> tuple[list[StoredRun], str | None]:
        """Return `limit` runs of an experiment, newest first, and the token by which the next ones come `after` them.

        `wanted` is a filter of MLflow, such as `metrics.holdout_rmse < 12 and params.seed = '1'`; empty for all runs.
        Pages leave out runs that began after the first page, so that none comes twice. Raise `TrackedMissing`, and
        `TrackerRefused` for a filter or a token that MLflow cannot read.
        """
        newest, _, token = (after or "").partition(" ")
        until = f"attributes.start_time <= {int(newest)}" if newest.isdecimal() else ""
        with reaching(self.uri):
            known = self._client.get_experiment_by_name(experiment)
            if known is None:
                raise TrackedMissing(
                    f"MLflow has no experiment {experiment!a}: the first training of a model makes it"
                )
            found = self._client.search_runs(
                [known.experiment_id],
                " and ".join(filter(None, (wanted.strip(), until))),
                max_results=limit,
                order_by=["attributes.start_time DESC"],
                page_token=token or None,
            )
        if not found.token:
            return [_stored(run) for run in found], None
        more = found.token.decode() if isinstance(found.token, bytes) else found.token
        return [_stored(run) for run in found], f"{newest or found[0].info.start_time} {more}"

    def stored(self, experiment: str, run_id: str) -> StoredRun:
        """Return a run of an experiment. Raise `TrackedMissing`."""
        missing = TrackedMissing(f"MLflow has no run {run_id!a} in an experiment {experiment!a}")
        try:
            with reaching(self.uri):
                known, run = self._client.get_experiment_by_name(experiment), self._client.get_run(run_id)
        except TrackerRefused:
            raise missing from None
        if known is None or run.info.experiment_id != known.experiment_id:
            raise missing
        return _stored(run)

    def attached(self, run_id: str) -> dict[str, int]:
        """Return path → bytes of the files of a run, those of its folders, too."""
        with reaching(self.uri):
            return self._client.files_of(run_id)

    def record(self, run_id: str, metrics: Mapping[str, float], step: int = 0) -> None:
        """Store final metrics at once. A metric that already has this value is not stored again."""
        with reaching(self.uri):
            run = self._client.get_run(run_id)
            known = run.data.metrics
            # Two processes may store the same first value at once. With the same time, MLflow keeps one point.
            first, again = run.info.start_time, int(time.time() * 1000)
            new = [
                Point(name, float(value), step, again if name in known else first)
                for name, value in _named(metrics).items()
                if known.get(name) != value
            ]
            self._client.log_points(run_id, new)

    def tag(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Set tags. Replace tags of the same name."""
        write(self.uri, lambda: self._client.log_tags(run_id, tags))

    def attach(self, run_id: str, file: Path, folder: str = "") -> None:
        """Copy a file to the run's files, below `folder`. Replace a file of the same name."""
        with reaching(self.uri):
            self._client.log_artifact(run_id, str(file), folder or None)

    def settle(self) -> list[str]:
        """Deliver the points that killed or disconnected processes left, and end their runs. Return the run ids."""
        self._spools.mkdir(parents=True, exist_ok=True)
        settled: dict[str, None] = {}
        with self._alone("settling"):
            if self.copies is not None:
                self.copies.bring_abandoned(self._spools)
            for path in sorted(self._spools.glob("*.jsonl")):
                spool = Spool.adopt(path)
                if spool is not None:
                    settled[self._settle(spool)] = None
                    if self.copies is not None:
                        self.copies.forget(path.name)
        return list(settled)

    def deliver(self, run_id: str, points: Sequence[Point]) -> None:
        """Store points in order. MLflow keeps a point with the same step, time and value only once."""
        with reaching(self.uri):
            self._client.log_points(run_id, points)

    def tag_once(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Set those tags that the run lacks."""
        with reaching(self.uri):
            known = self._client.get_run(run_id).data.tags
        if new := {name: value for name, value in tags.items() if name not in known}:
            self.tag(run_id, new)

    def end(self, run_id: str, start: str, status: Status) -> None:
        """Record the status of `start`, and end its run. A FINISHED run stays FINISHED. If another start still has a
        spool for the run, the run stays RUNNING, unless this start FINISHED."""
        self.tag_once(run_id, {f"ended/{start}": status})
        with self._alone("ending"), reaching(self.uri):
            own = self.spool_of(run_id, start).name
            names = [path.name for path in self._spools.glob("*.jsonl")] + (
                self.copies.names() if self.copies is not None else []
            )
            is_last = not any(name.startswith(f"{run_id}-") and name != own for name in names)
            known = self._client.get_run(run_id).info.status
            if known != "FINISHED" and (status == "FINISHED" or (is_last and known == "RUNNING")):
                self._client.set_terminated(run_id, status)

    def spool_of(self, run_id: str, start: str) -> Path:
        """Return the path of the spool of one start of a run."""
        return self._spools / f"{run_id}-{start}.jsonl"

    @property
    def _client(self) -> Any:
        return open_client(self.uri)

    @property
    def _spools(self) -> Path:
        return self._folder / "spool"

    @contextmanager
    def _alone(self, what: str) -> Generator[None]:
        """Hold the lock `what` of this home for the block, against other threads and processes."""
        with locked(self._spools / what):
            yield

    def _experiment(self, name: str) -> str:
        known = self._client.get_experiment_by_name(name)
        place = None if self._files is None else f"{self._files}/{name}"
        if known is not None:
            # Nobody can change addresses at a server, which may have those of another installation, too.
            if (
                embedded_file(self.uri) is not None
                and place is not None
                and known.artifact_location != place
                and known.artifact_location.endswith(f"/{FILES}/{name}")
            ):
                raise TrackerRefused(
                    f"MLflow keeps files of {name} under {known.artifact_location}, and they belong to {self._files} "
                    "now: the home was moved. Give MLflow its new addresses: ml-assets home move"
                )
            if (
                known.lifecycle_stage == "deleted"
            ):  # its name stays taken, so no other experiment could be created
                with suppress(TrackerRefused), reaching(self.uri):  # another process restored it meanwhile
                    self._client.restore_experiment(known.experiment_id)
                _log.warning("restored MLflow's deleted experiment %s", name)
            return known.experiment_id
        try:
            with reaching(self.uri):
                return self._client.create_experiment(name, artifact_location=place)
        except TrackerRefused:  # another process created it meanwhile
            return self._client.get_experiment_by_name(name).experiment_id

    def _runs(self, experiment: str, fingerprint: str) -> "list[Run]":
        """Return the active runs of the fingerprint, oldest first."""
        wanted = f"tags.{FINGERPRINT} = '{fingerprint}'"
        runs = self._client.search_runs([experiment], wanted)
        return sorted(runs, key=lambda run: (run.info.start_time, run.info.run_id))

    def _run_of(self, experiment: str, facts: RunFacts) -> "Run":
        self._spools.mkdir(parents=True, exist_ok=True)
        # One process of this home at a time, so that two cannot both create a run.
        with self._alone("starting"):
            runs = self._runs(experiment, facts.fingerprint)
            if runs:
                return runs[0]
            tags = {FINGERPRINT: facts.fingerprint, "mlflow.user": facts.author}
            made = self._client.create_run(experiment, tags=tags, run_name=facts.name)
            # A process of another home may have created one, too. Both keep the oldest.
            first = self._runs(experiment, facts.fingerprint)[0]
            if first.info.run_id != made.info.run_id:
                self._client.delete_run(made.info.run_id)
            return first

    def _describe(self, run: "Run", facts: RunFacts, start: str) -> None:
        run_id = run.info.run_id
        tags = dict(facts.tags)
        if facts.note:
            tags["mlflow.note.content"] = facts.note
        if facts.parent:
            tags["mlflow.parentRunId"] = facts.parent
        if facts.dataset_digest:
            tags["dataset_digest"] = facts.dataset_digest
            name, digest = facts.dataset_name, facts.dataset_digest
            write(self.uri, lambda: self._client.log_dataset(run_id, name, digest))
        tags[f"start/{start}"] = json.dumps({"author": facts.author, **facts.tags}, sort_keys=True)
        new_tags = {name: value for name, value in tags.items() if name not in run.data.tags}
        params = _as_text(_named(facts.params))
        new_params = {name: value for name, value in params.items() if name not in run.data.params}
        write(self.uri, lambda: self._client.log_tags(run_id, new_tags))
        write(self.uri, lambda: self._client.log_params(run_id, new_params))

    def _settle(self, spool: Spool) -> str:
        run_id, start = _run_and_start(spool.path)
        is_done = False
        try:
            if run_id == _PENDING:
                run_id = self._begin_from(spool, start)
            self.deliver(run_id, spool.points())
            if missing := spool.missing():
                self.tag_once(run_id, {MISSING_TAG: missing})
            self._end_by(spool, run_id, start)
            is_done = True
        except TrackerRefused as refusal:
            with suppress(TrackerRefused):  # refused again if the run itself was deleted
                self._end_by(spool, run_id, start)
            kept = spool.path.rename(spool.path.with_suffix(".refused"))
            _log.warning("%s; undelivered metrics stay in %s", refusal, kept)
        finally:
            spool.close(delete=is_done)
        return run_id

    def _begin_from(self, spool: Spool, start: str) -> str:
        """Begin the run of a process that never reached the tracker; return its id."""
        kept = spool.facts()
        if kept is None:  # its process was killed while it wrote them
            raise TrackerRefused(f"{spool.path} names no run: its process was killed while it wrote the file")
        del kept["start"]
        run_id = self.begin(RunFacts(**kept), start).run_id
        spool.move(self.spool_of(run_id, start))
        return run_id

    def _end_by(self, spool: Spool, run_id: str, start: str) -> None:
        """End the run with the status in its spool (KILLED without one), by the rules of `end`."""
        status: Any = spool.ending() or "KILLED"
        self.end(run_id, start, status)


@dataclass(frozen=True, kw_only=True)
class Begun:
    """Run that exists in the tracker."""

    run_id: str
    seen: Mapping[str, int]
    """Metric → its newest step in the tracker when this process began."""


class TrackedRun:
    """Open run. Use it as a context: leaving it delivers the metrics and ends the run.

    A normal end sets FINISHED, an exception FAILED, a cancellation or interrupt KILLED. If the tracker is away at the
    end, the spool keeps the points and the status, and the next `settle` delivers them.
    """

    def __init__(
        self, tracker: Tracker, facts: RunFacts, start: str, spool: Spool, begun: Begun | None
    ) -> None:
        self._tracker = tracker
        self._facts = facts
        self._start = start
        self._spool = spool
        self._begun = begun
        self._moving = threading.Lock()
        self._is_left = False
        self._began_ms = int(time.time() * 1000)
        self._histories: dict[str, set[tuple[int, int]]] = {}
        copy = None if tracker.copies is None else self._copy
        self._sink = MetricSink(self._deliver, spool, copy=copy, copy_every=EVERY)

    @property
    def run_id(self) -> str:
        """Id of the run in the tracker. Raises `TrackerUnavailable` until the tracker was reached once."""
        begun = self._begin()
        if self._is_left and self._spool.path.exists():
            with suppress(TrackerUnavailable):
                self._tracker.settle()
        return begun.run_id

    @property
    def missing(self) -> str:
        """Points that were lost because the tracker was away and the disk full, for people; empty if none was."""
        return self._sink.missing

    def log(
        self, values: Mapping[str, float], step: int, at: float | None = None, *, once_a_step: bool = True
    ) -> None:
        """Take the metrics of one step. Never waits (see `MetricSink.log`)."""
        # Use MLflow's names from here on, because `Begun.seen` holds steps by these names.
        self._sink.log(_named(values), step, at, once_a_step=once_a_step)

    def finish(self, status: Status) -> None:
        """Deliver the metrics and end the run. Call it once; `with` does it."""
        is_ended = False
        try:
            if self._sink.close():
                self._tracker.end(self.run_id, self._start, status)
                is_ended = True
        except TrackerError as error:
            _log.warning("%s; the end of the run waits on disk", error)
        finally:
            self._leave(status, is_ended=is_ended)

    def _leave(self, status: Status, *, is_ended: bool) -> None:
        """Close the spool. A full disk is only logged: it must not fail a finished training."""
        with self._moving:
            self._is_left = True
            try:
                if not is_ended:
                    self._spool.end(status, self.missing)
                    self._copy()
            except SpoolFailed as error:
                _log.warning("%s. MLflow shows the run as KILLED until the training is launched again", error)
            self._spool.close(delete=is_ended)
        if is_ended and self._tracker.copies is not None:
            self._tracker.copies.forget(self._spool.path.name)

    def _copy(self) -> None:
        if self._tracker.copies is not None:
            self._tracker.copies.keep(self._spool.path)

    def _begin(self) -> Begun:
        if self._begun is None:
            begun = self._tracker.begin(self._facts, self._start)
            with self._moving:
                if self._begun is None and not self._is_left:  # after the end, `settle` moves the spool
                    pending = self._spool.path
                    self._spool.move(self._tracker.spool_of(begun.run_id, self._start))
                    if self._tracker.copies is not None:
                        self._copy()
                        self._tracker.copies.forget(pending.name)
                self._begun = begun
        return self._begun

    def _deliver(self, points: Sequence[Point]) -> None:
        begun = self._begin()
        self._tracker.deliver(begun.run_id, [one for one in points if not self._is_stored(begun, one)])

    def _is_stored(self, begun: Begun, point: Point) -> bool:
        """True if an earlier process delivered the point: the next process reads the events of a training again."""
        if point.step > begun.seen.get(point.name, -1):
            return False
        if point.once_a_step:
            return True
        if point.time_ms > self._began_ms:
            return False
        if point.name not in self._histories:
            self._histories[point.name] = self._tracker.history(begun.run_id, point.name)
        return (point.step, point.time_ms) in self._histories[point.name]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish("FINISHED")
        else:
            self.finish("FAILED" if isinstance(error, Exception) else "KILLED")


def _stored(run: "Run") -> StoredRun:
    began, ended = (
        None if moment is None else datetime.fromtimestamp(moment / 1000, UTC)
        for moment in (run.info.start_time, run.info.end_time)
    )
    return StoredRun(
        run_id=run.info.run_id,
        name=run.info.run_name or run.info.run_id,
        status=run.info.status,
        started_at=began,
        ended_at=ended,
        params=dict(run.data.params),
        metrics=dict(run.data.metrics),
        tags=dict(run.data.tags),
    )


def _run_and_start(spool: Path) -> tuple[str, str]:
    """Return the ids of the run and of the start from the name of a spool."""
    run_id, _, start = spool.stem.partition("-")
    return run_id, start


def _as_text(params: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in params.items()}


def _named(values: Mapping[str, Value]) -> dict[str, Value]:
    """Return `values` under names that MLflow accepts."""
    return {_allowed(name): value for name, value in values.items()}


@lru_cache(maxsize=4096)
def _allowed(name: str) -> str:
    """Return a name that MLflow accepts: its characters, its length, a plain path. A refused name would block the
    delivery of all later points."""
    parts = re.sub(r"[^\w\-. :/]", "_", name, flags=re.ASCII).split("/")
    plain = "/".join(part for part in parts if part not in ("", ".", ".."))
    return plain[:_LONGEST_NAME].rstrip("/") or "_"
