"""A training that begins with the weights of another one: with all of them, or not at all."""

import dataclasses
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ml_assets.data.snapshots.split_reader import Snapshot, file_sha256
from ml_assets.model.training.checkpoint.initial import INITIAL, hand_over
from ml_assets.model.training.run import Run, prepare
from ml_assets.model.training.step.load import build_model
from ml_assets_tests.training.rank_processes import one_rank
from ml_assets_tests.training.small_jobs import MODELS, small_job
from resources.artifacts import FolderArtifacts
from resources.job.errors import BadConfiguration, InputChanged
from resources.job.job import TrainingJob


@pytest.fixture
def weights(snapshot: Snapshot, tmp_path: Path) -> dict[str, torch.Tensor]:
    """Return the weights of another training of the same model function on other values."""
    other = build_model(dataclasses.replace(small_job(snapshot), seed=99), snapshot.inputs).state_dict()
    return {name: value.clone() for name, value in other.items()} | {"preprocess.fill": torch.full((3,), 7.0)}


def prepared(job: TrainingJob, weights: dict[str, torch.Tensor], folder: Path) -> Run:
    """Return the run of a rank before its first step, handed `weights` as a launch does."""
    given = folder / "somewhere.safetensors"
    save_file(weights, given)
    job = dataclasses.replace(job, initial_weights=file_sha256(given))
    for _ in range(2):  # a launch that was cut off is repeated
        hand_over(given, FolderArtifacts(folder), "job")
    assert [path.name for path in (folder / "job").iterdir()] == [INITIAL]
    with one_rank() as group:
        return prepare(job, folder / "job", group)


def test_a_training_begins_with_given_weights_and_its_own_fill_values(
    snapshot: Snapshot, weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """The values that replace missing numbers come from the training's own snapshot."""
    begun = prepared(small_job(snapshot), weights, tmp_path).model.state_dict()
    assert begun.keys() == weights.keys()
    for name in weights:
        assert torch.equal(begun[name], weights[name]) == (name != "preprocess.fill"), name
    assert begun["preprocess.fill"].tolist() == pytest.approx(snapshot.inputs.fill)


def test_weights_of_another_model_are_refused_by_each_value_that_differs(
    snapshot: Snapshot, weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    weights["core.head.0.weight"] = torch.zeros(9, 5)
    weights["core.extra"] = weights.pop("core.head.3.bias")
    with pytest.raises(BadConfiguration) as refused:
        prepared(small_job(snapshot), weights, tmp_path)
    who, _, values = str(refused.value).partition(" 3 values differ: ")
    assert who.startswith(f"{MODELS}.tiny ")
    found = dict(value.split(": ") for value in values.partition(". ")[0].split("; "))
    assert found["extra"] == "only in init_from"
    assert re.findall(r"\(\d, \d\) \w+", found["head.0.weight"]) == ["(9, 5) in", "(8, 5) here"]
    assert found["head.3.bias"] == "not in init_from"
    assert len(found) == 3


@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_other_weights_than_the_job_names_end_it(
    snapshot: Snapshot, weights: dict[str, torch.Tensor], tmp_path: Path, damage: str
) -> None:
    job = dataclasses.replace(small_job(snapshot), initial_weights="5" * 64)
    if damage == "changed":
        save_file(weights, tmp_path / INITIAL)
    with (
        one_rank() as group,
        pytest.raises(InputChanged, match="starts from 555555555555: launch"),
    ):
        prepare(job, tmp_path, group)


def test_a_job_reads_back_with_its_initial_weights(snapshot: Snapshot) -> None:
    job = dataclasses.replace(small_job(snapshot), initial_weights="5" * 64)
    assert TrainingJob.from_json(job.to_json()) == job
