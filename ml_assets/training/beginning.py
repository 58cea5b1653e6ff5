"""Start of an attempt, with the platform's loop or a script's: rank 0 records and reports it.

Not here: what the newest checkpoint is (checkpoints), what was lost since (recovery).
"""

from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

from ml_assets.training.attempt.attempts import record_attempt
from ml_assets.training.attempt.recovery import recovery_of
from ml_assets.training.checkpoint.checkpoints import Checkpoints
from ml_assets.training.telemetry.event_log import emit
from ml_assets.training.telemetry.prometheus import serve_figures
from resources.environment import device_facts
from resources.job.job import TrainingJob


def begin_attempt(
    folder: Path, checkpoints: Checkpoints, from_step: int, world_size: int
) -> tuple[int, Callable[[int], None] | None]:
    """Write down that an attempt goes on from `from_step`; its number, and what to call with its first step done, where
    it is not the first."""
    attempt = record_attempt(folder, from_step, world_size)
    checkpoints.begin(attempt)
    return attempt.number, recovery_of(folder, attempt) if attempt.number > 1 else None


def tell_beginning(
    job: TrainingJob,
    attempt: int,
    from_step: int,
    *,
    world_size: int,
    pids: Sequence[int],
    steps: int,
    device: str,
    is_stored: bool,
) -> None:
    """The events `started` and, after step 0, `resumed`; from now on figures are served, where they are asked for.

    `pids` are of the ranks that are known, `steps` those of the whole training (0: not known), `is_stored` says whether
    the folder has a durable copy elsewhere, as it has in pods.
    """
    emit(
        "started",
        from_step,
        world_size=world_size,
        pids=pids,
        steps=steps,
        attempt=attempt,
        device=device,
        metrics_port=serve_figures(job, all_addresses=is_stored),
        torch=metadata.version("torch"),
        **device_facts(),
    )
    if from_step:
        emit("resumed", from_step, attempt=attempt)
