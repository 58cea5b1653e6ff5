"""Start of an attempt, with the platform's loop or a script's: rank 0 records and reports it.

Not here: the newest checkpoint (checkpoint.checkpoints), the cost of a recovery (attempt.attempts).
"""

from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

from ml_assets.model.training.attempt.attempts import record_attempt, recovery_of
from ml_assets.model.training.checkpoint.checkpoints import Checkpoints
from ml_assets.model.training.telemetry.event_log import emit
from ml_assets.model.training.telemetry.prometheus import serve_figures
from resources.environment import device_facts
from resources.job.job import TrainingJob


def begin_attempt(
    folder: Path, checkpoints: Checkpoints, from_step: int, world_size: int
) -> tuple[int, Callable[[int], None] | None]:
    """Record an attempt that begins at `from_step`. Return its number, and a function to call after its first step;
    None for the first attempt."""
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
    """Emit `started` and, after step 0, `resumed`; serve the metrics page if the job asks for it.

    `pids`: the known ranks. `steps`: of the whole training (0: unknown). `is_stored`: the folder has a durable copy
    elsewhere, as in pods.
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
