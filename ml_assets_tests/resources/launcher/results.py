"""Result of a training that nobody trained: what scripted workers and pods leave when they are done."""

import hashlib

from resources.job.job import TrainingResult

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
