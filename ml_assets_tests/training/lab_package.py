"""A package beside the platform: a model function, a script, and the module that both import; and their jobs."""

import dataclasses
from pathlib import Path

import pytest

from ml_assets.data.snapshots.split_reader import Snapshot
from ml_assets.foundation.code.code_version import versions_of
from ml_assets_tests.training.small_jobs import small_job
from resources.job.job import TrainingJob
from resources.job.training_settings import TrainingSettings

MODEL = """
from torch import nn
from ml_assets.extras.drills.drill_model import drill_model
from lab.rates import RATE

def build(inputs, pace=0.0):
    model = drill_model(inputs, pace=pace)
    model.head[2] = nn.Dropout(RATE)
    return model
"""
SCRIPT = """
import time
from torch import nn
from ml_assets.model.training.script import attach
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


def write_lab(parent: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the package below `parent`, from where it can be imported; return its folder."""
    folder = parent / "lab"
    folder.mkdir(parents=True)
    for name, text in {"__init__": "", "model": MODEL, "train": SCRIPT, "rates": RATES}.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(parent)
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
