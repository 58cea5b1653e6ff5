"""Node of a training that runs on several: a pod of a Kubernetes Job, or any machine set up like one.

    python -m ml_assets.model.training.node.pod

Here: the work around the ranks if the local folder ends with the pod. The pod stages the inputs, runs the ranks and
stores their files, and all nodes end with the same code. Not here: the ranks (agent, training.entry), the files that
each rank stores (training.run, checkpoint.checkpoints), starting pods and retrying (the launcher).

Settings come from the environment:

    TRAINING_FOLDER        s3://…: the job's folder, with its job.json
    TRAINING_SNAPSHOT      s3://…: the snapshot that the job names
    TRAINING_SCRATCH       a local folder that no other process uses
    TRAINING_SHARD_CACHE   bytes of training shards that may lie there at once; shards are then fetched while the
                           training runs. Not set: all of them are fetched before it starts
    TRAINING_NODES         number of nodes of this attempt. Not set if TRAINING_POD is
    TRAINING_POD           uid of this pod if a queue chooses the number of nodes. The launcher writes the uids of all
                           pods that it admitted together to nodes.json in the job's folder
    TRAINING_RANKS         ranks of each node
    TRAINING_CAUSE         cause of the interruption of the previous attempt, from the launcher; may be missing or empty
    JOB_COMPLETION_INDEX   number of this node, from 0
    MASTER_ADDR            name or address of node 0
    MASTER_PORT            port at which node 0 listens

and credentials of the store in botocore's variables (AWS_*; AWS_ENDPOINT_URL for a server other than AWS).
"""

import json
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from ml_assets.data.snapshots.split_reader import MANIFEST, ShardChanged, open_snapshot
from ml_assets.model.training.attempt.attempts import ATTEMPTS
from ml_assets.model.training.checkpoint.initial import INITIAL
from ml_assets.model.training.checkpoint.mirror import Mirror
from ml_assets.model.training.data.streaming import ShardSource, open_artifacts
from ml_assets.model.training.node.torchrun import Node, end, start_importing, use_temporary_folder
from ml_assets.model.training.telemetry.event_log import emit, keep_events, report_failure
from resources.artifacts import ArtifactMissing, ArtifactsError, ArtifactsRefused, read_artifact
from resources.disk import is_disk_full
from resources.job.errors import BadConfiguration, InputChanged, StorageFailed, TrainingFailed, storage_failed
from resources.job.events import EVENTS, JOB, NODES
from resources.job.job import ExitCode, TrainingJob

_LAST_WORDS_SECONDS = 3.0
"""Time for the other nodes to report their end: a node that lost a peer ends with that peer's code."""

_ADMITTED_SECONDS = 600.0
"""Time for a launcher to write the number of nodes. A pruner removes pods whose launcher is away for as long."""
_POLL_SECONDS = 1.0
_STORE_CLIENT = "resources.artifacts.s3_client"
"""Every rank stores its rows: 0.5 CPU seconds that each would spend, rank 0 while all wait for its resume."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PodSettings:
    """Settings that the launcher passes to a pod."""

    folder: str
    """Address of the job's folder."""
    snapshot: str
    """Address of the snapshot."""
    scratch: Path
    node: Node
    """This node. The number of nodes is 0 until `admitted` knows it."""
    ranks: int
    """Ranks on each node."""
    cause: str
    """Cause of the previous attempt's end if only the launcher knows it; else empty."""
    pod: str = ""
    """Uid of this pod if a queue chooses the number of nodes; else empty."""
    shard_cache: int | None = None
    """Bytes; None if all shards are fetched before the training starts."""

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Self:
        """Read from environment variables. Raises `BadConfiguration` if a variable is missing or not a number."""

        def number(name: str) -> int:
            try:
                return int(environment[name])
            except ValueError as error:
                raise BadConfiguration(f"{name} must be a whole number, not {environment[name]!r}") from error

        try:
            node = Node(
                rank=number("JOB_COMPLETION_INDEX"),
                count=0 if "TRAINING_POD" in environment else number("TRAINING_NODES"),
                address=environment["MASTER_ADDR"],
                port=number("MASTER_PORT"),
            )
            return cls(
                folder=environment["TRAINING_FOLDER"].rstrip("/"),
                snapshot=environment["TRAINING_SNAPSHOT"].rstrip("/"),
                scratch=Path(environment["TRAINING_SCRATCH"]),
                node=node,
                ranks=number("TRAINING_RANKS"),
                cause=environment.get("TRAINING_CAUSE", ""),
                pod=environment.get("TRAINING_POD", ""),
                shard_cache=number("TRAINING_SHARD_CACHE") if "TRAINING_SHARD_CACHE" in environment else None,
            )
        except KeyError as error:
            raise BadConfiguration(
                f"{error.args[0]} is not set: start the pods of a training by a launcher, which sets it"
            ) from error


