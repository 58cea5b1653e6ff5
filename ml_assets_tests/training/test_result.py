"""The result of a finished job is made of its best checkpoint, however that was stored."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ml_assets.model.training.entry import write_result
from ml_assets.model.training.step.load import load_model
from ml_assets_tests.training.rank_processes import one_rank
from ml_assets_tests.training.small_jobs import small_job, small_snapshot
from ml_assets_tests.training.test_measured import trained
from resources.job.training_settings import CheckpointStorage


@pytest.mark.parametrize("storage", ["compressed", "bf16"])
def test_final_weights_are_those_of_the_checkpoint_in_the_models_own_type(
    tmp_path: Path, storage: CheckpointStorage
) -> None:
    snapshot = small_snapshot(tmp_path / "snapshots")
    job = small_job(snapshot, checkpoint_storage=storage, workers=1, epochs=1)
    with one_rank() as group:
        run, exported = trained(job, tmp_path, group)
        result = write_result(run, exported)
    for name, value in load_file(result.weights).items():
        own = run.model.state_dict()[name]
        is_rounded = storage == "bf16" and name.startswith("core.")
        assert value.dtype == own.dtype
        assert torch.equal(value, own.to(torch.bfloat16).float() if is_rounded else own), name
    load_model(job, snapshot.inputs, Path(result.weights))
