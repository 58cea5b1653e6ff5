"""Results in fewer bits stay near those in all bits, and what needs float32 keeps it."""

import math
from pathlib import Path

import pytest
import torch

from ml_assets.data.snapshots.split_reader import Snapshot
from ml_assets.model.training.process.group import Group
from ml_assets.model.training.run import Progress
from ml_assets.model.training.step.precision import LossScale, refuse_unable
from ml_assets_tests.training.single_step import one_step
from resources.job.errors import BadConfiguration
from resources.job.training_settings import TrainingSettings
from resources.launcher.protocol import has_gpus, refuse_without_gpus

CPU = torch.device("cpu")


@pytest.mark.parametrize("determinism", ["tolerance", pytest.param("bitwise", marks=pytest.mark.nightly)])
def test_bf16_gives_nearly_the_gradients_of_fp32_and_keeps_them_in_float32(
    tmp_path: Path, snapshot: Snapshot, group: Group, determinism: str
) -> None:
    whole = one_step(snapshot, tmp_path, group, determinism=determinism)
    half = one_step(snapshot, tmp_path, group, determinism=determinism, precision="bf16")
    assert half.loss != whole.loss  # it did compute otherwise
    assert half.loss == pytest.approx(whole.loss, rel=0.01)
    assert {one.dtype for one in half.gradients.values()} == {torch.float32}
    exact = torch.cat([one.flatten() for one in whole.gradients.values()])
    near = torch.cat([one.flatten() for one in half.gradients.values()])
    assert torch.linalg.vector_norm(near - exact) < 0.02 * torch.linalg.vector_norm(exact)
    assert {one.dtype for one in half.run.model.parameters()} == {torch.float32}


def scaled(progress: Progress, slope: float) -> tuple[torch.Tensor, int]:
    """The gradient of `slope` × weight in float32, and how many times it was computed."""
    weight = torch.nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([weight])
    scale = LossScale(optimizer, CPU, progress)
    for times in range(1, 200):
        optimizer.zero_grad()
        scale(weight * slope).backward()
        if scale.fits():
            assert weight.grad is not None
            return weight.grad, times
    raise AssertionError("never fits")


def test_an_overflowing_step_is_computed_again_with_half_the_scale() -> None:
    progress = Progress(loss_scale=2.0**20)
    gradient, times = scaled(progress, slope=2.0**110)
    assert gradient == 2.0**110
    assert times == 4  # 2^20, 2^19 and 2^18 are too large
    assert progress == Progress(loss_scale=2.0**17, loss_scale_steps=1)


def test_the_scale_grows_after_two_thousand_steps_also_across_a_resume() -> None:
    progress = Progress(loss_scale_steps=1999)
    gradient, times = scaled(progress, slope=3.0)
    assert (gradient.item(), times) == (3.0, 1)
    assert progress == Progress(loss_scale=2.0**17, loss_scale_steps=0)


def test_a_gradient_that_no_scale_makes_finite_stops_the_loop() -> None:
    gradient, times = scaled(Progress(), slope=math.inf)
    assert not gradient.isfinite()
    assert times == 17  # 2^16 to 1


def test_fp16_on_a_cpu_is_refused_by_the_worker_and_by_launchers_before_it(tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration, match=r"fp16 needs a GPU.*CPU"):
        refuse_unable("fp16", CPU)
    settings = TrainingSettings(precision="fp16", workers=3)
    with pytest.raises(BadConfiguration, match=r"3 workers,.*resources\.gpus is 0\..*bf16"):
        refuse_without_gpus(settings, has_gpus=False, where="resources.gpus is 0")
    refuse_without_gpus(settings, has_gpus=True, where="this machine has none")
    assert not has_gpus(tmp_path)
    (tmp_path / "nvidia0").touch()
    assert has_gpus(tmp_path)
