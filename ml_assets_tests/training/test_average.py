"""`training.average`: validation and the export use the moving average of the weights."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ml_assets.data.snapshots.split_reader import Snapshot
from ml_assets.model.training.average import WeightAverage
from ml_assets.model.training.entry import write_result
from ml_assets.model.training.process.group import Group
from ml_assets.model.training.step.load import build_model
from ml_assets_tests.layouts.layout_jobs import residual_job
from ml_assets_tests.layouts.rank_pool import RankStopped
from ml_assets_tests.training.rank_processes import in_ranks
from ml_assets_tests.training.small_jobs import small_job
from ml_assets_tests.training.test_measured import note_snapshot, noted_snapshot, trained
from resources.job.events import WEIGHTS
from resources.job.job import TrainingJob
from resources.job.training_settings import AverageSettings, TrainingSettings

DECAY = 0.9
AVERAGE = AverageSettings(decay=DECAY)
STOP_AFTER = 11
"""Steps before a kill; the newest checkpoint is that of step 8."""


def averaged(values: list[torch.Tensor]) -> torch.Tensor:
    """Return the average by its definition."""
    average = values[0]
    for n, value in enumerate(values[1:], start=1):
        share = min(DECAY, (1 + n) / (10 + n))
        average = share * average + (1 - share) * value
    return average


@pytest.mark.parametrize("model", ["blocks", "ml_assets_tests.training.untrainable_models.BatchNorm"])
def test_the_exported_weights_are_the_average(
    tmp_path: Path, snapshot: Snapshot, group: Group, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the running statistics of a batch norm. The steps go on with the weights themselves."""
    seen: dict[str, list[torch.Tensor]] = {}
    update = WeightAverage.update

    def note(self: WeightAverage, steps: int) -> None:
        for name, value in self._model.state_dict().items():
            seen.setdefault(name, []).append(value.clone())
        update(self, steps)

    monkeypatch.setattr(WeightAverage, "update", note)
    _, plain = trained(small_job(snapshot, model, workers=1, epochs=1), tmp_path / "plain", group)
    job = small_job(snapshot, model, workers=1, epochs=1, average=AVERAGE)
    run, exported = trained(job, tmp_path / "average", group)
    assert exported.loss == run.progress.best_loss
    began = build_model(job, snapshot.inputs).state_dict()
    for name, values in seen.items():
        torch.testing.assert_close(plain.weights[name], values[-1])
        expected = averaged([began[name], *values]) if values[0].is_floating_point() else values[-1]
        torch.testing.assert_close(exported.weights[name], expected, rtol=1e-4, atol=1e-6)
    assert not torch.equal(plain.weights["core." + name_of(job)], exported.weights["core." + name_of(job)])


def name_of(job: Any) -> str:
    return "head.weight" if job.model_function.endswith("blocks") else "last.weight"


LAYOUTS: dict[str, dict[str, Any]] = {
    "replicas": {},
    "optimizer": {"shard": "optimizer"},
    "gradients": {"shard": "gradients"},
    "full": {"shard": "full"},
    "tensor": {"tensor": 2},
    "pipeline": {"pipeline": 2},
    "bitwise": {},
}
NAME = "layout"


def _job(snapshot: Snapshot, layout: str) -> TrainingJob:
    job = residual_job(snapshot, 2, **LAYOUTS[layout])
    determinism = "bitwise" if layout == "bitwise" else "tolerance"
    return replace(job, settings=replace(job.settings, average=AVERAGE, determinism=determinism))


def _train(group: Group, place: Path) -> None:
    """Train without a break, and with a kill."""
    job = _job(noted_snapshot(place), (place / NAME).read_text())
    for name, stop in (("unbroken", None), ("killed", STOP_AFTER)):
        if stop:
            with pytest.raises(RankStopped):
                trained(job, place / name, group, stop)
        run, exported = trained(job, place / name, group)
        if group.is_first:
            write_result(run, exported)


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / WEIGHTS)


@pytest.fixture(scope="module")
def alone(
    snapshot: Snapshot, group: Group, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, torch.Tensor]]:
    """Weights of one rank, by determinism."""
    found: dict[str, dict[str, torch.Tensor]] = {}
    for layout in ("replicas", "bitwise"):
        folder = tmp_path_factory.mktemp(layout)
        write_result(*trained(_job(snapshot, layout), folder, group))
        found[layout] = _weights(folder)
    return found


@pytest.mark.parametrize(
    "layout",
    [
        "optimizer",
        "full",
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in ("bitwise", "gradients", "tensor", "pipeline")
        ),
    ],
)
def test_the_average_is_the_same_in_any_layout_and_after_a_kill(
    tmp_path: Path, snapshot: Snapshot, alone: dict[str, dict[str, torch.Tensor]], layout: str
) -> None:
    """The same bits after a kill, and under `bitwise` on any world size; otherwise the same but for rounding."""
    note_snapshot(tmp_path, snapshot)
    (tmp_path / NAME).write_text(layout)
    assert in_ranks(2, tmp_path, _train) == [None, None]
    unbroken = _weights(tmp_path / "unbroken")
    assert unbroken.keys() == alone["replicas"].keys()
    for key, value in _weights(tmp_path / "killed").items():
        assert torch.equal(value, unbroken[key]), key
        torch.testing.assert_close(value, alone["replicas"][key], rtol=2e-2, atol=2e-3)
        assert layout != "bitwise" or torch.equal(value, alone["bitwise"][key]), key


def test_the_average_is_part_of_the_identity_and_checked() -> None:
    plain = TrainingSettings()
    assert plain.identity != replace(plain, average=AVERAGE).identity
    read: dict[str, Any] = {"average": {"decay": DECAY}}
    assert TrainingSettings(**read).average == AVERAGE
    for decay in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=r"decay\n .*(greater|less|a finite)"):
            AverageSettings(decay=decay)
    with pytest.raises(ValueError, match=r"average\n .*a dictionary"):
        TrainingSettings(**{**read, "average": 0.9})
