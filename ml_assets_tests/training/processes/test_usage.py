"""Usage of real trainings on this machine: what their processes reserved, and where the wall time went."""

import os
import signal
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from ml_assets.data.snapshots.split_reader import Snapshot
from ml_assets.model.steps.usage import Usage, UsageRecord, read_usage
from ml_assets_tests.training.small_jobs import small_job
from resources.artifacts import artifacts_of
from resources.job.errors import Diverged
from resources.job.events import WEIGHTS, TrainingEvent, read_events, training_folder_name
from resources.job.job import TrainingJob
from resources.launcher.local import LocalLauncher


class Killed(BaseException):
    """A person cancels a launch."""


class Recorded:
    """A job, launched as the step of a pipeline launches it."""

    def __init__(self, home: Path, job: TrainingJob) -> None:
        self.artifacts = artifacts_of(None, home)
        self.job = job
        self.folder = self.artifacts.folder(training_folder_name(job))
        self.pids: list[int] = []
        self.seconds = 0.0
        """Wall time of all launches, by a clock of its own."""

    def launch(self, kill_after: int | None = None, cancel_after: int | None = None) -> None:
        usage = Usage(
            artifacts=self.artifacts, job=self.job, environment="local", env="", run_id="run", author="ada"
        )
        usage.catch_up(read_events(self.folder))

        def hear(event: TrainingEvent) -> None:
            nonlocal kill_after
            usage.hear(event)
            if event.kind == "started":
                self.pids = event.values["pids"]
            if event.kind == "metrics" and event.step == kill_after:
                os.kill(self.pids[0], signal.SIGKILL)
                kill_after = None
            if event.kind == "metrics" and event.step == cancel_after:
                raise Killed

        began = time.time()
        try:
            with usage.recording():
                LocalLauncher().run(self.job, self.folder, hear, lambda _: None)
        finally:
            self.seconds += time.time() - began

    @property
    def record(self) -> UsageRecord:
        found = read_usage(self.artifacts, self.job.model, self.job.fingerprint)
        assert found is not None
        return found


def test_parts_of_a_killed_training_sum_to_its_wall_time(tmp_path: Path, snapshot: Snapshot) -> None:
    """Rank 0 is killed six steps after a checkpoint, and the next attempt repeats these steps."""
    recorded = Recorded(tmp_path, small_job(snapshot, pace=0.02))
    recorded.launch(kill_after=26)
    record, parts = recorded.record, recorded.record.goodput
    assert parts.seconds == pytest.approx(recorded.seconds, rel=0.01)
    assert [one.state for one in record.attempts] == ["failed", "completed"]
    assert 0 < parts.lost_work < parts.compute
    assert min(parts.recovery, parts.start_up, parts.data_wait, parts.checkpoint) > 0
    assert parts.queue < 0.5
    held = [one.reading for one in record.attempts]
    assert {(one.places, one.cores, one.memory_bytes) for one in held} == {(0, 1.0, 0)}
    seconds = sum(one.place_seconds for one in held)
    assert seconds == pytest.approx(2 * (recorded.seconds - parts.queue), rel=0.05)
    assert {one.gpus for one in record.attempts} == {0}


def test_a_cancelled_launch_leaves_what_it_reserved(tmp_path: Path, snapshot: Snapshot) -> None:
    """The next launch resumes; both are in the record, and the time between them is not."""
    recorded = Recorded(tmp_path, small_job(snapshot, pace=0.01))
    with pytest.raises(Killed):
        recorded.launch(cancel_after=15)
    (attempt,) = recorded.record.attempts
    assert (attempt.state, attempt.reading.places) == ("cancelled", 0)
    assert [one.state for one in recorded.record.launches] == ["cancelled"]
    time.sleep(1.0)
    recorded.launch()
    record = recorded.record
    assert [one.state for one in record.launches] == ["cancelled", "completed"]
    assert [one.state for one in record.attempts] == ["cancelled", "completed"]
    assert record.goodput.seconds == pytest.approx(recorded.seconds, rel=0.01)
    recorded.launch()  # finds the result, and reserves nothing
    assert asdict(recorded.record) == asdict(record)


def test_a_diverged_training_costs_too(tmp_path: Path, snapshot: Snapshot) -> None:
    recorded = Recorded(tmp_path, small_job(snapshot, nan_after=12))
    with pytest.raises(Diverged):
        recorded.launch()
    (attempt,) = recorded.record.attempts
    assert (attempt.state, recorded.record.launches[0].state) == ("diverged", "diverged")
    assert attempt.reading.place_seconds > 0
    assert recorded.record.goodput.seconds == pytest.approx(recorded.seconds, rel=0.01)


def test_a_killed_training_by_auto_records_each_choice(tmp_path: Path, snapshot: Snapshot) -> None:
    """The second attempt knows the loss of the first, so it saves more often. The weights are those of any interval."""
    settings = {"determinism": "bitwise", "checkpoint_every_steps": None}
    job = small_job(snapshot, pace=0.02, checkpoint_every_minutes="auto", **settings)
    recorded, fixed = Recorded(tmp_path / "auto", job), Recorded(tmp_path / "fixed", small_job(snapshot))
    recorded.launch(kill_after=60)
    first, second = recorded.record.attempts
    assert [one.lost_work for one in (first, second)] == [True, False]
    assert [one.workers for one in (first, second)] == [2, 2]
    assert first.interval is not None
    assert second.interval is not None
    assert (first.interval.losses, second.interval.losses) == (0, 1)
    assert second.interval.checkpoint_interval_seconds < first.interval.checkpoint_interval_seconds
    told = [one for one in read_events(recorded.folder) if one.kind == "interval"]
    assert next(one.step for one in told if not one.values["losses"]) == 0
    fixed.job = small_job(snapshot, determinism="bitwise", checkpoint_every_steps=5)
    fixed.launch()
    weights = [(one.folder / WEIGHTS).read_bytes() for one in (recorded, fixed)]
    assert weights[0] == weights[1]
