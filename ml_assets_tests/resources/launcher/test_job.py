"""Jobs, results and events as documents: they read back, and their identity is what can change the weights."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ml_assets.model.training
from resources.job.errors import BadConfiguration, Diverged, InputChanged, Preempted
from resources.job.events import TrainingEvent
from resources.job.job import ExitCode, TrainingJob, TrainingResult
from resources.job.training_settings import Parallel, TrainingSettings

JOB = TrainingJob(
    model="small",
    partition="2024-01-01",
    model_function="a.b",
    objective="binary",
    hyperparameters={"hidden": 8},
    snapshot="/somewhere",
    snapshot_digest="0" * 64,
    code_version="1",
    seed=0,
)


def test_a_job_reads_back() -> None:
    spread = TrainingSettings(workers=4, parallel=Parallel(shard="full", tensor=2))
    for job in (JOB, dataclasses.replace(JOB, settings=spread)):
        assert TrainingJob.from_json(job.to_json()) == job


@pytest.mark.parametrize(
    "change",
    [
        {"hyperparameters": {"hidden": 9}},
        {"snapshot_digest": "1" * 64},
        {"code_version": "2"},
        {"seed": 1},
        {"schema_hash": "4" * 64},
        {"initial_weights": "2" * 64},
        {"script": "a.c"},
        {"decode": "a.d"},
        {"loop_version": "3"},
        {"packages": {"torch": "2.13.0"}},
        {"settings": TrainingSettings(epochs=6)},
        {"settings": TrainingSettings(workers=1)},
        {"settings": TrainingSettings(lanes=4)},
        {"settings": TrainingSettings(determinism="bitwise")},
        {"settings": TrainingSettings(precision="bf16")},
        {"settings": TrainingSettings(device="cpu")},
        {"settings": TrainingSettings(gradient_accumulation_steps=2)},
        {"settings": TrainingSettings(gradient_compression="bf16")},
        {"settings": TrainingSettings(compile=True)},
        {"settings": TrainingSettings(parallel=Parallel(shard="full"))},
        {"settings": TrainingSettings(checkpoint_storage="bf16")},
    ],
)
def test_what_changes_the_weights_changes_the_fingerprint(change: dict[str, Any]) -> None:
    assert dataclasses.replace(JOB, **change).fingerprint != JOB.fingerprint


@pytest.mark.parametrize(
    "change",
    [
        {"snapshot": "/elsewhere"},
        {"partition": "2024-01-02"},
        {"platform_text": "5" * 64},
        {"settings": TrainingSettings(checkpoint_every_steps=7, log_every_steps=3, max_attempts=9)},
        {"settings": TrainingSettings(activation_checkpointing="full")},
        {"settings": TrainingSettings(checkpoint_storage="compressed")},
    ],
)
def test_what_does_not_change_the_weights_does_not(change: dict[str, Any]) -> None:
    assert dataclasses.replace(JOB, **change).fingerprint == JOB.fingerprint


def test_identity_holds_the_settings_that_can_change_weights() -> None:
    assert TrainingSettings().identity.keys() == {
        "epochs",
        "patience",
        "global_batch",
        "learning_rate",
        "weight_decay",
        "warmup_fraction",
        "clip_norm",
        "category_dropout",
        "workers",
        "lanes",
        "gradient_accumulation_steps",
        "parallel",
        "device",
        "determinism",
        "precision",
        "activation_checkpointing",
        "gradient_compression",
        "compile",
        "checkpoint_storage",
    }


def test_computing_again_is_part_of_a_compiled_job_whose_code_it_changes() -> None:
    kept, again = (
        TrainingSettings(compile=True, activation_checkpointing=what).identity for what in ("none", "full")
    )
    assert kept != again


def test_jobs_have_the_fingerprints_they_always_had() -> None:
    """Pinned: with another one, every finished training would be trained again."""
    assert JOB.fingerprint == "c23263d572eff8d18740a0a68c3b0bc5defbaa6e1377f953f6dfd917da3dabf2"


def test_the_number_of_workers_is_no_part_of_a_bitwise_job() -> None:
    two, three = (
        dataclasses.replace(JOB, settings=TrainingSettings(workers=n, determinism="bitwise")) for n in (2, 3)
    )
    assert two.fingerprint == three.fingerprint


@given(st.integers(1, 5000))
def test_lanes_not_asked_for_divide_the_batch_whatever_it_is(global_batch: int) -> None:
    lanes = TrainingSettings(global_batch=global_batch, workers=1).lane_count
    assert global_batch % lanes == 0
    assert not any(global_batch % more == 0 for more in range(lanes + 1, 9))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"global_batch": 100, "lanes": 8}, "100 / 8 = 12.5; use 96"),
        ({"global_batch": 1024, "workers": 16}, "workers 16 are more than lanes 8"),
        ({"lanes": 0}, "lanes\n  Input should be greater than 0"),
        ({"determinism": "exact"}, "determinism\n  Input should be 'bitwise' or 'tolerance'"),
        ({"device": "cuda"}, "device\n  Input should be 'auto' or 'cpu'"),
        ({"precision": "fp16", "device": "cpu"}, "use precision bf16 or fp32, or device auto"),
        ({"keep_checkpoints": 1}, "keep_checkpoints\n  Input should be greater than or equal to 2"),
        ({"precision": "fp8"}, "precision\n  Input should be 'fp32', 'bf16' or 'fp16'"),
        (
            {"activation_checkpointing": "some"},
            "activation_checkpointing\n  Input should be 'none', 'selective' or 'full'",
        ),
        (
            {"gradient_compression": "fp8"},
            "gradient_compression\n  Input should be 'none', 'bf16' or 'powersgd'",
        ),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps\n  Input should be greater than 0"),
        (
            {"global_batch": 64, "lanes": 8, "workers": 3, "gradient_accumulation_steps": 17},
            "gradient_accumulation_steps 17 is more than the 16 rows of a worker's share: "
            "global_batch 64 / lanes 8 × 2 lanes",
        ),
        (
            {"precision": "fp16", "gradient_compression": "powersgd"},
            "use precision bf16, or gradient_compression bf16",
        ),
        (
            {"determinism": "bitwise", "gradient_accumulation_steps": 2},
            "bitwise cannot be combined with gradient_accumulation_steps 2: a step already has a pass for each of the "
            "8 lanes",
        ),
        ({"determinism": "bitwise", "precision": "fp16"}, "cannot be combined with precision fp16"),
        (
            {"determinism": "bitwise", "gradient_compression": "bf16"},
            "cannot be combined with gradient_compression bf16",
        ),
        ({"determinism": "bitwise", "compile": True}, "cannot be combined with compile"),
        ({"workers": 6, "parallel": Parallel(tensor=4)}, "6 / 4 = 1.5; use 8"),
        (
            {"workers": 6, "lanes": 2, "parallel": Parallel(tensor=2)},
            "6 / 2 that read the same rows are more than",
        ),
        ({"determinism": "bitwise", "parallel": Parallel(shard="full")}, "whole models, lane by lane"),
        (
            {"precision": "fp16", "parallel": Parallel(shard="full")},
            "parallel with shard full, tensor 1 and pipeline 1 cannot be combined with precision fp16",
        ),
        (
            {"gradient_compression": "bf16", "parallel": Parallel(tensor=2)},
            "cannot be combined with gradient_compression bf16: workers send parts of a model",
        ),
        ({"compile": True, "parallel": Parallel(shard="gradients")}, "cannot be combined with compile"),
        (
            {"checkpoint_storage": "fp16"},
            "checkpoint_storage\n  Input should be 'fp32', 'bf16' or 'compressed'",
        ),
        ({"checkpoint_storage": "bf16", "determinism": "bitwise"}, "set checkpoint_storage to compressed"),
    ],
)
def test_contradictory_settings_are_refused_with_the_arithmetic(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        TrainingSettings(**settings)


@pytest.mark.parametrize(
    ("parallel", "said"),
    [
        ({"shard": "all"}, "parallel.shard\n  Input should be 'none', 'optimizer', 'gradients' or 'full'"),
        ({"tensor": 0}, "parallel.tensor\n  Input should be greater than 0"),
        ({"shard": "optimizer", "tensor": 2}, "with tensor or pipeline no worker has them all"),
        ({"tensor": 2, "pipeline": 2}, "tensor x pipeline = 4 workers: 2 / 4 = 0.5; use 4"),
        (
            {"pipeline": 2},
            "gradient_accumulation_steps 1 leaves workers idle: each computes in 1 of 2 turns",
        ),
        ("full", "parallel\n  Input should be a dictionary"),
    ],
)
def test_layouts_that_cannot_be_are_refused(parallel: Any, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        TrainingSettings(workers=2, parallel=parallel)


def test_a_job_is_decoded_where_its_processes_begin_and_nowhere_else() -> None:
    """The node of a job and each of its ranks read `job.json`; an agent hands nothing on. A restore reads another."""
    training = Path(ml_assets.model.training.__file__).parent
    decoding = sorted(
        str(file.relative_to(training))
        for file in training.rglob("*.py")
        for _ in range(file.read_text().count("TrainingJob.from_json("))
    )
    assert decoding == [
        "checkpoint/restored.py",
        "entry.py",
        "node/pod.py",
        "node/torchrun.py",
        "script/api.py",
    ]


def test_a_result_reads_back(tmp_path: Path) -> None:
    result = TrainingResult(
        fingerprint="f",
        weights="w",
        weights_sha256="s",
        best_step=1,
        best_validation_loss=0.5,
        steps=2,
        epochs=1,
        world_size=2,
        rows_per_second=3.0,
        seconds=4.0,
        worker_seconds=8.0,
        attempts=3,
        resumed_from_steps=(1, 2),
    )
    (tmp_path / "result.json").write_text(result.to_json())
    assert TrainingResult.read(tmp_path / "result.json") == result


def test_an_event_reads_back_and_anything_else_is_a_log_line() -> None:
    event = TrainingEvent(kind="metrics", step=3, time=1.5, values={"loss": 0.25})
    assert TrainingEvent.from_line(event.to_line()) == event
    assert TrainingEvent.from_line(f"epoch 3: 40% | {event.to_line()}") == event
    assert TrainingEvent.from_line("loss 0.25") is None
    assert TrainingEvent.from_line(event.to_line()[:-5]) is None  # cut off by a kill
    assert TrainingEvent.from_line('@event {"kind": "metrics"}') is None


def test_final_errors_are_those_with_a_final_exit_code() -> None:
    for error in (BadConfiguration, Diverged, InputChanged):
        assert error.final
        assert error.exit_code is not None
        assert error.exit_code.is_final
    assert not Preempted.final
    assert not ExitCode.PREEMPTED.is_final
