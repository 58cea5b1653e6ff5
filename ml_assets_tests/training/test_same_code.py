"""Trainings whose code is edited while they run: no attempt continues with other code than the record names."""

import dataclasses
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from ml_assets.code.code_version import versions_of
from ml_assets.snapshots.split_reader import Snapshot
from ml_assets.training.attempt.attempts import read_attempts
from ml_assets.training.attempt.platform_code import loop_version, platform_text
from ml_assets.training.attempt.same_code import refuse_other_code
from ml_assets_tests.training.small_jobs import small_job
from ml_assets_tests.training.test_runs import Watcher
from resources.job.errors import InputChanged
from resources.job.events import TrainingEvent, read_events
from resources.job.job import TrainingJob
from resources.job.training_settings import TrainingSettings

MODEL = """
from torch import nn
from ml_assets.drills.drill_model import drill_model
from lab.rates import RATE

def build(inputs, pace=0.0):
    model = drill_model(inputs, pace=pace)
    model.head[2] = nn.Dropout(RATE)
    return model
"""
SCRIPT = """
import time
from torch import nn
from ml_assets.training.script import attach
import rates

training = attach()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(len(training.inputs.numeric), 1)

    def forward(self, numeric, category):
        return self.out(numeric).squeeze(1) * rates.RATE

for step in range(training.resumed_step + 1, 60):
    time.sleep(0.02)
    training.log(step, loss=0.5)
    if training.rank == 0:
        with training.checkpoint(step):
            pass
training.finish(Net(), steps=59, validation_loss=0.5)
"""
RATES = "RATE = 0.25\n"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package beside the platform: a model function, a script, and the module that both import."""
    folder = tmp_path / "code" / "lab"
    folder.mkdir(parents=True)
    for name, text in {"__init__": "", "model": MODEL, "train": SCRIPT, "rates": RATES}.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(folder.parent)
    return folder


def with_model(snapshot: Snapshot) -> TrainingJob:
    job = small_job(snapshot, pace=0.004, determinism="bitwise")
    return as_submitted(dataclasses.replace(job, model_function="lab.model.build"))


def with_script(snapshot: Snapshot) -> TrainingJob:
    job = dataclasses.replace(small_job(snapshot), model_function="", script="lab.train", hyperparameters={})
    return as_submitted(dataclasses.replace(job, settings=TrainingSettings(workers=2)))


def as_submitted(job: TrainingJob) -> TrainingJob:
    """`job` with the version of its code as it is now, as a pipeline submits it."""
    versions = versions_of(job.script, (job.model_function, job.decode))
    return dataclasses.replace(job, code_version="-".join(versions.values()))


class KillAfter(Watcher):
    """Kills one rank after a checkpoint of the first attempt, and edits a file at the same time."""

    def __init__(self, path: Path, text: str) -> None:
        super().__init__(self._kill)
        self._path, self._text = path, text

    def _kill(self, _: Watcher, event: TrainingEvent) -> None:
        if event.kind == "checkpoint" and self.kinds().count("checkpoint") == 2:
            self._path.write_text(self._text)
            os.kill(self.pids[-1], signal.SIGKILL)


@pytest.mark.parametrize("job_of", [with_model, with_script])
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


@pytest.mark.parametrize("job_of", [with_model, with_script])
def test_code_of_an_image_may_lie_in_another_folder(
    lab: Path,
    tmp_path: Path,
    snapshot: Snapshot,
    monkeypatch: pytest.MonkeyPatch,
    job_of: Callable[[Snapshot], TrainingJob],
) -> None:
    job = job_of(snapshot)
    lab.parent.rename(tmp_path / "opt")
    monkeypatch.syspath_prepend(tmp_path / "opt")
    refuse_other_code(job, is_pod=True)
    (tmp_path / "opt" / "lab" / "rates.py").write_text("RATE = 0.5\n")
    with pytest.raises(InputChanged, match="build the image from the code that was submitted"):
        refuse_other_code(job, is_pod=True)


def test_another_platform_in_an_image_is_refused(snapshot: Snapshot) -> None:
    """Text that differs, as in a comment, is compared by its meaning."""
    job = dataclasses.replace(
        small_job(snapshot), loop_version=loop_version(""), platform_text=platform_text()
    )
    refuse_other_code(job, is_pod=True)
    refuse_other_code(dataclasses.replace(job, platform_text="0" * 64), is_pod=True)
    other = dataclasses.replace(job, loop_version="1" * 16, platform_text="0" * 64)
    words = r"the platform \(ml_assets\.training\) has version [0-9a-f]{16}, submitted was 1{16}.* build the image"
    with pytest.raises(InputChanged, match=words):
        refuse_other_code(other, is_pod=True)


def test_other_packages_than_the_record_names_are_refused(snapshot: Snapshot) -> None:
    job = dataclasses.replace(small_job(snapshot), packages={"torch": "1.0", "only-on-windows": "2.0"})
    with pytest.raises(InputChanged, match=r"torch is 2\.\S+, submitted was 1\.0"):
        refuse_other_code(job, is_pod=False)
    with pytest.raises(InputChanged, match=r"python is 3\.\d+, submitted was 2\.7"):
        refuse_other_code(dataclasses.replace(job, packages={"python": "2.7"}), is_pod=False)
