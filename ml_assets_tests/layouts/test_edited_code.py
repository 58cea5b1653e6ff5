"""Trainings whose code is edited while they run: no attempt continues with other code than the record names."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from ml_assets.data.snapshots.split_reader import Snapshot
from ml_assets.foundation.code.code_version import versions_of
from ml_assets.model.training.attempt.attempts import read_attempts
from ml_assets_tests.training.lab_package import RATES, with_model, with_script
from ml_assets_tests.training.watcher import Watcher
from resources.job.errors import InputChanged
from resources.job.events import TrainingEvent, read_events
from resources.job.job import TrainingJob


class KillAfter(Watcher):
    """Kills one rank after a checkpoint of the first attempt, and edits a file at the same time."""

    def __init__(self, path: Path, text: str) -> None:
        super().__init__(self._kill)
        self._path, self._text = path, text

    def _kill(self, _: Watcher, event: TrainingEvent) -> None:
        if event.kind == "checkpoint" and self.kinds().count("checkpoint") == 2:
            self._path.write_text(self._text)
            os.kill(self.pids[-1], signal.SIGKILL)


@pytest.mark.parametrize("job_of", [with_model, pytest.param(with_script, marks=pytest.mark.nightly)])
def test_an_attempt_with_edited_code_is_refused(
    lab: Path, tmp_path: Path, snapshot: Snapshot, job_of: Callable[[Snapshot], TrainingJob]
) -> None:
    """The edit is in a module that the model's module imports. With its meaning restored, the training resumes."""
    job, folder, rates = job_of(snapshot), tmp_path / "job", lab / "rates.py"
    watcher = KillAfter(rates, "RATE = 0.625\n")
    with pytest.raises(InputChanged) as refused:
        watcher.run(job, folder)
    (name,) = versions_of(job.script, (job.model_function,))
    assert f"{name} has version" in str(refused.value)
    assert f"submitted was {job.code_version}" in str(refused.value)
    assert "Materialize the model again" in str(refused.value)
    assert len(read_attempts(folder)) == 1  # refused before it began, and not tried a third time
    trained = max(event.step for event in read_events(folder) if event.kind == "metrics")
    rates.write_text(f"# as it was\n{RATES}")
    result = Watcher().run(job, folder)
    (resumed,) = result.resumed_from_steps
    assert 0 < resumed <= trained