def main(environment: Mapping[str, str]) -> int:
    """Run this node's ranks; return the exit code of the job."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        settings = PodSettings.read(environment)
    except BadConfiguration as error:
        return report_failure(error)
    use_temporary_folder(settings.scratch)
    start_importing(_STORE_CLIENT)
    try:
        settings = admitted(settings)
    except TrainingFailed as error:  # every node fails alike, and none knows how many others there are
        return report_failure(error)
    return _run(settings)


def admitted(settings: PodSettings) -> PodSettings:
    """Return the settings with the number of nodes that a queue admitted, once the launcher has written it.

    Raises `BadConfiguration`, `StorageFailed`.
    """
    if not settings.pod:
        return settings
    above, _, name = settings.folder.rpartition("/")
    artifacts = open_artifacts(above, settings.scratch)
    deadline = time.monotonic() + _ADMITTED_SECONDS
    while time.monotonic() < deadline:
        with _storage_errors(), suppress(ArtifactMissing):
            pods = json.loads(read_artifact(artifacts, name, NODES))["pods"]
            # Without this pod, it is about an earlier attempt, or an earlier admission of this Job.
            if settings.pod in pods:
                return replace(settings, node=replace(settings.node, count=len(pods)))
        time.sleep(_POLL_SECONDS)
    raise StorageFailed(
        f"no launcher wrote to {settings.folder}/{NODES} for {_ADMITTED_SECONDS:.0f} s how many nodes the queue "
        "admitted: launch the training again"
    )


@contextmanager
def _storage_errors() -> Generator[None]:
    """Raise errors of the artifacts as failures of the training."""
    try:
        yield
    except ArtifactsRefused as error:
        raise BadConfiguration(str(error)) from error
    except ArtifactsError as error:
        raise StorageFailed(str(error)) from error


def _run(settings: PodSettings) -> int:
    # A fresh folder: files of an earlier container of this pod may be half written. The store is authoritative.
    folder = settings.scratch / settings.folder.rpartition("/")[2]
    shutil.rmtree(folder, ignore_errors=True)
    started = time.monotonic()
    job, code = None, int(ExitCode.DONE)
    try:
        job = stage(settings, folder)
    except TrainingFailed as error:
        code = report_failure(error)
    except OSError as error:
        if not is_disk_full(error):
            raise
        code = report_failure(storage_failed(error, "the snapshot", settings.scratch))
    log.info("staged in %.1f s", time.monotonic() - started)

    from ml_assets.model.training.node.agent import Nodes, run_ranks  # imports torch, beside the forkserver

    nodes = Nodes(settings.node)
    log.info("imported the libraries and met the other nodes in %.1f s", time.monotonic() - started)
    code = nodes.agree("staged", code)
    if job is None or code:
        return code
    keep_events(folder)
    if settings.cause and settings.node.rank == 0:
        emit("ended", 0, code=int(ExitCode.PREEMPTED), cause=settings.cause)
    code = run_ranks(job, settings.ranks, folder, settings.folder, settings.node)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the ranks have ended, and their code stands
    if settings.node.rank == 0:
        _store_events(settings, folder)
    return nodes.agree("ended", code, _LAST_WORDS_SECONDS) if code else code


def stage(settings: PodSettings, folder: Path) -> TrainingJob:
    """Fetch the job and the snapshot. Raises `BadConfiguration`, `InputChanged`, `StorageFailed`."""
    with _storage_errors():
        job = _read_job(settings, folder)
        snapshot = _bring_snapshot(settings, job)
    job = replace(job, snapshot=str(snapshot))
    (folder / JOB).write_text(job.to_json())
    return job


def _read_job(settings: PodSettings, folder: Path) -> TrainingJob:
    above, _, name = settings.folder.rpartition("/")
    artifacts = open_artifacts(above, settings.scratch)
    try:
        artifacts.pull(name, [JOB])
        job = TrainingJob.from_json((folder / JOB).read_text())
    except ArtifactMissing as error:
        raise BadConfiguration(f"there is no {JOB} in {settings.folder}: launch the job again") from error
    except ValueError as error:
        raise BadConfiguration(
            f"{settings.folder}/{JOB} is not a valid job: {error}. Launch it again"
        ) from error
    wanted = {ATTEMPTS, EVENTS} if settings.node.rank == 0 else set[str]()  # rank 0 appends to them
    if job.initial_weights:
        wanted.add(INITIAL)
    if wanted and (there := wanted & set(artifacts.files(name))):
        artifacts.pull(name, sorted(there))
    return job


def _bring_snapshot(settings: PodSettings, job: TrainingJob) -> Path:
    """Copy the snapshot to scratch, except shards that are streamed later. Ranks compare digests."""
    above, _, name = settings.snapshot.rpartition("/")
    artifacts = open_artifacts(above, settings.scratch / "snapshots")
    try:
        folder = artifacts.pull(name, [MANIFEST])
        snapshot = open_snapshot(folder, job.snapshot_digest, job.schema_hash)
        shards = snapshot.shards_of("validation")  # read many times
        if settings.shard_cache is None or job.script:  # a script reads a whole split
            shards += snapshot.shards_of("train")
        else:
            ShardSource(url=settings.snapshot, cache_bytes=settings.shard_cache).write(folder)
        return artifacts.pull(name, [file.path for shard in shards for file in shard.files])
    except (ShardChanged, ArtifactMissing) as error:
        raise InputChanged(f"{settings.snapshot}: {error}") from error


def _store_events(settings: PodSettings, folder: Path) -> None:
    """Store all events, also those since the last checkpoint. They serve readers of the job; its result needs none."""
    if (folder / EVENTS).exists():
        try:
            Mirror(settings.folder, folder).push([EVENTS])
        except StorageFailed as error:
            log.warning("the last events could not be stored, only the log of this pod has them: %s", error)


if __name__ == "__main__":
    end(main(os.environ))
