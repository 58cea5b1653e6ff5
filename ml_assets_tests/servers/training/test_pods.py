"""A training on two nodes that share nothing but a real S3 server: the bits of one machine, whoever is killed."""

import dataclasses
import hashlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ml_assets.data.snapshots.split_reader import Snapshot
from ml_assets.model.training.attempt.attempts import read_attempts
from ml_assets_tests.servers.training.pod_processes import PodProcesses
from ml_assets_tests.servers.training.s3_server import OwnS3Server
from ml_assets_tests.training.small_jobs import (
    alive,
    assert_each_row_once_per_epoch,
    small_job,
    small_snapshot,
)
from resources.job.events import read_events, recoveries_of
from resources.job.job import ExitCode, TrainingJob, TrainingResult
from resources.launcher.local import LocalLauncher

pytestmark = pytest.mark.timeout(400)

Start = Callable[..., PodProcesses]
KILLED = 128 + signal.SIGKILL


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    return small_snapshot(tmp_path_factory.mktemp("snapshots"))


@pytest.fixture(scope="module")
def on_one_machine(tmp_path_factory: pytest.TempPathFactory, snapshot: Snapshot) -> TrainingResult:
    """The job of these tests, trained by processes of this machine and without any trouble."""
    return left_alone(small_job(snapshot), tmp_path_factory.mktemp("job"))


def left_alone(job: TrainingJob, folder: Path) -> TrainingResult:
    """Return the result of processes of this machine, without any trouble."""
    # The pace is a hyperparameter, so the job without it is another one, with the same arithmetic.
    swift = dataclasses.replace(job, hyperparameters={})
    return LocalLauncher().run(swift, folder, lambda _: None, lambda _: None)


@pytest.fixture
def launch(storage: OwnS3Server, remote: str, tmp_path: Path) -> Iterator[Start]:
    """Starts the nodes of a job; none of their processes outlives the test."""
    started: list[PodProcesses] = []

    def start(job: TrainingJob, shard_cache: int | None = None) -> PodProcesses:
        pods = PodProcesses(job, storage, remote, tmp_path, shard_cache)
        started.append(pods)
        pods.start()
        return pods

    yield start
    for pods in started:
        pods.end()


def test_a_lost_node_a_cut_off_checkpoint_and_a_preemption_change_no_bit(
    launch: Start, storage: OwnS3Server, snapshot: Snapshot, tmp_path: Path
) -> None:
    """The lost node comes back."""
    job = small_job(snapshot, pace=0.02, determinism="bitwise")
    pods = launch(job)
    pods.wait_for("checkpoint", step=39)  # the first of those that validation asks for: there is a best one
    pods.wait_for("checkpoint", step=50)
    ranks = pods.rank_pids()
    pods.kill_node(1)
    assert pods.wait() == [ExitCode.PEER_LOST, -signal.SIGKILL], pods.said()
    assert alive(ranks) == []
    newest = max(storage.path(pods.url).glob("job/checkpoints/step-*"))
    (newest / "commit.json").unlink()  # as if the push had been cut off

    pods.start(nodes=1, cause="node 1 was lost")  # the other goes on alone
    resumed = pods.wait_for("resumed")
    assert 0 < resumed.step < int(newest.name.removeprefix("step-"))
    asked_at = pods.wait_for("metrics", step=resumed.step + 15).step
    pods.processes[0].terminate()
    assert pods.wait() == [ExitCode.PREEMPTED], pods.said()
    saved = [event.step for event in pods.events() if event.kind == "checkpoint"][-1]
    assert saved >= asked_at

    pods.start(cause="there is room for 2 pods instead of 1")
    pods.wait_for("metrics", step=saved + 10)
    pods.processes[1].terminate()  # one node is asked, all save and end
    assert pods.wait() == [ExitCode.PREEMPTED, ExitCode.PREEMPTED], pods.said()
    last = [event.step for event in pods.events() if event.kind == "checkpoint"][-1]

    pods.start()
    assert pods.wait() == [ExitCode.DONE, ExitCode.DONE], pods.said()
    result = pods.result()
    assert result.resumed_from_steps == (resumed.step, saved, last)
    assert result.attempts == 4
    folder = pods.pull()
    assert [attempt.world_size for attempt in read_attempts(folder)] == [2, 1, 2, 2]
    unbroken = left_alone(job, tmp_path / "unbroken")
    assert result.weights_sha256 == unbroken.weights_sha256
    assert result.best_validation_loss == unbroken.best_validation_loss
    recoveries = recoveries_of(read_events(folder))
    assert [recovery.cause for recovery in recoveries] == [
        "node 1 was lost",
        "there is room for 2 pods instead of 1",
        "it saved a checkpoint and stopped after SIGTERM",
    ]
    assert [recovery.rows_repeated for recovery in recoveries] == [0, 0, 0]
    assert hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest() == result.weights_sha256
    assert_each_row_once_per_epoch(folder, snapshot, job)
    assert len(list((folder / "checkpoints").iterdir())) <= 2 * job.settings.keep_checkpoints + 1
    assert "finished" in (folder / "events.jsonl").read_text()


