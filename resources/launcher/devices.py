"""Check for the devices that a training asks for, before a process starts. Standard library only.

Not here: how many a pod gets (profile), which one a rank uses (the worker asks torch).
"""

from pathlib import Path

from resources.job.errors import BadConfiguration
from resources.job.training_settings import TrainingSettings

_GPUS = ("nvidia[0-9]*", "dxg", "kfd")
"""Device files of NVIDIA's driver, of the same through Windows, of AMD's."""


def has_gpus(devices: Path = Path("/dev")) -> bool:
    """True if this machine shows a GPU."""
    return any(next(devices.glob(pattern), None) for pattern in _GPUS)


def idle_gpus(gpus: int, ranks: int) -> int:
    """Return how many of a machine's GPUs a training leaves idle: all where they are fewer than its ranks there.

    A rank on the CPU beside one on a GPU would hold the others up, so then all compute on the CPU.
    """
    return gpus if gpus < ranks else 0


def idle_in_words(idle: int, ranks: int) -> str:
    """Say what helps where `ranks` on one machine leave its `idle` GPUs unused; empty where none is idle."""
    if not idle:
        return ""
    has, use = ("GPU", "it") if idle == 1 else ("GPUs", "them")
    return (
        f"training computes on the CPU and leaves {idle} {has} idle: this machine has {idle} for {ranks} workers. "
        f"Set training.workers to {idle} to use {use}, or hide {use} from the training with CUDA_VISIBLE_DEVICES="
    )


def refuse_without_gpus(settings: TrainingSettings, *, has_gpus: bool, where: str) -> None:
    """Raise `BadConfiguration` where `settings` need GPUs and `where`, in words, there are none."""
    if settings.precision == "fp16" and not has_gpus:
        raise BadConfiguration(
            f"precision fp16 needs a GPU for each of the {settings.workers} workers, and {where}. Use bf16, which CPUs "
            "compute in as well, or fp32"
        )
