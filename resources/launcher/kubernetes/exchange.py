"""Exchange of a launcher with its pods through the artifacts: inputs there, the result back."""

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from resources.artifacts import ArtifactMissing, Artifacts
from resources.job.events import EVENTS, JOB, RESULT, WEIGHTS, TrainingEvent, training_folder_name
from resources.job.job import TrainingJob, TrainingResult

SNAPSHOT = "snapshot.json"


def snapshot_name(job: TrainingJob) -> str:
    """The snapshot among the artifacts."""
    return f"snapshots/{job.snapshot_digest}"


def share_inputs(artifacts: Artifacts, job: TrainingJob) -> None:
    """Put the job and its snapshot where pods can read them; a snapshot that is there already stays."""
    name = snapshot_name(job)
    if not artifacts.exists(name, SNAPSHOT):
        _fill(artifacts.folder(name), Path(job.snapshot))
        artifacts.push(name, last=SNAPSHOT)
    folder = artifacts.folder(training_folder_name(job))
    writing = folder / f".{JOB}.{os.getpid()}"
    writing.write_text(job.to_json())
    writing.replace(folder / JOB)
    artifacts.push(training_folder_name(job), [JOB])


def finished(artifacts: Artifacts, job: TrainingJob) -> TrainingResult | None:
    """The result the pods left, with everything beside it on this machine; None where there is none yet.

    A result whose weights are damaged, or another job's, does not count.
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
    writing = folder / f".{RESULT}.{os.getpid()}"
    writing.write_text(result.to_json())  # the steps after this one read it, and look for the weights here
    writing.replace(folder / RESULT)
    return result


def share_events(artifacts: Artifacts, job: TrainingJob, told: Iterable[TrainingEvent]) -> None:
    """Bring the events that pods have uploaded, and upload those of `told` that are not among them: a pod that is lost
    takes its own along, and the next attempt is to know how far it came."""
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
    """The files of `snapshot` under another name, without a copy where the disk is the same."""
    for path in sorted(path for path in snapshot.rglob("*") if path.is_file()):
        target = place / path.relative_to(snapshot)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        try:
            os.link(path, target)
        except OSError:
            shutil.copyfile(path, target)
