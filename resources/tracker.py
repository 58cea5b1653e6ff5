"""`Tracker`: one MLflow run per training fingerprint, never doubled, never left RUNNING.

Here: runs, their parameters, tags, metrics and files. Not here: how metrics travel (`sink`), how MLflow is
opened (`mlflow_client`), registered versions (`ml_assets.release.registry`).

What a person sees, and where it stands:

| state     | Dagster run         | MLflow run |
|-----------|---------------------|------------|
| queued    | QUEUED, NOT_STARTED | none yet   |
| running   | STARTED             | RUNNING    |
| completed | SUCCESS             | FINISHED   |
| failed    | FAILURE             | FAILED     |
| killed    | CANCELED            | KILLED     |

A process that is killed cannot end its MLflow run. Its spool file then loses its lock, and the next start of
any run (or `settle`) delivers what waits there and marks the run KILLED.
"""

import fcntl
import logging
import re
import uuid
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from resources.launcher.errors import Cancelled
from resources.mlflow_client import TrackerError, TrackerRefused, open_client, reaching, write
from resources.sink import MetricSink, Point, Spool

if TYPE_CHECKING:
    from mlflow.entities import Run

Status = Literal["FINISHED", "FAILED", "KILLED"]
Value = TypeVar("Value")

FINGERPRINT = "fingerprint"
"""Tag by which a run is found again."""

_MOST_POINTS = 1000
"""MLflow takes no more metrics in one call."""
_MOST_PARAMS = 100
_LONGEST_NAME = 250
_DIGEST_LENGTH = 36
"""MLflow takes no longer digest of a dataset; the whole one is a tag."""


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What identifies and describes one training."""

    experiment: str
    """Name of the model."""
    fingerprint: str
    name: str
    """For people, such as the partition key."""
    author: str
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Written once; a later start with the same fingerprint adds missing ones and changes none."""
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    """Links and facts; the newest start wins."""
    note: str = ""
    """Free text, shown at the top of the run."""
    dataset_name: str = ""
    dataset_digest: str = ""
    """Of what is trained on; shown in MLflow's dataset column."""


