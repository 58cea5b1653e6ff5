"""Trainings in real processes: two ranks under torchrun's agent, ended in every way they can end."""

import dataclasses
import os
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from ml_assets.data.snapshots.split_reader import Snapshot
from ml_assets.model.training.step.load import load_model, predict
from ml_assets_tests.training.small_jobs import (
    alive,
    assert_each_row_once_per_epoch,
    rows_learned,
    small_job,
    small_snapshot,
)
from ml_assets_tests.training.watcher import SECONDS_TO_SAVE, Unbroken, Watcher, children_of
from resources.job.errors import (
    AttemptsExhausted,
    BadConfiguration,
    Diverged,
    FailedTwice,
    InputChanged,
    OutOfMemory,
)
from resources.job.events import TrainingEvent


def test_two_ranks_learn_from_each_row_once_per_epoch(snapshot: Snapshot, unbroken: Unbroken) -> None:
    """The rows of the two ranks are disjoint."""
    job, folder, result, _ = unbroken
    assert result.world_size == 2
    assert (result.epochs, result.steps) == (3, 3 * 39)
    assert_each_row_once_per_epoch(folder, snapshot, job)
    epochs = [np.concatenate([np.concatenate(ranks) for _, ranks in part]) for part in _epochs(folder)]
    assert not np.array_equal(epochs[0], epochs[1])  # another order each time


def _epochs(folder: Path) -> list[list[tuple[int, list[np.ndarray]]]]:
    steps = list(rows_learned(folder))
    return [steps[first : first + 39] for first in range(0, len(steps), 39)]


def test_events_tell_the_story_of_a_run(unbroken: Unbroken) -> None:
    _, _, result, watcher = unbroken
    kinds = watcher.kinds()
    assert kinds[0] == "started"
    assert kinds[-1] == "finished"
    assert kinds.count("epoch") == 3
    assert kinds.count("metrics") == result.steps
    assert kinds[-2] == "system"  # of the one machine, once: it took less than 30 s
    losses = [event.values["loss"] for event in watcher.events if event.kind == "metrics"]
    assert np.mean(losses[-39:]) < np.mean(losses[:39])
    assert {event.values["best_step"] for event in watcher.events if event.kind == "finished"} == {
        result.best_step
    }


def test_the_weights_of_the_result_have_the_validation_loss_it_names(
    snapshot: Snapshot, unbroken: Unbroken
) -> None:
    job, _, result, _ = unbroken
    model = load_model(job, snapshot.inputs, Path(result.weights))
    rows = snapshot.read("validation")
    probability = predict(model, job.objective, rows)
    loss = -np.mean(np.where(rows.label == 1, np.log(probability), np.log(1 - probability)))
    assert loss == pytest.approx(result.best_validation_loss, abs=1e-6)
    assert loss < 0.65  # it learned something: 0.69 is a coin


def test_an_identical_job_finds_the_finished_result_without_a_process(unbroken: Unbroken) -> None:
    job, folder, result, _ = unbroken
    again = Watcher()
    assert again.run(job, folder) == result
    assert again.events == []
    assert again.log == []


def test_who_is_asked_to_stop_when_all_is_done_stands_in_nobodys_way(
    tmp_path: Path, snapshot: Snapshot
) -> None:
    job = small_job(snapshot, epochs=1)
    asked: list[float] = []

    def stop_at_the_end(watcher: Watcher, event: TrainingEvent) -> None:
        if event.kind == "finished" and not asked:
            asked.append(time.monotonic())
            (agent,) = children_of(os.getpid(), "ml_assets.model.training.node.torchrun")
            os.kill(agent, signal.SIGTERM)

    watcher = Watcher(stop_at_the_end)
    result = watcher.run(job, tmp_path)
    assert time.monotonic() - asked[0] < SECONDS_TO_SAVE  # none had to be killed
    assert alive(watcher.pids) == []
    assert watcher.kinds().count("started") == result.attempts == 1


def test_a_loss_that_is_not_finite_halts_the_training(tmp_path: Path, snapshot: Snapshot) -> None:
    """The last valid checkpoint is kept."""
    watcher = Watcher()
    with pytest.raises(Diverged, match=r"step 25 .*nan"):
        watcher.run(small_job(snapshot, nan_after=25), tmp_path)
    assert watcher.kinds().count("started") == 1  # no second attempt
    assert [path.name for path in sorted((tmp_path / "checkpoints").iterdir())] == [
        "step-00000010",
        "step-00000020",
    ]
    assert not (tmp_path / "result.json").exists()


def test_a_final_failure_of_one_rank_ends_the_job_as_what_it_is(tmp_path: Path, snapshot: Snapshot) -> None:
    watcher = Watcher()
    with pytest.raises(OutOfMemory, match=r"rank 1 of 2.*memory"):
        watcher.run(small_job(snapshot, "ml_assets_tests.training.untrainable_models.OneRankShort"), tmp_path)
    assert watcher.kinds().count("started") == 1


def _causes(watcher: Watcher) -> list[str]:
    return [event.values["cause"] for event in watcher.events if event.kind == "ended"]


