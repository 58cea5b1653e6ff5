"""Layers that are cut, dealt out and in shards at once, on a transformer that learns Python's own help topics."""

import dataclasses
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import polars as pl
import pytest

from ml_assets.data.snapshots.split_reader import Snapshot
from ml_assets_tests.layouts.layout_jobs import FinishedTraining, train
from ml_assets_tests.training.small_jobs import assert_each_row_once_per_epoch, small_job
from ml_assets_tests.training.text_snapshots import text_snapshot, text_table
from resources.job.errors import BadConfiguration
from resources.job.job import TrainingJob
from resources.job.training_settings import Parallel

TOKENS, ROWS = 64, 1400
GUESSED = 5.55  # nats, of one of 256


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    text = "".join(topics[name] for name in sorted(topics)).encode()
    pieces = [text[at : at + TOKENS] for at in range(0, TOKENS * ROWS, TOKENS)]
    table = text_table(days=14, rows_a_day=ROWS // 14).with_columns(
        pl.Series("text", pieces, dtype=pl.Binary)
    )
    return text_snapshot(tmp_path_factory.mktemp("snapshots"), table)


def text_job(snapshot: Snapshot, workers: int, heads: int = 4, **parallel: Any) -> TrainingJob:
    """Two epochs of 20 steps."""
    job = small_job(
        snapshot,
        "decoder",
        "next_token",
        workers=workers,
        parallel=Parallel(**parallel),
        epochs=2,
        global_batch=52,
        lanes=4,
        gradient_accumulation_steps=2 if "pipeline" in parallel else 1,
        learning_rate=0.01,
        checkpoint_every_steps=1000,
    )
    here = "ml_assets_tests.layouts.decoder"
    return dataclasses.replace(
        job,
        model_function=f"{here}.decoder",
        decode=f"{here}.read_bytes",
        hyperparameters={"heads": heads},
    )


@pytest.fixture(scope="module")
def alone(snapshot: Snapshot, tmp_path_factory: pytest.TempPathFactory) -> FinishedTraining:
    """One worker, which has everything."""
    return train(text_job(snapshot, 1), tmp_path_factory.mktemp("alone"))


@pytest.mark.parametrize(
    ("workers", "parallel"),
    [
        pytest.param(4, {"shard": "full", "tensor": 2}, id="full x tensor"),
        pytest.param(4, {"tensor": 2, "pipeline": 2}, id="tensor x pipeline", marks=pytest.mark.nightly),
        pytest.param(
            8,
            {"shard": "full", "tensor": 2, "pipeline": 2},
            id="full x tensor x pipeline",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_a_transformer_in_parts_learns_as_on_one_worker(
    tmp_path: Path, snapshot: Snapshot, alone: FinishedTraining, workers: int, parallel: dict[str, Any]
) -> None:
    job = text_job(snapshot, workers, **parallel)
    spread = train(job, tmp_path)
    assert spread.curve("loss") == pytest.approx(alone.curve("loss"), rel=1e-3)
    assert spread.curve("gradient_norm") == pytest.approx(alone.curve("gradient_norm"), rel=1e-2)
    assert spread.result.best_validation_loss == pytest.approx(alone.result.best_validation_loss, rel=1e-3)
    assert_each_row_once_per_epoch(spread.folder, snapshot, job)


def test_it_does_learn(alone: FinishedTraining) -> None:
    assert alone.curve("loss")[0] == pytest.approx(GUESSED, abs=0.4)
    assert alone.result.best_validation_loss < 3.2
    assert max(alone.curve("gradient_norm")) > 1  # so that clipping counts


def test_more_workers_than_heads_are_refused(tmp_path: Path, snapshot: Snapshot) -> None:
    job = text_job(snapshot, 4, heads=2, tensor=4)
    with pytest.raises(BadConfiguration, match=r"2 heads.*blocks\.0\.0:.*0\.5;.*1 or 2"):
        train(job, tmp_path)
