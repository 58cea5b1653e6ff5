"""Files that a launcher hands its pods and later attempts through the artifacts."""

from pathlib import Path

from ml_assets_tests.resources.launcher.scripted_jobs import job_of
from resources.artifacts import FolderArtifacts
from resources.job.events import EVENTS, TrainingEvent, read_events, training_folder_name
from resources.launcher.kubernetes.launcher import share_events


def event(step: int) -> TrainingEvent:
    return TrainingEvent(kind="metrics", step=step, time=1000.0 + step, values={"loss": 1 / (step + 3)})


def test_events_outlive_their_pod_and_none_comes_twice(tmp_path: Path) -> None:
    """Some events reached a launcher only through the pod's log."""
    artifacts, job = FolderArtifacts(tmp_path), job_of("done")
    folder = artifacts.folder(training_folder_name(job))
    stored, told = [event(0), event(1)], [event(1), event(2), event(3)]
    (folder / EVENTS).write_text("".join(f"{one.to_line()}\n" for one in stored))
    for _ in range(2):
        share_events(artifacts, job, told)
        assert [one.step for one in read_events(folder)] == [0, 1, 2, 3]


def test_there_may_be_no_events_yet(tmp_path: Path) -> None:
    artifacts, job = FolderArtifacts(tmp_path), job_of("done")
    folder = artifacts.folder(training_folder_name(job))
    share_events(artifacts, job, [])
    assert read_events(folder) == []
    share_events(artifacts, job, [event(7)])
    assert [one.step for one in read_events(folder)] == [7]
