"""A script with its own loop on two nodes that share nothing but a real S3 server: its checkpoints outlive them."""

import dataclasses
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ml_assets_tests.servers.training.pod_processes import NODES, PodProcesses
from ml_assets_tests.servers.training.s3_server import OwnS3Server
from ml_assets_tests.training.small_jobs import small_job, small_snapshot
from resources.job.job import ExitCode, TrainingJob
from resources.job.training_settings import TrainingSettings
from resources.launcher.local import LocalLauncher

pytestmark = pytest.mark.timeout(1500)
PATIENCE = 600.0
"""Seconds."""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> TrainingJob:
    """Short epochs of the DDP script, a rank a node."""
    return dataclasses.replace(
        small_job(small_snapshot(tmp_path_factory.mktemp("snapshots")), objective="regression"),
        model_function="",
        script="ml_assets_tests.scripts.ddp_adapted",
        hyperparameters={"epochs": 12, "batch-size": 13},
        settings=TrainingSettings(workers=2),
    )


@pytest.fixture
def pods(job: TrainingJob, storage: OwnS3Server, remote: str, tmp_path: Path) -> Iterator[PodProcesses]:
    # The script reads whole splits, whatever the bound says.
    pods = PodProcesses(job, storage, remote, tmp_path, shard_cache=1)
    yield pods
    pods.end()


def test_a_script_goes_on_from_the_store_on_nodes_with_empty_disks(
    pods: PodProcesses, job: TrainingJob, tmp_path: Path
) -> None:
    alone = LocalLauncher().run(job, tmp_path / "alone", lambda _: None, lambda _: None)
    pods.start()
    pods.wait_for("checkpoint", step=3)
    pods.kill_node(0)
    pods.wait()
    pods.start()
    resumed = pods.wait_for("resumed")
    assert resumed.step >= 3
    assert pods.wait() == [ExitCode.DONE, ExitCode.DONE], pods.said()
    result = pods.result()
    assert result.attempts == 2
    assert result.resumed_from_steps == (resumed.step,)
    assert result.weights_sha256 == alone.weights_sha256
    left = {path.name for path in pods.pull().iterdir()}
    assert {"model.safetensors", "model.pt2", "result.json", "checkpoints"} <= left
    kept = list((pods.pull() / "checkpoints").glob("step-*/snapshot.pt"))
    assert 0 < len(kept) <= job.settings.keep_checkpoints + 1  # and the one it began from


def test_a_machine_that_dies_while_ranks_save_together_is_not_waited_for(
    job: TrainingJob, storage: OwnS3Server, remote: str, tmp_path: Path
) -> None:
    """No collective runs there whose connection would close: rank 0 waited forever."""
    job = dataclasses.replace(
        job,
        script="ml_assets_tests.scripts.sharded",
        hyperparameters={"epochs": 6, "dies_at": 3, "machine": 1},
    )
    pods = PodProcesses(job, storage, remote, tmp_path)
    try:
        pods.start()
        pods.wait_for("checkpoint", step=2)
        assert pods.wait(PATIENCE) == [ExitCode.PEER_LOST, -signal.SIGKILL], pods.said()
        assert re.search(r"machine 1.*rank 1.*30 s", pods.log(0).read_text())
        pods.start()
        assert pods.wait_for("resumed").step == 2
        assert pods.wait(PATIENCE) == [ExitCode.DONE, ExitCode.DONE], pods.said()
    finally:
        pods.end()


@pytest.mark.parametrize(("ranks", "killed"), [(1, 1), (2, 0)])
def test_ranks_of_two_nodes_that_save_together_resume_from_all_their_files(
    job: TrainingJob, storage: OwnS3Server, remote: str, tmp_path: Path, ranks: int, killed: int
) -> None:
    """Each rank writes its own files on its own node. A checkpoint has all of them, and each rank can read all."""
    workers = NODES * ranks
    job = dataclasses.replace(
        job,
        script="ml_assets_tests.scripts.sharded",
        hyperparameters={"epochs": 40, "dies_at": 0},
        settings=TrainingSettings(workers=workers),
    )
    pods = PodProcesses(job, storage, remote, tmp_path)
    try:
        pods.start()
        pods.wait_for("checkpoint", step=3)
        pods.kill_node(killed)
        pods.wait(PATIENCE)
        pods.start()
        resumed = pods.wait_for("resumed")
        assert resumed.step >= 3
        assert pods.wait() == [ExitCode.DONE, ExitCode.DONE], pods.said()
        draws = [f"draws-{rank}" for rank in range(workers)]
        for node in range(NODES):
            log = pods.log(node).read_text()
            for rank in range(node * ranks, (node + 1) * ranks):
                assert f"rank {rank} resumes what {workers} saved: {draws}" in log
        assert pods.result().resumed_from_steps == (resumed.step,)
        steps = sorted((pods.pull() / "checkpoints").glob("step-*"))
        assert steps
        for step in steps:
            assert {*draws, "commit.json"} <= {path.name for path in step.iterdir()}
            assert len(list(step.glob("*.distcp"))) == workers
    finally:
        pods.end()
