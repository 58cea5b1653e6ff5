"""Files of a finished job: `model.safetensors` with the best weights, then `result.json`.

Not here: reading them (step.load, resources.job.job).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (the annotations of torch and safetensors are partial)

from ml_assets.data.snapshots.split_reader import file_sha256
from ml_assets.model.training.attempt.attempts import read_attempts, worker_seconds
from ml_assets.model.training.measured import Exported
from ml_assets.model.training.run import Run
from resources.files import write_whole
from resources.job.events import EVENTS, RESULT, WEIGHTS
from resources.job.job import TrainingResult


def write_result(run: Run, exported: Exported) -> TrainingResult:
    """Write both files, the result last: if it exists, so does every file that it names."""
    from safetensors.torch import save_file

    progress = run.progress
    weights = run.folder / WEIGHTS
    write_whole(weights, lambda path: save_file(dict(exported.weights), path))
    attempts = read_attempts(run.folder)
    result = TrainingResult(
        fingerprint=run.job.fingerprint,
        weights=str(weights),
        weights_sha256=file_sha256(weights),
        best_step=progress.best_step,
        best_validation_loss=exported.loss,
        compared_units=exported.compared_units,
        compared_loss=exported.compared_loss,
        steps=progress.step,
        epochs=progress.step // run.order.steps_per_epoch,
        world_size=run.group.world_size,
        rows_per_second=progress.step * run.train.rows / run.order.steps_per_epoch / progress.seconds,
        seconds=progress.seconds,
        attempts=len(attempts),
        resumed_from_steps=tuple(attempt.from_step for attempt in attempts[1:]),
        worker_seconds=worker_seconds(run.folder),
    )
    write_whole(run.folder / RESULT, lambda path: path.write_text(result.to_json()))
    return result


def store_result(run: Run) -> None:
    """Push the files of `write_result` to the mirror, the result last. Raises `StorageFailed`."""
    if run.mirror is not None:
        run.mirror.push([WEIGHTS, EVENTS], last=RESULT)
