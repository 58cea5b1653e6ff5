"""A training that begins with a checkpoint of another one: the same bits, its own lineage, and never from step 0."""

import dataclasses
import os
import signal
from pathlib import Path

import pytest

from ml_assets.data.snapshots.split_reader import Snapshot
from ml_assets.model.training.attempt.attempts import read_attempts
from ml_assets.model.training.checkpoint.checkpoints import folder_of
from ml_assets.model.training.checkpoint.restored import hand_over_state, state_of_checkpoint
from ml_assets_tests.training.small_jobs import small_job
from ml_assets_tests.training.watcher import Watcher
from resources.artifacts import FolderArtifacts
from resources.job.errors import CheckpointGone, CheckpointUnusable, InputChanged
from resources.job.events import JOB, TrainingEvent, read_events, rows_lost, training_folder_name
from resources.job.job import TrainingJob, TrainingResult

STEP = 50
"""Step in the middle of the second of three epochs of 40 steps."""


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> FolderArtifacts:
    return FolderArtifacts(tmp_path_factory.mktemp("artifacts"))


@pytest.fixture(scope="module")
def origin(snapshot: Snapshot, artifacts: FolderArtifacts) -> tuple[TrainingJob, TrainingResult]:
    """A finished training whose checkpoints were all kept."""
    job = small_job(snapshot, determinism="bitwise", keep_checkpoints=20)
    folder = artifacts.folder(training_folder_name(job))
    return job, Watcher().run(job, folder)


def restored_job(artifacts: FolderArtifacts, origin: TrainingJob, step: int = STEP) -> TrainingJob:
    state = state_of_checkpoint(artifacts, origin.model, origin.fingerprint, step)
    return dataclasses.replace(origin, restored=state)


def files_of(folder: Path) -> dict[str, int]:
    return {str(one.relative_to(folder)): one.stat().st_size for one in folder.rglob("*") if one.is_file()}


def test_a_restored_training_ends_with_the_same_bits(
    artifacts: FolderArtifacts, origin: tuple[TrainingJob, TrainingResult]
) -> None:
    """It is killed once, too: the rows of the other training and its own make whole epochs."""
    before, result = origin
    job = restored_job(artifacts, before)
    assert job.fingerprint != before.fingerprint
    was = files_of(artifacts.folder(training_folder_name(before)))
    for _ in range(2):  # a launch that was cut off is repeated
        assert job.restored is not None
        hand_over_state(artifacts, job, job.restored)

    def kill_once(watcher: Watcher, event: TrainingEvent) -> None:
        is_first = watcher.kinds().count("started") == 1
        if is_first and event.kind == "metrics" and event.step == STEP + 15:
            os.kill(watcher.pids[1], signal.SIGKILL)

    watcher, folder = Watcher(kill_once), artifacts.folder(training_folder_name(job))
    again = watcher.run(job, folder)
    assert again.weights_sha256 == result.weights_sha256
    assert (again.steps, again.best_step) == (result.steps, result.best_step)
    assert again.fingerprint == job.fingerprint
    first, second = read_attempts(folder)
    assert first.from_step == STEP < second.from_step
    assert min(one.step for one in watcher.events if one.kind == "metrics") == STEP + 1
    assert rows_lost(read_events(folder)) == 0
    finished = next(one for one in watcher.events if one.kind == "finished")
    assert set(finished.values["rows_repeated"].values()) == {0}
    assert files_of(artifacts.folder(training_folder_name(before))) == was
    assert TrainingJob.from_json((folder / JOB).read_text()) == job


def test_a_copied_state_outlives_the_checkpoint_that_it_comes_from(
    artifacts: FolderArtifacts, origin: tuple[TrainingJob, TrainingResult], tmp_path: Path
) -> None:
    before, result = origin
    job = restored_job(artifacts, before, 90)
    assert job.restored is not None
    hand_over_state(artifacts, job, job.restored)
    name = training_folder_name(before)
    kept = tmp_path / "kept"
    (artifacts.folder(name) / "checkpoints").rename(kept)
    try:
        again = Watcher().run(job, artifacts.folder(training_folder_name(job)))
    finally:
        kept.rename(artifacts.folder(name) / "checkpoints")
    assert again.weights_sha256 == result.weights_sha256


def test_without_its_state_a_restored_training_trains_nothing(
    artifacts: FolderArtifacts, origin: tuple[TrainingJob, TrainingResult], tmp_path: Path
) -> None:
    """Not even from its best checkpoint, which is older."""
    job = restored_job(artifacts, origin[0], 100)
    assert job.restored is not None
    hand_over_state(artifacts, job, job.restored)
    folder = artifacts.folder(training_folder_name(job))
    part = next((folder / folder_of(100)).glob("*.distcp"))
    part.unlink()  # a link: the other training keeps the file
    part.write_bytes(b"damaged")
    with pytest.raises(InputChanged, match="step 100"):
        Watcher().run(job, folder)
    assert not (folder / "rows/attempt-001-rank-0.bin").exists()


def test_a_checkpoint_that_is_gone_or_being_deleted_is_refused(
    artifacts: FolderArtifacts, origin: tuple[TrainingJob, TrainingResult]
) -> None:
    before, _ = origin
    with pytest.raises(CheckpointGone, match="no checkpoint of step 55"):
        restored_job(artifacts, before, 55)
    job = restored_job(artifacts, before, 110)
    assert job.restored is not None
    part = next((artifacts.folder(training_folder_name(before)) / folder_of(110)).glob("*.distcp"))
    content = part.read_bytes()
    part.unlink()
    with pytest.raises(CheckpointUnusable, match="being deleted"):
        hand_over_state(artifacts, job, job.restored)
    part.write_bytes(content[:-1] + b"?")
    with pytest.raises(CheckpointUnusable, match="damaged"):
        hand_over_state(artifacts, job, job.restored)
    assert not artifacts.files(training_folder_name(job))
    part.write_bytes(content)
    hand_over_state(artifacts, job, job.restored)
    assert artifacts.files(training_folder_name(job))
