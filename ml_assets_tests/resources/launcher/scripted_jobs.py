"""Jobs whose worker only plays its part (`scripted_worker`), and the result that it leaves."""

import hashlib

from resources.job.job import TrainingJob, TrainingResult
from resources.job.training_settings import TrainingSettings


def job_of(*plan: str, max_attempts: int = 3) -> TrainingJob:
    """Return a job with a word for each attempt."""
    return TrainingJob(
        model="small",
        partition="2024-01-01",
        model_function="a.b",
        objective="binary",
        hyperparameters={"plan": list(plan)},
        snapshot="/nowhere",
        snapshot_digest="0" * 64,
        code_version="",
        seed=0,
        settings=TrainingSettings(max_attempts=max_attempts),
    )


CONTENT = b"weights"
"""Content of the weights file that goes with it."""


def untrained_result(fingerprint: str, weights: str, attempts: int = 1) -> TrainingResult:
    """Return a result of one step, whose weights are a file with `CONTENT` at the path `weights`."""
    return TrainingResult(
        fingerprint=fingerprint,
        weights=weights,
        weights_sha256=hashlib.sha256(CONTENT).hexdigest(),
        best_step=1,
        best_validation_loss=0.5,
        steps=1,
        epochs=1,
        world_size=1,
        rows_per_second=1.0,
        seconds=1.0,
        worker_seconds=1.0,
        attempts=attempts,
    )
