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


def refuse_few_gpus(gpus: int, ranks: int, nodes: int) -> None:
    """Raise `BadConfiguration` where a machine has GPUs, but fewer than the `ranks` on each of the `nodes` machines."""
    if not 0 < gpus < ranks:
        return
    has = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
    share = f"{ranks * nodes} / {nodes} machines = {ranks}" if nodes > 1 else str(ranks)
    raise BadConfiguration(
        f"this machine has {has} for {share} workers, and a worker on the CPU would hold up those on GPUs: set "
        f"training.workers to {gpus * nodes}, or training.device to cpu to use no GPU at all"
    )


def refuse_without_gpus(settings: TrainingSettings, *, has_gpus: bool, where: str) -> None:
    """Raise `BadConfiguration` where `settings` need GPUs and `where`, in words, there are none."""
    if settings.precision == "fp16" and not has_gpus:
        raise BadConfiguration(
            f"precision fp16 needs a GPU for each of the {settings.workers} workers, and {where}. Use bf16, which CPUs "
            "compute in as well, or fp32"
        )
