"""The default network for tables, trained by the engine: the same bits on any number of ranks."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ml_assets.data.snapshots.split_reader import Snapshot
from ml_assets_tests.layouts.layout_jobs import train
from ml_assets_tests.training.small_jobs import small_job
from resources.job.job import TrainingJob
from resources.job.training_settings import AverageSettings


def tabular_job(snapshot: Snapshot, workers: int) -> TrainingJob:
    settings: dict[str, Any] = {"epochs": 2, "global_batch": 52, "lanes": 4, "workers": workers}
    return small_job(
        snapshot,
        model="ml_assets.model.tabular.tabular",
        determinism="bitwise",
        average=AverageSettings(decay=0.9),
        **settings,
    )


@pytest.mark.parametrize("objective", ["binary", "quantile 0.5"])
def test_its_weights_are_the_same_bits_on_any_number_of_ranks(
    snapshot: Snapshot, tmp_path: Path, objective: str
) -> None:
    """With dropout, members and an average of the weights; of a number, with earlier labels."""
    past = [] if objective == "binary" else list(snapshot.inputs.numeric[:2])
    jobs = [
        dataclasses.replace(
            tabular_job(snapshot, workers), objective=objective, hyperparameters={"past": past}
        )
        for workers in (1, 2, 3)
    ]
    weights = [load_file(train(job, tmp_path / str(job.settings.workers)).result.weights) for job in jobs]
    for other in weights[1:]:
        assert other.keys() == weights[0].keys()
        assert all(torch.equal(other[name], value) for name, value in weights[0].items())
