"""State with which a restored training begins: a checkpoint of another training, copied into its own folder.

    checkpoints/step-00000200/…    the copied files, and a commit marker that names the new training
    rows/attempt-000-rank-0.bin    the rows from which the other training had learned by then

The workers resume from the copy as from a checkpoint of their own: weights, optimizer, position in the data, best
weights so far. Nothing of the other training changes. Local files are linked, not copied, so the copy outlives the
deletion of the other checkpoint. Not here: comparing the two trainings (`steps.identity`), resuming (`checkpoints`).
"""

import dataclasses
import hashlib
import json
import shutil

from ml_assets.data.snapshots.split_reader import file_sha256
from ml_assets.model.training.checkpoint.checkpoints import COMMIT, CommitMarker, folder_of, step_of
from ml_assets.model.training.data.rowlog import RESTORED_ROWS, copy_rows
from resources.artifacts import ArtifactMissing, Artifacts, read_artifact
from resources.files import link_or_copy, whole_file
from resources.job.errors import CheckpointGone, CheckpointUnusable
from resources.job.events import JOB, RESULT, folder_of_training, training_folder_name
from resources.job.job import RestoredState, TrainingJob


def job_of(artifacts: Artifacts, model: str, fingerprint: str) -> TrainingJob:
    """Return the job of a training. Raises `CheckpointGone` if it was deleted, `CheckpointUnusable` if it changed."""
    try:
        job = TrainingJob.from_json(
            read_artifact(artifacts, folder_of_training(model, fingerprint), JOB).decode()
        )
    except ArtifactMissing as missing:
        raise CheckpointGone(
            f"the training {fingerprint[:16]} of {model} has no checkpoint, or was deleted: train anew"
        ) from missing
    except ValueError:
        job = None
    if job is None or job.fingerprint != fingerprint:
        raise CheckpointUnusable(
            f"{JOB} of training {fingerprint[:16]} was altered, or is of another version of this software: restore it "
            "from a copy, or train anew"
        )
    return job


def state_of_checkpoint(artifacts: Artifacts, model: str, fingerprint: str, step: int) -> RestoredState:
    """Return the state that the checkpoint of `step` holds, from its commit marker alone.

    Raises `CheckpointGone`, and `CheckpointUnusable` for a marker that cannot be read.
    """
    return _state_in(_marker(artifacts, folder_of_training(model, fingerprint), step), fingerprint, step)


def _state_in(marker: CommitMarker, fingerprint: str, step: int) -> RestoredState:
    if marker.fingerprint != fingerprint:
        raise CheckpointUnusable(
            f"the checkpoint of step {step} belongs to another training than {fingerprint[:16]}: choose another one"
        )
    state = hashlib.sha256(json.dumps(dict(marker.sha256), sort_keys=True).encode()).hexdigest()
    return RestoredState(training=fingerprint, step=step, state=state)


def hand_over_state(artifacts: Artifacts, job: TrainingJob, restored: RestoredState) -> None:
    """Copy the state `restored`, with which `job` begins, into the folder of the job, verified.

    Does nothing if the folder has it. The commit marker comes last, so that workers see all of it or nothing. Safe to
    repeat. Raises `CheckpointGone`, `CheckpointUnusable` and `ArtifactsError`.
    """
    name = training_folder_name(job)
    if _has_begun(artifacts, name, restored.step):
        return
    origin, step = folder_of_training(job.model, restored.training), restored.step
    markers = {step: _marker(artifacts, origin, step)}
    if _state_in(markers[step], restored.training, step) != restored:
        raise CheckpointUnusable(
            f"{restored.in_words} was written again since, with another state: restore it once more"
        )
    if (best := markers[step].best_step) not in (0, step):
        markers = {best: _marker(artifacts, origin, best), **markers}
    try:
        for one, marker in markers.items():
            _copy_files(artifacts, origin, name, one, marker)
    except CheckpointUnusable:
        for one in markers:
            shutil.rmtree(artifacts.folder(name) / folder_of(one), ignore_errors=True)
        raise
    if not artifacts.exists(name, JOB):
        with whole_file(artifacts.folder(name) / JOB) as writing:
            writing.write_text(job.to_json())
        artifacts.push(name, [JOB])
    _copy_rows(artifacts, origin, name, step)
    for one, marker in markers.items():  # that of the restored step comes last
        _commit(artifacts, name, one, dataclasses.replace(marker, fingerprint=job.fingerprint))


def _has_begun(artifacts: Artifacts, name: str, step: int) -> bool:
    """True if a training has its result, or a checkpoint of `step` or later."""
    for file in artifacts.files(name):
        folder, _, last = file.rpartition("/")
        if file == RESULT or (last == COMMIT and (step_of(folder) or 0) >= step):
            return True
    return False


def _marker(artifacts: Artifacts, name: str, step: int) -> CommitMarker:
    try:
        return CommitMarker.from_bytes(read_artifact(artifacts, f"{name}/{folder_of(step)}", COMMIT))
    except ArtifactMissing as missing:
        found = {step_of(file.rpartition("/")[0]) for file in artifacts.files(name) if file.endswith(COMMIT)}
        there = ", ".join(str(one) for one in sorted(one for one in found if one is not None))
        raise CheckpointGone(
            f"the training {name.rpartition('/')[2]} has no checkpoint of step {step}: "
            f"{f'choose one of the steps {there}' if there else 'all of them were deleted'}"
        ) from missing
    except (ValueError, TypeError) as error:
        raise CheckpointUnusable(
            f"the marker of the checkpoint of step {step} is damaged ({error}): choose another checkpoint"
        ) from error


def _copy_rows(artifacts: Artifacts, origin: str, name: str, step: int) -> None:
    """Copy the log of the rows behind the state. A script without a log of rows has none."""
    logs = [file for file in artifacts.files(origin) if file.startswith("rows/")]
    if not logs:
        return
    place = artifacts.folder(name) / RESTORED_ROWS
    place.parent.mkdir(exist_ok=True)
    with whole_file(place) as writing:
        copy_rows(artifacts.pull(origin, logs), step, writing)
    artifacts.push(name, [RESTORED_ROWS])


def _copy_files(artifacts: Artifacts, origin: str, name: str, step: int, marker: CommitMarker) -> None:
    """Copy and verify the files of a checkpoint to the local folder of the new training."""
    folder = folder_of(step)
    place = artifacts.folder(name) / folder
    place.mkdir(parents=True, exist_ok=True)
    try:
        source = artifacts.pull(origin, [f"{folder}/{file}" for file in marker.sha256]) / folder
        for file, digest in marker.sha256.items():
            with whole_file(place / file) as writing:
                link_or_copy(source / file, writing)
            if file_sha256(place / file) != digest:
                raise CheckpointUnusable(
                    f"the checkpoint of step {step} is damaged: {file} differs from its digest. Choose another one"
                )
    except (ArtifactMissing, FileNotFoundError) as missing:
        raise CheckpointUnusable(
            f"the checkpoint of step {step} is just being deleted: choose a newer one"
        ) from missing


def _commit(artifacts: Artifacts, name: str, step: int, marker: CommitMarker) -> None:
    folder = folder_of(step)
    with whole_file(artifacts.folder(name) / folder / COMMIT) as writing:
        writing.write_bytes(marker.to_bytes())
    artifacts.push(name, [f"{folder}/{file}" for file in marker.sha256], last=f"{folder}/{COMMIT}")
