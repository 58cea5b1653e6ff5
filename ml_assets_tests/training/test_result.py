"""The result of a finished job is made of its best checkpoint, however that was stored."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ml_assets.training.data.rowlog import RowLog
from ml_assets.training.result import write_result
from ml_assets.training.run import prepare
from ml_assets.training.step.load import load_model
from ml_assets_tests.training.rank_processes import one_rank
from ml_assets_tests.training.small_jobs import small_job, small_snapshot
from resources.job.training_settings import CheckpointStorage


@pytest.mark.parametrize("storage", ["compressed", "bf16"])
def test_final_weights_are_those_of_the_checkpoint_in_the_models_own_type(
    tmp_path: Path, storage: CheckpointStorage
) -> None:
    snapshot = small_snapshot(tmp_path / "snapshots")
    job = small_job(snapshot, checkpoint_storage=storage)
    with one_rank() as group:
        run = prepare(job, tmp_path, group)
        run.resume()
        run.model(torch.randn(4, 3), torch.zeros(4, 1, dtype=torch.int64)).sum().backward()
        run.optimizer.step()
        run.progress.step = run.progress.best_step = 1
        run.progress.best_loss, run.progress.seconds = 0.5, 1.0
        run.save(RowLog(tmp_path, attempt=1, rank=0))
        run.wait_until_saved()
        result = write_result(run)
    for name, value in load_file(result.weights).items():
        own = run.model.state_dict()[name]
        is_rounded = storage == "bf16" and name.startswith("core.")
        assert value.dtype == own.dtype
        assert torch.equal(value, own.to(torch.bfloat16).float() if is_rounded else own), name
    load_model(job, snapshot.inputs, Path(result.weights))
