"""The parts around the loop that need no second process: models, preprocessing, schedule, row log."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ml_assets.data.snapshots.split_reader import InputSpec, Snapshot
from ml_assets.model.training.data.preprocess import Preprocess
from ml_assets.model.training.data.rowlog import RowLog, read_rows
from ml_assets.model.training.loop import learning_rate
from ml_assets.model.training.step.load import build_model
from ml_assets_tests.training.small_jobs import MODELS, small_job
from resources.job.errors import BadConfiguration


@pytest.mark.parametrize(
    ("model_function", "complaint"),
    [
        ("nowhere.to.be.found", "cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
        (f"{MODELS}.missing", "has no attribute 'missing'"),
        ("missing", "Write package.module.function"),
        (f"{MODELS}.no_module", "returned str, not a torch.nn.Module"),
        (f"{MODELS}.no_parameters", "has no parameters to train"),
        (f"{MODELS}.two_columns", r"does not take the columns of the snapshot|output of shape \(2, 2\)"),
    ],
)
def test_a_model_function_that_cannot_be_used_is_refused(
    snapshot: Snapshot, model_function: str, complaint: str
) -> None:
    job = dataclasses.replace(small_job(snapshot, model="other"), model_function=model_function)
    with pytest.raises(BadConfiguration, match=complaint):
        build_model(job, snapshot.inputs)


def test_first_weights_depend_on_the_seed_alone(snapshot: Snapshot) -> None:
    job = small_job(snapshot)
    torch.manual_seed(99)
    first = build_model(job, snapshot.inputs).state_dict()
    second = build_model(job, snapshot.inputs).state_dict()
    other = build_model(dataclasses.replace(job, seed=4), snapshot.inputs).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["core.head.0.weight"], other["core.head.0.weight"])


def test_missing_values_are_filled() -> None:
    inputs = InputSpec(numeric=("a", "b"), fill=(0.5, -1.0), categorical=(), cardinalities=())
    standardised = torch.tensor([[3.0, torch.nan], [torch.nan, 7.0]])
    assert Preprocess(inputs)(standardised).tolist() == [[3.0, -1.0], [0.5, 7.0]]


@given(total=st.integers(1, 5000), warmup=st.floats(0, 1), peak=st.floats(1e-6, 1))
def test_the_learning_rate_stays_between_zero_and_its_peak(total: int, warmup: float, peak: float) -> None:
    rates = [learning_rate(step, total, peak, warmup) for step in range(total)]
    assert all(0 < rate <= peak * (1 + 1e-9) for rate in rates)
    assert max(rates) >= peak * 0.99
    top = rates.index(max(rates))
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)


def test_a_row_log_that_was_cut_reads_back_in_order(tmp_path: Path) -> None:
    log = RowLog(tmp_path, attempt=1, rank=0)
    log.write(0, np.array([3, 1]))
    assert log.cut() == "rows/attempt-001-rank-0.bin"
    complete = (tmp_path / "rows/attempt-001-rank-0.bin").read_bytes()
    log.write(1, np.array([2]))
    assert log.cut() == "rows/attempt-001-rank-0-1.bin"
    log.write(2, np.array([4]))
    RowLog(tmp_path, attempt=1, rank=1).write(0, np.array([9]))
    assert [(t.rank, t.step, t.rows.tolist()) for t in read_rows(tmp_path)] == [
        (0, 0, [3, 1]), (0, 1, [2]), (0, 2, [4]), (1, 0, [9]),
    ]  # fmt: skip
    assert (tmp_path / "rows/attempt-001-rank-0.bin").read_bytes() == complete


def test_the_row_log_reads_back_and_ends_where_it_was_cut_off(tmp_path: Path) -> None:
    first, second = RowLog(tmp_path, attempt=1, rank=0), RowLog(tmp_path, attempt=2, rank=0)
    first.write(0, np.array([3, 1, 2]))
    first.write(1, np.array([], dtype=np.int64))
    second.write(1, np.array([7]))
    path = tmp_path / "rows" / "attempt-002-rank-0.bin"
    path.write_bytes(path.read_bytes() + b"\x02\x00\x00\x00\x05\x00\x00\x00\x01")  # 5 rows promised
    found = [(t.attempt, t.rank, t.step, t.rows.tolist()) for t in read_rows(tmp_path)]
    assert found == [(1, 0, 0, [3, 1, 2]), (1, 0, 1, []), (2, 0, 1, [7])]
