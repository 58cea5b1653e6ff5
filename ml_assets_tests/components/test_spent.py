"""What a training took is told where it is known, and only there."""

from dataclasses import replace

from ml_assets.components.steps.train import spent
from resources.launcher.job import TrainingResult

RESULT = TrainingResult(
    fingerprint="f" * 64,
    weights="model.safetensors",
    weights_sha256="e" * 64,
    best_step=10,
    best_validation_loss=0.5,
    steps=20,
    epochs=2,
    world_size=8,
    rows_per_second=1000.0,
    seconds=1800.0,
    attempts=2,
)


def test_gpu_hours_and_cost_of_workers_on_gpus() -> None:
    taken = spent(RESULT, {"device": "cuda", "gpu": "H100"}, 2.5)
    assert (taken["worker_hours"], taken["gpu_hours"], taken["cost"]) == (4.0, 4.0, 10.0)
    assert (taken["training_seconds"], taken["attempts"]) == (1800.0, 2.0)


def test_workers_on_cpus_take_no_gpu_hours() -> None:
    taken = spent(RESULT, {"device": "cpu"}, 2.5)
    assert (taken["worker_hours"], taken["gpu_hours"], taken["cost"]) == (4.0, 0.0, 0.0)


def test_a_training_that_changed_its_size_takes_what_each_attempt_took() -> None:
    taken = spent(replace(RESULT, worker_seconds=9000.0), {"device": "cuda"}, 2.0)
    assert (taken["worker_hours"], taken["gpu_hours"], taken["cost"]) == (2.5, 2.5, 5.0)
    assert taken["training_seconds"] == 1800.0


def test_nothing_is_said_about_what_is_not_known() -> None:
    assert {"gpu_hours", "cost"} & spent(RESULT, {}, 2.5).keys() == set()
    assert "cost" not in spent(RESULT, {"device": "cuda"}, None)
    speed = "training_throughput_samples_per_sec"
    assert spent(RESULT, {}, None)[speed] == 1000.0
    # A script need not tell.
    assert speed not in spent(replace(RESULT, epochs=0, rows_per_second=0.0), {}, None)
