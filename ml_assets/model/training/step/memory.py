"""Rows that a worker computes with at once, and advice after its memory ran out, in the platform's loop or a script's.

Not here: pods that a cluster killed at their memory limit (resources.launcher.kubernetes), full disks
(resources.job.errors).
"""

import errno
from collections.abc import Callable, Generator
from contextlib import contextmanager

import torch

from ml_assets.model.training.process.group import Group
from resources.job.errors import OutOfMemory
from resources.job.training_settings import TrainingSettings

_FOR_SCRIPTS = (
    "Change the script, which owns the loop: fewer rows at once (a smaller batch, or several backward passes a step), "
    "torch.utils.checkpoint, torch.autocast in bfloat16, fewer processes that load data. A change of "
    "model.hyperparameters needs no change of code. With only more memory (on a cluster resources.memory, for one "
    "launch --resources memory=…) training resumes from its checkpoint"
)


def passes(settings: TrainingSettings, world_size: int) -> int:
    """Return the forward and backward passes of a worker per step, under `tolerance`.

    With fewer workers than configured, this exceeds `gradient_accumulation_steps`: each worker has more rows, but not
    more memory.
    """
    return -(-settings.gradient_accumulation_steps * settings.workers // world_size)


def rows_at_once(settings: TrainingSettings, world_size: int) -> int:
    """Return the most rows of a pass."""
    lane_rows = settings.global_batch // settings.lane_count
    if settings.determinism == "bitwise":
        return lane_rows
    lanes = -(-settings.lane_count * settings.parallel.model_workers // world_size)
    return -(-lanes * lane_rows // passes(settings, world_size))


@contextmanager
def advising(settings: TrainingSettings, group: Group) -> Generator[None]:
    """Raise `OutOfMemory` with advice if memory runs out inside the block."""
    with _naming(group.rank, group.world_size, lambda: _advice(settings, group)):
        yield


@contextmanager
def advising_script(rank: int, world_size: int) -> Generator[None]:
    """Raise `OutOfMemory` with advice for a script's own loop."""
    with _naming(rank, world_size, lambda: _FOR_SCRIPTS):
        yield


@contextmanager
def _naming(rank: int, world_size: int, advice: Callable[[], str]) -> Generator[None]:
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        if not is_out_of_memory(error):
            raise
        place = "its GPU" if isinstance(error, torch.OutOfMemoryError) else "this machine"
        what = str(error).strip().partition("\n")[0] or type(error).__name__
        raise OutOfMemory(
            f"rank {rank} of {world_size} ran out of memory of {place}: {what}. {advice()}"
        ) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if a device or this machine ran out of memory."""
    return (
        isinstance(error, MemoryError | torch.OutOfMemoryError)
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or (isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error))
    )


def _advice(settings: TrainingSettings, group: Group) -> str:
    rows = rows_at_once(settings, group.world_size)
    if settings.determinism == "bitwise":
        made_of = f"global_batch {settings.global_batch} / lanes {settings.lane_count}"
        fewer = "more lanes"
    else:
        done = passes(settings, group.world_size)
        made_of = f"global_batch {settings.global_batch} / {group.world_size} workers / {done} passes"
        fewer = f"gradient_accumulation_steps {2 * settings.gradient_accumulation_steps}"
    steps = [f"{fewer} ({-(-rows // 2)} rows at once, the same batch)"]
    if settings.activation_checkpointing != "full":
        stronger = "full" if settings.activation_checkpointing == "selective" else "selective, then full"
        steps.append(f"activation_checkpointing {stronger} (resumes from the checkpoint, the same weights)")
    if settings.precision == "fp32":
        steps.append("precision bf16 (halves the memory for backward)")
    if settings.parallel.shard != "full" and group.world_size > 1:
        steps.append(
            f"parallel shard: full (a worker keeps 1/{group.world_size} of weights, gradients and optimizer state)"
        )
    steps.append("a smaller global_batch (other weights), or a larger device")
    return f"It computes with {rows} rows at once ({made_of}). Remedies, the smallest change first: {'; '.join(steps)}"
