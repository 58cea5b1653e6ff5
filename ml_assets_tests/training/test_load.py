"""Large constants are refused before a training; large weights are not."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ml_assets.model.training.step.load import build_model, refuse_large_constants
from ml_assets_tests.training.small_jobs import small_job, small_snapshot
from resources.job.errors import BadConfiguration


def huge(inputs: Any) -> nn.Module:
    """Return 2.25 GiB of numbers that no weights file holds, of which none is in memory."""
    module = nn.Linear(len(inputs.numeric), 1)
    constants = torch.zeros(24_576, 24_576, device="meta")
    module.register_buffer("constants", constants, persistent=False)
    return module


def test_constants_beyond_what_a_graph_holds_are_refused(tmp_path: Path) -> None:
    snapshot = small_snapshot(tmp_path)
    with pytest.raises(
        BadConfiguration,
        match=r"persistent=False.*603,979,776 numbers.*2\.2 GiB.*persistent=True",
    ):
        build_model(small_job(snapshot, model=f"{__name__}.huge"), snapshot.inputs)


def test_weights_of_any_size_fit_into_a_bundle() -> None:
    large = nn.Linear(24_576, 24_576, bias=False, device="meta")
    large.register_buffer("also", torch.zeros(24_576, 24_576, device="meta"))
    refuse_large_constants("the model", large)


@pytest.mark.parametrize("spread", [1e27, 1e-23])
def test_a_label_whose_squared_errors_float32_cannot_hold_is_refused(tmp_path: Path, spread: float) -> None:
    """The training said that it diverged at its first step, and advised a lower learning rate."""
    snapshot = small_snapshot(tmp_path)
    inputs = dataclasses.replace(snapshot.inputs, spread=spread)
    job = small_job(snapshot, objective="regression")
    with pytest.raises(BadConfiguration, match="the label in another unit"):
        build_model(job, inputs)
    build_model(job, dataclasses.replace(inputs, spread=1e12))


def test_a_label_of_more_digits_than_float32_has_is_refused(tmp_path: Path) -> None:
    """Float32 holds 1,000,000,000 and each 64th number after it."""
    snapshot = small_snapshot(tmp_path)
    job = small_job(snapshot, objective="quantile 0.9")
    with pytest.raises(BadConfiguration, match="seven digits: let the feature function subtract"):
        build_model(job, dataclasses.replace(snapshot.inputs, level=-1e9, spread=100.0))
    build_model(job, dataclasses.replace(snapshot.inputs, level=-1e9, spread=1e4))
