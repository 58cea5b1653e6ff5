"""Exchange with the pods of a training through the artifacts: job, snapshot and size in, result and events out.

Not here: the commands of the pods that read and write them (ml_assets.model.training.node.pod).
"""

import json
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from resources.artifacts import ArtifactMissing, Artifacts
from resources.files import link_or_copy, whole_file
from resources.job.events import (
    EVENTS,
    JOB,
    NODES,
    RESULT,
    SNAPSHOTS,
    WEIGHTS,
    TrainingEvent,
    training_folder_name,
)
from resources.job.job import TrainingJob, TrainingResult

SNAPSHOT = "snapshot.json"


def snapshot_name(job: TrainingJob) -> str:
    """Return the name of the snapshot's folder among the artifacts."""
    return f"{SNAPSHOTS}/{job.snapshot_digest}"


def share_inputs(artifacts: Artifacts, job: TrainingJob) -> None:
    """Push the job and its snapshot to the artifacts, where pods read them. A snapshot that is complete there stays."""
    # The job first: garbage collection keeps the snapshot of a job without a result.
    folder = artifacts.folder(training_folder_name(job))
    with whole_file(folder / JOB) as writing:
        writing.write_text(job.to_json())
    artifacts.push(training_folder_name(job), [JOB])
    name = snapshot_name(job)
    if not artifacts.exists(name, SNAPSHOT):
        _fill(artifacts.folder(name), Path(job.snapshot))
        artifacts.push(name, last=SNAPSHOT)


def share_nodes(artifacts: Artifacts, job: TrainingJob, pods: Collection[str]) -> None:
    """Tell these pods, by their uids, that a queue admitted them together. They wait for it to know their number."""
    name = training_folder_name(job)
    with whole_file(artifacts.folder(name) / NODES) as writing:
        writing.write_text(json.dumps({"pods": sorted(pods)}))
    artifacts.push(name, [NODES])


def finished(artifacts: Artifacts, job: TrainingJob) -> TrainingResult | None:
    """Return the result of the pods and pull its folder to this machine; None if there is no result yet.

    A result of another job, or with damaged weights, does not count.
    """
    name = training_folder_name(job)
    if not artifacts.exists(name, RESULT):
        return None
    folder = artifacts.pull(name, [RESULT])
    result = TrainingResult.read(folder / RESULT)
    if result.fingerprint != job.fingerprint:
        return None
    wanted = [file for file in artifacts.files(name) if not file.startswith("checkpoints/")]
    try:
        artifacts.pull(name, wanted, last=RESULT)
    except ArtifactMissing:
        return None
    weights = folder / WEIGHTS
    if not result.has_weights(weights):
        return None
    result = replace(result, weights=str(weights))
    with whole_file(folder / RESULT) as writing:  # later steps read it and need the local path of the weights
        writing.write_text(result.to_json())
    return result


def share_events(artifacts: Artifacts, job: TrainingJob, told: Iterable[TrainingEvent]) -> None:
    """Pull the events that pods have uploaded, and upload those of `told` that are missing there.

    A lost pod loses its own events, and the next attempt must know how far the training came.
    """
    name = training_folder_name(job)
    with suppress(ArtifactMissing):
        artifacts.pull(name, [EVENTS])
    file = artifacts.folder(name) / EVENTS
    there = set(file.read_text().splitlines()) if file.exists() else set[str]()
    if missing := [line for event in told if (line := event.to_line()) not in there]:
        with file.open("a") as events:
            events.writelines(f"{line}\n" for line in missing)
        artifacts.push(name, [EVENTS])


def _fill(place: Path, snapshot: Path) -> None:
    """Link the files of `snapshot` into `place`. Copy them if `place` is on another disk."""
    for path in sorted(path for path in snapshot.rglob("*") if path.is_file()):
        target = place / path.relative_to(snapshot)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        link_or_copy(path, target)