class Tracker:
    """MLflow behind one address. Cheap to make: mlflow is imported by the first call.

    `folder` holds the spool. `files` is the address below which runs' files lie, each experiment's under its
    name; None leaves the place to MLflow. Every method may raise `TrackerUnavailable`.
    """

    def __init__(self, uri: str, folder: Path, files: str | None = None) -> None:
        self.uri = uri
        self._folder = folder
        self._files = files

    def start(self, facts: RunFacts) -> "TrackedRun":
        """The run of this fingerprint, new or resumed, RUNNING until the returned context ends.

        Steps whose metrics it already has are not stored again.
        """
        self.settle()
        with reaching(self.uri):
            experiment = self._experiment(facts.experiment)
            run = self._run_of(experiment, facts)
            run_id = run.info.run_id
            self._describe(run, facts)
            self._client.update_run(run_id, status="RUNNING", name=facts.name)
            # Newest points: a run holds those itself, its history may be hundreds of thousands of them.
            seen = {point.key: point.step for point in run.data.to_proto().metrics}
        spool = Spool.create(self._spools / f"{run_id}-{uuid.uuid4().hex[:8]}.jsonl")
        return TrackedRun(self, run_id, spool, seen)

    def find(self, experiment: str, fingerprint: str) -> str | None:
        """Run id of a fingerprint, or None."""
        with reaching(self.uri):
            known = self._client.get_experiment_by_name(experiment)
            runs = [] if known is None else self._runs(known.experiment_id, fingerprint)
        return runs[0].info.run_id if runs else None

    def record(self, run_id: str, metrics: Mapping[str, float], step: int = 0) -> None:
        """Store final metrics at once; one that already has this value stays as it is."""
        from mlflow.entities import Metric
        from mlflow.utils.time import get_current_time_millis

        with reaching(self.uri):
            run = self._client.get_run(run_id)
            known = run.data.metrics
            # Two processes may get here together: a first value has the same time from both, and is one point.
            first, again = run.info.start_time, get_current_time_millis()
            new = [
                Metric(name, float(value), again if name in known else first, step)
                for name, value in _named(metrics).items()
                if known.get(name) != value
            ]
            for start in range(0, len(new), _MOST_POINTS):
                self._client.log_batch(run_id, metrics=new[start : start + _MOST_POINTS])

    def tag(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Set tags, replacing those of the same name."""
        from mlflow.entities import RunTag

        new = [RunTag(name, value) for name, value in tags.items()]
        write(self.uri, lambda: self._client.log_batch(run_id, tags=new))

    def attach(self, run_id: str, file: Path, folder: str = "") -> None:
        """Copy a file beside the run, under `folder`; the same name is replaced."""
        with reaching(self.uri):
            self._client.log_artifact(run_id, str(file), folder or None)

    def settle(self) -> list[str]:
        """Deliver what killed or cut-off processes left, end their runs; the run ids, each once."""
        if not self._spools.is_dir():
            return []
        settled: dict[str, None] = {}
        with self._alone("settling"):
            for path in sorted(self._spools.glob("*.jsonl")):
                spool = Spool.adopt(path)
                if spool is not None:
                    self._settle(spool)
                    settled[_run_id(path)] = None
        return list(settled)

    def deliver(self, run_id: str, points: Sequence[Point]) -> None:
        """Store points in order; one that is there already, with the same time, stays there once."""
        from mlflow.entities import Metric

        with reaching(self.uri):
            for start in range(0, len(points), _MOST_POINTS):
                batch = [
                    Metric(point.name, point.value, point.time_ms, point.step)
                    for point in points[start : start + _MOST_POINTS]
                ]
                self._client.log_batch(run_id, metrics=batch)

    def end(self, run_id: str, status: Status) -> None:
        """Set the final state of a run."""
        with reaching(self.uri):
            self._client.set_terminated(run_id, status)

    @property
    def _client(self) -> Any:
        return open_client(self.uri)

    @property
    def _spools(self) -> Path:
        return self._folder / "spool"

    @contextmanager
    def _alone(self, what: str) -> Generator[None]:
        """For the block no other thread or process of this home does the same."""
        with (self._spools / what).open("w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            yield

    def _experiment(self, name: str) -> str:
        known = self._client.get_experiment_by_name(name)
        if known is not None:
            return known.experiment_id
        place = None if self._files is None else f"{self._files}/{name}"
        try:
            with reaching(self.uri):
                return self._client.create_experiment(name, artifact_location=place)
        except TrackerRefused:  # another process made it meanwhile
            return self._client.get_experiment_by_name(name).experiment_id

    def _runs(self, experiment: str, fingerprint: str) -> "list[Run]":
        """Active runs of the fingerprint, oldest first."""
        wanted = f"tags.{FINGERPRINT} = '{fingerprint}'"
        runs = self._client.search_runs([experiment], wanted)
        return sorted(runs, key=lambda run: (run.info.start_time, run.info.run_id))

    def _run_of(self, experiment: str, facts: RunFacts) -> "Run":
        self._spools.mkdir(parents=True, exist_ok=True)
        # One process of this home after the other: which run is the oldest is not known while another is being made.
        with self._alone("starting"):
            runs = self._runs(experiment, facts.fingerprint)
            if runs:
                return runs[0]
            tags = {FINGERPRINT: facts.fingerprint, "mlflow.user": facts.author}
            made = self._client.create_run(experiment, tags=tags, run_name=facts.name)
            # One of another home may have got here, too; both then agree on the oldest.
            first = self._runs(experiment, facts.fingerprint)[0]
            if first.info.run_id != made.info.run_id:
                self._client.delete_run(made.info.run_id)
            return first

    def _describe(self, run: "Run", facts: RunFacts) -> None:
        from mlflow.entities import Dataset, DatasetInput, Param, RunTag

        run_id = run.info.run_id
        tags = dict(facts.tags)
        if facts.note:
            tags["mlflow.note.content"] = facts.note
        if facts.dataset_digest:
            tags["dataset_digest"] = facts.dataset_digest
            dataset = Dataset(
                facts.dataset_name, facts.dataset_digest[:_DIGEST_LENGTH], "lake", facts.dataset_digest
            )
            write(self.uri, lambda: self._client.log_inputs(run_id, [DatasetInput(dataset)]))
        new_tags = [RunTag(name, value) for name, value in tags.items() if run.data.tags.get(name) != value]
        params = [
            Param(name, str(value))
            for name, value in _named(facts.params).items()
            if name not in run.data.params
        ]
        write(self.uri, lambda: self._client.log_batch(run_id, tags=new_tags))
        for start in range(0, len(params), _MOST_PARAMS):
            some = params[start : start + _MOST_PARAMS]
            write(self.uri, lambda some=some: self._client.log_batch(run_id, params=some))

    def _settle(self, spool: Spool) -> None:
        run_id = _run_id(spool.path)
        is_done = False
        try:
            self.deliver(run_id, spool.points())
            self._end_by(spool, run_id)
            is_done = True
        except TrackerRefused as refusal:
            with suppress(TrackerRefused):  # once more where the run itself is gone
                self._end_by(spool, run_id)
            kept = spool.path.rename(spool.path.with_suffix(".refused"))
            logging.getLogger(__name__).warning("%s; what was not delivered stays in %s", refusal, kept)
        finally:
            spool.close(delete=is_done)

    def _end_by(self, spool: Spool, run_id: str) -> None:
        """End the run as its spool says, unless another process has taken it over or left a spool of its own."""
        is_last = list(self._spools.glob(f"{run_id}-*.jsonl")) == [spool.path]
        with reaching(self.uri):
            if is_last and self._client.get_run(run_id).info.status == "RUNNING":
                self._client.set_terminated(run_id, spool.ending() or "KILLED")


class TrackedRun:
    """A run that is going on. Use it as a context: leaving it delivers the metrics and ends the run.

    An ordinary end makes it FINISHED, an exception FAILED, a cancellation or interrupt KILLED. Where the
    tracker is away by then, the rest and the end are kept and caught up by the next `settle`.
    """

    def __init__(self, tracker: Tracker, run_id: str, spool: Spool, seen: Mapping[str, int]) -> None:
        self.run_id = run_id
        self._tracker = tracker
        self._spool = spool
        self._sink = MetricSink(lambda points: tracker.deliver(run_id, points), spool, seen)

    def log(self, values: Mapping[str, float], step: int, at: float | None = None) -> None:
        """Take the metrics of one step; never waits (`MetricSink.log`)."""
        # Under MLflow's names from here on: by those it says which steps of them it has.
        self._sink.log(_named(values), step, at)

    def finish(self, status: Status) -> None:
        """Deliver and end. To be called once; `with` does it."""
        is_ended = False
        try:
            if self._sink.close():
                self._tracker.end(self.run_id, status)
                is_ended = True
        except TrackerError as error:
            logging.getLogger(__name__).warning("%s; the end of the run is kept", error)
        finally:
            if not is_ended:
                self._spool.end(status)
            self._spool.close(delete=is_ended)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish("FINISHED")
        else:
            is_failure = isinstance(error, Exception) and not isinstance(error, Cancelled)
            self.finish("FAILED" if is_failure else "KILLED")


def _run_id(spool: Path) -> str:
    return spool.name.partition("-")[0]


def _named(values: Mapping[str, Value]) -> dict[str, Value]:
    """`values` by names that MLflow takes."""
    return {_allowed(name): value for name, value in values.items()}


@lru_cache(maxsize=4096)
def _allowed(name: str) -> str:
    """A name in MLflow's characters and length, as a plain path: one it refused would hold up all that comes behind."""
    parts = re.sub(r"[^\w\-. :/]", "_", name, flags=re.ASCII).split("/")
    plain = "/".join(part for part in parts if part not in ("", ".", ".."))
    return plain[:_LONGEST_NAME].rstrip("/") or "_"
