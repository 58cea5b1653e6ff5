"""Trainings that are killed, damaged, asked to stop and taken over end in the weights of an undisturbed one."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from ml_assets.data.snapshots.split_reader import Snapshot
from ml_assets_tests.training.small_jobs import alive, assert_each_row_once_per_epoch, small_job
from ml_assets_tests.training.watcher import SECONDS_TO_SAVE, Unbroken, Watcher, children_of, wait_until_dead
from resources.job.events import TrainingEvent, read_events
from resources.job.job import TrainingResult
from resources.job.reserved import RESERVED


def test_a_kill_a_damaged_checkpoint_and_a_sigterm_change_no_bit(
    tmp_path: Path, snapshot: Snapshot, unbroken: Unbroken
) -> None:
    """The training ends in the weights of the undisturbed run."""
    job, _, expected, _ = unbroken
    sent: dict[str, float] = {}

    def trouble(watcher: Watcher, event: TrainingEvent) -> None:
        if event.kind == "metrics" and event.step >= 55 and "kill" not in sent:
            sent["kill"] = event.step
            os.kill(_newest_ranks(watcher)[1], signal.SIGKILL)
            wait_until_dead(_newest_ranks(watcher))  # what rank 0 is writing may yet come to count
            newest = max((tmp_path / "checkpoints").glob("step-*"))
            sent["damaged"] = int(newest.name.removeprefix("step-"))
            part = newest / "__1_0.distcp"
            part.write_bytes(part.read_bytes()[:-100] + bytes(100))
        if event.kind == "metrics" and event.step >= 95 and "term" not in sent:
            sent["term"], sent["term_step"] = time.monotonic(), event.step
            os.kill(_newest_ranks(watcher)[1], signal.SIGTERM)
        if event.kind == "checkpoint" and "term" in sent and watcher.kinds().count("started") == 2:
            sent["saved"], sent["saved_step"] = time.monotonic(), event.step  # the last of this attempt

    watcher = Watcher(trouble)
    result = watcher.run(job, tmp_path)

    assert result.attempts == 3
    assert result.resumed_from_steps[0] < sent["damaged"]  # fell back to the good one before
    assert result.resumed_from_steps[1] == sent["saved_step"] >= sent["term_step"]  # nothing lost
    assert sent["saved"] - sent["term"] < SECONDS_TO_SAVE
    assert any(" 75, 1 of 3 " in line for line in watcher.log)  # not counted
    assert result.weights_sha256 == expected.weights_sha256
    assert result.best_validation_loss == expected.best_validation_loss
    assert_each_row_once_per_epoch(tmp_path, snapshot, job)
    assert_workers_were_held_while_they_trained(result, watcher)
    assert alive(watcher.pids) == []


def assert_workers_were_held_while_they_trained(result: TrainingResult, watcher: Watcher) -> None:
    """Two of them: not between attempts, but also for steps that were done again."""
    times = [event.time for event in watcher.events if event.kind != RESERVED]  # those of the workers
    whole = times[-1] - times[0]
    between = sum(event.values["seconds"] for event in watcher.events if event.kind == "recovered")
    assert max(result.seconds, whole - between - 0.1) < result.worker_seconds / 2 < whole - between / 2


def _newest_ranks(watcher: Watcher) -> list[int]:
    """Ranks of the newest attempt."""
    return watcher.pids[-2:]


def test_nothing_is_left_among_temporary_files_even_by_a_killed_agent(
    tmp_path: Path, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill_agent(watcher: Watcher, event: TrainingEvent) -> None:
        if event.kind == "checkpoint" and watcher.kinds().count("checkpoint") == 1:
            (agent,) = children_of(os.getpid(), "ml_assets.model.training.node.torchrun")
            os.kill(agent, signal.SIGKILL)

    with tempfile.TemporaryDirectory(prefix="t") as temporary:  # sockets need a short path
        monkeypatch.setenv("TMPDIR", temporary)
        result = Watcher(kill_agent).run(small_job(snapshot, epochs=1), tmp_path)
        assert result.attempts == 2
        assert list(Path(temporary).iterdir()) == []


def test_a_launcher_takes_over_from_a_cancelled_and_from_a_killed_one(
    tmp_path: Path, snapshot: Snapshot, unbroken: Unbroken
) -> None:
    """A cancelled run saves. A killed launcher leaves no worker behind."""
    job, _, expected, _ = unbroken

    def cancel(_: Watcher, event: TrainingEvent) -> None:
        if event.kind == "metrics" and event.step >= 5:
            raise KeyboardInterrupt

    cancelled = Watcher(cancel)
    with pytest.raises(KeyboardInterrupt):
        cancelled.run(job, tmp_path)
    assert alive(cancelled.pids) == []
    saved = max((tmp_path / "checkpoints").glob("step-*"))
    assert 5 <= int(saved.name.removeprefix("step-")) < job.settings.epochs * 39

    (tmp_path / "job.json").write_text(job.to_json())
    other = subprocess.Popen([sys.executable, "-c", _LAUNCH, str(tmp_path)])

    killed_at: list[int] = []

    def kill_launcher(_: Watcher, event: TrainingEvent) -> None:
        if event.kind == "metrics" and event.step >= 45 and not killed_at:
            other.kill()
            other.wait()
            killed_at.append(event.step)

    twin = Watcher(kill_launcher)
    while not any(event.kind == "resumed" for event in read_events(tmp_path)):  # else the twin would be first
        assert other.poll() is None
        time.sleep(0.05)
    result = twin.run(job, tmp_path)

    assert other.returncode == -signal.SIGKILL
    assert twin.kinds().count("started") == 3  # it followed the others' events, then its own
    assert result.attempts == 3
    assert result.resumed_from_steps[1] >= killed_at[0]  # the ranks saved although nobody listened
    assert result.weights_sha256 == expected.weights_sha256
    assert_each_row_once_per_epoch(tmp_path, snapshot, job)
    assert_workers_were_held_while_they_trained(result, twin)
    assert alive(twin.pids) == []


_LAUNCH = """
import sys
from pathlib import Path
from resources.job.job import TrainingJob
from resources.launcher.local import LocalLauncher
folder = Path(sys.argv[1])
job = TrainingJob.from_json((folder / "job.json").read_text())
LocalLauncher().run(job, folder, lambda event: None, lambda line: None)
"""