@pytest.mark.parametrize(
    ("model", "cause"),
    [
        ("OneRankGone", "rank 1 was killed by SIGSEGV"),
        ("OneRankExits", "rank 1 ended with exit code 1: SystemExit: 0"),
        (
            "StandsStill",
            "rank 1 did not finish its model, or its first step, within 3 s (15 × stall_timeout_seconds 0.2)",
        ),
    ],
)
def test_the_rank_that_ended_first_is_named(
    tmp_path: Path, snapshot: Snapshot, model: str, cause: str
) -> None:
    """The other, which only lost it, was found first; a first pass that never returns was not found at all."""
    watcher = Watcher()
    job = small_job(
        snapshot,
        f"ml_assets_tests.training.untrainable_models.{model}",
        max_attempts=1,
        stall_timeout_seconds=0.2,
    )
    with pytest.raises(AttemptsExhausted, match=re.escape(cause)):
        watcher.run(job, tmp_path)
    assert [one.startswith(cause) for one in _causes(watcher)] == [True]


def test_an_error_that_repeats_at_the_same_place_is_tried_twice(tmp_path: Path, snapshot: Snapshot) -> None:
    watcher = Watcher()
    job = small_job(snapshot, "ml_assets_tests.training.untrainable_models.FailsInValidation", epochs=1)
    with pytest.raises(FailedTwice, match=r"ZeroDivisionError at.*untrainable_models\.py:\d+.*step \d+"):
        watcher.run(job, tmp_path)
    assert watcher.kinds().count("started") == 2


def test_the_rank_that_stands_still_is_named_not_the_one_that_waits(
    tmp_path: Path, snapshot: Snapshot
) -> None:
    """The bound is that of several heartbeats: they say twice a second which rank waits for another."""
    watcher = Watcher()
    job = small_job(
        snapshot,
        "ml_assets_tests.training.untrainable_models.StuckInValidation",
        max_attempts=1,
        stall_timeout_seconds=4.0,
    )
    cause = "rank 1 finished no step for"
    with pytest.raises(AttemptsExhausted, match=cause):
        watcher.run(job, tmp_path)
    assert [one.startswith(cause) for one in _causes(watcher)] == [True]


def test_a_model_with_state_that_a_resume_loses_is_refused_under_bitwise(
    tmp_path: Path, snapshot: Snapshot
) -> None:
    watcher = Watcher()
    job = small_job(snapshot, "ml_assets_tests.training.untrainable_models.Teacher", determinism="bitwise")
    with pytest.raises(BadConfiguration) as refused:
        watcher.run(job, tmp_path)
    assert "core.averages of ml_assets_tests.training.untrainable_models.Teacher changed" in str(
        refused.value
    )
    assert all(remedy in str(refused.value) for remedy in ("(register_buffer)", "training.average"))
    assert "started" not in watcher.kinds()


def test_the_rank_whose_loss_is_not_finite_is_named(tmp_path: Path, snapshot: Snapshot) -> None:
    """The others, whose gradients it spoiled, said that the loss was 0.61."""
    job = small_job(snapshot, "ml_assets_tests.training.untrainable_models.OneRankNan")
    with pytest.raises(Diverged, match=r"nan.*rank 1.*ranks nan"):
        Watcher().run(job, tmp_path)


def test_a_model_that_adds_up_in_the_order_of_a_set_has_the_same_bits(
    tmp_path: Path, snapshot: Snapshot
) -> None:
    job = small_job(
        snapshot,
        "ml_assets_tests.training.untrainable_models.NamesInASet",
        epochs=1,
        workers=1,
        global_batch=200,
    )
    results = [Watcher().run(job, tmp_path / name) for name in ("first", "second")]
    assert results[0].weights_sha256 == results[1].weights_sha256


def test_a_snapshot_of_other_columns_than_were_submitted_is_refused(
    tmp_path: Path, snapshot: Snapshot
) -> None:
    job = dataclasses.replace(small_job(snapshot), schema_hash="4" * 64)
    said = f"columns of schema {snapshot.schema_hash[:12]}…, but the training was submitted with 444444444444"
    with pytest.raises(InputChanged, match=said):
        Watcher().run(job, tmp_path / "job")
    assert not (tmp_path / "job" / "result.json").exists()


def test_a_changed_shard_ends_the_job_on_every_rank(tmp_path: Path) -> None:
    snapshot = small_snapshot(tmp_path / "snapshots")
    job = small_job(snapshot)
    second = snapshot.folder / snapshot.shards[1].path  # rank 1 reads it
    content = bytearray(second.read_bytes())
    content[len(content) // 2] ^= 1
    second.write_bytes(content)
    watcher = Watcher()
    with pytest.raises(InputChanged, match=f"{second.name} changed"):
        watcher.run(job, tmp_path / "job")
    assert watcher.kinds() == ["failed"]


def test_a_model_that_refuses_its_hyperparameters_is_a_bad_configuration(
    tmp_path: Path, snapshot: Snapshot
) -> None:
    watcher = Watcher()
    with pytest.raises(BadConfiguration, match="depth"):
        watcher.run(small_job(snapshot, depth=3), tmp_path)
    assert "started" not in watcher.kinds()