def test_a_store_that_is_killed_and_comes_back_is_waited_for(
    launch: Start, storage: OwnS3Server, snapshot: Snapshot, on_one_machine: TrainingResult
) -> None:
    pods = launch(small_job(snapshot, pace=0.01))
    saved = pods.wait_for("checkpoint", step=20).step
    storage.kill()
    try:
        pods.wait_for("metrics", step=saved + 10)  # the next save waits
    finally:
        storage.start()
    assert pods.wait() == [ExitCode.DONE, ExitCode.DONE], pods.said()
    assert pods.result().attempts == 1
    assert pods.result().weights_sha256 == on_one_machine.weights_sha256


def test_both_nodes_end_with_the_code_of_the_rank_that_was_killed(launch: Start, snapshot: Snapshot) -> None:
    pods = launch(small_job(snapshot, pace=0.02))
    pods.wait_for("metrics", step=3)
    os.kill(pods.rank_pids()[1], signal.SIGKILL)
    assert pods.wait() == [KILLED, KILLED], pods.said()
    assert "which this rank needs" in pods.log(0).read_text()


def test_a_loss_that_is_not_finite_ends_both_nodes_for_good(launch: Start, snapshot: Snapshot) -> None:
    pods = launch(small_job(snapshot, nan_after=12))
    assert pods.wait() == [ExitCode.DIVERGED, ExitCode.DIVERGED], pods.said()
    assert re.search(r"step 12 .*nan", pods.log(0).read_text())


