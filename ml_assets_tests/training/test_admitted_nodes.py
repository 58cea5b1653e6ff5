"""Number of nodes that a queue admitted, as the pods learn it."""

import threading
import time
from pathlib import Path

import pytest

from ml_assets.model.training.node import pod
from ml_assets.model.training.node.pod import PodSettings, admitted
from ml_assets_tests.resources.launcher.scripted_jobs import job_of
from resources.artifacts import FolderArtifacts
from resources.job.errors import StorageFailed
from resources.job.events import training_folder_name
from resources.launcher.kubernetes.exchange import share_nodes

JOB = job_of("done")


def settings_of(tmp_path: Path, **more: str) -> PodSettings:
    """Return the settings of a pod whose folder is on this machine."""
    artifacts = FolderArtifacts(tmp_path / "artifacts")
    return PodSettings.read(
        {
            "TRAINING_FOLDER": artifacts.address(training_folder_name(JOB)),
            "TRAINING_SNAPSHOT": "file:///none",
            "TRAINING_SCRATCH": str(tmp_path / "scratch"),
            "TRAINING_RANKS": "1",
            "JOB_COMPLETION_INDEX": "1",
            "MASTER_ADDR": "train-0.train",
            "MASTER_PORT": "29500",
            **more,
        }
    )


def test_a_pod_waits_for_a_list_with_its_own_uid(tmp_path: Path) -> None:
    """The list of an earlier attempt, or of an earlier admission of the same Job, does not count."""
    artifacts = FolderArtifacts(tmp_path / "artifacts")
    share_nodes(artifacts, JOB, {"uid-1", "uid-2"})
    settings = settings_of(tmp_path, TRAINING_POD="uid-4")
    writing = threading.Timer(0.3, share_nodes, (artifacts, JOB, {"uid-3", "uid-4", "uid-5"}))
    began = time.monotonic()
    writing.start()
    node = admitted(settings).node
    assert time.monotonic() - began >= 0.3
    assert (node.rank, node.count) == (1, 3)
    writing.join()


def test_a_number_that_no_launcher_writes_fails_the_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod, "_ADMITTED_SECONDS", 0.2)
    with pytest.raises(StorageFailed, match=r"nodes\.json .*launch the training again"):
        admitted(settings_of(tmp_path, TRAINING_POD="uid-2"))


def test_a_fixed_number_of_nodes_is_there_at_once(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, TRAINING_NODES="2")
    assert admitted(settings) is settings
