"""A study of six trials in pods, two side by side; the power of a node is cut while it trains."""

import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ml_assets.data.snapshots.split_reader import open_snapshot
from ml_assets.extras.tuning.chosen import RESULT as STUDY_RESULT
from ml_assets.foundation.links import STUDIES
from ml_assets.model.steps.study_result import StudyResult
from ml_assets_tests.cluster.cluster_environment import ClusterEnvironment
from ml_assets_tests.cluster.launched_job import settings_of
from ml_assets_tests.cluster.run_location import model_of
from ml_assets_tests.cluster.unhurried_model import NOW
from ml_assets_tests.components.installation import Installation, failure_of, readings_components
from ml_assets_tests.components.readings_pipeline import PIPELINE
from ml_assets_tests.training.small_jobs import assert_each_row_once_per_epoch
from resources.job.events import JOB, RESULT
from resources.job.job import TrainingJob, TrainingResult
from resources.launcher.kubernetes.attempt_objects import TRAINING
from resources.launcher.local import LocalLauncher

pytestmark = [pytest.mark.timeout(1500), pytest.mark.alone, pytest.mark.nightly]

STARTS = [0.0, 6.0, 12.0, 18.0, 24.0, 40.0]
PACE = 1.0
"""Seconds of a pass until the node is lost: an epoch has 30."""
CHECKPOINT_EVERY_STEPS = 20
PATIENCE = 900.0
"""Seconds."""


@pytest.fixture
def installation(reachable: dict[str, str]) -> Installation:
    """The readings pipeline with a study, and tables for one window."""
    settings = settings_of(reachable)
    training: dict[str, Any] = {
        "workers": 1,
        "epochs": 4,
        "learning_rate": 0.05,
        "checkpoint_every_steps": CHECKPOINT_EVERY_STEPS,
        "log_every_steps": 1,
    }
    pipeline: dict[str, Any] = {
        "name": model_of(settings),
        "model": {
            "function": "ml_assets_tests.cluster.unhurried_model.build",
            "hyperparameters": {"pace": PACE, "start": 18.0},
        },
        "training": PIPELINE["training"] | training,
        "resources": {"nodes": 1, "cpu": "100m", "memory": "2Gi", "scratch": "1Gi"},
        "tuning": {
            "space": {"hyperparameters": {"start": {"kind": "categorical", "choices": STARTS}}},
            "sampler": "grid",
            "trials": len(STARTS),
            "parallel_trials": 2,
        },
    }
    installation = Installation(settings.home, readings_components(pipeline=pipeline), settings)
    installation.platform.make_lake_ready()
    return installation.with_tables(1)


def test_a_study_that_loses_a_node_loses_and_repeats_no_trial(
    installation: Installation,
    tidy: ClusterEnvironment,
    hurry: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The trials on it resume on the other node from their checkpoints, and end with the bits of one machine."""
    model = model_of(installation.settings)
    trainings = installation.settings.artifacts_folder / "training" / model

    def lose_a_node() -> set[str]:
        """Cut the power of a node whose trial has a checkpoint; return the labels of the trials on it."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            pods = [pod for pod in tidy.objects("pods") if pod["status"]["phase"] == "Running"]
            for pod in pods:
                if '"kind":"checkpoint"' in tidy.kubectl("logs", pod["metadata"]["name"]):
                    node = pod["spec"]["nodeName"]
                    tidy.cluster.kill_node(int(node.removeprefix("node")))
                    (hurry / NOW).touch()
                    on_it = [one for one in pods if one["spec"]["nodeName"] == node]
                    return {one["metadata"]["labels"][TRAINING] for one in on_it}
            time.sleep(0.2)
        raise AssertionError("no trial saved a checkpoint")

    with ThreadPoolExecutor(1) as beside:
        losing = beside.submit(lose_a_node)
        run = installation.run(f"{model}/hyperparameters")
        assert run.success, failure_of(run)
        lost = losing.result()

    (document,) = (installation.settings.artifacts_folder / STUDIES).rglob(STUDY_RESULT)
    result = StudyResult.from_json(document.read_text())
    assert [(one.number, one.state) for one in result.trials] == [(number, "finished") for number in range(6)]
    assert [one.parameters["hyperparameters.start"] for one in result.trials] == STARTS
    folders = {folder.name: folder for folder in trainings.iterdir()}
    assert sorted(folders) == sorted(one.fingerprint[:16] for one in result.trials)
    resumed: list[str] = []
    for name, folder in folders.items():
        done = TrainingResult.read(folder / RESULT)
        assert (done.attempts > 1) == (name[:12] in lost), name
        if done.attempts == 1:
            continue
        resumed.append(name)
        assert min(done.resumed_from_steps) >= CHECKPOINT_EVERY_STEPS
        job = TrainingJob.from_json((folder / JOB).read_text())
        assert_each_row_once_per_epoch(folder, open_snapshot(Path(job.snapshot)), job)
        hasty = dataclasses.replace(job, hyperparameters={**job.hyperparameters, "pace": 0.0})
        here = LocalLauncher().run(hasty, tmp_path / name, lambda _: None, lambda _: None)
        assert (here.attempts, here.weights_sha256) == (1, done.weights_sha256)
    with capsys.disabled():
        print(f"\nsix trials in {result.seconds:.0f} s; {len(resumed)} resumed after the loss of their node")
    assert tidy.objects("jobs,services,leases") == []