def test_a_shard_that_changed_in_the_store_ends_both_nodes_for_good(
    launch: Start, storage: OwnS3Server, tmp_path: Path
) -> None:
    snapshot = small_snapshot(tmp_path / "snapshots")
    job = small_job(snapshot)
    second = snapshot.folder / snapshot.shards[1].path
    content = bytearray(second.read_bytes())
    content[len(content) // 2] ^= 1
    second.write_bytes(content)  # before it is pushed: for the server the bytes are right
    pods = launch(job)
    assert pods.wait() == [ExitCode.INPUT_CHANGED, ExitCode.INPUT_CHANGED], pods.said()
    assert any(
        event.kind == "failed" and f"{second.name} changed" in event.values["message"]
        for node in (0, 1)
        for event in pods.events(node)
    )


@pytest.fixture
def many_shards(tmp_path: Path) -> Snapshot:
    """More than a node has room for."""
    snapshot = small_snapshot(tmp_path / "snapshots", shard_bytes=1500)
    assert len(snapshot.shards_of("train")) > 15
    return snapshot


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # made room for another
        return 0


def room_for(snapshot: Snapshot, shards: int) -> int:
    return shards * max(shard.bytes for shard in snapshot.shards)


def test_shards_that_come_from_the_store_while_it_trains_change_no_bit(
    launch: Start, many_shards: Snapshot, tmp_path: Path
) -> None:
    job = small_job(many_shards, pace=0.02, lanes=2)
    swift = dataclasses.replace(job, hyperparameters={})
    whole = LocalLauncher().run(swift, tmp_path / "whole", lambda _: None, lambda _: None)
    room = room_for(many_shards, 6)
    pods = launch(job, shard_cache=room)
    resumed_at = pods.wait_for("checkpoint", step=50).step
    pods.kill_node(1)
    pods.wait()
    pods.start()
    assert pods.wait_for("resumed").step >= resumed_at
    most = 0
    while pods.processes[0].poll() is None:
        most = max(most, sum(map(size_of, pods.place.glob("attempt-2-node-0/snapshots/*/streamed/*.arrow"))))
        time.sleep(0.005)
    assert pods.wait() == [ExitCode.DONE, ExitCode.DONE], pods.said()
    assert 0 < most <= room
    assert pods.result().weights_sha256 == whole.weights_sha256
    assert_each_row_once_per_epoch(pods.pull(), many_shards, job)


def test_a_shard_that_comes_changed_ends_both_nodes_for_good(launch: Start, many_shards: Snapshot) -> None:
    for shard in many_shards.shards_of("train")[-5:]:
        path = many_shards.folder / shard.path
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    pods = launch(small_job(many_shards, pace=0.01, lanes=2), shard_cache=room_for(many_shards, 6))
    assert pods.wait() == [ExitCode.INPUT_CHANGED, ExitCode.INPUT_CHANGED], pods.said()
    failed = [event for node in (0, 1) for event in pods.events(node) if event.kind == "failed"]
    assert any(".arrow changed: SHA-256" in event.values["message"] for event in failed)


def test_what_one_node_cannot_stage_ends_both_before_they_train(
    launch: Start, storage: OwnS3Server, snapshot: Snapshot
) -> None:
    job = dataclasses.replace(small_job(snapshot), snapshot_digest="0" * 64)
    pods = launch(job)
    assert pods.wait() == [ExitCode.INPUT_CHANGED, ExitCode.INPUT_CHANGED], pods.said()
    assert [event.kind for event in pods.events()] == ["failed"]


def test_an_image_with_other_code_ends_both_nodes_before_they_train(
    launch: Start, snapshot: Snapshot
) -> None:
    job = dataclasses.replace(small_job(snapshot), code_version="0" * 16, loop_version="1" * 16)
    pods = launch(job)
    assert pods.wait() == [ExitCode.INPUT_CHANGED, ExitCode.INPUT_CHANGED], pods.said()
    failed = [event for node in (0, 1) for event in pods.events(node)]
    assert {event.kind for event in failed} == {"failed"}
    for event in failed:
        assert "build the image" in event.values["message"]
        assert re.search(r"0000000000000000; .*\(ml_assets\.model\.training\) has", event.values["message"])


def test_the_node_whose_rank_stands_still_names_it(launch: Start, snapshot: Snapshot) -> None:
    """The rank that waits has stood still for longer, and its agent killed it first."""
    model = "ml_assets_tests.training.untrainable_models.SlowThenStuck"
    pods = launch(small_job(snapshot, model, stall_timeout_seconds=8.0))
    assert pods.wait() == [KILLED, KILLED], pods.said()
    waited, stuck = (
        [event.values["cause"] for event in pods.events(node) if event.kind == "ended"] for node in (0, 1)
    )
    # On a slow machine the node that waits gives up first. It does not name itself as the cause then, either.
    assert [cause for cause in waited if not cause.endswith("waits for another rank")] in (
        [],
        ["a rank of another node was lost"],
    )
    assert [cause.startswith("rank 1 finished no ") for cause in stuck] == [True]
